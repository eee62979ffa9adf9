"""Check a query against its promises with Great Expectations, and write the outcome as Data Docs.

A check reads tables that the product wrote, never estimates: the ledger (recall on time against the target,
completeness after repair, rows held), the conservation invariants (:mod:`latecomer.quality.conservation`) and the
results (no row twice, repairs and on-time rows disjoint). All of that is bookkeeping. An audit computes the answers of
some periods anew (:mod:`latecomer.spark.audit`).
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from latecomer.lake import ingest_log, journal, result_views
from latecomer.lake.errors import InputError, LatecomerError
from latecomer.lake.lake import Lake
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.ledger import ledger as books
from latecomer.ledger.join_ledger import repaired
from latecomer.quality import conservation, duplicates, messages, promise
from latecomer.quality import report as pages
from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.spec import Spec

TRIES = 5
"""Attempts to commit the findings of an audit while other checks of the query commit."""
SILENT_PERIODS = 10
"""Periods by which a stream is behind the others when `check` names it, whether the query bounds silence or not."""


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a check.

    Attributes
    ----------
    results
        One description per expectation, of :func:`latecomer.quality.messages.describe`.
    report
        The page of the report; None where none was written.
    periods, unjudged, pending
        Periods of the ledger, periods that cannot be judged before a repair, and late rows that await repair.
    silent
        A sentence about streams that have been silent for long while others went on; the query's answers wait for them.
    """

    results: list[dict[str, Any]]
    report: Path | None = None
    periods: int = 0
    unjudged: int = 0
    pending: int = 0
    silent: str = ""

    @property
    def to_judge(self) -> str:
        """A sentence about the periods that could not be judged; empty where there are none."""
        return messages.unjudged(self.unjudged, self.periods, self.pending)

    @property
    def success(self) -> bool:
        """Did every expectation hold?"""
        return not self.failures

    @property
    def failures(self) -> list[str]:
        """One line per broken expectation: the expectation, the observed value, the periods or rows, the expected value, its name."""
        return [result["message"] for result in self.results if not result["success"]]

    @property
    def broken(self) -> list[str]:
        """The failures that break no promise but the product: rows that are lost, duplicated, or missing after repair."""
        promised = ("promises", "filters", "ledger", "streams")
        return [
            result["message"]
            for result in self.results
            if not result["success"]
            and (result["subject"] not in promised or result["expectation"] == "expect_complete_after_repair")
        ]


