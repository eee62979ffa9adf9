"""The common parts of the DAG files: settings and paths, query files that can have DAGs, tasks that call ``latecomer``.

Airflow parses the DAG files every half minute, so neither this module nor its importers import anything heavy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, Unpack

from airflow.sdk import Asset, AssetAlias, BaseOperator, Context, RetryDecision, RetryPolicy
from latecomer.specs import deployment
from latecomer.specs.deployment import INGEST_DAG, QueryFiles
from latecomer.specs.streams import stream_file

if TYPE_CHECKING:
    import subprocess

    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

ROOT = Path(__file__).resolve().parents[1]
QUERIES = Path(os.environ.get("LATECOMER_QUERIES") or ROOT / "include" / "queries")
LANDING = os.environ.get("LATECOMER_LANDING") or str(ROOT / "build" / "landing")
STREAMS = Path(os.environ.get("LATECOMER_STREAMS") or ROOT / "include" / "streams")
LAKE = os.environ.get("LATECOMER_LAKE") or str(ROOT / "build" / "lake")
REPORTS = os.environ.get("LATECOMER_REPORTS") or str(ROOT / "build" / "reports")
SUBMIT = str(ROOT / "pipelines" / "latecomer" / "jobs" / "submit.py")
CONNECTION = "latecomer_spark"
INGEST = INGEST_DAG
MOST_PARTITIONS = 1_000
"""The most periods that one publication names as partitions, the newest ones; each is an event of its own."""
DEFAULTS: dict[str, object] = {
    "owner": "latecomer",
    "retries": int(os.environ.get("LATECOMER_RETRIES") or "2"),
    "retry_delay": timedelta(seconds=30),
    # a DAG has one run at a time, so a task that hangs would block it for good; the next run resumes a killed one
    "execution_timeout": timedelta(hours=float(os.environ.get("LATECOMER_TASK_HOURS") or "24")),
    "pool": os.environ.get("LATECOMER_POOL") or "default_pool",
    # a backfill has a limit of runs of its own: this limit keeps one writer per table
    "max_active_tis_per_dag": 1,
}


class DagSettings(TypedDict):
    """The arguments that every DAG has in common."""

    catchup: bool
    max_active_runs: int
    default_args: dict[str, object]


def dag_settings(retry_policy: RetryPolicy) -> DagSettings:
    """Return the common arguments of a DAG whose tasks have this retry policy."""
    return {"catchup": False, "max_active_runs": 1, "default_args": DEFAULTS | {"retry_policy": retry_policy}}


class TaskHooks(TypedDict, total=False):
    """The functions that Airflow calls in a task's process, before and after its operator."""

    pre_execute: Callable[[Context], None]
    post_execute: Callable[[Context, object], None]


class TaskOptions(TaskHooks, total=False):
    """The arguments of Airflow's in which our Spark tasks differ."""

    outlets: list[Asset | AssetAlias]
    retries: int
    trigger_rule: str


class StreamStatus(TypedDict):
    """A stream in the output of ``latecomer status --json``, as far as the DAGs read it."""

    rows: int


class QueryStatus(TypedDict, total=False):
    """A query in the output of ``latecomer status --json``, as far as the DAGs read it."""

    backlog: int | None
    late_pending: int | None
    last_run: str | None
    last_check: str | None


class LakeStatus(TypedDict):
    """The output of ``latecomer status --json``, as far as the DAGs read it."""

    streams: dict[str, StreamStatus]
    queries: list[QueryStatus]


def stream_asset(stream: str) -> Asset:
    """Return the asset that an ingestion of the stream updates and that schedules the queries over it."""
    return Asset(name=f"latecomer_{stream}", uri=f"latecomer://events/{stream}")


def answers_asset(query: str) -> Asset:
    """Return the asset that a publication of the query's answers updates.

    The dot in its name keeps it apart from the assets of streams.
    """
    return Asset(name=f"latecomer.{query}", uri=f"latecomer://results/{query}")


def periods_asset(query: str) -> Asset:
    """Return the asset whose partitions are the periods in which published answers have changed."""
    return Asset(name=f"latecomer.{query}.periods", uri=f"latecomer://results/{query}/periods")


def run_asset(query: str) -> Asset:
    """Return the asset that a run of the query updates and that starts its repair."""
    return Asset(name=f"latecomer.{query}.run", uri=f"latecomer://on_time/{query}")


class RetryTransientErrors(RetryPolicy):
    """A policy that retries a task unless its command refused its input, which the next try would refuse again.

    A command refuses its input by exit code 2 and a line about the query's file or name, or about a stream with too
    many unusable rows. An unreachable store is exit code 2 as well, but its line is about the lake, and it may answer
    later. A broken landing file is tried again too, because its writer may not have finished.

    Parameters
    ----------
    permanent
        Beginnings of lines that no retry can change.
    """

    def __init__(self, *permanent: str) -> None:
        self.permanent = permanent

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide by the operator's message, which holds the exit code and the last lines of the command."""
        _, _, output = str(exception).partition("Error code is: 2.")
        line = next((line for line in output.splitlines() if line.startswith(self.permanent)), None)
        return RetryDecision.fail(f"no other try, it would end alike: {line}") if line else RetryDecision.default()


