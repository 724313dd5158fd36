"""Evidence coding: every change rounded to multiples of one step, without bias, in a message of a stated size.

A weight is sent with a probability in proportion to its change, which is a client's evidence on it: sqrt(2 s^2 KL) of a
posterior of variance s^2 before and after. What is sent is a sign, not a float. docs/evidence.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

import numpy as np
from pydantic import Field

from fedbiad.arrays import ClientState, FloatArray, IntArray
from fedbiad.coding.multiples import multiples_bits
from fedbiad.compressors.base import Compressor, Room, Segment, pieces
from fedbiad.compressors.decoys import rounded_with_decoys
from fedbiad.compressors.duels import masses, rounded
from fedbiad.errors import UpdateError
from fedbiad.payloads import LARGEST, MOST_MULTIPLE, Float32, Multiples, Payload

CEILING = 1.01
"""A message may be this much longer than its budget ..."""
AIM = 0.99
"""... and is meant to be this much of it: what chance adds or takes stays between."""
FRAME = 2 + 2
"""Bytes of the parts beside the one part's own: their number, its kind; and what a coded stream's length may take."""
ONE = 8
"""Bytes that a single entry takes, at most."""
CODER, ENDS = 1.001, 12
"""What the range coder takes beyond the estimate: a factor, and bits."""
USUAL = 0.87
"""Bits of an update against those of one without any structure."""
PILOTS = 8
"""Samples from which the step is found, at most; mostly one."""
APART, MANY = 4, 32
"""Before them every fourth row is looked at of blocks with so many rows."""
ENOUGH = 64
"""Entries that must be expected of those rows to tell anything."""
NEAR = 0.1
"""A pilot whose message is this close to what is aimed at needs no further one."""
SLOPES = 0.1, 2.0
"""By how many percent a message gets shorter if the step gets one percent longer."""
PILOT_KEY = 1
"""Pilots draw the same numbers always, so that they follow from the changes alone."""
CHANCE = 0.6
"""Twice what a short message varies by, as a multiple of the root of its bits."""
RETRIES = 50
MOST_FLOOR = 0.5
"""Above it there are no two independent chances, up and down, of which one alone comes true that often."""
SMALLEST = 2.0**-149
"""The least float32 above 0."""


@dataclass(frozen=True)
class Evidence(Compressor):
    """q_i = sign(delta_i) (floor(|delta_i| / D) + b_i), b_i = 1 with the probability of the fraction; sent: D q_i.

    One step D for the whole message, the smallest whose message keeps the budget. It follows from the changes alone,
    not from chance: given D, E[D q_i] = delta_i exactly, with variance D^2 f_i (1 - f_i). No client remembers anything.
    """

    budget: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005
    """Bytes of a message as a share of FedAvg's, all weights of the model as they are."""
    bytes: Annotated[int, Field(ge=1)] | None = None
    """Bytes of a message, instead of the share."""
    seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    """Seconds of a message on the client's own uplink, instead of both."""
    floor: Annotated[float, Field(ge=0.0, le=MOST_FLOOR)] = 0.0
    """Every weight of the rows kept is sent with at least this probability, also one that did not change."""

    def for_message(self, room: Room) -> Within:
        """This budget as bytes for the parts of one message."""
        if self.seconds is not None:
            if room.uplink is None:
                raise UpdateError(
                    "a budget in seconds needs the client's uplink, which is not known here; state `bytes` or `budget`"
                )
            limit = self.seconds * room.uplink
        else:
            limit = float(self.budget * room.dense if self.bytes is None else self.bytes)
        return Within(limit, room.besides, self.floor)

    def compress(
        self,
        delta: Float32,
        where: IntArray,
        segments: Sequence[Segment],
        state: ClientState,
        round_: int,
        stream: np.random.Generator,
    ) -> tuple[Payload, ClientState]:
        pieces(segments, "model", round_)  # refuses an empty set
        room = Room.guessed(int(where[-1]) + 1)
        return self.for_message(room).compress(delta, where, segments, state, round_, stream)


