"""Query files: the examples give exactly these specs, and every fault is one line with its place."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.core.membership.cuckoo import size_for
from latecomer.core.windows.grid import Grid
from latecomer.specs import expressions as ex
from latecomer.specs.aggregate import Aggregate, AggregateSpec, AggregateStrategy
from latecomer.specs.durations import format_duration, parse_duration
from latecomer.specs.errors import SpecError
from latecomer.specs.expressions.yaml_calls import quote_calls
from latecomer.specs.join import JoinSpec, JoinStrategy
from latecomer.specs.loading import KINDS, LARGEST_BYTES, load_query, parse_query
from latecomer.specs.membership import MembershipSpec, MembershipStrategy
from latecomer.specs.names import duplicates, fold_case
from latecomer.specs.schedule import Schedule
from latecomer.specs.spec import Answers
from latecomer.specs.theta_join import Condition, ThetaJoinSpec, ThetaJoinStrategy
from latecomer.specs.topk import TopKSpec, TopKStrategy
from ruamel.yaml import YAML

S, MIN, H, D = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000

EXAMPLES = {
    "join": """
name: dns_before_tls
kind: join
streams: {left: dns, right: ssl}
keys: [orig_h]
window: 10 s
where: left.resp_p = 53
select: [left.uid, right.uid]
quality: {recall: 0.95, period: 60 s}
strategy: {name: qjoin, adapt_every: 1 s, granularity: 10 ms, basic_window: 10 ms, estimator: empirical}
""",
    "aggregate": """
name: departures_by_airport
kind: aggregate
streams: {f: flights}
group_by: [origin]
window: {size: 1 h, slide: 10 min}
select: {flights: count(), mean_delay: avg(dep_delay), typical: median(dep_delay), p90: quantile(dep_delay, 0.9)}
quality: {error: 0.05, probability: 0.95, period: 1 d}
strategy: {name: hpm, gamma: 5 s, kp: 0.2, kd: 4}
""",
    "topk": """
name: worst_departures
kind: topk
streams: {f: flights}
group_by: [origin]
score: dep_delay
k: 5
window: {size: 3 h, slide: 15 min}
select: [carrier, flight, tailnum]
quality: {hit_rate: 0.95, period: 1 d}
strategy: {name: adaptive_wait, candidates: 10, windows: 30, initial_wait: 2 s}
""",
    "theta_join": """
name: overtaken
kind: theta_join
streams: {r: flights, s: flights}
window: {size: 1 h, slide: 1 h}
conditions: [r.event_ts < s.event_ts, r.arrival_ts > s.arrival_ts, r.dest = s.dest]
emit: rows
select: [r.tailnum, s.tailnum]
strategy: {name: fast_theta_join, partitions: 10}
""",
    "membership": """
