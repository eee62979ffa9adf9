"""While a micro-batch's rows are being written, the next ones are looked at.

What Spark writes keeps cores busy for part of the time only; planning, commits and the control plane, most of the rest, keep one. What
a windowed kind must read before it decides (:meth:`latecomer.spark.stage.Stage.scan` and ``observe``) depends on the order of events
alone, not on what was decided or written before, so it is read meanwhile, each micro-batch in a thread of its own, which begins
once the one before is scanned. Nothing depends on it: a look holds for the micro-batch it was taken at and is taken again, in its turn,
where the plan turned out to be another or where it failed; so it is there, and only there, that an error is reported. At most `DEPTH`
micro-batches are looked at ahead, which bounds the memory.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
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


Scan = Callable[[Batch, dict[str, Any] | None], Look]
"""Begins to look at a micro-batch, from what the scan before it left."""


class Ahead:
    """Looks at micro-batches before their turn; a context manager, at whose end no thread is left.

    `after` is the micro-batch after one, as far as can be told now; None: there is none.
    """

    def __init__(self, after: Callable[[Batch], Batch | None]) -> None:
        self._after = after
        self._waiting: deque[_Waiting] = deque()

    def follow(self, look: Look, scan: Scan) -> None:
        """Look at what comes after `look`, which is scanned, as far as that has not begun; `scan` runs in threads."""
        if look.scanned is None:
            return
        before: Future[Look] = Future()
        before.set_result(look)
        batch = look.batch
        if self._waiting:
            batch, before = self._waiting[-1].batch, self._waiting[-1].scanned
        while len(self._waiting) < DEPTH and (following := self._after(batch)) is not None:
            self._waiting.append(_Waiting(following, before, scan))
            batch, before = following, self._waiting[-1].scanned

    def take(self, batch: Batch) -> Look | None:
        """What was seen of `batch`; None where it was not looked at, or not to the end."""
        if self._waiting:
            found = self._waiting.popleft().result()
            if found is not None and found.batch == batch:
                return found
            if found is not None:
                found.stage.release()
        self.close()
        return None

    def close(self) -> None:
        """Forget what was seen, once the threads have ended."""
        while self._waiting:
            found = self._waiting.popleft().result()
            if found is not None:
                found.stage.release()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Waiting:
    """A micro-batch that is being looked at; `scanned` is there when the next can be begun, or has the error why it cannot."""

    def __init__(self, batch: Batch, before: Future[Look], scan: Scan) -> None:
        from pyspark import InheritableThread

        self.batch, self.scanned = batch, Future[Look]()
        self._before, self._scan = before, scan
        self._thread = InheritableThread(self._work, name=f"micro-batch {batch.number}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            before = self._before.result().scanned
            look = self._scan(self.batch, None if before is None else before.following)
        except BaseException as error:
            self.scanned.set_exception(error)
            return
        self.scanned.set_result(look)
        with contextlib.suppress(Exception):
            look.observe()

    def result(self) -> Look | None:
        """The look, once its thread has ended; None where it failed, and nothing is held then."""
        self._thread.join()
        if self.scanned.exception() is not None:
            return None
        look = self.scanned.result()
        if look.looked is None:
            look.stage.release()
            return None
        return look
