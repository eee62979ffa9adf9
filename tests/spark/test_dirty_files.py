"""Generated dirty files against an oracle in pandas: rows, values, order, reasons, and nothing lost or made up."""

import re

import numpy as np
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st
from latecomer.ingest.ingest import ingest
from latecomer.ingest.options import IngestOptions
from latecomer.lake import result_views
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import by_stream
from latecomer.lake.lake import Lake
from latecomer.specs.streams import TextLayout

from tests.support import dirty_files

DAY_US = 86_400_000_000


@settings(max_examples=5, deadline=None, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32), with_arrival=st.booleans())
def test_dirty_files_come_to_what_the_oracle_says(spark, tmp_path_factory, seed, with_arrival):
    rng = np.random.default_rng(seed)
    separator = str(rng.choice([",", ";"]))
    calls = dirty_files.generate(rng, False, with_arrival, separator)
    expected = dirty_files.expect(calls, with_arrival, separator)
    options = IngestOptions(
        stream="s",
        columns=tuple(dirty_files.COLUMNS.items()),
        layout=TextLayout(separator=separator, null_values=dirty_files.NULL_VALUES),
        key=("k",),
        within_us=3_600_000_000,
        max_age_us=30 * DAY_US,
    )
    folder = tmp_path_factory.mktemp("dirty")
    lake, done = Lake(folder / "lake"), []
    for number, files in enumerate(calls):
        (folder / str(number)).mkdir()
        for name, raw in files.items():
            (folder / str(number) / name).write_bytes(raw)
        try:
            done.append(ingest(lake, [str(folder / str(number))], options))
        except InputError as error:  # not one row of the call has an event time, so its column is not known
            assert "'event_ts': no such column" in str(error)
            reject()
    rows = lake.table("events", "s").read() if lake.table("events", "s").exists() else None
    stored = [] if rows is None else rows.sort_by("seq").to_pylist()
    columns = ("event_ts", "arrival_ts", *dirty_files.COLUMNS)
    assert [tuple(row.get(name) for name in columns) for row in stored] == expected.stored
    quarantined = result_views.quarantine(lake, ["s"]).to_pylist()
    places = {(row["file"].rpartition("/")[2], row["line"]): row["reason"] for row in quarantined}
    assert places.keys() == expected.quarantined.keys()
    for place, reason in places.items():
        assert reason.startswith(tuple(expected.quarantined[place])), (place, reason, expected.quarantined[place])
    counts = by_stream(lake).get("s", {"read": 0, "rows": 0, "quarantined": 0, "duplicates": 0})
    assert counts["read"] == expected.read == counts["rows"] + counts["quarantined"] + counts["duplicates"]
    assert (counts["rows"], counts["duplicates"]) == (len(expected.stored), expected.duplicates)
    assert sum(call.rows_read for call in done) == expected.read
    assert all(re.search(r"\S", row["reason"]) for row in quarantined)
