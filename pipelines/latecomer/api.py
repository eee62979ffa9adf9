"""The Python API, for notebooks and other orchestrators: ``import latecomer as lc``.

It does what the commands do, and raises what they report: errors of this project have an ``exit_code`` and one line of
text with place, value, problem and remedy.

Examples
--------
>>> import latecomer as lc
>>> query = lc.aggregate(
...     "views_per_page",
...     streams={"v": "views"},
...     group_by=["page"],
...     window="1 h",
...     select={"views": "count()"},
...     quality={"error": 0.05, "probability": 0.95, "period": "1 d"},
... )
>>> query.name, query.kind
('views_per_page', 'aggregate')
>>> lc.topk("best", streams={"v": "views"}, window="1 h", score="seconds", k=0)
Traceback (most recent call last):
    ...
latecomer.specs.errors.SpecError: lc.topk: k: 0: must be from 1 to 10000; choose a number in that range
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latecomer.specs.loading import load_query, parse_mapping, parse_query
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from latecomer.ingest.ingest import IngestResult
    from latecomer.ingest.options import IngestOptions
    from latecomer.jobs.explain.curve import Explained
    from latecomer.jobs.explain.windows import Text
    from latecomer.lake.lake import Lake as Tables
    from latecomer.lake.results_table import Publication
    from latecomer.quality.checks import CheckOutcome
    from latecomer.spark.backfill import BackfillReport
    from latecomer.spark.repair import RepairReport
    from latecomer.spark.run import RunReport

Duration = str
"""A number and a unit, such as ``10 s`` or ``1 h``."""
Mapped = Mapping[str, Any]


@dataclass(frozen=True)
class Query:
    """A query: what a query file says. `lc.join`, `lc.aggregate` and so on make one from arguments."""

    spec: Spec

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Query:
        """Read a query file; a SpecError for any fault of it."""
        return cls(load_query(Path(path)))

    @classmethod
    def parse(cls, text: str) -> Query:
        """Read the text of a query file; a SpecError for any fault of it."""
        return cls(parse_query(text))

    @property
    def name(self) -> str:
        """The name of the query, of its tables and of its DAGs."""
        return self.spec.name

    @property
    def kind(self) -> str:
        """The query kind: join, aggregate, topk, theta_join or membership."""
        return self.spec.kind


def join(
    name: str,
    *,
    streams: Mapping[str, str],
    window: Duration,
    keys: Sequence[str | Mapping[str, str]] | None = None,
    where: str | None = None,
    select: Sequence[str] | None = None,
    quality: Mapped | None = None,
    strategy: str | Mapped | None = None,
    **more: Any,
) -> Query:
    """Make a join: pairs of rows of two streams whose event times differ by at most `window`.

    The arguments are the keys of a query file; ``docs/query-files.md`` explains them. `more` are keys that every kind
    has: ``description``, ``schedule``, ``publish``.

    Raises
    ------
    SpecError
        An argument is wrong; the message begins with ``lc.join``.
    """
    return _make("join", name, locals(), more)


def aggregate(
    name: str,
    *,
    streams: Mapping[str, str],
    window: Duration | Mapped,
    select: Mapping[str, str],
    group_by: Sequence[str] | None = None,
    where: str | None = None,
    quality: Mapped | None = None,
    strategy: str | Mapped | None = None,
    **more: Any,
) -> Query:
    """Make an aggregate over windows; arguments and errors as for :func:`join`."""
    return _make("aggregate", name, locals(), more)


def topk(
    name: str,
    *,
    streams: Mapping[str, str],
    window: Duration | Mapped,
    score: str,
    k: int,
    group_by: Sequence[str] | None = None,
    where: str | None = None,
    select: Sequence[str] | None = None,
    quality: Mapped | None = None,
    strategy: str | Mapped | None = None,
    **more: Any,
) -> Query:
    """Make a top-k: the `k` best rows of every window and group; arguments and errors as for :func:`join`."""
    return _make("topk", name, locals(), more)


def theta_join(
    name: str,
    *,
    streams: Mapping[str, str],
    window: Duration | Mapped,
    conditions: Sequence[str],
    emit: str | None = None,
    where: str | None = None,
    select: Sequence[str] | None = None,
    quality: Mapped | None = None,
    strategy: str | Mapped | None = None,
    **more: Any,
) -> Query:
    """Make a theta join of two or more streams; arguments and errors as for :func:`join`."""
    return _make("theta_join", name, locals(), more)


def membership(
    name: str,
    *,
    streams: Mapping[str, str],
    window: Duration | Mapped,
    element: str | Mapping[str, str],
    where: str | None = None,
    quality: Mapped | None = None,
    strategy: str | Mapped | None = None,
    **more: Any,
) -> Query:
    """Make a membership: the elements that every stream has in a window; arguments and errors as for :func:`join`."""
    return _make("membership", name, locals(), more)


def _make(kind: str, name: str, arguments: Mapping[str, Any], more: Mapping[str, Any]) -> Query:
    keys = {key: value for key, value in arguments.items() if key not in ("name", "more") and value is not None}
    return Query(parse_mapping({"kind": kind, "name": name, **keys, **more}, f"lc.{kind}"))


@dataclass(frozen=True)
class Results:
    """The published answers of a query, the Delta table ``results/<query>``. Each call reads its newest version."""

    lake: Lake
    query: Query

    @property
    def path(self) -> str:
        """The place of the table: a folder, or an address in an object store."""
        return self.lake.tables.table("results", self.query.name).uri

    def arrow(self) -> pa.Table:
        """Return the answers as an Arrow table; an InputError where none was published."""
        from latecomer.lake.errors import InputError

        rows = self.lake.tables.table("results", self.query.name).read()
        if rows is None:
            where = f"query {self.query.name}"
            raise InputError(where, None, f"was not published in {self.lake.uri}", "publish it first")
        return rows

    def pandas(self) -> pd.DataFrame:
        """Return the answers as a DataFrame of pandas."""
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """Return the answers as a DataFrame of Polars; an InputError where it is not installed."""
        from latecomer.lake.errors import InputError

        try:
            polars = import_module("polars")
        except ImportError:
            raise InputError("polars()", None, "needs Polars", "install latecomer[polars] (polars)") from None
        return polars.from_arrow(self.arrow())

    def spark(self) -> DataFrame:
        """Return the answers as a DataFrame of this process's Spark session."""
        from latecomer.spark.engine import tables
        from latecomer.spark.engine.session import session

        return tables.read(session(self.lake.tables), self.lake.tables.table("results", self.query.name))


