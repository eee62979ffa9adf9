"""The adaptive wait of top-k as a slack policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from latecomer.core.topk.adaptive_wait import AdaptiveWait
from latecomer.core.windows.interfaces import Observed


class AdaptiveWaitSlack:
    """The paper's adaptive wait as a slack policy; contributions are members of final top-k answers."""

    needs_observation = True
    provisional = False

    def __init__(self, wait: AdaptiveWait) -> None:
        self.wait = wait

    def delays(self, largest_us: int) -> None:
        """Nothing to learn from delays."""

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """One window: a wait `c` keeps a member if it exceeds the member's own wait, so one less than what it requires.

        Members that required nothing are hits of every wait; what is shown of a window leaves them out.
        """
        free = max(int(seen.total - seen.weight.sum()), 0)
        counts = np.append(seen.weight.astype(np.int64), free)
        needs = np.append(np.maximum(seen.required_us - 1, 0), 0)
        self.wait.observe(needs, int(seen.total), counts)

    def choose(self, interval: int) -> int:
        """The wait in force."""
        return self.wait.wait_us

    def to_dict(self) -> dict[str, Any]:
        """State as JSON-able values."""
        return self.wait.to_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `to_dict`'s value."""
        self.wait = AdaptiveWait.from_dict(state)
