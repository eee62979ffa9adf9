"""While a micro-batch's rows are being written, the next one is decided.

What Spark writes keeps cores busy for part of the time only; planning, commits and the control plane, most of the rest, keep one. A
windowed kind's decisions (:meth:`latecomer.spark.stage.Stage.decide`) need of the micro-batch before only what that decided, and they
read events alone, so they are taken in a thread of their own meanwhile. Nothing depends on it: they hold for the micro-batch they were
taken for and are taken again, in its turn, where the plan turned out to be another or where they failed; so it is there, and only there, that an
error is reported. At most one micro-batch is decided ahead, which bounds the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from latecomer.spark.stage import Batch, Decided, Stage


@dataclass
class _Taken:
    """What the thread has found so far."""

    batch: Batch | None = None
    stage: Stage | None = None
    decided: Decided | None = None


class Ahead:
    """The decisions of one micro-batch, taken before its turn; a context manager, at whose end no thread is left."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._taken = _Taken()

    def start(
        self,
        batch_of: Callable[[], Batch | None],
        stage_of: Callable[[Batch], Stage],
        decide: Callable[[Stage, Batch], Decided | None],
    ) -> None:
        """Decide `batch_of()`, None where none will come, on a stage of its own. Needs a Spark session."""
        from pyspark import InheritableThread

        self.close()
        taken = self._taken = _Taken()

        def work() -> None:
            try:
                batch = batch_of()
                if batch is not None:
                    taken.stage = stage_of(batch)
                    taken.decided = decide(taken.stage, batch)
                    taken.batch = batch
            except Exception:
                taken.batch = None

        self._thread = InheritableThread(work, name="next micro-batch", daemon=True)
        self._thread.start()

    def take(self, batch: Batch) -> tuple[Stage, Decided] | None:
        """The stage and what it decided of `batch`; None where that was not decided ahead. The stage is the caller's to release."""
        self._join()
        taken = self._taken
        if taken.batch != batch or taken.stage is None or taken.decided is None:
            self.close()
            return None
        self._taken = _Taken()
        return taken.stage, taken.decided

    def close(self) -> None:
        """Forget what was decided, once the thread has ended."""
        self._join()
        taken, self._taken = self._taken, _Taken()
        if taken.stage is not None:
            taken.stage.release()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
