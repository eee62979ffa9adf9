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
from latecomer.specs.spec import Spec
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
    """Return the asset that a run of the query updates and that starts its repair.

    The dot in its name keeps it apart from the assets of streams.
    """
    return Asset(name=f"latecomer.{query}", uri=f"latecomer://on_time/{query}")


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


class CheckOperator(BaseOperator):
    """``latecomer check`` as a plain process: it reads small tables only and starts no Spark.

    A check that fails raises the broken promises as the error's message.
    """

    def __init__(self, *, query: str, path: Path, **arguments: Any) -> None:  # Airflow's own arguments are its own
        super().__init__(**arguments)
        self.query = query
        self.path = str(path)
        self.process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> None:
        """Run the command; log its lines, and those about broken promises as errors."""
        import fcntl
        import subprocess

        from airflow.sdk.exceptions import AirflowFailException

        Path(REPORTS).mkdir(parents=True, exist_ok=True)
        command = ["latecomer", "check", self.path, "--lake", LAKE, "--report", REPORTS]
        lines: list[str] = []
        failures: list[str] = []
        with open(Path(REPORTS) / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one task writes the report at a time
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                self.process = process
                for line in map(str.rstrip, process.stdout or ()):
                    failed = line.startswith(f"{self.query}: FAILED ")
                    (self.log.error if failed else self.log.info)("%s", line)
                    (failures if failed else lines).append(line)
        if process.returncode:
            raise AirflowFailException("\n".join(failures or lines[-1:]) or f"exit code {process.returncode}")

    def on_kill(self) -> None:
        """Stop the command with the task."""
        if self.process is not None:
            self.process.terminate()


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


def streams_without_rows(spec: Spec, streams: Mapping[str, StreamStatus]) -> str | None:
    """Return a sentence that names the query's streams without a row in this lake, or None if each has one."""
    empty = [name for name in spec.stream_names if name not in streams or not streams[name]["rows"]]
    if len(empty) < 2:
        return f"stream {empty[0]} has no row yet" if empty else None
    return f"streams {', '.join(empty)} have no row yet"


def read_query_files() -> QueryFiles:
    """Return the query files of this deployment, and the problems of the files that get no DAGs."""
    return deployment.read_query_files(deployment.query_files(QUERIES))


def stream_options(name: str) -> Mapping[str, Any]:
    """Return the options in the file of a stream, or of ``_by_<column>``; none if there is no usable file."""
    path = stream_file(STREAMS, name)
    return {} if path is None else deployment.read_stream_file(path)[0]
