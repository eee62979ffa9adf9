"""Fields of structs and keys of maps in queries of every kind, against values that are worked out in Python."""

from collections import Counter

import pyarrow as pa
import pytest
from latecomer.lake import result_views
from latecomer.quality.checks import check
from latecomer.spark.repair import repair
from latecomer.spark.run import run
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import parse_query

from tests.support.lakes import load

START_US = 1_700_000_000_000_000
BIG = 50_000
ROWS = [
    {
        "payload": None if i == 7 else {"user": None if i == 5 else {"id": i % 3, "n": BIG + i}, "a.b": f"x{i % 2}"},
        "labels": [("zone", i % 2), ("big one", BIG)] if i % 4 else None,
        "user_id": i % 3,
        "tags": ["t"] * (i % 3),
        "flat.id": i,
    }
    for i in range(12)
]
USER = pa.struct([("id", pa.int64()), ("n", pa.int32())])
SCHEMA = pa.schema(
    [
        ("payload", pa.struct([("user", USER), ("a.b", pa.string())])),
        ("labels", pa.map_(pa.string(), pa.int32())),
        ("user_id", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("flat.id", pa.int64()),
    ]
)


@pytest.fixture
def events(lake, tmp_path):
    rows = pa.Table.from_pylist(ROWS, SCHEMA)
    rows = rows.append_column("event_ts", pa.array([START_US + i * 1_000_000 for i in range(12)]))
    load(lake, rows.append_column("stream", pa.array(["e"] * 12)), tmp_path)
    return lake


def answers(lake, text):
    spec = parse_query(f"name: q\n{text}")
    run(lake, spec, flush=True)
    repair(lake, spec, flush=True)
    outcome = check(lake, spec, audit=5)
    assert outcome.success, outcome
    return result_views.results(lake, spec)


def user(row):
    return (row["payload"] or {}).get("user") or {"id": None, "n": None}


@pytest.mark.parametrize("shards", [1, 3])
def test_an_aggregate_groups_by_a_field(events, shards):
    results = answers(
        events,
        "kind: aggregate\nstreams: {s: e}\nwindow: 1 h\ngroup_by: [payload.user.id]\n"
        'select: {total: sum(payload.user.n * payload.user.n), zone: max(labels.zone + labels."big one"),\n'
        "         tags: sum(size(tags))}\n"
        f"where: size(tags) >= 0\nstrategy: {{name: k_slack, slack: 1 s, shards: {shards}}}\n",
    )
    groups = {row["id"]: row for row in results.to_pylist()}
    assert set(groups) == {0, 1, 2, None}
    for group, row in groups.items():
        members = [r for r in ROWS if user(r)["id"] == group]
        squares = [user(r)["n"] ** 2 for r in members if user(r)["n"] is not None]
        zones = [dict(r["labels"])["zone"] + BIG for r in members if r["labels"]]
        expected = (len(members), sum(squares) or None, max(zones), sum(len(r["tags"]) for r in members))
        assert (row["rows"], row["total"], row["zone"], row["tags"]) == expected


def test_a_ranking_scores_and_selects_fields(events):
    results = answers(
        events,
        "kind: topk\nstreams: {s: e}\nwindow: 1 h\ngroup_by: ['payload.\"a.b\"']\nscore: s.payload.user.n * 100000\n"
        "k: 2\nselect: [payload.user.id, labels.zone as z, '\"flat.id\" as f']\nstrategy: none\n",
    )
    rows = [(r["a.b"], r["score"], r["id"], r["z"], r["f"]) for r in results.to_pylist()]
    scored = [r for r in ROWS if user(r)["n"] is not None]
    expected = []
    for group in ("x0", "x1"):
        best = sorted((r for r in scored if r["payload"]["a.b"] == group), key=lambda r: -user(r)["n"])[:2]
        expected += [
            (group, user(r)["n"] * 100_000, user(r)["id"], dict(r["labels"] or []).get("zone"), r["flat.id"])
            for r in best
        ]
    assert sorted(rows, key=str) == sorted(expected, key=str)


def test_joins_compare_fields(events):
    pairs = Counter(
        (user(a)["id"], b["user_id"], b["flat.id"])
        for a in ROWS
        for b in ROWS
        if a is not b and user(a)["id"] == b["user_id"] and user(a)["n"] % 2 == 0
    )
    results = answers(
        events,
        "kind: join\nstreams: {l: e, r: e}\nwindow: 1 h\nkeys: {l: payload.user.id, r: user_id}\n"
        "where: l.payload.user.n % 2 = 0\nselect: [l.payload.user.id, r.user_id, 'r.\"flat.id\" as f']\n"
        "strategy: exact\n",
    )
    assert Counter((r["l_id"], r["r_user_id"], r["f"]) for r in results.to_pylist()) == pairs
    spec = parse_query(
        "name: dotted\nkind: join\nstreams: {l: e, r: e}\nwindow: 1 h\nkeys: [flat.id]\nwhere: l.seq < r.seq\n"
        "select: [l.payload]\nstrategy: exact\n"
    )
    run(events, spec, flush=True)
    assert result_views.results(events, spec).num_rows == 0


def test_theta_joins_and_memberships_compare_fields(events):
    results = answers(
        events,
        "kind: theta_join\nstreams: {l: e, r: e}\nwindow: 1 h\n"
        "conditions: [l.payload.user.n < r.payload.user.n, l.payload.user.id = r.user_id]\n"
        "where: l.labels.zone = 1\nselect: [l.payload.user.id, r.payload.user.n]\n",
    )
    expected = Counter(
        (user(a)["id"], user(b)["n"])
        for a in ROWS
        for b in ROWS
        if user(a)["n"] is not None and user(b)["n"] is not None and user(a)["n"] < user(b)["n"]
        and user(a)["id"] == b["user_id"] and dict(a["labels"] or []).get("zone") == 1
    )  # fmt: skip
    assert Counter((r["l_id"], r["r_n"]) for r in results.to_pylist()) == expected
    spec = parse_query(
        "name: m\nkind: membership\nstreams: {l: e, r: e}\nwindow: 1 h\n"
        "element: {l: payload.user.n, r: '\"flat.id\"'}\n"
    )
    run(events, spec, flush=True)
    assert result_views.results(events, spec).num_rows == 0
    spec = parse_query("name: n\nkind: membership\nstreams: {l: e, r: e}\nwindow: 1 h\nelement: payload.user.id\n")
    run(events, spec, flush=True)
    assert sorted(result_views.results(events, spec)["element"].to_pylist()) == [0, 1, 2]
    assert check(events, spec, audit=1).success


def test_a_field_that_is_missing_is_named_before_anything_runs(events):
    for score, says in (
        ("payload.usr.n", r"s\.payload has no field 'usr'; did you mean one of its fields: user"),
        ("payload.user.n.x", r"s\.payload\.user\.n is a number, which has no fields"),
        ("tags.x", "which has no fields"),
        ("flat.id", 'has a column with a dot in its name; write it in double quotes: "flat.id"'),
        ("payload.user", "is a struct<.*not a number"),
    ):
        spec = parse_query(
            f"name: q\nkind: topk\nstreams: {{s: e}}\nwindow: 1 h\nscore: {score}\nk: 1\nstrategy: none\n"
        )
        with pytest.raises(SpecError, match=says):
            run(events, spec, flush=True)
