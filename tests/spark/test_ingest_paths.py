"""Ways on which rows come into their tables agree: whatever the number of ranges, and whether rows are kept or not."""

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from latecomer.ingest import arrow_rows, content, order_ranges
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake.lake import Lake
from latecomer.spark.engine import tables, tuning
from latecomer.specs.streams import TextLayout

RNG = np.random.default_rng(51)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None, 7, 7, 7, -3, 9_000_000_000_000_000_000]),
        pa.array([None, "-21", "003", "003", "7"]),
        pa.array([None, float("nan"), 0.1, -0.0, 0.0, float("-inf")]),
        pa.array([None, Decimal("0.10"), Decimal("-12345678901234567890.25")]),
        pa.array([None, date(1, 1, 1), date(2024, 2, 29)]),
        pa.array([None, -5, 1_717_200_000_000_001], pa.timestamp("us", "UTC")),
        pa.array([None, None], pa.int64()),
    ],
    ids=["bigint", "string", "double", "decimal", "date", "timestamp", "void"],
)
def test_ranges_give_the_places_of_one_sort(spark, monkeypatch, values):
    monkeypatch.setattr(order_ranges, "MOST_ROWS", 40)
    rows = 400
    table = pa.table(
        {
            "_order": values.take(pa.array(RNG.integers(0, len(values), rows))),
            "_file": pa.array(RNG.integers(0, 3, rows), pa.int32()),
            "_row": RNG.permutation(rows),
        }
    )
    frame = tables.to_spark(spark, table)
    bounds = order_ranges.narrow_bounds(frame, rows)
    number = order_ranges.range_of(frame, bounds).alias("number")
    sizes = dict(map(tuple, frame.groupBy(number).count().collect()))
    ranges = order_ranges.join_ranges(spark, bounds, sizes)
    assert len(ranges.sizes) >= 8 and sum(ranges.sizes) == rows and max(ranges.sizes) < 100
    numbered = ranges.with_seq(frame, 1_000).toArrow().sort_by("seq")
    assert numbered["seq"].to_pylist() == list(range(1_000, 1_000 + rows))
    whole = frame.coalesce(1).sort(*order_ranges._order()).toArrow()
    assert numbered.select(["_file", "_row"]).equals(whole.select(["_file", "_row"]))


@pytest.mark.parametrize("key", [(), ("device",)])
def test_rows_that_are_read_again_are_those_that_were_kept(tmp_path, spark, monkeypatch, key):
    rows = 60_000
    event = RNG.integers(0, 50, rows) * 1_000_000
    table = pa.table(
        {
            "event_ts": pa.array(event, mask=RNG.random(rows) < 0.001),
            "arrival_ts": pa.array(event + RNG.integers(-2, 9, rows), mask=RNG.random(rows) < 0.1),
            "device": RNG.integers(0, 3_000, rows).astype(str),
            "value": RNG.random(rows),
        }
    )
    pq.write_table(table.slice(0, 20_000), tmp_path / "1.parquet")
    pq.write_table(table.slice(20_000), tmp_path / "2.parquet")
    options = IngestOptions(stream="s", key=key, within_us=10_000_000 if key else None)
    outcomes = []
    for place, (cheap, most) in enumerate(((True, 7_000), (False, 1_000_000))):
        monkeypatch.setattr(order_ranges, "MOST_ROWS", most)
        monkeypatch.setattr(tables, "DRIVER_LOCAL_ROWS", 1_000)
        if not cheap:
            monkeypatch.setattr(content.Content, "_is_cheap", lambda _: False)
        lake = Lake(tmp_path / f"lake{place}")
        done = ingest(lake, [str(tmp_path / "1.parquet"), str(tmp_path / "2.parquet")], options)
        assert bool(key) == bool(done.rows_repeated) and done.rows_quarantined == {"s": table["event_ts"].null_count}
        held = [lake.table(area, "s").read() for area in ("events", "quarantine")]
        outcomes.append((held[0].sort_by("seq"), held[1].sort_by([("file", "ascending"), ("line", "ascending")])))
    (kept, bad), (others, others_bad) = outcomes
    assert kept.num_rows > 10_000 and kept["seq"].to_pylist() == list(range(kept.num_rows))
    assert kept.equals(others) and bad.equals(others_bad)


