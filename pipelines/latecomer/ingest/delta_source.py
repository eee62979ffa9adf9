"""A Delta table as the source of a stream: the rows that versions append, in the order of the versions, once each.

The first call takes the rows that the table has; later calls take the versions since, which the ingest log keeps as the
stream's position. Files are read directly, with the schema of their version: columns may have other names in files, and
partition values are in the log alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import pyarrow as pa

from latecomer.ingest.decode_text import FileProblem
from latecomer.ingest.delta_log import (
    PHYSICAL_NAME,
    DeltaLog,
    Metadata,
    PlannedFile,
    VersionPlan,
    plan_next,
    plan_start,
    vacuumed,
)
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.sources import Source
from latecomer.ingest.staging import RESERVED, Staging, refuse_columns
from latecomer.ingest.union import UnifiedInput
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import last_position
from latecomer.lake.lake import Lake
from latecomer.lake.storage import escape_pattern
from latecomer.spark.engine import tables
from latecomer.spark.engine.columns import floor_div, quoted
from latecomer.spark.engine.session import session
from latecomer.spark.engine.store_settings import store_settings
from latecomer.spark.engine.types import WHOLE, types_of
from latecomer.specs.names import duplicates, fold_case, stored_name
from latecomer.specs.streams import TIME_UNITS, DeltaTableSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CATALOG_NAME = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`)){1,2}")
_TYPES = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|void|decimal\(\d+, ?\d+\)"
)
_WIDER = {
    "byte": {"short", "integer", "long", "double"},
    "short": {"integer", "long", "double"},
    "integer": {"long", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}
"""Type -> types that hold all its values, and as which files with it are read."""
_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Type -> digits of the decimals as which Delta may read it."""
_ID = "delta.columnMapping.id"
_NESTED = ("elementType", "keyType", "valueType")
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_ENCODED = re.compile(r"[^A-Za-z0-9_!.~'()*,;:$&+=@/\x80-\U0010ffff-]|[\x7f-\x9f\s]")
"""The characters of a path that its URI has encoded."""

Field = dict[str, Any]
"""A field of a Delta table's schema, as its JSON has it."""


def new_content(lake: Lake, options: IngestOptions, progress: Callable[[str], None]) -> Source | None:
    """Return the rows beyond the version that the last ingestion of the stream ended with; None where there are none.

    Raises
    ------
    InputError
        The table cannot be read, is another one than before, or has lost or changed rows.
    """
    source = options.source
    assert isinstance(source, DeltaTableSource)
    stream = str(options.stream)
    log = DeltaLog(_location(lake, source.table), source.table)
    position = cast("dict[str, Any] | None", last_position(lake, stream))
    if position is None:
        return DeltaSource(options, log, plan_start(log))
    if "version" not in position:
        remedy = "give the table's stream another name"
        raise InputError(f"stream {stream}", source.table, "took its rows from another kind of source before", remedy)
    table_id = log.metadata(log.current).table_id
    if position["id"] != table_id:
        problem = f"is another table than the one that stream {stream} took its rows from, {position['table']}"
        remedy = f"it may have been deleted and made anew; its identifier was {position['id']} and is {table_id}"
        remedy += "; ingest it as a stream of another name"
        raise InputError(f"table {source.table}", None, problem, remedy)
    if position["version"] == log.current:
        return None
    plan = plan_next(log, position["version"], position["time_us"], source.on_change, progress)
    return DeltaSource(options, log, plan)


def is_in_catalog(table: str) -> bool:
    """Return whether only Spark's catalog can tell where a table is."""
    return bool(_CATALOG_NAME.fullmatch(table)) and not os.path.isdir(table)


def _location(lake: Lake, table: str) -> str:
    """Return the folder of a table, or its place in a store."""
    if not is_in_catalog(table):
        return table
    from pyspark.errors import PySparkException

    try:
        detail = session(lake).sql(f"DESCRIBE DETAIL {table}").select("format", "location").collect()[0]
    except PySparkException as error:
        text = " ".join(str(error).split())[:200]
        remedy = "check its name and Spark's catalog, or write its folder or s3://BUCKET/KEY"
        raise InputError(
            f"table {table}", None, f"is neither a folder nor in Spark's catalog ({text})", remedy
        ) from None
    if detail["format"] != "delta" or not detail["location"]:
        remedy = "name a Delta table, or ingest files"
        raise InputError(f"table {table}", detail["format"], "is no Delta table", remedy)
    return str(detail["location"])


