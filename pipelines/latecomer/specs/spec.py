"""The base class of every query kind's spec: frozen values read from one query file, and their signature."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import ClassVar, Literal, TypeAlias, TypedDict

from latecomer.specs.errors import SpecError
from latecomer.specs.expressions.tree import Expr, SelectItem, to_text
from latecomer.specs.expressions.types import Kind, check_columns, check_types
from latecomer.specs.judging import Judging, parse_judging
from latecomer.specs.reader import Reader
from latecomer.specs.schedule import DEFAULT, Schedule, parse_schedule

CONFIDENCE = 0.95
"""Share of periods that have to reach the target, where the query does not state one."""
KEPT_QUALITY = ("period_us", "max_wait_us", "expect_us")
"""Keys of ``quality`` in a signature that determine results, and not only what they are judged by."""
SHORTEST_PERIOD_US = 60_000_000
"""The least default of a period, microseconds."""

RequiredType: TypeAlias = Literal["number", "bool", "plain"] | None
"""The type that an expression must have; ``plain`` is any but a list, struct or map, and None allows any type."""
Streams: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs (alias, stream), in the file's order."""
Signature: TypeAlias = dict[str, object]
"""A JSON object, see :meth:`Spec.signature`."""


PUBLISH_WHEN = ("checked", "always")
"""Values of ``publish: {when: ...}``, the first is the default."""


