"""Transcripts: a query, a few rows in arrival order, what must be on time, late and final; the same files for every executor.

A transcript is played whole, in chunks of random size and row by row: the answer may not depend on the cuts. One marked
``negative`` says something false, and must fail: it shows that `check` can.
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


@dataclass(frozen=True)
class Event:
    """One input row. `seq` is its place in the arrival order, `ts` its event time in us."""

    seq: int
    stream: str
    ts: int
    payload: Row


@dataclass
class Played:
    """What an executor made of a transcript: result rows with times in whole seconds, `seq` of late rows."""

    on_time: list[Row]
    late: list[int]
    results: list[Row]


Play = Callable[[list[int]], Played]
"""Plays a transcript cut behind each of the given rows (increasing, the last row never among them)."""


def names() -> list[str]:
    """Names of all transcripts, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> dict[str, Any]:
    """One transcript: ``query``, ``input``, ``expect``, and ``negative`` where it must fail."""
    found: dict[str, Any] = YAML(typ="safe").load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def events(transcript: dict[str, Any]) -> list[Event]:
    """The input rows; a payload lacks no column that another row has."""
    columns = sorted({name for _, _, payload in transcript["input"] for name in payload})
    return [
        Event(seq, stream, round(time * SECOND), {name: payload.get(name) for name in columns})
        for seq, (stream, time, payload) in enumerate(transcript["input"])
    ]


def cuttings(rows: int, seed: int = 5) -> list[list[int]]:
    """Whole, in up to three chunks of random size, row by row."""
    rng = np.random.default_rng(seed)
    inner = max(rows - 1, 0)
    chunks = sorted(rng.choice(inner, min(2, inner), replace=False).tolist()) if inner else []
    return [[], chunks, list(range(inner))]


def same(found: Any, wanted: Any) -> bool:
    """Equal values, floating-point ones up to 1e-9."""
    if isinstance(found, float) and isinstance(wanted, (int, float)):
        return abs(found - wanted) < 1e-9
    return bool(found == wanted)


def compare(rows: Sequence[Row], wanted: Sequence[Row]) -> None:
    """Rows, reduced to the columns that each wanted one names, are the wanted ones in any order; instants count in seconds."""
    left = list(wanted)
    for each in rows:
        row = {k: int(v.timestamp()) if hasattr(v, "timestamp") else v for k, v in each.items()}
        match = next((w for w in left if all(k in row and same(row[k], v) for k, v in w.items())), None)
        assert match is not None, f"not expected: {row}"
        left.remove(match)
    assert not left, f"missing: {left}"


def check(transcript: dict[str, Any], played: Played) -> None:
    """On-time rows, late rows and final results are what the transcript says."""
    compare(played.on_time, transcript["expect"]["on_time"])
    assert sorted(set(played.late)) == transcript["expect"]["late"]
    compare(played.results, transcript["expect"]["results"])


def verify(transcript: dict[str, Any], play: Play) -> None:
    """Play it with every cutting; a negative one must fail with each."""
    for cuts in cuttings(len(transcript["input"])):
        if transcript.get("negative"):
            with pytest.raises(AssertionError):
                check(transcript, play(cuts))
        else:
            check(transcript, play(cuts))
