"""Query and stream files as a deployment: the files that Airflow can follow, and what is wrong with the others.

The DAG files and ``latecomer validate`` read files by these functions alone, so that they refuse the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from croniter import CroniterBadDateError, croniter

from latecomer.specs.errors import SpecError
from latecomer.specs.loading import load_query
from latecomer.specs.spec import Spec
from latecomer.specs.streams import load_stream, stream_files

INGEST_DAG = "latecomer_ingest"
"""The DAG that ingests; no query can have its name."""
_COMMANDS = ("run", "repair", "adapt", "audit", "interval")
_FIRST_YEAR, _LAST_YEAR = 1900, 2200
"""The years in which Airflow can count intervals in both directions."""
_TEMPLATE = re.compile(r"\{[{%#]")


@dataclass(frozen=True)
class QueryFiles:
    """The query files of a deployment.

    Attributes
    ----------
    queries
        Path and spec of each file that can have DAGs.
    problems
        One line for each file that gets no DAGs, by its path.
    """

    queries: list[tuple[Path, Spec]] = field(default_factory=list)
    problems: dict[Path, str] = field(default_factory=dict)


def query_files(folder: Path) -> list[Path]:
    """Return the query files of a folder, sorted."""
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def named_query_files(places: Iterable[Path]) -> list[Path]:
    """Return the query files that are named, and all query files of the folders that are named, each file once.

    Raises
    ------
    SpecError
        A folder holds no query file.
    """
    files: dict[Path, Path] = {}
    for place in places:
        inner = query_files(place) if place.is_dir() else [place]
        if not inner:
            raise SpecError(str(place), "", None, "holds no query file", "name a folder of .yaml files")
        files |= {path.absolute(): path for path in inner}
    return list(files.values())


def streams_without_rows(spec: Spec, streams: Mapping[str, Mapping[str, object]]) -> str | None:
    """Return a sentence that names the query's streams without a row in a lake, or None if each has one.

    `streams` has the ``rows`` of each stream, as ``latecomer status --json`` says them.
    """
    empty = [name for name in spec.stream_names if name not in streams or not streams[name]["rows"]]
    if len(empty) < 2:
        return f"stream {empty[0]} has no row yet" if empty else None
    return f"streams {', '.join(empty)} have no row yet"


def read_query_files(paths: Iterable[Path]) -> QueryFiles:
    """Read query files that are deployed together.

    It never raises for the contents of a file, because one bad file must not cost another its DAGs. Of two files with a
    query of one name, the first gets the DAGs.
    """
    files = QueryFiles()
    paths_by_name: dict[str, Path] = {}
    for path in paths:
        try:
            spec = load_query(path)
            check_deployable(path, spec)
            if (other := paths_by_name.get(spec.name)) is not None:
                problem, remedy = f"is taken by {other.name}", "give each query a name of its own"
                raise spec.fail("name", spec.name, problem, remedy)
        except SpecError as error:
            files.problems[path] = str(error)
        except Exception as error:
            files.problems[path] = f"{path}: cannot be read ({type(error).__name__}: {error})"
        else:
            paths_by_name[spec.name] = path
            files.queries.append((path, spec))
    return files


def stream_file_problems(folder: Path) -> dict[Path, str]:
    """Return one line for each stream file of a folder that cannot be used, by its path.

    It never raises, as :func:`read_query_files`.
    """
    try:
        paths = stream_files(folder)
    except OSError as error:
        return {folder: f"{folder}: cannot be read ({error.strerror or error})"}
    return {path: problem for path in paths if (problem := read_stream_file(path)[1])}


def read_stream_file(path: Path) -> tuple[Mapping[str, Any], str]:
    """Return the options that a stream file states and a line about its problem, one of them empty."""
    try:
        return load_stream(path), ""
    except SpecError as error:
        return {}, str(error)
    except Exception as error:
        return {}, f"{path}: cannot be read ({type(error).__name__}: {error})"


def check_deployable(path: Path, spec: Spec) -> None:
    """Refuse a valid query that cannot have DAGs.

    Raises
    ------
    SpecError
        The query's name would clash with a DAG id, Airflow cannot follow its schedule, or would take a part of its path
        for a template.
    """
    if "__" in spec.name or spec.name == INGEST_DAG:
        raise spec.fail("name", spec.name, "is reserved for DAG ids", "choose another name, without __")
    if _TEMPLATE.search(str(path)):
        raise spec.fail("", str(path), "has a path that Airflow takes for a template", "rename it, without braces")
    for key in _COMMANDS:
        value = getattr(spec.schedule, key)
        fault = None if value is None or value == "@once" else _cron_fault(value)
        if fault is not None:
            raise spec.fail(f"schedule.{key}", value, *fault)
    start = spec.schedule.start
    if start is not None and not _FIRST_YEAR <= datetime.fromisoformat(start).year < _LAST_YEAR:
        problem = "is a day from which Airflow cannot count"
        raise spec.fail("schedule.start", start, problem, f"write one from {_FIRST_YEAR} to {_LAST_YEAR - 1}")


def _cron_fault(cron: str) -> tuple[str, str] | None:
    """Return why Airflow cannot follow a cron expression, and a remedy; None where it can."""
    if not croniter.is_valid(cron):
        return "is not a valid cron expression", "write five fields, or @hourly, @daily, @weekly"
    if any(part.upper().startswith("R") for part in cron.split()):
        return "has other times whenever it is read", "write numbers in place of R"
    try:
        croniter(cron).get_next()
    except CroniterBadDateError:
        return "never fires", "write days that their months have, or @monthly, @yearly"
    return None
