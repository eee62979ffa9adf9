"""The command `init`: make a project with landing folders, a stream file and a commented query file for each kind.

Beside them lie the JSON Schemas of both kinds of files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from latecomer.lake.errors import InputError
from latecomer.specs import schema

_MODELINE = "# yaml-language-server: $schema=../schemas/{}.json\n"
"""The line by which editors with a YAML language server know the schema of a file."""

JOIN = """\
# Pairs of rows of two streams whose event times differ by at most a window.
name: clicks_after_views
kind: join
streams: {view: views, click: clicks}      # alias: stream; the same stream twice is a self join
keys: [session]                            # columns that must be equal; {view: session, click: sid} if named otherwise
window: 10 min                             # |view.event_ts - click.event_ts| <= 10 min
# where: click.event_ts >= view.event_ts   # any condition over both streams; a null never matches
# select: [view.page, click.target]        # default: every column of both streams
quality: {recall: 0.95, period: 1 h}       # in 95% of hours, chance aside, 95% of the pairs are published on time
# strategy: {name: qjoin, estimator: calibrated}   # default
#   other strategies: exact (keeps every row), k_slack (slack: 5 s), mp_k_slack, aq_k_slack
#   other estimators, for comparison: empirical, delay_aware and paper miss the target in many periods
# schedule: {repair: "@hourly", adapt: "@daily", audit: "@weekly"}
"""

AGGREGATE = """\
# Sums, counts and quantiles over sliding windows: published once they are probably close enough, exact after repair.
name: views_per_page
kind: aggregate
streams: {v: views}
group_by: [page]                           # optional
window: {size: 1 h, slide: 10 min}         # or only a size, for windows that do not overlap
select: {views: count(), seconds: sum(seconds), typical: median(seconds), p90: quantile(seconds, 0.9)}
#   functions: count() sum avg min max median quantile(x, q); their arguments are any expressions
# where: seconds > 0
quality: {error: 0.05, probability: 0.95, period: 1 d}   # 95% of a day's answers have an error below 5%
# strategy: {name: calibrated, gamma: 5 s} # default; others: hpm, mp_k_slack, aq_k_slack, k_slack (slack: 5 s), exact
"""

TOPK = """\
# The k best rows by a score in every window (and group): published once enough of them are probably known.
name: longest_views
kind: topk
streams: {v: views}
group_by: [page]
score: seconds                             # any expression; of equal scores the earlier event time, then arrival, wins
k: 5
window: {size: 1 h, slide: 10 min}
select: [session]                          # default: every column
quality: {hit_rate: 0.95, period: 1 d}     # on 95% of days, 95% of the final k are in the first answers
# strategy: {name: calibrated}             # default; others: adaptive_wait (candidates, windows, initial_wait), none
"""

THETA_JOIN = """\
# Rows of two or more streams that meet comparisons by <, <=, >, >=, =, in every window.
name: longer_views
kind: theta_join
streams: {short: views, long: views}
window: {size: 1 h, slide: 1 h}
conditions: [short.seconds < long.seconds, short.page = long.page]
# where: long.seconds > 60                 # the rows that take part; each part between `and` reads one stream
emit: count                                # rows | count | ranges (all matches, in about the size of the input)
# select: [short.session, long.session]    # with emit: rows; default: every column of all streams
quality: {recall: 0.95, period: 1 d}       # on 95% of days, 95% of the matches are on time; not with emit: ranges
# strategy: {slack: 10 min}                # a constant wait for late rows; default: as the recall needs
#   name: fast_theta_join is the default; cfs, one_bucket, spark_sql and cross_product compute the same
# schedule: {interval: "@daily"}           # a DAG that `airflow backfill create` can run for any past range
"""

MEMBERSHIP = """\
# Elements seen in every stream within a window. Filters keep most rows from being moved; the answer is exact.
name: viewed_and_clicked
kind: membership
streams: {a: views, b: clicks}
element: session                           # or {a: session, b: sid}
window: {size: 10 min, slide: 10 min}
# where: a.seconds > 10 and b.target = 'buy'   # the rows that take part; each part between `and` reads one stream
quality: {recall: 0.95, period: 1 d}       # on 95% of days, 95% of the elements are published on time
#   false_positive_rate: 0.001             # of the filters; it changes no answer
# strategy: {slack: 10 min}                # a constant wait for late rows; default: as the recall needs
#   name: mcf is the default, with fingerprint_bits: 12 and bucket: 4; others: one_filter, bloom, exact
"""

README = """\
landing/<stream>/       files of one stream (.csv, .parquet or .json lines); every row needs event_ts
landing/_by_<column>/   files of several streams, whose <column> names each row's stream: ingest --by <column>
streams/                how the files of a stream are read, if not by the defaults
queries/                one file per query
schemas/                how both kinds of files are written, for editors that complete and check them

