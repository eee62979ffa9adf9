"""`latecomer advance`: what is due of many queries is done in one call, and nothing else."""

import json

import pytest
from latecomer.lake.lake import Lake
from latecomer.specs.loading import load_query

from tests.support import commands, events
from tests.support.in_gateway import call
from tests.support.lakes import exported, load, same

WINDOWED = "window: {size: 4 s, slide: 2 s}\n"
SUMS = (
    "name: sums\nkind: aggregate\nstreams: {s: a}\n" + WINDOWED + "select: {n: count()}\n"
    "quality: {error: 0.3, probability: 0.5, period: 10 s}\nstrategy: {name: k_slack, slack: 1 s, gamma: 3 s}\n"
)
BOTH = "name: both\nkind: membership\nstreams: {x: a, y: b}\nelement: k\n" + WINDOWED
LATER = "name: later\nkind: membership\nstreams: {x: a, y: none_yet}\nelement: k\n" + WINDOWED


@pytest.fixture
def project(tmp_path, spark):
    """Return the folder of query files and a lake that has the rows of their streams."""
    queries = tmp_path / "queries"
    queries.mkdir()
    for text in (SUMS, BOTH, LATER):
        (queries / f"{text.split()[1]}.yaml").write_text(text)
    lake = Lake(tmp_path / "lake")
    load(lake, events.disordered(5, rows=300), tmp_path)
    return queries, lake
