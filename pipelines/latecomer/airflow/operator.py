"""The operator that takes one step of Latecomer: `LatecomerOperator`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, get_args

from airflow.sdk import Asset, BaseOperator, Context

from latecomer.airflow.assets import answers_asset, periods_asset, run_asset
from latecomer.airflow.decisions import never_run, no_new_rows, no_step_due
from latecomer.airflow.links import ReportLink, SparkUiLink
from latecomer.airflow.settings import CONNECTION, place, setting
from latecomer.airflow.submit import (
    Process,
    application,
    connect_variables,
    ending,
    outcome_of_hook,
    spark_connection,
    store_variables,
    submit_hook,
)

if TYPE_CHECKING:
    from latecomer.specs.spec import Spec

Action = Literal["ingest", "run", "repair", "adapt", "backfill", "check", "publish", "advance", "expire"]
ACTIONS: tuple[str, ...] = get_args(Action)
OF_THE_LAKE = ("ingest", "expire")
"""Actions that concern no query alone."""
RAN = '{"seq_to": null}'
"""A line by which a run that was submitted tells that it was one, as `--json` does for other commands."""
MOST_PARTITIONS = 1_000
"""The most periods that one publication names as partitions, the newest ones; each is an event of its own."""


def skip(reason: str) -> NoReturn:
    """End the task as skipped, and write the reason to its log.

    Of an exception alone, the UI would show nothing but "Skipping task.".
    """
    from airflow.sdk.exceptions import AirflowSkipException

    logging.getLogger(__name__).info("Skipped: %s", reason)
    raise AirflowSkipException(reason)


class LatecomerOperator(BaseOperator):
    """Take one step of a query, or ingest: run ``latecomer ACTION`` where the Spark connection says.

    A step without anything to do is skipped before a process starts. A failed check and a wrong query fail for good;
    a lake that somebody else holds, a store that does not answer and a Java process that died are tried again.

    Parameters
    ----------
    action
        The command. ``advance`` takes every step of the query that is due: run, repair, check, publish. ``expire``
        removes files of the lake that no version of a table needs.
    query : path, optional
        The query file. All actions but ``ingest`` and ``expire`` need it. (templated)
    arguments
        More arguments of the command, as ``["--audit", "3"]``. (templated)
    lake : str, optional
        The lake; None: that of the settings, when the task runs. (templated)
    reports : str, optional
        The folder of quality reports, likewise. (templated)
    flush
        Of ``repair``: repair everything that is pending. None: the run's parameter ``flush`` decides, and where that is
        None too, everything is repaired unless an asset has started the run.
    conn_id : str, optional
        A connection of type ``spark`` (spark-submit) or ``spark_connect``. If there is none, or it is None, Spark runs
        within the command's process. (templated)
    only_by_hand
        Skip runs that a schedule has started; the value is the reason.

    Notes
    -----
    ``publish`` and ``advance`` update the assets among `outlets` whose tables have changed, and their events say what
    has changed. A DAG that wants them states them: ``outlets=[answers_asset("orders")]``. A command's process is the
    leader of a group, which ends with the task.
    """

    template_fields: Sequence[str] = ("query", "arguments", "lake", "reports", "conn_id")
    operator_extra_links = (ReportLink(), SparkUiLink())
    submit_types: ClassVar[tuple[str, ...]] = ("spark",)
    """Types of the connections by which `submit` runs a command; with others, it runs as a process of the task."""
    ui_color = "#dbe7f3"

    def __init__(
        self,
        *,
        action: Action,
        query: str | Path | None = None,
        arguments: Sequence[str] = (),
        lake: str | None = None,
        reports: str | None = None,
        flush: bool | None = False,
        conn_id: str | None = CONNECTION,
        only_by_hand: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if action not in ACTIONS:
            raise ValueError(f"action: {action!r}: is no action; write one of {', '.join(ACTIONS)}")
        if query is None and action not in OF_THE_LAKE:
            raise ValueError(f"query: {action!r} needs a query file")
        self.action = action
        self.query = None if query is None else str(query)
        self.arguments = list(arguments)
        self.lake = lake
        self.reports = reports
        self.flush = flush
        self.conn_id = conn_id
        self.only_by_hand = only_by_hand
        self.query_name: str | None = None
        self.spark_ui: str | None = None
        self._declared: list[Any] = list(self.outlets)
        self._running: Any = None

    def execute(self, context: Context) -> None:
        """Decide whether the step is due, run its command, and tell the assets."""
        from airflow.sdk.exceptions import AirflowException, AirflowFailException

        from latecomer.lake.errors import InputError
        from latecomer.specs.errors import SpecError
        from latecomer.specs.loading import load_query

        os.environ.update(store_variables())
        self.lake = place("lake", self.lake)
        self.outlets = self._declared
        try:
            spec = None if self.query is None or self.action in OF_THE_LAKE else load_query(self.query)
            self.query_name = None if spec is None else spec.name
            arguments = self.prepare(context, spec)
        except SpecError as error:
            raise AirflowFailException(f"no other try, it would end alike: {error}") from None
        except InputError as error:
            raise AirflowException(str(error)) from None
        lines = self.take(context, spec, arguments)
        self.conclude(context, spec, lines)

    def prepare(self, context: Context, spec: Spec | None) -> list[str]:
        """Return the arguments of the command; skip the task if there is nothing to do."""
        assert self.lake is not None
        if spec is None:
            return [self.action, "--lake", self.lake, *self.arguments]
        run_type = getattr(context["dag_run"], "run_type", None)
        run_type = str(getattr(run_type, "value", run_type))
        if self.only_by_hand is not None and run_type == "scheduled":
            skip(self.only_by_hand)
        reason = None
        match self.action:
            case "run":
                reason = no_new_rows(self.lake, spec, by_hand=run_type == "manual")
            case "advance":
                reason = no_step_due(self.lake, spec)
            case "repair":
                reason = never_run(self.lake, spec, only_late_rows=True)
            case "adapt" | "backfill":
                reason = never_run(self.lake, spec)
            case "check" if "--audit" in self.arguments:
                reason = never_run(self.lake, spec)
        if reason is not None:
            skip(reason)
        arguments = [self.action, str(self.query), "--lake", self.lake, *self.arguments]
        if self.action in ("check", "advance") and "--audit" not in self.arguments:
            arguments += ["--report", place("reports", self.reports)]
        if self.action in ("publish", "advance"):
            arguments.append("--json")
        if self.action == "repair" and self._flushes(context, run_type):
            arguments.append("--flush")
        return arguments

    def _flushes(self, context: Context, run_type: str) -> bool:
        """Return whether a repair takes everything that is pending."""
        if self.flush is not None:
            return self.flush
        chosen = context["params"].get("flush")
        return run_type != "asset_triggered" if chosen is None else bool(chosen)

    def take(self, context: Context, spec: Spec | None, arguments: list[str]) -> list[str]:
        """Run the command and return its last lines.

        Raises
        ------
        AirflowException
            The command failed, and another try may end otherwise.
        AirflowFailException
            The command failed for good.
        """
        permanent = ("stream ",) if spec is None else (f"{self.query}:", f"query {spec.name}:")
        if self.action in ("publish", "expire") or (self.action == "check" and "--audit" not in self.arguments):
            connection = None
        else:
            connection = spark_connection(self.conn_id, (*self.submit_types, "spark_connect"))
        self.spark_ui = None if connection is None else connection.extra_dejson.get("ui")
        memory = setting("driver_memory")
        variables = {"LATECOMER_DRIVER_MEMORY": memory} if memory else {}
        if connection is not None and connection.conn_type in self.submit_types:
            if self.action != "advance":
                self.submit(arguments, memory, permanent)
                return []
            from latecomer.jobs.advance import steps
            from latecomer.lake.lake import Lake

            assert spec is not None and self.lake is not None
            lines: list[str] = []
            for step in steps(Lake(self.lake), spec):
                command = [step, str(self.query), "--lake", self.lake]
                if step in ("run", "repair"):
                    self.submit(command, memory, permanent)
                    lines += [RAN] if step == "run" else []
                elif step == "check":
                    report = ["--report", place("reports", self.reports)]
                    self._call([*command, *report], variables, permanent)
                else:
                    lines += self._call([*command, "--json"], variables, permanent)
            return lines
        if connection is not None:
            variables |= connect_variables(str(self.conn_id))
        return self._call(arguments, variables, permanent)

    def submit(self, arguments: list[str], memory: str, permanent: tuple[str, ...]) -> None:
        """Run a command by spark-submit. A subclass submits in another way, by connections of its `submit_types`.

        Parameters
        ----------
        arguments
            The line of the command, which the application of the package takes.
        memory
            The memory of the driver, such as ``4g``; empty: whatever is set elsewhere.
        permanent
            Beginnings of the line of an error that another try would repeat.

        Raises
        ------
        AirflowException
            The command failed, and another try may end otherwise.
        AirflowFailException
            The command failed for good.
        """
        name = f"latecomer-{self.dag_id}-{self.task_id}"
        properties = setting("spark_properties")
        hook = submit_hook(str(self.conn_id), arguments, name=name, memory=memory, properties=properties)
        self._running = hook.on_kill
        try:
            hook.submit(application())
        except Exception as error:
            outcome = outcome_of_hook(error)
            if outcome is None:
                raise
            raise ending(*outcome, query=self.query_name, permanent=permanent) or error from error
        finally:
            self._running = None

    def _call(self, arguments: list[str], variables: dict[str, str], permanent: tuple[str, ...]) -> list[str]:
        """Run a command as a process of this machine, log its lines, and return the last ones."""
        process = Process(arguments, variables)
        self._running = process.end
        failed = f"{self.query_name}: FAILED "
        try:
            code, lines = process.follow(
                lambda line: (self.log.error if line.startswith(failed) else self.log.info)("%s", line)
            )
        finally:
            self._running = None
        if (end := ending(code, lines, query=self.query_name, permanent=permanent)) is not None:
            raise end
        return lines

    def conclude(self, context: Context, spec: Spec | None, lines: list[str]) -> None:
        """Describe to the assets what was published; a publication of nothing new is skipped."""
        if spec is None or self.action not in ("publish", "advance"):
            return
        steps = [json.loads(line) for line in lines if line.startswith('{"') and line.endswith("}")]
        updated = [run_asset(spec.name)] if any("seq_to" in step for step in steps) else []
        published = next((step for step in steps if "periods_published" in step), None)
        if published is not None and published["inserted"] + published["updated"] + published["deleted"]:
            updated += self._describe(context, spec, published)
        elif self.action == "publish":
            skip(f"no answer of {spec.name} is new")
        # an asset that stays here is updated when the task succeeds
        self.outlets = [asset for asset in self._declared if not isinstance(asset, Asset) or asset in updated]

    def _describe(self, context: Context, spec: Spec, done: dict[str, Any]) -> list[Asset]:
        """Describe a publication to the query's assets, and return the ones that it updates.

        The event of the answers says what has changed. The events of the periods have a period each as partition, so a
        DAG with a ``PartitionedAssetTimetable`` runs once for each period that has changed. Airflow 3.2 knows no
        events of several partitions, and gets the first event alone.
        """
        published, corrected = done.pop("periods_published"), done.pop("periods_corrected")
        changed = sorted({*published, *corrected})
        counts = {"periods_published": len(published), "periods_corrected": len(corrected)}
        events = context["outlet_events"]
        events[answers_asset(spec.name)].extra = {**done, **counts}
        periods = events[periods_asset(spec.name)]
        if not changed or not hasattr(periods, "add_partitions"):
            return [answers_asset(spec.name)]
        periods.add_partitions(changed[-MOST_PARTITIONS:])
        return [answers_asset(spec.name), periods_asset(spec.name)]

    def on_kill(self) -> None:
        """End the command with the task: its process group, or the driver that was submitted."""
        if self._running is not None:
            self._running()
