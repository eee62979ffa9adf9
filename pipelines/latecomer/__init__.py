"""Latecomer: continuous queries over event data that arrives out of order.

A user states a query and *how complete* its answers must be; every answer is published as early as that
allows, every late contribution is registered, and batch repair makes the results exact.

Layers, arrows only downwards: ``jobs -> spark, quality -> lake, core, baselines -> specs``; ``reference`` is for tests.
"""

__version__ = "0.1.0"
