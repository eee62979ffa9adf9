"""Check a query against its promises with Great Expectations, and write the outcome as Data Docs.

A check reads tables that the product wrote, never estimates: the ledger (recall on time against the target,
completeness after repair, rows held), the conservation invariants (:mod:`latecomer.quality.conservation`) and the
results (no row twice, repairs and on-time rows disjoint). All of these count rows. An audit recomputes the answers of
some periods (:mod:`latecomer.spark.audit`).
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
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from latecomer.core.time import FOREVER
from latecomer.lake import ingest_log, journal, result_views
from latecomer.lake.errors import InputError, LatecomerError
from latecomer.lake.lake import Lake
from latecomer.lake.last_check import last_outcome
from latecomer.lake.maintenance import compact_and_vacuum
from latecomer.lake.result_differences import Bounds
from latecomer.ledger.join_ledger import repaired
from latecomer.ledger.ledger import ledger
from latecomer.ledger.open_periods import complete_to
from latecomer.quality import conservation, duplicates, fast_clocks, messages, promise, report_index
from latecomer.quality import report as pages
from latecomer.quality import verdicts as store
from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.spec import Spec

if TYPE_CHECKING:
    from great_expectations.data_context import AbstractDataContext
    from great_expectations.expectations.expectation import Expectation


class AuditRow(TypedDict):
    """One audited period: its start, the counts of an audit, examples of differing results, and when it was audited."""

    period_us: int
    period_start: str
    results: int
    missing: int
    extra: int
    other: int
    wrong: int
    some: str
    audited: str


TRIES = 5
"""Attempts to commit the findings of an audit while other checks of the query commit."""
SILENT_PERIODS = 10
"""Periods by which a stream is behind the others when `check` names it, whether the query bounds silence or not."""
PROMISES = {"periods": "promises", "large periods": "large", "small periods": "small"}
"""Groups of periods by which a promise is judged -> their subjects. All of them together have subject ``whole``."""


class CheckFailed(LatecomerError):
    """A check has failed."""

    exit_code = 1


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
        Periods of the ledger, periods that have no verdict yet, and late rows that await repair.
    unjudged_message
        A sentence about the periods that have no verdict yet; empty without any.
    promise
        A sentence about the periods that missed the promise, and the late rows; empty where nothing is promised.
    judged, missed, new
        Periods that vote on the promise, how many of them missed, and how many no earlier check has reported.
    achieved
        Share of what was due in the periods that vote which was on time; None: none votes.
    silent
        A sentence about streams that have been silent for long while others went on; the query's answers wait for them.
    quarantine_reasons
        Rows of the query's streams in quarantine, by reason; ``clock`` are rows of clocks that are not believed.
    """

    results: list[messages.Description]
    report: Path | None = None
    periods: int = 0
    unjudged: int = 0
    pending: int = 0
    unjudged_message: str = ""
    promise: str = ""
    judged: int = 0
    missed: int = 0
    new: int = 0
    achieved: float | None = None
    silent: str = ""
    quarantine_reasons: dict[str, int] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Whether every expectation held."""
        return not self.failures

    @property
    def failures(self) -> list[str]:
        """One line per broken expectation: expectation, observed value, periods or rows, expected value, name."""
        return [result["message"] for result in self.results if not result["success"]]

    def raise_for_failure(self) -> None:
        """Raise a CheckFailed with the failures, if there is one."""
        if not self.success:
            raise CheckFailed("\n".join(self.failures))

    @property
    def broken(self) -> list[str]:
        """The failures that are defects of the product: rows that are lost, duplicated, or missing after repair."""
        promised = (*PROMISES.values(), "whole", "filters", "ledger", "streams")
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
    """Judge the query's periods, and run its expectation suite over verdicts, ledger, results and invariants.

    Only an audit starts Spark.

    Parameters
    ----------
    report_dir
        Folder of the quality report; None: no report is written.
    audit
        Number of periods to recompute, different ones at every check.
    progress
        Called with one line per audited period.

    Raises
    ------
    InputError
        The query has not been run in this lake, or computed something else when it was run.
    """
    state = journal.state_for(lake, spec)
    bounds = conservation.CommittedBounds.of(lake, spec.name, state)
    periods = ledger(lake, spec, state).to_pandas()
    complete_to_us = complete_to(spec, state.stage) if spec.promises and not state.flushed else FOREVER
    results_seen = Bounds.of(lake, spec.name, state)
    last = last_outcome(lake, spec.name)
    current = store.find(lake, spec, periods, complete_to_us, bounds.seq_to, bounds.closed_to)
    reported = last.get("verdicts", -1)
    judgement = promise.weigh(spec, current.last.assign(new=current.is_new(reported)))
    results = duplicates.count_results(lake, spec, bounds.filters())
    wrong = _wrong_before(lake, spec.name)
    audits = _audited(lake, spec, state, bounds, list(wrong), audit, progress) if audit else {}
    frames = {
        **_promised(judgement),
        "filters": _named_by_start(promise.filter_bounds(spec, periods)),
        "ledger": _named_by_start(promise.known(periods)),
        "books": pd.DataFrame([*conservation.invariants(lake, spec, state, bounds, results.rows), *results.invariants]),
        "results": _unique(results),
        "streams": _silence(lake, spec),
        "audit": pd.DataFrame([row for _, row in sorted((wrong | audits).items())]),
    }
    pending = result_views.pending(lake, spec.name, state.seq_to)
    standing = promise.standing(periods, current.last["period_start"], complete_to_us)
    remedy = "" if judgement.kept else _remedy(lake, spec, judgement, periods, state.seq_to)
    votes = judgement.groups[0] if judgement.groups else None
    outcome = replace(
        _validate(spec, frames, report_dir, state.counts["rows_read"], remedy),
        periods=len(periods),
        unjudged=int(standing.isin([promise.COMING_IN, promise.AWAITS_REPAIR]).sum()),
        pending=pending,
        unjudged_message=messages.unjudged(standing, pending),
        promise=messages.promise_line(
            spec,
            judgement,
            last.get("checked") if reported >= 0 else None,
            repaired=state.counts["late"] - pending,
            recalled=int(periods["recalled"].sum()) if "recalled" in periods else 0,
            pending=pending,
        ),
        judged=0 if votes is None else len(votes.rows),
        missed=0 if votes is None else votes.missed,
        new=0 if votes is None else int((votes.rows["new"] & ~votes.rows["kept"].astype(bool)).sum()),
        achieved=judgement.on_time / judgement.due if judgement.due else None,
        silent=messages.silent(frames["streams"][frames["streams"]["behind_us"] > SILENT_PERIODS * spec.period_us]),
        quarantine_reasons=ingest_log.quarantine_reasons(lake, spec.stream_names),
    )
    if report_dir is not None:
        page = pages.write(
            report_dir,
            spec,
            state.counts,
            periods,
            outcome.results,
            judgement=judgement,
            standing=standing,
            remarks=(outcome.promise, outcome.unjudged_message, remedy, outcome.silent),
            history=pd.concat([store.history(lake, spec.name), current.added]) if len(current.last) else current.last,
        )
        outcome = replace(outcome, report=page)
    stored = store.store(lake, spec.name, current)
    for _ in range(TRIES if audits else 1):
        if _store(lake, spec, state.seq_to, results_seen, outcome, audits, current.commit if stored else reported):
            break
    return outcome


def _promised(judgement: promise.Judgement) -> dict[str, pd.DataFrame]:
    """Return the frames of the promise's subjects: a row per period, and of ``whole`` one row."""
    frames = {PROMISES[group.name]: _named_by_start(group.rows) for group in judgement.groups}
    if judgement.groups:
        row = {"due": judgement.due, "on_time": judgement.on_time, "needed": judgement.needed}
        frames["whole"] = pd.DataFrame([row])
    return frames


