"""Examine what the product relies on: Python, Java, Spark, memory, disks, and the place of a lake.

Each finding says what is there and, if something is wrong, what to do. A lake is written to only by a table that is
removed at the end.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import metadata, util
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from latecomer.jobs import formatting
from latecomer.lake import certificates
from latecomer.lake.errors import LatecomerError
from latecomer.lake.lake import Lake
from latecomer.lake.storage import told
from latecomer.lake.stores import S3, region
from latecomer.spark.engine import connect, java_process

OK, WARNING, WRONG = "ok", "warning", "WRONG"
JAVA_VERSIONS = (17, 21)
"""The versions of Java on which this version of Spark runs."""
PACKAGES = ("pyspark", "deltalake", "pyarrow", "pandas", "numpy", "great-expectations")
RACERS = 8
"""Writers that race for one commit."""
LEAST_DISK = 2 << 30
"""Bytes of free disk below which a warning is given."""
MOST_SKEW_S = 60.0
"""Seconds between two clocks from which a warning is given."""


@dataclass(frozen=True)
class Finding:
    """One thing that was examined.

    Attributes
    ----------
    subject : str
        The thing.
    state : str
        `OK`, `WARNING` (it works, but not as well as it could) or `WRONG` (the product does not work with it).
    says : str
        What there is.
    remedy : str
        What to do; empty if nothing.
    """

    subject: str
    state: str
    says: str
    remedy: str = ""


def examine(lake_uri: str | None, *, spark: bool = True) -> Iterator[Finding]:
    """Yield a finding per thing, in the order in which they depend on each other.

    Parameters
    ----------
    lake_uri
        The lake to examine; None: none.
    spark
        Whether to start Spark, which takes seconds.
    """
    yield _python()
    yield from _packages()
    server, problem = _server()
    if problem is not None:
        yield problem
    needed_by_spark = [_java(), _jars(), _memory()] if server is None and problem is None else []
    yield from needed_by_spark
    yield _disk("temporary files", Path(tempfile.gettempdir()))
    if spark and problem is None and all(finding.state != WRONG for finding in needed_by_spark):
        yield _spark() if server is None else _spark_on(server, lake_uri)
    if lake_uri is not None:
        yield from _lake(lake_uri)


def _python() -> Finding:
    version = platform.python_version()
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("Python", WRONG, f"{version} at {sys.executable}", "use Python 3.11, 3.12 or 3.13")
    return Finding("Python", OK, f"{version} at {sys.executable}")


def _packages() -> Iterator[Finding]:
    yield Finding("packages", OK, ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES))
    with contextlib.suppress(metadata.PackageNotFoundError):
        client, spark = metadata.version("pyspark-client"), metadata.version("pyspark")
        if client != spark:
            remedy = f"install pyspark-client=={spark}: the files of the two packages overlap"
            yield Finding("pyspark-client", WRONG, f"{client}, but pyspark {spark}", remedy)


def _java() -> Finding:
    java = java_process.executable()
    remedy = f"install Java {JAVA_VERSIONS[0]}, or point JAVA_HOME at it"
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Java", WRONG, f"{java} does not answer ({error})", remedy)
    version = re.search(r'version "(\d+)([^"]*)"', printed)
    if version is None or int(version[1]) not in JAVA_VERSIONS:
        return Finding("Java", WRONG, f"{version[1] + version[2] if version else 'unknown version'} at {java}", remedy)
    return Finding("Java", OK, f"{version[1]}{version[2]} at {java}")


def _jars() -> Finding:
    from latecomer.spark.engine import jars

    try:
        files = jars.jars()
    except LatecomerError as error:
        return Finding("jars", WRONG, str(error), "run `latecomer jars fetch`")
    if not files:
        return Finding("jars", OK, "LATECOMER_JARS is empty: Spark's class path is said to have them")
    says = f"{len(files)} in {files[0].parent}"
    if jars.archive() is None:
        remedy = "run `latecomer jars fetch`: Spark starts about three times faster with one"
        return Finding("jars", WARNING, f"{says}, without a class archive", remedy)
    return Finding("jars", OK, f"{says}, with a class archive")


def _memory() -> Finding:
    import psutil

    from latecomer.spark.engine.session import driver_memory

    stated = driver_memory()
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    size = re.fullmatch(r"(\d+)([kmgt])b?", stated.lower())
    if size is None:
        remedy = "write a number and k, m, g or t, such as 4g"
        return Finding("memory", WRONG, f"LATECOMER_DRIVER_MEMORY is {stated!r}", remedy)
    available = psutil.virtual_memory().available
    says = f"{available / (1 << 30):.1f} GiB available, {stated} for Java (LATECOMER_DRIVER_MEMORY)"
    if int(size[1]) * units[size[2]] > available:
        return Finding("memory", WARNING, says, "make room, or lower LATECOMER_DRIVER_MEMORY")
    return Finding("memory", OK, says)


def _disk(subject: str, folder: Path) -> Finding:
    place = next(part for part in (folder, *folder.parents) if part.exists())
    free = shutil.disk_usage(place).free
    says = f"{free / (1 << 30):.1f} GiB free at {folder}"
    return Finding(subject, OK if free >= LEAST_DISK else WARNING, says, "" if free >= LEAST_DISK else "make room")


def _spark() -> Finding:
    from latecomer.spark.engine.session import session

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            spark = session(Lake(folder), rows=1)
            spark.range(10).write.format("delta").save(f"{folder}/table")
            rows = spark.read.format("delta").load(f"{folder}/table").count()
        except Exception as error:
            return Finding("Spark", WRONG, formatting.one_line(error), "set LATECOMER_SPARK_LOG=WARN to see its log")
    seconds = time.monotonic() - started
    return Finding("Spark", OK if rows == 10 else WRONG, f"wrote and read a Delta table in {seconds:.1f} s")


def _server() -> tuple[connect.Server | None, Finding | None]:
    """Return the Spark Connect server that the environment names, if any, or a finding if its name cannot be used."""
    try:
        return connect.named(), None
    except LatecomerError as error:
        return None, Finding("Spark", WRONG, str(error), "or unset LATECOMER_SPARK to start Spark here")


def _spark_on(server: connect.Server, lake_uri: str | None) -> Finding:
    """Run a small job on a server, which needs no Java here, and see whether it reads the folder of the lake."""
    started = time.monotonic()
    try:
        lake = None if lake_uri is None else Lake(lake_uri)
        rows = connect.session(server, lake, {}, {}).range(10).count()
    except LatecomerError as error:
        return Finding("Spark", WRONG, str(error))
    except Exception as error:
        return Finding("Spark", WRONG, f"{server.address}: {formatting.one_line(error)}", "see the server's own log")
    seconds = time.monotonic() - started
    return Finding("Spark", OK if rows == 10 else WRONG, f"{server.address} ran a job in {seconds:.1f} s")


def _lake(uri: str) -> Iterator[Finding]:
    """Yield findings about the place of a lake, by a table of its own that is removed at the end."""
    try:
        lake = Lake(uri)
        reason = lake.unwritable()
    except LatecomerError as error:
        yield Finding("lake", WRONG, str(error))
        return
    if reason is not None:
        yield Finding("lake", WRONG, f"{lake.uri} cannot be written ({reason})", "change its owner or its permissions")
        return
    if lake.is_local:
        yield _disk("lake", Path(lake.uri))
    else:
        store = _s3(lake) if lake.store is S3 else _store(lake)
        yield store
        if lake.store is not None and lake.store.emulator is not None:
            says = f"{lake.store.scheme}:// is experimental: it was tested on {lake.store.emulator} alone, an emulator"
            yield Finding("kind of store", WARNING, says, "try what you rely on, and keep a copy")
        if store.state == WRONG:
            return
    yield _guarded("one writer", lambda: _race(lake), lake.remedy())
    yield _guarded("contents", lambda: _contents(lake), "see whether all of its files are there")


def _guarded(subject: str, observe: Callable[[], Finding], remedy: str) -> Finding:
    """Return what `observe` finds, or the error that it raises."""
    try:
        return observe()
    except Exception as error:
        return Finding(subject, WRONG, formatting.one_line(error), remedy)


def _race(lake: Lake) -> Finding:
    """Let writers race for one commit, as for a lease: exactly one of them may win, and its row is stored."""
    from deltalake.exceptions import DeltaError

    name = f"doctor-{uuid.uuid4().hex}"
    table, start = lake.table("lease", name), threading.Barrier(RACERS)
    is_new = lake.is_local and not Path(lake.uri).exists()
    table.commit(None, pa.table({"number": pa.array([-1], pa.int64())}))
    won: list[int] = []
    failures: list[BaseException] = []

    def write(number: int) -> None:
        rows, opened = pa.table({"number": pa.array([number], pa.int64())}), table.open()
        start.wait()
        try:
            table.commit(opened, rows)
            won.append(number)
        except (DeltaError, OSError) as error:
            failures.append(error)

    started = time.monotonic()
    racers = [threading.Thread(target=write, args=(number,)) for number in range(RACERS)]
    try:
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        if not won:
            raise failures[0]
        rows = table.read()
        stored = [] if rows is None else rows["number"].to_pylist()
    finally:
        with contextlib.suppress(LatecomerError, DeltaError, OSError):
            table.drop()
            for folder in (Path(lake.uri, "lease"), Path(lake.uri)) if is_new else ():
                folder.rmdir()
    says = f"{len(won)} of {RACERS} writers won a race for one commit ({time.monotonic() - started:.1f} s)"
    if len(won) == 1 and stored == won:
        return Finding("one writer", OK, says)
    remedy = "use a store with conditional writes (If-None-Match), or a file system with atomic links"
    return Finding("one writer", WRONG, f"{says}, and {len(stored)} are stored", remedy)


def _contents(lake: Lake) -> Finding:
    from latecomer.jobs.status import status

    known = status(lake)
    damaged = [f"{row['query']}: {row['problem']}" for row in known["queries"] if "problem" in row]
    if damaged:
        return Finding("contents", WRONG, damaged[0], "restore its files from a copy")
    streams, queries = len(known["streams"]), len(known["queries"])
    return Finding("contents", OK, f"{known['next_seq']:,} rows of {streams} streams, {queries} queries")


def _store(lake: Lake) -> Finding:
    """Put, list, read and remove a file in the lake's store, as the product does it."""
    assert lake.store is not None
    filesystem, root = lake.filesystem()
    folder = f"{root}/lease/doctor-{uuid.uuid4().hex}"
    try:
        with filesystem.open_output_stream(f"{folder}/probe") as stream:
            stream.write(b"doctor")
        try:
            listed = [entry.path for entry in filesystem.get_file_info(fs.FileSelector(folder))]
            with filesystem.open_input_stream(f"{folder}/probe") as stream:
                content = stream.read()
        finally:
            filesystem.delete_dir(folder)
    except (OSError, pa.ArrowException) as error:
        return Finding("store", WRONG, f"{lake.uri} cannot be used ({told(error)})", lake.remedy(error))
    if listed != [f"{folder}/probe"] or content != b"doctor":
        return Finding("store", WRONG, f"{lake.uri} does not list or return what was just put", lake.remedy())
    return Finding("store", OK, f"{lake.uri}: put, listed, read and removed a file")


