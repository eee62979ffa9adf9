"""While a micro-batch's rows are being written, the next ones are looked at.

What Spark writes keeps cores busy for part of the time only; planning, commits and the control plane, most of the rest, keep one. What
a windowed kind must read before it decides (:meth:`latecomer.spark.stage.Stage.scan` and ``observe``) depends on the order of events
alone, not on what was decided or written before, so it is read meanwhile, each micro-batch in a thread of its own, which begins
once the one before is scanned. Nothing depends on it: what fails here is done again in its turn, and it is there, and only there, that an error
is reported. At most `DEPTH` micro-batches are looked at ahead, which bounds the memory.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from typing import Any

from latecomer.spark.stage import Batch, Looked, Scanned, Stage

DEPTH = 2
"""Micro-batches that are looked at beside the one that is written; with one, its decisions wait for Spark while a core is idle."""


@dataclass
class Look:
    """A micro-batch, the stage that is to answer it (its taker's to release), and what that scanned and then observed."""

    batch: Batch
    stage: Stage
    scanned: Scanned | None
    looked: Looked | None = None

    def observe(self) -> None:
        """Read what was not scanned."""
        if self.scanned is not None:
            self.looked = Looked(self.scanned, self.stage.observe(self.batch, self.scanned))


Scan = Callable[[Batch, "dict[str, Any] | None"], Look]
"""Begins to look at a micro-batch, from what the scan before it left."""


class Ahead:
    """Looks at micro-batches before their turn; a context manager, at whose end no thread is left.

    `after` is the micro-batch after one; None: there is none that may be looked at before its turn.
    """

    def __init__(self, after: Callable[[Batch], Batch | None]) -> None:
        self._after = after
        self._waiting: deque[_Waiting] = deque()
        self._stopped = Event()

    def follow(self, look: Look, scan: Scan) -> None:
        """Look at what comes after `look`, which is scanned, as far as that has not begun; `scan` runs in threads."""
        if look.scanned is None:
            return
        following: Future[dict[str, Any] | None] = Future()
        following.set_result(look.scanned.following)
        batch = look.batch
        if self._waiting:
            batch, following = self._waiting[-1].batch, self._waiting[-1].following
        while len(self._waiting) < DEPTH and (later := self._after(batch)) is not None:
            self._waiting.append(_Waiting(later, following, scan, self._stopped))
            batch, following = later, self._waiting[-1].following

    def take(self) -> Look | None:
        """The micro-batch whose turn it is; None where it was not looked at, or not to the end."""
        found = self._next()
        if found is None:
            self.close()
        return found

    def close(self) -> None:
        """Forget what was seen, once the threads have ended; what has not begun does not begin."""
        self._stopped.set()
        while self._waiting:
            found = self._next()
            if found is not None:
                found.stage.release()
        self._stopped.clear()

    def _next(self) -> Look | None:
        if not self._waiting:
            return None
        found = self._waiting[0].result()  # an interrupt leaves it where it is, to be closed
        self._waiting.popleft()
        return found

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Waiting:
    """A micro-batch that is being looked at; `following` is there when the next can be begun, or has the error why it cannot."""

    def __init__(self, batch: Batch, before: Future[dict[str, Any] | None], scan: Scan, stopped: Event) -> None:
        from pyspark import InheritableThread

        self.batch = batch
        self.following: Future[dict[str, Any] | None] = Future()
        self._before, self._scan, self._stopped = before, scan, stopped
        self._look: Look | None = None
        self._thread = InheritableThread(self._work, name=f"micro-batch {batch.number}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with contextlib.suppress(Exception):
            state = self._before.result()
            if self._stopped.is_set():
                return
            self._look = self._scan(self.batch, state)
            assert self._look.scanned is not None
            self.following.set_result(self._look.scanned.following)
            if not self._stopped.is_set():
                self._look.observe()

    def result(self) -> Look | None:
        """The look, once its thread has ended; None where it failed, and nothing is held then. Of several, the first one's before the next one's."""
        self._thread.join()
        if not self.following.done():  # nor can the next begin, which waits for it
            self.following.set_exception(RuntimeError("was not scanned"))
        if self._look is not None and self._look.looked is None:
            self._look.stage.release()
            return None
        return self._look