class Lake:
    """A lake: events and quarantine of streams, and the tables of queries.

    Parameters
    ----------
    uri
        A folder, which is made when it is first written to, ``s3://BUCKET/PREFIX``, or a place in another store.
    progress
        Called with lines about the work.
    """

    def __init__(self, uri: str | os.PathLike[str], progress: Callable[[str], None] = lambda line: None) -> None:
        from latecomer.lake.lake import Lake as Tables

        self.tables: Tables = Tables(str(uri))
        self.progress = progress

    def __repr__(self) -> str:
        return f"Lake({self.uri!r})"

    @property
    def uri(self) -> str:
        """The place of the lake."""
        return self.tables.uri

    def ingest(
        self,
        stream: str | None = None,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        *,
        by: str | None = None,
        streams: str | os.PathLike[str] | None = None,
        options: IngestOptions | None = None,
    ) -> IngestResult:
        """Store the rows of files in arrival order; of a stream whose file states a source, the rows that are new.

        Parameters
        ----------
        stream
            The stream of all rows; None with `by`.
        paths
            Files and folders. None for a stream whose file states a source.
        by
            The column that names each row's stream.
        streams
            The folder of stream files, the contracts of streams.
        options
            How rows are read and which are believed, where no stream file says it.

        Raises
        ------
        InputError, SpecError, LeaseHeld
            As the command `ingest` reports them.
        """
        from latecomer.ingest.ingest import ingest
        from latecomer.ingest.options import IngestOptions
        from latecomer.ingest.stream_contract import with_stream_file

        given = replace(options or IngestOptions(), stream=stream, by=by)
        files = [str(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
        complete = with_stream_file(None if streams is None else Path(streams), set())
        if not files and stream is not None:
            return ingest(self.tables, {stream: []}, replace(given, stream=None), self.progress, complete)
        return ingest(self.tables, files, given, self.progress, complete)

    def run(
        self, query: Query, *, rows_per_batch: int | None = None, until_seq: int | None = None, flush: bool = False
    ) -> RunReport:
        """Process the rows that were ingested since the last run; with `flush`, close every window."""
        from latecomer.spark.run import run

        return run(
            self.tables,
            query.spec,
            rows_per_batch=rows_per_batch,
            until_seq=until_seq,
            flush=flush,
            progress=self.progress,
        )

    def repair(self, query: Query, *, flush: bool = False) -> RepairReport:
        """Correct the results for late rows whose batch is full; with `flush`, for all."""
        from latecomer.spark.repair import repair

        return repair(self.tables, query.spec, flush=flush, progress=self.progress)

    def backfill(self, query: Query, start: str, end: str) -> BackfillReport:
        """Answer the windows again that start in ``[start, end)``, times in ISO 8601."""
        from latecomer.spark.backfill import backfill
        from latecomer.specs.judging import parse_time

        times = (parse_time(text, source="backfill", key=key) for text, key in ((start, "start"), (end, "end")))
        return backfill(self.tables, query.spec, *times)

    def check(self, query: Query, *, report: str | os.PathLike[str] | None = None, audit: int = 0) -> CheckOutcome:
        """Check that the query keeps its promises; ``raise_for_failure()`` of the outcome raises if not.

        `report` is a folder for an HTML report, and `audit` the number of past periods to answer again by plain SQL.
        """
        from latecomer.quality.checks import check

        folder = None if report is None else Path(report)
        return check(self.tables, query.spec, report_dir=folder, audit=audit, progress=self.progress)

    def publish(self, query: Query, *, unchecked: bool = False) -> Publication:
        """Bring the published answers to what the last check has seen and passed; `unchecked`: to everything.

        A warning tells that a table could not be registered in the catalog that ``LATECOMER_CATALOG`` names.
        """
        from latecomer.quality.publishing import publish

        publication = publish(self.tables, query.spec, unchecked=unchecked)
        if publication.catalog_problem is not None:
            warnings.warn(publication.catalog_problem, stacklevel=2)
        return publication

    def results(self, query: Query) -> Results:
        """Return a handle of the published answers."""
        return Results(self, query)

    def changes(self, query: Query, since: int) -> pa.Table:
        """Return the rows that were published after a version of the results; see ``docs/tables.md``."""
        from latecomer.lake.result_changes import changes

        return changes(self.tables, query.spec, since)

    def sql(self, statement: str) -> pa.Table:
        """Return the rows of one statement of SQL that reads; see :func:`latecomer.lake.sql.query`."""
        from latecomer.lake.sql import query

        return query(self.tables, statement)

    def ledger(self, query: Query) -> pa.Table:
        """Return one row per period: expected, on time, missed, repaired, waits, rows held."""
        from latecomer.ledger.ledger import ledger

        return ledger(self.tables, query.spec)

    def explain(
        self, query: Query, *, plot: str | os.PathLike[str] | None = None, by: str | None = None
    ) -> Explained | Text:
        """Return the quality and cost that other waits would have had; `plot` names a PNG file to draw."""
        from latecomer.jobs.explain.explain import explain

        return explain(self.tables, query.spec, plot=None if plot is None else Path(plot), by=by)
