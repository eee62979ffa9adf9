"""Latecomer: continuous queries over event data that arrives out of order.

A user states a query and *how complete* its answers must be. Every answer is published as early as that allows, every
late contribution is registered, and batch repair makes the results exact.

``import latecomer as lc`` gives the Python API, :mod:`latecomer.api`.

Imports go down only, ``jobs -> bench -> ingest, quality -> spark -> ledger -> strategies, baselines, lake -> core,
specs``, and tests alone import ``reference``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latecomer.api import Lake, Query, Results, aggregate, join, membership, theta_join, topk

__all__ = ["Lake", "Query", "Results", "aggregate", "join", "membership", "theta_join", "topk"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Return a name of the API. It is imported when it is first used, since DAG files import this package too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("latecomer.api"), name)
