"""The Spark Connect server that a session runs on, where one is named; otherwise the session is embedded.

``LATECOMER_SPARK`` names the server, or else PySpark's own ``SPARK_REMOTE``. This module alone knows which of the two
kinds of session a process has. Other modules ask it for what only the embedded session has a direct way to:
broadcast values, the number of cores, and why a call failed.

A plan of Spark Connect is analysed anew whenever it is executed. A table is therefore read by its version (see
:func:`latecomer.spark.engine.tables.read`), so that a DataFrame stands for the same rows each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import pickle
import re
import socket
import tempfile
import threading
import uuid
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from latecomer.lake.errors import InputError, error_text
from latecomer.spark.engine import server_file
from latecomer.spark.engine.server_file import WARM, ServerError

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import DataFrame, SparkSession

    from latecomer.lake.lake import Lake

T = TypeVar("T")

VARIABLE = "LATECOMER_SPARK"
"""The variable that names the server: ``sc://HOST:PORT``, `WARM`, or `EMBEDDED`."""
EMBEDDED = "embedded"
"""The value that means a session in a Java process of this command, whatever ``SPARK_REMOTE`` says."""
PACKAGE = "spark.latecomer.package"
"""A setting of servers whose Python workers have this package: the :func:`digest` of its files."""
ANSWER_S = 5.0
"""Seconds within which a server accepts a connection."""
RETRIES: dict[str, Any] = {"max_retries": 5, "initial_backoff": 50, "backoff_multiplier": 4.0, "max_backoff": 2000}
"""How often, and after how many milliseconds, a call is made again that did not reach the server: for 5 seconds."""
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings that only the start of a server can make, and without which no table can be written."""
_OF_CONNECT = {"spark.sql.connect.serverStacktrace.enabled": "false"}
"""Settings of sessions on a server alone: an error's text is the one that an embedded session would show."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_FOREIGN = {_PARTITIONS, "spark.sql.warehouse.dir", *_DELTA}
"""Settings of a session that are for the machine of the embedded one, or that a server has from its start."""
_ROOT = Path(__file__).resolve().parents[2]
"""The folder of this package."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_START = "start it with `latecomer spark start`, or with the settings that docs/install.md lists"


@dataclass(frozen=True)
class Server:
    """The address of a server.

    Attributes
    ----------
    url
        As PySpark takes it, ``sc://HOST:PORT/;token=...``. It may hold a secret, and is never shown.
    """

    url: str = field(repr=False)

    @property
    def address(self) -> str:
        """The address without its parameters, for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 15002

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine."""
        return self.place[0] in _LOOPBACK

    def for_pyspark(self) -> str:
        """Return the URL for PySpark, which sends a token without TLS to a host called `localhost` alone."""
        host, port = self.place
        _, _, parameters = self.url.partition("/;")
        host = "localhost" if host in _LOOPBACK else f"[{host}]" if ":" in host else host
        return f"sc://{host}:{port}/" + (f";{parameters}" if parameters else "")


def named() -> Server | None:
    """Return the server that the environment names; None: the session is embedded.

    Raises
    ------
    InputError
        The value is no address, or spark-submit started this process.
    ServerError
        The value is `WARM`, and no server was started.
    """
    variable = VARIABLE if os.environ.get(VARIABLE) else "SPARK_REMOTE"
    value = os.environ.get(variable, "").strip()
    if not value or (value == EMBEDDED and variable == VARIABLE):
        return None
    source = f"--spark or {VARIABLE}" if variable == VARIABLE else variable
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        problem = "names a server, but spark-submit has started this process with a session of its own"
        raise InputError(source, _without_secret(value), problem, "run `latecomer` without spark-submit, or unset it")
    if _server is not None:  # it stays that of this process, also where another one was started meanwhile
        return _server
    if value == WARM and variable == VARIABLE:
        return Server(server_file.url())
    with contextlib.suppress(ValueError):
        parts = urlsplit(value)
        parameters = parts.path.removeprefix("/").strip(";")
        pairs = [pair for pair in parameters.split(";") if pair]
        if parts.scheme == "sc" and parts.hostname and parts.port != 0 and all("=" in pair for pair in pairs):
            return Server(value)
    remedy = f"write sc://HOST:PORT, sc://HOST:PORT/;token=TOKEN, {WARM} or {EMBEDDED}"
    raise InputError(source, _without_secret(value), "is no address of a Spark Connect server", remedy)


def _without_secret(value: str) -> str:
    return re.sub(r"(?i)(token=)[^;]*", r"\1...", value)


def is_remote(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


# -------------------------------------------------------------------------------------------------------------- connect

_lock = threading.RLock()
_session: SparkSession | None = None
_server: Server | None = None
_cores: int | None = None
_lakes: set[str] = set()
"""Local lakes that the server was seen to read."""


def session(
    server: Server, lake: Lake | None, settings: Mapping[str, str], required: Mapping[str, str]
) -> SparkSession:
    """Return the session of this process on a server, made at the first call.

    Parameters
    ----------
    lake
        The lake that the server must see; None: none.
    settings
        Settings that are made where neither the server has them nor its start alone can make them.
    required
        Settings that hold from here on.

    Raises
    ------
    ServerError
        The server does not answer, refuses the token or a setting, has no Delta Lake, or does not see the lake.
    """
    global _session, _server, _cores
    with _lock:
        spark = _session
        if spark is None or spark.is_stopped:  # type: ignore[attr-defined]
            spark = _connected(server)
            _session, _server, _cores = spark, server, None
            _lakes.clear()
            try:
                _prepare(server, spark, settings)
            except BaseException:
                _session = None
                _stop(spark)
                raise
        with _explained():
            _set(spark, required)
            if lake is not None and lake.is_local and lake.uri not in _lakes:
                _see(server, spark, lake)
                _lakes.add(lake.uri)
        return spark


def _connected(server: Server) -> SparkSession:
    """Open a session. Nothing is asked of the server yet but whether it listens."""
    try:
        socket.create_connection(server.place, timeout=ANSWER_S).close()
    except OSError as error:
        raise ServerError(
            server.address, f"does not answer ({error.strerror or error})", f"see whether it runs, or {_START}"
        ) from None
    missing = [name for name in ("grpc", "grpc_status", "google.rpc", "zstandard") if not _is_installed(name)]
    if missing:
        problem = f"needs Python packages that are not installed ({missing[0]})"
        raise InputError(f"--spark or {VARIABLE}", server.address, problem, "pip install latecomer[connect]")
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # the functions of pyspark.sql build expressions for Spark Connect
    warnings.filterwarnings("ignore", module=r"pyspark\.sql\.connect\.")  # of retries, and hints about speed
    from pyspark.sql.connect.client.core import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    spark = ConnectSession.builder.channelBuilder(DefaultChannelBuilder(server.for_pyspark())).create()
    spark.client.set_retry_policies([DefaultPolicy(**RETRIES, max_server_retry_delay=2000)])
    return cast("SparkSession", spark)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _prepare(server: Server, spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Examine the server, make the settings that it lacks, and send the package where its workers lack it."""
    with _explained():
        given = spark.conf.getAll
    for key, value in _DELTA.items():
        if value not in given.get(key, "").split(","):
            raise ServerError(server.address, f"was started without Delta Lake ({key} is not {value})", _START)
    missing = {
        key.removeprefix("spark.hadoop."): value  # as a setting of a session, Hadoop's have names of their own
        for key, value in settings.items()
        if key.startswith(("spark.sql.", "spark.databricks.", "spark.hadoop.fs."))
        and key not in given.keys() | _FOREIGN
    }
    has_package = given.get(PACKAGE) == digest()  # as that of `latecomer spark start` of this version has
    with _explained():
        if not has_package:
            _find_delta(server, spark)
        if given.get("spark.master", "").startswith("local") and _PARTITIONS not in given:
            missing[_PARTITIONS] = str(2 * parallelism(spark))
        _set(spark, missing | _OF_CONNECT, silent=True)
        if not has_package:
            with tempfile.TemporaryDirectory(prefix="latecomer-package-") as folder:
                archive = Path(folder) / f"latecomer-{digest()[:16]}.zip"
                archive.write_bytes(_package())
                spark.addArtifacts(str(archive), pyfile=True)


