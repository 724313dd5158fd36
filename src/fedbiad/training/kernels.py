"""The compiled local training of a network with one hidden layer, in its dual form: every client in one go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray  # type: ignore[attr-defined]

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.compiled import RowList, aligned
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
from fedbiad.training.places import Places, Units, listed, put, room_for_some, take
from fedbiad.training.softmax import exponentials, scaled, shared
from fedbiad.training.swapping import let_wait, line_up, room_for_lines, swap

Goals = npt.NDArray[np.int32]
# All of it is one function to the compiler: a part that is called instead is another copy when it was just compiled
# than when it comes from the cache, and rounds differently.


class Course(NamedTuple):
    """What happens on the way, written down."""

    losses: FloatArray  # [clients, iterations]
    pattern: Pattern  # units held by now [clients, units]
    held: IntArray  # for how many iterations [clients, units]
    changed: Pattern  # iterations after which the pattern changed [clients, iterations]


@fast
def train(
    units: Units, grams: IntArray, b: FloatArray, targets: IntArray, ends: IntArray, visits: IntArray,
    scale: FloatArray, silent: Pattern, rate: float, batch: int, swaps: Swaps, course: Course, begins: bool,
) -> None:  # fmt: skip
    """Advance every client by the iterations of `course`, in place; if it `begins` with them, A may be anything.

    Client k's samples stand before `ends[k]`: targets [samples]; its Gram matrix is at the address `grams[k]`. The
    output layer's bias is `b` [clients, classes]; logits of `silent` classes [clients, classes] are 0, and these learn
    nothing. `visits` [clients, iterations x batch] are samples of its own. Units swap only if it begins.
    """
    clients, classes, width = units.w.shape
    room = room_for_some(units, ends, course.pattern, False)
    aside = room_for_some(units, ends, course.pattern[: clients if swaps.interval else 0], True)
    step, lines = _room_for_step(units, batch, max(width, room.p.shape[1])), room_for_lines(width)
    rows = lines.rows
    mute, bias = np.empty(classes, np.uint32), b.copy()
    for k in range(clients):
        first, last = ends[k - 1] if k else 0, ends[k]
        size, swapped, pattern, held, losses = last - first, False, course.pattern[k], course.held[k], course.losses[k]
        count = line_up(pattern, swaps.keys[k], lines) if swaps.interval else listed(pattern, rows)
        muted, waiting = listed(silent[k], mute), rows[count:]
        all_p, all_a, all_w, own_b = units.p[first:last], units.a[first:last], units.w[k], b[k]
        p, a, w = all_p, all_a, all_w
        others = Places(aside.p[:size], aside.a[:size], aside.w)
        if count < width:
            p, a, w = room.p[:size], room.a[:size], room.w
            take(all_p, rows, count, p)
            take(all_w, rows, count, w)
            if not begins:
                take(all_a, rows, count, a)
        if begins:
            a[:] = 0
        gram, own_targets = carray(pointer(grams[k], a), (size, size)), targets[first:last]
        met = 0 if begins else _meet_all(size, step.seen)
        check = 2 * swaps.interval if swaps.interval else -1  # the next one
        for v in range(len(losses)):
            _choose(visits[k], v * batch, own_targets, step.chosen, step.starts, step.goal)
            losses[v] = _descend(step, gram, met, p, a, w, own_b, count, mute, muted, scale[k], batch, rate)
            if met < size:
                met = _meet(step.chosen, step.seen, met)
            if v != check:
                continue
            check += swaps.interval
            if _rose(losses, v, swaps.interval):  # lines 18 to 26 of Algorithm 1
                course.changed[k, v] = True
                if not swapped:
                    let_wait(all_p, all_w, waiting, others)
                    swapped = True
                swap(lines, swaps.size[k], Places(p, a, w), others, pattern, held, v + 1)
        _unmute(own_b, bias[k], mute, muted)
        _count_held(held, rows, count, len(losses))
        if count < width:
            if begins:
                all_a[:] = 0
            put(a, rows, count, all_a)
            put(w, rows, count, all_w)
        if swapped:
            put(others.a, waiting, len(waiting), all_a)
            put(others.w, waiting, len(waiting), all_w)


class Step(NamedTuple):
    """What an iteration writes down for itself."""

    chosen: IntArray  # the samples of its batch
    starts: IntArray  # where their rows of the Gram matrix begin
    seen: RowList  # samples met so far, in order
    h: FloatArray  # [batch, units]
    e: FloatArray  # [classes, lanes], a sample a lane; some may stay without one
    goal: Goals  # a sample's class, -1 in lanes without one
    lanes: FloatArray  # [4, lanes]
    of_samples: IntArray  # where they begin in e
    of_classes: IntArray
    nothing: FloatArray


@strict_part
def _room_for_step(units: Units, batch: int, width: int) -> Step:
    classes = units.w.shape[1]
    e = np.zeros((classes, -(-batch // LANES) * LANES), units.p.dtype)
    return Step(
        np.empty(batch, np.int64), np.empty(batch, np.int64), np.empty(len(units.p), np.uint32),
        aligned(batch, width, units.p), e, np.full(e.shape[1], -1, np.int32), np.empty((4, e.shape[1]), e.dtype),
        np.arange(batch), e.shape[1] * np.arange(classes), np.zeros(width, e.dtype),
    )  # fmt: skip


@part
def _descend(
    step: Step, gram: FloatArray, met: int, p: FloatArray, a: FloatArray, w: FloatArray, b: FloatArray, count: int,
    mute: RowList, muted: int, scale: float, batch: int, rate: float,
) -> float:  # fmt: skip
    """One iteration with `count` units; the loss before it."""
    h, e = step.h, step.e
    # pre-activations under U, and what A has moved since: it is 0 but for samples met
    _add_product(gram, step.starts, 1, met, a, step.seen, p, None, h, step.chosen, count)
    _logits(w, h, e, count)
    _mute(e, b, mute, muted)
    loss = _descent(e, b, scale, step.goal, batch, rate, step.lanes)
    _mute(e, b, mute, muted)
    _add_product(e, step.of_samples, e.shape[1], len(e), w, None, step.nothing, h, a, step.chosen, count)
    _add_product(e, step.of_classes, 1, batch, h, None, None, None, w, None, count)
    return loss


@strict_part
def _rose(losses: FloatArray, v: int, interval: int) -> bool:
    """Whether Eq. (loss_diff) is positive at the check after iteration v; `loss_trend`, compiled."""
    recent, before = 0.0, 0.0
    for i in range(interval):
        recent += losses[v + 1 - interval + i]
        before += losses[v + 1 - 2 * interval + i]
    return recent / interval - before / interval > 0


@strict_part
def _count_held(held: IntArray, rows: RowList, count: int, iterations: int) -> None:
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
