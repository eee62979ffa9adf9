"""Column arithmetic and joins that Spark does not bring: exact integer division, windows of a row, instants, keys that may be null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from latecomer.specs.names import duplicates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from latecomer.specs.spec import Spec


def quoted(name: str) -> str:
    """A column's name as SQL."""
    return "`" + name.replace("`", "``") + "`"


def named(columns: Mapping[str, str]) -> list[str]:
    """SQL of columns with their names. As text, Spark is told in one call what would be five or ten."""
    return [f"{text} as {quoted(name)}" for name, text in columns.items()]


def as_column(value: Any) -> Any:
    """A column by its name; anything else as it is."""
    if not isinstance(value, str):
        return value
    from pyspark.sql import functions as F

    return F.col(value)


def floor_div(value: Any, length: int) -> Any:
    """Floor division by a positive length, of an int64 array or a bigint column (also by name; SQL's own ``div`` truncates)."""
    if isinstance(value, np.ndarray):
        return value // length
    from pyspark.sql import functions as F

    if isinstance(value, str):
        return F.expr(floor_div_sql(quoted(value), length))
    return F.call_function("div", value - F.pmod(value, F.lit(length)), F.lit(length))


def floor_div_sql(number: str, length: int) -> str:
    """The same of a bigint's SQL, as SQL."""
    return f"{floor_to_sql(number, length)} div {length}L"


def floor_to_sql(number: str, length: int) -> str:
    """SQL of the largest multiple of a positive length that is not above a bigint's SQL."""
    return f"(({number}) - pmod({number}, {length}L))"


def ceil_div(value: Any, length: int) -> Any:
    """Ceiling division by a positive length, of an int64 array or a bigint column."""
    return floor_div(value + (length - 1), length)


def floor_to(value: Any, length: int) -> Any:
    """The largest multiple of a positive length that is not above an int64 array or a bigint column (also by name)."""
    if isinstance(value, np.ndarray):
        return value // length * length
    from pyspark.sql import functions as F

    if isinstance(value, str):
        return F.expr(floor_to_sql(quoted(value), length))
    return value - F.pmod(value, F.lit(length))


def greatest(*values: Any) -> Any:
    """Row by row, the greatest of int64 arrays or of bigint columns."""
    if isinstance(values[0], np.ndarray):
        return np.maximum.reduce(values)
    from pyspark.sql import functions as F

    return F.greatest(*values) if len(values) > 1 else values[0]


_LOCAL = "^[0-9]{4}-[0-9-]+([ T][0-9:.]*)?$"
"""A date, or a date and a time, with nothing after it: a zone has a sign or a letter."""


def instant(value: Column, kind: str, zone: str) -> Column:
    """A time as timestamp; what names no zone is in `zone`. Null where it cannot be read.

    Spark reads most of ISO 8601, and names of zones; it wants seconds before a zone, and a capital Z.
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
    """Join on keys that may be null, which then are equal; the keys stand in the result once, the left side's.

    Other columns of the two sides must differ. `condition` may read columns of both by name.
    """
    from pyspark.sql import functions as F

    hidden = {key: f"_join_{i}" for i, key in enumerate(keys)}
    renamed = right.selectExpr(*named({hidden.get(name, name): quoted(name) for name in right.columns}))
    equal = F.expr(" and ".join(f"{quoted(key)} <=> {other}" for key, other in hidden.items()) or "true")
    return left.join(renamed, equal if condition is None else condition & equal, how).drop(*hidden.values())


def refuse_twice(spec: Spec, names: Sequence[str], fixed: Iterable[str]) -> None:
    """Refuse a result of which two columns would have one name, `names` and the `fixed` ones that its table has beside them.

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
