"""Transcripts: a query, a few rows in arrival order, and the expected on-time, late and final rows, for every executor.

A transcript is played whole, in chunks of random size, and row by row: the answer may not depend on the cuts. A
transcript marked ``negative`` expects something false and must fail, which shows that `check` can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

FOLDER = Path(__file__).resolve().parents[1] / "transcripts"
SECOND = 1_000_000
Row = dict[str, Any]
Transcript = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """One input row. `seq` is its place in the arrival order, `ts` its event time in us."""

    seq: int
    stream: str
    ts: int
    payload: Row


@dataclass
class Played:
    """The outcome of a transcript on an executor: result rows with times in whole seconds, and `seq` of late rows."""

    on_time: list[Row]
    late: list[int]
    results: list[Row]


Play = Callable[[list[int]], Played]
"""A function that plays a transcript, cut after each of the given rows (increasing, without the last row)."""


def names() -> list[str]:
    """Return the names of all transcripts, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Transcript:
    """Return one transcript: ``query``, ``input``, ``expect``, and ``negative`` where it must fail."""
    transcript: Transcript = YAML(typ="safe").load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return transcript


def events(transcript: Transcript) -> list[Event]:
    """Return the input rows; every payload has all columns, null where a row has no value."""
    columns = sorted({name for _, _, payload in transcript["input"] for name in payload})
    return [
        Event(seq, stream, round(time * SECOND), {name: payload.get(name) for name in columns})
        for seq, (stream, time, payload) in enumerate(transcript["input"])
    ]


def cuttings(rows: int, seed: int = 5) -> list[list[int]]:
    """Return the cuts to play: none, into up to three chunks of random size, and after every row."""
    rng = np.random.default_rng(seed)
    inner = max(rows - 1, 0)
    chunks = sorted(rng.choice(inner, min(2, inner), replace=False).tolist()) if inner else []
    return [[], chunks, list(range(inner))]


def same(value: object, expected: object) -> bool:
    """Compare two values, floating-point ones to within 1e-9."""
    if isinstance(value, float) and isinstance(expected, (int, float)):
        return abs(value - expected) < 1e-9
    return bool(value == expected)


def compare(rows: Sequence[Row], expected: Sequence[Row]) -> None:
    """Assert that the rows are the expected ones in any order.

    A row is compared in the columns that the expected row names; instants count in whole seconds.
    """
    missing = list(expected)
    for values in rows:
        row = {k: int(v.timestamp()) if hasattr(v, "timestamp") else v for k, v in values.items()}
        match = next((w for w in missing if all(k in row and same(row[k], v) for k, v in w.items())), None)
        assert match is not None, f"not expected: {row}"
        missing.remove(match)
    assert not missing, f"missing: {missing}"


def check(transcript: Transcript, played: Played) -> None:
    """Assert that on-time rows, late rows and final results are as the transcript expects."""
    compare(played.on_time, transcript["expect"]["on_time"])
    assert sorted(set(played.late)) == transcript["expect"]["late"]
    compare(played.results, transcript["expect"]["results"])


def verify(transcript: Transcript, play: Play) -> None:
    """Play a transcript with every cutting; a negative one must fail with each."""
    for cuts in cuttings(len(transcript["input"])):
        if transcript.get("negative"):
            with pytest.raises(AssertionError):
                check(transcript, play(cuts))
        else:
            check(transcript, play(cuts))
