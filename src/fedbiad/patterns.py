"""Dropping patterns beta: drawn uniformly with a fixed count, partly swapped, or taken as the top rows of a score.

`scope` says over what the count is fixed: "group" keeps round((1-p) n) rows of every row group (equal shapes over
clients, constant upload), "global" round((1-p) J) of all rows together (the literal reading of Z^S_N).

`luck` are the random numbers behind a pattern: independent, uniform in (0, 1), one for each row. Every function takes
one client [rows] or a block of them [clients, rows].
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.compiled import Keys
from fedbiad.rows import Layout

Scope = Literal["group", "global"]


class Swaps(NamedTuple):
    """A rule that compiled training can follow: every `interval` iterations, if a client's loss rose, it swaps rows."""

    interval: int  # tau; 0: never
    size: IntArray  # rows that a swap exchanges [clients]
    keys: Keys  # of the order in which they stand in line [clients]


NO_SWAPS = Swaps(0, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64))

HALF = 0.5 + 1e-9
"""Added before rounding down: the nearest whole number, halves up, also where a half is a rounding error short."""


def kept_count(rows: int, dropout_rate: float) -> int:
    """Rows held of `rows`: (1-p) n to the nearest whole number, at least one."""
    return max(1, _nearest((1.0 - dropout_rate) * rows))


def draw(layout: Layout, dropout_rate: float, luck: FloatArray, scope: Scope = "group") -> Pattern:
    """Patterns drawn uniformly from Z^S_N: exactly (1-p) of the rows held, those of most luck."""
    pattern = np.zeros(luck.shape, dtype=np.bool_)
    for rows in scopes(layout, scope):
        own = luck[..., rows]
        dropped = own.shape[-1] - kept_count(own.shape[-1], dropout_rate)
        held = np.argpartition(own, max(dropped - 1, 0), axis=-1)[..., dropped:]
        np.put_along_axis(pattern[..., rows], held, values=True, axis=-1)
    return pattern


def top(layout: Layout, score: FloatArray, dropout_rate: float, luck: FloatArray, scope: Scope = "group") -> Pattern:
    """The (1-p) n rows of highest score, ties broken by luck; all scores equal gives a uniform draw."""
    pattern = np.zeros(luck.shape, dtype=np.bool_)
    for rows in scopes(layout, scope):
        best_last = np.lexsort((luck[..., rows], score[..., rows]), axis=-1)
        held = best_last[..., -kept_count(best_last.shape[-1], dropout_rate) :]
        np.put_along_axis(pattern[..., rows], held, values=True, axis=-1)
    return pattern


def weighted(
    layout: Layout, weights: FloatArray, dropout_rate: float, luck: FloatArray, scope: Scope = "group"
) -> Pattern:
    """(1-p) n rows drawn one after another without replacement, each with probability proportional to its weight.

    By the Gumbel trick: the top rows of ln(weight) + Gumbel noise are distributed like such draws.
    """
    chances = np.log(np.maximum(weights, np.finfo(np.float64).tiny)) - np.log(-np.log(luck))
    return draw(layout, dropout_rate, chances, scope)


def line_up(layout: Layout, pattern: Pattern, order: IntArray, scope: Scope = "group") -> IntArray:
    """How many rows stand before each one in its line, if all stand in this `order` [clients, rows].

    Held rows stand in line to leave, dropped ones to come: two lines in every scope.
    """
    before, number = np.empty_like(order), np.argsort(order, axis=-1)
    for rows in scopes(layout, scope):
        own = pattern[..., rows]
        held_first = np.argsort(number[..., rows] + order.shape[-1] * ~own, axis=-1)
        place = np.argsort(held_first, axis=-1)
        before[..., rows] = np.where(own, place, place - own.sum(-1, keepdims=True))
    return before


def swap(
    layout: Layout, pattern: Pattern, before: IntArray, fraction: float, scope: Scope = "group"
) -> tuple[Pattern, IntArray]:
    """`fraction` of the held rows (at least one) exchanged for as many dropped ones; the lines afterwards.

    First in line goes first, to the end of the other line.
    """
    following, lines = pattern.copy(), before.copy()
    for rows in scopes(layout, scope):
        own, line = pattern[..., rows], before[..., rows]
        count, held = swapped_rows(own, fraction)[..., None], own.sum(-1, keepdims=True)
        goes, length = line < count, np.where(own, own.shape[-1] - held, held)  # of the other line
        following[..., rows] = own ^ goes
        lines[..., rows] = line - count + goes * length
    return following, lines


def swapped_rows(pattern: Pattern, fraction: float) -> IntArray:
    """How many rows of a pattern [clients, rows] a swap exchanges [clients]."""
    held = pattern.sum(-1)
    wanted = np.maximum(1, np.floor(fraction * held + HALF).astype(np.int64))
    count: IntArray = np.minimum(wanted, np.minimum(held, pattern.shape[-1] - held))
    return count


def scopes(layout: Layout, scope: Scope) -> list[slice]:
    """The ranges of rows over which a count is fixed."""
    return list(layout.ranges.values()) if scope == "group" else [slice(0, layout.num_rows)]


def _nearest(count: float) -> int:
    return math.floor(count + HALF)
