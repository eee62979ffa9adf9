"""Types of columns as a stream file states them, Spark's names for them, and which type holds the values of two."""

from __future__ import annotations

import re

_SIMPLE = {
    "string": "string", "text": "string", "varchar": "string",
    "bigint": "bigint", "long": "bigint", "int64": "bigint",
    "int": "int", "integer": "int", "int32": "int",
    "smallint": "smallint", "short": "smallint", "tinyint": "tinyint", "byte": "tinyint",
    "double": "double", "float64": "double", "float": "float", "real": "float", "float32": "float",
    "boolean": "boolean", "bool": "boolean",
    "date": "date", "timestamp": "timestamp", "datetime": "timestamp",
}  # fmt: skip
"""Names of types, with the words of other languages -> Spark's name."""
TYPES = ("string", "bigint", "int", "smallint", "tinyint", "double", "float", "decimal(p,s)", "boolean", "date",
         "timestamp", "array<type>", "struct<name:type,...>", "map<string,type>")  # fmt: skip
MOST_DIGITS = 38
WHOLE = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""Whole-number types, the narrowest first -> the most digits of their values."""
FLOATING = ("float", "double")
EXACT_IN_DOUBLE = 1 << 53
"""The greatest whole number up to which a double holds them all."""


class ColumnTypeError(Exception):
    """A text names no type of a column. `problem` says why, `remedy` what to write."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(problem)


def normal_type(text: object) -> str:
    """Return Spark's name of the type that a text states.

    >>> normal_type("Decimal( 5, 2 )"), normal_type("array<struct<id: long, name: text>>")
    ('decimal(5,2)', 'array<struct<id:bigint,name:string>>')

    Raises
    ------
    ColumnTypeError
        The text names no type that a column can have.
    """
    if not isinstance(text, str):
        raise ColumnTypeError("must be the name of a type, as text", f"use one of {', '.join(TYPES)}")
    kind, rest = _parse(text.strip())
    if rest.strip():
        raise _unknown(text)
    return kind


def _parse(text: str) -> tuple[str, str]:
    """Return the type that a text begins with, and what follows it."""
    size = next((place for place, sign in enumerate(text) if not (sign.isalnum() or sign == "_")), len(text))
    word, rest = text[:size].lower(), text[size:].lstrip()
    if word in ("decimal", "numeric"):
        return _decimal(rest, text)
    if word == "array":
        inner, rest = _parse(_after("<", rest, text))
        return f"array<{inner}>", _after(">", rest, text)
    if word == "map":
        key, rest = _parse(_after("<", rest, text))
        value, rest = _parse(_after(",", rest, text))
        return f"map<{key},{value}>", _after(">", rest, text)
    if word == "struct":
        fields, rest, sign = [], _after("<", rest, text), ","
        while sign == ",":
            name, colon, rest = rest.partition(":")
            if not colon or not name.strip(" `"):
                raise _unknown(text)
            kind, rest = _parse(rest.lstrip())
            fields.append(f"{name.strip()}:{kind}")
            rest = rest.lstrip()
            sign, rest = rest[:1], rest[1:].lstrip()
        if sign != ">":
            raise _unknown(text)
        return f"struct<{','.join(fields)}>", rest
    if word in _SIMPLE:
        return _SIMPLE[word], rest
    raise _unknown(text)


def _decimal(rest: str, text: str) -> tuple[str, str]:
    digits, _, rest = _after("(", rest, text).partition(")")
    precision, _, scale = digits.partition(",")
    scale = scale.strip() or "0"
    if not (precision.strip().isdecimal() and scale.isdecimal()):
        raise _unknown(text)
    if not 1 <= int(precision) <= MOST_DIGITS or int(scale) > int(precision):
        raise ColumnTypeError(
            f"has no such digits: decimal(p,s) has 1 to {MOST_DIGITS} digits, s of them after the point",
            "write one such as decimal(10,2)",
        )
    return f"decimal({int(precision)},{int(scale)})", rest


def _after(sign: str, rest: str, text: str) -> str:
    rest = rest.lstrip()
    if not rest.startswith(sign):
        raise _unknown(text)
    return rest[1:].lstrip()


def _unknown(text: str) -> ColumnTypeError:
    return ColumnTypeError("is no type of a column", f"use one of {', '.join(TYPES)}")


