"""The settings of Hadoop's file systems, by which Spark reaches the stores."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from latecomer.lake.stores import S3, STORES, Store, region


def store_settings(store: Store | None) -> dict[str, str]:
    """Return the settings of a store's file system; none for a local place."""
    return _s3() if store is S3 else {}


def settings_of_all_stores() -> dict[str, str]:
    """Return the settings of every store, for a server that does not know yet where the lakes are."""
    return {key: value for store in STORES for key, value in store_settings(store).items()}


def _s3() -> dict[str, str]:
    """Return the settings of Hadoop's S3 file system. Credentials come from the environment, on executors too.

    Delta's log store for S3 checks before it puts, and is safe for a single driver only. The lease in the lake, which
    delta-rs takes with a conditional put, keeps a second driver away.
    """
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    settings = {
        "spark.hadoop.fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint.region": region(),
    }
    if endpoint:
        settings |= {
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": str(urlsplit(endpoint).scheme == "https").lower(),
        }
    return settings
