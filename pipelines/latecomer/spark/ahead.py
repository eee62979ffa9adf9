"""While a micro-batch's rows are being written, the next one is decided.

What Spark writes keeps cores busy for part of the time only; planning, commits and the control plane, most of the rest, keep one. A
windowed kind's decisions (:meth:`latecomer.spark.stage.Stage.decide`) need of the micro-batch before only what that decided, and they
read events alone, so they are taken in a thread of their own meanwhile. Nothing depends on it: they hold for the micro-batch they were
taken for and are taken again, in its turn, where the plan turned out to be another or where they failed; so it is there, and only there, that an
error is reported. At most one micro-batch is decided ahead, which bounds the memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from latecomer.spark.stage import Batch, Decided, Stage


class Ahead:
    """The decisions of one micro-batch, taken before its turn; a context manager, at whose end no thread is left."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._found: tuple[Batch, Stage, Decided | None] | None = None

    def start(self, decide: Callable[[], tuple[Batch, Stage, Decided | None] | None]) -> None:
        """Find out which micro-batch comes next and what a stage of its own decides of it. Needs a Spark session."""
        from pyspark import InheritableThread

        self.close()

        def work() -> None:
            with contextlib.suppress(Exception):
                self._found = decide()

        self._thread = InheritableThread(work, name="next micro-batch", daemon=True)
        self._thread.start()

    def take(self, batch: Batch) -> tuple[Stage, Decided | None] | None:
        """The stage and what it decided of `batch`; None where that was not decided ahead. The stage is the caller's to release."""
        self._join()
        if self._found is None or self._found[0] != batch:
            self.close()
            return None
        (_, stage, decided), self._found = self._found, None
        return stage, decided

    def close(self) -> None:
        """Forget what was decided, once the thread has ended."""
        self._join()
        if self._found is not None:
            self._found[1].release()
            self._found = None

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
