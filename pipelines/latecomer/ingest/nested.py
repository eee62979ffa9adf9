"""Give nested values of JSON, which are read as text, the types of structs and arrays.

Spark's variants tell which values meet at a place: a place where objects meet other values, or numbers meet text, is a
conflict, and its values stay JSON text, as those of a whole column do. Leaves are read as text first and converted by
the rules below, since Spark's own JSON reader rounds to a decimal's digits, and drops keys that a type does not have.

- Whole numbers are ``bigint``, or ``decimal(38,0)`` where one of them does not fit.
- Whole numbers beside fractions are ``double``, unless one of them would be rounded: then the leaf is text.
- Times are text.
- A field without any value, and an array or object that is always empty, has no type yet and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING, TypeAlias

from latecomer.ingest.column_types import column_in_table
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.read_text import case_sensitive
from latecomer.ingest.union import UnifiedInput
from latecomer.spark.engine.columns import instant, quoted, with_columns
from latecomer.spark.engine.decimals import digits_of
from latecomer.spark.engine.types import FLOATING, WHOLE, sql_of
from latecomer.specs.names import duplicates, fold_case, stored_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

Path: TypeAlias = tuple[str | None, ...]
"""A place in a type: names of fields, and None for the elements of an array."""
NESTED = ("array<", "map<", "struct<")
"""Beginnings of the names of nested types."""
_SHOWN = 200
"""Most characters of a value in the reason of a quarantined row."""
_SPECIAL = r'(?<!\\)"(NaN|-?Infinity)"(?!\s*:)'
"""Numbers outside JSON, which arrive in quotes."""
_NUMBER = r"^-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?$"
_EXACT_TO = {"float": 1 << 24, "double": 1 << 53}
"""The bound up to which these types hold every whole number exactly."""
_SURE_DIGITS = 15
"""A ``double`` holds every whole number of so many digits."""


@dataclass(frozen=True)
class NestedColumns:
    """Rows whose columns of JSON text have become structs and arrays, where they have a type.

    Attributes
    ----------
    rows
        All rows. A row with a value that does not fit has the reason in ``_problem``, and null in its place.
    types
        Spark's names of the types of the columns that are no text any more.
    untyped
        Columns whose values are all empty objects or arrays; they are text still.
    fields
        Dotted paths of fields without a value, which the types leave out; ``[]`` stands for the elements of an array.
    """

    rows: DataFrame
    types: dict[str, str]
    untyped: list[str]
    fields: list[str]


def type_columns(
    unified: UnifiedInput, existing: Mapping[str, Mapping[str, str]], options: IngestOptions
) -> UnifiedInput:
    """Return the input of a call with nested columns in place of JSON text.

    A column whose values are all empty loses them: it has no type yet, like a column without a value.

    Parameters
    ----------
    existing
        Columns and types of the tables of the call's streams.
    """
    from pyspark.sql import functions as F

    stored: dict[str, set[str]] = {}
    for columns in existing.values():
        for outer, stored_as in columns.items():
            stored.setdefault(outer, set()).add(stored_as)
    known = {name: next(iter(kinds)) for name, kinds in stored.items() if len(kinds) == 1}
    several = {name for name, kinds in stored.items() if len(kinds) > 1}  # refused where types are resolved
    declared = dict(options.columns)
    times_and_streams = {options.event_column, options.arrival_column, options.by}
    names = {name: column_in_table(name) for name in sorted(unified.text - times_and_streams)}
    required = {name: declared.get(name) or known.get(outer) for name, outer in names.items() if outer not in several}
    candidates = [
        name for name, kind in required.items()
        if (name in unified.nested if kind is None else kind.startswith(NESTED))
    ]  # fmt: skip
    if not candidates:
        return replace(unified, nested=set())
    of_type = {name: kind for name in candidates if (kind := required[name]) is not None}
    closed = declared.keys() if options.strict else ()
    done = type_nested(unified.rows, candidates, of_type, closed=closed, zone=options.timezone)
    rows = with_columns(done.rows, {name: F.lit(None).cast("string") for name in done.untyped})
    texts, nested = unified.text - done.types.keys(), set(done.types)
    return replace(unified, rows=rows, text=texts, nested=nested, untyped=done.fields)


def type_nested(
    rows: DataFrame, names: Sequence[str], known: Mapping[str, str], *, closed: Collection[str] = (), zone: str = "UTC"
) -> NestedColumns:
    """Infer the types of columns of JSON text, and convert the columns to them.

    Parameters
    ----------
    rows
        Rows with ``_problem``. Rows that have one decide no type.
    names
        Columns of text in which every value is a JSON object or array.
    known
        Types that some of them have already. Values must fit them; fields that they lack are added.
    closed
        Columns to whose type no field is added; a row with another field does not fit.
    zone
        The zone of times that name none, for known types that hold times.

    Returns
    -------
    NestedColumns
        A column stays text if its values have no common type.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    bases = {name: T.DataType.fromDDL(kind) for name, kind in known.items()}
    usable = rows.where(F.col("_problem").isNull())
    for name, base in bases.items():  # a value that does not fit its type adds no field to it
        parsed = _ParsedColumn(name, base, base, zone)
        fitting = F.when(~parsed.is_misfit, F.col(quoted(name)))
        usable = parsed.added(usable).withColumn(name, fitting).drop(parsed.column)
    with case_sensitive(rows.sparkSession):
        shapes = _shapes(usable, names)
    types: dict[str, DataType] = {}
    untyped = []
    for name in names:
        kind = _final_type(shapes[name]) if name not in bases else _grown(shapes[name], bases[name])
        if kind is None:
            untyped.append(name)
        elif not isinstance(kind, T.StringType):
            types[name] = kind
    types = _exact(usable, types, shapes, bases, zone)
    final = {name: bases[name] if name in closed and name in bases else kind for name, kind in types.items()}
    for name, kind in types.items():
        clashing = frozenset[str]()
        if name in bases:  # look for the fields that cannot be added too
            kind = _grown(shapes[name], bases[name], every=True)
            clashing = frozenset(_clashing(shapes[name], bases[name]))
        parsed = _ParsedColumn(name, kind, final[name], zone, clashing)
        text = F.col(quoted(name))
        reason = F.concat(F.lit(f"column {name} is not {sql_of(final[name])}: "), F.substring(text, 1, _SHOWN))
        problem = F.coalesce("_problem", F.when(parsed.is_misfit, reason))
        value = F.when(~parsed.is_misfit, parsed.typed)
        rows = parsed.added(rows).withColumns({"_problem": problem, name: value}).drop(parsed.column)
    fields = [path for name, kind in final.items() for path in _left_out(shapes[name], kind, name)]
    return NestedColumns(rows, {name: sql_of(kind) for name, kind in final.items()}, untyped, fields)


