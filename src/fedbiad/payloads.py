"""What a client sends of the entries it keeps: one or more parts, each a kind of encoding of consecutive entries.

Kept entries stand in the order of the layout: parameter by parameter, each in C order. A part knows how many entries it
covers, their values on arrival and its nominal size by the paper's count (32-bit values, 64-bit positions).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray

Float32 = npt.NDArray[np.float32]

VALUE_BITS = 32
POSITION_BITS = 64
"""The paper counts 32 bits a value and 64 bits a position."""
LARGEST = float(np.finfo(np.float32).max)
MOST_MULTIPLE = 0x7FFF
"""Steps of one entry, at most."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Every value, exactly."""

    entries: Float32

    @property
    def size(self) -> int:
        """Entries covered."""
        return len(self.entries)

    @property
    def paper_bits(self) -> int:
        """Nominal size."""
        return VALUE_BITS * self.size

    def values(self) -> Float32:
        """The entries on arrival [size]."""
        return self.entries


@dataclass(frozen=True, eq=False)
class Half:
    """Every value in half precision."""

    entries: npt.NDArray[np.float16]

    @property
    def size(self) -> int:
        """Entries covered."""
        return len(self.entries)

    @property
    def paper_bits(self) -> int:
        """Nominal size."""
        return VALUE_BITS // 2 * self.size

    def values(self) -> Float32:
        """The entries on arrival [size]."""
        return self.entries.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Sparse:
    """Some entries exactly, all others 0. Positions ascend strictly."""

    size: int
    positions: IntArray
    entries: Float32

    @property
    def paper_bits(self) -> int:
        """Nominal size."""
        return (POSITION_BITS + VALUE_BITS) * len(self.positions)

    def values(self) -> Float32:
        """The entries on arrival [size]."""
        full = np.zeros(self.size, dtype=np.float32)
        full[self.positions] = self.entries
        return full


@dataclass(frozen=True, eq=False)
class Ternary:
    """Some entries as plus or minus one common magnitude, all others 0. Positions ascend strictly."""

    size: int
    positions: IntArray
    positive: npt.NDArray[np.bool_]
    magnitude: np.float32

    @property
    def paper_bits(self) -> int:
        """Nominal size."""
        return (POSITION_BITS + 1) * len(self.positions) + VALUE_BITS

    def values(self) -> Float32:
        """The entries on arrival [size]."""
        full = np.zeros(self.size, dtype=np.float32)
        full[self.positions] = self.sent
        return full

    @property
    def sent(self) -> Float32:
        """The entries that are not 0 [positions]."""
        return _signed(self.positive, self.magnitude)


@dataclass(frozen=True, eq=False)
class Signs:
    """Every entry as plus or minus one common magnitude; without one, as a vote of plus or minus 1."""

    positive: npt.NDArray[np.bool_]
    magnitude: np.float32 | None = None

    @property
    def size(self) -> int:
        """Entries covered."""
        return len(self.positive)

    @property
    def paper_bits(self) -> int:
        """Nominal size."""
        return self.size + (0 if self.magnitude is None else VALUE_BITS)

    def values(self) -> Float32:
        """The entries on arrival [size]."""
        return _signed(self.positive, np.float32(1) if self.magnitude is None else self.magnitude)


def _signed(positive: npt.NDArray[np.bool_], magnitude: np.float32) -> Float32:
    """Plus or minus one magnitude; np.where takes several times as long."""
    return np.array([-magnitude, magnitude], dtype=np.float32).take(positive.view(np.uint8))


@dataclass(frozen=True, eq=False)
class Levels:
    """Every entry as a signed level of -steps .. steps, in units of norm / steps."""

    levels: npt.NDArray[np.int16]
    steps: int
    norm: np.float32

    @property
    def size(self) -> int:
        """Entries covered."""
        return len(self.levels)

    @property
    def paper_bits(self) -> int:
        """Nominal size: a sign and the bits of a level each."""
        return (1 + self.steps.bit_length()) * self.size + VALUE_BITS

    def values(self) -> Float32:
        """The entries on arrival [size]; one multiplication and one division, the same on every machine."""
        return self.levels.astype(np.float32) * self.norm / np.float32(self.steps)


@dataclass(frozen=True, eq=False)
class Multiples:
    """Some entries as whole multiples of one step, all others 0. Positions ascend strictly, no multiple is 0."""

    size: int
    step: np.float32
    positions: IntArray
    multiples: npt.NDArray[np.int32]
    outlines: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)
    """What the coder has found out about the entries when asked how long they are."""

    @property
    def paper_bits(self) -> int:
        """Nominal size: a position and a sign each, a value where it is more than one step, and the step."""
        larger = int(np.count_nonzero(np.abs(self.multiples) > 1))
        return (POSITION_BITS + 1) * len(self.positions) + VALUE_BITS * larger + VALUE_BITS

    def values(self) -> Float32:
        """The entries on arrival [size]; one multiplication, the same on every machine."""
        full = np.zeros(self.size, dtype=np.float32)
        full[self.positions] = self.multiples.astype(np.float32) * self.step
        return full


Part = Dense | Half | Sparse | Ternary | Signs | Levels | Multiples


@dataclass(frozen=True, eq=False)
class Payload:
    """The kept entries of one client: U_{r-1} in a request, the difference to it in a reply."""

    parts: tuple[Part, ...]
    difference: bool

    @property
    def size(self) -> int:
        """Entries covered."""
        size = 0
        for part in self.parts:
            size += part.size
        return size

    @property
    def paper_bits(self) -> int:
        """Nominal size."""
        return sum(part.paper_bits for part in self.parts)

    def values(self) -> Float32:
        """The entries on arrival [size]."""
        return np.concatenate([part.values() for part in self.parts]) if len(self.parts) > 1 else self.parts[0].values()
