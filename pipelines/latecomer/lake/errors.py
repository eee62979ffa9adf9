"""Errors of the input, of the lake and of its leases, as exceptions that carry the exit code of the command."""

from __future__ import annotations

import errno
import os


class LatecomerError(Exception):
    """The base of this module's errors. ``exit_code`` is the exit code of the command that it ends."""

    exit_code = 2


def error_text(error: BaseException) -> str:
    """Return the text of an error, or a substitute where it comes from a JVM that is gone."""
    try:
        return str(error)
    except Exception:
        return "said no more"


def is_full(error: BaseException) -> bool:
    """Return whether a write failed because the disk is full. The JVM and delta-rs report that in their texts only."""
    codes = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in codes or os.strerror(errno.ENOSPC) in error_text(error)


class InputError(LatecomerError):
    """The input, or the state of the lake, does not allow the call.

    Parameters
    ----------
    where
        File, table or option the problem is in.
    value
        The offending value, shown as it was given.
    problem, remedy
        The fault, and the way to mend it.
    """

    def __init__(self, where: str, value: object, problem: str, remedy: str) -> None:
        self.where, self.value, self.problem, self.remedy = where, value, problem, remedy
        super().__init__(where, value, problem, remedy)

    def __str__(self) -> str:
        shown = "" if self.value is None else f"{_one_line(repr(self.value))}: "
        return _one_line(f"{self.where}: {shown}{self.problem}; {self.remedy}", 1000)


class LeaseHeld(LatecomerError):
    """Another process works on the same tables."""

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
    """Another process took over the lease while this one did not renew it."""

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