# ------------------------------------------------------------------------------------------------------------- shapes


def _shapes(rows: DataFrame, names: Sequence[str]) -> dict[str, DataType]:
    """Return the merged shape of the values of each column, as variants have it."""
    from pyspark.sql import functions as F

    def merged(variant: Column, name: str) -> Column:
        return F.call_function("schema_of_variant_agg", variant).alias(name)

    def without_special(text: Column) -> Column:
        return F.try_parse_json(F.regexp_replace(text, _SPECIAL, "null"))

    texts = {name: F.col(quoted(name)) for name in names}
    plain = [merged(without_special(text), f"p{i}") for i, text in enumerate(texts.values())]
    special = [F.count_if(text.rlike(_SPECIAL)).alias(f"n{i}") for i, text in enumerate(texts.values())]
    counted = rows.agg(*plain, *special).collect()[0]
    shapes = {name: _shape(counted[f"p{i}"]) for i, name in enumerate(names)}
    again = [name for i, name in enumerate(names) if counted[f"n{i}"]]
    if again:
        written = [merged(F.try_parse_json(texts[name]), f"p{i}") for i, name in enumerate(again)]
        counted = rows.agg(*written).collect()[0]
        for i, name in enumerate(again):
            shapes[name] = _with_special_numbers(shapes[name], _shape(counted[f"p{i}"]))
    return shapes


