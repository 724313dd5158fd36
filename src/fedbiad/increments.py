"""Increments of U that clients fetch instead of U, and how both sides apply them: to the same bits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedbiad.arrays import IntArray
from fedbiad.payloads import Float32, Payload


def applied(copy: Float32, increments: Iterable[Payload]) -> Float32:
    """U after these increments [N], from a copy before them: one float32 sum an entry and increment, in order."""
    for increment in increments:
        copy = copy + increment.values()
    return copy


@dataclass(frozen=True, eq=False)
class Offer:
    """Which of the last increments each client of a round is sent."""

    counts: IntArray
    """How many of the last increments [clients]; 0: the whole model."""
    lengths: IntArray
    """Bytes of each increment, oldest first."""
    bits: IntArray
    """The same by the paper's count, in bits."""
    increments: tuple[bytes, ...] = ()
    """The increments themselves and ..."""
    oldest: Float32 | None = None
    """... U before the first of them [N], from which every client's own copy follows: where they are really sent."""

    def part(self, members: slice) -> Offer:
        """The same to some of the clients."""
        return replace(self, counts=self.counts[members])
