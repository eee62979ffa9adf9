"""Resolve the type of every payload column of a call: as it is declared, as its table has it, or as its values tell.

Rows that go to quarantine for another reason decide no type. A declared type wins. A column of text gets the type that
its stream's table has, if a value fits it; else the narrowest type that holds its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from latecomer.ingest.arrow_rows import collect_mapped, one_chunk
from latecomer.ingest.assumptions import remedy_of_text
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.staging import RESERVED
from latecomer.ingest.union import WIDENS, UnifiedInput
from latecomer.ingest.values.inference import TextProfile, explain, infer, merge, profile, wider
from latecomer.lake.errors import InputError
from latecomer.spark.engine.columns import quoted
from latecomer.spark.engine.types import types_of
from latecomer.specs.column_types import is_number, widen
from latecomer.specs.errors import did_you_mean, quantity
from latecomer.specs.expressions import ALWAYS_THERE
from latecomer.specs.names import fold_case, stored_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass
class ColumnTypes:
    """The types of the payload columns of a call.

    Attributes
    ----------
    types
        Spark's names of the types, by the columns' names in the files. A column without a value has none, and is left
        out.
    widened
        Columns of the table that need a wider type than it has, with that type, by their names in the table.
    notes
        Sentences about what was assumed, or what a person may want to declare.
    inferred
        By the names in the files, why columns that got their types from their values are text although many of their
        values are not; empty for the other columns.
    empty
        Columns without a value, by their names in the files.
    """

    types: dict[str, str]
    widened: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    inferred: dict[str, str] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)


def column_in_table(name: str) -> str:
    """Return the name that a payload column of a file has in its table."""
    return "source_seq" if name == "seq" else stored_name(name)


def resolve_types(
    unified: UnifiedInput,
    count: Callable[[list[str], Mapping[str, str]], Mapping[str, TextProfile]],
    existing: Mapping[str, Mapping[str, str]],
    options: IngestOptions,
    origins: list[str],
    obstacle: Callable[[str, str], str | None],
) -> ColumnTypes:
    """Return the type of every payload column of the call.

    Parameters
    ----------
    count
        Counts the texts of columns, of the rows without a problem so far. Its second argument are the types that
        columns are to have, where known.
    existing
        Columns and types of the tables of the call's streams.
    origins
        The names of the files or other parts of the call, for messages.
    obstacle
        Returns why a column of the table cannot become wider, by its name and the wider type; None where it can.

    Raises
    ------
    InputError
        No value of a column fits the type that its table has, the table cannot hold a column's name beside the names
        that it has, or a column is not declared where all must be.
    """
    where = origins[0] + (f" and {len(origins) - 1} more" if len(origins) > 1 else "")
    skip = {*RESERVED, options.event_column, options.event_clock_column, options.arrival_column, options.by}
    given = {name: kind for name, kind in types_of(unified.rows).items() if name not in skip}
    _refuse_clashing_names(unified, given, existing)
    declared = _declared(unified, given, options)
    stored = _stored(unified, given, existing)
    result = ColumnTypes({})
    for name, kind in declared.items():
        if name in unified.nested:
            continue
        if name in stored and stored[name] != kind:
            stream = options.stream or options.by
            raise InputError(
                f"{unified.origin[name]}: column {name}",
                None,
                f"is declared as {kind}, and the table's is {stored[name]}",
                f"change the table: latecomer ingest --retype {stream} {column_in_table(name)}={kind}",
            )
    required = stored | declared
    texts = [name for name, kind in given.items() if name in unified.text and kind == "string"]
    counted = count(texts, required) if texts else {}
    for name, kind in given.items():
        if name in unified.nested:
            known: str | None = kind
        elif name not in texts:
            known = _typed_column(name, kind, required.get(name), where, result, obstacle)
        elif name in declared:
            known = declared[name]
        elif name in stored:
            known = _stored_text(name, stored[name], counted[name], where, result, obstacle)
        else:
            known = infer(counted[name])
            if known is not None:
                why = explain(counted[name])
                result.inferred[name] = "" if why is None else why[0]
                if why is not None:
                    remedy = remedy_of_text(column_in_table(name), why[1], options.stream)
                    result.notes.append(f"{name}: string, {why[0]}; {remedy}")
        if known is not None:
            result.types[name] = known
        else:
            result.empty.append(name)
        if name in unified.nested and name not in declared and not _is_stored(name, existing):
            result.inferred[name] = ""
    return result


def _is_stored(name: str, existing: Mapping[str, Mapping[str, str]]) -> bool:
    return any(column_in_table(name) in columns for columns in existing.values())


def _declared(unified: UnifiedInput, given: Iterable[str], options: IngestOptions) -> dict[str, str]:
    """Return the declared types of the columns that there are; refuse undeclared columns where all must be declared."""
    declared = {fold_case(name): kind for name, kind in options.columns}
    if options.strict:
        other = next((name for name in given if fold_case(name) not in declared), None)
        if other is not None:
            remedy = did_you_mean(other, [name for name, _ in options.columns])
            raise InputError(
                f"{unified.origin[other]}: column {other}",
                None,
                "is not declared, and strict: true allows no other",
                remedy,
            )
    return {name: declared[fold_case(name)] for name in given if fold_case(name) in declared}


def _stored(unified: UnifiedInput, given: Iterable[str], existing: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the types that the tables of the call's streams have, by the names in the files."""
    stored: dict[str, str] = {}
    owner: dict[str, str] = {}
    for stream, columns in existing.items():
        for name in given:
            kind = columns.get(column_in_table(name))
            if kind is None or name in unified.nested:
                continue
            if stored.setdefault(name, kind) != kind:
                # streams of one call that disagree about a column keep their types only if fed one by one
                raise InputError(
                    f"{unified.origin[name]}: column {name}",
                    None,
                    f"is {kind} in stream {stream} and {stored[name]} in stream {owner[name]}",
                    "ingest the streams apart with --stream",
                )
            owner.setdefault(name, stream)
    return stored


