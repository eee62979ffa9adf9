"""`init`: a project skeleton, a landing folder and a commented query file for each kind that can be run."""

from __future__ import annotations

from pathlib import Path

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
quality: {recall: 0.95, period: 1 h}       # in 95% of hours, at least 95% of the pairs the moment they are complete
# strategy: {name: qjoin, estimator: calibrated}
#   others: exact (keep everything), k_slack (slack: 5 s), mp_k_slack, aq_k_slack
# schedule: {repair: "@hourly", adapt: "@daily"}
"""

READ_ME = """\
landing/<stream>/    put files of one stream here (.csv, .parquet, .json lines); every row needs event_ts
queries/             one file per query

latecomer ingest --lake lake --stream views  landing/views
latecomer ingest --lake lake --stream clicks landing/clicks
latecomer run    queries/join.yaml --lake lake
latecomer repair queries/join.yaml --lake lake --flush
latecomer check  queries/join.yaml --lake lake --report report
latecomer export queries/join.yaml --lake lake --table results --to results.parquet
"""


def make(folder: Path) -> list[str]:
    """Write the skeleton; one line per thing made.

    Raises
    ------
    InputError
        The folder is not empty, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError("init", str(folder), "exists and is not an empty folder", "name a new one")
        files = {"queries/join.yaml": JOIN, "README.txt": READ_ME}
        for name in ("landing/views", "landing/clicks", "queries"):
            (folder / name).mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise InputError(
            "init", str(folder), error.strerror or str(error), "choose a folder that can be written"
        ) from None
    return [f"made {folder}/{name}" for name in ("landing/views/", "landing/clicks/", *files)]
