"""Servers of the stores that speak no S3, for tests, as processes on free ports of this machine.

`hdfs` is Hadoop's own namenode and datanode in one process (``infra/hdfs_jars.txt``).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("hdfs",)
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
    return None


@contextmanager
def running(kind: str, folder: Path) -> Iterator[OtherStore]:
    """Start a server that keeps its files in a folder, and end it with the block."""
    with {"hdfs": _hdfs}[kind](folder) as store:
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
def _process(command: list[str], folder: Path, answers: Callable[[], bool]) -> Iterator[None]:
    """Run a server until the block ends, which begins once it answers."""
    log = folder / "server.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
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
