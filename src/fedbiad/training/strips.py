"""Products with samples that are mostly background, as pictures are: only what differs from it is multiplied.

A matrix is kept as strips of two rows that are much alike: the columns in which one of the two differs from the
background, and the two differences there. Which rows are together changes no result: the other one's columns add 0. A
compiled function is told where the strips of many clients stand in memory: one call for a block of clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.compiling import strict, strict_part
from fedbiad.products import STRIP, WIDTHS, pointer, strip_1, strip_16, strip_64, strip_128
from fedbiad.training.bits import BITS, Words, bits_before, bits_set

PAYS = 0.55
"""Strips that hold a larger share of a matrix than this are not faster than a product with all of it."""

WINDOW = 64
"""Among so many samples the second one of a strip is looked for; of inputs, neighbours are alike enough."""

TOLD = 6
"""Numbers that compiled functions are told of a matrix."""

Numbers = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Strips:
    """A matrix as `background` and its strips, one after another; `rows` of it are together [strips, 2]."""

    shape: tuple[int, int]
    background: float
    rows: Numbers
    starts: IntArray
    columns: Numbers
    values: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray, background: float, window: int = 1) -> Strips:
        """All of `matrix`; the second row of a strip is one of the next `window` ones."""
        return cls((matrix.shape[0], matrix.shape[1]), background, *_strips(matrix, background, window))

    @classmethod
    def of_samples(cls, x: FloatArray) -> Strips | None:
        """Of samples [samples, inputs]; None where multiplying with all of them is as fast."""
        background = float(x[0, 0])  # of a picture, the corner
        if max(x.shape) > np.iinfo(np.uint16).max or not np.isfinite(background):
            return None
        if float(np.mean(x[::8] == background)) < 1 - PAYS:  # so that dense samples cost no more than a look
            return None
        found = cls.of(x, background, WINDOW)
        return found if found.share <= PAYS else None

    def times(self, factor: FloatArray, bias: FloatArray) -> FloatArray:
        """The product with a factor [columns, units], and the bias [units]."""
        out = np.empty((self.shape[0], factor.shape[1]), factor.dtype)
        multiply({0: self}, factor[None], bias[None], np.zeros(1, np.int64), out)
        return out

    @property
    def share(self) -> float:
        """Of the matrix, that is in strips."""
        rows, columns = self.shape
        return len(self.columns) / max(1, -(-rows // STRIP) * columns)

    @property
    def nbytes(self) -> int:
        """In memory."""
        return sum(part.nbytes for part in self._arrays)

    @property
    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self.rows, self.starts, self.columns, self.values

    @cached_property
    def told(self) -> IntArray:
        """For compiled functions: rows, where the arrays stand, and the bits of the background."""
        background = np.array(self.background, np.float64).view(np.int64)
        return np.array([self.shape[0], *(part.ctypes.data for part in self._arrays), background])


@dataclass(frozen=True)
class Picture:
    """A client's samples X [samples, inputs], by samples for X U and by inputs for A^T X."""

    by_sample: Strips
    by_input: Strips
    gram: FloatArray
    """X X^T + 1."""

    @classmethod
    def of(cls, x: FloatArray) -> Picture | None:
        """None where multiplying with all of X is as fast."""
        by_sample = Strips.of_samples(x)
        if by_sample is None:
            return None
        inputs = _turned(x, by_sample.background, -(-len(x) // WIDTHS[1]) * WIDTHS[1])
        gram = by_sample.times(inputs, np.ones(inputs.shape[1], inputs.dtype))[:, : len(x)]
        return cls(by_sample, Strips.of(inputs, by_sample.background), np.ascontiguousarray(gram))

    @property
    def nbytes(self) -> int:
        """In memory."""
        return self.by_sample.nbytes + self.by_input.nbytes + self.gram.nbytes

    def back(self, a: FloatArray) -> FloatArray:
        """X^T A [inputs, units]."""
        return self.by_input.times(a, np.zeros(a.shape[1], a.dtype))


def multiply(
    matrices: Mapping[int, Strips], factors: FloatArray, biases: FloatArray, begins: IntArray, out: FloatArray
) -> None:
    """Matrix k times factors[k] [columns, units], and biases[k], into the rows of `out` from begins[k] on."""
    if not matrices:
        return
    assert factors[0].flags.c_contiguous
    assert biases[0].flags.c_contiguous
    chosen, like = np.array(list(matrices)), next(iter(matrices.values())).values
    first, second = (whole.ctypes.data + whole.strides[0] * chosen for whole in (factors, biases))
    _multiply(_told(matrices.values()), like, first, factors.shape[1], second, begins[chosen], out)


def _told(matrices: Iterable[Strips]) -> IntArray:
    found = np.concatenate([own.told for own in matrices])
    return found.reshape(-1, TOLD)


def add_back(
    pictures: Sequence[Picture],
    a: FloatArray,
    spans: IntArray,
    pattern: Pattern,
    weights: FloatArray,
    total: FloatArray,
) -> None:
    """total += weight X^T A of each client, of the units it holds; the same as of `back` to the bit.

    A client's A is the rows of `a` from spans[client, 0] up to spans[client, 1].
    """
    if not pictures:
        return
    told, like = _told(own.by_input for own in pictures), pictures[0].by_input.values
    _accumulate(told, like, a, spans, pattern, weights, total)


@strict
def _strips(matrix: FloatArray, background: float, window: int) -> tuple[Numbers, IntArray, Numbers, FloatArray]:
    differs = _differs(matrix, matrix.dtype.type(background))
    together = _together(differs, window)
    words = differs.shape[1]
    starts = np.zeros(len(together) + 1, np.int64)
    for n in range(len(together)):
        starts[n + 1] = starts[n]
        for word in range(words):
            starts[n + 1] += bits_set(differs[together[n, 0], word] | differs[together[n, 1], word])
    columns, values = np.empty(starts[-1], np.uint16), np.empty((starts[-1], STRIP), matrix.dtype)
    at = 0
    for n in range(len(together)):
        i, j = together[n]
        for word in range(words):
            left = differs[i, word] | differs[j, word]
            while left:
                column = BITS * word + bits_before(left)
                columns[at] = column
                values[at, 0] = matrix[i, column] - matrix.dtype.type(background)
                values[at, 1] = matrix[j, column] - matrix.dtype.type(background)
                left &= left - np.uint64(1)
                at += 1
    return together, starts, columns, values


@strict
def _turned(x: FloatArray, background: float, width: int) -> FloatArray:
    """The transpose, filled up with background to a width at which products are fast."""
    turned = np.full((x.shape[1], width), x.dtype.type(background), x.dtype)
    for j in range(x.shape[1]):
        for i in range(len(x)):
            turned[j, i] = x[i, j]
    return turned


@strict_part
def _differs(matrix: FloatArray, background: float) -> Words:
    """A bit for each number of a matrix: whether it differs from the background."""
    rows, width = matrix.shape
    differs = np.empty((rows, (width + BITS - 1) // BITS), np.uint64)
    for i in range(rows):
        for word in range(differs.shape[1]):
            own, found = matrix[i, BITS * word : BITS * (word + 1)], np.uint64(0)
            for bit in range(len(own)):
                found |= np.uint64(own[bit] != background) << np.uint64(bit)
            differs[i, word] = found
    return differs


@strict_part
def _together(differs: Words, window: int) -> Numbers:
    """Rows in pairs: each, as its turn comes, with that of the next ones which differs least from it.

    An odd one is left to itself, at the end.
    """
    rows, words = differs.shape
    together = np.empty(((rows + 1) // STRIP, STRIP), np.uint16)
    near, taken, count = np.empty(window + 1, np.uint16), 0, 0
    for n in range(len(together)):
        while count <= window and taken < rows:
            near[count] = taken
            taken, count = taken + 1, count + 1
        least, best = BITS * words + 1, 0
        for c in range(1, count):
            apart = 0
            for word in range(words):
                apart += bits_set(differs[near[0], word] ^ differs[near[c], word])
            if apart < least:
                least, best = apart, c
        together[n, 0], together[n, 1] = near[0], near[best]
        for c in range(1, best):
            near[c - 1] = near[c]
        for c in range(best + 1, count):
            near[c - 2] = near[c]
        count -= STRIP
    return together


@strict
def _of_background(matrix: FloatArray, background: float) -> FloatArray:
    """The background times the sum of each column."""
    sums = np.zeros(matrix.shape[1], matrix.dtype)
    for i in range(len(matrix)):
        for j in range(len(sums)):
            sums[j] += matrix[i, j]
    for j in range(len(sums)):
        sums[j] *= matrix.dtype.type(background)
    return sums


@strict_part
def _opened(told: IntArray, like: FloatArray) -> tuple[int, Numbers, IntArray, Numbers, FloatArray, float]:
    """How many rows, which together, starts, columns, values and background as `Strips.told` tells them."""
    strips, small = (told[0] + STRIP - 1) // STRIP, np.empty(0, np.uint16)
    together = carray(pointer(told[1], small), (strips, STRIP))
    starts = carray(pointer(told[2], told), (strips + 1,))
    columns = carray(pointer(told[3], small), (starts[strips],))
    values = carray(pointer(told[4], like), (starts[strips], STRIP))
    return told[0], together, starts, columns, values, told[5:].view(np.float64)[0]


@strict_part
def _strip(
    columns: Numbers, values: FloatArray, places: IntArray, factor: FloatArray, base: FloatArray, weight: float | None,
    into: FloatArray, rows: Numbers,
) -> None:  # fmt: skip
    """These rows of `into` = base + strip x factor; if there is a weight, += weight x that."""
    units, terms = len(base), len(columns)
    at = 0
    while at + WIDTHS[0] <= units:
        strip_128(values, places, STRIP, terms, factor, columns, base, weight, into, 0, rows, at)
        at += WIDTHS[0]
    while at + WIDTHS[1] <= units:
        strip_64(values, places, STRIP, terms, factor, columns, base, weight, into, 0, rows, at)
        at += WIDTHS[1]
    while at + WIDTHS[2] <= units:
        strip_16(values, places, STRIP, terms, factor, columns, base, weight, into, 0, rows, at)
        at += WIDTHS[2]
    while at < units:
        strip_1(values, places, STRIP, terms, factor, columns, base, weight, into, 0, rows, at)
        at += 1


@strict
def _multiply(
    told: IntArray, like: FloatArray, factors: IntArray, columns: int, biases: IntArray, begins: IntArray,
    out: FloatArray,
) -> None:  # fmt: skip
    """out = bias + matrix x factor, of every matrix; `factors` and `biases` are where they stand."""
    places, units, base = np.arange(STRIP), out.shape[1], np.empty(out.shape[1], out.dtype)
    for m in range(len(told)):
        rows, together, starts, numbers, values, background = _opened(told[m], like)
        own, factor = out[begins[m] : begins[m] + rows], carray(pointer(factors[m], out), (columns, units))
        if m == 0 or (factors[m], biases[m], told[m, 5]) != (factors[m - 1], biases[m - 1], told[m - 1, 5]):
            bias, base = carray(pointer(biases[m], out), (units,)), _of_background(factor, background)
            for j in range(units):
                base[j] = bias[j] + base[j]
        for n in range(len(together)):  # an odd row is written twice
            part = slice(starts[n], starts[n + 1])
            _strip(numbers[part], values[part], places, factor, base, None, own, together[n])


@strict
def _accumulate(
    told: IntArray, like: FloatArray, a: FloatArray, spans: IntArray, pattern: Pattern, weights: FloatArray,
    total: FloatArray,
) -> None:  # fmt: skip
    """total += weight x (what the background comes to + strips x A), of every matrix."""
    places, room = np.arange(STRIP), np.empty((STRIP, a.shape[1]), a.dtype)
    for m in range(len(told)):
        rows, together, starts, columns, values, background = _opened(told[m], like)
        factor, w = a[spans[m, 0] : spans[m, 1]], total.dtype.type(weights[m])
        if not pattern[m].all():
            factor = factor * pattern[m]  # a unit that is not held adds nothing
        base = _of_background(factor, background)
        for n in range(rows // STRIP):
            part = slice(starts[n], starts[n + 1])
            _strip(columns[part], values[part], places, factor, base, w, total, together[n])
        if rows % STRIP:  # an odd row must be added once
            part = slice(starts[-2], starts[-1])
            _strip(columns[part], values[part], places, factor, base, None, room, places.astype(np.uint16))
            for j in range(len(base)):
                total[together[-1, 0], j] += w * room[0, j]
