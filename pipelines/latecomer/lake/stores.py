"""The stores that hold lakes and landing files, by the schemes of their URIs.

Within a store, a path is what follows the scheme: ``BUCKET/KEY``. Its first part, which no key can lack, is the bucket,
or a file system's address.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyarrow import fs

from latecomer.lake import certificates
from latecomer.lake.errors import InputError
from latecomer.lake.store_files import StoreFiles

AUTHORITY_REMEDY = "name the authority of the store's certificate in AWS_CA_BUNDLE (a PEM file)"

_PATIENCE = {"retry_timeout": "60s"}
"""An option of delta-rs: seconds after which a request that fails is not sent again, by default 180.

Each request is sent eleven times at most, which takes seconds where the store answers at once. A command makes several
requests, so a store that fails slowly would keep it for many minutes.
"""


@dataclass(frozen=True)
class Store:
    """A kind of store.

    Attributes
    ----------
    scheme
        The scheme of its URIs.
    form
        How such a URI is written, for messages.
    part
        What the first part of a path names: a bucket, for example.
    variables
        The variables of the environment that say where it is and who asks, for messages.
    delta_options
        Makes the options with which delta-rs reaches it.
    spark_scheme
        Returns the scheme by which Spark's file systems name it.
    other_schemes
        Schemes that mean the same.
    unusable
        More letters that the path of a Delta table in it cannot hold.
    jars
        The optional set of jars with which Spark reaches it.
    emulator
        The server on which alone it was tested; None where the tests run on the real one.
    completed
        Makes a whole path of one as it was given, or raises an InputError: of option, text and path.
    own_files
        Makes PyArrow's file system for it; None where delta-rs reaches its files.
    """

    scheme: str
    form: str
    part: str
    variables: str
    delta_options: Callable[[], dict[str, str]]
    spark_scheme: Callable[[], str]
    other_schemes: tuple[str, ...] = ()
    unusable: str = ""
    jars: str | None = None
    emulator: str | None = None
    completed: Callable[[str, str, str], str] = lambda where, text, path: path
    own_files: Callable[[], fs.FileSystem] | None = None

    @property
    def schemes(self) -> frozenset[str]:
        """All schemes that mean this store."""
        return frozenset((self.scheme, self.spark_scheme(), *self.other_schemes))

    def files(self) -> fs.FileSystem:
        """Return its file system, whose paths are those of this module."""
        if self.own_files is not None:
            return self.own_files()
        return fs.PyFileSystem(StoreFiles(self.scheme, self.delta_options()))

    def remedy(self, error: object = "") -> str:
        """Return what to do about an error of the store."""
        if "certificate" in str(error).lower():
            return AUTHORITY_REMEDY
        return f"check the {self.part} and {self.variables}"

    def path(self, where: str, text: str) -> str:
        """Return the path in the store that a URI names, without a slash at its end.

        Raises
        ------
        InputError
            The URI names no bucket, or holds an empty name. It is told of the option or argument `where`.
        """
        path = text.partition("://")[2].rstrip("/")
        if not path or path.startswith("/"):
            raise InputError(where, text, f"has no {self.part} name", f"write {self.form}")
        if "//" in path:
            raise InputError(where, text, "holds an empty name, between two slashes", f"write {self.form}")
        return self.completed(where, text, path)

    def uri(self, path: str) -> str:
        """Return the URI of a path in the store."""
        return f"{self.scheme}://{path}"


def region() -> str:
    """Return the region of the object store, by either name that its tools know; a private store has any region."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def _given(*names: str) -> dict[str, str]:
    """Return the variables of the environment that are set and not empty."""
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _s3_options() -> dict[str, str]:
    certificates.bundle()
    options = {"AWS_REGION": region(), "AWS_CONDITIONAL_PUT": "etag"} | _PATIENCE
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
    return options | _given("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def _s3_files() -> fs.FileSystem:
    endpoint, authorities = os.environ.get("AWS_ENDPOINT_URL"), certificates.bundle()
    trusted = {} if authorities is None else {"tls_ca_file_path": authorities}
    if not endpoint:
        return fs.S3FileSystem(region=region(), **trusted)
    parts = urlsplit(endpoint)
    return fs.S3FileSystem(region=region(), endpoint_override=parts.netloc, scheme=parts.scheme, **trusted)


_AZURE_LOGIN = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_TENANT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
)
EMULATED = "AZURE_STORAGE_USE_EMULATOR"
"""The variable by which Azure's clients are told of Azurite, its emulator; AZURITE_BLOB_STORAGE_URL is its address."""