def _remedy(lake: Lake, spec: Spec, judgement: promise.Judgement, ledger: pd.DataFrame, seq_to: int) -> str:
    """Return a sentence about what to do about a broken promise; it names the clocks that are ahead, if any are."""
    those = pd.concat([group.rows for group in judgement.groups])
    missed = those[~those["kept"].astype(bool)]
    clocks = ""
    if len(missed):
        slack_us = ledger["slack_mean_us"].median() if "slack_mean_us" in ledger else 0.0
        clocks = fast_clocks.describe(lake, spec, missed, 0.0 if pd.isna(slack_us) else float(slack_us), seq_to)
    waits = "`latecomer explain` shows which waits would have kept the promise, and quality.exclude leaves periods out"
    return clocks or waits


def _store(
    lake: Lake,
    spec: Spec,
    seq_to: int,
    results_seen: Bounds,
    outcome: CheckOutcome,
    audits: dict[int, AuditRow],
    reported: int,
) -> bool:
    """Store the outcome for `status`, and the wrong periods of these and earlier audits for the next check.

    `results_seen` are the bounds of the results that were checked, and `reported` is the last commit of verdicts that
    this check reports.

    Nothing is stored if the lake cannot be written, or if the query was forgotten meanwhile.

    Returns
    -------
    bool
        False if another check was first.
    """
    if lake.unwritable() is not None or not store.holds(lake, spec.name, seq_to):
        return True
    last = lake.table("checks", spec.name).last_version("check")
    periods = _wrong_before(lake, spec.name) | audits  # another check may have audited other periods meanwhile
    row = {
        "checked": time.time(),
        "seq_to": seq_to,
        **asdict(results_seen),
        "success": outcome.success,
        "failures": len(outcome.failures),
        "unjudged": outcome.unjudged,
        "judged": outcome.judged,
        "missed": outcome.missed,
        "pending": outcome.pending,
        "achieved": outcome.achieved,
        "verdicts": reported,
        "wrong": json.dumps([period for period in periods.values() if period["wrong"]]),
    }
    number = 0 if last is None else last + 1
    try:
        if not lake.table("checks", spec.name).append(pa.Table.from_pylist([row]), "check", number):
            return False
        compact_and_vacuum([lake.table("checks", spec.name)])
    except DeltaError:  # the other check stores an outcome as recent as this one, but not this audit
        return False
    return True


