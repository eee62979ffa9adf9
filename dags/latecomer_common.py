"""What the DAG files share: where things are, which query files are usable, how a task calls the ``latecomer`` command.

Nothing heavy is imported here or by what imports it: these files are parsed again and again.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import Asset, BaseOperator, RetryDecision, RetryPolicy
from croniter import CroniterBadDateError, croniter
from latecomer.specs.errors import SpecError
from latecomer.specs.loading import load_query
from latecomer.specs.streams import load_stream, stream_file, stream_files

ROOT = Path(__file__).resolve().parents[1]
QUERIES = Path(os.environ.get("LATECOMER_QUERIES") or ROOT / "include" / "queries")
LANDING = os.environ.get("LATECOMER_LANDING") or str(ROOT / "build" / "landing")
STREAMS = Path(os.environ.get("LATECOMER_STREAMS") or ROOT / "include" / "streams")
LAKE = os.environ.get("LATECOMER_LAKE") or str(ROOT / "build" / "lake")
REPORTS = os.environ.get("LATECOMER_REPORTS") or str(ROOT / "build" / "reports")
SUBMIT = str(ROOT / "pipelines" / "latecomer" / "jobs" / "submit.py")
CONNECTION = "latecomer_spark"
INGEST = "latecomer_ingest"
DEFAULTS: dict[str, Any] = {
    "owner": "latecomer",
    "retries": int(os.environ.get("LATECOMER_RETRIES") or "2"),
    "retry_delay": timedelta(seconds=30),
    # what hangs would stop its DAG for good, since it has one run at a time; what is killed so goes on where it was
    "execution_timeout": timedelta(hours=float(os.environ.get("LATECOMER_TASK_HOURS") or "24")),
    "pool": os.environ.get("LATECOMER_POOL") or "default_pool",
    # a backfill has a run limit of its own: this is what keeps one writer per table
    "max_active_tis_per_dag": 1,
}
SETTINGS: dict[str, Any] = {"catchup": False, "max_active_runs": 1, "default_args": DEFAULTS}


def stream_asset(stream: str) -> Asset:
    """The asset that an ingestion of the stream updates and that schedules the queries over it."""
    return Asset(name=f"latecomer_{stream}", uri=f"latecomer://events/{stream}")


def answers_asset(query: str) -> Asset:
    """The asset that a run of the query updates and that starts its repair. The dot keeps it apart from streams."""
    return Asset(name=f"latecomer.{query}", uri=f"latecomer://on_time/{query}")


class UnlessWrong(RetryPolicy):
    """No second try for what is wrong: exit code 2 with a line that begins with one of `about` is what the next try would end with.

    That is a line about a query's file or its name, or of a stream with too many rows that cannot be used. A store that does not answer is exit
    code 2 as well, with a line about the lake, and may answer in a while; a landing file that is broken may still be being written.
    """

    def __init__(self, *about: str) -> None:
        self.about = about

    def evaluate(self, exception: BaseException, *args: Any, **more: Any) -> RetryDecision:
        """By what the operator's message has: the exit code, then the last lines of the command; of any other code none is looked at."""
        _, _, last = str(exception).partition("Error code is: 2.")
        wrong = next((line for line in last.splitlines() if line.startswith(self.about)), None)
        return RetryDecision.fail(f"no other try, it would end alike: {wrong}") if wrong else RetryDecision.default()


def spark_task(task_id: str, *arguments: str, **more: Any) -> Any:
    """A task that runs ``latecomer ARGUMENTS`` by spark-submit on the one connection."""
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
        **more,
    )


