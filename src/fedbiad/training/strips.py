"""Products with samples that are mostly background, as pictures are: only what differs from it is multiplied.

A matrix is kept as strips of two rows: the columns in which one of the two differs from the background, and the two
differences there. A compiled function is told where the strips of many clients stand in memory: one call for a
block of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from numba import carray  # type: ignore[attr-defined]

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.compiling import strict, strict_part
from fedbiad.training.products import STRIP, WIDTHS, pointer, strip_1, strip_16, strip_128

PAYS = 0.55
"""Strips that hold a larger share of a matrix than this are not faster than a product with all of it."""

Columns = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Strips:
    """A matrix as `background` and its strips, one after another."""

    shape: tuple[int, int]
    background: float
    starts: IntArray
    columns: Columns
    values: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray, background: float) -> Strips:
        """All of `matrix`."""
        return cls((matrix.shape[0], matrix.shape[1]), background, *_strips(matrix, background))

    @classmethod
    def of_samples(cls, x: FloatArray) -> Strips | None:
        """Of samples [samples, inputs]; None where multiplying with all of them is as fast."""
        background = float(x[0, 0])  # of a picture, the corner
        if max(x.shape) > np.iinfo(np.uint16).max or not np.isfinite(background):
            return None
        if float(np.mean(x[::8] == background)) < 1 - PAYS:  # so that dense samples cost no more than a look
            return None
        found = cls.of(x, background)
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
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes

    @cached_property
    def told(self) -> tuple[int, ...]:
        """For compiled functions: how many rows there are, and where the arrays stand."""
        return (self.shape[0], *(part.ctypes.data for part in (self.starts, self.columns, self.values)))


@dataclass(frozen=True)
class Picture:
    """A client's samples X [samples, inputs], by samples for X U and by inputs for A^T X."""

    by_sample: Strips
    by_input: Strips

    @classmethod
    def of(cls, x: FloatArray) -> Picture | None:
        """None where multiplying with all of X is as fast."""
        by_sample = Strips.of_samples(x)
        if by_sample is None:
            return None
        by_input = torch.from_numpy(x).T.contiguous().numpy()  # numpy takes many times as long to turn a matrix
        return cls(by_sample, Strips.of(by_input, by_sample.background))

    @property
    def nbytes(self) -> int:
        """In memory."""
        return self.by_sample.nbytes + self.by_input.nbytes

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
    chosen, like = np.array(list(matrices)), next(iter(matrices.values())).values
    places = factors.ctypes.data + factors.strides[0] * chosen
    told = np.array([own.told for own in matrices.values()])
    _multiply(told, like, places, _bases(matrices, factors, biases), begins[chosen], out)


def _bases(matrices: Mapping[int, Strips], factors: FloatArray, biases: FloatArray) -> FloatArray:
    """The bias, and what a row of nothing but background comes to, made once for all that have the same."""
    same, known = factors.strides[0] == 0 == biases.strides[0], dict[tuple[int, float], FloatArray]()
    keys = {k: (0 if same else k, own.background) for k, own in matrices.items()}
    for k, key in keys.items():
        if key not in known:
            known[key] = biases[k] + _of_background(factors[k], key[1])
    return np.stack([known[key] for key in keys.values()])


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
    told = np.array([own.by_input.told for own in pictures])
    backgrounds = np.array([own.by_input.background for own in pictures])
    _accumulate(told, backgrounds, pictures[0].by_input.values, a, spans, pattern, weights, total)


