"""The DAGs of each query file.

``<query>``
    Tasks `run`, `check` and `publish`. It starts whenever one of the query's streams has new rows, once when the query
    file is new (its streams may have had rows before), and on ``schedule.run`` for rows that a failed run has left. It
    is skipped if no row waits.
``<query>__repair``
    Tasks `repair`, `check` and `publish`, in a DAG with one run at a time, so that repairs never overlap. Each run of
    ``<query>`` starts it; then only batches that span `gamma` are repaired, which is cheap if none is due. On
    ``schedule.repair`` or by hand it repairs all late rows (``{"flush": false}`` as the run's configuration prevents
    that). It is skipped if no late row waits.
``<query>__adapt``
    Recompute what the strategy learns; for queries whose strategy learns at all.
``<query>__audit``
    Check, and answer some past periods again by plain SQL; for queries with a ``schedule.audit``.
``<query>__backfill``
    Tasks `backfill`, `check` and `publish`, for every kind with windows; a join has none, and repair makes it exact.
    Its data interval is the range of windows to answer again, so Airflow's own ``airflow backfill create --dag-id
    <query>__backfill --from-date ... --to-date ...`` and the UI re-run the past.

A broken query file costs its own DAGs only; ``latecomer_query_errors.py`` shows it as an import error.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from airflow.sdk import (
    DAG,
    AssetAny,
    AssetOrTimeSchedule,
    BaseOperator,
    Context,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Param,
)
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.definitions.timetables.simple import OnceTimetable
from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.deployment import streams_without_rows
from latecomer.specs.durations import format_duration
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.topk import TopKSpec
from latecomer_common import (
    LAKE,
    CheckOperator,
    PublishOperator,
    QueryStatus,
    RetryTransientErrors,
    answers_asset,
    dag_settings,
    lake_status,
    periods_asset,
    read_query_files,
    run_asset,
    skip,
    spark_task,
    stream_asset,
)

FLUSH = Param(
    None,
    type=["null", "boolean"],
    title="Flush",
    description="Repair everything that is pending. Not set: yes, unless a run of the query started this repair",
)
PERIODS = Param(3, type="integer", minimum=1, title="Periods", description="How many to answer anew; others every time")
# a template cannot remove an argument, and to name the lake again changes nothing
FLUSH_OR_NOT = (
    "{{ '--flush' if (dag_run.run_type != 'asset_triggered' if params.flush is none else params.flush) "
    f"else {f'--lake={LAKE}'!r} }}}}"
)
Hook = Callable[[Context], None]


def skip_without_new_rows(spec: Spec) -> Hook:
    """Return the hook of `run`: skip if a stream has no row at all, or if no row is new to the query.

    Any of the query's streams starts a run, also the first of two, and the schedule starts one whether rows are new or
    not. A run by hand, and one whose query was not checked since its last run, is not skipped for want of new rows: the
    process of that last run may have died between its commit and the check.
    """

    def before(context: Context) -> None:
        status = lake_status(spec.name)
        if (reason := streams_without_rows(spec, status["streams"])) is not None:
            skip(reason)
        if context["dag_run"].run_type != "manual" and any(map(_is_up_to_date, status["queries"])):
            skip(f"{spec.name} has read every row of its streams")

    return before


def _is_up_to_date(query: QueryStatus) -> bool:
    """Return whether a query has read every row and was checked since; its times sort as text."""
    ran, checked = query.get("last_run"), query.get("last_check")
    return query.get("backlog") == 0 and ran is not None and checked is not None and checked[: len(ran)] >= ran


def skip_until_run(spec: Spec, *, only_by_hand: bool = False, only_late_rows: bool = False) -> Hook:
    """Return the hook of all other tasks: skip if the query has not been run yet.

    Parameters
    ----------
    spec
        The query.
    only_by_hand
        Skip runs that a schedule starts.
    only_late_rows
        Skip if no late row waits for repair. To find that out takes a second, to start Spark and to check takes eight,
        for every query at each full hour.
    """

    def before(context: Context) -> None:
        if only_by_hand and context["dag_run"].run_type == "scheduled":
            skip(f"{spec.name} states no schedule.interval: its backfills are those that are asked for")
        status = lake_status(spec.name)
        query = next(iter(status["queries"]), None)
        if query is None:
            reason = streams_without_rows(spec, status["streams"])
            skip(f"{spec.name} has not been run in {LAKE} yet" + (f": {reason}" if reason else ""))
        if only_late_rows and query.get("late_pending") == 0:
            skip(f"no late row of {spec.name} waits for repair")

    return before


def promise(spec: Spec) -> str:
    """Return the query's promise in words: exact answers after repair, and the target that its file states."""
    if not spec.promises:
        return "Exact after repair."
    match spec:
        case AggregateSpec():
            share = f"less than {100 * spec.error:g}% off with probability {spec.target:g}"
        case TopKSpec():
            share = f"{100 * spec.target:g}% of the {spec.k} best rows"
        case JoinSpec():
            share = f"{100 * spec.target:g}% of the pairs"
        case _:
            share = f"{100 * spec.target:g}% of the results"
    return f"Promised on time, per {format_duration(spec.period_us)}: {share}. Exact after repair."


class Page(TypedDict):
    """The arguments of a DAG that its page in the UI shows."""

    tags: list[str]
    doc_md: str


