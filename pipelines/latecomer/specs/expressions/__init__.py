"""Expressions of query files: parse a text, check its columns and types, render it as SQL.

This module is the public face of the package. The syntax tree (:mod:`latecomer.specs.expressions.tree`) is the only
form in which an expression travels; a user's text is never pasted into SQL.

>>> from latecomer.specs import expressions as ex
>>> condition = ex.parse("port = 53 and size > 1e3", source="query.yaml", key="where", aliases=("d",))
>>> ex.to_text(condition)
'((d.port = 53) and (d.size > 1000.0))'
>>> ex.to_spark_sql(condition, lambda column: f"`{column.name}`")
"((`port` = 53L) AND (`size` > CAST('1000.0' AS DOUBLE)))"
>>> ex.parse("payload.user.id", source="query.yaml", key="score", aliases=("d",))
Column(alias='d', name='payload', fields=('user', 'id'))
"""

from latecomer.specs.expressions.parse import parse, parse_call, parse_item
from latecomer.specs.expressions.sql import to_spark_sql
from latecomer.specs.expressions.tree import (
    ALWAYS_THERE,
    ARITHMETIC,
    COMPARISONS,
    FUNCTIONS,
    NODES,
    Binary,
    Call,
    Column,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    SelectItem,
    Unary,
    WithinDistance,
    children,
    columns,
    conjuncts,
    find_column,
    literal_number,
    to_text,
    widen,
    written_name,
)
from latecomer.specs.expressions.types import Kind, Nested, check_columns, check_types

__all__ = [
    "ALWAYS_THERE", "ARITHMETIC", "COMPARISONS", "FUNCTIONS", "NODES", "Binary", "Call", "Column", "Expr", "InList",
    "IsNull", "Kind", "Like", "Literal", "Nested", "SelectItem", "Unary", "WithinDistance", "check_columns",
    "check_types", "children", "columns", "conjuncts", "find_column", "literal_number", "parse", "parse_call",
    "parse_item", "to_spark_sql", "to_text", "widen", "written_name",
]  # fmt: skip
