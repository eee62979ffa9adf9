"""The ``latecomer`` command as a process of its own, with a JVM of its own; :mod:`tests.support.in_gateway` shares the test's."""

from __future__ import annotations

import os
import subprocess
import sys


def line(*arguments: object) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "latecomer.jobs.cli", *map(str, arguments)]


def call(*arguments: object, crash_at: str | None = None, timeout: float | None = None) -> subprocess.CompletedProcess:
    """Run it to its end; with `crash_at` it kills itself there."""
    environment = os.environ | ({} if crash_at is None else {"LATECOMER_CRASH_AT": crash_at})
    return subprocess.run(line(*arguments), env=environment, capture_output=True, text=True, timeout=timeout)
