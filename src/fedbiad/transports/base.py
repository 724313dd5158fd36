"""How requests reach clients and updates come back; the round loop knows nothing else about clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from fedbiad.arrays import Params
from fedbiad.client import Updates


@dataclass(frozen=True)
class Request:
    """What the server sends out in round r: U_{r-1}, to the clients selected."""

    round: int
    u: Params
    ids: tuple[int, ...]


class Transport(Protocol):
    """A way to the clients."""

    def sizes(self) -> list[int]:
        """|D^k| of every registered client."""
        ...

    def exchange(self, request: Request) -> Iterator[Updates]:
        """Send a request; yield the updates in blocks, in the order of the ids."""
        ...
