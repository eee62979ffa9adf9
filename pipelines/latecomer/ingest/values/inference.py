"""Infer the type of a column of texts from counts of its values, which can be added over parts of the column."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latecomer.ingest.values import text_kernels
from latecomer.ingest.values.convert import convert
from latecomer.specs.column_types import is_number, widen

CATEGORIES = {"other": "text", "number": "number", "boolean": "truth value", "timestamp": "time"}
"""Categories of texts, in the order of the numbers that the pass gives them -> what a message calls a value of it."""
SHOWN = 3
"""Most texts that a message shows."""
_KEPT = 8
"""Most texts of a category that are kept."""
_SAMPLE = 1 << 16
"""Texts of a category among which the most frequent are looked for."""
_TEXT_SIZE = 80
"""Most characters of a text that are kept."""


@dataclass
class TextProfile:
    """The counts of a column's texts. They can be pickled, and written as JSON.

    Attributes
    ----------
    values
        Number of texts that are not null.
    matches
        Number of texts by what they can be read as:

        - ``number``: a number that is finite. Of these ``integer`` are digits alone, at most 38 of them; ``bigint``
          are those of them that fit that type; ``endless`` are more digits alone, ``long`` at least 16 digits alone;
          ``zero`` begin with a zero that another digit follows;
        - ``special``: NaN or an infinity;
        - ``boolean`` and ``timestamp``.
    fits
        Number of texts that fit the type that the column has already; 0 where it has none.
    odd
        The least text that does not fit that type; None where all fit, or the column has no type.
    examples
        Some texts of every category with their numbers, the most frequent first: of a category that most texts of a
        part belong to, one text.
    """

    values: int = 0
    matches: dict[str, int] = field(default_factory=dict)
    fits: int = 0
    odd: str | None = None
    examples: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, category: str) -> int:
        """Return the number of texts that can be read as that."""
        return self.matches.get(category, 0)

    @property
    def numbers(self) -> int:
        """Number of texts that are numbers, also infinite ones and NaN."""
        return self.count("number") + self.count("special")

    def of_category(self, category: str) -> int:
        """Return the number of texts of a category."""
        if category == "other":
            return self.values - self.numbers - self.count("boolean") - self.count("timestamp")
        return self.numbers if category == "number" else self.count(category)

    def to_json(self) -> str:
        """Return the profile as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> TextProfile:
        """Return the profile that was written as JSON."""
        return cls(**json.loads(text))


def profile(text: pa.Array, kind: str | None, zone: str, decimal_comma: bool = False) -> TextProfile:
    """Count the texts of a column.

    Parameters
    ----------
    text : string[n]
        Values as they are written.
    kind
        The type that the column has already, or None.
    zone
        The zone of times that name none.
    decimal_comma
        Whether a comma stands before the fraction of a number.
    """
    if isinstance(text, pa.ChunkedArray):
        parts = [profile(chunk, kind, zone, decimal_comma) for chunk in text.iterchunks()]
        return merge(parts)
    if not pa.types.is_string(text.type) and not pa.types.is_large_string(text.type):
        text = text.cast(pa.string())
    counts = np.zeros(len(text_kernels.COUNTS), np.int64)
    categories = np.full(len(text), len(CATEGORIES), np.uint8)  # of nulls
    text_kernels.classify(*text_kernels.buffers(text), ord("," if decimal_comma else "."), counts, categories)
    values, *numbers = counts.tolist()
    matches = {name: count for name, count in zip(text_kernels.COUNTS[1:], numbers, strict=True) if count}
    counted = TextProfile(values, matches)
    counted.examples = _examples(text, categories, counted)
    if kind is not None and values:
        _, fits = convert(text, kind, zone, decimal_comma)
        counted.fits = int(np.count_nonzero(fits)) - text.null_count
        if counted.fits < values:
            counted.odd = pc.min(text.filter(pa.array(~fits))).as_py()
    return counted


def _examples(text: pa.Array, categories: np.ndarray, counted: TextProfile) -> dict[str, dict[str, int]]:
    """Return texts of every category with their numbers: of the category of most texts the first one alone."""
    examples: dict[str, dict[str, int]] = {}
    for number, category in enumerate(CATEGORIES):
        size = counted.of_category(category)
        if size == 0:
            continue
        belongs = categories == number
        if 2 * size > counted.values:
            examples[category] = {_cut(text[int(np.argmax(belongs))].as_py()): size}
            continue
        sample = text.take(pa.array(np.flatnonzero(belongs)[:_SAMPLE]))
        if len(sample) <= _KEPT:
            examples[category] = _most_frequent((_cut(value), 1) for value in sample.to_pylist())
            continue
        frequent = pc.value_counts(sample)
        numbers = frequent.field("counts").to_numpy()
        top = frequent.take(pa.array(np.argsort(-numbers, kind="stable")[: 4 * _KEPT]))
        examples[category] = _most_frequent((_cut(row["values"]), row["counts"]) for row in top.to_pylist())
    return examples


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_SIZE else text[: _TEXT_SIZE - 3] + "..."