class DeltaSource(Source):
    """The rows of a range of versions."""

    def __init__(self, options: IngestOptions, log: DeltaLog, plan: VersionPlan) -> None:
        self.options, self.log, self.plan = options, log, plan
        _refuse_schema(log.name, plan.metadata)

    @property
    def origins(self) -> list[str]:
        """The table with its versions; also where none has rows, for messages about its columns."""
        return [f"{self.log.name}, {part}" for part in self.plan.parts or [f"version {self.plan.last}"]]

    @property
    def digests(self) -> list[str]:
        """The table's identifier and the versions."""
        return [self.plan.digest]

    @property
    def most_rows(self) -> int:
        """The rows in the files, as the log or the files state."""
        return sum(file.rows for file in self.plan.files)

    @property
    def position(self) -> dict[str, object]:
        """The last version, with its time: no later one is before it."""
        table = {"table": self.log.storage.uri, "id": self.plan.metadata.table_id}
        return {**table, "version": self.plan.last, "time_us": self.plan.last_us}

    def check_in_place(self) -> None:
        """Refuse files that were removed since."""
        if gone := self.log.missing(file.path for file in self.plan.files):
            raise vacuumed(self.log, gone)

    def read(self, spark: SparkSession, staging: Staging, first: int) -> UnifiedInput:
        """Read the rows; those of a version are ordered as its commit names their files."""
        from pyspark.sql import functions as F

        if not self.plan.files:
            groups = [self._empty(spark)]
        else:
            groups = [self._read_files(spark, group, first) for group in _by_schema(self.plan.files)]
        names = [[name for name in rows.columns if name not in RESERVED] for rows in groups]
        self._refuse_names(list(dict.fromkeys(name for group in names for name in group)))
        self._refuse_other_types(groups)
        rows, *others = self._with_arrivals(groups)
        for other in others:
            rows = rows.unionByName(other, allowMissingColumns=True)
        rows = rows.drop("_order").withColumn("_problem", F.lit(None).cast("string"))
        origin = {name: f"table {self.log.name}" for name in rows.columns if name not in RESERVED}
        return UnifiedInput(rows, set(), origin, set.intersection(*map(set, names)))

    # -------------------------------------------------------------------------------- read

    def _read_files(self, spark: SparkSession, group: _Group, first: int) -> DataFrame:
        """Read files that versions with one schema added."""
        from pyspark.sql import functions as F

        fields = _fields(group.metadata)
        _refuse_schema(self.log.name, group.metadata)
        partition = [field for field in fields if field["name"] in group.metadata.partition_columns]
        in_files = [field for field in fields if field not in partition and field["type"] != "void"]
        mode = group.metadata.mapping_mode
        physical: list[Field] = [_plain(field, mode) for field in in_files]
        if mode == "id":
            spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")  # for schemas with ids alone
        if group.is_changes:
            physical.append({"name": "_change_type", "type": "string", "nullable": True, "metadata": {}})
        reader = spark.read.options(**self._store_options()).option("recursiveFileLookup", "true")
        rows = reader.schema(_spark_schema(physical)).parquet(*(escape_pattern(file.path) for file in group.files))
        if group.is_changes:
            rows = rows.where(F.col("_change_type") == "insert")
        columns = []
        for field in fields:
            kind = _spark_schema([_plain(field)])[0].dataType
            if field in partition:
                column = F.element_at(F.col("_order.values"), partition.index(field) + 1).cast(kind)
            elif field in in_files:
                column = F.col(quoted(_physical_name(field, mode))).cast(kind)  # nested fields get their names
            else:
                column = F.lit(None)
            columns.append(column.alias(field["name"]))
        keys = [_physical_name(field, mode) for field in partition]
        values = [[file.values.get(key) or None for key in keys] for file in group.files]  # an empty text means null
        return self._with_places(spark, rows, columns, group.files, values, first)

    def _with_places(
        self,
        spark: SparkSession,
        rows: DataFrame,
        columns: list[Column],
        files: list[PlannedFile],
        values: list[list[str | None]],
        first: int,
    ) -> DataFrame:
        """Return `columns` of the rows with the common columns, and with the plan of their file in ``_order``."""
        from pyspark.sql import functions as F

        plans = [
            {
                "file": file.part + first,
                "before": file.before,
                "arrived_us": file.arrived_us,
                "values": file_values,
            }
            for file, file_values in zip(files, values, strict=True)
        ]
        kind = pa.struct(
            [
                ("file", pa.int32()),
                ("before", pa.int64()),
                ("arrived_us", pa.int64()),
                ("values", pa.list_(pa.string())),
            ]
        )
        uris = pa.array([file_uri(file.path) for file in files], pa.string())
        planned = tables.to_spark(spark, pa.table({"_place": uris, "_order": pa.array(plans, kind)}))
        uri = F.regexp_replace(F.col("_metadata.file_path"), "^file:/+", "/")
        data = map(F.col, map(quoted, rows.columns))
        rows = rows.select(*data, uri.alias("_place"), F.col("_metadata.row_index").alias("_row"))
        if self.plan.deleted is not None:
            rows = rows.join(self._deleted(spark, self.plan.deleted), ["_place", "_row"], "left_anti")
        joined = rows.join(F.broadcast(planned), "_place", "left")
        unplanned = F.raise_error(F.concat(F.lit("a file that was not planned: "), F.col("_place"))).cast("int")
        typed = joined.select(*columns, "_order", "_row", F.coalesce(F.col("_order.file"), unplanned).alias("_file"))
        everything = F.to_json(F.struct(*(F.col(quoted(name)) for name in typed.columns if name not in RESERVED)))
        row = F.col("_order.before") + F.col("_row")
        return typed.withColumns({"_raw": everything, "_row": row, "_line": row + 1})

    def _deleted(self, spark: SparkSession, deleted: pa.Table) -> DataFrame:
        """Return the rows that are marked as deleted, by ``_place`` and ``_row``."""
        encoded = deleted["path"].combine_chunks().dictionary_encode()
        paths = encoded.dictionary.to_pylist()
        if unplanned := set(paths) - {file.path for file in self.plan.files}:
            raise RuntimeError(f"deleted rows of a file that was not planned: {min(unplanned)}")
        uris = pa.array([file_uri(path) for path in paths], pa.string())
        return tables.to_spark(spark, pa.table({"_place": uris.take(encoded.indices), "_row": deleted["row"]}))

    def _empty(self, spark: SparkSession) -> DataFrame:
        """Return no rows, with the columns of the table."""
        from pyspark.sql import functions as F

        columns = {
            field.name: field.dataType for field in _spark_schema(list(map(_plain, _fields(self.plan.metadata))))
        }
        common = {"_order": "struct<arrived_us: bigint>", "_row": "bigint", "_line": "bigint", "_file": "int"}
        nothing = F.lit(None)
        typed = [nothing.cast(kind).alias(name) for name, kind in (columns | common | {"_raw": "string"}).items()]
        return spark.range(0).select(*typed)

    def _store_options(self) -> dict[str, str]:
        """Return what Spark must know of the table's store: the session of a local lake knows of none."""
        return {
            key.removeprefix("spark.hadoop."): value for key, value in store_settings(self.log.storage.store).items()
        }

    # -------------------------------------------------------------------------------- common columns

    def _with_arrivals(self, groups: list[DataFrame]) -> list[DataFrame]:
        """Add the times of the commits as arrival times where the table has no such column.

        Where versions of it have one, the other rows get the time as a value of its type.
        """
        from pyspark.sql import functions as F

        name = self.options.arrival_column
        known = {column for rows in groups for column in rows.columns if fold_case(column) == fold_case(name)}
        if known and known != {name}:
            return groups  # validation refuses the name
        kinds = {types_of(rows)[name] for rows in groups if name in rows.columns}
        time = F.col("_order.arrived_us")
        kind = next(iter(kinds), "timestamp")
        value = F.timestamp_micros(time)
        if kind in WHOLE:
            value = floor_div(time, TIME_UNITS[self.options.time_unit])
        elif kind == "string":
            value = F.concat(value.cast("string"), F.lit("Z"))
        elif kind not in ("timestamp", "void") and not all(name in rows.columns for rows in groups):
            problem = f"is {kind} in some versions and missing in others"
            raise InputError(
                f"table {self.log.name}: column {name}", None, problem, "name another column with arrival_column"
            )
        return [rows if name in rows.columns else rows.withColumn(name, value) for rows in groups]

    # -------------------------------------------------------------------------------- refuse

    def _refuse_names(self, names: list[str]) -> None:
        """Refuse a table without the column of event times, and names of versions that differ in case only."""
        event = self.options.event_column
        if event not in names:
            remedy = f"name the column of event times with event_column (has: {', '.join(names)})"
            raise InputError(f"table {self.log.name}", event, "no such column", remedy)
        if twice := duplicates(names):
            problem = f"is {twice[1]} in other versions; case does not tell columns apart"
            raise InputError(f"table {self.log.name}: column {twice[0]}", None, problem, "ingest it as another stream")

    def _refuse_other_types(self, groups: list[DataFrame]) -> None:
        """Refuse a column whose type differs between versions that are not read with one schema."""
        kinds: dict[str, str] = {}
        for rows in groups:
            for name, kind in types_of(rows).items():
                if name not in RESERVED and kind != "void" and kinds.setdefault(name, kind) != kind:
                    problem = f"is {kind} in some versions and {kinds[name]} in others"
                    remedy = "ingest the table as it is now as a stream of another name"
                    raise InputError(f"table {self.log.name}: column {name}", None, problem, remedy)


