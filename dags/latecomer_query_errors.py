"""Shows what cannot become a DAG in Airflow, as an import error that names file, key and remedy; defines no DAG.

Airflow parses only files that speak of it and of DAGs: this sentence is why it parses this one.
"""

from __future__ import annotations

from latecomer_common import usable

if _lines := usable().problems:
    raise ImportError("\n".join(_lines))
