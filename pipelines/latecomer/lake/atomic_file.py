"""Write a file so that a reader sees it whole or not at all; the folder of files that can be made again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a path to write to, which becomes `path` at the end of the block; nothing is left where the block fails."""
    part = path.parent / f".{secrets.token_hex(8)}"
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return the folder of this user's files that can be made again: jars, class archives, trust stores."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "latecomer"
