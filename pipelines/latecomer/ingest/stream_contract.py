"""Complete the options of `ingest` by the stream file, which is the contract of a stream."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path

from latecomer.ingest.options import IngestOptions
from latecomer.specs import streams


def with_stream_file(folder: Path | None, given: Set[str]) -> Callable[[IngestOptions], IngestOptions]:
    """Return a function that completes options by the file of their stream in `folder`; those `given` stay."""

    def complete(options: IngestOptions) -> IngestOptions:
        name = f"_by_{options.by}" if options.stream is None else options.stream
        file = None if folder is None else streams.stream_file(folder, name)
        values = {} if file is None else streams.load_stream(file)
        stated = {key: value for key, value in values.items() if key not in given}
        return replace(options, **stated, timezone_stated="timezone" in {*values, *given})

    return complete