def _s3(lake: Lake) -> Finding:
    """Put, list, read and remove an object by the MinIO client, and compare the store's clock to this one."""
    if util.find_spec("minio") is None:
        says = "the object store was not examined: the MinIO client is not installed"
        return Finding("object store", WARNING, says, "install latecomer[s3] (minio)")
    import urllib3
    from minio import Minio, S3Error
    from minio.credentials import providers

    endpoint = os.environ.get("AWS_ENDPOINT_URL", "https://s3.amazonaws.com")
    parts, bucket = urlsplit(endpoint), lake.uri.removeprefix("s3://").partition("/")[0]
    known = [providers.EnvAWSProvider(), providers.AWSConfigProvider(), providers.IamAwsProvider()]
    authorities = certificates.bundle()
    http = urllib3.PoolManager(timeout=10.0, retries=urllib3.Retry(1), cert_reqs="CERT_REQUIRED", ca_certs=authorities)
    client = Minio(
        parts.netloc,
        credentials=providers.ChainedProvider(known),
        secure=parts.scheme == "https",
        region=region(),
        http_client=http,
    )
    prefix = lake.uri.removeprefix(f"s3://{bucket}").strip("/")
    key = f"{prefix}/lease/doctor-{uuid.uuid4().hex}".strip("/")
    try:
        if not client.bucket_exists(bucket):
            return Finding("object store", WRONG, f"{endpoint} has no bucket {bucket}", "make the bucket")
        written = client.put_object(bucket, key, io.BytesIO(b"doctor"), 6)
        try:
            listed = [entry.object_name for entry in client.list_objects(bucket, prefix=key)]
            answer = client.get_object(bucket, key)
            content = answer.read()
            answer.close()
        finally:
            client.remove_object(bucket, key)
    except S3Error as error:
        return Finding("object store", WRONG, f"{endpoint}: {error.code}: {error.message}", S3.remedy())
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        return Finding("object store", WRONG, f"{endpoint} does not answer ({told(error)})", S3.remedy(error))
    if listed != [key] or content != b"doctor":
        return Finding("object store", WRONG, f"{endpoint} does not list or return what was just put", S3.remedy())
    date = {name.lower(): value for name, value in dict(written.http_headers or {}).items()}.get("date")
    skew = abs((parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds()) if date else 0.0
    says = f"{endpoint}, bucket {bucket}: put, listed, read and removed an object"
    if skew > MOST_SKEW_S:
        return Finding("object store", WARNING, f"{says}; its clock differs by {skew:.0f} s", "set the clocks by NTP")
    return Finding("object store", OK, says)
