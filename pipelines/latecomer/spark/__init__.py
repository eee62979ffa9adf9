"""The commands that need Spark (run, repair, adapt, backfill, audit), and the stages of the query kinds that they use.

A command decides when rows count: it holds the lease, plans, and commits in order. A stage turns DataFrames into
DataFrames; its decisions come from :mod:`latecomer.core` as plain numbers.
"""