def _set(spark: SparkSession, settings: Mapping[str, str], *, silent: bool = False) -> None:
    """Make settings in one call; `silent`: without the ones that only the start of a server can make."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cast("Any", spark.conf)._set_all(dict(settings), silent=silent)


def _find_delta(server: Server, spark: SparkSession) -> None:
    """Raise an error where the server has the settings of Delta Lake but not its jars."""
    from pyspark.errors import PySparkException

    try:
        spark.read.format("delta").load(f"/latecomer-{uuid.uuid4()}").schema  # noqa: B018
    except PySparkException as error:
        if any(sign in error_text(error) for sign in _CLASS_MISSING):
            problem = "has not the jars of Delta Lake"
            raise ServerError(server.address, problem, _START) from None
        if is_lost(error):
            raise


def _see(server: Server, spark: SparkSession, lake: Lake) -> None:
    """Raise an error where the server has another disk than this process."""
    from pyspark.errors import AnalysisException

    from latecomer.lake.storage import escape_pattern

    folder = Path(lake.uri)
    while not folder.exists():
        folder = folder.parent
    try:
        probe = tempfile.NamedTemporaryFile(dir=folder, prefix=".latecomer-probe-")  # noqa: SIM115
    except OSError:
        return  # nothing can be written to the lake either
    with probe:
        try:
            spark.read.format("binaryFile").load(escape_pattern(probe.name)).schema  # noqa: B018
        except AnalysisException as error:
            if "PATH_NOT_FOUND" not in error_text(error):
                raise
            problem = f"does not see the files of {folder}, where the lake of this process lies"
            remedy = "use a lake that both reach, as s3://BUCKET/PREFIX, or a server on this machine"
            raise ServerError(server.address, problem, remedy) from None


@cache
def _package() -> bytes:
    """Return the Python files of this package as a zip archive that is the same for the same files."""
    root, written = _ROOT, io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*.py")):
            name = str(Path("latecomer", file.relative_to(root)))
            archive.writestr(zipfile.ZipInfo(name), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return written.getvalue()


@cache
def digest() -> str:
    """Return the SHA-256 hash of the Python files of this package, which a server's workers must have."""
    return hashlib.sha256(_package()).hexdigest()


