"""Objects and arrays in JSON lines become structs and arrays, exactly, or stay text; no key is dropped in silence."""

import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latecomer.ingest.ingest import ingest
from latecomer.ingest.nested import type_nested
from latecomer.ingest.options import IngestOptions
from latecomer.lake import result_views
from latecomer.lake.ingest_log import columns, open_events, read_quarantine
from latecomer.lake.lake import Lake
from latecomer.spark.run import run
from latecomer.specs.loading import parse_query


def put(lake, folder, name, rows, **options):
    lines = [row if isinstance(row, str) else json.dumps({"event_ts": i, **row}) for i, row in enumerate(rows)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return ingest(lake, [str(folder / f"{name}.jsonl")], IngestOptions(stream="s", **options))


def stored(lake, column):
    rows = open_events(lake, "s").to_pyarrow_dataset().to_table()
    return rows.sort_by("seq")[column].to_pylist() if column in rows.column_names else None


def reasons(lake):
    rows = read_quarantine(lake, "s", 1_000)
    return [] if rows is None else rows["reason"].to_pylist()


def typed(spark, values, known=None, closed=()):
    """Return the type of a column of JSON texts, its values as Python has them, and the problems."""
    rows = spark.createDataFrame([(i, v, None) for i, v in enumerate(values)], "n int, v string, _problem string")
    done = type_nested(rows, ["v"], {} if known is None else {"v": known}, closed=closed)
    table = done.rows.orderBy("n").toArrow()
    return done.types.get("v"), table["v"].to_pylist(), table["_problem"].to_pylist()


BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("values", "kind", "first"),
    [
        (['{"a":1,"b":"x"}', '{"b":null,"c":[true]}'], "struct<a:bigint,b:string,c:array<boolean>>",
            {"a": 1, "b": "x", "c": None}),
        (["[1,2]", "[]"], "array<bigint>", [1, 2]),
        (["[1,2.5]"], "array<double>", [1.0, 2.5]),
        (['[{"a":1},{"b":[[2]]},null]'], "array<struct<a:bigint,b:array<array<bigint>>>>",
            [{"a": 1, "b": None}, {"a": None, "b": [[2]]}, None]),
        # a big whole number beside a fraction of another leaf, and of its own
        ([f'{{"id":{BIG},"x":0.5}}', '{"id":2,"x":3}'], "struct<id:bigint,x:double>", {"id": BIG, "x": 0.5}),
        ([f'{{"x":{BIG}}}', '{"x":0.5}'], "struct<x:string>", {"x": str(BIG)}),
        ([f'[{{"x":{BIG}}}]', '[{"x":0.5}]'], "array<struct<x:string>>", [{"x": str(BIG)}]),
        ([f'{{"x":{2**53}}}', '{"x":0.5}'], "struct<x:double>", {"x": 2.0**53}),
        (['{"x":12345678901234567890}', '{"x":1}'], "struct<x:decimal(38,0)>", {"x": 12345678901234567890}),
        (['{"x":9.0}', f'{{"x":{BIG}}}'], "struct<x:bigint>", {"x": 9}),
        ([f'{{"x":{"9" * 45}}}', '{"x":1}'], "struct<x:string>", {"x": "9" * 45}),
        (['{"x":1e3,"y":1}', '{"x":0.1}'], "struct<x:double,y:bigint>", {"x": 1000.0, "y": 1}),
        (['{"x":"NaN"}', '{"x":1.5}'], "struct<x:double>", None),
        (['[1,"Infinity"]', f'[{BIG}]'], "array<string>", ["1", "Infinity"]),
        (['[1,"-Infinity"]'], "array<double>", [1.0, float("-inf")]),
        (['{"NaN":1,"s":"x\\"NaN","b":true}', '{"b":"NaN"}'], "struct<NaN:bigint,b:string,s:string>",
            {"NaN": 1, "s": 'x"NaN', "b": "true"}),
        (['{"x":"NaN","y":{"a":1}}', '{"y":"NaN"}'], "struct<x:string,y:string>", {"x": "NaN", "y": '{"a":1}'}),
        (['{"x":"NaN","y":1}', '{"y":2}'], "struct<x:string,y:bigint>", {"x": "NaN", "y": 1}),
        # a field whose values do not agree is text, and so is an array whose elements do not agree
        (['{"x":1,"y":1}', '{"x":"a"}', '{"x":{"b":1}}'], "struct<x:string,y:bigint>", {"x": "1", "y": 1}),
        (['{"t":["a",1],"y":1}'], "struct<t:string,y:bigint>", {"t": '["a",1]', "y": 1}),
        (['["a",1,{"b":0.5}]'], None, '["a",1,{"b":0.5}]'),
        (['{"a":1}', "[1]"], None, '{"a":1}'),
        # what no table can hold stays text
        (['{"a b":1}'], None, '{"a b":1}'),
        (['{"a":1,"A":2}'], None, '{"a":1,"A":2}'),
        (['{"a":1}', '{"A":2}'], None, '{"a":1}'),
        (['{"o":{"a b":1},"p":1}'], "struct<o:string,p:bigint>", {"o": '{"a b":1}', "p": 1}),
        (['{"o.x":{"ü":1,"a`b":2},"OBJECT<":3}'], "struct<`OBJECT<`:bigint,`o.x`:struct<`a``b`:bigint,`ü`:bigint>>",
            {"OBJECT<": 3, "o.x": {"a`b": 2, "ü": 1}}),
        # no type yet
        (["{}", "[]"], None, "{}"),
        (["{}"], None, "{}"),
        (['{"a":[],"b":{},"c":null,"d":1}'], "struct<d:bigint>", {"d": 1}),
        ([None, '{"at":"2024-01-01T00:00:00Z"}'], "struct<at:string>", None),
    ],
)  # fmt: skip
def test_types_are_inferred(spark, values, kind, first):
    inferred, result, problems = typed(spark, values)
    assert inferred == kind and problems == [None] * len(values)
    if first is not None:
        assert result[0] == first


