"""Latecomer: continuous queries over event data that arrives out of order.

A user states a query and *how complete* its answers must be. Every answer is published as early as that allows, every
late contribution is registered, and batch repair makes the results exact.

Imports go down only, ``jobs -> bench -> ingest, quality -> spark -> ledger -> strategies, baselines, lake -> core,
specs``, and tests alone import ``reference``.
"""

__version__ = "0.1.0"
