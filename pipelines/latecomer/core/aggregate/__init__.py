"""Aggregates: the coverage that an error bound requires, and running quantiles."""
