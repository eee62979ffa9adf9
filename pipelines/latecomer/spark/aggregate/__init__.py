"""Aggregates on Spark."""