def _audited(
    lake: Lake,
    spec: Spec,
    state: journal.RunState,
    bounds: conservation.CommittedBounds,
    wrong: list[int],
    most: int,
    progress: Callable[[str], None],
) -> dict[int, AuditRow]:
    """Audit at most `most` periods, first the periods that earlier audits found `wrong`; return rows by start (us)."""
    from latecomer.spark.audit import audit

    written = lake.table("ledger", spec.name).read()
    closed = np.empty(0, np.int64)
    if written is not None:
        counts = ("published", "rows") if "published" in written.column_names else ("on_time", "late_rows")
        with_rows = written.filter((pc.field(counts[0]) > 0) | (pc.field(counts[1]) > 0))
        closed = np.unique(with_rows["period_start"].cast(pa.int64()).to_numpy())
    # no micro-batch has an account of a window whose rows were all late
    corrected = [period for period, count in repaired(lake, spec.name).items() if count > 0]
    closed = np.union1d(closed, np.array(corrected, np.int64))
    closed = np.setdiff1d(closed, np.array(wrong, np.int64))
    if not len(closed) and not wrong:
        progress(f"{spec.name}: nothing to audit, no period with rows is closed yet")
    last = lake.table("checks", spec.name).last_version("check")
    order = [*wrong, *np.random.default_rng(0 if last is None else last + 1).permutation(closed).tolist()]
    audits = audit(lake, spec, state, bounds.filters(), bounds.closed_to, order, most, progress) if order else []
    audited_at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return {
        period.period_us: {
            "period_us": period.period_us,
            "period_start": str(_timestamp(period.period_us)),
            "results": period.results,
            "missing": period.missing,
            "extra": period.extra,
            "other": period.other,
            "wrong": period.missing + period.extra + period.other,
            "some": messages.differing(period.examples),
            "audited": audited_at,
        }
        for period in audits
    }


def _wrong_before(lake: Lake, query: str) -> dict[int, AuditRow]:
    """Return the rows of the audited periods that were wrong at the last check, by start (us)."""
    rows: list[AuditRow] = json.loads(last_outcome(lake, query).get("wrong") or "[]")
    return {row["period_us"]: row for row in rows}


def _silence(lake: Lake, spec: Spec) -> pd.DataFrame:
    """Compare the latest event times of the query's streams; no rows if there is one stream.

    Returns
    -------
    DataFrame
        One row per stream: ``stream``, ``last_event`` (text), ``behind_us`` (the time by which it is behind the latest
        stream) and ``ahead`` (the name of that stream).
    """
    streams = set(spec.stream_names)
    known = ingest_log.last_events(lake) if len(streams) > 1 else {}
    names = sorted(streams & known.keys())
    latest = max(names, key=lambda stream: known[stream], default="")
    rows = [
        (stream, str(_timestamp(known[stream]).floor("s")), known[latest] - known[stream], latest) for stream in names
    ]
    return pd.DataFrame(rows, columns=["stream", "last_event", "behind_us", "ahead"])


def _timestamp(time_us: int) -> pd.Timestamp:
    return pd.Timestamp(time_us, unit="us", tz="UTC")


