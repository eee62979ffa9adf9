"""Observe the next micro-batches while the rows of one are being written.

Spark keeps the cores busy for part of the time that a write takes. Planning, commits and the control plane, most of the
rest, keep one core busy. What a windowed kind must read before it decides (:meth:`latecomer.spark.stage.Stage.scan` and
``observe``) depends on the arrival order alone, not on earlier decisions, so it is read meanwhile: each micro-batch in
a thread of its own, which begins once the one before is scanned. Nothing depends on it. What fails here is done again
in its turn, and an error is reported only then. At most `DEPTH` micro-batches are prefetched, which bounds the memory.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event

from latecomer.spark.engine import connect, process_memory
from latecomer.spark.stage import Batch, BatchScan, Observation, Stage, StageState

DEPTH = 2
"""Micro-batches that are prefetched beside the one that is written.

With one, its decisions wait for Spark while a core is idle.
"""


@dataclass
class PrefetchedBatch:
    """A micro-batch, the stage that is to answer it, and what that stage has scanned and observed.

    Whoever takes it releases the stage.
    """

    batch: Batch
    stage: Stage
    scan: BatchScan | None
    observation: Observation | None = None

    def observe(self) -> None:
        """Read what the scan asks for; nothing where the kind needs no scan, or it was read before."""
        if self.scan is not None and self.observation is None:
            self.observation = Observation(self.scan, self.stage.observe(self.batch, self.scan))
            process_memory.release_unused()


Scan = Callable[[Batch, "StageState | None"], PrefetchedBatch]
"""Scans a micro-batch, from what the scan before it left."""


class Prefetcher:
    """Scans and observes micro-batches before their turn; a context manager that leaves no thread behind.

    Parameters
    ----------
    after
        Returns the micro-batch after another one; None: there is none that may be prefetched.
    """

    def __init__(self, after: Callable[[Batch], Batch | None]) -> None:
        self._after = after
        self._pending: deque[_Pending] = deque()
        self._stopped = Event()

    def follow(self, current: PrefetchedBatch, scan: Scan) -> None:
        """Begin to prefetch what comes after `current`, which is scanned; `scan` runs in threads."""
        if current.scan is None:
            return
        following: Future[StageState | None] = Future()
        following.set_result(current.scan.following)
        batch = current.batch
        if self._pending:
            batch, following = self._pending[-1].batch, self._pending[-1].following
        while len(self._pending) < DEPTH and (later := self._after(batch)) is not None:
            self._pending.append(_Pending(later, following, scan, self._stopped))
            batch, following = later, self._pending[-1].following

    def take(self) -> PrefetchedBatch | None:
        """Return the micro-batch whose turn it is; None where it was not prefetched, or not to the end."""
        prefetched = self._next()
        if prefetched is None:
            self.close()
        return prefetched

    def close(self) -> None:
        """Drop what was prefetched, once the threads have ended; what has not begun does not begin."""
        self._stopped.set()
        while self._pending:
            prefetched = self._next()
            if prefetched is not None:
                prefetched.stage.release()
        self._stopped.clear()

    def _next(self) -> PrefetchedBatch | None:
        if not self._pending:
            return None
        prefetched = self._pending[0].result()  # an interrupt leaves it in the queue, to be closed
        self._pending.popleft()
        return prefetched

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Pending:
    """A micro-batch that is being prefetched.

    `following` is set when the next one can be begun; or it holds the error because of which that cannot be.
    """

    def __init__(self, batch: Batch, before: Future[StageState | None], scan: Scan, stopped: Event) -> None:
        self.batch = batch
        self.following: Future[StageState | None] = Future()
        self._before, self._scan, self._stopped = before, scan, stopped
        self._prefetched: PrefetchedBatch | None = None
        self._thread = connect.thread(self._work, f"micro-batch {batch.number}")
        self._thread.start()

    def _work(self) -> None:
        with contextlib.suppress(Exception):
            state = self._before.result()
            if self._stopped.is_set():
                return
            self._prefetched = self._scan(self.batch, state)
            assert self._prefetched.scan is not None
            self.following.set_result(self._prefetched.scan.following)
            if not self._stopped.is_set():
                self._prefetched.observe()

    def result(self) -> PrefetchedBatch | None:
        """Return the micro-batch once its thread has ended; None where that failed, and nothing is held then.

        Of several the first one has to be asked first.
        """
        self._thread.join()
        if not self.following.done():  # the next one waits for it and cannot begin either
            self.following.set_exception(RuntimeError("was not scanned"))
        if self._prefetched is not None and self._prefetched.observation is None:
            self._prefetched.stage.release()
            return None
        return self._prefetched
