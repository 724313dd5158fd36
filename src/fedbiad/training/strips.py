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
from fedbiad.training.strip_product import ROWS, WIDTHS, narrow, single, widest

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

    @property
    def share(self) -> float:
        """Of the matrix, that is in strips."""
        rows, columns = self.shape
        return len(self.columns) / max(1, -(-rows // ROWS) * columns)

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
        background = float(x[0, 0])  # of a picture, the corner
        if max(x.shape) > np.iinfo(np.uint16).max or not np.isfinite(background):
            return None
        if float(np.mean(x[::8] == background)) < 1 - PAYS:  # so that dense samples cost no more than a look
            return None
        found = cls(Strips.of(x, background), Strips.of(np.ascontiguousarray(x.T), background))
        return found if found.by_sample.share <= PAYS else None

    @property
    def background(self) -> float:
        """Of all samples."""
        return self.by_sample.background

    @property
    def nbytes(self) -> int:
        """In memory."""
        return self.by_sample.nbytes + self.by_input.nbytes

    def forward(self, first: FloatArray, base: FloatArray, out: FloatArray) -> None:
        """out = X first + bias, where first is [inputs, units] and `base` the bias and what the background adds."""
        own = self.by_sample
        _multiply(own.starts, own.columns, own.values, first, base, out)

    def back(self, a: FloatArray) -> FloatArray:
        """X^T A [inputs, units]."""
        own = self.by_input
        out = np.empty((own.shape[0], a.shape[1]), a.dtype)
        _multiply(own.starts, own.columns, own.values, a, own.background * _column_sums(a), out)
        return out

    def add(self, a: FloatArray, weight: float, total: FloatArray) -> None:
        """total += weight X^T A, the same as of `back` to the bit."""
        own = self.by_input
        _accumulate(own.starts, own.columns, own.values, a, own.background * _column_sums(a), weight, total)


def base_of(first: FloatArray, bias: FloatArray, background: float) -> FloatArray:
    """The bias and what a sample of nothing but background adds to it; `first` is [inputs, units]."""
    base: FloatArray = bias + background * _column_sums(first)
    return base


@strict
def _strips(matrix: FloatArray, background: float) -> tuple[IntArray, Columns, FloatArray]:
    empty = matrix.dtype.type(background)
    rows, width = matrix.shape
    strips = (rows + ROWS - 1) // ROWS
    starts = np.zeros(strips + 1, np.int64)
    columns = np.empty(strips * width + 1, np.uint16)
    differs = np.empty(width, np.uint8)
    at = 0
    for n in range(strips):
        # of a last, narrower strip some rows stand for others: never looked at
        x, y, z = matrix[ROWS * n], matrix[min(ROWS * n + 1, rows - 1)], matrix[min(ROWS * n + 2, rows - 1)]
        for j in range(width):
            differs[j] = (x[j] != empty) | (y[j] != empty) | (z[j] != empty)
        for j in range(width):
            columns[at] = j  # kept only if it differs: no branch to guess
            at += differs[j]
        starts[n + 1] = at
    values = np.empty((at, ROWS), matrix.dtype)
    for n in range(strips):
        x, y, z = matrix[ROWS * n], matrix[min(ROWS * n + 1, rows - 1)], matrix[min(ROWS * n + 2, rows - 1)]
        for k in range(starts[n], starts[n + 1]):
            j = columns[k]
            values[k, 0], values[k, 1], values[k, 2] = x[j] - empty, y[j] - empty, z[j] - empty
    return starts, columns[:at].copy(), values


@strict
def _column_sums(matrix: FloatArray) -> FloatArray:
    sums = np.zeros(matrix.shape[1], matrix.dtype)
    for i in range(len(matrix)):
        for j in range(len(sums)):
            sums[j] += matrix[i, j]
    return sums


@strict_part
def _strip(
    columns: Columns, values: FloatArray, start: int, stop: int, factor: FloatArray, base: FloatArray, room: FloatArray
) -> None:
    """room = base + strip x factor [3, units]."""
    units = len(base)
    for r in range(ROWS):
        for j in range(units):
            room[r, j] = base[j]
    at = 0
    while at + WIDTHS[0] <= units:
        widest(columns, values, start, stop, factor, room, at)
        at += WIDTHS[0]
    while at + WIDTHS[1] <= units:
        narrow(columns, values, start, stop, factor, room, at)
        at += WIDTHS[1]
    while at < units:
        single(columns, values, start, stop, factor, room, at)
        at += 1


@strict
def _multiply(
    starts: IntArray, columns: Columns, values: FloatArray, factor: FloatArray, base: FloatArray, out: FloatArray
) -> None:
    room = np.empty((ROWS, len(base)), base.dtype)
    for n in range(len(starts) - 1):
        _strip(columns, values, starts[n], starts[n + 1], factor, base, room)
        for r in range(min(ROWS, len(out) - ROWS * n)):
            for j in range(len(base)):
                out[ROWS * n + r, j] = room[r, j]


@strict
def _accumulate(
    starts: IntArray, columns: Columns, values: FloatArray, factor: FloatArray, base: FloatArray, weight: float,
    total: FloatArray,
) -> None:  # fmt: skip
    room = np.empty((ROWS, len(base)), base.dtype)
    w = total.dtype.type(weight)
    for n in range(len(starts) - 1):
        _strip(columns, values, starts[n], starts[n + 1], factor, base, room)
        for r in range(min(ROWS, len(total) - ROWS * n)):
            for j in range(len(base)):
                total[ROWS * n + r, j] += w * room[r, j]
