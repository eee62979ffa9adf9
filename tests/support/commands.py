"""The ``latecomer`` command as a process with a JVM of its own.

:mod:`tests.support.in_gateway` runs it in the JVM of the test session, which saves the start of a JVM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping


def line(*arguments: object) -> list[str]:
    """Return the command line."""
    return [sys.executable, "-m", "latecomer.jobs.cli", *map(str, arguments)]


def call(
    *arguments: object,
    crash_at: str | None = None,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; with `crash_at` it kills itself at that crash point.

    Variables of `environment` win over those of this process.
    """
    variables = os.environ | (environment or {}) | ({} if crash_at is None else {"LATECOMER_CRASH_AT": crash_at})
    return subprocess.run(line(*arguments), env=variables, capture_output=True, text=True, timeout=timeout)
