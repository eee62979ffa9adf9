"""Servers of the stores that speak no S3, for tests, as processes on free ports of this machine.

`hdfs` is Hadoop's own namenode and datanode in one process (``infra/hdfs_jars.txt``), `azure` is Azurite, the emulator
that Microsoft publishes, `gs` is fake-gcs-server, an emulator of Google's store, behind a proxy for the requests of
delta-rs that it lacks (``gcs_xml_proxy.py``). ``infra/store_servers.sh`` makes the emulators.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

from latecomer.spark.engine import jars

from tests.support.ports import free_ports
from tests.support.store_servers import SERVERS, why_not_made

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("hdfs", "azure", "gs")
HDFS = ROOT / ".jvm" / "hdfs"
_JAVA = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN")
_STARTED_SECONDS = 90.0


@dataclass(frozen=True)
class OtherStore:
    """A running server.

    Attributes
    ----------
    root
        The URI of a bucket, or of a folder, in which tests may write.
    absent
        A URI in a bucket that is not there.
    part
        What the remedies of messages name.
    environment
        The variables by which a deployment names the server.
    """

    kind: str
    root: str
    absent: str
    part: str
    environment: dict[str, str] = field(default_factory=dict)


def why_missing(kind: str) -> str | None:
    """Return the reason why a server cannot be started here; None where it can."""
    if kind == "hdfs" and not list(HDFS.glob("*minicluster*.jar")):
        return "the tests' HDFS is missing: run `bash infra/setup.sh tests`"
    if kind == "azure":
        return why_not_made("azurite")
    if kind == "gs":
        return why_not_made("fake-gcs-server")
    return None


@contextmanager
def running(kind: str, folder: Path) -> Iterator[OtherStore]:
    """Start a server that keeps its files in a folder, and end it with the block."""
    with {"hdfs": _hdfs, "azure": _azurite, "gs": _fake_gcs}[kind](folder) as store:
        yield store


@contextmanager
def _hdfs(folder: Path) -> Iterator[OtherStore]:
    java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if os.environ.get("JAVA_HOME") else "java"
    details, (port,) = folder / "details.json", free_ports(1)
    command = [java, *_JAVA, "-cp", f"{HDFS}/*", "org.apache.hadoop.test.MiniDFSClusterManager"]
    command += ["-format", "-nnport", str(port), "-writeDetails", str(details)]
    command += ["-D", f"hdfs.minidfs.basedir={folder / 'data'}"]
    with _process(command, folder, lambda: details.is_file() and details.read_text().endswith("}")):
        absent = f"hdfs://127.0.0.1:{free_ports(1)[0]}/lake"
        yield OtherStore("hdfs", f"hdfs://127.0.0.1:{port}/tests", absent, "namenode")


@contextmanager
def _azurite(folder: Path) -> Iterator[OtherStore]:
    (port,) = free_ports(1)
    start = ["node", str(SERVERS / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js")]
    start += ["--location", str(folder), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    address = f"http://127.0.0.1:{port}"
    with _process([*start, "--skipApiVersionCheck", "--disableTelemetry"], folder, lambda: _listens(port)):
        _make_container(address, CONTAINER)
        place = f"@{ACCOUNT}.dfs.core.windows.net"
        variables = {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": address,
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "LATECOMER_JARS": str(_jars_with("azure", folder)),
        }
        absent = f"abfss://no-such-container{place}/lake"
        yield OtherStore("azure", f"abfss://{CONTAINER}{place}/tests", absent, "container", variables)


CONTAINER, ACCOUNT = "latecomer", "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of every Azurite, and its published key."""


def _make_container(address: str, name: str) -> None:
    """Make a container, which neither delta-rs nor Spark does, by a signed request."""
    version, date = "2021-08-06", formatdate(usegmt=True)
    signed = (
        f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{version}\n/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers = {"x-ms-date": date, "x-ms-version": version, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"{address}/{ACCOUNT}/{name}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30) as answer:
        assert answer.status == 201


@contextmanager
def _fake_gcs(folder: Path) -> Iterator[OtherStore]:
    proxy_port, port = free_ports(2)
    address = f"http://127.0.0.1:{proxy_port}"
    start = [str(SERVERS / "fake-gcs-server" / "fake-gcs-server"), "-backend", "memory", "-scheme", "http"]
    start += ["-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{proxy_port}"]
    proxy = [sys.executable, "-m", "tests.support.gcs_xml_proxy", str(proxy_port), str(port)]
    (folder / "proxy").mkdir()
    with (
        _process([*start, "-external-url", address], folder, lambda: _listens(port)),
        _process(proxy, folder / "proxy", lambda: _listens(proxy_port), {"PYTHONPATH": str(ROOT)}),
    ):
        body, headers = json.dumps({"name": CONTAINER}).encode(), {"Content-Type": "application/json"}
        made = urllib.request.Request(f"{address}/storage/v1/b?project=tests", body, headers)
        with urllib.request.urlopen(made, timeout=30) as answer:
            assert answer.status == 200
        variables = {"STORAGE_EMULATOR_HOST": address, "LATECOMER_JARS": str(_jars_with("gcs", folder))}
        yield OtherStore("gs", f"gs://{CONTAINER}/tests", "gs://no-such-bucket/lake", "bucket", variables)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _jars_with(optional: str, folder: Path) -> Path:
    """Return a folder with the jars of the checkout, which are not fetched again, and those of an optional set."""
    place = folder / "jars"
    place.mkdir()
    for name in jars.lock():
        (place / name).symlink_to(ROOT / ".jvm" / "jars" / name)
    kept = ROOT / ".jvm" / f"jars-{optional}"
    jars.fetch(kept, optional)
    for name in jars.lock(optional):
        (place / name).symlink_to(kept / name)
    return place


@contextmanager
def _process(
    command: list[str], folder: Path, answers: Callable[[], bool], variables: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server until the block ends, which begins once it answers; `variables` are added to its environment."""
    log = folder / "server.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | (variables or {}),
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
    try:
        until = time.monotonic() + _STARTED_SECONDS
        while not answers():
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError(log.read_text(errors="replace")[-3000:])
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()
