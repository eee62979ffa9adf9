"""Column arithmetic and joins that Spark lacks: exact integer division, instants, joins on keys that may be null.

The functions over numbers take int64 arrays, Spark columns and names of columns alike, so that the driver and Spark
share them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from latecomer.specs.names import duplicates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from latecomer.specs.spec import Spec


def quoted(name: str) -> str:
    """Quote a column's name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def named(columns: Mapping[str, str]) -> list[str]:
    """Return SQL for columns with their names; one call with text replaces five or ten calls into the JVM."""
    return [f"{text} as {quoted(name)}" for name, text in columns.items()]


def with_columns(rows: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Return the rows with more columns, or with none more: Spark Connect takes that for an error."""
    return rows.withColumns(dict(columns)) if columns else rows


def as_column(value: Any) -> Any:
    """Return the column of that name; anything but a name is returned unchanged."""
    if not isinstance(value, str):
        return value
    from pyspark.sql import functions as F

    return F.col(value)


def floor_div(value: Any, length: int) -> Any:
    """Divide by a positive length and round down; SQL's own ``div`` truncates."""
    if isinstance(value, np.ndarray):
        return value // length
    from pyspark.sql import functions as F

    if isinstance(value, str):
        return F.expr(floor_div_sql(quoted(value), length))
    return F.call_function("div", value - F.pmod(value, F.lit(length)), F.lit(length))


def floor_div_sql(number: str, length: int) -> str:
    """Return the SQL of :func:`floor_div` of a bigint's SQL."""
    return f"{floor_to_sql(number, length)} div {length}L"


def floor_to_sql(number: str, length: int) -> str:
    """Return the SQL of :func:`floor_to` of a bigint's SQL."""
    return f"(({number}) - pmod({number}, {length}L))"


def ceil_div(value: Any, length: int) -> Any:
    """Divide by a positive length and round up."""
    return floor_div(value + (length - 1), length)


def floor_to(value: Any, length: int) -> Any:
    """Return the largest multiple of a positive length that is not above the value."""
    if isinstance(value, np.ndarray):
        return value // length * length
    from pyspark.sql import functions as F

    if isinstance(value, str):
        return F.expr(floor_to_sql(quoted(value), length))
    return value - F.pmod(value, F.lit(length))


def greatest(*values: Any) -> Any:
    """Return the greatest value, row by row."""
    if isinstance(values[0], np.ndarray):
        return np.maximum.reduce(values)
    from pyspark.sql import functions as F

    return F.greatest(*values) if len(values) > 1 else values[0]


_LOCAL = "^[0-9]{4}-[0-9-]+([ T][0-9:.]*)?$"
"""A date, or a date and a time, without a zone: a zone has a sign or a letter."""


def instant(value: Column, kind: str, zone: str) -> Column:
    """Convert a time to a timestamp; a time without a zone is in `zone`. Null where it cannot be read.

    Spark reads most of ISO 8601, and names of zones. It needs seconds before a zone, and a capital Z.
    """
    from pyspark.sql import functions as F

    if kind == "timestamp":
        return value
    if kind != "string":
        return F.to_utc_timestamp(value.cast("timestamp"), zone)
    text = F.regexp_replace(F.trim(value), "([0-9] ?)z$", "$1Z")
    text = F.regexp_replace(text, "^([0-9-]+[ T][0-9]{1,2}:[0-9]{2})( ?[A-Za-z+-])", "$1:00$2")
    stamp = F.when(text.rlike("^[0-9]{4}-"), text.try_cast("timestamp"))
    return F.when(text.rlike(_LOCAL), F.to_utc_timestamp(stamp, zone)).otherwise(stamp)


def join_null_safe(
    left: DataFrame,
    right: DataFrame,
    keys: Sequence[str],
    how: str = "inner",
    condition: Column | None = None,
) -> DataFrame:
    """Join on keys that may be null: a null equals a null. The result has the keys once, from the left side.

    The names of all other columns must differ between the sides. `condition` may read columns of both by name.
    """
    from pyspark.sql import functions as F

    hidden = {key: f"_join_{i}" for i, key in enumerate(keys)}
    renamed = right.selectExpr(*named({hidden.get(name, name): quoted(name) for name in right.columns}))
    equal = F.expr(" and ".join(f"{quoted(key)} <=> {other}" for key, other in hidden.items()) or "true")
    return left.join(renamed, equal if condition is None else condition & equal, how).drop(*hidden.values())


def refuse_twice(spec: Spec, names: Sequence[str], fixed: Iterable[str]) -> None:
    """Refuse a result in which two columns would have one name, among `names` and the `fixed` columns of its table.

    Raises
    ------
    SpecError
        With the name.
    """
    twice = duplicates([*names, *fixed])
    if twice:
        raise spec.fail(
            "select",
            twice[0],
            "two result columns would have this name (case does not tell columns apart)",
            "list the columns you want with `select`, one of these under a new name: `... as name`",
        )
