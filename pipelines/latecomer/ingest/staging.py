"""Staging folders in the lake for files that Spark does not read in place, and a check of column names.

Both readers need them.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence

from pyarrow import fs

from latecomer.ingest.decode_text import FileProblem
from latecomer.ingest.text_parser import check_names
from latecomer.lake.lake import Lake
from latecomer.lake.storage import escape_pattern, spark_uri
from latecomer.specs.names import duplicates, fold_case

RESERVED = (
    "_file", "_row", "_line", "_raw", "_problem", "_stream", "_order", "_place", "_metadata", "_event_us",
    "_arrival_us", "_time_problem", "_event_given", "_arrival_given", "_later_us", "_event_hint", "_event_skipped",
    "_arrival_skipped", "_resolved_us", "_ambiguous", "_repeated", "_again",
)  # fmt: skip
"""Columns that ingestion adds to those of a file."""


class Staging:
    """Staging folders in the lake, which :meth:`close` removes."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._made: list[tuple[fs.FileSystem, str]] = []

    def folder(self) -> tuple[fs.FileSystem, str, str]:
        """Make a folder, and return its file system, its path there, and its path as Spark reads it."""
        filesystem, root = self.lake.filesystem()
        name = f"_staging/{uuid.uuid4().hex}"
        if self.lake.is_local:
            filesystem.create_dir(f"{root}/{name}")
        self._made.append((filesystem, f"{root}/{name}"))
        return filesystem, f"{root}/{name}", escape_pattern(spark_uri(f"{self.lake.uri}/{name}"))

    def sweep(self) -> None:
        """Remove the folders of killed ingestions. Only the holder of the lease may call it."""
        filesystem, root = self.lake.filesystem()
        with contextlib.suppress(OSError):
            if filesystem.get_file_info(f"{root}/_staging").type != fs.FileType.NotFound:
                filesystem.delete_dir(f"{root}/_staging")

    def close(self) -> None:
        """Remove the folders."""
        for filesystem, folder in self._made:
            with contextlib.suppress(OSError):
                filesystem.delete_dir(folder)


def refuse_columns(names: Sequence[str]) -> None:
    """Refuse columns without a name, names that differ in case only, and names that ingestion reserves."""
    check_names(names)
    twice = duplicates(names)
    if twice:
        raise FileProblem(f"has more than one column {twice[0]!r} (case does not tell columns apart)", "rename one")
    clash = [name for name in names if fold_case(name) in RESERVED]
    if clash:
        raise FileProblem(f"has a column {clash[0]!r}, a name kept for the product", "rename it")
