"""Dropping patterns beta: drawn uniformly with a fixed count, partly swapped, or taken as the top rows of a score.

`scope` says over what the count is fixed: "group" keeps round((1-p) n) rows of every row group (equal shapes over
clients, constant upload), "global" round((1-p) J) of all rows together (the literal reading of Z^S_N).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fedbiad.arrays import FloatArray, Pattern
from fedbiad.rows import Layout

Scope = Literal["group", "global"]


def kept_count(rows: int, dropout_rate: float) -> int:
    """Rows held of `rows`: (1-p) n to the nearest whole number, at least one."""
    return max(1, _nearest((1.0 - dropout_rate) * rows))


def draw(layout: Layout, dropout_rate: float, stream: np.random.Generator, scope: Scope = "group") -> Pattern:
    """One pattern [rows] drawn uniformly from Z^S_N: exactly (1-p) of the rows held."""
    return top(layout, np.zeros(layout.num_rows), dropout_rate, stream, scope)


def top(
    layout: Layout,
    score: FloatArray,
    dropout_rate: float,
    stream: np.random.Generator,
    scope: Scope = "group",
) -> Pattern:
    """The (1-p) n rows of highest score, ties broken at random; all scores equal gives a uniform draw."""
    pattern = np.zeros(layout.num_rows, dtype=np.bool_)
    for rows in scopes(layout, scope):
        ties = stream.permutation(rows.stop - rows.start)
        best_first = np.lexsort((ties, -score[rows]))
        held = best_first[: kept_count(len(ties), dropout_rate)]
        pattern[rows.start + held] = True
    return pattern


def weighted(
    layout: Layout, weights: FloatArray, dropout_rate: float, stream: np.random.Generator, scope: Scope = "group"
) -> Pattern:
    """(1-p) n rows drawn one after another without replacement, each with probability proportional to its weight.

    By the Gumbel trick: the top rows of ln(weight) + Gumbel noise are distributed like such draws.
    """
    chances = np.log(np.maximum(weights, np.finfo(np.float64).tiny)) + stream.gumbel(size=layout.num_rows)
    return top(layout, chances, dropout_rate, stream, scope)


def swap(
    layout: Layout, pattern: Pattern, fraction: float, stream: np.random.Generator, scope: Scope = "group"
) -> Pattern:
    """`fraction` of the held rows (at least one) exchanged for as many dropped ones, both drawn uniformly."""
    swapped = pattern.copy()
    for rows in scopes(layout, scope):
        held, dropped = np.flatnonzero(pattern[rows]), np.flatnonzero(~pattern[rows])
        wanted = max(1, _nearest(fraction * len(held)))
        count = min(wanted, len(held), len(dropped))
        swapped[rows.start + stream.permutation(held)[:count]] = False
        swapped[rows.start + stream.permutation(dropped)[:count]] = True
    return swapped


def scopes(layout: Layout, scope: Scope) -> list[slice]:
    """The ranges of rows over which a count is fixed."""
    return list(layout.ranges.values()) if scope == "group" else [slice(0, layout.num_rows)]


def _nearest(count: float) -> int:
    """The nearest whole number, halves up, also where a half is a rounding error short (0.7 x 45 = 31.499...)."""
    return math.floor(count + 0.5 + 1e-9)
