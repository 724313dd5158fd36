"""The compiled local training of a network with one hidden layer, in its dual form: every client in one go."""

from __future__ import annotations

import numpy as np

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.compiling import fast, part, strict
from fedbiad.training.products import TILE, WIDTHS, row_1, row_16, row_64, tile_1, tile_16, tile_64
from fedbiad.vector_math import exponential

# All of it is one function to the compiler: a part that is called instead is another copy when it was just compiled
# than when it comes from the cache, and rounds differently.


@fast
def train(
    p: FloatArray, grams: FloatArray, a: FloatArray, w: FloatArray, b: FloatArray, targets: IntArray, ends: IntArray,
    visits: IntArray, held: IntArray, scale: FloatArray, rate: float, batch: int, losses: FloatArray,
) -> None:  # fmt: skip
    """Advance every client by the iterations of `losses` [clients, iterations], in place.

    Samples of all clients stand one after another, client k's before `ends[k]`: pre-activations under U `p`
    [samples, units], coefficients `a` alike, targets [samples], Gram matrices `grams` flat. The output layer is `w`
    [clients, classes, units] and `b` [clients, classes]; `visits` [clients, iterations x batch] are samples of its own.
    Of the units only the first `held[k]` are looked at.
    """
    clients, classes, units = w.shape
    h, back = np.empty((batch, units), p.dtype), np.empty((batch, units), p.dtype)
    e = np.empty((batch, classes), p.dtype)
    rows, columns = classes * np.arange(batch), np.arange(classes)  # where they begin in e
    at = 0
    for k in range(clients):
        first, last = ends[k - 1] if k else 0, ends[k]
        size = last - first
        own_p, own_a, own_w = p[first:last], a[first:last], w[k]
        gram = grams[at : at + size * size].reshape(size, size)
        at += size * size
        for v in range(losses.shape[1]):
            chosen = visits[k, v * batch : (v + 1) * batch]
            for r in range(batch):
                h[r, : held[k]] = own_p[chosen[r], : held[k]]
            _add_product(gram, size * chosen, 1, size, own_a, h, held[k])
            _relu(h, held[k])
            _logits(h, own_w, b[k], e, scale[k], held[k])
            losses[k, v] = _descent(e, targets[first:last], chosen, rate / batch)
            _shift(b[k], e, scale[k])
            back[:, : held[k]] = 0
            _add_product(e, rows, 1, classes, own_w, back, held[k])
            _add_where_active(back, h, own_a, chosen, held[k])
            _add_product(e, columns, classes, batch, h, own_w, held[k])


@strict
def take(full: FloatArray, rows: IntArray, held: FloatArray) -> None:
    """The columns `rows` of `full`, side by side."""
    for i in range(len(full)):
        for j in range(len(rows)):
            held[i, j] = full[i, rows[j]]


@strict
def put(held: FloatArray, rows: IntArray, full: FloatArray) -> None:
    """Back into `full`."""
    for i in range(len(full)):
        for j in range(len(rows)):
            full[i, rows[j]] = held[i, j]


@strict
def exchange(
    pattern: Pattern, ends: IntArray, count: IntArray, rows: IntArray, p: FloatArray, a: FloatArray, w: FloatArray,
    held_p: FloatArray, held_a: FloatArray, held_w: FloatArray,
) -> None:  # fmt: skip
    """Put the units that `pattern` [clients, units] newly holds in the place of those it no longer does.

    `rows` [clients, places] says which unit stands in each of the first `count[k]` places; as many come as go.
    """
    places = np.empty(rows.shape[1], np.int64)
    for k in range(len(pattern)):
        first, last = ends[k - 1] if k else 0, ends[k]
        leaving = 0
        for j in range(count[k]):
            if not pattern[k, rows[k, j]]:
                places[leaving] = j
                leaving += 1
        if leaving == 0:
            continue
        missing = pattern[k].copy()
        missing[rows[k, : count[k]]] = False
        coming = np.flatnonzero(missing)
        for i in range(first, last):  # sample by sample: the units of one stand side by side
            for n in range(leaving):
                j, new = places[n], coming[n]
                a[i, rows[k, j]] = held_a[i, j]
                held_a[i, j] = a[i, new]
                held_p[i, j] = p[i, new]
        for c in range(w.shape[1]):
            for n in range(leaving):
                j, new = places[n], coming[n]
                w[k, c, rows[k, j]] = held_w[k, c, j]
                held_w[k, c, j] = w[k, c, new]
        for n in range(leaving):
            rows[k, places[n]] = coming[n]


