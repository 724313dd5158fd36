"""The parts of a payload, one after the other; each begins with one byte for its kind and how it is coded."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbiad.coding.multiples import get_multiples, put_multiples
from fedbiad.coding.positions import Blocks, get_positions, put_positions
from fedbiad.coding.sink import Sink, varint
from fedbiad.coding.source import Source
from fedbiad.coding.values import get_bits, get_floats, get_levels, put_bits, put_floats, put_levels
from fedbiad.errors import WireError
from fedbiad.payloads import LARGEST, Dense, Half, Levels, Multiples, Part, Payload, Signs, Sparse, Ternary

KINDS: tuple[type[Part], ...] = (Dense, Half, Sparse, Ternary, Signs, Levels, Multiples)
"""A part's kind is its place here: the lowest 3 bits of its first byte."""
KIND_BITS = 3
CODED, SECOND = 1, 2
"""How a part is coded, the bits above. Coded: positions by blocks, levels by their histogram, rare signs as positions.
Second: the exponents of sparse values by their histogram; a magnitude comes before signs."""
MODES = {
    Dense: 0, Half: 0, Sparse: CODED | SECOND, Ternary: CODED, Signs: CODED | SECOND, Levels: CODED, Multiples: 0,
}  # fmt: skip
"""The bits that mean something, by kind."""

MOST_STEPS = 0x7FFF
PARTS_PER_PARAMETER = 4
"""A message may cut every parameter into this many parts; more are refused before they take memory."""

KeptShapes = tuple[tuple[int, ...], ...]
"""The kept shape of every parameter, in order."""


def put_payload(sink: Sink, payload: Payload, shapes: KeptShapes) -> None:
    """Write how many parts there are, then each; all but the last say how many entries they cover."""
    kept, last = _entries(shapes), len(payload.parts) - 1
    if last < 0 or payload.size != kept:
        raise WireError(f"the payload has {payload.size} entries, the rows of the message keep {kept}")
    sink.put(varint(last))
    start = 0
    for i, part in enumerate(payload.parts):
        at, size = len(sink.plain), part.size
        sink.put(b"\0")
        if i < last:
            sink.put(varint(size))
        mode = _put_part(sink, part, blocks_of(shapes, start, start + size))
        sink.plain[at] = varint(KINDS.index(type(part)) | mode << KIND_BITS)
        start += size


def get_payload(source: Source, shapes: KeptShapes, difference: bool) -> Payload:
    """Read the parts that cover the kept entries."""
    kept = _entries(shapes)
    last = source.varint("the number of parts", PARTS_PER_PARAMETER * len(shapes) - 1)
    parts: list[Part] = []
    start = 0
    for i in range(last + 1):
        (first,) = source.take(1, "the kind of a part")
        size = source.varint("the size of a part", kept - start) if i < last else kept - start
        parts.append(_get_part(source, first, size, blocks_of(shapes, start, start + size)))
        start += size
    return Payload(tuple(parts), difference)


@lru_cache(maxsize=64)
def blocks_of(shapes: KeptShapes, start: int, stop: int) -> Blocks:
    """The matrices that entries start .. stop - 1 cover: of a parameter its first axis by all others, if all of it."""
    blocks, begin = list[tuple[int, int]](), 0
    for shape in shapes:
        end = begin + math.prod(shape)
        covered = min(end, stop) - max(begin, start)
        if covered > 0:
            whole = covered == end - begin and len(shape) > 1
            blocks.append((shape[0], covered // shape[0]) if whole else (1, covered))
        begin = end
    return tuple(blocks)


@lru_cache(maxsize=64)
def _entries(shapes: KeptShapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _put_part(sink: Sink, part: Part, blocks: Blocks) -> int:
    """Write one part's content; returns how it was coded."""
    match part:
        case Multiples():
            put_multiples(sink, part, blocks)
        case Dense():
            sink.array(part.entries, "<f4")
        case Half():
            sink.array(part.entries, "<f2")
        case Sparse():
            _same_length(part.positions, part.entries)
            by_blocks = put_positions(sink, part.positions, blocks)
            return CODED * by_blocks | SECOND * put_floats(sink, part.entries)
        case Ternary():
            _same_length(part.positions, part.positive)
            sink.float32(part.magnitude)
            by_blocks = put_positions(sink, part.positions, blocks)
            sink.put(np.packbits(part.positive, bitorder="little").tobytes())
            return CODED * by_blocks
        case Signs():
            if part.magnitude is not None:
                sink.float32(part.magnitude)
            return CODED * put_bits(sink, part.positive) | SECOND * (part.magnitude is not None)
        case Levels():
            most = max(int(part.levels.max(initial=0)), -int(part.levels.min(initial=0)), 1)
            if not most <= part.steps <= MOST_STEPS:
                raise WireError(f"levels up to {most} of {part.steps} steps; a message holds {MOST_STEPS} steps")
            sink.varint(part.steps)
            sink.float32(part.norm)
            return CODED * put_levels(sink, part.levels, part.steps)
    return 0


def _same_length(positions: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    if len(positions) != len(values):
        raise WireError(f"{len(values)} values for {len(positions)} positions")


def _get_part(source: Source, first: int, size: int, blocks: Blocks) -> Part:
    """Read one part of `size` entries."""
    number, mode = first & (1 << KIND_BITS) - 1, first >> KIND_BITS
    kind = KINDS[number] if number < len(KINDS) else None
    if kind is None or mode & ~MODES[kind]:
        raise WireError(f"unknown kind of part {first:#04x}")
    coded, second = bool(mode & CODED), bool(mode & SECOND)
    if kind is Dense:
        return Dense(source.array(size, "<f4", "a dense part"))
    if kind is Half:
        return Half(source.array(size, "<f2", "a half part"))
    if kind is Sparse:
        positions = get_positions(source, blocks, coded, room=source.left // (3 if second else 4))
        return Sparse(size, positions, get_floats(source, len(positions), second, "the values of a sparse part"))
    if kind is Ternary:
        magnitude = _magnitude(source)
        positions = get_positions(source, blocks, coded, room=8 * source.left)
        return Ternary(size, positions, get_bits(source, len(positions), False, "signs"), magnitude)
    if kind is Signs:
        common = _magnitude(source) if second else None
        return Signs(get_bits(source, size, coded, "signs"), common)
    return get_multiples(source, size, blocks) if kind is Multiples else _levels(source, size, coded)


def _levels(source: Source, size: int, coded: bool) -> Levels:
    steps = source.varint("the number of steps", MOST_STEPS, 1)
    norm = _magnitude(source)
    if float(norm) * steps > LARGEST:
        raise WireError(f"infinite values: {steps} steps of a norm of {norm}")
    return Levels(get_levels(source, size, steps, coded), steps, norm)


def _magnitude(source: Source) -> np.float32:
    value = source.float32("a magnitude")
    if value < 0:
        raise WireError(f"a magnitude is negative: {value}")
    return value