def _named_by_start(rows: pd.DataFrame) -> pd.DataFrame:
    """Replace the start of every period by its text."""
    return rows.assign(period_start=rows["period_start"].astype(str)) if len(rows) else rows


def _unique(results: duplicates.StoredResults) -> pd.DataFrame:
    """Return one row: the numbers of stored and of distinct results, their keys, and examples of duplicates as text."""
    written = sum(results.rows.values())
    frame = {"rows": [written], "distinct": [written - results.surplus], "names": [", ".join(results.keys)]}
    return pd.DataFrame(frame | {"some": [messages.examples(results.duplicates)]})


def _validate(
    spec: Spec, frames: dict[str, pd.DataFrame], report_dir: Path | None, rows_in: int, remedy: str = ""
) -> CheckOutcome:
    """Validate every frame by the expectations of its subject.

    Parameters
    ----------
    frames
        Frames by subject, as in `_suites`.
    report_dir
        Folder in which Data Docs are written; None: none are.
    rows_in
        Number of rows that the query has read.
    remedy
        What to do about a broken promise.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        import great_expectations as gx
        from great_expectations.checkpoint.actions import UpdateDataDocsAction
        from great_expectations.data_context.types.base import ProgressBarsConfig

        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        if report_dir is not None:
            # one site per query: building a site removes the pages of all suites that its context does not know
            _docs_site(context, report_dir / report_index.DATA_DOCS / spec.name)
        source = context.data_sources.add_pandas("latecomer")
        results: list[messages.Description] = []
        for subject, expectations in _suites(spec, frames, rows_in).items():
            name, frame = f"{spec.name}.{subject}", frames[subject]
            suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations))
            whole = source.add_dataframe_asset(name=name).add_batch_definition_whole_dataframe("whole")
            definition = gx.ValidationDefinition(name=name, data=whole, suite=suite)
            checkpoint = gx.Checkpoint(
                name=name,
                validation_definitions=[context.validation_definitions.add(definition)],
                actions=[] if report_dir is None else [UpdateDataDocsAction(name="docs")],
                result_format="COMPLETE",
            )
            outcome = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
            for validation in outcome.run_results.values():
                results += [messages.describe(spec, subject, result, frame, remedy) for result in validation.results]
    return CheckOutcome(results)


def _suites(spec: Spec, frames: dict[str, pd.DataFrame], rows_in: int) -> dict[str, list[Expectation]]:
    """Return the expectations by subject; a frame without rows has none."""
    from latecomer.quality import expectations as ours

    suites: dict[str, list[Expectation]] = {}
    met = ours.ExpectErrorWithinPromise if isinstance(spec, AggregateSpec) else ours.ExpectRecallToMeetTarget
    for subject in PROMISES.values():
        if spec.promises and (judged := len(frames.get(subject, ()))):
            mostly = (judged - promise.allowed_misses(judged, spec.confidence)) / judged
            suites[subject] = [met(column_A="achieved", column_B="needed", or_equal=True, mostly=mostly)]
    if spec.promises and "whole" in frames:
        suites["whole"] = [ours.ExpectWholeToMeetPromise(column_A="on_time", column_B="needed", or_equal=True)]
    if len(frames["filters"]):
        bound = ours.ExpectFalsePositivesBounded(column_A="most_passed", column_B="passed", or_equal=True)
        suites["filters"] = [bound]
    if len(frames["ledger"]):
        most = spec.rows_held or 2 * rows_in  # a self join holds a row twice
        suites["ledger"] = [
            ours.ExpectCompleteAfterRepair(column="achieved_final", min_value=1.0, max_value=1.0),
            ours.ExpectRowsHeldBounded(column="rows_held_max", min_value=0, max_value=most),
        ]
    if spec.silence_us is not None and len(frames["streams"]):
        suites["streams"] = [ours.ExpectStreamsHeard(column="behind_us", min_value=0, max_value=spec.silence_us)]
    suites["books"] = [ours.ExpectConservation(column_A="left", column_B="right")]
    suites["results"] = [ours.ExpectNoDuplicateResult(column_A="rows", column_B="distinct")]
    if len(frames["audit"]):
        suites["audit"] = [ours.ExpectResultsAsRecomputed(column="wrong", min_value=0, max_value=0)]
    return suites


def _docs_site(context: AbstractDataContext, folder: Path) -> None:
    """Make `folder` the only Data Docs site of a context."""
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
