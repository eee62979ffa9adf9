"""What the lake, the input and the other holder of a lease can do wrong, as exceptions that carry their exit code."""

from __future__ import annotations

import errno
import os


class LatecomerError(Exception):
    """Base of this module's errors. ``exit_code`` is what the command returns."""

    exit_code = 2


def said(error: BaseException) -> str:
    """Its text; of an error of a JVM that is gone, which can no longer be asked for it, its kind."""
    try:
        return str(error)
    except Exception:
        return "said no more"


def is_full(error: BaseException) -> bool:
    """Did a write fail because the disk is full? The JVM and delta-rs say so in their texts only."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in said(error)


class InputError(LatecomerError):
    """The input or the state of the lake does not allow what was asked.

    Parameters
    ----------
    where
        File, table or option the problem is in.
    value
        The offending value, shown as it was given.
    problem, remedy
        What is wrong, and what to do about it.
    """

    def __init__(self, where: str, value: object, problem: str, remedy: str) -> None:
        self.where, self.value, self.problem, self.remedy = where, value, problem, remedy
        super().__init__(where, value, problem, remedy)

    def __str__(self) -> str:
        shown = "" if self.value is None else f"{_one_line(repr(self.value))}: "
        return _one_line(f"{self.where}: {shown}{self.problem}; {self.remedy}", 1000)


class LeaseHeld(LatecomerError):
    """Another process is at work on the same tables."""

    exit_code = 3

    def __init__(self, name: str, holder: str, age_s: float) -> None:
        self.name, self.holder, self.age_s = name, holder, age_s
        super().__init__(name, holder, age_s)

    def __str__(self) -> str:
        return (
            f"lease {self.name!r}: held by {self.holder} for {self.age_s:.0f} s; "
            "wait until it ends (the lease of a process that died is released automatically)"
        )


class LeaseLost(LeaseHeld):
    """Another process took over while this one was not heard from."""

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(name, holder, 0.0)

    def __str__(self) -> str:
        return (
            f"lease {self.name!r}: was taken over by {self.holder} while this process was not heard from; "
            "what it had not committed was not written"
        )


def _one_line(text: str, limit: int = 300) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 3] + "..."
