"""A server of the part of Livy's REST API that submits batches, which runs ``spark-submit`` as Livy does.

It is no Livy: it takes what Livy documents for ``POST /batches``, refuses everything else, and answers as documented.
See https://livy.apache.org/docs/latest/rest-api.html.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema

_TEXT, _NUMBER, _SIZE = {"type": "string"}, {"type": "integer"}, {"type": "string", "pattern": "^[0-9]+[kmgt]b?$"}
_TEXTS = {"type": "array", "items": _TEXT}
BATCH = {
    "type": "object",
    "required": ["file"],
    "additionalProperties": False,
    "properties": {
        **dict.fromkeys(("file", "proxyUser", "className", "queue", "name"), _TEXT),
        **dict.fromkeys(("args", "jars", "pyFiles", "files", "archives"), _TEXTS),
        **dict.fromkeys(("driverMemory", "executorMemory"), _SIZE),
        **dict.fromkeys(("driverCores", "executorCores", "numExecutors"), _NUMBER),
        "conf": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
"""The JSON Schema of the request body that Livy documents for ``POST /batches``."""


class Livy(ThreadingHTTPServer):
    """The server; a context manager that serves on loopback.

    Parameters
    ----------
    command
        ``spark-submit`` with the settings of the cluster.
    environment
        The environment of the batches.
    folder
        Where the logs of the batches are written.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.command, self.environment, self.folder = command, environment, folder
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.batches: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Livy:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        for batch in self.batches:
            batch.kill()

    def submit(self, body: dict[str, Any]) -> int:
        """Start a batch and return its number."""
        number = len(self.batches)
        options = ["--name", body["name"]] if "name" in body else []
        options += ["--driver-memory", body["driverMemory"]] if "driverMemory" in body else []
        with open(self.log_file(number), "wb") as log:
            line = [*self.command, *options, body["file"], *body.get("args", [])]
            self.batches.append(subprocess.Popen(line, stdout=log, stderr=log, env=dict(self.environment)))
        return number

    def log_file(self, number: int) -> Path:
        """Return the file of a batch's log."""
        return self.folder / f"batch-{number}.log"

    def state(self, number: int) -> str:
        """Return the state of a batch, by a word of Livy."""
        code = self.batches[number].poll()
        return "running" if code is None else "success" if code == 0 else "dead"


class _Handler(BaseHTTPRequestHandler):
    server: Livy

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            assert self.path == "/batches" and self.headers["Content-Type"] == "application/json", self.path
            jsonschema.validate(body, BATCH)
            assert body.get("name") not in [request.get("name") for request in self.server.requests], "name in use"
        except (AssertionError, jsonschema.ValidationError) as error:
            self.server.refused.append(str(error))
            self._answer({"msg": str(error)}, 400)
            return
        self.server.requests.append(body)
        number = self.server.submit(body)
        self._answer({"id": number, "appId": None, "state": "starting", "log": []}, 201)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        _, _, number, *more = url.path.split("/")
        if more == ["state"]:
            self._answer({"id": int(number), "state": self.server.state(int(number))})
            return
        query = parse_qs(url.query)
        lines = self.server.log_file(int(number)).read_text(errors="replace").splitlines()
        first, size = (int(query[name][0]) for name in ("from", "size"))
        page = lines[first : first + size]
        self._answer({"id": int(number), "from": first, "total": len(lines), "log": page})

    def do_DELETE(self) -> None:
        self.server.batches[int(self.path.split("/")[2])].terminate()
        self._answer({"msg": "deleted"})

    def _answer(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
