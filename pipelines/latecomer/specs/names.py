"""Names of queries, streams, aliases and columns: which are allowed, how they are stored and how they are compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
"""A query's name."""
ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
"""A stream's alias in a query, and a result column's name."""
STREAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
"""A stream's name. It is a folder of the lake and part of Airflow's identifiers; both allow only these characters.

It does not begin with ``.``, which would hide the folder or name its parent, nor with ``_``, with which the product's
own names begin.
"""
BY_COLUMN = re.compile(r"_by_([A-Za-z0-9_.-]{1,96})")
"""The name of a folder, or of a stream file, of the streams that a column names."""
STREAM_REMEDY = "use letters, digits, '_', '-' and '.', a letter or digit first"
RESERVED = frozenset(
    {
        "all", "and", "as", "between", "case", "cast", "distinct", "else", "end", "exists", "false", "from", "group",
        "having", "in", "is", "like", "limit", "not", "null", "or", "order", "over", "select", "then", "true", "union",
        "when", "where", "with",
    }
)  # fmt: skip
"""Words of expressions and of SQL, which are no aliases."""
_UNSTORABLE = re.compile(r"[ ,;{}()\n\t=]")


def stored_name(column: str) -> str:
    """Return the name of a column in the lake: ``_`` replaces each character that Delta tables allow in no name.

    Ingestion and query files use the same rule.

    >>> stored_name("tail number")
    'tail_number'
    """
    return _UNSTORABLE.sub("_", column)


def fold_case(name: str) -> str:
    """Return a key that is equal for names which tables do not tell apart.

    Each character is put in upper and then in lower case, as the JVM compares names. Neither `str.lower` (``ς`` and
    ``Σ`` are one name to the JVM) nor `str.casefold` (``ß`` and ``ss`` are two) does that.
    """
    upper = (char.upper() if len(char.upper()) == 1 else char for char in name)
    return "".join(char.lower()[0] for char in upper)


def duplicates(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, regardless of case, sorted.

    >>> duplicates(["a", "b", "A"])
    ['A', 'a']
    """
    counts = Counter(map(fold_case, names))
    return sorted({name for name in names if counts[fold_case(name)] > 1})
