"""Thin Spark stages: DataFrames in, DataFrames out; decisions come from :mod:`latecomer.core` as plain numbers."""
