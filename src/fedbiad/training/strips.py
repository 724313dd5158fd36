"""Products with samples that are mostly background, as pictures are: only what differs from it is multiplied.

A matrix is kept as strips of three rows: the columns in which one of the three differs from the background, and the
three differences there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.compiling import strict, strict_part
from fedbiad.training.products import STRIP, WIDTHS, strip_1, strip_16, strip_128

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

    def base(self, factor: FloatArray, bias: FloatArray | float = 0.0) -> FloatArray:
        """The bias, and what a row of nothing but background comes to; the factor is [columns, units]."""
        base: FloatArray = bias + _of_background(factor, self.background)
        return base

    def times(self, factor: FloatArray, base: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """The product with a factor [columns, units], of which `base` is known; and the bias."""
        if out is None:
            out = np.empty((self.shape[0], factor.shape[1]), factor.dtype)
        _multiply(self.starts, self.columns, self.values, factor, base, out)
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
        return cls(by_sample, Strips.of(np.ascontiguousarray(x.T), by_sample.background))

    @property
    def nbytes(self) -> int:
        """In memory."""
        return self.by_sample.nbytes + self.by_input.nbytes

    def back(self, a: FloatArray) -> FloatArray:
        """X^T A [inputs, units]."""
        return self.by_input.times(a, self.by_input.base(a))

    def add(self, a: FloatArray, weight: float, total: FloatArray) -> None:
        """total += weight X^T A, the same as of `back` to the bit."""
        own = self.by_input
        _accumulate(own.starts, own.columns, own.values, a, own.background, weight, total)


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
        # of a last, narrower strip some rows stand for others: never looked at
        x, y, z = matrix[STRIP * n], matrix[min(STRIP * n + 1, rows - 1)], matrix[min(STRIP * n + 2, rows - 1)]
        for j in range(width):
            differs[j] = (x[j] != empty) | (y[j] != empty) | (z[j] != empty)
        for j in range(width):
            columns[at] = j  # kept only if it differs: no branch to guess
            at += differs[j]
        starts[n + 1] = at
    values = np.empty((at, STRIP), matrix.dtype)
    for n in range(strips):
        x, y, z = matrix[STRIP * n], matrix[min(STRIP * n + 1, rows - 1)], matrix[min(STRIP * n + 2, rows - 1)]
        for k in range(starts[n], starts[n + 1]):
            j = columns[k]
            values[k, 0], values[k, 1], values[k, 2] = x[j] - empty, y[j] - empty, z[j] - empty
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
def _strip(
    columns: Columns, values: FloatArray, rows: IntArray, factor: FloatArray, base: FloatArray, weight: float | None,
    into: FloatArray, row: int,
) -> None:  # fmt: skip
    """The three rows of `into` from `row` on = base + strip x factor; if there is a weight, += weight x that."""
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
    starts: IntArray, columns: Columns, values: FloatArray, factor: FloatArray, base: FloatArray, out: FloatArray
) -> None:
    """out = base + strips x factor."""
    rows, whole = np.arange(STRIP), len(out) // STRIP
    for n in range(whole):
        own = slice(starts[n], starts[n + 1])
        _strip(columns[own], values[own], rows, factor, base, None, out, STRIP * n)
    if whole < len(starts) - 1:  # a last, narrower strip
        room = np.empty((STRIP, len(base)), base.dtype)
        _strip(columns[starts[whole] :], values[starts[whole] :], rows, factor, base, None, room, 0)
        out[STRIP * whole :] = room[: len(out) - STRIP * whole]


@strict
def _accumulate(
    starts: IntArray, columns: Columns, values: FloatArray, factor: FloatArray, background: float, weight: float,
    total: FloatArray,
) -> None:  # fmt: skip
    """total += weight x (what the background comes to + strips x factor)."""
    rows, whole = np.arange(STRIP), len(total) // STRIP
    base, w = _of_background(factor, background), total.dtype.type(weight)
    for n in range(whole):
        own = slice(starts[n], starts[n + 1])
        _strip(columns[own], values[own], rows, factor, base, w, total, STRIP * n)
    if whole < len(starts) - 1:
        room = np.empty((STRIP, len(base)), base.dtype)
        _strip(columns[starts[whole] :], values[starts[whole] :], rows, factor, base, None, room, 0)
        for r in range(len(total) - STRIP * whole):
            for j in range(len(base)):
                total[STRIP * whole + r, j] += w * room[r, j]