# --------------------------------------------------------------------------------------------------------------- values


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at once, as Spark counts them: the cores of all executors.

    A server is asked by a job that divides rows as Spark itself would.
    """
    global _cores
    if not is_remote(spark):
        return spark.sparkContext.defaultParallelism
    if tuned := spark.conf.get("spark.sql.leafNodeDefaultParallelism", None):
        return int(tuned)
    if _cores is None:
        from pyspark.sql import functions as F

        parts = spark.range(1 << 12).select(F.spark_partition_id().alias("part"))
        last = parts.agg(F.max("part")).collect()
        _cores = int(last[0][0]) + 1
    return _cores


def thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Return a thread that uses the session of this one."""
    if _session is not None:
        return threading.Thread(target=target, name=name, daemon=True)
    from pyspark import InheritableThread

    return InheritableThread(target, name=name, daemon=True)


def storable(rows: DataFrame) -> DataFrame:
    """Return the rows with text of Spark's plain type, as every table has it.

    Types that a session sends to a server, as those of Python functions, come back with a collation that is stated.
    It is the default one, but Delta would store it, and other readers of the table do not know it.
    """
    if not is_remote(rows.sparkSession):
        return rows
    from pyspark.sql import functions as F

    names = {name: "`" + name.replace("`", "``") + "`" for name in rows.columns}
    kinds = {name: kind for name, kind in rows.dtypes if "string" in kind}
    columns = [
        F.col(quoted).cast(kinds[name]).alias(name) if name in kinds else F.col(quoted)
        for name, quoted in names.items()
    ]
    return rows.select(*columns)


