"""`init`: a project skeleton, a landing folder and a commented query file for each kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from latecomer.lake.errors import InputError

JOIN = """\
# Pairs of rows of two streams that happened within a window of one another.
name: clicks_after_views
kind: join
streams: {view: views, click: clicks}      # alias: stream; the same stream twice is a self join
keys: [session]                            # columns that must be equal; {view: session, click: sid} if named otherwise
window: 10 min                             # |view.event_ts - click.event_ts| <= 10 min
# where: click.event_ts >= view.event_ts   # any condition over both sides; a null never matches
# select: [view.page, click.target]        # default: every column of both
quality: {recall: 0.95, period: 1 h}       # in 95% of hours (less what chance takes), 95% of the pairs are published on time
# strategy: {name: qjoin, estimator: calibrated}
#   others: exact (keeps every row), k_slack (slack: 5 s), mp_k_slack, aq_k_slack
#   estimators empirical, delay_aware and paper: to compare with; they miss the target in many periods
# schedule: {repair: "@hourly", adapt: "@daily", audit: "@weekly"}
"""

AGGREGATE = """\
# Sums, counts and quantiles over sliding windows: published when they are likely close enough, exact after repair.
name: views_per_page
kind: aggregate
streams: {v: views}
group_by: [page]                           # optional
window: {size: 1 h, slide: 10 min}         # or just a size: windows then do not overlap
select: {views: count(), seconds: sum(seconds), typical: median(seconds), p90: quantile(seconds, 0.9)}
#   count() sum avg min max median quantile(x, q); each over any expression
# where: seconds > 0
quality: {error: 0.05, probability: 0.95, period: 1 d}   # 95% of a day's answers less than 5% off
# strategy: {name: calibrated, gamma: 5 s} # default; others: hpm, mp_k_slack, aq_k_slack, k_slack (slack: 5 s), exact
"""

TOPK = """\
# The k best rows by a score in every window (and group): published when enough of them are likely known.
name: longest_views
kind: topk
streams: {v: views}
group_by: [page]
score: seconds                             # any expression; ties: earlier event time, then earlier arrival
k: 5
window: {size: 1 h, slide: 10 min}
select: [session]                          # default: every column
quality: {hit_rate: 0.95, period: 1 d}     # in 95% of days, 95% of the final k are in the first answers
# strategy: {name: calibrated}             # default; others: adaptive_wait (candidates, windows, initial_wait), none, ...
"""

THETA_JOIN = """\
# Any conjunction of <, <=, >, >=, = between two or more streams, per window.
name: longer_views
kind: theta_join
streams: {short: views, long: views}
window: {size: 1 h, slide: 1 h}
conditions: [short.seconds < long.seconds, short.page = long.page]
# where: long.seconds > 60                 # which rows of a stream take part; each part between `and` reads one stream
emit: count                                # rows | count (0 where nothing matches) | ranges (all rows, about the input's size)
# select: [short.session, long.session]    # with emit: rows
quality: {recall: 0.95, period: 1 d}       # in 95% of days, 95% of the matches are published on time; not with emit: ranges
# strategy: {name: fast_theta_join, slack: 10 min}   # slack: a constant wait for late rows, in place of one for the recall
# schedule: {interval: "@daily"}           # a DAG that `airflow backfill create` can run for any past range
"""

MEMBERSHIP = """\
# Elements seen in every stream within a window. Filters save moving most rows; the answer is exact.
name: viewed_and_clicked
kind: membership
streams: {a: views, b: clicks}
element: session                           # or {a: session, b: sid}
window: {size: 10 min, slide: 10 min}
# where: a.seconds > 10 and b.target = 'buy'   # which rows of a stream take part; each part between `and` reads one stream
quality: {recall: 0.95, period: 1 d}       # in 95% of days, 95% of the elements are published on time
#   false_positive_rate: 0.001             # of the filters; answers are exact whatever it is
# strategy: {name: mcf, fingerprint_bits: 12, bucket: 4}   # others: one_filter, bloom, exact; slack: 10 min, a constant wait
"""

READ_ME = """\
landing/<stream>/       put files of one stream here (.csv, .parquet, .json lines); every row needs event_ts
landing/_by_<column>/   or files of many streams, whose <column> names each row's stream: ingest --by <column>
streams/                how the files of a stream are read, where that is to be said
queries/                one file per query