@strict
def _strips(matrix: FloatArray, background: float) -> tuple[IntArray, Columns, FloatArray]:
    empty = matrix.dtype.type(background)
    rows, width = matrix.shape
    strips = (rows + STRIP - 1) // STRIP
    starts = np.zeros(strips + 1, np.int64)
    columns = np.empty(strips * width + 1, np.uint16)
    differs = np.empty(width, np.uint8)
    at = 0
    for n in range(strips):
        # of a last, narrower strip the second row is the first: never looked at
        x, y = matrix[STRIP * n], matrix[min(STRIP * n + 1, rows - 1)]
        for j in range(width):
            differs[j] = (x[j] != empty) | (y[j] != empty)
        for j in range(width):
            columns[at] = j  # kept only if it differs: no branch to guess
            at += differs[j]
        starts[n + 1] = at
    values = np.empty((at, STRIP), matrix.dtype)
    for n in range(strips):
        x, y = matrix[STRIP * n], matrix[min(STRIP * n + 1, rows - 1)]
        for k in range(starts[n], starts[n + 1]):
            j = columns[k]
            values[k, 0], values[k, 1] = x[j] - empty, y[j] - empty
    return starts, columns[:at].copy(), values


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
def _opened(told: IntArray, like: FloatArray) -> tuple[int, IntArray, Columns, FloatArray]:
    """Rows, starts, columns and values as `Strips.told` tells them."""
    strips = (told[0] + STRIP - 1) // STRIP
    starts = carray(pointer(told[1], told), (strips + 1,))
    columns = carray(pointer(told[2], np.empty(0, np.uint16)), (starts[strips],))
    return told[0], starts, columns, carray(pointer(told[3], like), (starts[strips], STRIP))


@strict_part
def _strip(
    columns: Columns, values: FloatArray, rows: IntArray, factor: FloatArray, base: FloatArray, weight: float | None,
    into: FloatArray, row: int,
) -> None:  # fmt: skip
    """The rows of `into` from `row` on = base + strip x factor; if there is a weight, += weight x that."""
    units, terms = len(base), len(columns)
    at = 0
    while at + WIDTHS[0] <= units:
        strip_128(values, rows, STRIP, terms, factor, columns, base, weight, into, row, at)
        at += WIDTHS[0]
    while at + WIDTHS[2] <= units:
        strip_16(values, rows, STRIP, terms, factor, columns, base, weight, into, row, at)
        at += WIDTHS[2]
    while at < units:
        strip_1(values, rows, STRIP, terms, factor, columns, base, weight, into, row, at)
        at += 1


@strict
def _multiply(
    told: IntArray, like: FloatArray, factors: IntArray, bases: FloatArray, begins: IntArray, out: FloatArray
) -> None:
    """out = base + strips x factor, of every matrix; `factors` is where they stand."""
    both, room = np.arange(STRIP), np.empty((STRIP, out.shape[1]), out.dtype)
    for m in range(len(told)):
        rows, starts, columns, values = _opened(told[m], like)
        base, own, whole = bases[m], out[begins[m] : begins[m] + rows], rows // STRIP
        factor = carray(pointer(factors[m], out), (1, len(base)))  # as many rows as there are columns
        for n in range(whole):
            part = slice(starts[n], starts[n + 1])
            _strip(columns[part], values[part], both, factor, base, None, own, STRIP * n)
        if STRIP * whole < rows:  # a last, narrower strip
            part = slice(starts[whole], starts[whole + 1])
            _strip(columns[part], values[part], both, factor, base, None, room, 0)
            own[STRIP * whole :] = room[: rows - STRIP * whole]


@strict
def _accumulate(
    told: IntArray, backgrounds: FloatArray, like: FloatArray, a: FloatArray, spans: IntArray, pattern: Pattern,
    weights: FloatArray, total: FloatArray,
) -> None:  # fmt: skip
    """total += weight x (what the background comes to + strips x A), of every matrix."""
    both, room = np.arange(STRIP), np.empty((STRIP, a.shape[1]), a.dtype)
    for m in range(len(told)):
        rows, starts, columns, values = _opened(told[m], like)
        factor, w = a[spans[m, 0] : spans[m, 1]], total.dtype.type(weights[m])
        if not pattern[m].all():
            factor = factor * pattern[m]  # a unit that is not held adds nothing
        base, whole = _of_background(factor, backgrounds[m]), rows // STRIP
        for n in range(whole):
            part = slice(starts[n], starts[n + 1])
            _strip(columns[part], values[part], both, factor, base, w, total, STRIP * n)
        if STRIP * whole < rows:
            part = slice(starts[whole], starts[whole + 1])
            _strip(columns[part], values[part], both, factor, base, None, room, 0)
            for r in range(rows - STRIP * whole):
                for j in range(len(base)):
                    total[STRIP * whole + r, j] += w * room[r, j]
