"""The states of a recurrent layer, from one time step to the next and back, compiled: all steps in one go.

A step's product has few rows, but reads all of its matrix. So that is laid out once for all steps, some columns after
others, the way it is read.
"""

from __future__ import annotations

import numpy as np

from fedbiad.arrays import FloatArray, IntArray
from fedbiad.columns import turn
from fedbiad.compiled import aligned
from fedbiad.compiling import fast, part, strict_part
from fedbiad.products import FEW, TILE, WIDTHS, few_64, row_64, tile_64
from fedbiad.vector_math import sigmoid, tanh

PANEL = WIDTHS[1]
"""Columns of a matrix that are laid out together."""
WHOLE_VECTORS = 64
"""As many numbers as a compiler's loop takes at a time."""


@fast
def run(
    gates: FloatArray, recurrent: FloatArray, rows: IntArray, h: FloatArray, c: FloatArray, squashed: FloatArray
) -> None:
    """All time steps from what the gates are given on, all [clients, time, batch, ...]; gates become i, f, g, o.

    `recurrent` is W_hh [clients, gates, units]; of a compact one `rows` [clients, kept] are the gates it moves.
    """
    clients, time, batch, units = squashed.shape
    panels, nothing, moved = _room(recurrent.shape[1], units, batch, gates)
    some = np.empty((batch, rows.shape[1]), gates.dtype)
    for k in range(clients):
        _lay_out_transposed(recurrent[k], panels)
        for t in range(time):
            _multiply(h[k, t], panels, nothing, moved)
            if rows.shape[1]:
                _gather(moved, some)
                for r in range(batch):
                    for g in range(rows.shape[1]):
                        gates[k, t, r, rows[k, g]] += some[r, g]
            else:
                _gather(moved, gates[k, t], True)
            _cell(gates[k, t], c[k, t], c[k, t + 1], squashed[k, t], h[k, t + 1])


@fast
def run_back(
    gates: FloatArray, recurrent: FloatArray, rows: IntArray, c: FloatArray, squashed: FloatArray, error: FloatArray
) -> None:
    """All time steps back, from the gradient of all h [clients, time, batch, units] to that of the gates, in place.

    Nothing flows into the state the layer began with.
    """
    clients, time, batch, units = squashed.shape
    panels, nothing, moved = _room(units, recurrent.shape[1], batch, gates)
    dh, dc = np.empty((batch, units), gates.dtype), np.empty((batch, units), gates.dtype)
    some = np.empty((batch, rows.shape[1]), gates.dtype)
    for k in range(clients):
        _lay_out(recurrent[k], panels)
        dh[:], dc[:] = 0, 0
        for t in range(time - 1, -1, -1):
            own = gates[k, t]
            _cell_gradient(own, c[k, t], squashed[k, t], error[k, t], dh, dc)
            for r in range(len(some)):
                for g in range(rows.shape[1]):
                    some[r, g] = own[r, rows[k, g]]
            _multiply(some if rows.shape[1] else own, panels, nothing, moved)
            _gather(moved, dh)