def build(path: Path, spec: Spec) -> list[DAG]:
    """Return the DAGs of one query."""
    settings = dag_settings(RetryTransientErrors(f"{path}:", f"query {spec.name}:"))
    about = [spec.description, promise(spec), f"```yaml\n{path.read_text(encoding='utf-8')}\n```"]

    def page(purpose: str) -> Page:
        """Return a page that opens with what its DAG does and when."""
        return {"tags": ["latecomer", spec.kind], "doc_md": "\n\n".join(filter(None, [purpose, *about]))}

    def check_and_publish() -> list[BaseOperator]:
        """Return `check`, with `publish` behind it; both where the query publishes always."""
        check = CheckOperator(task_id="check", query=spec.name, path=path, retries=0)
        outlets = [answers_asset(spec.name), periods_asset(spec.name)]
        publish = PublishOperator(task_id="publish", query=spec.name, path=path, outlets=outlets)
        if spec.publish_when == "always":
            return [check, publish]
        check >> publish
        return [check]

    schedule = spec.schedule
    query = (str(path), "--lake", LAKE)
    new_rows = AssetAny(*(stream_asset(stream) for stream in spec.stream_names))
    with DAG(
        dag_id=spec.name,
        schedule=AssetOrTimeSchedule(timetable=_timetable(schedule.run, at_once=True), assets=new_rows),
        **settings,
        **page(
            "Answers what is new and checks what was promised: whenever one of its streams has new rows, once when "
            f"its query file is new, and on its schedule (`{schedule.run}`) what a run that failed has left. Skipped "
            "while a stream has no row, and where none waits."
        ),
    ) as main:
        (
            spark_task("run", "run", *query, pre_execute=skip_without_new_rows(spec), outlets=[run_asset(spec.name)])
            >> check_and_publish()
        )
    with DAG(
        dag_id=f"{spec.name}__repair",
        schedule=AssetOrTimeSchedule(timetable=_timetable(schedule.repair), assets=[run_asset(spec.name)]),
        params={"flush": FLUSH},
        **settings,
        **page(
            f"Corrects answers for rows that came too late, until they are exact, and checks: after each run of "
            f"`{spec.name}` late rows whose event times span more than {format_duration(spec.gamma_us)} (`gamma`), "
            f"on its schedule (`{schedule.repair}`) or by hand all that are pending. Skipped where none is."
        ),
    ) as repair:
        (
            spark_task("repair", "repair", *query, FLUSH_OR_NOT, pre_execute=skip_until_run(spec, only_late_rows=True))
            >> check_and_publish()
        )
    dags = [main, repair]
    if spec.adapts:
        learns = "Learns from all stored history how long to wait, which the next runs do; on its schedule"
        with DAG(
            dag_id=f"{spec.name}__adapt", schedule=schedule.adapt, **settings, **page(f"{learns} (`{schedule.adapt}`).")
        ) as adapt:
            spark_task("adapt", "adapt", *query, pre_execute=skip_until_run(spec))
        dags.append(adapt)
    if schedule.audit is not None:
        compares = "Answers some past periods anew by plain Spark SQL and compares every result; on its schedule"
        with DAG(
            dag_id=f"{spec.name}__audit",
            schedule=schedule.audit,
            params={"periods": PERIODS},
            **settings,
            **page(f"{compares} (`{schedule.audit}`)."),
        ) as audit:
            spark_task(
                "audit",
                "check",
                *query,
                "--audit",
                "{{ params.periods }}",
                pre_execute=skip_until_run(spec),
                retries=0,
            )
        dags.append(audit)
    if not isinstance(spec, JoinSpec):
        interval = schedule.interval or "@daily"
        regular = f", and on its schedule (`{interval}`)" if schedule.interval else ""
        with DAG(
            dag_id=f"{spec.name}__backfill",
            schedule=CronDataIntervalTimetable(interval, timezone="UTC"),
            start_date=_start_date(schedule.start),
            **settings,
            **page(
                f"Answers the windows of past intervals again, where it is asked for{regular}. One run per interval of "
                f"`{interval}`, for the windows that start in it; Airflow's From and To (`--from-date`, `--to-date`) "
                "name the first and the last interval, both included, unlike `latecomer backfill --to`, which excludes "
                "its end."
            ),
        ) as backfill:
            range_ = ("--from", "{{ data_interval_start.isoformat() }}", "--to", "{{ data_interval_end.isoformat() }}")
            before = skip_until_run(spec, only_by_hand=schedule.interval is None)
            spark_task("backfill", "backfill", *query, *range_, pre_execute=before) >> check_and_publish()
        dags.append(backfill)
    return dags


def _timetable(cron: str, *, at_once: bool = False) -> BaseTimetable:
    """Return the timetable of a schedule; with `at_once` it fires also as soon as the DAG is new."""
    return OnceTimetable() if cron == "@once" else CronTriggerTimetable(cron, timezone="UTC", run_immediately=at_once)


def _start_date(start: str | None) -> datetime | None:
    """Return ``schedule.start`` as a time, in UTC if it names no zone."""
    if start is None:
        return None
    day = datetime.fromisoformat(start)
    return day if day.tzinfo else day.replace(tzinfo=UTC)


for _path, _spec in read_query_files().queries:
    for _dag in build(_path, _spec):
        globals()[_dag.dag_id] = _dag
