"""Files that are there whole or not at all, whoever looks meanwhile."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` in the end; nothing is left of it if that fails."""
    part = path.parent / f".{secrets.token_hex(8)}"
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
