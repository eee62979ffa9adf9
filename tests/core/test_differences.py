"""The differences of two queries are named in the words of their files."""

import json

import pytest
from latecomer.specs.diff import differences
from latecomer.specs.loading import parse_query

FILES = {
    "aggregate": "streams: {f: flights}\ngroup_by: [origin]\nwindow: {size: 1 h, slide: 7 min}\n"
    "select: {n: count(), p: quantile(dep_delay * 2, 0.9)}\nquality: {error: 0.02, probability: 0.9, period: 1 d}\n",
    "join": "streams: {f: flights, g: weather}\nkeys: {f: a, g: b}\nwindow: 10 min\nselect: [f.a, g.b + 1 as z]\n"
    "quality: {recall: 0.9, period: 1 h}\n",
    "theta_join": "streams: {f: flights, g: flights}\nwindow: 10 min\nconditions: [f.a < g.b]\nemit: count\n",
    "membership": "streams: {f: flights, g: weather}\nelement: a\nwindow: 1 h\n"
    "quality: {false_positive_rate: 0.01, period: 1 d}\n",
}


@pytest.mark.parametrize(
    ("kind", "changes", "texts"),
    [
        ("aggregate", {"0.02": "0.03", "7 min": "10 min"}, ["window.slide was 7 min, is 10 min",
                "quality.error was 0.02, is 0.03"]),
        ("aggregate", {"[origin]": "[origin, dest]"}, ["group_by was [origin], is [origin, dest]"]),
        ("aggregate", {"* 2, 0.9": "* 3, 0.5"},
         ["select was [n: count(), p: quantile(f.dep_delay * 2, 0.9)], "
          "is [n: count(), p: quantile(f.dep_delay * 3, 0.5)]"]),
        ("aggregate", {"window": "where: dep_delay > 3\nwindow"}, ["where was not stated, is f.dep_delay > 3"]),
        ("join", {"g: weather}": "g: winds}", "b}": "a}"},
         ["streams was {f: flights, g: weather}, is {f: flights, g: winds}", "keys was [a = b], is [a]"]),
        ("join", {"+ 1": "+ 2"}, ["select was [f.a, g.b + 1 as z], is [f.a, g.b + 2 as z]"]),
        ("theta_join", {"f.a < g.b": "f.a <= g.b"}, ["conditions was [f.a < g.b], is [f.a <= g.b]"]),
        ("membership", {"element: a": "element: b", "1 h": "2 h"},
         ["element was [f.a, g.a], is [f.b, g.b]", "window was [{size: 1 h, slide: 1 h}, {size: 1 h, slide: 1 h}], "
          "is [{size: 2 h, slide: 2 h}, {size: 2 h, slide: 2 h}]"]),
    ],
)  # fmt: skip
def test_every_difference_is_named_as_the_file_has_it(kind, changes, texts):
    text = f"name: q\nkind: {kind}\n{FILES[kind]}"
    before = json.loads(json.dumps(parse_query(text).signature()))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    after = json.loads(json.dumps(parse_query(text).signature()))
    assert [line for line in differences(before, after) if not line.startswith("strategy.")] == texts
    assert differences(after, after) == []
