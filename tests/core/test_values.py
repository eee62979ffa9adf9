"""Texts become values exactly or not at all, and columns of texts get a type: against plain Python."""

import math
import pickle
import re
import struct
from datetime import UTC, date, datetime
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from latecomer.ingest.values.arrow_types import arrow_type, spark_type
from latecomer.ingest.values.convert import convert
from latecomer.ingest.values.inference import TextProfile, explain, infer, merge, profile, wider

NUMBER = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?")
SPECIAL = re.compile(r"nan|NaN|NAN|[+-]?(inf|Inf|INF|Infinity)")
BLANKS = " \t\n\r\v\f"
BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def read(text, kind, decimal_comma=False):
    """Return the value of one text and whether it fits."""
    values, fits = convert(pa.array([text], pa.string()), kind, "UTC", decimal_comma)
    assert values.type == arrow_type(kind) and (fits[0] or values[0].as_py() is None)
    return values[0].as_py(), bool(fits[0])


def exact(text, decimal_comma=False):
    """Return the number that a text is; None where it is none."""
    text = text.strip(BLANKS)
    if decimal_comma:
        text = text.replace(",", "?").replace(".", "!").replace("?", ".")
    return Fraction(text) if NUMBER.fullmatch(text) else None


def nearest_single(value):
    """Return the float nearest to a fraction, ties to even; infinite beyond the largest."""
    if value == 0:
        return 0.0
    largest = float(np.finfo(np.float32).max)
    rough = np.float32(
        min(max(float(value) if abs(value) < 10**300 else math.copysign(math.inf, value), -largest), largest)
    )
    with np.errstate(over="ignore"):
        near = [rough, *(np.nextafter(rough, np.float32(side)) for side in (-np.inf, np.inf))]
    if abs(value) >= 2**128 - 2**103:
        return math.copysign(math.inf, value)
    even = [x for x in near if np.isfinite(x)]
    return float(min(even, key=lambda x: (abs(Fraction(float(x)) - value), struct.unpack("<I", x.tobytes())[0] & 1)))


digits = st.text("0123456789", max_size=24)
numbers = st.builds(
    lambda sign, whole, point, rest, exponent: f"{sign}{whole}{point}{rest}{exponent}",
    st.sampled_from(["", "-", "+"]),
    digits,
    st.sampled_from(["", ".", ","]),
    digits,
    st.one_of(st.just(""), st.integers(-330, 330).map("e{}".format), st.integers(-9, 9).map("E{:+d}".format)),
)
texts = st.one_of(numbers, numbers.map(" {}\t".format), st.text(max_size=6), st.floats().map(repr))


@settings(max_examples=400, deadline=None)
@given(texts, st.booleans())
@example("9.0", False)
@example("1e3", False)
@example("1_000", False)
@example("0x1F", False)
@example("1,000", False)
@example("1.000", True)
@example("9223372036854775807", False)
@example("-9223372036854775808.000", False)
@example("9223372036854775808", False)
@example("92233720368547758070e-1", False)
@example("2.5e1", False)
@example("\u0661", False)
@example("1e999999999999999999999", False)
@example("0e999999999999999999999", False)
def test_whole_numbers_and_decimals_are_exact_or_do_not_fit(text, decimal_comma):
    value = exact(text, decimal_comma) if "e99" not in text else Fraction(0) if text[0] == "0" else Fraction(10**400)
    for kind, bits in BITS.items():
        fits = value is not None and value.denominator == 1 and -(1 << bits - 1) <= value < 1 << (bits - 1)
        assert read(text, kind, decimal_comma) == ((int(value), True) if fits else (None, False)), kind
    for precision, scale in ((5, 2), (38, 0), (38, 37), (18, 6), (20, 20)):
        scaled = None if value is None else value * 10**scale
        fits = scaled is not None and scaled.denominator == 1 and abs(scaled) < 10**precision
        result, known = read(text, f"decimal({precision},{scale})", decimal_comma)
        assert known == fits
        assert not fits or Fraction(result) == value


@settings(max_examples=400, deadline=None)
@given(texts, st.booleans())
@example("1e-50", False)
@example("1e300", False)
@example("-1e39", False)
@example("3.4028235677973366e38", False)
@example("3.4028235677973365e38", False)
@example("1.7976931348623158e308", False)
@example("1.7976931348623159e308", False)
@example("2.47e-324", False)
@example("2.48e-324", False)
@example("9007199254740993", False)
@example("9007199254740992.99999999999999999999", False)
@example("1.00000017881393432617187499", False)  # nearest to a float whose double would be rounded up
@example("1.00000017881393432617187500", False)
@example("0.1", False)
@example("-0.0", False)
@example("0e400", False)
def test_floating_numbers_are_the_nearest_to_the_text(text, decimal_comma):
    value, special = exact(text, decimal_comma), SPECIAL.fullmatch(text.strip(BLANKS))
    for kind in ("double", "float"):
        result, fits = read(text, kind, decimal_comma)
        if special:
            assert fits and (result == float(text) or (math.isnan(result) and math.isnan(float(text))))
            continue
        try:
            nearest = None if value is None else nearest_single(value) if kind == "float" else float(value)
        except OverflowError:
            nearest = math.inf
        expected = nearest is not None and math.isfinite(nearest) and (nearest != 0 or value == 0)
        assert fits == expected, (kind, nearest)
        assert not fits or result == nearest
        if fits and value == 0:
            assert math.copysign(1, result) == (-1 if text.strip(BLANKS).startswith("-") else 1)


