"""What a spec of any query kind is: frozen values read from one query file, and the identity of what they compute."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from latecomer.specs.errors import SpecError
from latecomer.specs.expressions.tree import Expr, to_text
from latecomer.specs.expressions.types import check_columns, check_types
from latecomer.specs.reader import Reader
from latecomer.specs.schedule import DEFAULT, Schedule, schedule_of

CONFIDENCE = 0.95
"""Share of periods that have to keep a promise, where the query does not say."""


class Answers(Enum):
    """How result rows make up answers, and so what a correction does to an answer that was published."""

    ADDED = "each row is an answer, and stays; corrections are the rows that were missed"
    REVISED = "one row is an answer; a correction is its next revision"
    RANKED = "an answer is rows ranked from 1; a correction is the next revision of its ranks"
    REPLACED = "an answer is all rows of a window; a correction is all of them anew, in whatever number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Base of all kinds' specs.

    Attributes
    ----------
    kind : str
        Stem of the query kind.
    name : str
        The query's name; also its tables' and its DAG's.
    streams : tuple of (alias, stream)
        In the file's order.
    period_us : int
        Period of the ledger, over which the target is judged.
    rows_held : int or None
        Most rows that a period may hold, which `check` holds it to; it changes no result.
    silence_us : int or None
        How far a stream's last event time may lie behind the others', which `check` holds them to; it changes no result.
    strategy
        How the query is run; every kind's has ``name`` and ``gamma_us``.
    source, lines, description, schedule
        The file and the line of every dotted key, what its author says, when Airflow runs what. They change no result.
    stated : bool
        Does the file state the target, or a strategy that steers by it? Else `target` is a default that nobody asked for.
    """

    kind: ClassVar[str]
    name: str
    streams: tuple[tuple[str, str], ...]
    period_us: int
    strategy: Any
    rows_held: int | None = field(default=None, compare=False)
    silence_us: int | None = field(default=None, compare=False)
    source: str = field(default="", compare=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    description: str = field(default="", compare=False)
    schedule: Schedule = field(default=DEFAULT, compare=False)
    stated: bool = field(default=True, compare=False)

    @property
    def promises(self) -> bool:
        """Is `target` a promise about answers on time? Not where a file with a constant wait states none."""
        return self.stated

    @property
    def answers(self) -> Answers:
        """What a result row is of an answer."""
        return Answers.ADDED

    @property
    def result_keys(self) -> tuple[str, ...]:
        """Columns that name a result row, whatever its revision."""
        raise NotImplementedError

    @property
    def selects_all(self) -> bool:
        """Are the streams' columns result columns because the query selects none?"""
        return False

    def everything(self, columns: Mapping[str, Sequence[str]]) -> list[tuple[str, str, str]]:
        """Result columns where `selects_all`, else none: name, alias, and column of `columns`, which has each stream's."""
        return []

    @property
    def adapts(self) -> bool:
        """Does the strategy learn, so that `adapt` has something to write?"""
        return False

    @property
    def target(self) -> float:
        """What a period has to reach, from 0 to 1."""
        raise NotImplementedError

    @property
    def confidence(self) -> float:
        """Share of periods that have to reach the target, from 0 to 1."""
        return CONFIDENCE

    @property
    def gamma_us(self) -> int:
        """Span of event times at which late rows become a repair batch."""
        return int(self.strategy.gamma_us)

    def expressions(self) -> Iterable[tuple[str, Expr, str | None]]:
        """All expressions over the streams' columns: key, expression, and the kind it must have.

        That is ``number``, ``bool``, ``plain`` (no list, struct or map), or None for any.
        """
        raise NotImplementedError

    def fail(self, key: str, value: object, problem: str, remedy: str) -> SpecError:
        """An error about one key of the file."""
        return SpecError(self.source or f"query {self.name}", key, value, problem, remedy).located(self.lines)

    def check_columns(self, kinds: Mapping[str, Mapping[str, str]]) -> None:
        """Check every expression against the streams' columns: stream -> column -> kind (as of `check_types`).

        Raises
        ------
        SpecError
            A column that is not there, or unlike things that are compared or computed with.
        """
        known = {alias: list(kinds[stream]) for alias, stream in self.streams}
        typed = {(alias, name): kind for alias, stream in self.streams for name, kind in kinds[stream].items()}
        try:
            for key, expression, wanted in self.expressions():
                check_columns(expression, known, source=self.source, key=key)
                kind = check_types(expression, typed, source=self.source, key=key)
                if wanted == "plain":
                    if kind is not None and "<" in kind:
                        remedy = "use a column of single values"
                        raise self.fail(key, to_text(expression), f"is a {kind}, not a single value", remedy)
                elif wanted is not None and kind not in (wanted, None):
                    word = "condition" if wanted == "bool" else wanted
                    raise self.fail(key, to_text(expression), f"is a {kind}, not a {word}", f"use a {word} here")
        except SpecError as error:
            raise error.located(self.lines) from None

    def question(self) -> dict[str, Any]:
        """What this kind adds to :meth:`to_dict`."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """What the query computes, as JSON-able values."""
        streams = [list(pair) for pair in self.streams]
        return {"kind": self.kind, "name": self.name, "streams": streams, **self.question()}

    @staticmethod
    def computed(asked: Mapping[str, Any]) -> dict[str, Any]:
        """Of a query's :meth:`to_dict`, all but what stored results can be judged by afterwards: the target, and the share of periods that have to reach it."""
        quality = {key: value for key, value in asked["quality"].items() if key == "period_us"}
        strategy = {key: value for key, value in asked["strategy"].items() if key != "confidence"}
        return {**asked, "quality": quality, "strategy": strategy}

    def fingerprint(self) -> str:
        """Identity of what the query computes (SHA-256 of canonical JSON): comments, description, schedule and the bounds on rows held and on silence do not count."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


def bounds_of(quality: Reader, streams: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """``rows_held`` and ``silence`` in ``quality: {...}``, its last keys, as arguments of a spec; None where no bound is stated. Refuses whatever is left."""
    rows_held = quality.number("rows_held", None, low=1, high=10**12, whole=True)
    if quality.has("silence") and len({stream for _, stream in streams}) == 1:
        problem = "is of one stream beside others, but the query reads one alone"
        raise quality.fail("silence", quality.take("silence"), problem, "remove it")
    silence_us = quality.duration("silence", None)
    quality.done()
    return {"rows_held": rows_held, "silence_us": silence_us}


def rest_of(reader: Reader) -> dict[str, Any]:
    """The keys every file may end with, as arguments of a spec; refuses whatever is left."""
    found = {"source": reader.source, "description": reader.text("description", ""), "schedule": schedule_of(reader)}
    reader.done()
    return found
