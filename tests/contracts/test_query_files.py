"""Every fault of a query file is one line that names file and key."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import load_query, parse_query

GOOD = """\
name: dns_before_tls
kind: join
streams: {left: dns, right: ssl}
keys: [orig_h]
window: 10 s
where: left.resp_p = 53
select: [left.uid, right.uid]
quality: {recall: 0.95, period: 60 s}
strategy: {name: qjoin, adapt_every: 1 s, granularity: 10 ms, basic_window: 10 ms, estimator: empirical}
"""
MUTATIONS = [
    ("name: dns_before_tls", replacement, "name")
    for replacement in ("", "name: 7", "name: Big", "name: ''", "name: [a]", "name: a b", "name: 'a;b'", "nmae: x",
        "name:")
] + [
    ("kind: join", replacement, "kind") for replacement in ("", "kind: joyn", "kind: 1", "kind: [join]", "kind:")
] + [
    ("streams: {left: dns, right: ssl}", replacement, "streams")
    for replacement in ("", "streams: {left: dns}", "streams: {a: b, c: d, e: f}", "streams: dns",
        "streams: {1: a, 2: b}", "streams: {left: ../x, right: y}", "streams: {'l-x': a, right: b}",
        "streams: {left: 5, right: b}", "streams: []")
] + [
    ("keys: [orig_h]", replacement, "keys")
    for replacement in ("keys: orig_h", "keys: []", "keys: [1]", "keys: {left: a}", "keys: {left: a, right: [b, c]}",
        "keys: {left: a, right: b, x: c}", "keys: [[a]]", "keys: {left: 1, right: 2}")
] + [
    ("window: 10 s", replacement, "window")
    for replacement in ("", "window: 10", "window: 10 sec", "window: -1 s", "window: 0 s", "window: ten s",
        "window: 1.5 us", "window: 99999 d", "window: [1 s]", "window: 1 s 2 s", "window: 1e3 s", "window: NaN s")
] + [
    ("where: left.resp_p = 53", f"where: {text}", "where")
    for text in ("resp_p = 53", "left.a; drop table x", "'left.a -- c'", "lft.a = 1", "left.a = (select 1)",
        "foo(left.a) = 1", "left.a =", "left.* = 1", "cast(left.a as int) = 1", "sum(left.a) > 1", "53", "''", "[1]",
        "left.a = 1 /* c */", "within_distance(left.x, left.y, right.x, right.y)",
        "within_distance(left.x, left.y, right.x, right.y, -1)", "left.a over () = 1", "left.a in (select 1)",
        "left.a = 99999999999999999999999", "'`left`.a = 1'")
] + [
    ("select: [left.uid, right.uid]", replacement, "select")
    for replacement in ("select: left.uid", "select: [uid]", "select: [left.uid, left.uid]", "select: [left.a + 1]",
        "select: [left.a as 'x y']", "select: [1]", "select: []", "select: ['*']", "select: [nope.a]")
] + [
    ("quality: {recall: 0.95, period: 60 s}", replacement, "quality")
    for replacement in ("", "quality: {recall: 0.95}", "quality: {period: 60 s}",
        "quality: {recall: 1.5, period: 60 s}", "quality: {recall: 0, period: 60 s}",
        "quality: {recall: high, period: 60 s}", "quality: {recall: true, period: 60 s}",
        "quality: {recall: .nan, period: 60 s}", "quality: {recall: 0.9, period: 0 s}",
        "quality: {recal: 0.9, period: 60 s}", "quality: {recall: 0.9, period: 60 s, x: 1}", "quality: 0.95")
] + [
    ("strategy: {name: qjoin, adapt_every: 1 s, granularity: 10 ms, basic_window: 10 ms, estimator: empirical}",
        replacement, "strategy")
    for replacement in ("strategy: kjoin", "strategy: {name: kjoin}", "strategy: {name: qjoin, estimator: best}",
        "strategy: {name: qjoin, adapt_every: 2 min}", "strategy: {name: qjoin, granularity: 0 ms}",
        "strategy: {name: qjoin, slack: 1 s}", "strategy: {name: k_slack}", "strategy: {name: k_slack, slack: 1}",
        "strategy: {name: exact, estimator: paper}", "strategy: {name: mp_k_slack, slack: 1 s}",
        "strategy: {name: qjoin, confidence: 2}", "strategy: []", "strategy: 7", "strategy: {name: qjoin, gamma: 0 s}",
        "strategy: {name: qjoin, granularity: 1 us, adapt_every: 1 s, x: 2}")
] + [
    ("window: 10 s", f"window: 10 s\n{extra}", key)
    for extra, key in (("schedule: {repair: never}", "schedule"), ("schedule: {start: soon}", "schedule"),
        ("schedule: 5", "schedule"), ("description: [x]", "description"), ("extra: 1", "extra"), ("widow: 1 s",
            "widow"), ("schedule: {every: '@daily'}", "schedule"))
]  # fmt: skip


def test_the_good_file_parses():
    spec = parse_query(GOOD)
    assert (spec.window_us, spec.target, spec.period_us, spec.keys) == (
        10_000_000,
        0.95,
        60_000_000,
        (("orig_h", "orig_h"),),
    )
    assert spec.strategy.estimator == "empirical" and spec.strategy.granularity_us == 10_000


@pytest.mark.parametrize(("old", "new", "key"), MUTATIONS)
def test_the_error_of_every_mutation_is_one_line_with_its_key(old, new, key):
    assert old in GOOD
    with pytest.raises(SpecError) as error:
        parse_query(GOOD.replace(old, new), "bad.yaml")
    line = str(error.value)
    assert "\n" not in line and line.startswith("bad.yaml") and ";" in line
    assert re.split(r"[.\[]", error.value.key)[0] == key and f" {error.value.key}: " in line


def test_mutations_are_many():
    assert len(MUTATIONS) >= 100


@pytest.mark.parametrize(
    "raw",
    [b"", b"\xff\xfe", b"[1]", b"a: 1\na: 2", b"a: &x 1\nb: *x", b"\x00", b"{" * 50, b"a: [" * 40, b"--- 1\n--- 2",
        b"a" * 70000, b"kind: join\n  x", b"!!python/object:os.system x", b"on: 1", b"- a",
        b"kind: join\nname: !!float x"],
)  # fmt: skip
def test_files_that_are_not_queries(tmp_path, raw):
    path = tmp_path / "q.yaml"
    path.write_bytes(raw)
    with pytest.raises(SpecError) as error:
        load_query(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_a_missing_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(SpecError):
            load_query(path)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_raise_a_spec_error(tmp_path_factory, raw):
    path = tmp_path_factory.mktemp("q") / "q.yaml"
    path.write_bytes(raw)
    with pytest.raises(SpecError):
        load_query(path)


@pytest.mark.parametrize("seed", range(60))
def test_cut_files_with_marks_after_the_cut_parse_or_are_refused(seed):
    rng = random.Random(seed)
    text = GOOD[: rng.randrange(len(GOOD))] + "".join(
        rng.choice("{}[]:,'\"\n -&*!|>%@`x1") for _ in range(rng.randrange(1, 12))
    )
    try:
        parse_query(text, "cut.yaml")
    except SpecError as error:
        assert "\n" not in str(error)