def _dirty(rows, columns, seed, separator=","):
    """Return CSV whose columns have values that do not fit, and rows that are no rows."""
    rng = np.random.default_rng(seed)
    comma = "," if separator == ";" else "."
    values = {
        "event_ts": lambda i: rng.choice(["2024-06-01T10:00:{:02}Z", "2024-06-01 12:00:{:02}"]).format(i % 60),
        "arrival_ts": lambda i: f"2024-06-01T12:{i % 60:02}:00Z",
        "device": lambda _: f"d{rng.integers(0, 4)}",
        "n": lambda i: str(i),
        "f": lambda i: f"{i}{comma}5",
        "d": lambda i: f"{i % 900}{comma}25",
        "t": lambda _: rng.choice(["true", "false"]),
        "at": lambda i: f"2024-02-29T0{i % 9}:00:00",
        "id": lambda i: f"00{i}",
        "nothing": lambda _: "",
    }
    odd = ["", "nil", "2999-01-01", "1970-01-01T00:00:00Z", "9.0", "x", "99999999999999999999", "NaN", '"a""b"', "-1e3"]
    lines = [separator.join(columns)]
    for i in range(rows):
        fields = [rng.choice(odd) if rng.random() < 0.03 else values[name](i) for name in columns]
        lines.append(separator.join(fields) + ("" if rng.random() > 0.02 else rng.choice([separator, '"x', "\n"])))
    return "\n".join([*lines[: rows // 2], lines[0], *lines[rows // 2 :]]) + "\n"


ALL = ("event_ts", "device", "arrival_ts", "n", "f", "d", "t", "at", "id", "nothing")
CONTRACTS = {
    "inferred": IngestOptions(stream="s", timezone="Europe/Berlin"),
    "declared": IngestOptions(
        stream="s",
        columns=(("d", "decimal(5,2)"), ("n", "smallint"), ("at", "timestamp_ntz"), ("t", "boolean"), ("f", "float")),
        layout=TextLayout(null_values=("nil", "x"), separator=";", decimal_comma=True),
    ),
    "keyed": IngestOptions(
        stream="s", key=("device", "event_ts"), within_us=5_000_000, on_duplicate="quarantine", max_age_us=10**11
    ),
    "by": IngestOptions(by="device", time_unit="s"),
}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_texts_get_the_same_types_on_every_path(tmp_path, spark, monkeypatch, contract):
    options = CONTRACTS[contract]
    separator = options.layout.separator
    some = ("event_ts", "n", "device", "f")
    calls = [[_dirty(300, ALL, 1, separator), _dirty(200, some, 2, separator)], [_dirty(200, ALL[:6], 3, separator)]]
    outcomes = []
    for path in ("driver", "typed", "text"):
        lake = Lake(tmp_path / path)
        with monkeypatch.context() as patch:
            patch.setattr(tuning, "SMALL_ROWS", 50_000 if path == "driver" else -1)
            if path == "text":
                patch.setattr(content.Content, "_unusable", lambda *_: None)
            elif path == "typed":  # nothing is handed to Python by Spark
                patch.setattr(arrow_rows, "_map_batches", None)
            said = []
            for number, texts in enumerate(calls):
                folder = tmp_path / f"{number}"
                folder.mkdir(exist_ok=True)
                for place, text in enumerate(texts):
                    (folder / f"{place}.csv").write_text(text)
                done = ingest(lake, [str(folder)], options)
                said.append((done.rows_ingested, done.rows_quarantined, done.reasons, done.notes))
        held = {
            (area, stream): lake.table(area, stream).read().select(sorted(lake.table(area, stream).read().column_names))
            for area in ("events", "quarantine")
            for stream in lake.names(area)
        }
        order = {"events": ["seq"], "quarantine": ["ingest_id", "file", "line", "reason"]}
        outcomes.append((said, {k: v.sort_by([(c, "ascending") for c in order[k[0]]]) for k, v in held.items()}))
    (said, held), *others = outcomes
    assert sum(said[0][1].values()) > 20 and len(said[0][2]) > 3
    for other_said, other_held in others:
        assert other_said == said and other_held.keys() == held.keys()
        for name, table in held.items():
            assert table.schema == other_held[name].schema and table.equals(other_held[name]), name