def _with_special_numbers(shape: DataType, written: DataType) -> DataType:
    """Return a shape in which ``NaN`` and infinities count as numbers where they stand beside other numbers.

    Parameters
    ----------
    shape, written
        The shape of the values without them, and with them as text.
    """
    from pyspark.sql import types as T

    if isinstance(shape, T.ArrayType) and isinstance(written, T.ArrayType):
        return T.ArrayType(_with_special_numbers(shape.elementType, written.elementType))
    if isinstance(shape, T.StructType) and isinstance(written, T.StructType):
        inner = {field.name: field.dataType for field in shape}
        return T.StructType(
            [
                T.StructField(field.name, _with_special_numbers(inner.get(field.name, T.NullType()), field.dataType))
                for field in written
            ]
        )
    is_number = isinstance(shape, (T.LongType, T.DecimalType, T.DoubleType))
    return T.DoubleType() if is_number and isinstance(written, T.VariantType) else written


def _shape(text: str) -> DataType:
    """Parse the name of a variant's schema, such as ``OBJECT<a: BIGINT, `b c`: ARRAY<VARIANT>>``."""
    kind, rest = _parse_shape(text)
    assert not rest, text
    return kind


def _parse_shape(text: str) -> tuple[DataType, str]:
    """Return the shape that a text begins with, and what follows it."""
    from pyspark.sql import types as T

    simple = {
        "VOID": T.NullType, "VARIANT": T.VariantType, "BIGINT": T.LongType, "DOUBLE": T.DoubleType,
        "STRING": T.StringType, "BOOLEAN": T.BooleanType,
    }  # fmt: skip
    size = next((place for place, sign in enumerate(text) if not sign.isalpha()), len(text))
    word, rest = text[:size], text[size:]
    if word == "ARRAY":
        inner, rest = _parse_shape(rest[1:])
        return T.ArrayType(inner), rest[1:]
    if word == "DECIMAL":
        digits, _, rest = rest[1:].partition(")")
        precision, scale = map(int, digits.split(","))
        return T.DecimalType(precision, scale), rest
    if word != "OBJECT":
        return simple[word](), rest
    fields, rest = [], rest[1:]
    while not rest.startswith(">"):
        name, rest = _field_name(rest.removeprefix(", "))
        inner, rest = _parse_shape(rest.removeprefix(": "))
        fields.append(T.StructField(name, inner))
    return T.StructType(fields), rest[1:]


def _field_name(text: str) -> tuple[str, str]:
    """Return the name, which may be in back-ticks, that a text begins with, and what follows it."""
    if not text.startswith("`"):
        name, colon, rest = text.partition(":")
        return name, colon + rest
    place = 1
    while text[place] != "`" or text[place : place + 2] == "``":
        place += 2 if text[place] == "`" else 1
    return text[1:place].replace("``", "`"), text[place + 1 :]


# -------------------------------------------------------------------------------------------------------------- types


def _final_type(shape: DataType) -> DataType | None:
    """Return the type of values of a shape; None where no value has one, a string where they have no common one."""
    from pyspark.sql import types as T

    if isinstance(shape, T.StructType):
        if any(_is_unstorable(name) for name in shape.names) or duplicates(shape.names):
            return T.StringType()
        typed_fields = ((field.name, _final_type(field.dataType)) for field in shape)
        fields = [T.StructField(name, kind) for name, kind in typed_fields if kind is not None]
        return T.StructType(fields) if fields else None
    if isinstance(shape, T.ArrayType):
        inner = _final_type(shape.elementType)
        if inner is None:
            return None
        # elements without a common type make the array text, not its elements
        is_mixed = isinstance(inner, T.StringType) and not isinstance(shape.elementType, T.StringType)
        return T.StringType() if is_mixed else T.ArrayType(inner)
    if isinstance(shape, T.DecimalType):
        return T.LongType() if shape.scale == 0 else T.DoubleType()
    if isinstance(shape, T.NullType):
        return None
    return T.StringType() if isinstance(shape, T.VariantType) else shape


