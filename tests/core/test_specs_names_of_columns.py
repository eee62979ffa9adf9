"""Columns whose names have a dot or a space: wherever an expression stands, an error says how to write them."""

import pytest
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import parse_query

COLUMNS = {"id.orig_h": "string", "tail_number": "string", "tail": "string", "v": "number"}
PAIR, ONE = "streams: {l: a, r: b}\n", "streams: {l: a}\n"
DAILY, WINDOW, RECALL = "quality: {period: 1 d}\n", "window: {size: 1 s}\n", "quality: {recall: 0.9, period: 1 min}\n"
PLACES = {
    "join where": f"kind: join\n{PAIR}keys: [v]\nwindow: 1 s\nwhere: COLUMN = 'x'\nselect: [l.v]\n{RECALL}",
    "join select": f"kind: join\n{PAIR}keys: [v]\nwindow: 1 s\nselect: [COLUMN]\n{RECALL}",
    "aggregate group": f"kind: aggregate\n{ONE}group_by: [COLUMN]\n{WINDOW}select: {{n: count()}}\n{DAILY}",
    "aggregate where": f"kind: aggregate\n{ONE}where: COLUMN = 'x'\n{WINDOW}select: {{n: count()}}\n{DAILY}",
    "aggregate select": f"kind: aggregate\n{ONE}{WINDOW}select: {{n: max(COLUMN)}}\n{DAILY}",
    "topk group": f"kind: topk\n{ONE}group_by: [COLUMN]\n{WINDOW}score: v\nk: 1\n{DAILY}",
    "topk score": f"kind: topk\n{ONE}{WINDOW}score: COLUMN\nk: 1\n{DAILY}",
    "topk select": f"kind: topk\n{ONE}{WINDOW}score: v\nk: 1\nselect: [COLUMN]\n{DAILY}",
    "theta condition": f"kind: theta_join\n{PAIR}{WINDOW}conditions: [COLUMN = r.tail]\n{RECALL}",
    "theta select": f"kind: theta_join\n{PAIR}{WINDOW}conditions: [l.v < r.v]\nselect: [COLUMN]\n{RECALL}",
    "membership element": f"kind: membership\n{PAIR}{WINDOW}element: {{l: COLUMN, r: tail}}\n{RECALL}",
}


def error_of(place, column):
    with pytest.raises(SpecError) as caught:
        parse_query(f"name: q\n{PLACES[place]}".replace("COLUMN", column)).check_columns({"a": COLUMNS, "b": COLUMNS})
    return str(caught.value)


@pytest.mark.parametrize("place", PLACES)
def test_a_name_with_a_dot_or_a_space_is_suggested_as_an_expression_has_it(place):
    assert '"id.orig_h"' in error_of(place, "l.id.orig_h")
    assert '"id.orig_h"' in error_of(place, "id.orig_h")
    assert "tail_number" in error_of(place, "l.tail number")
    assert "tail_number" in error_of(place, "tail number")


def test_a_name_with_a_dot_that_is_taken_of_all_streams_keeps_its_dot():
    text = f"name: q\nkind: membership\n{PAIR}{WINDOW}element: l.id.orig_h\nquality: {{recall: 0.9}}\n"
    with pytest.raises(SpecError, match=r"write id\.orig_h, or \{l: id\.orig_h, r: id\.orig_h\}"):
        parse_query(text)
