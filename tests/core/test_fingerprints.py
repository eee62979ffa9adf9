"""The fingerprint of a query is the same in every version, because a lake recognises by it a query that has run before.

`run` refuses a query whose fingerprint differs. So a fingerprint that changes here makes every lake's queries of that
kind and strategy begin again. A new key leaves the signature of a file without it as it was
(:meth:`latecomer.specs.spec.Spec.signature`), and a changed default is a new key.
"""

import pytest
from latecomer.specs.loading import parse_query

QUERIES = {
    "join": "streams: {l: a, r: b}\nwindow: 1 s\nquality: {recall: 0.9, period: 1 h}\n",
    "aggregate": "streams: {s: a}\nwindow: 1 h\nselect: {n: count()}\n"
    "quality: {error: 0.1, probability: 0.9, period: 1 d}\n",
    "topk": "streams: {s: a}\nwindow: 1 h\nscore: v\nk: 2\nquality: {hit_rate: 0.9, period: 1 d}\n",
    "theta_join": "streams: {l: a, r: b}\nwindow: 1 h\nconditions: [l.x < r.x]\n",
    "membership": "streams: {l: a, r: b}\nwindow: 1 h\nelement: x\n",
}
FINGERPRINTS = {
    "join; name: qjoin": "fbd0a394c4d75979",
    "join; name: mp_k_slack": "a453efe1c3c6c35a",
    "join; name: k_slack, slack: 1 s": "d4008d58e40c6573",
    "join; name: aq_k_slack": "9939d530f2992904",
    "join; name: exact": "5353a710df27e23a",
    "aggregate; name: hpm": "ddea547bc7120493",
    "aggregate; name: calibrated": "3ee6e1761881d554",
    "aggregate; name: mp_k_slack": "d85ac63639f35177",
    "aggregate; name: aq_k_slack": "23bcc25b65e29783",
    "aggregate; name: k_slack, slack: 1 s": "af1de187294284fb",
    "aggregate; name: exact": "4885cfb462917454",
    "topk; name: adaptive_wait": "4baba8f58f19618c",
    "topk; name: calibrated": "1609111236c9af9f",
    "topk; name: sma": "dab0c58673dd750b",
    "topk; name: min_topk": "3486c5441836dbdf",
    "topk; name: gs_topk": "948e6539f262c5ca",
    "topk; name: none": "3b7af896517169cb",
    "theta_join; name: fast_theta_join": "a5aa8fce9fe93530",
    "theta_join; name: cfs": "cec0db5200f8843b",
    "theta_join; name: one_bucket": "49b3753906b6a425",
    "theta_join; name: spark_sql": "fcac436b9ff6adc5",
    "theta_join; name: cross_product": "ab85372d5a96195b",
    "membership; name: mcf": "5196614ed0c408b5",
    "membership; name: bloom": "4b4e3c6bd9d5e0b7",
    "membership; name: one_filter": "69ae8e9f8285f561",
    "membership; name: exact": "fc70c165ec244201",
    "join; name: qjoin; where: l.x > r.x; select: [l.x, r.x as y]; keys: [k]": "6e4540636166369b",
    "aggregate; name: hpm, shards: 2; where: v > 1; group_by: [g]": "49c68d68b483379d",
    "topk; name: adaptive_wait; where: v > 1; group_by: [g]; select: [w]": "9ab42e4c7ed83a21",
    "theta_join; slack: 1 s; where: l.x > 1; emit: count": "d740d4089e33c484",
    "theta_join; partitions: 7; quality: {recall: 0.9}; select: [l.x]": "ba2599f96e79a3bc",
    "membership; slack: 1 s; where: l.y > 1": "ac3fda1e459487b9",
    "membership; bucket: 8; quality: {recall: 0.9}": "eb6c8fab127e1e11",
}


def fingerprint(query: str) -> str:
    kind, strategy, *keys = query.split("; ")
    text = f"name: q\nkind: {kind}\n{QUERIES[kind]}strategy: {{{strategy}}}\n" + "\n".join(keys)
    return parse_query(text).fingerprint()


@pytest.mark.parametrize("query", FINGERPRINTS)
def test_fingerprints_never_change(query: str) -> None:
    assert fingerprint(query)[:16] == FINGERPRINTS[query]