def _left_out(shape: DataType, kind: DataType, path: str) -> Iterator[str]:
    """Yield the dotted paths of the fields of a shape that have no type yet, beside those of a type."""
    from pyspark.sql import types as T

    if isinstance(shape, T.ArrayType) and isinstance(kind, T.ArrayType):
        yield from _left_out(shape.elementType, kind.elementType, f"{path}[]")
    elif isinstance(shape, T.StructType) and isinstance(kind, T.StructType):
        typed = {field.name: field.dataType for field in kind}
        for field in shape:
            if field.name in typed:
                yield from _left_out(field.dataType, typed[field.name], f"{path}.{field.name}")
            elif _final_type(field.dataType) is None:
                yield f"{path}.{field.name}"


def _is_unstorable(name: str) -> bool:
    return not name or stored_name(name) != name


def _grown(shape: DataType, base: DataType, *, every: bool = False) -> DataType:
    """Return a type with the fields that a shape has beside its own, as far as a table can hold them.

    With `every`, fields are added too whose names no table takes, but none that differs from another in case only.
    """
    from pyspark.sql import types as T

    if isinstance(base, T.ArrayType) and isinstance(shape, T.ArrayType):
        return T.ArrayType(_grown(shape.elementType, base.elementType, every=every))
    if isinstance(base, T.MapType) and isinstance(shape, T.StructType):
        values = reduce(lambda values, field: _grown(field.dataType, values, every=every), shape, base.valueType)
        return T.MapType(base.keyType, values)
    if not (isinstance(base, T.StructType) and isinstance(shape, T.StructType)):
        return base
    fields = {field.name: field.dataType for field in base}
    taken = set(map(fold_case, fields))
    for field in shape:
        if field.name in fields:
            fields[field.name] = _grown(field.dataType, fields[field.name], every=every)
        elif fold_case(field.name) not in taken and (every or not _is_unstorable(field.name)):
            kind = T.StringType() if _is_unstorable(field.name) else _final_type(field.dataType)
            fields |= {} if kind is None else {field.name: kind}
            taken.add(fold_case(field.name))
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def _clashing(shape: DataType, base: DataType) -> Iterator[str]:
    """Yield the names of fields of a shape that `_grown` cannot add, because they differ from others in case only."""
    from pyspark.sql import types as T

    if isinstance(base, T.ArrayType) and isinstance(shape, T.ArrayType):
        yield from _clashing(shape.elementType, base.elementType)
    elif isinstance(base, T.MapType) and isinstance(shape, T.StructType):
        for field in shape:
            yield from _clashing(field.dataType, base.valueType)
    elif isinstance(base, T.StructType) and isinstance(shape, T.StructType):
        taken = {fold_case(name): name for name in base.names}
        for field in shape:
            if taken.setdefault(fold_case(field.name), field.name) != field.name:
                yield field.name
            elif field.name in base.names:
                yield from _clashing(field.dataType, base[field.name].dataType)


# ------------------------------------------------------------------------------------------------------------- numbers


