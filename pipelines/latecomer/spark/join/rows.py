"""The rows of a join on Spark: read both sides, name their columns, pair them, and shape results.

Inside a stage every column of a side has a short name (``l_c3``) with which no user's column can collide. The query's
expressions are rendered over these names; a result gets its public names in the end.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from latecomer.core.join.statistics import SAMPLE_FACTOR, SAMPLE_FRACTION, SAMPLE_MODULUS
from latecomer.core.time import EARLIEST_US, LATEST_US
from latecomer.lake.event_scan import Spans
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables
from latecomer.spark.engine.band_join import DistanceCells, band_join
from latecomer.spark.engine.columns import quoted, refuse_twice
from latecomer.spark.engine.query_columns import check_columns, open_streams, with_wide_columns
from latecomer.spark.stage import Batch
from latecomer.specs import expressions as ex
from latecomer.specs.clauses import ENVELOPE, STORED
from latecomer.specs.join import JoinSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

LETTERS = ("l", "r")


class JoinRows:
    """Both sides of one join query over the lake's event tables.

    Raises
    ------
    InputError
        A stream is not in the lake.
    SpecError
        The query names a column that its stream lacks, or compares values that cannot be compared.
    """

    def __init__(self, spec: JoinSpec, spark: SparkSession, lake: Lake) -> None:
        self.spec, self.spark, self.lake = spec, spark, lake
        self.aliases = tuple(alias for alias, _ in spec.streams)
        self.streams = tuple(stream for _, stream in spec.streams)
        self.is_self = self.streams[0] == self.streams[1]
        self.sources = self.streams[:1] if self.is_self else self.streams
        events = open_streams(spec, spark, lake)
        self.events = list(events.values())
        self._check(events)
        self.spec = with_wide_columns(spec, events)

    def _side_events(self, side: int) -> DataFrame:
        return self.events[0 if self.is_self else side]

    def _check(self, events: dict[str, DataFrame]) -> None:
        check_columns(self.spec, events)
        refuse_twice(self.spec, [name for name, _ in self._outputs()], (*ENVELOPE, *STORED))

    @cached_property
    def keys(self) -> list[tuple[ex.Column, ex.Column]]:
        """The columns, or fields inside columns, that are equal in the two rows of a pair."""
        return self.spec.key_columns({alias: self._side_events(i).columns for i, alias in enumerate(self.aliases)})

    # -- names ---------------------------------------------------------------------------------------------------

    @cached_property
    def needed(self) -> list[list[str]]:
        """The columns that a result or a condition needs, per source, in the table's order."""
        names: list[set[str]] = [set(ex.ALWAYS_THERE) for _ in self.sources]
        expressions = [expr for _, expr in self._outputs()] + ([self.spec.where] if self.spec.where is not None else [])
        for expression in expressions:
            for column in ex.columns(expression):
                names[self._source(column.alias)].add(column.name)
        for left, right in self.keys:
            names[0].add(left.name)
            names[len(self.sources) - 1].add(right.name)
        return [[name for name in self.events[i].columns if name in names[i]] for i in range(len(self.sources))]

    def _source(self, alias: str | None) -> int:
        return 0 if self.is_self else self.aliases.index(alias or self.aliases[0])

    def _outputs(self) -> list[tuple[str, ex.Expr]]:
        columns = {stream: self._side_events(side).columns for side, (_, stream) in enumerate(self.spec.streams)}
        if self.spec.select is None:
            return [(name, ex.Column(alias, column)) for name, alias, column in self.spec.default_columns(columns)]
        fixed: dict[str, ex.Expr] = {
            f"{alias}_{name}": ex.Column(alias, name) for alias in self.aliases for name in ("seq", "event_ts")
        }
        selected = [(item.name, item.expr) for item in self.spec.select if item.name not in fixed]
        return [*fixed.items(), *selected]

    def name_of(self, column: ex.Column) -> str:
        """Return the short name of a query's column, for rendering expressions."""
        side = self.aliases.index(column.alias or self.aliases[0])
        return f"{LETTERS[side]}_c{self.needed[self._source(column.alias)].index(column.name)}"

    @cached_property
    def keys_sql(self) -> tuple[tuple[str, str], ...]:
        """The equal keys as pairs of SQL over short names."""
        return tuple((ex.to_spark_sql(a, self.name_of), ex.to_spark_sql(b, self.name_of)) for a, b in self.keys)

    @cached_property
    def where_sql(self) -> str:
        """The predicate as SQL over short names; null counts as false."""
        if self.spec.where is None:
            return "true"
        return f"coalesce({ex.to_spark_sql(self.spec.where, self.name_of)}, false)"

    @cached_property
    def grid(self) -> DistanceCells | None:
        """The first ``within_distance`` conjunct whose two points lie on different sides, if there is one."""
        if self.spec.where is None:
            return None
        for part in ex.conjuncts(self.spec.where):
            if isinstance(part, ex.WithinDistance):
                points = ((part.x1, part.y1), (part.x2, part.y2))
                owners = [{c.alias for axis in point for c in ex.columns(axis)} for point in points]
                sql = [(ex.to_spark_sql(x, self.name_of), ex.to_spark_sql(y, self.name_of)) for x, y in points]
                if owners == [{self.aliases[0]}, {self.aliases[1]}]:
                    return DistanceCells(sql[0], sql[1], float(part.radius))
                if owners == [{self.aliases[1]}, {self.aliases[0]}]:
                    return DistanceCells(sql[1], sql[0], float(part.radius))
        return None

    # -- rows ----------------------------------------------------------------------------------------------------

    def arrivals(self, batch: Batch) -> DataFrame:
        """Read the new rows of all sources: ``seq, ts, side`` and columns ``s0_c0`` ..., null for the other source."""
        from pyspark.sql import functions as F

        parts = []
        for i, stream in enumerate(self.sources):
            new = tables.events(
                self.spark, self.lake, stream, columns=self.needed[i], seq_from=batch.seq_from, seq_to=batch.seq_to
            )
            columns = [F.col(quoted(name)).alias(f"s{i}_c{k}") for k, name in enumerate(self.needed[i])]
            parts.append(new.select("seq", F.unix_micros("event_ts").alias("ts"), F.lit(i).alias("side"), *columns))
        if len(parts) == 1:
            return parts[0]
        return parts[0].unionByName(parts[1], allowMissingColumns=True)

    def stored(
        self,
        side: int,
        seq_to: int,
        above_us: int,
        from_us: int,
        to_us: int,
        *,
        seq_from: int | None = None,
        sampled: bool = False,
        spans: Spans | None = None,
    ) -> DataFrame:
        """Read the stored rows of one side that arrived in ``[seq_from, seq_to)``.

        Parameters
        ----------
        above_us, from_us, to_us
            ``above < ts`` and ``from <= ts <= to``.
        sampled
            Read the rows of the deterministic sample too, however far behind `above` they are.
        spans
            Closed ranges of event time (us), one of which holds the row; None: any.
        """
        from pyspark.sql import functions as F

        source = 0 if self.is_self else side
        low = max(above_us + 1, from_us)
        low_us = low if low > EARLIEST_US else None
        high_us = to_us if to_us < LATEST_US else None
        reach = max(from_us, EARLIEST_US) if sampled and low_us is not None else low_us
        rows = tables.events(
            self.spark,
            self.lake,
            self.sources[source],
            columns=self.needed[source],
            seq_from=seq_from,
            seq_to=seq_to,
            low_us=reach,
            high_us=high_us,
            spans=spans,
        )
        if sampled and low_us is not None:
            rows = rows.where((F.col("event_ts") >= F.timestamp_micros(F.lit(low_us))) | in_sample("seq"))
        rows = tables.codegen_barrier(rows)
        columns = [F.col(quoted(name)).alias(f"{LETTERS[side]}_c{k}") for k, name in enumerate(self.needed[source])]
        return rows.select(
            F.col("seq").alias(f"{LETTERS[side]}_seq"), F.unix_micros("event_ts").alias(f"{LETTERS[side]}_ts"), *columns
        )

    def as_side(self, rows: DataFrame, side: int, carried: dict[str, Column]) -> DataFrame:
        """Return new rows in the role of one side; `carried` adds columns, with ``l_`` or ``r_`` before their names."""
        from pyspark.sql import functions as F

        source = 0 if self.is_self else side
        letter = LETTERS[side]
        columns = [F.col(f"s{source}_c{k}").alias(f"{letter}_c{k}") for k in range(len(self.needed[source]))]
        return rows.where(F.col("side") == source).select(
            F.col("seq").alias(f"{letter}_seq"),
            F.col("ts").alias(f"{letter}_ts"),
            *(value.alias(f"{letter}_{name}") for name, value in carried.items()),
            *columns,
        )

    def pairs(self, left: DataFrame, right: DataFrame, condition: Column, *, where: bool, copy_left: bool) -> DataFrame:
        """Return the candidate pairs of two sides (with `where`: the results) that pass `condition`.

        No row pairs with itself.
        """
        from pyspark.sql import functions as F

        if self.is_self:
            condition = condition & (F.col("l_seq") != F.col("r_seq"))
        if where:
            condition = condition & F.expr(self.where_sql)
        return band_join(
            left,
            right,
            window_us=self.spec.window_us,
            keys=self.keys_sql,
            condition=condition,
            grid=self.grid,
            copy_left=copy_left,
        )

    @cached_property
    def _selected(self) -> list[tuple[str, Column]]:
        """The result columns over a pair's columns: name and value."""
        from pyspark.sql import functions as F

        fixed = self._fixed
        return [
            (name, fixed[name] if name in fixed else F.expr(ex.to_spark_sql(expr, self.name_of)))
            for name, expr in self._outputs()
        ]

    @cached_property
    def _fixed(self) -> dict[str, Column]:
        """The result columns that every pair has: name to value."""
        from pyspark.sql import functions as F

        sides = list(zip(LETTERS, self.aliases, strict=True))
        seqs = {f"{alias}_seq": F.col(f"{letter}_seq") for letter, alias in sides}
        return seqs | {f"{alias}_event_ts": F.timestamp_micros(f"{letter}_ts") for letter, alias in sides}

    def outlined(self, pairs: DataFrame, carried: Sequence[str]) -> DataFrame:
        """Return pairs with only the values that `results` needs and the columns `carried`, so that least is cached."""
        values = [value.alias(f"o{i}") for i, (name, value) in enumerate(self._selected) if name not in self._fixed]
        return pairs.select("l_seq", "r_seq", "l_ts", "r_ts", *carried, *values)

    def results(
        self, pairs: DataFrame, *, provenance: Column, published: Column, period: Column, wait: Column | None = None
    ) -> DataFrame:
        """Return the public result rows of pairs, `outlined` or not; `wait` (us) goes into the ledger."""
        from pyspark.sql import functions as F

        known = set(pairs.columns)
        outputs = [
            (F.col(f"o{i}") if f"o{i}" in known else value).alias(name)
            for i, (name, value) in enumerate(self._selected)
        ]
        return pairs.select(
            *outputs,
            provenance.alias("provenance"),
            F.lit(0).cast("int").alias("revision"),
            published.alias("published_seq"),
            *([] if wait is None else [wait.alias("wait_us")]),
            F.timestamp_micros(period).alias("period_start"),
        )


def in_sample(seq: str) -> Column:
    """Return the SQL of :func:`latecomer.core.join.statistics.in_sample`."""
    from pyspark.sql import functions as F

    place = f"({seq} % {SAMPLE_MODULUS}) * {SAMPLE_FACTOR} % {SAMPLE_MODULUS}"
    return F.expr(f"{place} < {SAMPLE_FRACTION * SAMPLE_MODULUS!r}D")
