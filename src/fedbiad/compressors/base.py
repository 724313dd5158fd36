"""What a compressor decides: how the difference of a client's kept entries is sent, and what it keeps for later.

A compressor is a frozen dataclass of its settings with pure functions. What it remembers of a client (residuals,
momenta) lives in the client's state in full coordinates [N], so that it survives changing patterns and absent rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import ConfigDict

from fedbiad.arrays import ClientState, IntArray
from fedbiad.errors import RunError
from fedbiad.payloads import Float32, Payload

Per = Literal["tensor", "model"]
"""What is compressed as one: the kept entries of each parameter, or all of them."""


MOST_BESIDES = 48
"""Header, report and checksum of a message without a pattern are hardly longer."""


@dataclass(frozen=True)
class Segment:
    """The kept entries of one parameter among all kept entries."""

    name: str
    entries: slice
    dims: int
    """Axes of the parameter: 1 for a bias."""
    rows: int = 1
    """Kept length of the first axis, where there are more than one."""

    @property
    def size(self) -> int:
        """How many there are."""
        return int(self.entries.stop - self.entries.start)


@dataclass(frozen=True)
class Room:
    """What a compressor may be told of the message that it fills, in bytes."""

    dense: int
    """FedAvg's message: all weights of the model as they are."""
    besides: int
    """What this message takes beside its parts: header, report, pattern, checksum."""
    uplink: float | None = None
    """Bytes a second on the client's own link."""

    @staticmethod
    def guessed(weights: int) -> Room:
        """For a message that nothing is known of but how many weights the model has."""
        return Room(4 * weights + MOST_BESIDES, MOST_BESIDES)


@dataclass(frozen=True)
class Compressor:
    """The base of all; subclasses state `compress`."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    def init_client(self, size: int) -> ClientState:
        """What a client remembers before its first round: arrays in full coordinates [N = size]."""
        return {}

    def compress(
        self,
        delta: Float32,
        where: IntArray,
        segments: Sequence[Segment],
        state: ClientState,
        round_: int,
        stream: np.random.Generator,
    ) -> tuple[Payload, ClientState]:
        """The message for the kept entries of one client, and what it remembers then.

        `delta` [n] is trained minus received at the kept entries, `where` [n] their full coordinates, ascending;
        entries that are not kept stay as they are in `state`.
        """
        raise NotImplementedError

    def for_message(self, room: Room) -> Compressor:
        """The compressor for one message, where that matters."""
        return self

    @property
    def vote_step(self) -> float | None:
        """Not None: the server takes the majority of signs and moves by this share of the learning rate."""
        return None


def taken(full: Float32, where: IntArray) -> Float32:
    """The kept entries of what is remembered in full coordinates, a copy."""
    return full.copy() if len(where) == len(full) else full[where]


def put_back(full: Float32, where: IntArray, kept: Float32) -> Float32:
    """What is remembered in full coordinates, with these in the place of the kept entries."""
    if len(where) == len(full):
        return kept
    following = full.copy()
    following[where] = kept
    return following


def pieces(segments: Sequence[Segment], per: Per, round_: int) -> list[slice]:
    """The runs of kept entries that are compressed as one, in order, none of them empty."""
    own = [segment.entries for segment in segments if segment.size]
    if not own:
        raise RunError(
            f"round {round_}: a client keeps no entry at all, so there is nothing to compress; "
            "lower the dropout rate or use a method that keeps a row of each group"
        )
    return own if per == "tensor" else [slice(own[0].start, own[-1].stop)]