@dataclass(frozen=True)
class Within(Compressor):
    """Evidence coding in a message of about `limit` bytes, `besides` of which are not for the parts."""

    limit: float
    besides: int
    floor: float = 0.0

    def compress(
        self,
        delta: Float32,
        where: IntArray,
        segments: Sequence[Segment],
        state: ClientState,
        round_: int,
        stream: np.random.Generator,
    ) -> tuple[Payload, ClientState]:
        (piece,) = pieces(segments, "model", round_)
        blocks = [(segment.rows, segment.size // segment.rows) for segment in segments if segment.size]
        change = np.ascontiguousarray(delta[piece], dtype=np.float32)
        largest = max(float(change.max()), -float(change.min()))
        if not math.isfinite(largest):
            raise UpdateError("the update holds NaN or infinite values")
        least = self.besides + FRAME + 4 + len(blocks) + ONE
        if self.limit < least:
            raise UpdateError(
                f"a budget of {self.limit:.0f} bytes is below the {least} bytes that a message with one weight may take"
            )
        most = 8 * (CEILING * self.limit - self.besides - FRAME) / CODER - ENDS
        room = 8 * (self.limit - self.besides - FRAME)
        aim = min(8 * (AIM * self.limit - self.besides - FRAME), room - ENDS - CHANCE * math.sqrt(room))
        return Payload((Search(change, blocks, aim, most, largest, self.floor).part(stream),), difference=True), state


@dataclass(frozen=True)
class Search:
    """The step whose message takes about `aim` bits, and a message of at most `most`."""

    change: Float32
    blocks: list[tuple[int, int]]
    aim: float
    most: float
    largest: float
    floor: float = 0.0

    def part(self, stream: np.random.Generator) -> Multiples:
        """The changes rounded; where chance made that too long, again with a longer step and new draws."""
        if self.largest == 0:
            nothing = np.zeros(0, dtype=np.int64)
            return Multiples(len(self.change), np.float32(0), nothing, nothing.astype(np.int32))
        sums = masses(self.change)
        step = self.step(sums)
        for _ in range(RETRIES):
            part = self.rounded(sums, step, int(stream.integers(0, 2**63)))
            bits = multiples_bits(part, self.blocks)
            if bits <= self.most:
                return part
            step *= max(bits / self.aim, 1.02)
        raise UpdateError(f"no step was found that keeps {self.most / 8:.0f} bytes")

    def step(self, sums: FloatArray) -> float:
        """D: what an update of this mean size without structure would need, corrected by what pilots take."""
        mean, size = float(sums.sum()) / len(self.change), len(self.change)
        least = max(self.largest / (MOST_MULTIPLE - 1), SMALLEST)
        most = max(mean * size, least)  # one entry on average
        left = mean_multiple(self.aim / (size * USUAL)) - self.floor  # by what is sent whatever has changed
        step, before = mean / left if left > 0 else most, (0.0, 0.0)
        slope = math.log(entropy(1.01 * mean / step + self.floor) / entropy(mean / step + self.floor)) / math.log(1.01)
        if least < step < most:
            step *= math.exp(math.log(self.bits_by_some_rows(step, mean) / self.aim) / slope)
        for _ in range(PILOTS):
            step = min(max(step, least), most)
            bits = multiples_bits(self.rounded(sums, step, PILOT_KEY), self.blocks)
            if self.floor and step == most and bits > self.most:
                raise UpdateError(self._no_room(bits))
            over = math.log(bits / self.aim)
            if (step == least and over <= 0) or (step == most and over >= 0):
                break
            here = math.log(step), over
            if before != (0.0, 0.0) and here[0] != before[0]:
                slope = min(max((before[1] - over) / (here[0] - before[0]), SLOPES[0]), SLOPES[1])
            before, step = here, step * math.exp(over / slope)
            if abs(over) < NEAR:
                break
        return min(max(step, least), most)

    def bits_by_some_rows(self, step: float, mean: float) -> float:
        """About how many bits a message takes, to a few percent; `aim` where some rows are too few, or no less work."""
        parts, blocks, start = [], [], 0
        for rows, columns in self.blocks:
            own = self.change[start : start + rows * columns].reshape(rows, columns)
            start += rows * columns
            parts.append(own[APART // 2 :: APART] if rows >= MANY else own)
            blocks.append((len(parts[-1]), columns))
        some = replace(self, change=np.concatenate([own.ravel() for own in parts]), blocks=blocks)
        sums = masses(some.change)
        entries = float(sums.sum()) / step + self.floor * len(some.change)
        if entries < ENOUGH or 2 * len(some.change) > len(self.change):
            return self.aim
        bits = multiples_bits(some.rounded(sums, step, PILOT_KEY), blocks)
        return bits * (mean / step + self.floor) * len(self.change) / entries

    def _no_room(self, bits: float) -> str:
        return (
            f"a floor of {self.floor:g} sends {self.floor * len(self.change):,.0f} weights whatever has changed, about "
            f"{bits / 8:,.0f} bytes where a budget leaves {self.most / 8:,.0f}; lower the floor or raise the budget"
        )

    def rounded(self, sums: FloatArray, step: float, key: int) -> Multiples:
        """The changes as multiples of a step."""
        sent = np.float32(step)
        if self.floor:
            positions, multiples = rounded_with_decoys(self.change, float(sent), self.floor, key)
        else:
            positions, multiples = rounded(self.change, sums, float(sent), key)
        if float(sent) * float(np.abs(multiples).max(initial=0)) > LARGEST:
            raise UpdateError("the update is too large for multiples of a float32")
        return Multiples(len(self.change), sent, positions, multiples)


def entropy(mean: float) -> float:
    """Bits of a whole number of random sign whose size is geometric with this mean."""
    return (1 + mean) * math.log2(1 + mean) - mean * math.log2(mean) + mean / (1 + mean)


@lru_cache(maxsize=256)
def mean_multiple(bits: float) -> float:
    """The inverse: which mean size takes this many bits."""
    low, high = 1e-15, 1e6
    while high > 1.0001 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if entropy(middle) < bits else (low, middle)
    return low
