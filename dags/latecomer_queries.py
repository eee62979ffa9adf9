"""The DAGs of each query file.

``<query>``: run, check; scheduled by the assets of its streams, whichever of them has news, once when it is new (its streams
may have had their rows before), and on the query's own schedule, for what a run that failed has left. Skipped where no row waits.
``<query>__repair``: repair, check; one DAG with one run at a time, so that repair never meets itself. Started by each run
of ``<query>`` it applies the Gamma rule, which is cheap where nothing is due; on the query's own schedule, or by hand, it
flushes what stays below Gamma (``{"flush": false}`` as the run's configuration keeps it from that). Where no late row waits it is skipped.
``<query>__adapt``: recomputes adaptation statistics; joins, aggregates and top-k whose strategy has any.
``<query>__audit``: checks, and answers some past periods anew by plain SQL; queries with a ``schedule.audit``.
``<query>__backfill``: theta joins only. Its data interval is the range of windows to answer again, so the stock
``airflow backfill create --dag-id <query>__backfill --from-date ... --to-date ...`` and the UI re-run the past.

A broken query file costs its own DAGs only; ``latecomer_query_errors.py`` shows it as an import error.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, AssetAny, AssetOrTimeSchedule, CronDataIntervalTimetable, CronTriggerTimetable, Param
from airflow.sdk.bases.timetable import BaseTimetable
from airflow.sdk.definitions.timetables.simple import OnceTimetable
from latecomer.specs.durations import format_duration
from latecomer_common import (
    DEFAULTS,
    LAKE,
    SETTINGS,
    CheckOperator,
    UnlessWrong,
    answers_asset,
    awaited,
    skip,
    spark_task,
    status,
    stream_asset,
    usable,
)

FLUSH = Param(
    None,
    type=["null", "boolean"],
    title="Flush",
    description="Repair everything that is pending. Not set: yes, unless a run of the query started this repair",
)
PERIODS = Param(3, type="integer", minimum=1, title="Periods", description="How many to answer anew; others every time")
# an argument cannot be templated away, and to name the lake again changes nothing
FLUSH_OR_NOT = (
    "{{ '--flush' if (dag_run.run_type != 'asset_triggered' if params.flush is none else params.flush) "
    f"else {f'--lake={LAKE}'!r} }}}}"
)


def once_ingested(spec: Any) -> Callable[[Any], None]:
    """What `run` does first: skip while a stream has no row, and, unless started by hand, where the query has read every row and was checked.

    Any of the query's streams starts it, also the first of two, and its schedule whether something is new or not. A run whose process died
    when all was committed has its check still to come.
    """

    def before(context: Any) -> None:
        found = status(spec.name)
        if (reason := awaited(spec, found["streams"])) is not None:
            skip(reason)
        if context["dag_run"].run_type != "manual" and any(map(_settled, found["queries"])):
            skip(f"{spec.name} has read every row of its streams")

    return before


def _settled(query: dict[str, Any]) -> bool:
    """Has a query, as `status` shows it, read every row, and was it checked since? Times are written so that they sort."""
    ran, checked = query.get("last_run"), query.get("last_check")
    return query.get("backlog") == 0 and ran is not None and checked is not None and checked[: len(ran)] >= ran


def once_run(spec: Any, *, by_hand: bool = False, late: bool = False) -> Callable[[Any], None]:
    """What all other tasks do first: skip where the query has not been run yet.

    Also on a schedule, if they are for runs `by_hand`; and where no late row waits, if they have nothing else to do (`late`): that
    takes a second, and to start Spark and check for nothing eight, of every query on the hour.
    """

    def before(context: Any) -> None:
        if by_hand and context["dag_run"].run_type == "scheduled":
            skip(f"{spec.name} states no schedule.interval: its backfills are those that are asked for")
        found = status(spec.name)
        mine = next(iter(found["queries"]), None)
        if mine is None:
            reason = awaited(spec, found["streams"])
            skip(f"{spec.name} has not been run in {LAKE} yet" + (f": {reason}" if reason else ""))
        if late and mine.get("late_pending") == 0:
            skip(f"no late row of {spec.name} waits for repair")

    return before


def promise(spec: Any) -> str:
    """What the query promises: exact answers in the end, and on time what its file states."""
    if not spec.promises:
        return "Exact after repair."
    kinds = {
        "join": lambda: f"{100 * spec.target:g}% of the pairs",
        "aggregate": lambda: f"less than {100 * spec.error:g}% off with probability {spec.target:g}",
        "topk": lambda: f"{100 * spec.target:g}% of the {spec.k} best rows",
    }
    what = kinds.get(spec.kind, lambda: f"{100 * spec.target:g}% of the results")()
    return f"Promised on time, per {format_duration(spec.period_us)}: {what}. Exact after repair."


def build(path: Path, spec: Any) -> list[DAG]:
    """The DAGs of one query."""
    tries = DEFAULTS | {"retry_policy": UnlessWrong(f"{path}:", f"query {spec.name}:")}
    about = [spec.description, promise(spec), f"```yaml\n{path.read_text(encoding='utf-8')}\n```"]

    def common(does: str) -> dict[str, Any]:
        """Settings of a DAG; its page in the UI opens with what it does and when."""
        page = "\n\n".join(filter(None, [does, *about]))
        return SETTINGS | {"default_args": tries, "tags": ["latecomer", spec.kind], "doc_md": page}

    schedule, ready = spec.schedule, once_run(spec)
    query = (str(path), "--lake", LAKE)
    news = AssetAny(*(stream_asset(stream) for stream in dict.fromkeys(stream for _, stream in spec.streams)))
    with DAG(
        dag_id=spec.name,
        schedule=AssetOrTimeSchedule(timetable=_tick(schedule.run, at_once=True), assets=news),
        **common(
            "Answers what is new and checks what was promised: whenever one of its streams has new rows, once when "
            f"its query file is new, and on its schedule (`{schedule.run}`) what a run that failed has left. Skipped "
            "while a stream has no row, and where none waits."
        ),
    ) as main:
        spark_task(
            "run", "run", *query, outlets=[answers_asset(spec.name)], pre_execute=once_ingested(spec)
        ) >> CheckOperator(task_id="check", query=spec.name, path=path, retries=0)
    with DAG(
        dag_id=f"{spec.name}__repair",
        schedule=AssetOrTimeSchedule(timetable=_tick(schedule.repair), assets=[answers_asset(spec.name)]),
        params={"flush": FLUSH},
        **common(
            f"Corrects answers for rows that came too late, until they are exact, and checks: after each run of "
            f"`{spec.name}` late rows whose event times span more than {format_duration(spec.gamma_us)} (`gamma`), "
            f"on its schedule (`{schedule.repair}`) or by hand all that are pending. Skipped where none is."
        ),
    ) as repair:
        spark_task("repair", "repair", *query, FLUSH_OR_NOT, pre_execute=once_run(spec, late=True)) >> CheckOperator(
            task_id="check", query=spec.name, path=path, retries=0
        )
    dags = [main, repair]
    if spec.adapts:
        learns = "Learns from all stored history how long to wait, which the next runs do; on its schedule"
        with DAG(
            dag_id=f"{spec.name}__adapt", schedule=schedule.adapt, **common(f"{learns} (`{schedule.adapt}`).")
        ) as adapt:
            spark_task("adapt", "adapt", *query, pre_execute=ready)
        dags.append(adapt)
    if schedule.audit is not None:
        compares = "Answers some past periods anew by plain Spark SQL and compares every result; on its schedule"
        with DAG(
            dag_id=f"{spec.name}__audit",
            schedule=schedule.audit,
            params={"periods": PERIODS},
            **common(f"{compares} (`{schedule.audit}`)."),
        ) as audit:
            spark_task("audit", "check", *query, "--audit", "{{ params.periods }}", pre_execute=ready, retries=0)
        dags.append(audit)
    if spec.kind == "theta_join":
        interval = schedule.interval or "@daily"
        regular = f", and on its schedule (`{interval}`)" if schedule.interval else ""
        with DAG(
            dag_id=f"{spec.name}__backfill",
            schedule=CronDataIntervalTimetable(interval, timezone="UTC"),
            start_date=_first_day(schedule.start),
            **common(
                f"Answers the windows of past intervals again, where it is asked for{regular}. One run per interval of "
                f"`{interval}`, for the windows that start in it; Airflow's From and To (`--from-date`, `--to-date`) name "
                "the first and the last interval, both included, unlike `latecomer backfill --to`, which excludes its end."
            ),
        ) as backfill:
            range_ = ("--from", "{{ data_interval_start.isoformat() }}", "--to", "{{ data_interval_end.isoformat() }}")
            asked = once_run(spec, by_hand=schedule.interval is None)
            spark_task("backfill", "backfill", *query, *range_, pre_execute=asked)
        dags.append(backfill)
    return dags


def _tick(cron: str, *, at_once: bool = False) -> BaseTimetable:
    """When a schedule fires; with `at_once` also as soon as the DAG is new."""
    return OnceTimetable() if cron == "@once" else CronTriggerTimetable(cron, timezone="UTC", run_immediately=at_once)


def _first_day(start: str | None) -> datetime | None:
    """``schedule.start``; UTC where it names no zone."""
    if start is None:
        return None
    day = datetime.fromisoformat(start)
    return day if day.tzinfo else day.replace(tzinfo=UTC)


for _path, _spec in usable().queries:
    for _dag in build(_path, _spec):
        globals()[_dag.dag_id] = _dag
