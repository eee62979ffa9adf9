"""Wait in Airflow's triggerer until a landing folder or a source holds something new, then start ``latecomer_ingest``.

The trigger `LandingTrigger` belongs to an asset by which the DAG is scheduled. It looks again and again, in a thread,
and its event starts a run. `latecomer.ingest.watch` decides, by the ingest log of the lake.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from latecomer.airflow.settings import place
from latecomer.airflow.submit import environment, logged_in, store_variables
from latecomer.specs.deployment import INGEST_DAG

if TYPE_CHECKING:
    from latecomer.ingest.watch import Watch

LOCAL_S, REMOTE_S = 5.0, 30.0
"""Seconds between two looks: at folders of a disk, and where a store, a table or a topic is asked."""


def landing_asset(trigger: LandingTrigger) -> Asset:
    """Return the asset that the trigger updates and that schedules the DAG which ingests.

    No query can have the name of that DAG, so no query's asset has the name of this one.
    """
    watcher = AssetWatcher(name=INGEST_DAG, trigger=trigger)
    return Asset(name=f"latecomer.{INGEST_DAG}", uri="latecomer://landing", watchers=[watcher])


class LandingTrigger(BaseEventTrigger):
    """Fire whenever something in the landing folder or in a source has not been ingested.

    Parameters
    ----------
    landing
        The landing folder, or a prefix of a bucket.
    watched
        The text of the stream file (empty if there is none) of each folder in it, and of each stream with a source.
        The triggerer may run where the files of DAGs are not.
    lake
        The lake, or a template of variables and connections; None: that of the settings, in the triggerer.
    seconds
        Seconds between two looks.
    """

    def __init__(self, landing: str, watched: dict[str, str], lake: str | None, seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.landing, self.watched, self.lake, self.seconds = landing, dict(watched), lake, seconds
        self._watch: Watch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and its arguments."""
        names = ("landing", "watched", "lake", "seconds")
        return f"{__name__}.LandingTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, and yield an event per start of the DAG. It never ends by itself, and never raises."""
        from asgiref.sync import sync_to_async

        observe = sync_to_async(self._observe, thread_sensitive=False)  # its thread may ask Airflow for connections
        problem = ""
        while True:
            started, changes = time.monotonic(), None
            try:
                changes = await observe()
                problem = ""
            except Exception as error:
                if problem != (problem := f"{type(error).__name__}: {error}"):
                    self.log.exception("the landing folder cannot be looked at")
            if changes is not None:
                self.log.info("%s: new in %s", INGEST_DAG, ", ".join(changes))
                yield TriggerEvent(changes)  # type: ignore[no-untyped-call]
            await asyncio.sleep(max(self.seconds, time.monotonic() - started))  # it looks for half of the time at most

    def _observe(self) -> dict[str, int | str] | None:
        """Look once, in a thread; credentials are in the environment of the triggerer only meanwhile."""
        from latecomer.ingest.watch import Watch  # it imports pyarrow and takes seconds

        self._watch = self._watch or Watch(self.landing, self.watched, logged_in)
        with environment(store_variables()):
            return self._watch.observe(place("lake", self._rendered_lake()), time.monotonic())

    def _rendered_lake(self) -> str | None:
        """Return the lake with its template filled in; as there is no run, by variables and connections alone."""
        if self.lake is None or "{" not in self.lake:
            return self.lake
        from airflow.sdk.execution_time.context import ConnectionAccessor, VariableAccessor

        variables = {"value": VariableAccessor(deserialize_json=False), "json": VariableAccessor(deserialize_json=True)}
        return str(self.render_template(self.lake, {"var": variables, "conn": ConnectionAccessor()}))
