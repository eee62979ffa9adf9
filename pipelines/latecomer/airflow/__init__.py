"""Latecomer in Airflow: a factory of DAGs, one operator, and the pages of the quality report.

A file of two lines in Airflow's folder of DAG files is a deployment::

    from latecomer.airflow import latecomer_dags
    globals().update(latecomer_dags())

Airflow parses its DAG files every half minute, and reads this package for its list of providers. So names are imported
when they are asked for, and no module imports pyspark, pandas or pyarrow before a task runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latecomer.airflow.assets import answers_asset, periods_asset, run_asset, stream_asset
    from latecomer.airflow.factory import latecomer_dags, raise_problems
    from latecomer.airflow.operator import LatecomerOperator

__all__ = [
    "LatecomerOperator",
    "answers_asset",
    "latecomer_dags",
    "periods_asset",
    "raise_problems",
    "run_asset",
    "stream_asset",
]
_MODULES = {"latecomer_dags": "factory", "raise_problems": "factory", "LatecomerOperator": "operator"}


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'assets')}")
    return getattr(module, name)