def element_types(kind: str) -> tuple[str, list[tuple[str, str]]] | None:
    """Return what an array, struct or map is made of; None for any other type.

    >>> element_types("struct<id:bigint,`a:b`:array<decimal(5,2)>>")
    ('struct', [('id', 'bigint'), ('a:b', 'array<decimal(5,2)>')])
    >>> element_types("map<string,int>"), element_types("int")
    (('map', [('', 'string'), ('', 'int')]), None)
    """
    word, bracket, rest = kind.partition("<")
    if word not in ("array", "map", "struct") or not bracket or not rest.endswith(">"):
        return None
    parts = _split(rest[:-1])
    if len(parts) != {"array": 1, "map": 2}.get(word, len(parts)):
        return None
    if word != "struct":
        return word, [("", part.strip()) for part in parts]
    fields = [_FIELD.fullmatch(part.strip()) for part in parts]
    named = [(field[1], field[2]) for field in fields if field is not None]
    if len(named) != len(fields):
        return None
    return word, [
        (name[1:-1].replace("``", "`") if name.startswith("`") else name, inner.strip()) for name, inner in named
    ]


def quoted_field(name: str) -> str:
    """Return the name of a struct's field as a type has it, in quotes where it needs them.

    >>> quoted_field("id"), quoted_field("a:b")
    ('id', '`a:b`')
    """
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"


_FIELD = re.compile(r"(`(?:[^`]|``)*`|[^`:]+?)\s*:(.*)", re.DOTALL)


def _split(text: str) -> list[str]:
    """Split a list of types or fields at the commas that stand in no bracket and in no quoted name."""
    parts, depth, quoted, begin = [], 0, False, 0
    for place, sign in enumerate(text):
        if sign == "`":
            quoted = not quoted
        elif not quoted and sign in "<(":
            depth += 1
        elif not quoted and sign in ">)":
            depth -= 1
        elif not quoted and depth == 0 and sign == ",":
            parts.append(text[begin:place])
            begin = place + 1
    return [*parts, text[begin:]]


def is_number(kind: str) -> bool:
    """Return whether a type is whole, floating or decimal."""
    return kind in WHOLE or kind in FLOATING or kind.startswith("decimal(")


def widen(before: str, new: str) -> str | None:
    """Return the type that a column of type `before` becomes so that it holds values of type `new` too.

    None: there is none in which every stored value stays what it is.

    ==============  ====================  =============================================================
    before          new                   becomes
    ==============  ====================  =============================================================
    a type          the same              the same
    whole           whole                 the wider of the two
    whole           ``float, double``     ``double``; of ``bigint`` only where `needs_bound` is met
    whole           ``decimal(p,s)``      a decimal with room for the digits of both
    ``float``       ``double``            ``double``
    floating        any other number      `before`: the nearest number is meant
    decimal         decimal, whole        a decimal with room for the digits of both
    decimal         floating              none: a decimal fraction is no double
    any other pair                        none
    ==============  ====================  =============================================================

    >>> widen("bigint", "double"), widen("decimal(5,2)", "decimal(4,3)"), widen("decimal(38,0)", "double")
    ('double', 'decimal(6,3)', None)
    """
    if before == new:
        return before
    if not (is_number(before) and is_number(new)):
        return None
    if before in FLOATING:
        return "double" if new == "double" else before
    if new in FLOATING:
        return "double" if before in WHOLE else None
    if before in WHOLE and new in WHOLE:
        return max(before, new, key=lambda kind: WHOLE[kind])
    (left, scale), (other_left, other_scale) = _digits(before), _digits(new)
    left, scale = max(left, other_left), max(scale, other_scale)
    return f"decimal({left + scale},{scale})" if left + scale <= MOST_DIGITS else None


def is_widening(before: str, after: str) -> bool:
    """Return whether every value of one type is a value of the other; also where :func:`needs_bound` is met."""
    return widen(before, after) == after


def needs_bound(before: str, after: str) -> bool:
    """Return whether values of a type are exact in the other only up to `EXACT_IN_DOUBLE`, either side of zero."""
    return before == "bigint" and after == "double"


def _digits(kind: str) -> tuple[int, int]:
    """Return the most digits before the point, and those behind it, of a whole or a decimal type."""
    if kind in WHOLE:
        return WHOLE[kind], 0
    precision, _, scale = kind.removeprefix("decimal(").removesuffix(")").partition(",")
    return int(precision) - int(scale), int(scale)