@settings(max_examples=200, deadline=None)
@given(st.dates(), st.sampled_from(["", "T00:00", " 00:00:00", "T00:00:00.000", "T10:00", "T00:00:01", "Z", "T00:00Z"]))
def test_a_date_may_have_a_time_of_day_that_says_no_more(day, rest):
    fits = not rest or (rest.startswith(("T00:00", " 00:00")) and not rest.endswith(("1", "Z")))
    assert read(f" {day.isoformat()}{rest} ", "date") == ((day, True) if fits else (None, False))


@pytest.mark.parametrize(
    "text", ["2023-02-29", "2100-02-29", "2024-13-01", "2024-00-10", "2024-1-01", "24-01-01", "2024-04-31",
             "0000-01-01", "2024-W05-1", "2024-032", "20240101", "2024-01-01T", "2024-01-01 24:00:00", "now", ""]
)  # fmt: skip
def test_days_that_do_not_exist_are_no_dates(text):
    assert read(text, "date") == (None, False)
    assert read("2024-02-29", "date") == (date(2024, 2, 29), True)


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "false", "False", "FALSE"])
def test_truth_values(text):
    assert read(f" {text}", "boolean") == (text.lower() == "true", True)
    for wrong in (text[:-1], text + "e", text[0].swapcase() + text[1:], "1", "yes", "t", ""):
        if wrong not in ("TRUE", "True", "true", "FALSE", "False", "false"):
            assert read(wrong, "boolean") == (None, False), wrong


def test_times_are_read_by_their_grammar_and_numbers_are_none():
    instant = datetime(2024, 7, 1, 10, tzinfo=UTC)
    assert convert(pa.array(["2024-07-01T12:00"]), "timestamp", "Europe/Berlin")[0].to_pylist() == [instant]
    assert read("2024-07-01 12:00:00+02:00", "timestamp_ntz") == (instant.replace(tzinfo=None), True)
    for wrong in ("1700000000", "5", "1e3", "2024-07-01 12:00 CST", "x", ""):
        assert read(wrong, "timestamp") == (None, False), wrong


@pytest.mark.parametrize("kind", [*BITS, "float", "double", "decimal(5,2)", "boolean", "date", "timestamp", "string"])
@pytest.mark.parametrize("string", [pa.string(), pa.large_string()])
def test_nulls_slices_and_empty_arrays(kind, string):
    text = pa.array(["x", None, "1", "true", "2024-01-01", None, "9.5", "x"], string)[1:7]
    values, fits = convert(text, kind, "UTC")
    alone = [convert(text[i : i + 1], kind, "UTC") for i in range(len(text))]
    assert values.to_pylist() == [pair[0][0].as_py() for pair in alone]
    assert fits.tolist() == [bool(pair[1][0]) for pair in alone] and fits[0] and fits[4]
    assert values.null_count >= 2 and values.type == arrow_type(kind)
    empty, fits = convert(text[:0], kind, "UTC")
    assert (len(empty), len(fits), empty.type) == (0, 0, arrow_type(kind))
    nulls, fits = convert(pa.nulls(3, string), kind, "UTC")
    assert nulls.null_count == 3 and fits.all()


def test_no_text_fits_a_nested_type():
    values, fits = convert(pa.array(["[1]", None]), "array<bigint>", "UTC")
    assert (values.to_pylist(), fits.tolist(), values.type) == (
        [None, None],
        [False, True],
        arrow_type("array<bigint>"),
    )


@pytest.mark.parametrize(
    "kind",
    ["bigint", "decimal(38,10)", "timestamp", "timestamp_ntz", "array<array<int>>", "map<string,decimal(5,2)>",
     "struct<a:int,b:struct<`x y`:date,`q``,>:`:string>>", "array<struct<m:map<string,array<double>>>>", "binary"],
)  # fmt: skip
def test_names_of_types_come_back(kind):
    assert spark_type(arrow_type(kind)) == kind


@pytest.mark.parametrize("kind", ["interval", "array<>", "map<string>", "struct<a>", "decimal(5)", "bigint "])
def test_what_is_no_type_has_none(kind):
    with pytest.raises(ValueError, match="no such type"):
        arrow_type(kind)


