"""Write a file so that a reader sees it whole or not at all."""

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