def spark_task(task_id: str, *arguments: str, **options: Unpack[TaskOptions]) -> SparkSubmitOperator:
    """Return a task that runs ``latecomer ARGUMENTS`` by spark-submit, on the one connection."""
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    return SparkSubmitOperator(
        task_id=task_id,
        conn_id=CONNECTION,
        application=SUBMIT,
        application_args=list(arguments),
        name="latecomer-{{ dag.dag_id }}-{{ task.task_id }}",
        driver_memory=os.environ.get("LATECOMER_DRIVER_MEMORY"),
        properties_file=os.environ.get("LATECOMER_SPARK_PROPERTIES"),
        verbose=False,
        **options,
    )


class CommandOperator(BaseOperator):
    """The base of tasks that run ``latecomer`` as a plain process: it reads and writes small tables, without Spark."""

    def __init__(self, *, query: str, path: Path, **arguments: Any) -> None:  # Airflow's own arguments are its own
        super().__init__(**arguments)
        self.query = query
        self.path = str(path)
        self.process: subprocess.Popen[str] | None = None

    def call(self, command: str, *options: str) -> tuple[int, list[str]]:
        """Run a command over the query, log its lines, and return its exit code and the lines."""
        import subprocess

        arguments = ["latecomer", command, self.path, "--lake", LAKE, *options]
        lines: list[str] = []
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            self.process = process
            for line in map(str.rstrip, process.stdout or ()):
                (self.log.error if line.startswith(f"{self.query}: FAILED ") else self.log.info)("%s", line)
                lines.append(line)
        return process.returncode, lines

    def on_kill(self) -> None:
        """Stop the command with the task."""
        if self.process is not None:
            self.process.terminate()


class CheckOperator(CommandOperator):
    """``latecomer check``. A check that fails raises the broken promises as the error's message."""

    def execute(self, context: Context) -> None:
        """Run the command, one at a time, since it writes the report."""
        import fcntl

        from airflow.sdk.exceptions import AirflowFailException

        Path(REPORTS).mkdir(parents=True, exist_ok=True)
        with open(Path(REPORTS) / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            code, lines = self.call("check", "--report", REPORTS)
        if code:
            failures = [line for line in lines if line.startswith(f"{self.query}: FAILED ")]
            raise AirflowFailException("\n".join(failures or lines[-1:]) or f"exit code {code}")


class PublishOperator(CommandOperator):
    """``latecomer publish``. It updates the assets of the query's answers, and is skipped if no answer is new.

    The event of the asset says what has changed. The events of the asset of periods have a period each as partition, so
    a DAG with a ``PartitionedAssetTimetable`` runs once for each period that has changed.
    """

    def execute(self, context: Context) -> None:
        """Run the command, and describe what it has published."""
        import json

        from airflow.sdk.exceptions import AirflowException, AirflowFailException

        code, lines = self.call("publish", "--json")
        if code:
            ends = AirflowException if code in (3, 4) else AirflowFailException  # another try may end otherwise
            raise ends("\n".join(lines[-1:]) or f"exit code {code}")
        done = json.loads(lines[-1])
        if not done["inserted"] + done["updated"] + done["deleted"]:
            skip(f"no answer of {self.query} is new")
        published, corrected = done.pop("periods_published"), done.pop("periods_corrected")
        changed = sorted({*published, *corrected})
        counts = {"periods_published": len(published), "periods_corrected": len(corrected)}
        context["outlet_events"][answers_asset(self.query)].extra = {**done, **counts}
        if changed:
            context["outlet_events"][periods_asset(self.query)].add_partitions(changed[-MOST_PARTITIONS:])


def lake_status(*queries: str) -> LakeStatus:
    """Return what ``latecomer status`` says of all queries of the lake, or of those named.

    Tasks call it; nothing calls it while Airflow parses a file.

    Raises
    ------
    RuntimeError
        The command failed; the message is the end of its standard error.
    """
    import json
    import subprocess

    options = [f"--query={name}" for name in queries]
    command = ["latecomer", "status", "--lake", LAKE, *options, "--json"]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode:
        raise RuntimeError(completed.stderr.strip()[-1000:])
    status: LakeStatus = json.loads(completed.stdout.strip().splitlines()[-1])
    return status


def skip(reason: str) -> NoReturn:
    """End the task as skipped, and write the reason to its log.

    Of an exception alone, the UI would show nothing but "Skipping task.".
    """
    from airflow.sdk.exceptions import AirflowSkipException

    log = logging.getLogger(__name__)
    log.info("::endgroup::")  # ends Airflow's "Pre Execute", which the UI folds away
    log.info("Skipped: %s", reason)
    raise AirflowSkipException(reason)


def read_query_files() -> QueryFiles:
    """Return the query files of this deployment, and the problems of the files that get no DAGs."""
    return deployment.read_query_files(deployment.query_files(QUERIES))


def stream_options(name: str) -> Mapping[str, Any]:
    """Return the options in the file of a stream, or of ``_by_<column>``; none if there is no usable file."""
    path = stream_file(STREAMS, name)
    return {} if path is None else deployment.read_stream_file(path)[0]