@strict_part
def _room(columns: int, terms: int, batch: int, like: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For a matrix [terms, columns] in panels, whatever is beyond its columns; a row of zeros; a product with it."""
    panels = -(-columns // PANEL)
    laid_out = aligned(panels * terms, PANEL, like).reshape(panels, terms, PANEL)
    return laid_out, np.zeros(PANEL, like.dtype), aligned(panels * batch, PANEL, like).reshape(panels, batch, PANEL)


@strict_part
def _lay_out(matrix: FloatArray, panels: FloatArray) -> None:
    """panels[p, k, j] = matrix[k, p PANEL + j]."""
    whole = matrix.shape[1] // PANEL
    for p in range(whole):
        first = p * PANEL
        for k in range(len(matrix)):
            for j in range(PANEL):  # of a length the compiler knows
                panels[p, k, j] = matrix[k, first + j]
    for k in range(len(matrix)):
        for j in range(whole * PANEL, matrix.shape[1]):
            panels[whole, k, j - whole * PANEL] = matrix[k, j]


@strict_part
def _lay_out_transposed(matrix: FloatArray, panels: FloatArray) -> None:
    """panels[p, k, j] = matrix[p PANEL + j, k]."""
    for p in range(len(panels)):
        own = matrix[p * PANEL : (p + 1) * PANEL]
        turn(own, len(own), own.shape[1], panels[p])


@part
def _multiply(left: FloatArray, panels: FloatArray, nothing: FloatArray, product: FloatArray) -> None:
    """product[p] = left x panels[p]."""
    rows, terms = len(left), panels.shape[1]  # none, if no row of a compact matrix is there
    places = left.shape[1] * np.arange(rows)
    for p in range(len(panels)):
        r = 0
        while r < rows:
            own, more = places[r:], rows - r
            if more >= 2 * TILE or more == TILE:
                tile_64(left, own, 1, terms, panels[p], None, nothing, None, product[p], r, None, 0)
                r += TILE
            elif more >= FEW:
                few_64(left, own, 1, terms, panels[p], None, nothing, None, product[p], r, None, 0)
                r += FEW
            else:
                row_64(left, own, 1, terms, panels[p], None, nothing, None, product[p], r, None, 0)
                r += 1


@part
def _gather(product: FloatArray, into: FloatArray, more: bool = False) -> None:
    """The columns of a product in panels side by side; if `more`, added to what is there."""
    for p in range(len(product)):
        first = p * PANEL
        last = min(first + PANEL, into.shape[1])
        for r in range(len(into)):
            own = product[p, r]
            for j in range(first, last):
                into[r, j] = into[r, j] + own[j - first] if more else own[j - first]


@part
def _cell(gates: FloatArray, before: FloatArray, c: FloatArray, squashed: FloatArray, h: FloatArray) -> None:
    """One time step from the gates' pre-activations on, all [batch, ...]; they become i, f, g, o."""
    batch, units = squashed.shape
    # rows of whole vectors, which nothing else writes to: what is left over, a compiler's loop takes one by one
    i, f, g, o, now, tanh_c = np.zeros((6, -(-units // WHOLE_VECTORS) * WHOLE_VECTORS), gates.dtype)
    for r in range(batch):
        own = gates[r]
        for j in range(units):
            i[j], f[j], g[j], o[j] = own[j], own[units + j], own[2 * units + j], own[3 * units + j]
            now[j] = before[r, j]
        for j in range(len(i)):
            i[j], f[j], o[j] = sigmoid(i[j]), sigmoid(f[j]), sigmoid(o[j])
        for j in range(len(i)):
            g[j] = tanh(g[j])
        for j in range(len(i)):
            now[j] = f[j] * now[j] + i[j] * g[j]
        for j in range(len(i)):
            tanh_c[j] = tanh(now[j])
        for j in range(units):
            own[j], own[units + j], own[2 * units + j], own[3 * units + j] = i[j], f[j], g[j], o[j]
            c[r, j], squashed[r, j], h[r, j] = now[j], tanh_c[j], o[j] * tanh_c[j]


@part
def _cell_gradient(
    gates: FloatArray, before: FloatArray, squashed: FloatArray, error: FloatArray, dh: FloatArray, dc: FloatArray
) -> None:
    """One time step back: from the gradient of h (from above `error`, from later `dh`) and of c to that of the gates.

    All are [batch, ...]; gates become the gradient of their pre-activations, `dc` the earlier one.
    """
    batch, units = squashed.shape
    one = squashed.dtype.type(1)
    for r in range(batch):
        own = gates[r]
        for j in range(units):
            i, f, g, o = own[j], own[units + j], own[2 * units + j], own[3 * units + j]
            tanh_c, now = squashed[r, j], dh[r, j] + error[r, j]
            cell = dc[r, j] + now * o * (one - tanh_c * tanh_c)
            own[j] = cell * g * i * (one - i)
            own[units + j] = cell * before[r, j] * f * (one - f)
            own[2 * units + j] = cell * i * (one - g * g)
            own[3 * units + j] = now * tanh_c * o * (one - o)
            dc[r, j] = cell * f