name: in_every_log
kind: membership
streams: {a: dns, b: ssl, c: weird}
element: orig_h
window: {size: 60 s, slide: 60 s}
quality: {false_positive_rate: 0.001}
strategy: {name: mcf, fingerprint_bits: 12, bucket: 4}
""",
}


def column(alias, name):
    return ex.Column(alias, name)


def item(name, alias, col):
    return ex.SelectItem(name, column(alias, col))


EXPECTED = {
    "join": JoinSpec(
        name="dns_before_tls",
        streams=(("left", "dns"), ("right", "ssl")),
        keys=(("orig_h", "orig_h"),),
        window_us=10 * S,
        where=ex.Binary("=", column("left", "resp_p"), ex.Literal(53)),
        select=(item("left_uid", "left", "uid"), item("right_uid", "right", "uid")),
        target=0.95,
        period_us=MIN,
        strategy=JoinStrategy(
            name="qjoin",
            gamma_us=MIN,
            estimator="empirical",
            adapt_every_us=S,
            granularity_us=10_000,
            basic_window_us=10_000,
            slack_us=None,
        ),
    ),
    "aggregate": AggregateSpec(
        name="departures_by_airport",
        streams=(("f", "flights"),),
        group_by=("origin",),
        window=Grid(H, 10 * MIN),
        aggregates=(
            Aggregate("flights", "count", None, None),
            Aggregate("mean_delay", "avg", column("f", "dep_delay"), None),
            Aggregate("typical", "median", column("f", "dep_delay"), None),
            Aggregate("p90", "quantile", column("f", "dep_delay"), 0.9),
        ),
        where=None,
        error=0.05,
        target=0.95,
        period_us=D,
        strategy=AggregateStrategy(
            name="hpm", gamma_us=5 * S, kp=0.2, kd=4.0, alpha=1.0, observe_us=H, slack_us=None, shards=1
        ),
    ),
    "topk": TopKSpec(
        name="worst_departures",
        streams=(("f", "flights"),),
        group_by=("origin",),
        score=column("f", "dep_delay"),
        k=5,
        window=Grid(3 * H, 15 * MIN),
        select=(item("carrier", "f", "carrier"), item("flight", "f", "flight"), item("tailnum", "f", "tailnum")),
        where=None,
        target=0.95,
        period_us=D,
        strategy=TopKStrategy(
            name="adaptive_wait", gamma_us=D, candidates=10, windows=30, initial_wait_us=2 * S, min_step_us=20_000
        ),
    ),
    "theta_join": ThetaJoinSpec(
        name="overtaken",
        streams=(("r", "flights"), ("s", "flights")),
        window=Grid(H, H),
        conditions=(
            Condition(column("r", "event_ts"), "<", column("s", "event_ts")),
            Condition(column("r", "arrival_ts"), ">", column("s", "arrival_ts")),
            Condition(column("r", "dest"), "=", column("s", "dest")),
        ),
        emit="rows",
        select=(item("r_tailnum", "r", "tailnum"), item("s_tailnum", "s", "tailnum")),
        period_us=H,
        target=1.0,
        promises=False,
        strategy=ThetaJoinStrategy(name="fast_theta_join", gamma_us=H, partitions=10),
    ),
    "membership": MembershipSpec(
        name="in_every_log",
        streams=(("a", "dns"), ("b", "ssl"), ("c", "weird")),
        elements=(column("a", "orig_h"), column("b", "orig_h"), column("c", "orig_h")),
        window=Grid(MIN, MIN),
        other_windows=(Grid(MIN, MIN),) * 2,
        false_positive_rate=0.001,
        period_us=MIN,
        target=1.0,
        promises=False,
        strategy=MembershipStrategy(name="mcf", gamma_us=MIN, fingerprint_bits=12, bucket=4),
    ),
}

# BAD has (kind, dotted key, bad value)
REMOVE = object()
NOT_A_DURATION = [
    5,
    -1,
    1.5,
    True,
    None,
    "",
    "5",
    "s",
    "5 sec",
    "5 S",
    "-5 s",
    "1e3 s",
    "0 s",
    "0.5 us",
    "4000 d",
    [],
    {},
    "5 s s",
    "∞ s",
    ["5 s"],
]
NOT_A_SHARE = [0, -0.1, 1.1, 95, "0.95", True, [], {}, float("nan"), float("inf"), "high"]
NOT_AN_EXPRESSION = [
    "nope.x = 1", "1 +", "select 1", "left.x = (select 1)", "left.x; drop table t", "left.x = 1 -- c",
    "left.x /* c */ = 1",
    "cast(left.x as int) = 1", "sum(left.x) over () > 1", "*", "left.*", "left.x = `a`", "x = 1", 7, [], {},
    "exec('x')", "a.b.c = 1",
    "left.x", "left.x + 1" + " + 1" * 50, "(" * 60 + "1" + ")" * 60, "x" * 5000, "left.x like left.y",
    "left.x in (left.y)",
    "within_distance(left.x, left.y, right.x, right.y, 0) = true", "case when left.x = 1 then true end",
    "left.x = 1e999",
    "left.x = 99999999999999999999", "\ud800", "left.x is true",
][:-3]  # fmt: skip
BAD = [
    *(("join", "window", v) for v in NOT_A_DURATION),
    *(("join", "strategy.adapt_every", v) for v in NOT_A_DURATION if v is not None),
    *(("aggregate", "window.size", v) for v in NOT_A_DURATION),
    *(("topk", "strategy.initial_wait", v) for v in NOT_A_DURATION if v is not None),
    *(("join", "quality.recall", v) for v in NOT_A_SHARE),
    *(("topk", "quality.hit_rate", v) for v in NOT_A_SHARE),
    *(("aggregate", "quality.error", v) for v in NOT_A_SHARE),
    *(("aggregate", "quality.probability", v) for v in [*NOT_A_SHARE, 0.2, 1]),
    *(("membership", "quality.false_positive_rate", v) for v in [*NOT_A_SHARE, 0.6]),
    *(("join", "where", v) for v in NOT_AN_EXPRESSION if v != "left.x"),
    *((kind, "name", v) for kind in KINDS for v in ["", "A", "1a", "a-b", "a b", "a" * 64, "é", 5, [], "a\n"]),
    *((kind, "kind", v) for kind in KINDS for v in ["", "jion", None, 5, ["join"], {"a": 1}]),
    *((kind, "streams", v) for kind in KINDS for v in [[], {}, "dns", None, {"a": ".x", "b": "y"}, {"a": "x/y"},
            {"a": "_tmp", "b": "y"}, {1: "x"}, {"a-b": "x"}]),
    *((kind, "surprise", v) for kind in KINDS for v in [1, None, {"a": 1}]),
    *((kind, "strategy.surprise", 1) for kind in KINDS),
    *((kind, "strategy", v) for kind in KINDS for v in ["best", 5, [], {"name": "best"}, {"name": 5}]),
    *((kind, "schedule", v) for kind in KINDS for v in ["daily", {"interval": "often"}, {"start": "soon"}, {"at": 1},
            {"audit": "often"}]),
    *((kind, "description", v) for kind in KINDS for v in [5, [], " "]),
    *((kind, key, REMOVE) for kind in KINDS for key in ("name", "kind", "streams", "window")),
    *(("aggregate", "window", v) for v in ["1", {"size": "1 h", "slide": "2 h"}, {"slide": "1 h"}, {"size": "10 d",
                "slide": "1 us"}, [], {}]),
    *(("aggregate", "select", v) for v in [None, {}, [], "count()", {"a": 5}, {"rows": "count()"},
            {"origin": "count()"}, {"a b": "count()"}, {"wait_us": "count()"}, {"_first_0": "count()"},
            {"_Error_12": "count()"}]),
    *(("aggregate", "select.flights", v) for v in [
        "count", "avg()", "avg(a, b)", "nope(a)", "sum(a) + 1", "quantile(a)", "quantile(a, 2)", "quantile(a, b)",
        "count(distinct a)",
        "sum(a) over ()", "sum(a) filter (where a > 1)", "sum(a.b())", "count(); drop", "max(a, 2)", "a > 1 and b",
        "sum(avg(a))",
    ]),
    *(("aggregate", "group_by", v) for v in ["origin", [], [5], ["a", "a"], ["rows"], ["a + 1"], ["x._value"]]),
    *(("aggregate", "strategy.kp", v) for v in [-1, "x", 1e9]),
    ("aggregate", "strategy.shards", 0), ("aggregate", "strategy.shards", 1.5), ("aggregate", "strategy.slack", "5 s"),
    ("aggregate", "strategy.revise", "yes"), ("topk", "strategy.revise", 1),
    ("aggregate", "strategy", {"name": "calibrated", "revise": True, "shards": 2}),
    ("aggregate", "quality", REMOVE), ("topk", "quality", REMOVE), ("join", "quality", REMOVE),
    *(("topk", "k", v) for v in [0, -1, 10_001, 1.5, "5", True, None, REMOVE]),
    *(("topk", "score", v) for v in ["", 5, "1", "g.x.", "x desc", REMOVE]),
    *(("topk", "select", v) for v in [[], ["a", "a"], ["rank"], ["a + 1"], "a", ["f.*"], ["a b"], ["period_start"]]),
    *(("theta_join", "conditions", v) for v in [
        [], "r.x < s.x", ["r.x != s.x"], ["r.x < r.y"], ["r.x < 1"], ["r.x + s.x < s.y"], ["x < s.x"],
        ["r.x < s.x or r.y < s.y"], [5], None, REMOVE,
    ]),
    *(("theta_join", "emit", v) for v in ["row", 5, [], "count", "ranges"]),
    *(("theta_join", "strategy.partitions", v) for v in [0, 1.5, "10", 257]),
    *(("membership", "element", v) for v in [5, [], {}, {"a": "x"}, "a + b", REMOVE, {"a": "x", "b": "y", "c": "z",
                "d": "w"}]),
    *(("membership", "window", v) for v in [{"a": {"size": "1 s"}}, {"size": "1 s", "slide": "2 s"},
            {"d": {"size": "1 s"}}]),
    *(("membership", "strategy.fingerprint_bits", v) for v in [3, 33, 12.5]),
    *(("join", "keys", v) for v in ["orig_h", [], [5], {"left": "a"}, {"left": ["a", "b"], "right": "c"}, {"left": "a",
                "rihgt": "b"}]),
    *(("join", "select", v) for v in [[], ["left.a", "left.a"], ["left.a + 1"], ["uid"], [["left.a"]], "left.a",
            ["left.a as error"], ["left.a as left_seq"], ["left.seq as LEFT_seq"]]),
    *((kind, "streams", {"published": "x", "other": "y"}) for kind in ("join", "theta_join")),
    ("theta_join", "streams", {"closed": "x", "other": "y"}),
    ("join", "strategy.slack", "5 s"), ("join", "strategy.estimator", "best"), ("join", "strategy.adapt_every", "61 s"),
    ("join", "strategy", "k_slack"), ("join", "on", ["a"]),
]  # fmt: skip


def changed(kind, key, value):
    """Return the example of a kind, parsed, with the value of one key changed or the key removed."""
    data = copy.deepcopy(dict(YAML(typ="safe").load(quoted(EXAMPLES[kind]))))
    *path, last = key.split(".")
    inner = data
    for name in path:
        inner = inner[name]
    if value is REMOVE:
        del inner[last]
    else:
        inner[last] = value
    return data


def quoted(text):
    return quote_calls(text, YAML(typ="safe", pure=True).parse(text))


def dumped(data):
    import io

    out = io.StringIO()
    YAML(typ="safe", pure=True).dump(data, out)
    return out.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_examples(kind):
    spec = parse_query(EXAMPLES[kind], "q.yaml")
    assert spec == EXPECTED[kind]
    assert (spec.kind, spec.source, spec.description) == (kind, "q.yaml", "")
    assert spec.schedule == Schedule(None, None, run="@hourly", repair="@hourly", adapt="@daily", audit=None)
    assert hash(spec) == hash(EXPECTED[kind])
    for name in ("name", "streams", "period_us", "gamma_us", "target"):
        assert getattr(spec, name) is not None
    again = parse_query(
        EXAMPLES[kind] + "description: words\nschedule: {start: 2013-01-31, interval: '@daily', audit: '@weekly'}\n",
        "other.yaml",
    )
    assert again.fingerprint() == spec.fingerprint() and re.fullmatch("[0-9a-f]{64}", spec.fingerprint())
    assert again.schedule == Schedule(
        "2013-01-31", "@daily", run="@hourly", repair="@hourly", adapt="@daily", audit="@weekly"
    )
    with pytest.raises((AttributeError, TypeError)):
        spec.name = "x"


def test_bad_files_are_many():
    assert len(BAD) >= 200


@pytest.mark.parametrize(("kind", "key", "value"), BAD)
def test_the_error_of_a_bad_file_is_one_line_with_file_and_key(kind, key, value):
    data = changed(kind, key, value)
    with pytest.raises(SpecError) as caught:
        parse_query(dumped(data), "folder/q.yaml")
    message = str(caught.value)
    assert message == message.splitlines()[0] and message.isprintable()
    assert re.match(r"folder/q\.yaml(:\d+)?: ", message) and "; " in message
    named = caught.value.key
    first_key = key.split(".")[0]
    acceptable = {first_key, "strategy", "select", "streams", "quality", "conditions", "keys", "emit", "window"}
    assert named.split(".")[0].split("[")[0] in acceptable
    if first_key not in ("strategy", "emit", "kind", "streams"):
        assert named.startswith(key) or key.startswith(named)
    assert caught.value.exit_code == 2 and len(message) < 600


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\n", b"# only a comment\n", b"[]", b"- a\n", b"word", b"5", b"\x00", b"name: \x00", b"\xff\xfe",
        b"\xc3(", b"a: b: c", b"{", b"]",
        b"a: 1\na: 2\n", b"a: &x 1\nb: *x\n", b"a: &x [1]\n", b"a: !!python/object:os.system x", b"a: !!binary '!'",
        b"%YAML 1.1\n---\na: 1\n",
        b"a: !!int x", b"a: !!timestamp x", b"a: !!set x", b"--- a\n--- b\n", b"? [a]\n: 1\n", b"[" * 5000,
        b"{a: " * 500, b"- " * 3000,
        b"a: 1" + b" " * LARGEST_BYTES, b"\t- a", b"a: '\\ud800'", b'a: "\\ud800"', b"<<: {a: 1}\n",
        b"a: " + b"9" * 9000, b"kind: [join]\n",
        b"a: [" + b"1," * 20000 + b"]", b"!!omap [a]", b"a: 2013-13-45\n", b"kind: join\nname: !!null x\n",
        b"a: \x1b[31m", b"\xef\xbb\xbf",
    ],
)  # fmt: skip
def test_any_bytes_raise_a_spec_error(raw, tmp_path):
    path = tmp_path / "q.yaml"
    path.write_bytes(raw)
    with pytest.raises(SpecError) as caught:
        load_query(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_paths_that_are_not_files(tmp_path):
    for path in (tmp_path, tmp_path / "missing.yaml", str(tmp_path / "a\x00b"), "x" * 5000):
        with pytest.raises(SpecError, match="cannot be read"):
            load_query(path)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.data())
def test_damaged_files_parse_or_are_refused(kind, data):
    raw = bytearray(EXAMPLES[kind].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        replacement = data.draw(
            st.one_of(
                st.binary(max_size=3),
                st.sampled_from([b"{", b"]", b"'", b'"', b"(", b":", b"\n", b"&", b"!", b"*", b", "]),
            )
        )
        raw[place : place + data.draw(st.integers(0, 6))] = replacement
    try:
        spec = parse_query(raw.decode("utf-8", "replace"), "q.yaml")
    except SpecError as error:
        assert "\n" not in str(error) and str(error).startswith("q.yaml")
    else:
        assert spec.fingerprint()


def test_messages_have_line_and_remedy():
    text = EXAMPLES["aggregate"].replace("slide: 10 min", "slid: 10 min")
    with pytest.raises(SpecError) as caught:
        parse_query(text, "q.yaml")
    assert str(caught.value) == "q.yaml:6: window.slid: '10 min': is not a key here; did you mean 'slide'?"
    with pytest.raises(
        SpecError, match=r"^q.yaml:9: strategy.slack: '5 s': is not used by hpm; remove it, or choose k_slack$"
    ):
        parse_query(EXAMPLES["aggregate"].replace("gamma: 5 s", "slack: 5 s"), "q.yaml")
    for old, new, fault in (
        (
            "name: qjoin, adapt",
            "name: exact, adapt",
            r"strategy.estimator: 'empirical': is not used by exact; remove it, or choose qjoin",
        ),
        (
            "where: left.resp_p = 53",
            "where: left.resp_p + 53",
            r"where: 'left.resp_p \+ 53': is a value, not a condition; compare it .*",
        ),
    ):
        assert old in EXAMPLES["join"]
        with pytest.raises(SpecError, match=rf"^q.yaml:\d+: {fault}$"):
            parse_query(EXAMPLES["join"].replace(old, new), "q.yaml")


def test_aggregates_with_a_wrong_number_of_arguments():
    for text, fault in (
        ("sum()", "sum() takes 1 argument, not 0; write, for example, sum(x)"),
        ("median(x, 1)", "median() takes 1 argument, not 2; write, for example, median(x)"),
        ("avg(x, y)", "avg() takes 1 argument, not 2; write, for example, avg(x)"),
        ("count(x, y)", "count() takes 0 or 1 argument, not 2; write, for example, count()"),
        ("quantile(x, 0.9, 0.5)", "quantile() takes 2 arguments, not 3; write, for example, quantile(x, 0.9)"),
        ("quantile_cont(x, 0.9, 1)",
            "quantile_cont() takes 2 arguments, not 3; write, for example, quantile_cont(x, 0.9)"),
        ("quantile(x)", "quantile() takes 2 arguments, not 1; write, for example, quantile(x, 0.9)"),
        ("sum(mod(x, 2, 3))", "mod() takes 2 arguments, not 3; write, for example, mod(x, y)"),
        ("sum(x", "is not a function call; write, for example, avg(column)"),
    ):  # fmt: skip
        with pytest.raises(SpecError) as caught:
            parse_query(dumped(changed("aggregate", "select", {"a": text})), "q.yaml")
        assert (caught.value.key, str(caught.value).split(f"{text!r}: ")[1]) == ("select.a", fault)


def test_a_file_without_a_quality_states_no_target():
    for quality in ("", "quality:\n", "quality: {}\n", "quality: {rows_held: 10}\n", "quality: {period: 60 s}\n"):
        text = f"name: q\nkind: join\nstreams: {{l: a, r: b}}\nwindow: 1 s\n{quality}strategy: exact\n"
        spec = parse_query(text)
        assert (spec.promises, spec.target, spec.period_us) == (False, 0.95, 60_000_000)
        assert spec.rows_held == (10 if "rows_held" in quality else None)
        answers = "name: q\nkind: {}\nstreams: {{l: a}}\nwindow: 1 s\n{}strategy: {}\n"
        for kind, strategy in (("aggregate\nselect: {n: count()}", "exact"), ("topk\nscore: v\nk: 1", "none")):
            assert not parse_query(answers.format(kind, quality, strategy)).promises
    assert parse_query(text.replace("quality: {period: 60 s}", "quality: {recall: 0.95, period: 60 s}")).promises
    with pytest.raises(SpecError, match="unknown unit 'sec'; did you mean"):
        parse_query(EXAMPLES["join"].replace("window: 10 s", "window: 10 sec"))


@pytest.mark.parametrize("kind", ["theta_join", "membership"])
def test_the_slack_is_chosen_for_a_recall_unless_it_is_constant(kind):
    def parsed(quality, strategy):
        data = changed(
            kind, "strategy", {"name": {"theta_join": "fast_theta_join", "membership": "mcf"}[kind], **strategy}
        )
        data["quality"] = quality
        spec = parse_query(dumped(data), "q.yaml")
        return spec.promises, spec.adapts, spec.target, spec.slack_us, spec.confidence

    assert parsed({}, {}) == (False, False, 1.0, 0, 0.95)
    assert parsed({}, {"slack": "2 s"}) == (False, False, 1.0, 2 * S, 0.95)
    assert parsed({"recall": 0.9}, {"confidence": 0.8}) == (True, True, 0.9, None, 0.8)
    assert parsed({"recall": 0.9}, {"slack": "2 s"}) == (True, False, 0.9, 2 * S, 0.95)
    for quality, strategy, fault in (
        ({"recall": 0}, {}, "quality.recall: 0: must be above 0, at most 1"),
        ({}, {"confidence": 0.9}, "strategy.confidence: 0.9: is of a recall that the query does not state"),
    ):
        with pytest.raises(SpecError, match=fault):
            parsed(quality, strategy)


@pytest.mark.parametrize(
    ("kind", "old", "new", "fault"),
    [
        ("topk", "k: 5", "limit: 5", "k: is missing; is 'limit' meant for it?"),
        ("topk", "score: dep_delay", "order_by: dep_delay", "score: is missing; is 'order_by' meant for it?"),
        ("topk", "streams: {f: flights}", "streams: [flights]",
            "streams: .*; write {alias: stream}, for example {f: flights}"),
        ("topk", "group_by: [origin]", "group_by: origin", r"group_by: 'origin': .*; write \[origin\]"),
        ("join", "where: left.resp_p = 53", "where: left.resp_p = 53 && left.x = 1", "contains &&; write `and` if"),
        ("join", "window: 10 s", "window 10 s", "^q.yaml:6: .*; write `key: value`, with a colon and a space"),
        ("join", "window: 10 s", "schedule: {repair: @hourly}", "any token; put the value in quotes"),
        ("join", "select: [left.uid, right.uid]", "select: [coalesce(left.a, 'b') as d]",
            "put an expression that holds quotes"),
        ("join", "window: 10 s", "window: *w", "write the value itself, in quotes if"),
        ("theta_join", "emit: rows", "where: r.dep_delay > 3 and r.a < s.b",
            r"where: '\(r.a < s.b\)': reads 2 streams, .*`conditions`"),
        ("theta_join", "emit: rows", "where: r.dep_delay > 3 and 1 = 2",
            r"where: '\(1 = 2\)': reads no streams, .*; compare a column"),
        ("theta_join", "r.event_ts < s.event_ts", "r.event_ts is null",
            r"conditions\[0\]: .*: reads no stream but r; .*`where`"),
        ("theta_join", "r.event_ts < s.event_ts", "r.dep_delay > 60",
            r"conditions\[0\]: .*: reads no stream but r; .*`where`"),
        ("theta_join", "r.event_ts < s.event_ts", "r.dep_delay < r.arr_delay",
            "reads no stream but r; compare it with another"),
        ("topk", "hit_rate: 0.95", "hit_rate: 0.95, silence: 1 h",
            "quality.silence: '1 h': is of one stream beside others, but the query reads one"),
        ("join", "recall: 0.95", "recall: 0.95, silence: 0 s", "quality.silence: '0 s': "),
        ("membership", "element: orig_h", "element: orig_h\nwhere: a.x = b.x",
            r"where: '\(a.x = b.x\)': reads 2 streams, .*; let each part"),
        ("membership", "element: orig_h", "element: orig_h\nwhere: a.x + 1",
            r"where: 'a.x \+ 1': is a value, not a condition"),
        ("theta_join", "emit: rows", 'schedule: {interval: "@once"}',
            "interval: '@once': is not a cron expression; .*@daily"),
    ],
)  # fmt: skip
def test_habits_of_other_languages_have_a_remedy(kind, old, new, fault):
    assert old in EXAMPLES[kind]
    with pytest.raises(SpecError, match=fault):
        parse_query(EXAMPLES[kind].replace(old, new), "q.yaml")


def test_ranges_take_no_recall():
    data = changed("theta_join", "emit", "ranges") | {"quality": {"recall": 0.9}}
    data.pop("select", None)
    with pytest.raises(
        SpecError, match=r"quality.recall: 0.9: is not counted .* emit: ranges; choose emit: rows or count"
    ):
        parse_query(dumped(data), "q.yaml")


def test_names_are_compared_as_the_jvm_does():
    for name, other in (("Temp", "tEMP"), ("ς", "Σ"), ("ſeq", "SEQ"), ("İd", "id"), ("ß", "ẞ")):
        assert fold_case(name) == fold_case(other) and duplicates([name, "x", other]) == sorted([name, other])
    for name, other in (("ß", "ss"), ("é", "e\u0301"), ("ﬁ", "fi")):
        assert fold_case(name) != fold_case(other) and duplicates([name, other]) == []


def test_durations():
    known = {
        "1 us": 1,
        "250 ms": 250_000,
        "10 s": 10 * S,
        "5 min": 5 * MIN,
        "1 h": H,
        "1 d": D,
        "0.5 s": 500_000,
        "1.5h": 5_400 * S,
        "3650 d": 3650 * D,
    }
    for text, duration_us in known.items():
        assert parse_duration(text, source="f", key="k") == duration_us
        assert parse_duration(format_duration(duration_us), source="f", key="k") == duration_us


def test_units_of_durations():
    for text, remedy in (
        ("5 m", "did you mean 'min'?"),
        ("5 M", "did you mean 'min'?"),
        ("5 sec", "did you mean 's'?"),
        ("5 Minutes", "did you mean 'min'?"),
        ("5 MS", "did you mean 'ms'?"),
        ("2 days", "did you mean 'd'?"),
        ("10 ns", "us is the finest there is"),
        ("10 nanoseconds", "us is the finest there is"),
        ("1 w", "use one of us, ms, s, min, h, d"),
        ("1 month", "use one of us, ms, s, min, h, d"),
    ):
        with pytest.raises(SpecError) as caught:
            parse_duration(text, source="f", key="k")
        assert str(caught.value) == f"f: k: {text!r}: has the unknown unit {text.split()[1]!r}; {remedy}"
    with pytest.raises(SpecError, match="is finer than a microsecond"):
        parse_duration("0.5 us", source="f", key="k")


def test_an_alias_in_front_of_a_column_names_its_stream():
    for kind, key, value, named, fault in (
        ("membership", "element", "a.orig_h", "element",
            "is a column of a alone, but is taken of every stream; write orig_h, or {a: orig_h, b: orig_h, ...}"),
        ("membership", "element", "c.orig_h", "element",
            "is a column of c alone, but is taken of every stream; write orig_h, or {a: orig_h, b: orig_h, ...}"),
        ("membership", "element", {"a": "x", "b": "a.x", "c": "x"}, "element.b",
            "is a column of a, not of b; write a column of b, with or without its alias in front"),
        ("join", "keys", ["k", "right.orig_h"], "keys[1]",
            "is a column of right alone, but is taken of both streams; write orig_h, or {left: orig_h, right: orig_h}"),
        ("join", "keys", {"left": "right.a", "right": "b"}, "keys.left",
            "is a column of right, not of left; write a column of left, with or without its alias in front"),
    ):  # fmt: skip
        with pytest.raises(SpecError) as caught:
            parse_query(dumped(changed(kind, key, value)), "q.yaml")
        assert (caught.value.key, f"{caught.value.problem}; {caught.value.remedy}") == (named, fault)
    plain, aliased = (
        {"left": ["a", f"{left}b"], "right": [f"{right}c", "d"]} for left, right in (("", ""), ("left.", "right."))
    )
    specs = [parse_query(dumped(changed("join", "keys", keys))) for keys in (plain, aliased)]
    assert specs[0].keys == (("a", "c"), ("b", "d")) and specs[0].fingerprint() == specs[1].fingerprint()
    assert parse_query(dumped(changed("join", "keys", ["id.orig_h"]))).keys == (("id.orig_h", "id.orig_h"),)
    assert parse_query(dumped(changed("join", "keys", ['"id.orig_h"']))).keys == (("id.orig_h", "id.orig_h"),)
    assert parse_query(dumped(changed("membership", "element", '"a.x"'))).elements[1] == column("b", "a.x")
    assert parse_query(dumped(changed("membership", "element", "d.x"))).elements[1] == ex.Column("b", "d", ("x",))


def test_fields_stand_where_columns_do():
    def parsed(kind, key, value):
        return parse_query(dumped(changed(kind, key, value)))

    query = parsed("aggregate", "group_by", ["origin", "payload.user.id"])
    user_id = ex.Column("f", "payload", ("user", "id"))
    assert query.group_by == ("origin", "id") and query.group_columns == (column("f", "origin"), user_id)
    assert query.result_keys[:2] == ("origin", "id") and user_id in {e for _, e, _ in query.expressions()}
    groups = (["id"], ["a.id"], ["b.id"], ['"a.id"'])
    prints = [parsed("aggregate", "group_by", names).fingerprint() for names in groups]
    assert len(set(prints)) == 4
    assert prints[1] == parsed("aggregate", "group_by", ["f.a.id"]).fingerprint()
    assert parsed("topk", "score", "payload.delay.minutes").score == ex.Column("f", "payload", ("delay", "minutes"))
    for groups, problem in (
        (["id", "payload.id"], "would be a second result column id"),
        (["a.id", "b.id"], "would be a second result column id"),
        (["a.id", "f.a.id"], "is named twice"),
        (["payload.score"], "is the name of another result column"),
    ):
        with pytest.raises(SpecError, match=problem):
            parsed("topk", "group_by", groups)
    with pytest.raises(SpecError, match="is selected twice; remove one, or rename it with `as`"):
        parsed("topk", "select", ["payload.id", "other.id"])
    keys = parsed("join", "keys", {"left": "payload.user.id", "right": "user_id"})
    pairs = [(ex.Column("left", "payload", ("user", "id")), column("right", "user_id"))]
    assert keys.key_columns({"left": ["payload"], "right": ["user_id"]}) == pairs
    flat = [(column("left", "payload.user.id"), column("right", "user_id"))]
    assert keys.key_columns({"left": ["payload", "payload.user.id"], "right": ["user_id"]}) == flat
    payload = ex.Nested("struct", {"user": ex.Nested("struct", {"id": "number"})})
    named = {"orig_h": "string", "resp_p": "number", "uid": "string"}
    keys.check_columns({"dns": named | {"payload": payload}, "ssl": named | {"user_id": "number"}})
    keys.check_columns({"dns": named | {"payload.user.id": "number"}, "ssl": named | {"user_id": "number"}})
    for columns, says in (
        ({"payload": payload, "user_id": "string"}, "compares a number with a string"),
        (
            {"payload": ex.Nested("struct", {"users": "number"}), "user_id": "number"},
            "one of its fields: users",
        ),
        ({"payloads.user.id": "number", "user_id": "number"}, 'one of these columns: "payloads.user.id"'),
    ):
        with pytest.raises(SpecError, match=says):
            keys.check_columns({"dns": named | columns, "ssl": named | columns})


def test_a_column_name_with_spaces_is_written_with_underscores():
    for kind, key in (("aggregate", "group_by"), ("topk", "group_by"), ("membership", "element")):
        for text in ("tail number", "the tail number "):
            with pytest.raises(
                SpecError, match=rf"is not a column; if it is .* with spaces, write {text.strip().replace(' ', '_')}$"
            ):
                parse_query(dumped(changed(kind, key, [text] if key == "group_by" else text)))
        with pytest.raises(SpecError, match="gives the expression a name"):
            parse_query(dumped(changed(kind, key, ["a as b"] if key == "group_by" else "a as b")))
    assert parse_query(dumped(changed("topk", "group_by", ['"tail number"']))).group_by == ("tail_number",)


def test_the_remedy_of_a_score_with_an_order():
    for text, remedy in (
        ("dep_delay desc", "write dep_delay, or -dep_delay for the lowest"),
        ("f.dep_delay  ASC ", "write f.dep_delay, or -f.dep_delay for the lowest"),
        ("a + b desc", "write a + b, or -(a + b) for the lowest"),
    ):
        with pytest.raises(SpecError) as caught:
            parse_query(dumped(changed("topk", "score", text)), "q.yaml")
        assert caught.value.key == "score" and caught.value.value == text
        assert str(caught.value).endswith(f": names an order, but the highest scores are always taken; {remedy}")
    assert parse_query(dumped(changed("topk", "score", 'f."desc"'))).score == column("f", "desc")


def test_calls_with_commas_inside_brackets():
    spec = parse_query(
        EXAMPLES["aggregate"].replace(
            "{flights: count()",
            "{low: 'sum(least(a, 0))', b: sum(greatest(a, 0)), c: sum(greatest(b, 0)), d: max(coalesce(a, 1, 2))",
        )
    )
    assert [aggregate.name for aggregate in spec.aggregates] == ["low", "b", "c", "d", "mean_delay", "typical", "p90"]
    join = parse_query(EXAMPLES["join"].replace("[left.uid,", "[concat(left.a, ', ', right.b) as both, left.uid,"))
    assert join.select[0] == ex.SelectItem(
        "both", ex.Call("concat", (column("left", "a"), ex.Literal(", "), column("right", "b")))
    )


def test_a_comment_ends_a_call_inside_brackets():
    text = EXAMPLES["aggregate"]
    start, end = text.index("select:"), text.index("quality:")
    select = """select: {
  n: count(),   # rows
  low: min(least(a, 0)), # it's (a
  p: quantile(x, 0.9)   # the tail, 0.99
}
"""
    spec = parse_query(text[:start] + select + text[end:])
    assert [(aggregate.name, aggregate.function, aggregate.q) for aggregate in spec.aggregates] == [
        ("n", "count", None),
        ("low", "min", None),
        ("p", "quantile", 0.9),
    ]
    topk = EXAMPLES["topk"].replace("[carrier, flight, tailnum]", "[\n  carrier,\n  least(a, 0) as low # (lowest]\n]")
    assert [item.name for item in parse_query(topk).select] == ["carrier", "low"]
    with pytest.raises(SpecError, match="'quantile\\(x': quantile"):
        parse_query(text[:start] + "select: {\n  p: quantile(x, # inside\n    0.9)\n}\n" + text[end:])


def test_the_error_of_a_date_that_does_not_exist_has_its_key():
    base = EXAMPLES["join"]
    for schedule, value, why in (
        ("schedule: {start: 2013-13-01}", "2013-13-01", "month must be in 1..12"),
        ("schedule:\n  repair: '@daily'\n  start: 2013-02-30 # no", "2013-02-30", "day is out of range for month"),
        ("schedule: {start: 2013-01-01T25:00:00Z}", "2013-01-01T25:00:00Z", "hour must be in 0..23"),
        ("schedule: {start: 0000-01-01}", "0000-01-01", "year 0 is out of range"),
    ):
        with pytest.raises(SpecError) as caught:
            parse_query(base + schedule, "q.yaml")
        line = 11 + schedule.count("\n")
        remedy = "write one that exists, as 2013-01-31, or quote it if it is text"
        assert str(caught.value).startswith(f"q.yaml:{line}: schedule.start: {value!r}: is not a date ({why}")
        assert str(caught.value).endswith(f"; {remedy}")
    for start, known in (
        ("2013-01-31", "2013-01-31"),
        ("'2013-01-31'", "2013-01-31"),
        ("2013-01-31T12:00:00Z", "2013-01-31 12:00:00+00:00"),
        ("2013-01-31 12:00:00.5 +02:00", "2013-01-31 12:00:00.500000+02:00"),
    ):
        assert parse_query(f"{base}schedule: {{start: {start}}}").schedule.start == known
    for text in ("'2013-13-01'", "2013-1-1"):
        with pytest.raises(SpecError, match=r"schedule\.start: .*: is not a date; write it as 2013-01-31"):
            parse_query(f"{base}schedule: {{start: {text}}}")


def test_alternatives_and_defaults():
    def spec(kind, **keys):
        data = changed(kind, "name", "q")
        for key, value in keys.items():
            data.pop(key, None)
            if value is not REMOVE:
                data[key] = value
        return parse_query(dumped(data))

    default = spec("join", window="2 s", strategy=REMOVE).strategy
    assert (default.name, default.estimator) == ("qjoin", "calibrated")
    assert (default.adapt_every_us, default.granularity_us, default.basic_window_us, default.gamma_us) == (
        S,
        10_000,
        10_000,
        MIN,
    )
    slack = spec("join", quality=REMOVE, strategy={"name": "k_slack", "slack": "3 s"})
    assert (slack.strategy.slack_us, slack.target, slack.period_us) == (3 * S, 0.95, MIN)
    assert spec("join", keys={"left": ["a", "b"], "right": ["c", "d"]}).keys == (("a", "c"), ("b", "d"))
    assert spec("join", streams={"left": "x", "right": "x"}, select=REMOVE).select is None
    assert spec("aggregate", window="1 h", strategy="exact").window == Grid(H, H)
    windows = spec("membership", window={"a": "1 s", "b": {"size": "2 s", "slide": "1 s"}, "c": "4 s"}).windows
    assert windows == (Grid(S, S), Grid(2 * S, S), Grid(4 * S, 4 * S))
    assert spec("membership", element={"a": "x", "b": "y", "c": "c.z"}).elements[2] == column("c", "z")
    count = spec("theta_join", emit="count", select=REMOVE, strategy="cross_product")
    assert (count.emit, count.select, count.target) == ("count", (), 1.0)
    with pytest.raises(SpecError, match="not connected"):
        spec("theta_join", streams={"r": "a", "s": "b", "t": "c"})


def test_a_rate_for_which_no_filter_can_be_sized_is_refused():
    def text(rate, strategy, streams="{a: x, b: y}"):
        return (
            f"name: q\nkind: membership\nstreams: {streams}\nelement: k\nwindow: 1 s\n"
            f"quality: {{false_positive_rate: {rate}}}\nstrategy: {strategy}\n"
        )

    for rate, strategy, streams in (
        (1e-9, "mcf", 2),
        (1e-8, "{name: one_filter, bucket: 64}", 2),
        (2e-9, "mcf", 3),
        (1e-9, "{name: mcf, fingerprint_bits: 32}", 2),
        (1e-9, "{name: mcf, bucket: 3}", 4),
    ):
        several = f"{{{', '.join(f's{i}: x' for i in range(streams))}}}"
        with pytest.raises(SpecError) as caught:
            parse_query(text(rate, strategy, several), "q.yaml")
        assert str(caught.value).startswith(f"q.yaml:6: quality.false_positive_rate: {rate!r}: needs fingerprints")
        enough = float(re.search(r"; write (\S+) or more", str(caught.value))[1])
        spec = parse_query(text(enough, strategy, several))
        share = enough / (streams - 1)
        size_for(0, share, spec.strategy.fingerprint_bits, spec.strategy.bucket)
        with pytest.raises(ValueError, match="more than 32 bits"):
            size_for(0, share / 1.1, spec.strategy.fingerprint_bits, spec.strategy.bucket)
    for rate, strategy in ((1e-30, "exact"), (1e-9, "bloom"), (2e-9, "mcf"), (1e-9, "{name: mcf, bucket: 2}")):
        assert parse_query(text(rate, strategy)).false_positive_rate == rate


def test_answers_and_result_keys_of_every_kind():
    window = ("window_start", "window_end")
    shapes = {
        "join": (Answers.ADDED, ("left_seq", "right_seq")),
        "aggregate": (Answers.REVISED, ("origin", *window)),
        "topk": (Answers.RANKED, ("origin", *window, "rank")),
        "theta_join": (Answers.ADDED, (*window, "r_seq", "s_seq")),
        "membership": (Answers.ADDED, (*window, "element")),
    }
    for kind, (answers, keys) in shapes.items():
        assert (EXPECTED[kind].answers, EXPECTED[kind].result_keys) == (answers, keys)
        assert not EXPECTED[kind].selects_all and EXPECTED[kind].default_columns({}) == []
    count, ranges = (replace(EXPECTED["theta_join"], emit=emit, select=()) for emit in ("count", "ranges"))
    assert (count.answers, count.result_keys, count.selects_all) == (Answers.REVISED, window, False)
    assert ranges.answers is Answers.REPLACED and ranges.result_keys[:2] == window
    all_columns = replace(EXPECTED["join"], select=None)
    assert all_columns.selects_all and all_columns.default_columns({"dns": ["port"], "ssl": ["seq"]})[2] == (
        "left_port",
        "left",
        "port",
    )


def test_fingerprints_change_with_the_results_alone():
    base = parse_query(EXAMPLES["topk"]).fingerprint()
    for a, b in (
        ("k: 5", "k: 6"),
        ("3 h", "2 h"),
        ("score: dep_delay", "score: -dep_delay"),
        ("windows: 30", "windows: 31"),
    ):
        assert parse_query(EXAMPLES["topk"].replace(a, b)).fingerprint() != base
    assert (
        parse_query(
            "# a comment\n" + EXAMPLES["topk"].replace("score: dep_delay", "score: (f.dep_delay)")
        ).fingerprint()
        == base
    )
    theta = parse_query(EXAMPLES["theta_join"]).fingerprint()
    assert parse_query(EXAMPLES["theta_join"].replace("partitions: 10", "partitions: 7")).fingerprint() == theta
    assert parse_query(EXAMPLES["theta_join"].replace("r.dest = s.dest", "r.dest <= s.dest")).fingerprint() != theta


@pytest.mark.parametrize(
    ("share", "fingerprint"),
    [
        ("0", "f9954c967d206d04e858c460f2089bb99b23743fb6cd5781383c237d2a91b05b"),
        ("1", "2c7fdc9f466dcd597b0b462316e8eebec9a0b92d9d17207913054b53f5b908fd"),
        ("1.0", "2c7fdc9f466dcd597b0b462316e8eebec9a0b92d9d17207913054b53f5b908fd"),
    ],
)
def test_the_extreme_quantiles_keep_the_fingerprints_of_0_1_0(share, fingerprint):
    text = (
        "name: q\nkind: aggregate\nstreams: {s: a}\nwindow: 10 s\nselect: {top: quantile(x, %s)}\n"
        "quality: {error: 0.05, probability: 0.95, period: 1 min}\n"
    )
    assert parse_query(text % share).fingerprint() == fingerprint


def test_importing_specs_imports_no_heavy_package():
    code = (
        "import sys, importlib\n"
        f"for kind in {KINDS!r}: importlib.import_module('latecomer.specs.' + kind)\n"
        "import latecomer.specs.loading\n"
        "print([m for m in ('pyspark','pandas','numpy','pyarrow','deltalake','sqlglot','numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_task_is_refused_where_answers_do_not_wait_for_the_check():
    text = EXAMPLES["join"] + "publish: {when: always}\n"
    assert parse_query(text + "schedule: {tasks: each}\n", "q.yaml").schedule.tasks == "each"
    assert parse_query(text, "q.yaml").schedule.tasks is None
    with pytest.raises(SpecError, match=r"schedule\.tasks: 'one': fails as a whole .*; write each, or leave it out"):
        parse_query(text + "schedule: {tasks: one}\n", "q.yaml")
    with pytest.raises(SpecError, match=r"schedule\.tasks: 'two'"):
        parse_query(EXAMPLES["join"] + "schedule: {tasks: two}\n", "q.yaml")
