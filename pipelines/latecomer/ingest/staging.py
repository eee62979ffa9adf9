"""What both ways to read landing files need: folders in the lake for what Spark does not read where it lies, and which columns a file may have."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence

from pyarrow import fs

from latecomer.ingest.text_parser import FileProblem, check_names
from latecomer.lake.lake import Lake
from latecomer.lake.storage import spark_uri
from latecomer.spark.engine.tables import escape_pattern
from latecomer.specs.names import duplicates, fold_case

RESERVED = ("_file", "_row", "_line", "_raw", "_problem", "_stream", "_order", "_place", "_metadata")
"""Columns of the product's own beside those of a file."""


class Staging:
    """Folders in the lake for what Spark does not read where it lies; :meth:`close` removes them."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._made: list[tuple[fs.FileSystem, str]] = []

    def folder(self) -> tuple[fs.FileSystem, str, str]:
        """A new folder: its file system, its place there, and its place as Spark reads it."""
        filesystem, root = self.lake.filesystem()
        name = f"_staging/{uuid.uuid4().hex}"
        if self.lake.is_local:
            filesystem.create_dir(f"{root}/{name}")
        self._made.append((filesystem, f"{root}/{name}"))
        return filesystem, f"{root}/{name}", escape_pattern(spark_uri(f"{self.lake.uri}/{name}"))

    def sweep(self) -> None:
        """Remove what ingestions left that were killed. Only for the holder of their lease."""
        filesystem, root = self.lake.filesystem()
        with contextlib.suppress(OSError):
            if filesystem.get_file_info(f"{root}/_staging").type != fs.FileType.NotFound:
                filesystem.delete_dir(f"{root}/_staging")

    def close(self) -> None:
        """Remove them."""
        for filesystem, folder in self._made:
            with contextlib.suppress(OSError):
                filesystem.delete_dir(folder)


def refuse_columns(names: Sequence[str]) -> None:
    """Refuse columns without a name, of a name that only case tells apart from another's, and of one of the product's own."""
    check_names(names)
    twice = duplicates(names)
    if twice:
        raise FileProblem(f"has more than one column {twice[0]!r} (case does not tell columns apart)", "rename one")
    clash = [name for name in names if fold_case(name) in RESERVED]
    if clash:
        raise FileProblem(f"has a column {clash[0]!r}, a name kept for the product", "rename it")