def is_emulated() -> bool:
    """Return whether the environment names Azurite, which speaks no TLS by itself, in place of Azure."""
    return os.environ.get(EMULATED, "").lower() in ("true", "1", "yes")


def _azure_options() -> dict[str, str]:
    return _given(*_AZURE_LOGIN, EMULATED) | _PATIENCE


def _azure_path(where: str, text: str, path: str) -> str:
    """Return a path that names the account, which ``az://CONTAINER/PREFIX`` leaves to the environment."""
    container, slash, key = path.partition("/")
    if "@" in container:
        return path
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if text.startswith("az://") and account:
        return f"{container}@{account}.dfs.core.windows.net{slash}{key}"
    remedy = "write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
    if text.startswith("az://"):
        remedy += ", or name the account in AZURE_STORAGE_ACCOUNT_NAME"
    raise InputError(where, text, "names no account", remedy)


def google_emulator() -> str | None:
    """Return the address of an emulator of Google's store; None where the environment names none.

    Google's own clients read the same variable, ``STORAGE_EMULATOR_HOST``, in which they can lack a scheme.
    """
    address = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if not address:
        return None
    return address if "://" in address else f"http://{address}"


def _google_options() -> dict[str, str]:
    emulator = google_emulator()
    if emulator is None:
        return _given("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS") | _PATIENCE
    # an address by GOOGLE_BASE_URL would not do: delta-rs asks for a login before it writes, unless an account says no
    account = {"gcs_base_url": emulator, "disable_oauth": True, "client_email": "", "private_key": ""}
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account | {"private_key_id": ""})} | _PATIENCE


S3 = Store(
    scheme="s3",
    form="s3://BUCKET/PREFIX",
    part="bucket",
    variables="AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    delta_options=_s3_options,
    own_files=_s3_files,
    spark_scheme=lambda: "s3a",
    other_schemes=("s3n",),
)
AZURE = Store(
    scheme="abfss",
    form="abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX",
    part="container",
    variables="AZURE_STORAGE_ACCOUNT_KEY, or AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET",
    delta_options=_azure_options,
    spark_scheme=lambda: "abfs" if is_emulated() else "abfss",  # the latter is always TLS
    other_schemes=("abfs", "az"),
    jars="azure",
    emulator="Azurite",
    completed=_azure_path,
)
HDFS = Store(
    scheme="hdfs",
    form="hdfs://NAMENODE:PORT/FOLDER",
    part="namenode",
    variables="HADOOP_CONF_DIR and HADOOP_USER_NAME",
    delta_options=dict,
    spark_scheme=lambda: "hdfs",
    unusable=" ",  # delta-rs writes to such a folder, and looks for the table in a folder of another name
)
GOOGLE = Store(
    scheme="gs",
    form="gs://BUCKET/PREFIX",
    part="bucket",
    variables="GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    delta_options=_google_options,
    spark_scheme=lambda: "gs",
    jars="gcs",
    emulator="fake-gcs-server",
)
STORES = (S3, AZURE, GOOGLE, HDFS)


def store_at(uri: str) -> Store | None:
    """Return the store that a URI names; None for a local path, and for a scheme that is not supported."""
    scheme, separator, _ = uri.partition("://")
    return next((store for store in STORES if separator and scheme.lower() in store.schemes), None)


def store_of(where: str, text: str, local: str) -> Store:
    """Return the store that a URI names.

    Raises
    ------
    InputError
        The scheme is not supported; `local` says how a local place is written.
    """
    store = store_at(text)
    if store is not None:
        return store
    scheme = text.partition("://")[0]
    forms = [local, *(store.form for store in STORES)]
    remedy = f"write {', '.join(forms[:-1])} or {forms[-1]}"
    raise InputError(where, text, f"the scheme {scheme!r} is not supported", remedy)
