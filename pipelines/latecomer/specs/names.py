"""Names of query files and of columns: which are allowed, and how they are stored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""A stream's name is a folder of the lake and part of Airflow's identifiers, so it is made of what both take: letters, digits, ``_``,
``-`` and ``.``, at most 100. Not ``.`` first (no hidden and no parent folder), nor ``_``, which the product's own names begin with."""


STREAM_REMEDY = "use letters, digits, '_', '-' and '.', a letter or digit first"


RESERVED = frozenset(
    {
        "all", "and", "as", "between", "case", "cast", "distinct", "else", "end", "exists", "false", "from", "group", "having",
        "in", "is", "like", "limit", "not", "null", "or", "order", "over", "select", "then", "true", "union", "when", "where",
        "with",
    }
)  # fmt: skip
"""Words of expressions and of SQL that no alias may be."""


_UNSTORABLE = re.compile(r"[ ,;{}()\n\t=]")


def stored_name(column: str) -> str:
    """The name under which a lake has a column: a character that Delta tables take in no name is ``_``, in query files as at ingestion."""
    return _UNSTORABLE.sub("_", column)


def folded(name: str) -> str:
    """The same for names that tables do not tell apart: each character in upper and then in lower case, as the JVM compares them.

    `str.lower` is not that (``ς`` and ``Σ`` are one name there), nor `str.casefold` (``ß`` and ``ss`` are two).
    """
    upper = (char.upper() if len(char.upper()) == 1 else char for char in name)
    return "".join(char.lower()[0] for char in upper)


def repeated(names: Sequence[str]) -> list[str]:
    """Those of which there is more than one, case apart, sorted."""
    alike = Counter(map(folded, names))
    return sorted({name for name in names if alike[folded(name)] > 1})
