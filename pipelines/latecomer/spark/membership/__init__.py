"""Memberships on Spark."""
