"""Generated dirty files of one stream, and an oracle of what `ingest` has to make of them.

The oracle shares no code with ingestion: records are told by Python's strict reader of CSV or by its JSON reader, times
by pandas behind the grammar that the documentation states, numbers by `decimal`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pandas as pd

COLUMNS = {"k": "string", "v": "double", "n": "bigint", "d": "decimal(5,2)"}
NULL_VALUES = ("nil", "N/A")
WITHIN, MAX_AGE, MAX_FUTURE = pd.Timedelta("1h"), pd.Timedelta("30D"), pd.Timedelta("1D")
_TIMES = [f"2024-05-01T10:{minute:02d}:00Z" for minute in range(0, 60, 7)] * 3 + [
    *("2024-05-01 12:00", "2024-05-01T14:00:00.250+02:00", "2024-05-01", "1714557600000001", " 2024-05-01T10:00:01Z "),
    *(
        "",
        "nil",
        "never",
        "2024-02-30T10:00:00Z",
        "2024-05-01T10:00:00 BST",
        "12:30",
        "2024-W18-3",
        "2024-05-01T24:00Z",
    ),
    *("1970-01-01T00:00:00Z", "2023-05-01T10:00:00Z", "2190-01-01T00:00:00Z", "1800-01-01T00:00:00Z"),
]
_NUMBERS = [*"0157", "-7", "2.5", "9.0", "1e2", " 6 ", "+3", "", "nil"] * 3 + [
    *("ERR", "0x1F", "1_000", "1e999", "12.345", "99999", "9223372036854775808", "--1", "1.5d", "true"),
]
_TEXTS = ["a", "b", "b", "c", "ü x", "d;e", "", "N/A", "007"]
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?\s?(Z|[+-]\d\d:\d\d)?)?")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass
class Outcome:
    """The outcome of ingesting files.

    Attributes
    ----------
    stored
        Event time, arrival time (us) and the values of `COLUMNS`, in the arrival order.
    quarantined
        By file and line, the beginnings of the reasons that are right: more than one where a record has several faults.
    """

    read: int = 0
    duplicates: int = 0
    stored: list[tuple[Any, ...]] = field(default_factory=list)
    quarantined: dict[tuple[str, int], set[str]] = field(default_factory=dict)


# ---------------------------------------------------------------------------------------------------------- generation


def generate(
    rng: np.random.Generator, is_json: bool, with_arrival: bool, separator: str = ","
) -> list[dict[str, bytes]]:
    """Return the files of each call, by name."""
    names = ["event_ts", *(["arrival_ts"] if with_arrival else []), *COLUMNS]
    calls: list[dict[str, bytes]] = []
    number = 0
    for call in range(int(rng.integers(1, 3))):
        calls.append({})
        for _ in range(int(rng.integers(1, 4))):
            number += 1
            order = [str(name) for name in rng.permutation(names)]
            values = [_row(rng, names, call) for _ in range(int(rng.integers(0, 25)))]
            raw = _json(rng, values) if is_json else _csv(rng, order, values, separator)
            calls[-1][f"part-{number}.{'json' if is_json else 'csv'}"] = raw
    return calls


def _row(rng: np.random.Generator, names: list[str], call: int) -> dict[str, str]:
    of = {"event_ts": _TIMES, "k": _TEXTS}
    row = {name: str(rng.choice(of.get(name, _NUMBERS))) for name in names}
    if "arrival_ts" in row:
        second = int(rng.integers(0, 3_000))
        arrival = pd.Timestamp("2024-05-01T11:00Z") + pd.Timedelta(seconds=3_000 * call + second)
        row["arrival_ts"] = "soon" if rng.random() < 0.03 else arrival.isoformat()
    return row


def _csv(rng: np.random.Generator, order: list[str], rows: list[dict[str, str]], separator: str) -> bytes:
    lines = []
    for row in rows:
        fields = [_field(rng, row[name], separator) for name in order]
        dirt = rng.random()
        if dirt < 0.05:
            fields.pop()
        elif dirt < 0.1:
            fields.append("more")
        elif dirt < 0.15:
            place = int(rng.integers(0, len(fields)))
            fields[place] = str(rng.choice(['"stray', '"a" b', 'mid"dle', '"two\nlines"', '""']))
        elif dirt < 0.18:
            fields[order.index("k")] = "\udcff"  # a byte that is no UTF-8
        elif dirt < 0.22:
            fields = list(order)
        lines.append(separator.join(fields))
        lines += [""] * int(rng.random() < 0.1)
    end = str(rng.choice(["\n", "\r\n"]))
    text = "\n".join([separator.join(order), *lines]) + ("\n" if rng.random() < 0.7 else "")
    begin = b"\xef\xbb\xbf" if rng.random() < 0.3 else b""
    return begin + text.replace("\n", end).encode("utf-8", "surrogateescape")


def _field(rng: np.random.Generator, text: str, separator: str) -> str:
    quoted = separator in text or rng.random() < 0.2
    return f'"{text}"' if quoted else text


def _json(rng: np.random.Generator, rows: list[dict[str, str]]) -> bytes:
    lines = []
    for row in rows:
        given: dict[str, Any] = {name: text for name, text in row.items() if text and rng.random() < 0.95}
        parts = [f"{json.dumps(name)}: {_value(rng, text)}" for name, text in given.items()]
        line = "{" + ", ".join(str(part) for part in rng.permutation(parts)) + "}" if parts else "{}"
        dirt = rng.random()
        if dirt < 0.04:
            line = line[:-1]
        elif dirt < 0.08:
            line = "nonsense"
        elif dirt < 0.12 and parts:
            line = "{" + ", ".join([*parts, parts[0]]) + "}"
        lines.append(line)
        lines += [""] * int(rng.random() < 0.1)
    return "\n".join(lines).encode()


def _value(rng: np.random.Generator, text: str) -> str:
    if re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?(e\d{1,2})?", text) and rng.random() < 0.7:
        return text
    return "null" if rng.random() < 0.03 else json.dumps(text)


# -------------------------------------------------------------------------------------------------------------- oracle


def strict_csv(text: str, separator: str, quote: str) -> Iterator[tuple[int, list[str] | None, int]]:
    """Yield line, fields (None where it is no CSV) and number of lines of each record, by Python's strict reader.

    After a record that is no CSV it goes on at the next line.
    """
    lines = text.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    quoting: dict[str, Any] = {"quotechar": quote, "doublequote": True}
    quoting = quoting if quote else {"quoting": csv.QUOTE_NONE, "quotechar": None}
    at = 0
    while at < len(lines):
        reader = csv.reader((line + "\n" for line in lines[at:]), strict=True, delimiter=separator, **quoting)
        fields: list[str] | None
        try:
            fields, count = next(reader), reader.line_num
        except csv.Error:
            fields, count = None, 1
        if lines[at]:
            yield at + 1, fields, count
        at += count


def expect(calls: list[dict[str, bytes]], with_arrival: bool, separator: str = ",") -> Outcome:
    """Return what the files of all calls come to."""
    outcome = Outcome()
    kept: list[tuple[str | None, pd.Timestamp]] = []
    for files in calls:
        rows: list[dict[str, Any]] = []
        for file, (name, raw) in enumerate(files.items()):
            records = _json_records(raw) if name.endswith("json") else _csv_records(raw, separator)
            for line, values, faults in records:
                outcome.read += 1
                if faults:
                    outcome.quarantined[name, line] = faults
                else:
                    rows.append({"file": file, "name": name, "line": line, **(values or {})})
        usable = _usable(rows, with_arrival, outcome)
        if with_arrival and len(usable):
            usable = usable.sort_values(["arrival_ts", "file", "line"], kind="stable")
        for row in usable.to_dict("records"):
            if any(row["k"] == key and abs(row["event_ts"] - at) <= WITHIN for key, at in kept):
                outcome.duplicates += 1
                continue
            kept.append((row["k"], row["event_ts"]))
            outcome.stored.append(tuple(row[column] for column in ("event_ts", "arrival_ts", *COLUMNS)))
    return outcome


def _csv_records(raw: bytes, separator: str) -> Iterator[tuple[int, dict[str, str] | None, set[str]]]:
    text = raw.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n")
    (_, header, _), *records = strict_csv(text, separator, '"')
    assert header is not None
    for line, fields, _ in records:
        faults = set()
        if fields is None:
            faults.add("has text after a closing quote")
            faults.add("has a quote that is never closed")
        elif len(fields) != len(header):
            faults.add(f"has {len(fields)} field")
        elif fields == header:
            faults.add("repeats the header")
        if fields is not None and any("\udcff" in value for value in fields):
            faults.add("is not valid")
        yield line, None if faults else dict(zip(header, fields or (), strict=False)), faults


def _json_records(raw: bytes) -> Iterator[tuple[int, dict[str, str] | None, set[str]]]:
    for number, line in enumerate(io.StringIO(raw.decode()), 1):
        if not line.strip():
            continue
        twice: list[bool] = []

        def pairs(items: list[tuple[str, Any]], twice: list[bool] = twice) -> dict[str, Any]:
            twice.append(len(dict(items)) < len(items))
            return dict(items)

        try:
            value = json.loads(line, parse_float=str, parse_int=str, object_pairs_hook=pairs)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            yield number, None, {"is not a JSON object"}
        elif any(twice):
            yield number, None, {"has a key more than once"}
        else:
            yield number, {name: text for name, text in value.items() if text is not None}, set()


def _usable(rows: list[dict[str, Any]], with_arrival: bool, outcome: Outcome) -> pd.DataFrame:
    """Return the rows that can be stored, with typed values; the others go to quarantine."""
    table = pd.DataFrame(rows, columns=["file", "name", "line", "event_ts", "arrival_ts", *COLUMNS], dtype=object)
    for column in ("event_ts", "arrival_ts", *COLUMNS):
        empty = table[column].isna() | table[column].isin(["", *NULL_VALUES])
        table[column] = table[column].where(~empty, None)
    given = table["event_ts"].notna()
    event, arrival = _times(table["event_ts"]), _times(table["arrival_ts"])
    faults = pd.DataFrame(index=table.index)
    faults["has no event time"] = ~given
    faults["event time cannot be read"] = given & event.isna()
    faults["arrival time cannot be read"] = table["arrival_ts"].notna() & arrival.isna()
    times = ~faults.any(axis=1)
    latest = pd.Timestamp("2100-01-01", tz="UTC") if not with_arrival else arrival
    faults["event time is too far in the future"] = times & (event > latest + MAX_FUTURE)
    faults["time is before 1900-01-01, the earliest allowed"] = times & (event < pd.Timestamp("1900-01-01", tz="UTC"))
    old = times & (arrival - event > MAX_AGE)
    faults["clock"] = old & ~faults["time is before 1900-01-01, the earliest allowed"]
    well = ~faults.any(axis=1)
    for column, kind in COLUMNS.items():
        typed = [None if text is None else _typed(text, kind) for text in table[column]]
        wrong = [value is MISFIT for value in typed]
        faults[f"column {column} is not {kind}"] = well & pd.Series(wrong, index=table.index, dtype=bool)
        table[column] = pd.Series(typed, index=table.index, dtype=object)
    table["event_ts"], table["arrival_ts"] = event, arrival
    for place in table.index[faults.any(axis=1)]:
        reasons = {name for name in faults.columns if faults.loc[place, name]}
        outcome.quarantined[table.loc[place, "name"], table.loc[place, "line"]] = reasons
    usable = table[~faults.any(axis=1)].copy()
    for column in COLUMNS:
        usable[column] = usable[column].astype(object).where(usable[column].notna(), None)
    return usable if with_arrival else usable.assign(arrival_ts=None)


def _times(texts: pd.Series) -> pd.Series:
    """Return texts as times, by pandas: texts that the documented grammar takes, and no others."""
    stripped = texts.map(lambda text: None if text is None else text.strip())
    by_grammar = stripped.where(stripped.map(lambda text: bool(text and _TIME.fullmatch(text))), None)
    # pandas keeps nanoseconds in 64 bits, and takes years from 1677 on
    times = pd.to_datetime(by_grammar, errors="coerce", utc=True, format="ISO8601").astype("datetime64[us, UTC]")
    numbers = stripped.map(lambda text: bool(text and re.fullmatch(r"\d{1,18}", text)))
    counted = pd.to_datetime(pd.to_numeric(stripped.where(numbers, None)), unit="us", utc=True, errors="coerce")
    return times.fillna(counted.astype("datetime64[us, UTC]"))


MISFIT = object()
"""Stands for a value that does not fit its type."""


def _typed(text: str, kind: str) -> Any:
    if kind == "string":
        return text
    if not _NUMBER.fullmatch(text.strip()):
        return MISFIT
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return MISFIT
    if kind == "double":
        return float(number) if np.isfinite(float(number)) else MISFIT
    if kind == "bigint":
        whole = number == number.to_integral_value() and -(2**63) <= number < 2**63
        return int(number) if whole else MISFIT
    fits = abs(number) < 1000 and number * 100 == (number * 100).to_integral_value()
    return number.quantize(Decimal("0.01")) if fits else MISFIT