latecomer ingest --lake lake --streams streams views=landing/views clicks=landing/clicks
latecomer run    queries/join.yaml --lake lake
latecomer repair queries/join.yaml --lake lake --flush
latecomer check  queries/join.yaml --lake lake --report report
latecomer export queries/join.yaml --lake lake --table results --to results.parquet
"""


VIEWS = """# How the files of stream `views` are read (of landing/_by_type/: _by_type.yaml). Without these lines as here:
# event_column: event_ts      # when it happened
# arrival_column: arrival_ts  # when it arrived; the column may be missing
# timezone: UTC               # of times that name none
# time_unit: us               # of times that are numbers: us, ms or s since 1970
# format: csv                 # csv, json or parquet; by suffix
# max_future: 1 d             # what is later than its arrival by more goes to quarantine
# max_quarantined: 1          # with 0.05, files of which more than 5% of the rows cannot be used are refused
# recursive: false            # true: also files in folders of the folder
"""


EXAMPLE = "landing/_by_stream/example.csv"
EXAMPLE_ROWS = 4_000
_DAY_US = 86_400_000_000


def example(rows: int = EXAMPLE_ROWS) -> pa.Table:
    """A day of views and of the clicks that followed them, as they came in: one in four minutes late, one in twenty hours.

    Columns: ``stream``, ``event_ts``, ``arrival_ts`` (timestamps, UTC), ``session``, ``page``, ``seconds`` (of views), ``target`` (of
    clicks). The same at every call.
    """
    rng = np.random.default_rng(7)
    views = rows * 5 // 8
    seen = np.sort(rng.integers(0, _DAY_US, views))
    follows = rng.choice(views, rows - views, replace=False)
    clicked = seen[follows] + (rng.exponential(90.0, len(follows)) * 1e6).astype(np.int64)
    event = np.concatenate([seen, clicked]) + 1_704_067_200_000_000  # 2024-01-01
    session = rng.integers(0, views // 4, views)
    late = rng.choice([2.0, 300.0, 7_200.0], rows, p=[0.70, 0.25, 0.05])
    arrival = event + (rng.exponential(late) * 1e6).astype(np.int64)
    order = np.argsort(arrival, kind="stable")
    is_view = np.arange(rows) < views
    utc = pa.timestamp("us", tz="UTC")
    pages = np.array(["home", "search", "product", "basket", "help"])
    seconds = np.append(np.round(rng.gamma(2.0, 20.0, views), 1), np.zeros(rows - views))
    return pa.table(
        {
            "stream": np.where(is_view, "views", "clicks")[order],
            "event_ts": pa.array(event[order], pa.int64()).cast(utc),
            "arrival_ts": pa.array(arrival[order], pa.int64()).cast(utc),
            "session": [f"s{n}" for n in np.append(session, session[follows])[order]],
            "page": pa.array(pages[rng.integers(0, 5, rows)][order], mask=~is_view[order]),
            "seconds": pa.array(seconds[order], mask=~is_view[order]),
            "target": pa.array(pages[rng.integers(0, 5, rows)][order], mask=is_view[order]),
        }
    )


def make(folder: Path, with_example: bool = False) -> list[str]:
    """Write the skeleton, with the example's file if wanted; one line per thing made.

    Raises
    ------
    InputError
        The folder is not empty, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError("init", str(folder), "exists and is not an empty folder", "name a new one")
        queries = {
            "join": JOIN,
            "aggregate": AGGREGATE,
            "topk": TOPK,
            "theta_join": THETA_JOIN,
            "membership": MEMBERSHIP,
        }
        said = READ_ME
        if with_example:
            said = said.replace("views=landing/views clicks=landing/clicks", "--by stream landing/_by_stream")
        files = {f"queries/{kind}.yaml": content for kind, content in queries.items()}
        files |= {"streams/views.yaml": VIEWS, "README.txt": said}
        for name in ("landing/views", "landing/clicks", "queries", "streams"):
            (folder / name).mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        if with_example:
            (folder / EXAMPLE).parent.mkdir()
            pacsv.write_csv(example(), folder / EXAMPLE)
    except OSError as error:
        raise InputError(
            "init", str(folder), error.strerror or str(error), "choose a folder that can be written"
        ) from None
    more = [EXAMPLE] if with_example else []
    return [f"made {folder}/{name}" for name in ("landing/views/", "landing/clicks/", *files, *more)]
