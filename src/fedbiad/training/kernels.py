"""The compiled local training of a network with one hidden layer, in its dual form: every client in one go.

Loops run several rows at once because a compiler keeps sums in registers only where they stand side by side.
"""

from __future__ import annotations

import numpy as np

from fedbiad.arrays import FloatArray, IntArray, Pattern
from fedbiad.compiling import fast, part, strict
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
    h, e = np.empty((batch + 1, units), p.dtype), np.empty((batch, classes), p.dtype)
    at = 0
    for k in range(clients):
        first, last = ends[k - 1] if k else 0, ends[k]
        size = last - first
        own_p, own_a, own_w = p[first:last], a[first:last], w[k]
        gram = grams[at : at + size * size].reshape(size, size)
        at += size * size
        for v in range(losses.shape[1]):
            chosen = visits[k, v * batch : (v + 1) * batch]
            _forward(own_p, gram, own_a, h, chosen, size, held[k])
            _logits(h, own_w, b[k], e, scale[k], held[k])
            losses[k, v] = _errors(e, targets[first:last], chosen, rate / batch)
            _shift(b[k], e, scale[k])
            _descend(h, own_w, e, own_a, chosen, held[k])


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
def _shift(b: FloatArray, e: FloatArray, scale: float) -> None:
    """b <- b - the sum of e over the batch; e then takes the scale on, for the weights."""
    for c in range(len(b)):
        moved = b.dtype.type(0)
        for r in range(len(e)):
            moved += e[r, c]
            e[r, c] *= scale
        b[c] -= moved


@part
def _forward(
    p: FloatArray, gram: FloatArray, a: FloatArray, h: FloatArray, chosen: IntArray, size: int, held: int
) -> None:
    """h = relu(P + G A) of the chosen samples, five of them and four of A's rows at a time."""
    zero = p.dtype.type(0)
    batch = len(chosen)
    for r in range(batch):
        x = chosen[r]
        for j in range(held):
            h[r, j] = p[x, j]
    r = 0
    while r + 5 <= batch:
        g0, g1, g2, g3, g4 = gram[chosen[r]], gram[chosen[r + 1]], gram[chosen[r + 2]], gram[chosen[r + 3]], gram[chosen[r + 4]]  # fmt: skip  # noqa: E501
        i = 0
        while i + 4 <= size:
            k, m, n = i + 1, i + 2, i + 3
            b00, b01, b02, b03 = g0[i], g0[k], g0[m], g0[n]
            b10, b11, b12, b13 = g1[i], g1[k], g1[m], g1[n]
            b20, b21, b22, b23 = g2[i], g2[k], g2[m], g2[n]
            b30, b31, b32, b33 = g3[i], g3[k], g3[m], g3[n]
            b40, b41, b42, b43 = g4[i], g4[k], g4[m], g4[n]
            for j in range(held):
                a0, a1, a2, a3 = a[i, j], a[k, j], a[m, j], a[n, j]
                h[r, j] += b00 * a0 + b01 * a1 + b02 * a2 + b03 * a3
                h[r + 1, j] += b10 * a0 + b11 * a1 + b12 * a2 + b13 * a3
                h[r + 2, j] += b20 * a0 + b21 * a1 + b22 * a2 + b23 * a3
                h[r + 3, j] += b30 * a0 + b31 * a1 + b32 * a2 + b33 * a3
                h[r + 4, j] += b40 * a0 + b41 * a1 + b42 * a2 + b43 * a3
            i += 4
        while i < size:
            b00, b10, b20, b30, b40 = g0[i], g1[i], g2[i], g3[i], g4[i]
            for j in range(held):
                h[r, j] += b00 * a[i, j]
                h[r + 1, j] += b10 * a[i, j]
                h[r + 2, j] += b20 * a[i, j]
                h[r + 3, j] += b30 * a[i, j]
                h[r + 4, j] += b40 * a[i, j]
            i += 1
        r += 5
    while r < batch:
        g0 = gram[chosen[r]]
        for i in range(size):
            b00 = g0[i]
            for j in range(held):
                h[r, j] += b00 * a[i, j]
        r += 1
    for r in range(batch):
        for j in range(held):
            h[r, j] = max(h[r, j], zero)


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
def _errors(e: FloatArray, targets: IntArray, chosen: IntArray, rate: float) -> float:
    """The mean loss; logits become rate times its gradient with respect to them."""
    batch, classes = e.shape
    zero = e.dtype.type(0)
    step = e.dtype.type(rate)
    total = zero
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
        total += np.log(weight)
        for c in range(classes):
            e[r, c] *= step / weight
        e[r, targets[chosen[r]]] -= step
    mean: float = float(total) / batch
    return mean


@part
def _descend(h: FloatArray, w: FloatArray, e: FloatArray, a: FloatArray, chosen: IntArray, held: int) -> None:
    """A <- A - [h > 0] (e W) at the chosen samples, then W <- W - e^T h."""
    zero = h.dtype.type(0)
    batch, classes = e.shape
    for r in range(batch):
        x = chosen[r]
        c = 0
        while c + 5 <= classes:
            e0, e1, e2, e3, e4 = e[r, c], e[r, c + 1], e[r, c + 2], e[r, c + 3], e[r, c + 4]
            for j in range(held):
                back = e0 * w[c, j] + e1 * w[c + 1, j] + e2 * w[c + 2, j] + e3 * w[c + 3, j] + e4 * w[c + 4, j]
                a[x, j] -= back if h[r, j] > zero else zero
            c += 5
        while c < classes:
            e0 = e[r, c]
            for j in range(held):
                a[x, j] -= e0 * w[c, j] if h[r, j] > zero else zero
            c += 1
    for c in range(classes):
        r = 0
        while r + 5 <= batch:
            e0, e1, e2, e3, e4 = e[r, c], e[r + 1, c], e[r + 2, c], e[r + 3, c], e[r + 4, c]
            for j in range(held):
                w[c, j] -= e0 * h[r, j] + e1 * h[r + 1, j] + e2 * h[r + 2, j] + e3 * h[r + 3, j] + e4 * h[r + 4, j]
            r += 5
        while r < batch:
            e0 = e[r, c]
            for j in range(held):
                w[c, j] -= e0 * h[r, j]
            r += 1


@strict
def sums_of_parts(a: FloatArray, ends: IntArray) -> FloatArray:
    """The sums over each client's samples [clients, units]; client k's stand before `ends[k]`."""
    sums = np.zeros((len(ends), a.shape[1]), a.dtype)
    for k in range(len(ends)):
        for i in range(ends[k - 1] if k else 0, ends[k]):
            for j in range(a.shape[1]):
                sums[k, j] += a[i, j]
    return sums