def file_uri(path: str) -> str:
    """Return the place of a file as Spark's metadata column has it, less the scheme of local files.

    Illegal characters of ASCII, control characters and spaces are encoded, as Java's ``URI`` does that Hadoop uses.
    """
    return _ENCODED.sub(lambda match: quote(match[0], safe=""), path)


# -------------------------------------------------------------------------------- schemas


@dataclass
class _Group:
    """Files that are read with one schema."""

    metadata: Metadata
    is_changes: bool
    files: list[PlannedFile]


def _by_schema(files: list[PlannedFile]) -> list[_Group]:
    """Group files by schema: that of a later version, where it only adds to the earlier one or widens its types."""
    groups: list[_Group] = []
    for file in files:
        for group in groups:
            if group.is_changes == file.is_changes and _extends(file.metadata, group.metadata):
                group.metadata = file.metadata
                group.files.append(file)
                break
        else:
            groups.append(_Group(file.metadata, file.is_changes, [file]))
    return groups


def _extends(new: Metadata, old: Metadata) -> bool:
    """Return whether files of the `old` metadata can be read with the schema of the `new`."""
    if new is old:
        return True
    if (new.partition_columns, new.mapping_mode) != (old.partition_columns, old.mapping_mode):
        return False
    fields: list[list[Field]] = [_fields(new), _fields(old)]
    return _fits({"type": "struct", "fields": fields[0]}, {"type": "struct", "fields": fields[1]}, new.mapping_mode)


