"""The settings of Hadoop's file systems, by which Spark reaches the stores."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from latecomer.lake.stores import AZURE, GOOGLE, S3, STORES, Store, google_emulator, is_emulated, region


def store_settings(store: Store | None) -> dict[str, str]:
    """Return the settings of a store's file system; none for a local place."""
    if store is S3:
        return _s3()
    if store is AZURE:
        return _azure()
    return _google() if store is GOOGLE else {}


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


def _azure() -> dict[str, str]:
    """Return the settings of Hadoop's file system for Azure.

    Secrets stay in the environment, from which Hadoop puts them into the settings where it reads them, on executors
    too: Spark's own settings, which its pages show, have the names of the variables alone.
    """
    prefix = "spark.hadoop.fs.azure."
    if os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"):
        settings = {
            f"{prefix}account.auth.type": "SharedKey",
            f"{prefix}account.key": "${env.AZURE_STORAGE_ACCOUNT_KEY}",
        }
    elif os.environ.get("AZURE_STORAGE_SAS_TOKEN"):
        settings = {f"{prefix}account.auth.type": "SAS", f"{prefix}sas.fixed.token": "${env.AZURE_STORAGE_SAS_TOKEN}"}
    elif os.environ.get("AZURE_CLIENT_SECRET"):
        settings = {
            f"{prefix}account.auth.type": "OAuth",
            f"{prefix}account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
            f"{prefix}account.oauth2.client.endpoint": (
                f"https://login.microsoftonline.com/{os.environ.get('AZURE_TENANT_ID', '')}/oauth2/token"
            ),
            f"{prefix}account.oauth2.client.id": os.environ.get("AZURE_CLIENT_ID", ""),
            f"{prefix}account.oauth2.client.secret": "${env.AZURE_CLIENT_SECRET}",
        }
    else:
        settings = {}
    if is_emulated():
        address = urlsplit(os.environ.get("AZURITE_BLOB_STORAGE_URL", "http://127.0.0.1:10000"))
        settings |= {
            f"{prefix}abfs.endpoint": address.netloc,
            f"{prefix}always.use.https": "false",
            f"{prefix}networking.library": "JDK_HTTP_URL_CONNECTION",
            f"{prefix}account.hns.enabled": "false",
            f"{prefix}fns.account.service.type": "BLOB",
        }
    return settings


_GOOGLE_BYTES = {
    "block.size": 64 << 20,
    "inputstream.inplace.seek.limit": 8 << 20,
    "inputstream.min.range.request.size": 2 << 20,
    "outputstream.buffer.size": 8 << 20,
    "rewrite.max.chunk.size": 512 << 20,
}
"""Settings to which Hadoop gives defaults such as ``64m``, which Google's file system cannot read.

Hadoop has a file system for Google's store since 3.5, whose settings have the same names.
"""


def _google() -> dict[str, str]:
    """Return the settings of Google's file system for its store. Secrets stay in files, which executors read too."""
    prefix = "spark.hadoop.fs.gs."
    settings = {
        f"{prefix}impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
    }
    settings |= {f"{prefix}{name}": str(size) for name, size in _GOOGLE_BYTES.items()}
    if (emulator := google_emulator()) is not None:
        login = {"auth.type": "UNAUTHENTICATED", "storage.root.url": f"{emulator}/"}
    elif account := os.environ.get("GOOGLE_SERVICE_ACCOUNT"):
        login = {"auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE", "auth.service.account.json.keyfile": account}
    else:
        login = {"auth.type": "APPLICATION_DEFAULT"}  # GOOGLE_APPLICATION_CREDENTIALS, or the machine's own account
    return settings | {f"{prefix}{name}": value for name, value in login.items()}