def _exact(
    rows: DataFrame,
    types: Mapping[str, DataType],
    shapes: Mapping[str, DataType],
    bases: Mapping[str, DataType],
    zone: str,
) -> dict[str, DataType]:
    """Return types in which every number is exact; a number that no numeric type holds beside the others is text."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    doubtful = [
        (name, path, options)
        for name, kind in types.items()
        for path, options in _doubtful(shapes[name], kind, bases.get(name))
    ]
    if not doubtful:
        return dict(types)
    misses = []
    for name in dict.fromkeys(name for name, _, _ in doubtful):
        rows = _ParsedColumn(name, types[name], types[name], zone).added(rows)
    for place, (name, path, options) in enumerate(doubtful):
        value = _ParsedColumn(name, types[name], types[name], zone).raw
        for nth, option in enumerate(options):
            miss = _misses_at(value, path, option, zone)
            misses.append(F.coalesce(F.max(miss), F.lit(False)).alias(f"m{place}_{nth}"))
    missed = rows.agg(*misses).collect()[0]
    exact = dict(types)
    for place, (name, path, options) in enumerate(doubtful):
        fitting = (option for nth, option in enumerate(options) if not missed[f"m{place}_{nth}"])
        exact[name] = _replaced(exact[name], path, next(fitting, T.StringType()))
    return exact


def _doubtful(shape: DataType, kind: DataType, base: DataType | None) -> Iterator[tuple[Path, list[DataType]]]:
    """Yield the places of numbers that may not be exact in a type, with the types to try in their order."""
    from pyspark.sql import types as T

    if isinstance(shape, T.StructType) and isinstance(kind, T.StructType):
        for field in shape:
            inner = base[field.name].dataType if isinstance(base, T.StructType) and field.name in base.names else None
            if field.name in kind.names:
                for path, options in _doubtful(field.dataType, kind[field.name].dataType, inner):
                    yield (field.name, *path), options
    elif isinstance(shape, T.ArrayType) and isinstance(kind, T.ArrayType):
        inner = base.elementType if isinstance(base, T.ArrayType) else None
        for path, options in _doubtful(shape.elementType, kind.elementType, inner):
            yield (None, *path), options
    elif base is None and isinstance(shape, T.DecimalType) and shape.scale == 0:
        yield (), [T.LongType(), T.DecimalType(38, 0)]
    elif base is None and isinstance(shape, T.DecimalType) and shape.precision - shape.scale <= _SURE_DIGITS:
        return
    elif base is None and isinstance(shape, (T.DecimalType, T.DoubleType)):
        yield (), [T.DoubleType()]


def _misses_at(value: Column, path: Path, kind: DataType, zone: str) -> Column:
    """Return whether a leaf below a raw value does not fit a type."""
    from pyspark.sql import functions as F

    if not path:
        return value.isNotNull() & _leaf(value, kind, zone).isNull()
    head, *rest = path
    if head is None:
        return F.exists(value, lambda item: _misses_at(item, tuple(rest), kind, zone))
    return _misses_at(value.getField(head), tuple(rest), kind, zone)


def _replaced(kind: DataType, path: Path, leaf: DataType) -> DataType:
    """Return a type with another leaf at a place."""
    from pyspark.sql import types as T

    if not path:
        return leaf
    head, *rest = path
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_replaced(kind.elementType, tuple(rest), leaf))
    assert isinstance(kind, T.StructType)
    return T.StructType(
        [
            T.StructField(
                field.name, _replaced(field.dataType, tuple(rest), leaf) if field.name == head else field.dataType
            )
            for field in kind
        ]
    )


# -------------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True)
class _ParsedColumn:
    """The values of a column of JSON text, parsed with the structure of a type and with text as leaves.

    Attributes
    ----------
    name
        The column of text.
    kind
        A type that has every field which is looked for.
    final
        The type of the values; a row with a value in another field of `kind` does not fit.
    zone
        The zone of times that name none.
    clashing
        Names of further fields with which a row does not fit: `kind` has a field that differs in case only.
    """

    name: str
    kind: DataType
    final: DataType
    zone: str
    clashing: frozenset[str] = frozenset()

    @property
    def column(self) -> str:
        """The name of the column that holds the parsed values."""
        return f"_nested {self.name}"

    @property
    def raw(self) -> Column:
        """The parsed values with text as leaves."""
        from pyspark.sql import functions as F

        return F.col(quoted(self.column)).getField("v")

    def added(self, rows: DataFrame) -> DataFrame:
        """Return rows with `column`."""
        from pyspark.sql import functions as F
        from pyspark.sql import types as T

        schema = T.StructType().add("v", _with_text_leaves(self.kind)).add("_bad", "string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_bad"}
        wrapped = F.concat(F.lit('{"v":'), F.col(quoted(self.name)), F.lit("}"))
        return rows.withColumn(self.column, F.from_json(wrapped, schema, options))

    @cached_property
    def is_misfit(self) -> Column:
        """Whether a value does not fit; false where there is none."""
        from pyspark.sql import functions as F

        text, parsed = F.col(quoted(self.name)), F.col(quoted(self.column))
        variant = F.try_parse_json(text)  # null where an object has a key twice
        problems = [variant.isNull(), self.raw.isNull(), parsed.getField("_bad").isNotNull()]
        problems += _misses(self.raw, self.kind, self.final, self.zone)
        if self.clashing:
            names = "|".join(re.escape(name.replace("`", "``")) for name in sorted(self.clashing))
            problems.append(F.schema_of_variant(variant).rlike(f"[<, `]({names})`?: "))
        return text.isNotNull() & reduce(or_, (F.coalesce(problem, F.lit(False)) for problem in problems))

    @property
    def typed(self) -> Column:
        """The values in their type."""
        return _converted(self.raw, self.final, self.zone)


def _with_text_leaves(kind: DataType) -> DataType:
    """Return the structure of a type with text as leaves."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, _with_text_leaves(field.dataType)) for field in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_with_text_leaves(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(T.StringType(), _with_text_leaves(kind.valueType))
    return T.StringType()