class CheckOperator(BaseOperator):
    """``latecomer check``: it reads small tables only and starts no Spark, so it is a plain process. What failed is the error's message."""

    def __init__(self, *, query: str, path: Path, **more: Any) -> None:
        super().__init__(**more)
        self.query = query
        self.path = str(path)

    def execute(self, context: Any) -> None:
        """Log what the command says, broken promises as errors."""
        import fcntl
        import subprocess

        from airflow.sdk.exceptions import AirflowFailException

        Path(REPORTS).mkdir(parents=True, exist_ok=True)
        command = ["latecomer", "check", self.path, "--lake", LAKE, "--report", REPORTS]
        said: list[str] = []
        broken: list[str] = []
        with open(Path(REPORTS) / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one writes the report at a time
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            with self.process as process:
                for line in map(str.rstrip, process.stdout or ()):
                    failed = line.startswith(f"{self.query}: FAILED ")
                    (self.log.error if failed else self.log.info)("%s", line)
                    (broken if failed else said).append(line)
        if self.process.returncode:
            raise AirflowFailException("\n".join(broken or said[-1:]) or f"exit code {self.process.returncode}")

    def on_kill(self) -> None:
        """Stop the command with the task."""
        if (process := getattr(self, "process", None)) is not None:
            process.terminate()


def status(*queries: str) -> dict[str, Any]:
    """What the lake holds, from ``latecomer status``: of all its queries, or of these; called by tasks, never while parsing."""
    import json
    import subprocess

    only = [f"--query={name}" for name in queries]
    done = subprocess.run(["latecomer", "status", "--lake", LAKE, *only, "--json"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-1000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def skip(reason: str) -> NoReturn:
    """End the task as skipped, and say why in its log: of a reason that is only raised, the UI shows "Skipping task."."""
    from airflow.sdk.exceptions import AirflowSkipException

    log = logging.getLogger(__name__)
    log.info("::endgroup::")  # Airflow's "Pre Execute", which the UI folds away
    log.info("Skipped: %s", reason)
    raise AirflowSkipException(reason)


def awaited(spec: Any, streams: dict[str, Any]) -> str | None:
    """Why a query cannot be run yet in a lake of these `streams`, as `status` has them: some have no row. None if it can."""
    without = [s for s in dict.fromkeys(s for _, s in spec.streams) if not streams.get(s, {}).get("rows")]
    if len(without) < 2:
        return f"stream {without[0]} has no row yet" if without else None
    return f"streams {', '.join(without)} have no row yet"


@dataclass(frozen=True)
class Usable:
    """Query files by what can be made of them; `problems` has one line per file that gets no DAGs."""

    queries: list[tuple[Path, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def usable() -> Usable:
    """All query files, in name order, and what is wrong with these or with stream files.

    Never raises for what a file holds: one bad file must not cost another its DAGs.

    Besides what no command accepts, Airflow refuses names that would clash among DAG ids (``__``, ``latecomer_ingest``),
    a name that two files share, and cron expressions that are not valid or never fire.
    """
    found = Usable()
    owners: dict[str, Path] = {}
    for path in sorted([*QUERIES.glob("*.yaml"), *QUERIES.glob("*.yml")]):
        try:
            spec = load_query(path)
        except SpecError as error:
            found.problems.append(str(error))
            continue
        except Exception as error:
            found.problems.append(f"{path}: cannot be read ({type(error).__name__}: {error})")
            continue
        problem = _problem(spec, owners)
        if problem is not None:
            found.problems.append(f"{path}: {problem}")
            continue
        owners[spec.name] = path
        found.queries.append((path, spec))
    try:
        streams = stream_files(STREAMS)
    except OSError as error:
        streams = []
        found.problems.append(f"{STREAMS}: cannot be read ({error.strerror or error})")
    found.problems.extend(problem for _, problem in map(_loaded, streams) if problem)
    return found


def stream_options(name: str) -> dict[str, Any]:
    """What the file of a stream, or of ``_by_<column>``, says of its landing files; nothing where it cannot be used."""
    path = stream_file(STREAMS, name)
    return {} if path is None else _loaded(path)[0]


def _loaded(path: Path) -> tuple[dict[str, Any], str]:
    """What a stream file says, and what is wrong with it."""
    try:
        return load_stream(path), ""
    except SpecError as error:
        return {}, str(error)
    except Exception as error:
        return {}, f"{path}: cannot be read ({type(error).__name__}: {error})"


def _problem(spec: Any, owners: dict[str, Path]) -> str | None:
    """Why a valid query cannot have DAGs."""
    if "__" in spec.name or spec.name == INGEST:
        return f"name {spec.name!r} is reserved for DAG ids; choose another name, without __"
    if spec.name in owners:
        return f"name {spec.name!r} is taken by {owners[spec.name].name}; give each query a name of its own"
    schedule = spec.schedule
    for key in ("run", "repair", "adapt", "audit", "interval"):
        value = getattr(schedule, key)
        if value is None or value == "@once":
            continue
        if not croniter.is_valid(value):
            return f"schedule.{key} {value!r} is not a valid cron expression; write five fields, or @hourly, @daily, @weekly"
        try:
            croniter(value).get_next()
        except CroniterBadDateError:
            return f"schedule.{key} {value!r} never fires; write days that their months have, or @monthly, @yearly"
    return None