class Answers(Enum):
    """The relation between result rows and answers. It decides what a correction does to a published answer."""

    ADDED = "each row is an answer, and stays; corrections are the rows that were missed"
    REVISED = "one row is an answer; a correction is its next revision"
    RANKED = "an answer is rows ranked from 1; a correction is the next revision of its ranks"
    REPLACED = "an answer is all rows of a window; a correction is all of them anew, in whatever number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Base of all kinds' strategies.

    Attributes
    ----------
    name : str
        The strategy's name in query files.
    gamma_us : int
        Span of event times at which late rows become a repair batch, microseconds.
    """

    name: str
    gamma_us: int

    def signature(self) -> Signature:
        """Return the attributes that determine the query's results, as JSON-able values."""
        return {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Base of all kinds' specs.

    Attributes
    ----------
    kind : str
        The query kind: join, aggregate, topk, theta_join or membership.
    name : str
        The query's name; also that of its tables and its DAGs.
    streams : tuple of (alias, stream)
        In the file's order.
    where : Expr or None
        The condition that rows, or pairs of rows, must meet; None: there is no condition.
    select : tuple of SelectItem or None
        The selected result columns; None: every column of the streams.
    period_us : int
        Length of a ledger period, microseconds. The target holds per period.
    target : float
        Least share of a period's results, from 0 to 1, that has to be right on time.
    confidence : float
        Share of periods, from 0 to 1, that have to reach the target.
    promises : bool
        True where the file states the target, or a strategy that is steered by it. Otherwise `target` is a default that
        nothing is held to.
    strategy : Strategy
        How the query is run.
    rows_held : int or None
        Most rows that a period may hold; `check` compares. It changes no result.
    silence_us : int or None
        Most that a stream's last event time may lie behind the other streams', microseconds; `check` compares. It
        changes no result.
    judging : Judging
        The periods by which `check` judges the promise. It changes no result.
    publish_when : str
        ``checked``: `publish` needs a check that has passed; ``always``: it does not. It changes no result.
    source, lines, description, schedule
        The file, the line of every dotted key, the author's description, and when Airflow runs what. They change no
        result.
    """

    kind: ClassVar[str]
    target_key: ClassVar[str] = "recall"
    """The key of the target in ``quality: {...}``."""
    adaptive: ClassVar[tuple[str, ...]] = ()
    """Names of the kind's strategies that learn from the stream."""

    name: str
    streams: Streams
    where: Expr | None = None
    select: tuple[SelectItem, ...] | None = ()
    period_us: int
    target: float
    confidence: float = CONFIDENCE
    strategy: Strategy
    promises: bool = field(default=True, compare=False)
    rows_held: int | None = field(default=None, compare=False)
    silence_us: int | None = field(default=None, compare=False)
    judging: Judging = field(default=Judging(), compare=False)
    source: str = field(default="", compare=False)
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    description: str = field(default="", compare=False)
    schedule: Schedule = field(default=DEFAULT, compare=False)
    publish_when: str = field(default=PUBLISH_WHEN[0], compare=False)

    @property
    def stream_names(self) -> tuple[str, ...]:
        """The streams that the query reads, each once, in the order of the query."""
        return tuple(dict.fromkeys(stream for _, stream in self.streams))

    @property
    def answers(self) -> Answers:
        """The relation between result rows and answers."""
        return Answers.ADDED

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The columns that identify a result row, whatever its revision."""
        raise NotImplementedError

    @property
    def adapts(self) -> bool:
        """True where the strategy learns, so that `adapt` has parameters to write."""
        return self.strategy.name in self.adaptive

    @property
    def gamma_us(self) -> int:
        """Span of event times at which late rows become a repair batch, microseconds."""
        return self.strategy.gamma_us

    @property
    def selects_all(self) -> bool:
        """True where the streams' columns are result columns, because the query selects none."""
        return self.select is None

    def default_columns(self, columns: Mapping[str, Sequence[str]]) -> list[tuple[str, str, str]]:
        """Return the result columns of a query that selects none.

        Parameters
        ----------
        columns
            The column names of each stream.

        Returns
        -------
        list of (name, alias, column)
            The result column's name, and the column of a stream that it copies. Empty unless `selects_all`.
        """
        if not self.selects_all:
            return []
        qualified = len(self.streams) > 1
        return [
            (f"{alias}_{name}" if qualified else name, alias, name)
            for alias, stream in self.streams
            for name in self._default_names(columns[stream])
        ]

    def _default_names(self, names: Sequence[str]) -> Iterable[str]:
        """Return those names of a stream's columns that `default_columns` has, in its order."""
        raise NotImplementedError

    def expressions(self) -> Iterator[tuple[str, Expr, RequiredType]]:
        """Yield every expression over the streams' columns with its key in the file and its required type."""
        yield from self._kind_expressions()
        if self.where is not None:
            yield "where", self.where, "bool"
        for place, item in enumerate(self.select or ()):
            yield f"select[{place}]", item.expr, None

    def _kind_expressions(self) -> Iterator[tuple[str, Expr, RequiredType]]:
        """Yield the expressions of keys that only this kind has."""
        raise NotImplementedError

    def fail(self, key: str, value: object, problem: str, remedy: str) -> SpecError:
        """Return an error about one key of the file."""
        return SpecError(self.source or f"query {self.name}", key, value, problem, remedy).with_line(self.lines)

    def check_columns(self, types: Mapping[str, Mapping[str, Kind]]) -> None:
        """Check every expression against the streams' columns.

        Parameters
        ----------
        types
            Stream -> column -> type, as :mod:`latecomer.specs.expressions.types` names types.

        Raises
        ------
        SpecError
            A column does not exist, or values of unlike types are compared or computed with.
        """
        known = {alias: list(types[stream]) for alias, stream in self.streams}
        by_column = {(alias, name): kind for alias, stream in self.streams for name, kind in types[stream].items()}
        try:
            for key, expression, required in self.expressions():
                expression = self._located(key, expression, known)
                check_columns(expression, known, source=self.source, key=key)
                kind = check_types(expression, by_column, source=self.source, key=key)
                if required == "plain":
                    if kind is not None and "<" in kind:
                        remedy = "use a column of single values"
                        raise self.fail(key, to_text(expression), f"is a {kind}, not a single value", remedy)
                elif required is not None and kind not in (required, None):
                    word = "condition" if required == "bool" else required
                    raise self.fail(key, to_text(expression), f"is a {kind}, not a {word}", f"use a {word} here")
        except SpecError as error:
            raise error.with_line(self.lines) from None

    def _located(self, key: str, expression: Expr, known: Mapping[str, Sequence[str]]) -> Expr:
        """Return the expression of a key with the columns of each alias that it means; most keys name them exactly."""
        return expression

    def signature(self) -> Signature:
        """Return everything that determines the query's results, as JSON-able values.

        Comments, `description`, `schedule`, `publish_when`, `rows_held`, `silence_us` and `judging` determine no result
        and are left out. Lakes store signatures and fingerprints, so a key that is added to query files adds nothing to
        the signature of a file that does not state it.
        """
        return {
            "kind": self.kind,
            "name": self.name,
            "streams": [list(pair) for pair in self.streams],
            **self._kind_signature(),
            "quality": {"period_us": self.period_us, **self._quality_signature()},
            "strategy": {**self.strategy.signature(), **self._strategy_signature()},
        }

    def _kind_signature(self) -> Signature:
        """Return the signature's keys beside ``quality`` and ``strategy`` that this kind has."""
        raise NotImplementedError

    def _quality_signature(self) -> Signature:
        """Return the keys in ``quality`` beside the period."""
        return {self.target_key: self.target}

    def _strategy_signature(self) -> Signature:
        """Return the keys in ``strategy`` that are attributes of the spec."""
        return {"confidence": self.confidence}

    @staticmethod
    def without_target(signature: Signature) -> Signature:
        """Return a signature without the target and the confidence: stored results can be judged by other ones."""
        quality, strategy = signature["quality"], signature["strategy"]
        assert isinstance(quality, Mapping) and isinstance(strategy, Mapping)
        return {
            **signature,
            "quality": {key: value for key, value in quality.items() if key in KEPT_QUALITY},
            "strategy": {key: value for key, value in strategy.items() if key != "confidence"},
        }

    def fingerprint(self) -> str:
        """Return the SHA-256 of the signature as canonical JSON, in hexadecimal digits."""
        text = json.dumps(self.signature(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


class Bounds(TypedDict):
    """Arguments of a spec: the bounds that `check` holds periods and streams to, and the periods that count."""

    rows_held: int | None
    silence_us: int | None
    judging: Judging


class FileDetails(TypedDict):
    """Arguments of a spec: the keys that every file may have and that change no result."""

    source: str
    description: str
    schedule: Schedule
    publish_when: str


def parse_period(quality: Reader, window_us: int) -> int:
    """Read ``period`` in ``quality: {...}``, microseconds; by default 60 s or a window, whichever is longer."""
    return quality.duration("period", max(SHORTEST_PERIOD_US, window_us))


def parse_confidence(strategy: Reader) -> float:
    """Read ``confidence`` in ``strategy: {...}``."""
    return strategy.number("confidence", CONFIDENCE, low=0.5, high=0.9999)


def parse_bounds(quality: Reader, streams: Streams) -> Bounds:
    """Read the keys of `check`, the last ones in ``quality: {...}``, and refuse all keys that are left."""
    rows_held = quality.whole_number("rows_held", None, low=1, high=10**12)
    silence_us = None
    if len({stream for _, stream in streams}) == 1:
        quality.refuse("silence", "is of one stream beside others, but the query reads one alone", "remove it")
    else:
        silence_us = quality.duration("silence", None)
    judging = parse_judging(quality)
    quality.done()
    return {"rows_held": rows_held, "silence_us": silence_us, "judging": judging}


def parse_details(reader: Reader) -> FileDetails:
    """Read the keys that every file may end with, and refuse all keys that are left."""
    details: FileDetails = {
        "source": reader.source,
        "description": reader.text("description", ""),
        "schedule": parse_schedule(reader),
        "publish_when": _parse_publish_when(reader),
    }
    reader.done()
    if details["schedule"].tasks == "one" and details["publish_when"] == "always":
        problem = "fails as a whole where the check fails, and publish.when: always does not wait for it"
        raise reader.fail("schedule.tasks", "one", problem, "write each, or leave it out")
    return details


def _parse_publish_when(reader: Reader) -> str:
    """Read ``publish: {when: ...}``."""
    inner = reader.optional_mapping("publish")
    if inner is None:
        return PUBLISH_WHEN[0]
    when = inner.choice("when", PUBLISH_WHEN)
    inner.done()
    return when
