"""The assets by which DAGs are started and told: rows of streams, runs of queries, published answers."""

from __future__ import annotations

from airflow.sdk import Asset


def stream_asset(stream: str) -> Asset:
    """Return the asset that an ingestion of the stream updates and that schedules the queries over it."""
    return Asset(name=f"latecomer_{stream}", uri=f"latecomer://events/{stream}")


def answers_asset(query: str) -> Asset:
    """Return the asset that a publication of the query's answers updates.

    The dot in its name keeps it apart from the assets of streams.
    """
    return Asset(name=f"latecomer.{query}", uri=f"latecomer://results/{query}")


def periods_asset(query: str) -> Asset:
    """Return the asset whose partitions are the periods in which published answers have changed (Airflow 3.3)."""
    return Asset(name=f"latecomer.{query}.periods", uri=f"latecomer://results/{query}/periods")


def run_asset(query: str) -> Asset:
    """Return the asset that a run of the query updates and that starts its repair."""
    return Asset(name=f"latecomer.{query}.run", uri=f"latecomer://on_time/{query}")