INFERRED = [
    ("bigint", ["1", "-5", "+7", "0", "-0", "9223372036854775807", "-9223372036854775808"]),
    ("decimal(38,0)", ["1", "9223372036854775808"]), ("decimal(38,0)", ["9" * 38]), ("string", ["9" * 39]),
    ("string", ["007", "1"]), ("string", ["-01"]), ("string", ["00.5"]), ("double", ["0.5", "1", "1e3", ".5", "5."]),
    ("double", ["9.0", "8.0"]), ("double", ["12345678901234567890", "0.5"]), ("double", ["NaN", "-inf", "Infinity"]),
    ("string", ["NaN", "1234567890123456"]), ("double", ["NaN", "123456789012345"]), ("string", ["-NaN"]),
    ("boolean", ["true", "FALSE"]), ("string", ["true", "1"]), ("string", ["tRUE"]), ("string", [""]),
    ("timestamp", ["2024-01-01T00:00", "2024-01-01 00:00:00.123456789+02:00", "2024-01-01T00:00Z"]),
    ("string", ["2024-01-01"]), ("string", ["2024-13-01T00:00"]), ("string", ["2024-02-30 00:00"]), ("string", ["1,5"]),
    ("string", ["0x1F"]), ("string", ["1_000"]), ("string", ["."]), ("string", ["e5"]), ("string", ["1e"]),
    ("string", ["nil", "1"]), (None, []), (None, [None, None]), ("bigint", [None, "5", " 6 "]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "texts"), INFERRED)
def test_the_narrowest_type_that_holds_every_text(kind, texts):
    text = pa.array(texts, pa.string())
    counted = profile(text, None, "UTC")
    assert infer(counted) == kind
    parts = [profile(text[i : i + 1], None, "UTC") for i in range(len(text))]
    assert infer(merge([TextProfile.from_json(part.to_json()) for part in parts])) == kind
    if kind not in (None, "string"):
        assert convert(text, kind, "UTC")[1].all()


def test_the_decimal_comma_is_the_point():
    assert infer(profile(pa.array(["1,5", "2"]), None, "UTC", True)) == "double"
    assert infer(profile(pa.array(["1.5", "2"]), None, "UTC", True)) == "string"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), texts, st.sampled_from(["true", "nil", "007", "2024-01-01T00:00Z"])), max_size=12),
       st.sampled_from([None, "bigint", "double", "boolean"]), st.integers(0, 12))  # fmt: skip
def test_profiles_of_parts_add_up_to_that_of_the_whole(values, kind, cut):
    text = pa.array(values, pa.string())
    whole = profile(text, kind, "UTC")
    parts = merge([pickle.loads(pickle.dumps(profile(part, kind, "UTC"))) for part in (text[:cut], text[cut:])])
    assert (parts.values, parts.matches, parts.fits, parts.odd) == (whole.values, whole.matches, whole.fits, whole.odd)
    assert whole.values == sum(value is not None for value in values)
    if kind is not None:
        odd = [value for value in values if value is not None and not read(value, kind)[1]]
        assert (whole.fits, whole.odd) == (whole.values - len(odd), min(odd, default=None, key=str.encode))


def test_a_column_that_is_text_for_some_odd_values_is_explained():
    def why(text):
        return explain(profile(pa.array(text, pa.string()), None, "UTC"))

    text = pa.array(["1.5"] * 51_220 + ["nil"] * 1_061)
    parts = [profile(part, None, "UTC") for part in (text[:100], text[100:52_000], text[52_000:])]
    sentence = "1,061 of 52,281 values are no number: 'nil'"
    assert why(text) == explain(merge(parts)) == (sentence, "double")
    assert why(["1"] * 9 + ["ERR"]) == ("1 of 10 values is no number: 'ERR'", "double")
    assert why(["1"] * 20 + ["b"] * 3 + ["a"] * 5 + ["c", "d", "true"])[0].endswith("no number: 'a', 'b', 'c'")
    assert why(["2024-01-01T00:00Z"] * 3 + ["5"]) == ("1 of 4 values is no time: '5'", "timestamp")
    assert why(["NULL", "5", "NULL", "N/A", "\\N", "7"]) == ("4 of 6 values are no number: 'NULL'", "double")
    for silent in (["a", "b", "1"], ["1", "2"], ["007", "8"], ["a"], [], ["NA", "NULL"]):
        assert why(silent) is None


@pytest.mark.parametrize(
    ("stored", "texts", "after"),
    [
        ("bigint", ["5.5", "7.25", "8"], "double"), ("bigint", ["9.0"], None), ("bigint", ["5.5", "ERR"], "double"),
        ("bigint", ["ERR"], None), ("bigint", ["NaN", "1"], "double"), ("bigint", ["9" * 30], "decimal(38,0)"),
        ("bigint", ["007", "5.5"], None), ("int", ["3000000000"], "bigint"), ("int", ["0.5"], "double"),
        ("double", ["1e999"], None), ("decimal(5,2)", ["0.125"], None), ("decimal(5,2)", ["123456"], "decimal(21,2)"),
        ("string", ["5"], None), ("float", ["1e300"], "double"),
    ],
)  # fmt: skip
def test_a_stored_column_becomes_wider_for_numbers_alone(stored, texts, after):
    assert wider(stored, profile(pa.array(texts), stored, "UTC")) == after
