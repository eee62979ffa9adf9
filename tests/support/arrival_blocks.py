"""Arrivals that lie in several blocks of this process."""

import itertools

from latecomer.core.arrivals import Arrivals


class Blocks:
    """Arrivals ``seq, event_time_us, side, shard`` (arrays), cut before the given places; see `ArrivalBlocks`."""

    def __init__(self, columns, cuts, carry, shards=1):
        self.blocks = []
        places = [0, *sorted(cuts), len(columns[0])]
        for low, high in itertools.pairwise(places):
            self.blocks.append(Arrivals.of(*(column[low:high] for column in columns), carry, shards))
            carry = self.blocks[-1].carry
        self.carry, self.rows = carry, len(columns[0])

    def of_blocks(self, task):
        return [task(block) for block in self.blocks]
