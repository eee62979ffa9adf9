"""Free ports of this machine, for servers that tests start."""

from __future__ import annotations

import random
import socket

_RANGE = range(20_000, 32_000)
"""Ports that the system gives to no outgoing connection: a server that was killed finds its port free again."""


def free_ports(count: int) -> list[int]:
    """Return `count` different ports that no process listens on."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(_RANGE, len(_RANGE)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError("no port is free")
