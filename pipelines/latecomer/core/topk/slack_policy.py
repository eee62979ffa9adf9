"""The adaptive wait of top-k as a slack policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from latecomer.core.topk.adaptive_wait import AdaptiveWait
from latecomer.core.windows.interfaces import Observed, SlackPolicy


class AdaptiveWaitSlack(SlackPolicy):
    """A slack policy that follows an adaptive wait; its contributions are the members of final top-k answers."""

    needs_observation = True
    provisional = False

    def __init__(self, wait: AdaptiveWait) -> None:
        self.wait = wait

    def delays(self, largest_us: int) -> None:
        """Ignore delays: the wait depends on hit rates alone."""

    def observe(self, seen: Observed, slack_us: int, interval: int) -> None:
        """Pass one observed window to the adaptive wait.

        A wait `c` includes a member if ``member's wait < c``, while `required_us` is the least `c`: hence one less.
        Members that required no wait are hits of every wait; `seen` holds them only in its total.
        """
        without_wait = max(int(seen.total - seen.weight.sum()), 0)
        members = np.append(seen.weight.astype(np.int64), without_wait)
        required_wait_us = np.append(np.maximum(seen.required_us - 1, 0), 0)
        self.wait.observe(required_wait_us, int(seen.total), members)

    def choose(self, interval: int) -> int:
        """Return the wait in force, microseconds."""
        return self.wait.wait_us

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return self.wait.to_dict()

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> AdaptiveWaitSlack:
        """Continue from the state that `to_dict` returned, which has the parameters too."""
        return cls(AdaptiveWait.from_dict(state))
