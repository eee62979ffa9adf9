"""Rows told apart by columns of any type, against Python's own sets."""

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from latecomer.lake import row_keys

NAN = float("nan")
VALUES = {
    "bigint beyond 2^53 beside null": pa.array([2**60, 2**60 + 1, None, 2**60, -(2**63), 2**63 - 1], pa.int64()),
    "double": pa.array([NAN, None, 0.0, NAN, -0.0, float("inf")], pa.float64()),
    "text": pa.array(["a", "A", "", None, "null", "a"]),
    "decimal": pa.array(
        [Decimal("1.10"), Decimal("1.11"), None, Decimal("1.10"), None, Decimal("0")], pa.decimal128(38, 2)
    ),
    "time": pa.array([0, 1, None, -1, 0, 1], pa.timestamp("us", tz="UTC")),
}


def same(row):
    return tuple("NaN" if isinstance(v, float) and math.isnan(v) else v for v in row)


@pytest.mark.parametrize("name", list(VALUES))
def test_codes_are_equal_where_values_are(name):
    rng = np.random.default_rng(7)
    tables = [
        pa.table({"k": VALUES[name].take(pa.array(rng.integers(0, 6, size))), "w": pa.array(rng.integers(0, 3, size))})
        for size in (40, 0, 25)
    ]
    found = row_keys.codes(tables, ["k", "w"])
    assert [len(each) for each in found] == [40, 0, 25]
    rows = [same(row.values()) for table in tables for row in table.to_pylist()]
    numbers = np.concatenate(found).tolist()
    assert len(set(zip(rows, numbers, strict=True))) == len(set(rows)) == len(set(numbers)) == max(numbers) + 1


@pytest.mark.parametrize("name", list(VALUES))
def test_hashes_are_equal_where_values_are_in_whatever_batch(name):
    rng = np.random.default_rng(8)
    table = pa.table({"k": VALUES[name].take(pa.array(rng.integers(0, 6, 60))), "w": pa.array(rng.integers(0, 3, 60))})
    batches = [*table.slice(7).to_batches(max_chunksize=9), *table.to_batches()]
    found = np.concatenate([row_keys.hashes(batch, ["k", "w"]) for batch in batches]).tolist()
    rows = [same(row.values()) for batch in batches for row in batch.to_pylist()]
    assert len(set(zip(rows, found, strict=True))) == len(set(rows)) == len(set(found))


def test_a_null_is_no_value_and_columns_do_not_change_places():
    one = pa.RecordBatch.from_pydict({"a": [1, 2, None, None, 0], "b": [2, 1, None, 0, None]})
    assert len(set(row_keys.hashes(one, ["a", "b"]).tolist())) == 5
    kinds = pa.RecordBatch.from_pydict({"t": pa.array([0, 1, None], pa.date32()), "f": [True, False, None]})
    assert len(set(row_keys.hashes(kinds, ["t", "f"]).tolist())) == 3