@part
def _add_product(
    coefficients: FloatArray,
    places: IntArray,
    stride: int,
    terms: int,
    factors: FloatArray,
    into: FloatArray,
    held: int,
) -> None:
    """into[r] += sum over k < terms of coefficients[places[r] + k stride], flat, times factors[k]."""
    r = 0
    while r < len(places):
        tile, at = r + TILE <= len(places), 0
        while at + WIDTHS[1] <= held:
            if tile:
                tile_64(coefficients, places[r:], stride, terms, factors, None, into, r, at)
            else:
                row_64(coefficients, places[r:], stride, terms, factors, None, into, r, at)
            at += WIDTHS[1]
        while at + WIDTHS[2] <= held:
            if tile:
                tile_16(coefficients, places[r:], stride, terms, factors, None, into, r, at)
            else:
                row_16(coefficients, places[r:], stride, terms, factors, None, into, r, at)
            at += WIDTHS[2]
        while at < held:
            if tile:
                tile_1(coefficients, places[r:], stride, terms, factors, None, into, r, at)
            else:
                row_1(coefficients, places[r:], stride, terms, factors, None, into, r, at)
            at += 1
        r += TILE if tile else 1


@part
def _relu(h: FloatArray, held: int) -> None:
    for r in range(len(h)):
        for j in range(held):
            h[r, j] = max(h[r, j], h.dtype.type(0))


@part
def _shift(b: FloatArray, e: FloatArray, scale: float) -> None:
    """b <- b + the sum of e over the batch; e then takes the scale on, for the weights."""
    for c in range(len(b)):
        moved = b.dtype.type(0)
        for r in range(len(e)):
            moved += e[r, c]
            e[r, c] *= scale
        b[c] += moved


@part
def _add_where_active(back: FloatArray, h: FloatArray, a: FloatArray, chosen: IntArray, held: int) -> None:
    """A <- A + [h > 0] back at the chosen samples; one may be there twice."""
    zero = h.dtype.type(0)
    for r in range(len(back)):
        x = chosen[r]
        for j in range(held):
            a[x, j] += back[r, j] if h[r, j] > zero else zero


@part
def _logits(h: FloatArray, w: FloatArray, b: FloatArray, logits: FloatArray, scale: float, held: int) -> None:
    """scale h W^T + b, five classes at a time."""
    zero = h.dtype.type(0)
    batch, classes = logits.shape
    for r in range(batch):
        c = 0
        while c + 5 <= classes:
            s0, s1, s2, s3, s4 = zero, zero, zero, zero, zero
            for j in range(held):
                s0 += h[r, j] * w[c, j]
                s1 += h[r, j] * w[c + 1, j]
                s2 += h[r, j] * w[c + 2, j]
                s3 += h[r, j] * w[c + 3, j]
                s4 += h[r, j] * w[c + 4, j]
            logits[r, c] = s0 * scale + b[c]
            logits[r, c + 1] = s1 * scale + b[c + 1]
            logits[r, c + 2] = s2 * scale + b[c + 2]
            logits[r, c + 3] = s3 * scale + b[c + 3]
            logits[r, c + 4] = s4 * scale + b[c + 4]
            c += 5
        while c < classes:
            s0 = zero
            for j in range(held):
                s0 += h[r, j] * w[c, j]
            logits[r, c] = s0 * scale + b[c]
            c += 1


@part
def _descent(e: FloatArray, targets: IntArray, chosen: IntArray, rate: float) -> float:
    """The mean loss; logits become -rate times its gradient with respect to them."""
    batch, classes = e.shape
    zero = e.dtype.type(0)
    step = e.dtype.type(rate)
    total, weights = 0.0, 1.0
    for r in range(batch):
        highest = e[r, 0]
        for c in range(1, classes):
            highest = max(highest, e[r, c])
        for c in range(classes):
            e[r, c] -= highest
        total -= e[r, targets[chosen[r]]]
    flat = e.reshape(batch * classes)
    for i in range(len(flat)):  # all at once, in the full width of the processor
        flat[i] = exponential(flat[i])
    for r in range(batch):
        weight = zero
        for c in range(classes):
            weight += e[r, c]
        weights *= weight
        if weights > 1e200:  # one logarithm for many samples
            total += np.log(weights)
            weights = 1.0
        for c in range(classes):
            e[r, c] *= -step / weight
        e[r, targets[chosen[r]]] += step
    mean: float = (total + np.log(weights)) / batch
    return mean


@strict
def sums_of_parts(a: FloatArray, ends: IntArray) -> FloatArray:
    """The sums over each client's samples [clients, units]; client k's stand before `ends[k]`."""
    sums = np.zeros((len(ends), a.shape[1]), a.dtype)
    for k in range(len(ends)):
        for i in range(ends[k - 1] if k else 0, ends[k]):
            for j in range(a.shape[1]):
                sums[k, j] += a[i, j]
    return sums
