"""Read the records of a Kafka topic, once: the offsets at which the next call goes on are part of the ingest commit.

A call fixes the offsets of every partition before it reads, and copies the records to the lake's staging folder, so
that everything after it sees the same ones. A value is one JSON object, or one Avro record. A record that is neither
goes to quarantine: nobody can mend it in the topic, so it must not stop those after it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latecomer.ingest.column_types import column_in_table
from latecomer.ingest.decode_text import FileProblem
from latecomer.ingest.kafka_client import Security, TopicState, topic_state
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.read_text import shape_of, split_objects
from latecomer.ingest.sources import Source
from latecomer.ingest.staging import RESERVED, Staging, refuse_columns
from latecomer.ingest.union import UnifiedInput
from latecomer.lake.errors import InputError, error_text, is_full
from latecomer.lake.ingest_log import columns, last_position
from latecomer.lake.lake import Lake
from latecomer.lake.storage import spark_uri
from latecomer.spark.engine.columns import quoted
from latecomer.specs.errors import quantity
from latecomer.specs.expressions import ALWAYS_THERE
from latecomer.specs.names import fold_case
from latecomer.specs.streams import KafkaTopicSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

ADDED = ("kafka_key", "kafka_headers", "kafka_timestamp")
"""Columns that a topic adds to those of its values."""
_POSITIONS = ("_file", "_row", "_line", "_raw", "_problem")
Ranges = dict[int, tuple[int, int]]
"""Partition -> offsets of a call, ``[from, to)``."""


@dataclass(frozen=True)
class Gap:
    """Offsets of a partition that the topic lost before they were ingested; `end` is None where it was made anew."""

    partition: int
    start: int
    end: int | None

    def __str__(self) -> str:
        if self.end is None:
            return f"partition {self.partition}: what followed offset {self.start:,} (the topic was made anew)"
        lost = quantity(self.end - self.start, "offset")
        return f"partition {self.partition}: {lost} from {self.start:,} to {self.end - 1:,}"


def new_content(lake: Lake, options: IngestOptions, progress: Callable[[str], None]) -> Source | None:
    """Return the records beyond the position of the last ingestion; None for none.

    Raises
    ------
    InputError
        The topic cannot be asked, is not the one of the last ingestion, or has lost records that were not ingested yet.
    """
    source, stream = options.source, options.stream
    assert isinstance(source, KafkaTopicSource) and stream is not None
    security, before = Security.from_environment(), last_position(lake, stream)
    state = topic_state(source.topic, source.servers, security, with_timestamps=before is None)
    _refuse_other_topic(stream, source, state, before)
    starts, gaps = _starts(state, before)
    if gaps:
        lost = "; ".join(map(str, gaps))
        if source.on_gap == "refuse":
            raise InputError(
                f"stream {stream}: topic {source.topic}",
                None,
                f"no longer holds records that were not ingested: {lost}",
                "on_gap: earliest goes on at the first record that it holds, and keeps the gap on record",
            )
        progress(f"ingest: stream {stream}: topic {source.topic} has lost records that were not ingested: {lost}")
    ranges = limited({part: (start, state.end[part]) for part, start in starts.items()}, source.max_offsets_per_call)
    if not gaps and all(start == end for start, end in ranges.values()):
        return None
    if state.timestamps == "CreateTime":
        progress(
            f"ingest: stream {stream}: topic {source.topic} keeps the times of its producers' clocks, which are the "
            "arrival times of records without one; message.timestamp.type=LogAppendTime keeps the broker's"
        )
    position = _position(state, source, ranges, before, gaps)
    return KafkaSource(lake, options, security, state, ranges, position, before is None)


def _refuse_other_topic(
    stream: str, source: KafkaTopicSource, state: TopicState, before: Mapping[str, Any] | None
) -> None:
    """Refuse a stream whose rows came from another topic or cluster: its position says nothing about this one."""
    if before is None or (before.get("topic"), before.get("cluster")) == (source.topic, state.cluster):
        return
    if "topic" not in before:
        problem = "has rows from another kind of source"
    elif before["topic"] != source.topic:
        problem = f"has rows from topic {before['topic']}, and its file names {source.topic}"
    else:
        problem = f"has rows from cluster {before['cluster']}, and {source.servers} is {state.cluster}"
    raise InputError(f"stream {stream}", None, problem, "give the other topic a stream of its own")


def _starts(state: TopicState, before: Mapping[str, Any] | None) -> tuple[dict[int, int], list[Gap]]:
    """Return the first offset of the call in every partition, and what was lost before it.

    A partition that is younger than the position is read from its beginning, which is offset 0.
    """
    if before is None:
        return dict(state.first), []
    offsets = {int(part): int(offset) for part, offset in before["offsets"].items()}
    ids = {before.get("topic_id"), state.topic_id} - {None}
    again = len(ids) > 1 or any(offset > state.end.get(part, -1) for part, offset in offsets.items())
    if again:
        return dict(state.first), [Gap(part, offset, None) for part, offset in sorted(offsets.items())]
    starts = {part: max(offsets.get(part, 0), first) for part, first in sorted(state.first.items())}
    return starts, [
        Gap(part, offsets.get(part, 0), start) for part, start in starts.items() if start > offsets.get(part, 0)
    ]


def limited(ranges: Ranges, most: int | None) -> Ranges:
    """Bound the offsets of a call: partitions get shares in proportion to what they hold.

    What rounding leaves goes to the largest fractions, then to the first partitions.

    >>> limited({0: (10, 20), 1: (0, 5), 2: (7, 7)}, 6)
    {0: (10, 14), 1: (0, 2), 2: (7, 7)}
    """
    sizes = {part: end - start for part, (start, end) in ranges.items()}
    total = sum(sizes.values())
    if most is None or total <= most:
        return ranges
    shares = {part: size * most // total for part, size in sizes.items()}
    by_fraction = sorted(sizes, key=lambda part: (-(sizes[part] * most % total), part))
    for part in by_fraction[: most - sum(shares.values())]:
        shares[part] += 1
    return {part: (start, start + shares[part]) for part, (start, _) in ranges.items()}


def _position(
    state: TopicState, source: KafkaTopicSource, ranges: Ranges, before: Mapping[str, Any] | None, gaps: list[Gap]
) -> dict[str, object]:
    """Return where the next call goes on, with every gap that there ever was."""
    known = [] if before is None else before.get("gaps", [])
    return {
        "topic": source.topic,
        "cluster": state.cluster,
        "topic_id": state.topic_id,
        "offsets": {str(part): end for part, (_, end) in sorted(ranges.items())},
        "gaps": [*known, *({"partition": gap.partition, "from": gap.start, "to": gap.end} for gap in gaps)],
    }


class KafkaSource(Source):
    """Records of a topic."""

    def __init__(
        self,
        lake: Lake,
        options: IngestOptions,
        security: Security,
        state: TopicState,
        ranges: Ranges,
        position: dict[str, object],
        is_first: bool,
    ) -> None:
        assert isinstance(options.source, KafkaTopicSource)
        self.options, self.topic, self.lake = options, options.source, lake
        self.ranges = dict(sorted(ranges.items()))
        self._security, self._state, self._position, self._is_first = security, state, position, is_first
        self._reading = uuid.uuid4().int >> 65
        self._schema = _read_schema(Path(self.topic.schema)) if self.topic.schema is not None else None

    @property
    def origins(self) -> list[str]:
        """The partitions."""
        return [f"topic {self.topic.topic}, partition {part}" for part in self.ranges]

    @property
    def digests(self) -> list[str]:
        """The offsets of every partition."""
        offsets = json.dumps({str(part): list(range_) for part, range_ in self.ranges.items()})
        return [f"kafka:{self._state.cluster}:{self.topic.topic}:{offsets}"]

    @property
    def stamps(self) -> list[list[int]]:
        """A number of this reading alone.

        Offsets do not tell content: compaction, retention and transactions may leave other records between the same
        ones. So an interrupted ingestion is taken back and read again, and never resumed.
        """
        return [[self._reading]]

    @property
    def most_rows(self) -> int:
        """The number of offsets; those of transactions and compacted records hold no row."""
        return sum(end - start for start, end in self.ranges.values())

    @property
    def position(self) -> dict[str, object]:
        """The next offsets of the topic, and its gaps."""
        return self._position

    def check_unchanged(self) -> None:
        """Refuse a topic that was made anew while it was read; the connector itself refuses lost records."""
        state = topic_state(self.topic.topic, self.topic.servers, self._security)
        if (state.cluster, state.topic_id) != (self._state.cluster, self._state.topic_id):
            raise InputError(self._name, None, "was made anew while it was read", "run the command again")

    def read(self, spark: SparkSession, staging: Staging, first: int) -> UnifiedInput:
        """Copy the records to the staging folder, and split their values into columns."""
        with self._naming_errors():
            records = self._records(spark, first)
            records = self._decoded(records, self._schema) if self._schema is not None else _with_lines(records)
            _, folder, pattern = staging.folder()
            place = spark_uri(f"{staging.lake.uri}/_staging/{folder.rpartition('/')[2]}")
            records.write.mode("append").parquet(place)
        staged = spark.read.schema(records.schema).parquet(pattern)
        nested: set[str] = set()
        if self._schema is not None:
            rows, names = self._payload(staged)
        else:
            rows, names, nested = self._objects(spark, staged)
        rows, text = self._with_event_column(rows, names)
        origin = dict.fromkeys([*names, *ADDED], self._name)
        if self._schema is not None:
            text -= set(names)
        return UnifiedInput(rows, text, origin, set(), arrived="kafka_timestamp", nested=nested)

    @property
    def _name(self) -> str:
        return f"topic {self.topic.topic}"

    def _records(self, spark: SparkSession, first: int) -> DataFrame:
        """Return the records of the call as ``value``, with the columns that a topic adds and their positions."""
        from pyspark.sql import functions as F

        ends = zip(("startingOffsets", "endingOffsets"), zip(*self.ranges.values(), strict=True), strict=True)
        offsets = {
            name: json.dumps({self.topic.topic: dict(zip(map(str, self.ranges), bounds, strict=True))})
            for name, bounds in ends
        }
        reader = spark.read.format("kafka").options(
            **self._security.for_spark(),
            **offsets,
            **{
                "kafka.bootstrap.servers": self.topic.servers,
                "kafka.isolation.level": "read_committed",
                "assign": json.dumps({self.topic.topic: list(self.ranges)}),
                "failOnDataLoss": "true",
                "includeHeaders": "true",
            },
        )
        numbers = F.create_map(*(F.lit(n) for i, part in enumerate(self.ranges) for n in (part, first + i)))

        def header(entry: Column) -> Column:
            return F.struct(entry["key"].alias("key"), _as_text(entry["value"]).alias("value"))

        return reader.load().select(
            "value",
            _as_text(F.col("key")).alias("kafka_key"),
            F.to_json(F.transform("headers", header), {"ignoreNullFields": "false"}).alias("kafka_headers"),
            F.when(F.unix_millis("timestamp") >= 0, F.col("timestamp")).alias("kafka_timestamp"),
            F.element_at(numbers, F.col("partition")).alias("_file"),
            F.col("offset").alias("_row"),
            F.col("offset").alias("_line"),
        )

    def _objects(self, spark: SparkSession, staged: DataFrame) -> tuple[DataFrame, list[str], set[str]]:
        """Split JSON objects into columns of text; records whose keys no table can hold are quarantined.

        Return the rows, their columns, and those of them that hold objects or arrays.
        """
        shape = shape_of(spark, staged)
        refused = self._refused_keys(staged, shape)
        if refused:
            staged = _without_keys(staged, refused)
            shape = type(shape)([item for item in shape.fields if item.name not in refused])
        rows = split_objects(staged, shape)
        nested = {item.name for item in shape.fields if item.dataType.typeName() in ("struct", "array")}
        return rows, list(dict.fromkeys(shape.names)), nested

    def _refused_keys(self, staged: DataFrame, shape: StructType) -> dict[str, str]:
        """Return the keys that no table can hold, and why: reserved names, and all spellings of a name but one.

        The spelling stays that the stream file or the table has, else the most frequent one.
        """
        options = self.options
        times = [name for name in (options.event_column, options.event_clock_column, options.arrival_column) if name]
        stated = [*columns(self.lake, str(options.stream)).names, *(name for name, _ in options.columns), *times]
        spellings = {fold_case(column_in_table(name)): name for name in stated}
        refused: dict[str, str] = {}
        rivals: dict[str, list[str]] = {}
        for name in dict.fromkeys(shape.names):
            same = fold_case(column_in_table(name))
            if not name.strip():
                refused[name] = "has a key without a name"
            elif fold_case(name) in RESERVED or same in ADDED or (same in ALWAYS_THERE and name not in times):
                refused[name] = f"has a key that is kept for the product: {name}"
            else:
                rivals.setdefault(same, []).append(name)
        uses = _uses(staged, [name for names in rivals.values() if len(names) > 1 for name in names])
        for same, names in rivals.items():
            names.sort(key=lambda name: (-uses.get(name, 0), name))
            stored = spellings.get(same, column_in_table(names[0]))
            kept = (
                stored if stored in names else next((name for name in names if column_in_table(name) == stored), None)
            )
            for name in names:
                if name != kept:
                    refused[name] = f"has a key that is another spelling of column {stored}: {name}"
        return refused

    def _decoded(self, records: DataFrame, schema: dict[str, Any]) -> DataFrame:
        """Decode Avro values into ``_payload``.

        A mark of 16 bytes follows the value, and the schema says so: a value is read to its last byte, or it is no
        record of the schema. Confluent's frame, a zero byte and the number of a schema in four, is cut from values that
        are no record as a whole.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.avro.functions import from_avro

        mark = uuid.uuid4().bytes
        end = {"type": "fixed", "name": "LatecomerEnd", "size": len(mark)}
        fields = [{"name": "payload", "type": schema}, {"name": "end", "type": end}]
        envelope = json.dumps({"type": "record", "name": "LatecomerEnvelope", "fields": fields})

        def decoded(value: Column) -> Column:
            return from_avro(F.concat(value, F.lit(mark)), envelope, {"mode": "PERMISSIVE"})

        value = F.col("value")
        framed = F.when(F.substring(value, 1, 1) == F.lit(b"\0"), F.substring(value, 6, 1 << 30))
        try:
            rows = records.withColumns({"_plain": decoded(value), "_framed": decoded(framed)})
        except Exception as error:
            raise InputError(
                str(self.topic.schema), None, f"is not usable: {_last(error)}", "mend the schema"
            ) from None
        payload = F.when(F.col("_plain.end") == F.lit(mark), F.col("_plain.payload"))
        payload = F.coalesce(payload, F.when(F.col("_framed.end") == F.lit(mark), F.col("_framed.payload")))
        rows = rows.withColumn("_payload", payload)
        problem = F.when(value.isNull(), F.lit("has no value (a tombstone)")).when(
            F.col("_payload").isNull(), F.lit("is no Avro record of the schema")
        )
        raw = F.when(problem.isNotNull(), _hex(value))
        rows = rows.withColumns({"_problem": problem, "_raw": raw})
        return rows.select("_payload", *ADDED, *_POSITIONS)

    def _payload(self, staged: DataFrame) -> tuple[DataFrame, list[str]]:
        """Return a column for each field of the Avro schema."""
        from pyspark.sql import functions as F

        names = staged.select("_payload.*").columns
        try:
            refuse_columns(names)
        except FileProblem as problem:
            raise InputError(str(self.topic.schema), None, problem.problem, problem.remedy) from None
        clash = next((name for name in names if fold_case(name) in ADDED), None)
        if clash is not None:
            raise InputError(str(self.topic.schema), clash, "is a name that a topic adds", "rename the field")
        raw = F.coalesce("_raw", F.to_json("_payload"))
        fields = (F.col(f"_payload.{quoted(name)}").alias(name) for name in names)
        return staged.withColumn("_raw", raw).select(*fields, *ADDED, *_POSITIONS), names

    def _with_event_column(self, rows: DataFrame, names: list[str]) -> tuple[DataFrame, set[str]]:
        """Add the event columns where no value has them, and return the columns that may hold text.

        Rows without them go to quarantine. A topic that is read for the first time is refused: nothing of it is right.
        """
        from pyspark.sql import functions as F

        options, text = self.options, set(names)
        for name in filter(None, (options.event_column, options.event_clock_column)):
            if name in (*names, *ADDED):
                continue
            if names and (self._schema is not None or self._is_first):
                remedy = f"name it with event_column (has: {', '.join(names)}, {', '.join(ADDED)})"
                raise InputError(self._name, name, "no such column", remedy)
            rows = rows.withColumn(name, F.lit(None).cast("string"))
            text.add(name)
        return rows, text

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        """Report errors of the connector as problems of the topic, without secrets."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            text = error_text(error)
            if "data source: kafka" in text or "DATA_SOURCE_NOT_FOUND" in text:
                jars = "org.apache.spark:spark-sql-kafka-0-10_2.13"
                raise InputError(self._name, None, "Spark has no connector to Kafka", f"add {jars}") from None
            if is_full(error) or "kafka" not in text.lower():
                raise
            problem = f"could not be read: {self._security.without_secrets(_last(error))}"
            raise InputError(self._name, None, problem, "mend it, and run the command again") from None


def _read_schema(path: Path) -> dict[str, Any]:
    """Return an Avro schema; refuse a file that holds none of a record."""
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            str(path), None, f"cannot be read: {error.strerror}", "mend schema in the stream file"
        ) from None
    except ValueError as error:
        raise InputError(str(path), None, f"is no JSON: {error}", "give an Avro schema (.avsc)") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise InputError(str(path), None, "is no Avro schema of a record", "give one with type: record")
    return schema


def _with_lines(records: DataFrame) -> DataFrame:
    """Return records whose JSON objects are in ``line``.

    Spark reads the first object of a text, whatever follows. So the value is read as the first element of an array, and
    is whole if a mark is the second and last element.
    """
    from pyspark.sql import functions as F

    mark = uuid.uuid4().hex
    text = F.col("value").cast("string")
    within = F.concat(F.lit("["), text, F.lit(f', "{mark}"]'))
    elements = F.from_json(within, "array<string>", {"allowSingleQuotes": "false"})
    whole = (F.size(elements) == 2) & (F.element_at(elements, 2) == mark)
    line = F.btrim(text, F.lit(" \t\r\n"))
    problem = (
        F.when(F.col("value").isNull(), F.lit("has no value (a tombstone)"))
        .when(~F.is_valid_utf8(text), F.lit("is not UTF-8"))
        .when(~(F.coalesce(whole, F.lit(False)) & line.startswith("{")), F.lit("is not a JSON object"))
    )
    rows = records.withColumn("_problem", problem)
    is_object = F.col("_problem").isNull()
    lines = {"line": F.when(is_object, line), "_raw": F.when(~is_object, _as_text(F.col("value")))}
    return rows.withColumns(lines).select("line", *ADDED, *_POSITIONS)


def _uses(rows: DataFrame, names: list[str]) -> dict[str, int]:
    """Count the objects that have each of these keys."""
    from pyspark.sql import functions as F

    if not names:
        return {}
    keys = rows.select(F.explode(_keys()).alias("key")).where(F.col("key").isin(names))
    return {row["key"]: row["count"] for row in keys.groupBy("key").count().collect()}


def _keys() -> Column:
    """Return the keys of the object in ``line``; Spark's ``json_object_keys`` finds none in a line with a NaN."""
    from pyspark.sql import functions as F

    return F.map_keys(F.from_json("line", "map<string,string>"))


def _without_keys(rows: DataFrame, refused: Mapping[str, str]) -> DataFrame:
    """Quarantine the rows whose objects have one of these keys."""
    from pyspark.sql import functions as F

    reasons = [F.when(F.array_contains(_keys(), name), F.lit(reason)) for name, reason in refused.items()]
    rows = rows.withColumn("_problem", F.coalesce("_problem", *reasons))
    is_object = F.col("_problem").isNull()
    return rows.withColumns({"_raw": F.coalesce("_raw", "line"), "line": F.when(is_object, F.col("line"))})


def _as_text(value: Column) -> Column:
    """Return bytes as text if they are UTF-8, else in hexadecimal after ``0x``."""
    from pyspark.sql import functions as F

    text = value.cast("string")
    return F.when(F.is_valid_utf8(text), text).otherwise(_hex(value))


def _hex(value: Column) -> Column:
    from pyspark.sql import functions as F

    return F.concat(F.lit("0x"), F.lower(F.hex(value)))


def _last(error: BaseException) -> str:
    """Return the innermost cause that an error of Spark names, or else its first line."""
    lines = [line.strip() for line in error_text(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0]