class Shared:
    """A value that tasks read on the executors of a server, in place of a broadcast: a file of the session."""

    def __init__(self, spark: SparkSession, value: object) -> None:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._name = f"latecomer-{uuid.uuid4().hex}.pickle"
        with tempfile.TemporaryDirectory(prefix="latecomer-shared-") as folder:
            file = Path(folder) / self._name
            file.write_bytes(data)
            spark.addArtifacts(str(file), file=True)

    @property
    def value(self) -> Any:
        """The value, in a task."""
        return _read_shared(self._name)

    def unpersist(self) -> None:
        """Leave the file: it ends with the session."""


def share(spark: SparkSession, value: T) -> Broadcast[T] | Shared:
    """Copy a value to every task, where it is the attribute ``value`` of what is returned."""
    return Shared(spark, value) if is_remote(spark) else spark.sparkContext.broadcast(value)


@lru_cache(maxsize=4)  # a worker goes on to the tasks of later micro-batches
def _read_shared(name: str) -> Any:
    from pyspark import SparkFiles

    return pickle.loads(Path(SparkFiles.get(name)).read_bytes())


# --------------------------------------------------------------------------------------------------------------- errors


def is_lost(error: BaseException | None) -> bool:
    """Return whether an error, or a cause of it, says that the server was not reached or knows the session no longer.

    What the server was doing may go on then.
    """
    return _status(error) is not None


_CODES = {"UNAVAILABLE", "UNAUTHENTICATED", "PERMISSION_DENIED", "DEADLINE_EXCEEDED", "CANCELLED"}
_CLASS_MISSING = ("DATA_SOURCE_NOT_FOUND", "ClassNotFound", "catalog plugin class")
_CLASSES = ("INVALID_HANDLE", "SESSION_CLOSED", "NO_ACTIVE_SESSION", "OPERATION_ABANDONED")


def _status(error: BaseException | None) -> str | None:
    """Return the status of gRPC, or Spark's name of the error, where either says that the server is lost."""
    while error is not None:
        if type(error).__module__.split(".")[0] in ("pyspark", "grpc"):
            get = getattr(error, "getGrpcStatusCode", None) or getattr(error, "code", None)
            with contextlib.suppress(Exception):
                code = get() if callable(get) else None
                if getattr(code, "name", None) in _CODES:
                    return str(cast("Any", code).name)
            text = error_text(error)
            if name := next((name for name in _CLASSES if f"[{name}" in text), None):
                return name
        error = error.__cause__ or error.__context__
    return None


def lost(error: BaseException) -> ServerError | None:
    """Return what to tell of an error of a lost server; None where it is another error, or the session is embedded."""
    status = _status(error) if _server is not None else None
    if status is None or _server is None:
        return None
    if status in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return _refused(_server)
    problem = f"was lost ({status}); finished work is kept"
    return ServerError(
        _server.address, problem, "see whether it runs and what its log says, then run the command again"
    )


def _refused(server: Server) -> ServerError:
    remedy = f"give the token that it was started with: sc://HOST:PORT/;token=TOKEN, or --spark {WARM}"
    return ServerError(server.address, "refuses the token of this command", remedy)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise a `ServerError` for every error that a lost server causes."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        told = lost(error)
        if told is None:
            raise
        raise told from None


# ------------------------------------------------------------------------------------------------------------------ end


def close(wait_s: float) -> None:
    """End the session of this process, and whatever the server still does for it; takes `wait_s` seconds at most."""
    spark = _session
    if spark is None:
        return
    ending = threading.Thread(target=_stop, args=(spark,), daemon=True)
    ending.start()
    ending.join(wait_s)


def _stop(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):  # the server may be gone
        cast("Any", spark).client.set_retry_policies([])
        spark.stop()
