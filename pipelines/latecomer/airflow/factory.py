"""The factory of DAGs: `latecomer_dags`, and `raise_problems` for what gets none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from latecomer.airflow.ingest import ingest_dag
from latecomer.airflow.queries import query_dags
from latecomer.airflow.settings import CONNECTION, place, setting
from latecomer.specs import deployment
from latecomer.specs.deployment import QueryFiles

Places = str | Path | Iterable[str | Path]
PROBLEMS_DAG = "latecomer_problems"
"""The DAG that lists the files that cannot be used; it exists while there are any."""


def latecomer_dags(
    queries: Places | None = None,
    streams: str | Path | None = None,
    *,
    files: str | Path | None = None,
    lake: str | None = None,
    landing: str | Path | None = None,
    reports: str | None = None,
    conn_id: str | None = CONNECTION,
    ingest: bool = True,
    ingest_schedule: str | None = None,
    show_problems: bool = True,
    default_args: dict[str, Any] | None = None,
) -> dict[str, DAG]:
    """Return the DAGs of query files and the DAG that ingests, by their ids.

    A DAG file calls it and keeps the DAGs as globals::

        from latecomer.airflow import latecomer_dags
        globals().update(latecomer_dags())

    Parameters
    ----------
    queries : path or iterable of paths, optional
        Query files, and folders of them; relative to the folder of the DAG file. None: the setting ``queries``, else
        the folder ``queries`` in `files`.
    streams : path, optional
        The folder of stream files, likewise.
    files : path, optional
        The folder that has the folders ``queries`` and ``streams``; None: that of the DAG file, so that a Git
        repository can hold them all.
    lake, reports : str, optional
        The lake, and the folder of reports; a folder by its whole path. A template of Airflow is filled in when a task
        runs, such as ``{{ var.value.latecomer_lake }}``. None: the settings, read when a task runs.
    landing : path, optional
        The landing folder, relative to the folder of the DAG file, or a prefix of a bucket; read when the file is
        parsed.
    conn_id : str, optional
        The connection that says where Spark runs, see ``LatecomerOperator``.
    ingest
        Also return the DAG that ingests. A second call in the same Airflow says False, since the DAG has one id.
    ingest_schedule : str, optional
        A cron expression, for an Airflow without a triggerer; None: the setting, and where that is empty too, whenever
        something is new.
    show_problems
        Return the DAG ``latecomer_problems`` while a file has a mistake, whose page says which. A file cannot both
        have DAGs and be an import error; `raise_problems` in a file of its own makes it one.
    default_args : dict, optional
        Arguments of all tasks, which win over the settings.
    """
    base = _folder_of_caller()
    query_files = _read_queries(base, queries, files)
    stream_folder = _place(base, "streams", streams, files)
    landing_folder = place("landing", None if landing is None else _landing(base, str(landing)))
    options: dict[str, Any] = {"lake": lake, "reports": reports, "conn_id": conn_id}
    common: dict[str, Any] = {
        "catchup": False,
        "max_active_runs": 1,
        "default_args": _default_args() | (default_args or {}),
    }
    dags = []
    if ingest:
        named = list(dict.fromkeys(stream for _, spec in query_files.queries for stream in spec.stream_names))
        schedule = ingest_schedule or setting("ingest_schedule") or None
        dags.append(
            ingest_dag(
                landing=landing_folder,
                streams=stream_folder,
                named=named,
                schedule=schedule,
                options=options,
                common=common,
            )
        )
    for path, spec in query_files.queries:
        dags += query_dags(path, spec, options=options, common=common)
    if show_problems and (problems := _problems(query_files, stream_folder)):
        dags.append(_problems_dag(problems))
    return {dag.dag_id: dag for dag in dags}


def raise_problems(
    queries: Places | None = None, streams: str | Path | None = None, *, files: str | Path | None = None
) -> None:
    """Show query files and stream files that are wrong as an import error in Airflow, with file, key and remedy.

    The arguments are those of `latecomer_dags`. The DAG file that calls it defines no DAG.

    Raises
    ------
    ImportError
        A file has a mistake.
    """
    base = _folder_of_caller()
    if problems := _problems(_read_queries(base, queries, files), _place(base, "streams", streams, files)):
        raise ImportError("\n".join(problems))


def _folder_of_caller() -> Path:
    """Return the folder of the file that called the public function."""
    return Path(sys._getframe(2).f_globals.get("__file__") or ".").absolute().parent


def _place(base: Path, name: str, given: str | Path | None, files: str | Path | None) -> Path:
    """Return the folder of query files or of stream files."""
    return Path(os.path.normpath(base / (given or setting(name) or Path(files or ".") / name)))


def _landing(base: Path, landing: str) -> str:
    """Return a landing folder that an argument names; a folder is relative to that of the DAG file."""
    return landing if "://" in landing else os.path.normpath(base / landing)


def _read_queries(base: Path, queries: Places | None, files: str | Path | None) -> QueryFiles:
    """Read the query files of a deployment; it never raises for their contents."""
    if queries is None or isinstance(queries, str | Path):
        places = [_place(base, "queries", queries, files)]
    else:
        places = [Path(os.path.normpath(base / source)) for source in queries]
    paths = [path for source in places for path in ([source] if source.is_file() else deployment.query_files(source))]
    read = deployment.read_query_files(dict.fromkeys(paths))
    for source in places:
        if not source.exists():
            read.problems[source] = f"{source}: is neither a query file nor a folder of them; create it"
    return read


def _problems(query_files: QueryFiles, streams: Path) -> list[str]:
    return [*query_files.problems.values(), *deployment.stream_file_problems(streams).values()]


def _problems_dag(problems: list[str]) -> DAG:
    """Return a DAG whose page lists problems. Its one task does nothing; it runs only if somebody starts it."""
    from airflow.providers.standard.operators.empty import EmptyOperator

    listed = "\n".join(f"- `{problem.replace('`', chr(39))}`" for problem in problems)
    lines = ["These files have mistakes. They have no DAGs; all others do.", listed]
    with DAG(
        dag_id=PROBLEMS_DAG,
        schedule=None,
        catchup=False,
        tags=["latecomer", "problem"],
        description=f"{len(problems)} of Latecomer's files cannot be used",
        doc_md="\n\n".join(lines),
    ) as dag:
        EmptyOperator(task_id="see_the_page_of_this_dag")
    return dag


def _default_args() -> dict[str, object]:
    return {
        "owner": "latecomer",
        "retries": int(setting("retries", "2")),
        "retry_delay": timedelta(seconds=30),
        # a DAG has one run at a time, so a task that hangs would block it for good; the next run resumes a killed one
        "execution_timeout": timedelta(hours=float(setting("task_hours", "24"))),
        "pool": setting("pool", "default_pool"),
        # a backfill has a limit of runs of its own: this limit keeps one writer per table
        "max_active_tis_per_dag": 1,
    }
