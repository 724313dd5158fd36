"""A client's state as bytes of a fixed length that tell whether they are whole."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xxhash

from fedbiad.arrays import ClientState

ALIGN = 64
HEAD = struct.Struct("<QQq40x")
"""Checksum of all that follows it, number of the write, client."""
CHECKED = 8
"""Where what the checksum is of begins."""


@dataclass(frozen=True)
class Form:
    """Name, type and shape of every array of a state: the same for all clients."""

    parts: tuple[tuple[str, str, tuple[int, ...]], ...]

    @staticmethod
    def of(state: ClientState) -> Form:
        """The form of this state, in whatever order its arrays are."""
        return Form(tuple((name, part.dtype.str, part.shape) for name, part in sorted(state.items())))

    @staticmethod
    def parse(line: bytes) -> Form:
        """What `line` says."""
        return Form(tuple((name, dtype, tuple(shape)) for name, dtype, shape in json.loads(line)))

    @cached_property
    def line(self) -> bytes:
        """The form as a line of text, padded so that what follows it is aligned."""
        text = json.dumps(self.parts).encode()
        return text.ljust(_aligned(len(text) + 1) - 1) + b"\n"

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where each array begins and ends in a record."""
        found, end = {}, HEAD.size
        for name, dtype, shape in self.parts:
            start = _aligned(end)
            end = start + np.dtype(dtype).itemsize * int(np.prod(shape))
            found[name] = slice(start, end)
        return found

    @cached_property
    def size(self) -> int:
        """Bytes of a record."""
        return _aligned(max((place.stop for place in self.places.values()), default=HEAD.size))

    def pack(self, state: ClientState, client: int, turn: int) -> bytearray:
        """A record of this state, of the write number `turn`."""
        record = bytearray(self.size)
        HEAD.pack_into(record, 0, 0, turn, client)
        for (name, dtype, shape), place in zip(self.parts, self.places.values(), strict=True):
            np.frombuffer(memoryview(record)[place], dtype).reshape(shape)[...] = state[name]
        HEAD.pack_into(record, 0, _checksum(record), turn, client)
        return record

    def unpack(self, record: bytearray) -> ClientState:
        """The state in a record; its arrays are views of it."""
        return {
            name: np.frombuffer(memoryview(record)[self.places[name]], dtype).reshape(shape)
            for name, dtype, shape in self.parts
        }

    def whole(self, record: bytearray) -> tuple[int, int] | None:
        """Number of the write and client of a record; None: it is not whole."""
        if len(record) != self.size:
            return None
        check, turn, client = HEAD.unpack_from(record)
        return (turn, client) if _checksum(record) == check else None


def _checksum(record: bytearray) -> int:
    return xxhash.xxh3_64_intdigest(memoryview(record)[CHECKED:])


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
