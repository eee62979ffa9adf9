"""Decide when an ingestion should be started, by looking at landing folders and sources again and again.

The ingest log of the lake says what is new. Who begins anew misses nothing, and starts nothing for what was ingested: a
watch remembers only which runs it has started, so that a file that cannot be ingested does not start run after run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from latecomer.ingest.new_files import FolderObserver
from latecomer.ingest.options import IngestOptions
from latecomer.ingest.stream_sources import needs_spark, new_content
from latecomer.lake.errors import InputError
from latecomer.lake.ingest_log import last_committed, last_position
from latecomer.lake.lake import Lake
from latecomer.lake.lease import is_held
from latecomer.specs.errors import SpecError
from latecomer.specs.names import BY_COLUMN
from latecomer.specs.streams import KafkaTopicSource, StreamSource, parse_stream

GROWING_S = 60.0
"""Seconds for which files that change from look to look are left to their writers."""
UNDER_WAY_S = 60.0
"""Seconds for which a run that was started is expected to take also what has come since."""
AGAIN_S, AGAIN_MOST_S = 300.0, 3600.0
"""Seconds after which a run is started again for the same changes, as none has ingested them: at first, at most."""
CATALOG_S = 300.0
"""Seconds between two runs for a table of Spark's catalog: only Spark can look it up, and none runs here."""
PROBLEM = "problem"
"""The mark of a folder or source whose changes cannot be told; the task of a run says why."""
Changes = dict[str, frozenset[str]]
"""Folder or source -> marks of its new files, or a text that differs once an ingestion has taken what is new."""


@dataclass
class Watch:
    """Decide at each look whether to start a run; a clock is given, and nothing waits.

    A run is started for changes that are as they were one look before, so that a file is left to its writer. It is
    started once: again only for other changes, or if the same are still there after a while. As long as an ingestion is
    at work, nothing is started.

    Parameters
    ----------
    landing
        The landing folder, or a prefix of a bucket.
    watched
        The text of the stream file (empty if there is none) of each folder in it, and of each stream with a source.
    logged_in
        Puts the login of a source into the environment for as long as the source is asked.
    """

    landing: str
    watched: Mapping[str, str]
    logged_in: Callable[[StreamSource], AbstractContextManager[None]] = lambda source: nullcontext()
    _folders: dict[str, FolderObserver] = field(default_factory=dict)
    _seen: Changes = field(default_factory=dict)
    _since: float = 0.0
    """When the changes were last as at the look before."""
    _told: Changes = field(default_factory=dict)
    _told_at: float = 0.0
    _told_number: int = -2
    _pause: float = AGAIN_S
    _problems: dict[str, str] = field(default_factory=dict)

    def observe(self, lake_uri: str, time_s: float) -> dict[str, int | str] | None:
        """Return the reasons to start a run: a number of files, or a sentence, by folder or stream; None for no run.

        Parameters
        ----------
        time_s
            Seconds by a clock that does not go back.
        """
        lake = Lake(lake_uri)
        changes = self._changes(lake, time_s)
        before, self._seen = self._seen, changes
        if not changes:
            self._told = {}
        if changes == before or not before:
            self._since = time_s
        if not changes or (changes != before and time_s - self._since < GROWING_S):
            return None
        try:
            number = last_committed(lake)
            if is_held(lake, "ingest"):
                return None
        except InputError:
            number = self._told_number  # the run says what is wrong with the lake
        if changes == self._told:
            if time_s - self._told_at < self._pause:
                return None
            changes = self._seen = self._changes(lake, time_s, surely=True)
            if not changes:
                return None
        elif self._told and number == self._told_number and time_s - self._told_at < UNDER_WAY_S:
            return None
        self._pause = min(2 * self._pause, AGAIN_MOST_S) if changes == self._told else AGAIN_S
        self._told, self._told_at, self._told_number = changes, time_s, number
        return {name: self._problems[name] if PROBLEM in marks else len(marks) for name, marks in changes.items()}

    def _changes(self, lake: Lake, time_s: float, *, surely: bool = False) -> Changes:
        """Return the changes of all folders and sources; a mark where they cannot be told, whose reason is kept."""
        changes: Changes = {}
        for name, text in self.watched.items():
            try:
                marks = self._new(lake, name, text, time_s, surely)
            except InputError as error:
                marks = frozenset([PROBLEM])
                self._problems[name] = str(error)
            if marks:
                changes[name] = marks
        return changes

    def _new(self, lake: Lake, name: str, text: str, time_s: float, surely: bool) -> frozenset[str]:
        """Return the changes of one folder or source."""
        options = _options(name, text)
        if options.source is not None:
            with self.logged_in(options.source):
                return _new_in_source(lake, options, options.source, time_s)
        if name not in self._folders:
            self._folders[name] = FolderObserver(f"{self.landing.rstrip('/')}/{name}", options)
        return self._folders[name].new(lake, surely=surely)


def _options(name: str, text: str) -> IngestOptions:
    """Return the options of an ingestion; a stream file that cannot be used has none, and the task refuses it."""
    by = BY_COLUMN.fullmatch(name)
    options = IngestOptions(by=by[1]) if by else IngestOptions(stream=name)
    try:
        return replace(options, **parse_stream(name, text))
    except SpecError:
        return options


def _new_in_source(lake: Lake, options: IngestOptions, source: StreamSource, time_s: float) -> frozenset[str]:
    """Return a text where a table or topic holds something beyond the last ingestion; it names that ingestion's end."""
    if needs_spark(source):
        return frozenset([f"not looked at, the time is {time_s // CATALOG_S:.0f}"])
    if isinstance(source, KafkaTopicSource):  # the schema lies beside the stream file, and offsets need none
        options = replace(options, source=replace(source, value="json", schema=None))
    content = new_content(lake, options, lambda line: None)
    if content is None:
        return frozenset()
    return frozenset([f"beyond {json.dumps(last_position(lake, str(options.stream)), sort_keys=True)}"])
