"""Theta joins on Spark."""
