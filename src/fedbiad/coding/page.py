"""The two streams of a message for compiled code: counts among plain bytes, and the range coder.

A count that cannot be is noted as trouble, and -1 read in its place: compiled code ends there, `WireError` says why.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import IntArray
from fedbiad.coding.range_coder import STATE, Coder, Words
from fedbiad.compiling import strict, strict_part

Marks = npt.NDArray[np.uint8]

MAX_VARINT = 9
"""Bytes; 7 bits each: counts below 2^63."""
AT, KIND, WHAT, VALUE, LEAST, MOST = range(STATE, STATE + 6)
"""What stands behind a coder's state: where the next plain byte is; the trouble, if any, and what it is about."""
OUTSIDE, TRUNCATED, LONG, WASTEFUL, MODE, CELLS, UNFIT_LEVEL = range(1, 8)
LAST, OFTEN, MISSING, UNFIT_SIGN, SPARE, STREAM = range(8, 14)
ENTRIES, MODES, LEVEL, LEVELS, CLASS, CONTEXT, SIGNS, GREATEST, MAGNITUDES = range(9)
NAMES = (
    "the number of entries", "how a block is coded", "the greatest level", "levels", "the entries of a class",
    "the signs of a context", "signs", "the greatest magnitude", "magnitudes",
)  # fmt: skip
REASONS = {
    OUTSIDE: "impossible count: {what} is {value}, not within {least} .. {most}",
    TRUNCATED: "truncated: {what} takes {value} bytes, {most} are left",
    LONG: f"impossible count: {{what}} has more than {MAX_VARINT} bytes",
    WASTEFUL: "{what} is not written in the fewest bytes",
    MODE: "unknown way of coding a block {value:#04x}",
    CELLS: "{value} entries in {most} cells",
    UNFIT_LEVEL: "a row or column has more or fewer entries than its level says",
    LAST: "{what} end with a symbol that does not occur",
    OFTEN: "{what} do not occur as often as was announced",
    MISSING: "{value} signs are missing",
    UNFIT_SIGN: "signs do not fit their contexts",
    SPARE: "signs are followed by bits that mean nothing",
    STREAM: "the coded stream is invalid: there is no such symbol, or positions run past the end",
}


class Page(NamedTuple):
    """The range coder, with the place among the plain bytes; its words; the plain bytes."""

    coder: Coder
    words: Words
    plain: Marks


@strict_part
def place_of(page: Page) -> IntArray:
    """The coder's array for what is no state of it."""
    return page.coder.view(np.int64)


def reason(coder: Coder) -> str:
    """The trouble in words."""
    kind, what, value, least, most = coder[KIND : MOST + 1].tolist()
    return REASONS[kind].format(what=NAMES[what], value=value, least=least, most=most)


@strict
def trouble(page: Page, kind: int, what: int = 0, value: int = 0, least: int = 0, most: int = 0) -> int:
    """Note what cannot be; the first counts."""
    place = place_of(page)
    if place[KIND] == 0:
        place[KIND], place[WHAT], place[VALUE], place[LEAST], place[MOST] = kind, what, value, least, most
    return -1


@strict
def put_count(page: Page, count: int) -> None:
    """An unsigned count, 7 bits a byte, lowest first."""
    while count > 0x7F:
        put_byte(page, count & 0x7F | 0x80)
        count >>= 7
    put_byte(page, count)


@strict
def put_byte(page: Page, byte: int) -> None:
    """One plain byte."""
    place = place_of(page)
    page.plain[place[AT]] = byte
    place[AT] += 1


@strict
def left(page: Page) -> int:
    """Plain bytes not yet read."""
    found: int = len(page.plain) - place_of(page)[AT]
    return found


@strict
def get_byte(page: Page, what: int) -> int:
    """One plain byte."""
    if left(page) < 1:
        return trouble(page, TRUNCATED, what, 1, 0, 0)
    place = place_of(page)
    place[AT] += 1
    return int(np.int64(page.plain[place[AT] - 1]))


@strict
def get_count(page: Page, what: int, most: int, least: int = 0) -> int:
    """A count within bounds, in the fewest bytes."""
    value, shift, byte = 0, 0, 0x80
    while byte >= 0x80:
        if shift == 7 * MAX_VARINT:
            return trouble(page, LONG, what)
        byte = get_byte(page, what)
        if byte < 0:
            return -1
        value |= (byte & 0x7F) << shift
        shift += 7
    if byte == 0 and shift > 7:
        return trouble(page, WASTEFUL, what)
    if not least <= value <= most:
        return trouble(page, OUTSIDE, what, value, least, most)
    return value


@strict
def put_histogram(page: Page, counts: IntArray) -> None:
    """How often the symbols 0, 1, ... occur, but for the last."""
    for i in range(len(counts) - 1):
        put_count(page, counts[i])


@strict
def get_histogram(page: Page, what: int, total: int, counts: IntArray) -> int:
    """Read how often each symbol occurs among `total`, -1 if that cannot be; the last must."""
    rest = total
    for i in range(len(counts) - 1):
        counts[i] = get_count(page, what, rest)
        if counts[i] < 0:
            return -1
        rest -= counts[i]
    counts[-1] = rest
    return trouble(page, LAST, what) if rest == 0 else 0
