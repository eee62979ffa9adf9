"""The DAGs of each query file.

``<query>``
    The task `advance`, which runs, repairs, checks and publishes as far as each is due, in one process; with
    ``schedule: {tasks: each}`` the tasks `run`, `check` and `publish`. It starts whenever one of the query's streams
    has new rows, once when the query file is new (its streams may have had rows before), and on ``schedule.run`` for
    rows that a failed run has left. It is skipped if nothing is due.
``<query>__repair``
    Tasks `repair`, `check` and `publish`, in a DAG with one run at a time, so that repairs never overlap. On
    ``schedule.repair`` or by hand it repairs all late rows (``{"flush": false}`` as the run's configuration prevents
    that). With ``tasks: each``, each run of ``<query>`` starts it too; then only batches that span `gamma` are
    repaired. It is skipped if no late row waits.
``<query>__adapt``
    Recompute what the strategy learns; for queries whose strategy learns at all.
``<query>__audit``
    Check, and answer some past periods again by plain SQL; for queries with a ``schedule.audit``.
``<query>__backfill``
    Tasks `backfill`, `check` and `publish`, for every kind with windows; a join has none, and repair makes it exact.
    Its data interval is the range of windows to answer again, so Airflow's own ``airflow backfill create --dag-id
    <query>__backfill --from-date ... --to-date ...`` and the UI re-run the past.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from airflow.sdk import (
    DAG,
    Asset,
    AssetAny,
    AssetOrTimeSchedule,
    BaseOperator,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Param,
)
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.definitions.timetables.simple import OnceTimetable

from latecomer.airflow.assets import answers_asset, periods_asset, run_asset, stream_asset
from latecomer.airflow.operator import Action, LatecomerOperator
from latecomer.specs.aggregate import AggregateSpec
from latecomer.specs.durations import format_duration
from latecomer.specs.join import JoinSpec
from latecomer.specs.spec import Spec
from latecomer.specs.topk import TopKSpec

FLUSH = Param(
    None,
    type=["null", "boolean"],
    title="Flush",
    description="Repair everything that is pending. Not set: yes, unless a run of the query started this repair",
)
PERIODS = Param(3, type="integer", minimum=1, title="Periods", description="How many to answer anew; others every time")


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


def query_dags(path: Path, spec: Spec, *, options: dict[str, Any], common: dict[str, Any]) -> list[DAG]:
    """Return the DAGs of one query.

    Parameters
    ----------
    options
        Arguments of all operators.
    common
        Arguments of all DAGs.
    """
    about = [spec.description, promise(spec), f"```yaml\n{path.read_text(encoding='utf-8')}\n```"]
    rows = [stream_asset(stream) for stream in spec.stream_names]

    def page(purpose: str) -> Page:
        """Return a page that opens with what its DAG does and when."""
        return {"tags": ["latecomer", spec.kind], "doc_md": "\n\n".join(filter(None, [purpose, *about]))}

    def step(action: Action, *, task_id: str | None = None, inlets: list[Asset] | None = None, **more: Any) -> Any:
        """Return a task of this query."""
        task = options | more
        return LatecomerOperator(
            task_id=task_id or action, action=action, query=path, inlets=rows if inlets is None else inlets, **task
        )

    def check_and_publish() -> list[BaseOperator]:
        """Return `check`, with `publish` behind it; both where the query publishes always."""
        check = step("check", inlets=[], retries=0)
        publish = step("publish", inlets=[], outlets=[answers_asset(spec.name), periods_asset(spec.name)])
        if spec.publish_when == "always":
            return [check, publish]
        check >> publish
        return [check]

    schedule = spec.schedule
    in_one_task = (schedule.tasks or ("each" if spec.publish_when == "always" else "one")) == "one"
    late_rows = f"late rows whose event times span more than {format_duration(spec.gamma_us)} (`gamma`)"
    repairs = f"corrects answers for {late_rows}, " if in_one_task else ""
    with DAG(
        dag_id=spec.name,
        schedule=AssetOrTimeSchedule(timetable=_timetable(schedule.run, at_once=True), assets=AssetAny(*rows)),
        **common,
        **page(
            f"Answers what is new, {repairs}and checks what was promised: whenever one of its streams has new rows, "
            f"once when its query file is new, and on its schedule (`{schedule.run}`) what a run that failed has left. "
            "Skipped while a stream has no row, and where none waits."
        ),
    ) as main:
        if in_one_task:
            step("advance", outlets=[run_asset(spec.name), answers_asset(spec.name), periods_asset(spec.name)])
        else:
            step("run", outlets=[run_asset(spec.name)]) >> check_and_publish()
    of_runs = [] if in_one_task else [run_asset(spec.name)]
    timetable = _timetable(schedule.repair)
    after_runs = "" if in_one_task else f"after each run of `{spec.name}` {late_rows}, "
    with DAG(
        dag_id=f"{spec.name}__repair",
        schedule=AssetOrTimeSchedule(timetable=timetable, assets=of_runs) if of_runs else timetable,
        params={"flush": FLUSH},
        **common,
        **page(
            f"Corrects answers for rows that came too late, until they are exact, and checks: {after_runs}"
            f"on its schedule (`{schedule.repair}`) or by hand all that are pending. Skipped where none is."
        ),
    ) as repair:
        step("repair", flush=None) >> check_and_publish()
    dags = [main, repair]
    if spec.adapts:
        learns = "Learns from all stored history how long to wait, which the next runs do; on its schedule"
        with DAG(
            dag_id=f"{spec.name}__adapt", schedule=schedule.adapt, **common, **page(f"{learns} (`{schedule.adapt}`).")
        ) as adapt:
            step("adapt")
        dags.append(adapt)
    if schedule.audit is not None:
        compares = "Answers some past periods anew by plain Spark SQL and compares every result; on its schedule"
        with DAG(
            dag_id=f"{spec.name}__audit",
            schedule=schedule.audit,
            params={"periods": PERIODS},
            **common,
            **page(f"{compares} (`{schedule.audit}`)."),
        ) as audit:
            step("check", task_id="audit", arguments=["--audit", "{{ params.periods }}"], retries=0)
        dags.append(audit)
    if not isinstance(spec, JoinSpec):
        interval = schedule.interval or "@daily"
        regular = f", and on its schedule (`{interval}`)" if schedule.interval else ""
        with DAG(
            dag_id=f"{spec.name}__backfill",
            schedule=CronDataIntervalTimetable(interval, timezone="UTC"),
            start_date=_start_date(schedule.start),
            **common,
            **page(
                f"Answers the windows of past intervals again, where it is asked for{regular}. One run per interval of "
                f"`{interval}`, for the windows that start in it; Airflow's From and To (`--from-date`, `--to-date`) "
                "name the first and the last interval, both included, unlike `latecomer backfill --to`, which excludes "
                "its end."
            ),
        ) as backfill:
            range_ = ["--from", "{{ data_interval_start.isoformat() }}", "--to", "{{ data_interval_end.isoformat() }}"]
            by_hand = f"{spec.name} states no schedule.interval: its backfills are those that are asked for"
            only_by_hand = by_hand if schedule.interval is None else None
            step("backfill", arguments=range_, only_by_hand=only_by_hand) >> check_and_publish()
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
