"""Shows broken query files in Airflow as an import error that names file, key and remedy; defines no DAG.

Airflow parses only files that speak of it and of DAGs: this sentence is why it parses this one.
"""

from __future__ import annotations

from latecomer.specs.common import SpecError
from latecomer.specs.loading import load_query
from latecomer_common import query_files


def broken() -> list[str]:
    """One line per broken query file."""
    found = []
    for path in query_files():
        try:
            load_query(path)
        except SpecError as error:
            found.append(str(error))
    return found


if _lines := broken():
    raise ImportError("\n".join(_lines))