def test_values_that_do_not_fit_a_known_type_are_problems(spark):
    known = "struct<id:bigint,price:decimal(5,2),x:double,tags:array<string>,flags:map<string,boolean>,o:struct<p:int>>"
    good = [
        ('{"id":5,"price":1.25,"tags":["a",2],"flags":{"a b":true},"o":{"p":7}}', {"id": 5, "tags": ["a", "2"]}),
        ('{"id":9.0,"x":1}', {"id": 9, "x": 1.0}),
        ("{}", {"id": None}),
        ('{"x":1e3,"price":100}', {"x": 1000.0}),
    ]
    bad = [
        '{"id":1.5}', '{"id":"x"}', '{"id":{"a":1}}', '{"id":9223372036854775808}', '{"price":1.255}', '{"price":1000}',
        f'{{"x":{BIG}}}', '{"x":true}', '{"tags":"a"}', '{"tags":{"a":1}}', '{"flags":{"a":1}}',
        '{"o":{"p":2147483648}}',
        '{"o":[1]}', "[1]", "5", '"text"', "{broken", '{"id":1,"id":2}', '{"ID":1}', '{"a b":1}', '{"o":{"P":1}}',
    ]  # fmt: skip
    kind, result, problems = typed(spark, [text for text, _ in good] + bad + [None], known)
    assert kind == known
    for (_, expected), value, problem in zip(good, result, problems, strict=False):
        assert problem is None and expected.items() <= value.items()
    assert problems[len(good) : -1] == [f"column v is not {known}: {text}" for text in bad]
    assert problems[-1] is None and result[len(good) :] == [None] * (len(bad) + 1)


def test_fields_that_a_type_lacks_are_added_or_refused(spark):
    known = "struct<a:bigint,l:array<struct<b:bigint>>>"
    values = ['{"a":1,"l":[{"b":1,"c":0.5}],"n":{"x":"y"}}', '{"a":2}', '{"a":"no","other":1}']
    kind, result, problems = typed(spark, values, known)
    assert kind == "struct<a:bigint,l:array<struct<b:bigint,c:double>>,n:struct<x:string>>"
    assert result[0] == {"a": 1, "l": [{"b": 1, "c": 0.5}], "n": {"x": "y"}}
    assert result[1] == {"a": 2, "l": None, "n": None} and problems[:2] == [None, None] and problems[2]
    kind, result, problems = typed(spark, values, known, closed=["v"])
    assert kind == known and result == [None, {"a": 2, "l": None}, None]
    assert problems[0] == f"column v is not {known}: {values[0]}" and problems[1] is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text("ab é\"\\n", max_size=3)
    | st.integers(-(10**6), 10**6).map(lambda n: n / 64),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def same(value, read, kind):
    """Return whether a stored value says what the JSON value does; text of a conflict is compared as JSON."""
    if isinstance(read, str) and not isinstance(value, str):
        return json.loads(read) == value
    if isinstance(value, dict) and isinstance(read, dict):
        return all(same(v, read.get(k), kind) for k, v in value.items())
    if isinstance(value, list) and isinstance(read, list):
        return len(value) == len(read) and all(same(v, r, kind) for v, r in zip(value, read, strict=True))
    return value == read or (read is None and value in ({}, [])) or (read is None and _is_empty(value))


def _is_empty(value):
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return value is None if values is None else all(map(_is_empty, values))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3) | st.lists(JSON, max_size=3), max_size=4))
def test_every_value_is_kept(spark, values):
    kind, result, problems = typed(spark, [json.dumps(value) for value in values])
    assert problems == [None] * len(values)
    for value, read in zip(values, result, strict=True):
        assert same(value, read, kind), (value, read, kind)