def _fits(new: Any, old: Any, mode: str) -> bool:
    """Return whether values of the `old` type, as the JSON of a schema has it, can be read as the `new`."""
    if isinstance(new, str) or isinstance(old, str):
        return new == old or _widens(new, old)
    if new["type"] != old["type"]:
        return False
    if new["type"] != "struct":
        return all(_fits(new[key], old[key], mode) for key in ("elementType", "keyType", "valueType") if key in new)
    named = {field["name"]: field for field in new["fields"]}
    pairs = [(named.get(field["name"]), field) for field in old["fields"]]
    return all(
        later is not None
        and _physical_name(later, mode) == _physical_name(field, mode)
        and _fits(later["type"], field["type"], mode)
        for later, field in pairs
    )


def _widens(new: Any, old: Any) -> bool:
    if not (isinstance(new, str) and isinstance(old, str)):
        return False
    after, before = _DECIMAL.fullmatch(new), _DECIMAL.fullmatch(old)
    if after is None:
        return new in _WIDER.get(old, ())
    whole, scale = int(after[1]) - int(after[2]), int(after[2])
    if before is None:
        return old in _DIGITS and whole >= _DIGITS[old]
    return whole >= int(before[1]) - int(before[2]) and scale >= int(before[2])


def _physical_name(field: Field, mode: str) -> str:
    """Return the name of a field in files."""
    return str(field["name"] if mode == "none" else (field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]))


def _plain(field: Field, mode: str | None = None) -> Field:
    """Return a field without what its metadata say, with its name in the table; with a `mode`, with that in files."""
    metadata = field.get("metadata") or {}
    number = {"parquet.field.id": metadata[_ID]} if mode == "id" and _ID in metadata else {}
    name = field["name"] if mode is None else _physical_name(field, mode)
    return {"name": name, "type": _plain_type(field["type"], mode), "nullable": True, "metadata": number}


def _plain_type(kind: Any, mode: str | None) -> Any:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return {"type": "struct", "fields": [_plain(field, mode) for field in kind["fields"]]}
    return {key: _plain_type(value, mode) if key in _NESTED else value for key, value in kind.items()}


def _fields(metadata: Metadata) -> list[Field]:
    return cast("list[Field]", json.loads(metadata.schema)["fields"])


def _spark_schema(fields: list[Field]) -> StructType:
    from pyspark.sql.types import StructType

    return StructType.fromJson({"type": "struct", "fields": fields})


def _refuse_schema(table: str, metadata: Metadata) -> None:
    """Refuse names and types that streams do not have."""
    fields = _fields(metadata)
    try:
        refuse_columns([field["name"] for field in fields])
    except FileProblem as problem:
        raise InputError(f"table {table}", None, problem.problem, problem.remedy) from None
    for field in fields:
        where = f"table {table}: column {field['name']}"
        for kind, name in _nested(field["type"], None):
            if not _TYPES.fullmatch(kind):
                raise InputError(where, kind, "is a type that streams do not have", "store the column as text")
            # unlike a column, a field inside one keeps its name
            if name is not None and stored_name(name) != name:
                raise InputError(where, name, "is a name of a field that tables do not take", "rename it")
        if field["name"] in metadata.partition_columns and field["type"] == "binary":
            raise InputError(where, None, "is binary, and the table is partitioned by it", "partition by another one")


def _nested(kind: Any, name: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield all types without parts inside a type, with the names of the fields that they are of."""
    if isinstance(kind, str):
        yield kind, name
        return
    for field in kind.get("fields", ()):
        yield "string", field["name"]
        yield from _nested(field["type"], field["name"])
    for key in _NESTED:
        if key in kind:
            yield from _nested(kind[key], None)