def _most_frequent(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add the numbers of equal texts, and keep the most frequent ones."""
    total: Counter[str] = Counter()
    for text, count in pairs:
        total[text] += count
    return dict(sorted(total.items(), key=lambda pair: (-pair[1], pair[0]))[:_KEPT])


def merge(profiles: Iterable[TextProfile]) -> TextProfile:
    """Add the counts of parts of a column."""
    whole = TextProfile()
    matches: Counter[str] = Counter()
    for part in profiles:
        whole.values += part.values
        whole.fits += part.fits
        matches.update(part.matches)
        if part.odd is not None:
            whole.odd = part.odd if whole.odd is None else min(whole.odd, part.odd)
        for category, texts in part.examples.items():
            known = whole.examples.get(category, {})
            whole.examples[category] = _most_frequent([*known.items(), *texts.items()])
    whole.matches = dict(matches)
    return whole


def infer(counted: TextProfile) -> str | None:
    """Return the narrowest Spark type that holds every text exactly; None for a column without a value.

    Whole numbers are ids as often as amounts, so a column of them is never rounded: where some do not fit ``bigint``,
    it is a decimal. A column that mixes them with fractions holds amounts, and becomes ``double``; ``9.0`` is a
    fraction as it is written. ``007`` is a name and not a number, so one leading zero keeps the column text. ``NaN``
    and ``Infinity`` are numbers, as Python and NumPy write them, unless a whole number in the same column would be
    rounded.
    """
    if counted.values == 0:
        return None
    if counted.numbers == counted.values:
        return _number_type(counted) or "string"
    return next((name for name in ("boolean", "timestamp") if counted.count(name) == counted.values), "string")


def _number_type(counted: TextProfile) -> str | None:
    """Return the narrowest type that holds all texts that are numbers; None where no type of numbers does."""
    if counted.count("zero") or counted.numbers == 0:
        return None
    if counted.count("integer") == counted.numbers:
        return "bigint" if counted.count("bigint") == counted.numbers else "decimal(38,0)"
    rounded = counted.count("endless") or (counted.count("long") and counted.count("special"))
    return None if rounded else "double"


def wider(stored: str, counted: TextProfile) -> str | None:
    """Return the type to which a column of numbers has to become wider to hold the numbers among new texts.

    None where they fit as they are, or no wider type holds them too. Texts that are no numbers are left aside: they go
    to quarantine, whatever the type.

    Parameters
    ----------
    stored
        The column's type.
    counted
        The profile of the new texts, with that type.
    """
    if not is_number(stored) or counted.fits >= counted.numbers:
        return None
    new = _number_type(counted)
    after = None if new is None else widen(stored, new)
    return None if after == stored else after


def explain(counted: TextProfile) -> tuple[str, str] | None:
    """Return why a column is text although many of its values are not, and the type of those; None for other columns.

    Values that are text are few, or are a mark of no value as spreadsheets and databases write it.

    >>> import pyarrow as pa
    >>> explain(profile(pa.array(["0.5", "1", "nil", "nil", "7", "1e3"]), None, "UTC"))
    ("2 of 6 values are no number: 'nil'", 'double')
    """
    if infer(counted) != "string":
        return None
    most = max(("number", "timestamp", "boolean"), key=counted.of_category)
    others = counted.values - counted.of_category(most)
    if others in (0, counted.values):
        return None
    if 2 * others > counted.values and not all(map(_is_no_value, counted.examples.get("other", {}))):
        return None
    texts = _most_frequent(
        pair for category, pairs in counted.examples.items() if category != most for pair in pairs.items()
    )
    shown = ", ".join(repr(text) for text in list(texts)[:SHOWN])
    verb = "is" if others == 1 else "are"
    kind = {"number": "double"}.get(most, most)
    return f"{others:,} of {counted.values:,} values {verb} no {CATEGORIES[most]}: {shown}", kind


def _is_no_value(text: str) -> bool:
    """Return whether a text is a common mark of no value."""
    return text.strip().strip("#<>").lower() in _NO_VALUE


_NO_VALUE = {
    "", "-", "--", "?", ".", "na", "n/a", "n.a.", "nan", "nil", "none", "null", "\\n", "missing", "unknown", "err",
    "error",
}  # fmt: skip
