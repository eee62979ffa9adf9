"""The servers that ``infra/store_servers.sh`` makes behind the other tests, each in a folder ``.tools/SERVER``."""

from __future__ import annotations

import os
import time
from pathlib import Path

SERVERS = Path(__file__).resolve().parents[2] / ".tools"
MADE_SECONDS = 300.0
"""Seconds for which a test waits for a server that is still being made."""


def why_not_made(server: str) -> str | None:
    """Return the reason why a server is not there; None where it is. One that is being made is awaited."""
    folder = SERVERS / server
    until = time.monotonic() + MADE_SECONDS
    while not (folder / "version").is_file() and _is_being_made(folder) and time.monotonic() < until:
        time.sleep(1)
    if (folder / "version").is_file():
        return None
    if _is_being_made(folder):
        return f"{server} was still being made after {MADE_SECONDS:.0f} s"
    if (folder / "missing").is_file():
        return (folder / "missing").read_text(encoding="utf-8").strip()
    return f"{server} is missing: `bash infra/store_servers.sh start` makes it"


def _is_being_made(folder: Path) -> bool:
    """Return whether the script runs, by the number that it has left."""
    try:
        os.kill(int((folder / "building").read_text(encoding="utf-8")), 0)
    except (OSError, ValueError):
        return False
    return True