latecomer ingest --lake lake --streams streams views=landing/views clicks=landing/clicks
latecomer run    queries/join.yaml --lake lake
latecomer repair queries/join.yaml --lake lake --flush
latecomer check  queries/join.yaml --lake lake --report report
latecomer export queries/join.yaml --lake lake --table results --to results.parquet
"""


STREAM = """\
# How the files of stream `views` are read. The file of those in landing/_by_type/ is _by_type.yaml. The defaults are:
# event_column: event_ts      # the event time
# arrival_column: arrival_ts  # the arrival time; the column may be missing
# timezone: UTC               # of times without a time zone
# time_unit: us               # of times that are numbers: us, ms or s since 1970
# format: csv                 # csv, json or parquet; the default follows the file's suffix
# max_future: 1 d             # rows whose event time is later than their arrival by more go to quarantine
# max_quarantined: 1          # 0.05 refuses files with more than 5% of rows that cannot be used
# recursive: false            # true: read files in folders of the folder too
"""


EXAMPLE = "landing/_by_stream/example.csv"
EXAMPLE_ROWS = 4_000
_DAY_US = 86_400_000_000


def example(rows: int = EXAMPLE_ROWS) -> pa.Table:
    """Make a day of views and of the clicks that followed them, in the order of arrival; the same rows at every call.

    A quarter of the rows is minutes late, and one in twenty is hours late.

    Parameters
    ----------
    rows
        Number of rows of both streams.

    Returns
    -------
    pyarrow.Table
        Columns ``stream``, ``event_ts`` and ``arrival_ts`` (timestamps in UTC), ``session``, ``page``, ``seconds`` (of
        views alone) and ``target`` (of clicks alone).
    """
    rng = np.random.default_rng(7)
    views = rows * 5 // 8
    view_time_us = np.sort(rng.integers(0, _DAY_US, views))
    clicked_view = rng.choice(views, rows - views, replace=False)
    click_time_us = view_time_us[clicked_view] + (rng.exponential(90.0, len(clicked_view)) * 1e6).astype(np.int64)
    event = np.concatenate([view_time_us, click_time_us]) + 1_704_067_200_000_000  # 2024-01-01
    session = rng.integers(0, views // 4, views)
    mean_delay_s = rng.choice([2.0, 300.0, 7_200.0], rows, p=[0.70, 0.25, 0.05])
    arrival = event + (rng.exponential(mean_delay_s) * 1e6).astype(np.int64)
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
            "session": [f"s{n}" for n in np.append(session, session[clicked_view])[order]],
            "page": pa.array(pages[rng.integers(0, 5, rows)][order], mask=~is_view[order]),
            "seconds": pa.array(seconds[order], mask=~is_view[order]),
            "target": pa.array(pages[rng.integers(0, 5, rows)][order], mask=is_view[order]),
        }
    )


def make(folder: Path, with_example: bool = False) -> list[str]:
    """Make a new project.

    Parameters
    ----------
    folder
        The project's folder, which does not exist or is empty.
    with_example
        True to make a landing file of example rows too.

    Returns
    -------
    list of str
        One line for each file or folder that was made.

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
        readme = README
        if with_example:
            readme = readme.replace("views=landing/views clicks=landing/clicks", "--by stream landing/_by_stream")
        files = {f"queries/{kind}.yaml": _MODELINE.format("query") + content for kind, content in queries.items()}
        files |= {"streams/views.yaml": _MODELINE.format("stream") + STREAM, "README.txt": readme}
        files |= {f"schemas/{kind}.json": schema.text(kind) for kind in schema.FILES}
        for name in ("landing/views", "landing/clicks", "queries", "streams", "schemas"):
            (folder / name).mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
        if with_example:
            (folder / EXAMPLE).parent.mkdir()
            pacsv.write_csv(example(), folder / EXAMPLE)
    except OSError as error:
        problem = error.strerror or str(error)
        raise InputError("init", str(folder), problem, "choose a folder that can be written") from None
    examples = [EXAMPLE] if with_example else []
    return [f"made {folder}/{name}" for name in ("landing/views/", "landing/clicks/", *files, *examples)]
