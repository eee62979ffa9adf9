"""Expressions of query files: parse a text, check its columns and types, render it as SQL.

The syntax tree (:mod:`latecomer.specs.expressions.tree`) is the only form in which an expression travels; a text is never pasted into SQL.
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
    to_text,
    walk,
    widened,
)
from latecomer.specs.expressions.types import check_columns, check_types

__all__ = [
    "ALWAYS_THERE", "ARITHMETIC", "COMPARISONS", "FUNCTIONS", "NODES", "Binary", "Call", "Column", "Expr", "InList", "IsNull",
    "Like", "Literal", "SelectItem", "Unary", "WithinDistance", "check_columns", "check_types", "children", "columns", "conjuncts",
    "parse", "parse_call", "parse_item", "to_spark_sql", "to_text", "walk",
    "widened",
]  # fmt: skip