def _typed_column(
    name: str,
    kind: str,
    required: str | None,
    where: str,
    result: ColumnTypes,
    obstacle: Callable[[str, str], str | None],
) -> str | None:
    """Return the type of a column that its file types; `required` is the declared or the table's."""
    if required is None or kind == required:
        return None if kind == "void" else kind
    if kind == "void" or (kind, required) in WIDENS:
        return required
    if not (is_number(kind) and is_number(required)):
        raise InputError(
            f"{where}: column {name}",
            kind,
            f"has changed its type: the table's is {required}, the file's {kind}",
            "rename the column, mend the file, or declare its type under columns in the stream file",
        )
    wide = widen(required, kind)
    why = obstacle(column_in_table(name), wide) if wide is not None else None
    if wide is not None and wide != required and why is None:
        result.widened[column_in_table(name)] = wide
        result.notes.append(f"column {name} becomes {wide}; it was {required}, and is {kind} in the file")
        return wide
    result.notes.append(f"column {name} is {kind} in the file; a row whose value is no {required} goes to quarantine")
    return required


def _stored_text(
    name: str,
    stored: str,
    counted: TextProfile,
    where: str,
    result: ColumnTypes,
    obstacle: Callable[[str, str], str | None],
) -> str:
    """Return the type of a text column whose table has it already, widened where values need and allow that."""
    if is_number(stored) and counted.count("zero"):
        raise InputError(
            f"{where}: column {name}",
            None,
            f"has values with leading zeros, which the table's {stored} cannot keep",
            "rename the column, or write numbers without them",
        )
    if counted.fits == counted.values:
        return stored
    wide, why = wider(stored, counted), None
    if wide is not None:
        why = obstacle(column_in_table(name), wide)
        if why is None:
            result.widened[column_in_table(name)] = wide
            result.notes.append(f"column {name} becomes {wide}; it was {stored}, which does not hold {counted.odd!r}")
            return wide
    if not counted.fits:
        raise InputError(
            f"{where}: column {name}",
            counted.odd,
            f"has changed its type: the table's is {stored}, the file's {infer(counted)}",
            "rename the column, mend the file, or change the table's type with --retype",
        )
    misfits = counted.values - counted.fits
    result.notes.append(
        f"{name}: {quantity(misfits, 'value')} of {counted.values:,} are no {stored} and went to quarantine: "
        f"{counted.odd!r}"
        + (
            f"; the column does not become {wide}, because it {why}"
            if wide is not None
            else "; name marks of no value under null_values, or change the type with --retype"
        )
    )
    return stored


# -------------------------------------------------------------------------------------------------------------- counts


def count_texts(
    rows: DataFrame, names: list[str], kinds: Mapping[str, str], options: IngestOptions
) -> dict[str, TextProfile]:
    """Count the texts of columns, over all rows; `kinds` are the types that columns are to have, where known."""
    from pyspark.sql import types as T

    count = partial(
        _count,
        names=names,
        kinds={name: kinds.get(name) for name in names},
        zone=options.timezone,
        decimal_comma=options.layout.decimal_comma,
    )
    schema = T.StructType().add("name", T.StringType()).add("counts", T.StringType())
    counts = collect_mapped(rows.select(*map(quoted, names)), count, schema)
    parts: dict[str, list[TextProfile]] = {name: [] for name in names}
    for name, text in zip(counts["name"].to_pylist(), counts["counts"].to_pylist(), strict=True):
        parts[name].append(TextProfile.from_json(text))
    return {name: merge(of_column) for name, of_column in parts.items()}


def _count(
    table: pa.Table, names: list[str], kinds: Mapping[str, str | None], zone: str, decimal_comma: bool
) -> pa.Table:
    profiles = [profile(one_chunk(table, name), kinds[name], zone, decimal_comma).to_json() for name in names]
    return pa.table({"name": pa.array(names, pa.string()), "counts": pa.array(profiles, pa.string())})


# --------------------------------------------------------------------------------------------------------------- names


def _refuse_clashing_names(
    unified: UnifiedInput, names: Iterable[str], existing: Mapping[str, Mapping[str, str]]
) -> None:
    """Refuse names that no table can hold beside the names that it has: tables do not distinguish columns by case.

    This comes before anything is planned, so nothing is half written.
    """
    taken: dict[str, str] = {}
    for name in names:
        clash = _clash(column_in_table(name), taken, existing)
        if clash is not None:
            raise InputError(f"{unified.origin[name]}: column {name}", None, *clash)
        taken[fold_case(column_in_table(name))] = name


def _clash(name: str, taken: dict[str, str], existing: Mapping[str, Mapping[str, str]]) -> tuple[str, str] | None:
    """Return problem and remedy of a stored column's name; None where it has no problem."""
    same = fold_case(name)
    if same in ALWAYS_THERE:
        return (
            f"is the name of {same}, which every table has",
            "rename it, or say with --event-column or --arrival-column what it is",
        )
    if same in taken:
        return f"is stored as {name}, and so is column {taken[same]}", "rename one of them"
    for stream, columns in existing.items():
        other = next((column for column in columns if fold_case(column) == same), name)
        if other != name:
            return f"differs from column {other!r} of stream {stream} in case only", f"name it {other}"
    return None
