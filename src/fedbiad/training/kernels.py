"""The compiled local training of a network with one hidden layer, in its dual form: every client in one go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.columns import put_column, take_column, turn
from fedbiad.compiled import RowList, aligned, draw_uniforms, key_of_step, swap_rows
from fedbiad.compiling import fast, part, strict, strict_part
from fedbiad.patterns import Swaps
from fedbiad.products import (
    INNER,
    LANES,
    TILE,
    WIDTHS,
    inner_1_1,
    inner_tile,
    pointer,
    row_1,
    row_16,
    row_64,
    tile_1,
    tile_16,
    tile_64,
)
from fedbiad.training.bits import BITS, Words, bits_before
from fedbiad.training.places import Places, Units
from fedbiad.training.softmax import exponentials, scaled, shared

Goals = npt.NDArray[np.int32]
# All of it is one function to the compiler: a part that is called instead is another copy when it was just compiled
# than when it comes from the cache, and rounds differently.


class Course(NamedTuple):
    """What happens on the way, written down."""

    losses: FloatArray  # [clients, iterations]
    pattern: Pattern  # held by now [clients, units]
    held: IntArray  # for how many iterations [clients, units]
    changed: Pattern  # iterations after which the pattern changed [clients, iterations]


@fast
def train(
    held: Places, units: Units, grams: IntArray, b: FloatArray, targets: IntArray, ends: IntArray,
    visits: IntArray, scale: FloatArray, silent: Pattern, rate: float, batch: int, swaps: Swaps, course: Course,
    begins: bool,
) -> None:  # fmt: skip
    """Advance every client by the iterations of `course`, in place; if it `begins` with them, A is 0.

    Client k's samples stand before `ends[k]`: targets [samples]; its Gram matrix is at the address `grams[k]`. The
    output layer's bias is `b` [clients, classes]; logits of `silent` classes [clients, classes] are 0, and these learn
    nothing. `visits` [clients, iterations x batch] are samples of its own. Units that are not held wait in `units`;
    they swap only if it begins, and what those held then have learned is missing in `units` until they are put back.
    """
    clients, classes, places = held.units.w.shape
    p, a = held.units.p, held.units.a
    h, nothing = aligned(batch, places, p), np.zeros(places, p.dtype)
    e = np.zeros((classes, -(-batch // LANES) * LANES), p.dtype)  # a sample a lane; some may stay without one
    lanes, goal = np.empty((4, e.shape[1]), p.dtype), np.full(e.shape[1], -1, np.int32)
    samples, rows = np.arange(batch), e.shape[1] * np.arange(classes)  # where they begin in e
    seen, starts = np.empty(p.shape[0], np.uint32), np.empty(batch, np.int64)
    chosen, room = np.empty(batch, np.int64), np.empty((2, units.p.shape[1]), np.uint32)
    luck, place = np.empty(units.p.shape[1], np.float64), np.empty(units.p.shape[1], np.uint32)
    marks = np.zeros((2, -(-units.p.shape[1] // BITS)), np.uint64)
    mute, aside = np.empty(classes, np.uint32), b.copy()
    waiting_p, waiting_a, waiting_w = _room_to_wait(units, ends if swaps.interval else ends[:0])
    for k in range(clients):
        first, last = ends[k - 1] if k else 0, ends[k]
        size, count, swapped = last - first, held.taken[k], False
        check = 2 * swaps.interval if swaps.interval else -1  # the next one
        own_p, own_a, own_w, own_rows = p[first:last], a[first:last], held.units.w[k], held.rows[k]
        gram = carray(pointer(grams[k], p), (size, size))
        losses, own_b, own_targets, own_scale = course.losses[k], b[k], targets[first:last], scale[k]
        pairs = swaps.size[k] if swaps.interval else 0
        pattern, iterations, own_luck = course.pattern[k], course.held[k], luck[: 2 * pairs]
        met, muted = 0 if begins else _meet_all(size, seen), _listed(silent[k], mute)
        for v in range(len(losses)):
            _choose(visits[k], v * batch, own_targets, chosen, starts, goal)
            # pre-activations under U, and what A has moved since: it is 0 but for samples met
            _add_product(gram, starts, 1, met, own_a, seen, own_p, None, h, chosen, count)
            _logits(own_w, h, e, count)
            _mute(e, own_b, mute, muted)
            losses[v] = _descent(e, own_b, own_scale, goal, batch, rate, lanes)
            _mute(e, own_b, mute, muted)
            _add_product(e, samples, e.shape[1], classes, own_w, None, nothing, h, own_a, chosen, count)
            _add_product(e, rows, 1, batch, h, None, None, None, own_w, None, count)
            if met < size:
                met = _meet(chosen, seen, met)
            if v != check:
                continue
            check += swaps.interval
            if _rose(losses, v, swaps.interval):  # lines 18 to 26 of Algorithm 1
                course.changed[k, v] = True
                if not swapped:
                    swapped = True
                    _wait(units.p[first:last], units.w[k], waiting_p, waiting_a, waiting_w)
                    for j in range(count):
                        place[own_rows[j]] = j
                draw_uniforms(key_of_step(swaps.keys[k], v), own_luck)
                swap_rows(pattern, own_luck, pairs, room)
                _pair(room, pairs, place, marks)
                _swap(
                    room, pairs, own_rows, place, iterations, v + 1,
                    own_p, own_a, own_w, waiting_p, waiting_a, waiting_w,
                )  # fmt: skip
        _unmute(own_b, aside[k], mute, muted)
        _count_held(iterations, own_rows, count, len(losses))
        if swapped:
            turn(waiting_a, len(pattern), size, units.a[first:last])
            turn(waiting_w, len(pattern), classes, units.w[k])


@strict_part
def _room_to_wait(units: Units, ends: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For the numbers of units, unit by unit in whole vectors, of one client at a time of those before `ends`."""
    longest, dtype = 0, units.p.dtype
    for k in range(len(ends)):
        longest = max(longest, ends[k] - ends[k - 1] if k else ends[k])
    count = units.p.shape[1] if longest else 0
    samples, classes = -(-longest // LANES) * LANES, -(-units.w.shape[1] // LANES) * LANES
    return np.empty((count, samples), dtype), np.empty((count, samples), dtype), np.empty((count, classes), dtype)


@strict_part
def _wait(p: FloatArray, w: FloatArray, waiting_p: FloatArray, waiting_a: FloatArray, waiting_w: FloatArray) -> None:
    """All units of a client that has not begun, unit by unit: whoever comes is taken from there."""
    turn(p, len(p), p.shape[1], waiting_p)
    turn(w, len(w), w.shape[1], waiting_w)
    waiting_a[:] = 0


@strict_part
def _pair(room: RowList, pairs: int, place: RowList, marks: Words) -> None:
    """Of units that come and leave, first in lists 0 and 1, put those and the places of these in order.

    So `_exchange` pairs them, too. `marks` are 0 before and after: a bit for each unit, and for each place.
    """
    for n in range(pairs):
        _mark(marks, 0, room[0, n])
        _mark(marks, 1, place[room[1, n]])
    for kind in range(2):
        n = 0
        for word in range(marks.shape[1]):
            left = marks[kind, word]
            while left:
                room[kind, n] = BITS * word + bits_before(left)
                left &= left - np.uint64(1)
                n += 1
            marks[kind, word] = 0


@strict_part
def _mark(marks: Words, kind: int, which: int) -> None:
    marks[kind, which // np.uint32(BITS)] |= np.uint64(1) << np.uint64(which % np.uint32(BITS))


@strict_part
def _swap(
    room: RowList, pairs: int, rows: IntArray, place: RowList, iterations: IntArray, now: int,
    p: FloatArray, a: FloatArray, w: FloatArray, waiting_p: FloatArray, waiting_a: FloatArray, waiting_w: FloatArray,
) -> None:  # fmt: skip
    """The units of list 0 into the places of list 1, after `now` iterations; who leaves waits."""
    for n in range(pairs):
        put_column(waiting_p, room[0, n], p, room[1, n])
    for n in range(pairs):  # A last: it is what the next iteration reads first
        coming, at = room[0, n], room[1, n]
        leaving = rows[at]
        take_column(w, at, waiting_w, leaving)
        put_column(waiting_w, coming, w, at)
        take_column(a, at, waiting_a, leaving)
        put_column(waiting_a, coming, a, at)
        rows[at], place[coming] = coming, at
        iterations[leaving] += now
        iterations[coming] -= now


@strict_part
def _rose(losses: FloatArray, v: int, interval: int) -> bool:
    """Whether Eq. (loss_diff) is positive at the check after iteration v; `loss_trend`, compiled."""
    recent, before = 0.0, 0.0
    for i in range(interval):
        recent += losses[v + 1 - interval + i]
        before += losses[v + 1 - 2 * interval + i]
    return recent / interval - before / interval > 0


@strict_part
def _count_held(held: IntArray, rows: IntArray, count: int, iterations: int) -> None:
    for j in range(count):
        held[rows[j]] += iterations


@part
def _add_product(
    coefficients: FloatArray, places: IntArray, stride: int, terms: int, factors: FloatArray, chosen: RowList | None,
    base: FloatArray | None, gate: FloatArray | None, into: FloatArray, named: IntArray | None, held: int,
) -> None:  # fmt: skip
    """Rows of `into` += sum over n < terms of coefficients[places[r] + k stride], flat, times factors[k].

    k is n or chosen[n]; what `base`, `gate` and `named` mean is told in `products`.
    """
    r = 0
    while r < len(places):
        tile, at, own = r + TILE <= len(places), 0, places[r:]
        while at + WIDTHS[1] <= held:
            if tile:
                tile_64(coefficients, own, stride, terms, factors, chosen, base, gate, into, r, named, at)
            else:
                row_64(coefficients, own, stride, terms, factors, chosen, base, gate, into, r, named, at)
            at += WIDTHS[1]
        while at + WIDTHS[2] <= held:
            if tile:
                tile_16(coefficients, own, stride, terms, factors, chosen, base, gate, into, r, named, at)
            else:
                row_16(coefficients, own, stride, terms, factors, chosen, base, gate, into, r, named, at)
            at += WIDTHS[2]
        while at < held:
            if tile:
                tile_1(coefficients, own, stride, terms, factors, chosen, base, gate, into, r, named, at)
            else:
                row_1(coefficients, own, stride, terms, factors, chosen, base, gate, into, r, named, at)
            at += 1
        r += TILE if tile else 1


@strict_part
def _meet_all(size: int, seen: RowList) -> int:
    for i in range(size):
        seen[i] = i
    return size


@strict_part
def _meet(chosen: IntArray, seen: RowList, met: int) -> int:
    """Put what is new of the chosen samples among the first `met` of `seen`, in order; how many there are then."""
    for x in chosen:
        at = met
        while at > 0 and seen[at - 1] > x:
            at -= 1
        if at > 0 and seen[at - 1] == x:
            continue
        for i in range(met, at, -1):
            seen[i] = seen[i - 1]
        seen[at] = x
        met += 1
    return met


@part
def _logits(w: FloatArray, h: FloatArray, logits: FloatArray, held: int) -> None:
    """W h^T, without scale and bias."""
    batch, classes = len(h), len(w)
    whole = held - held % LANES
    for c in range(0, classes, INNER[0]):
        r = 0
        while c + INNER[0] <= classes and r + INNER[1] <= batch:
            inner_tile(w, h, c, r, whole, logits)
            r += INNER[1]
        while r < batch:
            for i in range(c, min(c + INNER[0], classes)):
                inner_1_1(w, h, i, r, whole, logits)
            r += 1
    for j in range(whole, held):
        for c in range(classes):
            for r in range(batch):
                logits[c, r] += h[r, j] * w[c, j]


@strict_part
def _choose(visits: IntArray, first: int, targets: IntArray, chosen: IntArray, starts: IntArray, goal: Goals) -> None:
    """The samples of the next batch, where their rows of the Gram matrix begin, and their classes."""
    for r in range(len(chosen)):
        chosen[r] = visits[first + r]
        starts[r], goal[r] = len(targets) * chosen[r], targets[chosen[r]]


@strict_part
def _listed(some: Pattern, found: RowList) -> int:
    """Which they are, and how many."""
    count = 0
    for c in range(len(some)):
        if some[c]:
            found[count] = c
            count += 1
    return count


@strict_part
def _mute(e: FloatArray, b: FloatArray, classes: RowList, count: int) -> None:
    """No logit, no bias and no error of these classes."""
    for n in range(count):
        b[classes[n]] = 0
        for r in range(e.shape[1]):
            e[classes[n], r] = 0


@strict_part
def _unmute(b: FloatArray, before: FloatArray, classes: RowList, count: int) -> None:
    for n in range(count):
        b[classes[n]] = before[classes[n]]


@strict_part
def _descent(
    e: FloatArray, b: FloatArray, scale: float, goal: Goals, batch: int, rate: float, lanes: FloatArray
) -> float:
    """The mean loss of logits scale e + b; b goes down its gradient, and e becomes what moves it down: -rate times it.

    Lanes without a sample, where `goal` is negative, end as 0.
    """
    highest, missed, weight, share = lanes
    step = e.dtype.type(rate / batch)
    for at in range(0, e.shape[1], LANES):
        scaled(e, scale, b, goal, highest, missed, at)
        exponentials(e, highest, goal, step, weight, share, at)
    shared(e, share, goal, step, b, scale)
    total, weights = 0.0, 1.0
    for r in range(batch):
        total += missed[r]
        weights *= weight[r]
        if weights > 1e200:  # one logarithm for many samples
            total += np.log(weights)
            weights = 1.0
    mean: float = (total + np.log(weights)) / batch
    return mean


@fast
def all_finite(hidden: FloatArray, w: FloatArray, b: FloatArray) -> Pattern:
    """Of every client whether the sum of all its numbers is finite [clients]."""
    found = np.empty(len(b), np.bool_)
    for k in range(len(b)):
        total = np.float64(0)
        for j in range(hidden.shape[1]):
            total += hidden[k, j]
        for c in range(b.shape[1]):
            total += b[k, c]
            for j in range(w.shape[2]):
                total += w[k, c, j]
        found[k] = np.isfinite(total)
    return found


@strict
def sums_of_parts(a: FloatArray, ends: IntArray) -> FloatArray:
    """The sums over each client's samples [clients, units]; client k's stand before `ends[k]`."""
    sums = np.zeros((len(ends), a.shape[1]), a.dtype)
    for k in range(len(ends)):
        for i in range(ends[k - 1] if k else 0, ends[k]):
            for j in range(a.shape[1]):
                sums[k, j] += a[i, j]
    return sums


@fast
def quadratic_forms(a: FloatArray, ends: IntArray, grams: IntArray) -> FloatArray:
    """The diagonal of A^T G A of each client [clients, units], whose Gram matrix is at the address `grams[k]`."""
    forms = np.zeros((len(ends), a.shape[1]), a.dtype)
    for k in range(len(ends)):
        own = a[ends[k - 1] if k else 0 : ends[k]]
        size = len(own)
        gram, product = carray(pointer(grams[k], a), (size, size)), aligned(size, a.shape[1], a)
        _add_product(gram, size * np.arange(size), 1, size, own, None, None, None, product, None, a.shape[1])
        for i in range(size):
            for j in range(a.shape[1]):
                forms[k, j] += own[i, j] * product[i, j]
    return forms
