"""A proxy before fake-gcs-server, for tests: it adds the requests of Google's XML API that the emulator lacks.

delta-rs writes by the XML API. Of that API, fake-gcs-server has reading, listing and deleting alone. The proxy turns a
write into one of the JSON API, with the same precondition (``x-goog-if-generation-match`` becomes
``ifGenerationMatch``), so the emulator decides by itself which of two writers wins. Parts of an upload are kept here
until it is complete. A listing from a key on is cut here, too. Spark's connector speaks the JSON API, whose requests
pass as they are.

Run it as ``python -m tests.support.gcs_xml_proxy PORT EMULATOR_PORT``: as a process, since delta-rs waits for some
answers without letting other threads of Python run.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import xml.etree.ElementTree as ET
from collections import defaultdict
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.support.fault_proxy import Answer, FaultProxy

_JSON = ("storage", "upload", "download", "batch", "_internal")
"""The first parts of the paths of the JSON API; those of the XML API are buckets."""
_PRECONDITION = "x-goog-if-generation-match"


class GcsXmlProxy(FaultProxy):
    """A running proxy."""

    def __init__(self, store_port: int, port: int) -> None:
        self._uploads: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        self._names = map(str, itertools.count(1))
        super().__init__(store_port, port)

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        parts = urlsplit(handler.path)
        bucket, _, key = parts.path.lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if bucket in _JSON or handler.command not in ("PUT", "POST", "GET", "DELETE"):
            return super()._forward(handler, body)
        if "x-goog-copy-source" in handler.headers:
            return 501, "Not Implemented", [], b""
        match handler.command, "uploads" in query, query.get("uploadId"):
            case "POST", True, _:
                name = next(self._names)
                result = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
                return 200, "OK", [], result.encode()
            case "PUT", _, str(name):
                self._uploads[name][int(query["partNumber"])] = body
                return 200, "OK", [("ETag", f'"{query["partNumber"]}"')], b""
            case "POST", _, str(name):
                numbers = [int(part.text or "") for part in ET.fromstring(body).iter() if _local(part) == "PartNumber"]
                uploaded = self._uploads.pop(name)
                return self._put(handler, bucket, key, b"".join(uploaded[number] for number in numbers))
            case "DELETE", _, str(name):
                self._uploads.pop(name, None)
                return 204, "No Content", [], b""
            case "PUT", False, None:
                return self._put(handler, bucket, key, body)
            case "GET", _, _ if not key:
                return _listing(super()._forward(handler, body), query.get("start-after", ""))
        return super()._forward(handler, body)

    def _put(self, handler: BaseHTTPRequestHandler, bucket: str, key: str, content: bytes) -> Answer:
        """Write an object by the JSON API, and return the answer of the XML API."""
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(unquote(key), safe='')}"
        if (generation := handler.headers.get(_PRECONDITION)) is not None:
            path += f"&ifGenerationMatch={generation}"
        headers = {"Host": handler.headers["Host"], "Content-Type": "application/octet-stream", "Content-Length": ""}
        status, reason, _, answered = self._ask("POST", path, headers, content)
        if status != 200:
            return status, reason, [("Content-Type", "application/json")], answered
        written = json.loads(answered)
        etag = f'"{written["generation"]}"'
        result = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        return 200, "OK", [("ETag", etag), ("x-goog-generation", str(written["generation"]))], result.encode()


def _local(element: ET.Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def _listing(answer: Answer, start_after: str) -> Answer:
    """Return a listing from a key on, which the emulator ignores; a bucket that is not there is 404, not 500."""
    status, reason, headers, content = answer
    if status == 500 and b"no bucket" in content:
        return 404, "Not Found", headers, content
    if status != 200 or not start_after:
        return answer
    root = ET.fromstring(content)
    for entry in [entry for entry in root if _local(entry) == "Contents"]:
        if (entry.findtext("{*}Key") or "") <= start_after:
            root.remove(entry)
    return status, reason, headers, ET.tostring(root)


if __name__ == "__main__":
    GcsXmlProxy(int(sys.argv[2]), int(sys.argv[1]))
    threading.Event().wait()