def check(
    lake: Lake,
    spec: Spec,
    *,
    report_dir: Path | None = None,
    audit: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> CheckOutcome:
    """Run the query's expectation suite over its ledger, results and invariants. Only an audit starts Spark.

    Parameters
    ----------
    report_dir
        Folder of the quality report; None: no report is written.
    audit
        Number of periods to compute anew, others at every check.
    progress
        Called with one line per audited period.

    Raises
    ------
    InputError
        The query has not been run in this lake, or computed something else when it was run.
    """
    state = journal.state_for(lake, spec)
    ledger = books.ledger(lake, spec, state).to_pandas()
    bounds = conservation.CommittedBounds.of(lake, spec.name, state)
    results = duplicates.count_results(lake, spec, bounds.filters())
    wrong = _wrong_before(lake, spec.name)
    audited = _audited(lake, spec, state, bounds, list(wrong), audit, progress) if audit else {}
    frames = {
        "promises": _by_day(promise.bounds(spec, ledger)),
        "filters": _by_day(promise.filter_bounds(spec, ledger)),
        "ledger": _by_day(promise.known(ledger)),
        "books": pd.DataFrame([*conservation.invariants(lake, spec, state, bounds, results.rows), *results.invariants]),
        "results": _standing(results),
        "streams": _heard(lake, spec),
        "audit": pd.DataFrame([row for _, row in sorted((wrong | audited).items())]),
    }
    outcome = replace(
        _validate(spec, frames, report_dir, state.counts["rows_read"]),
        periods=len(ledger),
        unjudged=len(ledger) - len(promise.known(ledger)),
        pending=result_views.pending(lake, spec.name, state.seq_to),
        silent=messages.silent(frames["streams"][frames["streams"]["behind_us"] > SILENT_PERIODS * spec.period_us]),
    )
    if report_dir is not None:
        page = pages.write(report_dir, spec, state.counts, ledger, outcome.results, outcome.to_judge, outcome.silent)
        outcome = replace(outcome, report=page)
    for _ in range(TRIES if audited else 1):
        if _remember(lake, spec, state.seq_to, outcome, audited):
            break
    return outcome


def _remember(lake: Lake, spec: Spec, seq_to: int, outcome: CheckOutcome, audited: dict[int, dict[str, Any]]) -> bool:
    """Keep the outcome for `status`, and for the next check the periods that are wrong, of these `audited` ones and of those before; False where another check was first.

    Where the lake can be written: what the last check found does not depend on who looks. Of a query that was forgotten
    meanwhile nothing is kept.
    """
    if lake.unwritable() is not None or not _is_there(lake, spec.name, seq_to):
        return True
    last = lake.table("checks", spec.name).last_version("check")
    periods = _wrong_before(lake, spec.name) | audited  # another check may have audited others meanwhile
    row = {
        "checked": time.time(),
        "seq_to": seq_to,
        "success": outcome.success,
        "failures": len(outcome.failures),
        "unjudged": outcome.unjudged,
        "wrong": json.dumps([each for each in periods.values() if each["wrong"]]),
    }
    number = 0 if last is None else last + 1
    try:
        if not lake.table("checks", spec.name).append(pa.Table.from_pylist([row]), "check", number):
            return False
        compact_and_vacuum([lake.table("checks", spec.name)])
    except DeltaError:  # what the other check found is as good, but for an audit
        return False
    return True


def _is_there(lake: Lake, query: str, seq_to: int) -> bool:
    """Does the lake still hold the query, as it was when it had read the arrivals before `seq_to`, or later?"""
    try:
        state = journal.load_state(lake, query)
    except LatecomerError:
        return False
    return state is not None and state.seq_to >= seq_to


def _audited(
    lake: Lake,
    spec: Spec,
    state: journal.RunState,
    bounds: conservation.CommittedBounds,
    wrong: list[int],
    most: int,
    progress: Callable[[str], None],
) -> dict[int, dict[str, Any]]:
    """A row per audited period, `most` of them; first of all those that an earlier audit found `wrong`, which they are until then."""
    from latecomer.spark.audit import audit

    books = lake.table("ledger", spec.name).read()
    closed = np.empty(0, np.int64)
    if books is not None:
        counts = ("published", "rows") if "published" in books.column_names else ("on_time", "late_rows")
        some = books.filter((pc.field(counts[0]) > 0) | (pc.field(counts[1]) > 0))
        closed = np.unique(some["period_start"].cast(pa.int64()).to_numpy())
    # of windows whose rows were all late no micro-batch has kept a book
    mended = [period for period, count in repaired(lake, spec.name).items() if count > 0]
    closed = np.union1d(closed, np.array(mended, np.int64))
    closed = np.setdiff1d(closed, np.array(wrong, np.int64))
    if not len(closed) and not wrong:
        progress(f"{spec.name}: nothing to audit, no period with rows is closed yet")
    last = lake.table("checks", spec.name).last_version("check")
    order = [*wrong, *np.random.default_rng(0 if last is None else last + 1).permutation(closed).tolist()]
    found = audit(lake, spec, state, bounds.filters(), bounds.closed_to, order, most, progress) if order else []
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return {
        each.period_us: {
            "period_us": each.period_us,
            "period_start": str(pd.Timestamp(each.period_us, unit="us", tz="UTC")),
            "results": each.results,
            "missing": each.missing,
            "extra": each.extra,
            "other": each.other,
            "wrong": each.missing + each.extra + each.other,
            "some": messages.differing(each.examples),
            "audited": now,
        }
        for each in found
    }


def _wrong_before(lake: Lake, query: str) -> dict[int, dict[str, Any]]:
    """Rows of `_audited` that the last check knew to be wrong."""
    last = lake.table("checks", query).read()
    if last is None or "wrong" not in last.column_names:
        return {}
    rows = json.loads(last["wrong"][0].as_py() or "[]")
    return {row["period_us"]: row for row in rows}


def _heard(lake: Lake, spec: Spec) -> pd.DataFrame:
    """One row per stream, where there are several: its latest event time, in words, and how far it is behind the latest of all, us, which is that of stream `ahead`."""
    streams = {stream for _, stream in spec.streams}
    known = ingest_log.last_events(lake) if len(streams) > 1 else {}
    names = sorted(streams & known.keys())
    ahead = max(names, key=lambda stream: known[stream], default="")
    rows = [
        (stream, str(pd.Timestamp(known[stream], unit="us", tz="UTC").floor("s")), known[ahead] - known[stream], ahead)
        for stream in names
    ]
    return pd.DataFrame(rows, columns=["stream", "last_event", "behind_us", "ahead"])


def _by_day(rows: pd.DataFrame) -> pd.DataFrame:
    """The same periods, named by the text of their start."""
    return rows.assign(period_start=rows["period_start"].astype(str)) if len(rows) else rows


def _standing(results: duplicates.StoredResults) -> pd.DataFrame:
    """One row: how many result rows there are, how many of them are not there twice, and some that are, in words."""
    written = sum(results.rows.values())
    frame = {"rows": [written], "distinct": [written - results.surplus], "names": [", ".join(results.keys)]}
    return pd.DataFrame(frame | {"some": [messages.some_of(results.duplicates)]})


def _validate(spec: Spec, frames: dict[str, pd.DataFrame], report_dir: Path | None, rows_in: int) -> CheckOutcome:
    """Hold each of `frames`, by subject, against its expectations; with `report_dir`, write Data Docs. `rows_in`: rows the query has read."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        import great_expectations as gx

        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = gx.data_context.types.base.ProgressBarsConfig(globally=False)  # type: ignore[attr-defined]
        if report_dir is not None:
            # a site each: whoever builds one removes the pages of all that its context does not know
            _docs_site(context, report_dir / pages.DATA_DOCS / spec.name)
        source = context.data_sources.add_pandas("latecomer")
        allowed = promise.allowed_misses(len(frames["promises"]), spec.confidence)
        results: list[dict[str, Any]] = []
        for subject, expectations in _suites(spec, frames, allowed, rows_in).items():
            name, frame = f"{spec.name}.{subject}", frames[subject]
            suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations))
            whole = source.add_dataframe_asset(name=name).add_batch_definition_whole_dataframe("whole")
            definition = gx.ValidationDefinition(name=name, data=whole, suite=suite)
            checkpoint = gx.Checkpoint(
                name=name,
                validation_definitions=[context.validation_definitions.add(definition)],
                actions=[] if report_dir is None else [gx.checkpoint.UpdateDataDocsAction(name="docs")],
                result_format="COMPLETE",
            )
            found = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
            for validation in found.run_results.values():
                results += [messages.describe(spec, subject, each, frame, allowed) for each in validation.results]
    return CheckOutcome(results)


def _suites(spec: Spec, frames: dict[str, pd.DataFrame], allowed: int, rows_in: int) -> dict[str, list[Any]]:
    """What is expected, by subject; nothing of periods where there are none. `allowed` of those that are judged may miss the target."""
    from latecomer.quality import expectations as ours

    found: dict[str, list[Any]] = {}
    judged = len(frames["promises"])
    promised = _promises(spec, ours, (judged - allowed) / judged) if judged else []
    if promised:
        found["promises"] = promised
    if len(frames["filters"]):
        bound = ours.ExpectFalsePositivesBounded(column_A="most_passed", column_B="passed", or_equal=True)
        found["filters"] = [bound]
    if len(frames["ledger"]):
        most = spec.rows_held or 2 * rows_in  # a self join holds a row twice
        found["ledger"] = [
            ours.ExpectCompleteAfterRepair(column="achieved_final", min_value=1.0, max_value=1.0),
            ours.ExpectRowsHeldBounded(column="rows_held_max", min_value=0, max_value=most),
        ]
    if spec.silence_us is not None and len(frames["streams"]):
        found["streams"] = [ours.ExpectStreamsHeard(column="behind_us", min_value=0, max_value=spec.silence_us)]
    found["books"] = [ours.ExpectConservation(column_A="left", column_B="right")]
    found["results"] = [ours.ExpectNoDuplicateResult(column_A="rows", column_B="distinct")]
    if len(frames["audit"]):
        found["audit"] = [ours.ExpectResultsAsRecomputed(column="wrong", min_value=0, max_value=0)]
    return found


def _promises(spec: Spec, ours: Any, mostly: float) -> list[Any]:
    """What the query promises about its periods: nothing before repair where no target is stated."""
    if not spec.promises:
        return []
    met = ours.ExpectErrorWithinPromise if isinstance(spec, AggregateSpec) else ours.ExpectRecallToMeetTarget
    return [met(column_A="achieved_on_time", column_B="least", or_equal=True, mostly=mostly)]


def _docs_site(context: Any, folder: Path) -> None:
    for name in list(context.variables.data_docs_sites or {}):
        context.delete_data_docs_site(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            "--report", str(folder), error.strerror or str(error), "choose a folder that can be written"
        ) from None
    context.add_data_docs_site(
        "latecomer",
        {
            "class_name": "SiteBuilder",
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())},
        },
    )
