"""An HTTP proxy before an object store, for tests: it delays answers, fails requests, and cuts connections.

Requests are forwarded as they come, so their signatures stay valid: a client names the proxy as its endpoint, and the
store verifies the host name that it is given. The proxy's threads are those of the test's process, so clients must be
other processes: delta-rs waits for some answers without letting other threads of Python run.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Fault = float | Literal["unavailable", "refused", "lost", "cut"]
"""What happens to a request.

- A number: it is answered so many seconds later.
- ``unavailable``: the proxy answers 503 (SlowDown), and the store never sees it.
- ``refused``: the connection is closed, and the store never sees it.
- ``lost``: the store does it, and the connection is closed before the answer.
- ``cut``: the store does it, and the connection is closed in the middle of the answer.
"""
_SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
Answer = tuple[int, str, list[tuple[str, str]], bytes]
"""A status, its reason, the headers and the content."""
_OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    """A request that has come in: its number from 1 on, its method, and its path with the query."""

    number: int
    method: str
    path: str


class FaultProxy:
    """A running proxy.

    Attributes
    ----------
    endpoint : str
        Its address.
    decide : callable
        Returns the `Fault` of a `Request`, or None. It may be replaced at any time; no two threads call it at once.
    faults : Counter
        How often each fault has happened so far.
    """

    def __init__(self, store_port: int, port: int = 0) -> None:
        self.decide: Callable[[Request], Fault | None] = lambda request: None
        self.faults: Counter[str] = Counter()
        self._number, self._lock = 0, threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.close_connection = True
                try:
                    self.raw_requestline = self.rfile.readline(65537)
                    if self.raw_requestline and self.parse_request():  # parse_request answers Expect: 100-continue
                        body = self._body()
                        proxy._serve(self, body)
                except OSError:
                    self.close_connection = True

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

        self._store_port = store_port
        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop to accept connections."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Forward one request, or let its fault happen; `handler` has read the request and has the connection."""
        handler.close_connection = True  # unless there is a whole answer
        with self._lock:
            self._number += 1
            fault = self.decide(Request(self._number, handler.command, handler.path))
            if fault is not None:
                self.faults["slow" if isinstance(fault, float | int) else fault] += 1
        if fault == "refused":
            return
        if fault == "unavailable":
            self._answer(handler, 503, "Slow Down", [("Content-Type", "application/xml")], _SLOW_DOWN)
            return
        try:
            status, reason, headers, content = self._forward(handler, body)
        except (OSError, http.client.HTTPException):
            return  # the store is away: to the client the connection is closed
        if isinstance(fault, float | int):
            time.sleep(fault)
        if fault != "lost":
            self._answer(handler, status, reason, headers, content, is_cut=fault == "cut")

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        """Return the store's answer to a request."""
        return self._ask(handler.command, handler.path, handler.headers, body)

    def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._store_port, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in _OF_A_CONNECTION | {"expect"}:
                    connection.putheader(name, value)
            if body or "Content-Length" in headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            content = answer.read()
            answered = answer.getheaders()
            if method == "HEAD" and (length := answer.getheader("Content-Length")) is not None:
                answered.append(("X-Length", length))
            return answer.status, answer.reason, answered, content
        finally:
            connection.close()

    def _answer(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        reason: str,
        headers: list[tuple[str, str]],
        content: bytes,
        is_cut: bool = False,
    ) -> None:
        length = next((value for name, value in headers if name == "X-Length"), str(len(content)))
        lines = [f"HTTP/1.1 {status} {reason}"]
        lines += [f"{name}: {value}" for name, value in headers if name.lower() not in _OF_A_CONNECTION | {"x-length"}]
        if status not in (204, 304):
            lines.append(f"Content-Length: {length}")
        whole = "\r\n".join([*lines, "", ""]).encode("latin-1") + content
        handler.wfile.write(whole[: len(whole) - max(1, len(content) // 2)] if is_cut else whole)
        handler.wfile.flush()
        if is_cut:
            handler.connection.shutdown(socket.SHUT_RDWR)
        else:
            handler.close_connection = handler.headers.get("Connection", "").lower() == "close"


@contextmanager
def before(store_port: int) -> Iterator[FaultProxy]:
    """Start a proxy before a store that listens on this machine, and end it with the block."""
    proxy = FaultProxy(store_port)
    try:
        yield proxy
    finally:
        proxy.close()