def _misses(value: Column, kind: DataType, final: DataType, zone: str) -> list[Column]:
    """Return conditions, one of them true where a raw value does not fit; it is null or false elsewhere."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    def some(items: Column, kind: DataType, final: DataType) -> list[Column]:
        if not _misses(F.lit(None), kind, final, zone):
            return []
        return [F.exists(items, lambda item: _any(_misses(item, kind, final, zone)))]

    if isinstance(kind, T.StructType) and isinstance(final, T.StructType):
        problems = []
        for field in kind:
            inner = value.getField(field.name)
            if field.name in final.names:
                problems += _misses(inner, field.dataType, final[field.name].dataType, zone)
            else:
                problems.append(inner.isNotNull())
        return problems
    if isinstance(kind, T.ArrayType) and isinstance(final, T.ArrayType):
        return some(value, kind.elementType, final.elementType)
    if isinstance(kind, T.MapType) and isinstance(final, T.MapType):
        return some(F.map_values(value), kind.valueType, final.valueType)
    return [] if isinstance(final, T.StringType) else [value.isNotNull() & _leaf(value, final, zone).isNull()]


def _any(conditions: Sequence[Column]) -> Column:
    from pyspark.sql import functions as F

    return reduce(or_, (F.coalesce(condition, F.lit(False)) for condition in conditions))


def _converted(value: Column, kind: DataType, zone: str) -> Column:
    """Return a raw value in a type."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        fields = (_converted(value.getField(field.name), field.dataType, zone).alias(field.name) for field in kind)
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        return F.transform(value, lambda item: _converted(item, inner, zone))
    if isinstance(kind, T.MapType):
        inner = kind.valueType
        return F.transform_values(value, lambda _, item: _converted(item, inner, zone))
    return _leaf(value, kind, zone)


def _leaf(value: Column, kind: DataType, zone: str) -> Column:
    """Return a raw leaf in a type; null where it does not fit."""
    from pyspark.sql import functions as F

    name = kind.simpleString()
    bare = F.when(value.rlike(f"^{_SPECIAL}$"), F.replace(value, F.lit('"'), F.lit(""))).otherwise(value)
    if name == "string":
        return bare
    if name == "boolean":
        return F.when(value == "true", F.lit(True)).when(value == "false", F.lit(False))
    if name in WHOLE:
        whole = F.regexp_extract(value, "^-?[0-9]+", 0)
        return F.when(value.rlike("^-?[0-9]+([.]0+)?$"), whole.try_cast(name))
    if name in FLOATING:
        number = bare.try_cast(name)
        size = F.abs(value.try_cast("decimal(38,0)"))
        is_rounded = value.rlike("^-?[0-9]+$") & ~F.coalesce(size <= _EXACT_TO[name], F.lit(False))
        is_number = value.rlike(_NUMBER) & ~is_rounded & (F.abs(number) < float("inf"))
        return F.when(is_number | bare.rlike("^(NaN|-?Infinity)$"), number)
    if name.startswith("decimal"):
        precision, scale = digits_of(name)
        number, finest = value.try_cast(name), value.try_cast(f"decimal(38,{38 - precision + scale})")
        longer = value.rlike(rf"^[^eE]*[.][0-9]{{{scale}}}0*[1-9]")
        return F.when(value.rlike(_NUMBER) & (number == finest) & ~longer, number)
    if name == "date":
        return F.when(value.rlike("^[0-9]{4}-[0-9]{2}-[0-9]{2}$"), value.try_cast("date"))
    if name in ("timestamp", "timestamp_ntz"):
        return instant(value, "string", zone).cast(name)
    return F.lit(None).cast(kind)