def test_nested_values_are_stored_grown_and_queried(lake, tmp_path):
    payload = {"user": {"id": BIG, "name": "é"}, "price": 1.5}
    put(lake, tmp_path, "a", [{"payload": payload, "tags": ["x"]}, {"payload": None}, {"tags": []}, {"payload": {}}])
    user = pa.struct([("id", pa.int64()), ("name", pa.string())])
    assert columns(lake, "s").field("payload").type == pa.struct([("price", pa.float64()), ("user", user)])
    assert stored(lake, "payload") == [payload, None, None, {"user": None, "price": None}]
    assert stored(lake, "tags") == [["x"], None, [], None]
    done = put(lake, tmp_path, "b", [
        {"payload": {"user": {"id": 1, "mail": "m"}, "more": [1]}},
        {"payload": {"user": 5, "lost": 1}}, {"payload": "text"}, {"payload": {"price": "dear"}}, {"tags": [{"a": 1}]},
    ])  # fmt: skip
    assert done.rows_ingested == {"s": 2} and len(reasons(lake)) == 3
    assert all(reason.startswith("column payload is not struct<price:double,user:") for reason in reasons(lake))
    rows = stored(lake, "payload")
    assert rows[4] == {"price": None, "user": {"id": 1, "name": None, "mail": "m"}, "more": [1]}
    assert rows[0] == {"price": 1.5, "user": {"id": BIG, "name": "é", "mail": None}, "more": None}
    assert stored(lake, "tags")[5] == ['{"a":1}']
    spec = parse_query(
        "name: q\nkind: topk\nstreams: {e: s}\nwindow: 1 h\nscore: payload.user.id\nk: 9\nstrategy: none\n"
        "select: [payload.user.mail, size(payload.more) as n]\n"
    )
    run(lake, spec, flush=True)
    answers = result_views.results(lake, spec).to_pylist()
    assert [(r["score"], r["mail"], r["n"]) for r in answers] == [(BIG, None, None), (1, "m", 1)]


def test_text_of_an_earlier_version_stays_text_and_other_kinds_are_refused(lake, tmp_path):
    put(lake, tmp_path, "a", [{"payload": {"a": 1}}, {"payload": "text"}])
    assert stored(lake, "payload") == ['{"a":1}', "text"]
    put(lake, tmp_path, "b", [{"payload": {"a": [1, 2]}}, {"payload": {}}])
    assert stored(lake, "payload")[2:] == ['{"a":[1,2]}', "{}"] and reasons(lake) == []


def test_declared_types_win_and_empty_values_wait_for_a_type(lake, tmp_path):
    declared = (("tags", "array<string>"), ("o", "struct<p:decimal(5,2)>"))
    put(lake, tmp_path, "a", [{"tags": [1], "o": {"p": 1}, "e": []}, {"tags": "no"}], columns=declared)
    assert stored(lake, "tags") == [["1"]] and str(stored(lake, "o")[0]["p"]) == "1.00" and stored(lake, "e") is None
    assert reasons(lake) == ["column tags is not array<string>: no"]
    put(lake, tmp_path, "b", [{"e": [5]}, {"e": [], "o": {"p": 2, "q": 1}}], columns=declared)
    assert stored(lake, "e") == [None, [5], []] and stored(lake, "o")[2]["q"] == 1
    done = put(lake, tmp_path, "c", [{"o": {"p": 2, "r": 1}}, {"o": {"q": 2}}], columns=declared, strict=True)
    assert done.rows_quarantined["s"] >= 1 and "r" not in stored(lake, "o")[-1]


def test_rows_in_quarantine_decide_no_type(lake, tmp_path):
    put(lake, tmp_path, "a", [{"payload": {"a": 1}}, "{broken", '{"event_ts": 3, "payload": {"a": 2, "a": 3}}'])
    assert stored(lake, "payload") == [{"a": 1}]
    assert columns(lake, "s").field("payload").type == pa.struct([("a", pa.int64())])


def test_large_calls_grow_a_struct_too(tmp_path, spark, monkeypatch):
    from latecomer.spark.engine import tables

    lake = Lake(tmp_path / "lake")
    put(lake, tmp_path, "a", [{"payload": {"user": {"id": 1}}}])
    monkeypatch.setattr(tables, "DRIVER_LOCAL_ROWS", 0)
    put(lake, tmp_path, "b", [{"payload": {"user": {"id": 2, "name": "x"}}}])
    assert stored(lake, "payload") == [{"user": {"id": 1, "name": None}}, {"user": {"id": 2, "name": "x"}}]
