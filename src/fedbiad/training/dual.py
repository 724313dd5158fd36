"""The dual form of local training, for networks with one hidden layer under plain SGD.

A client's first layer is always U1 + A^T X, with X its own samples (a 1 appended for the bias) and A [samples, units]
how much each sample has moved each unit. So A is trained instead of the weights: pre-activations are X U1^T, made once
a round, plus the Gram matrix X X^T times A. It is exact, also for changing patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbiad import compiled
from fedbiad.aggregation import Total, count_holders
from fedbiad.arrays import FloatArray, IntArray, Losses, Params, Pattern
from fedbiad.columns import turned
from fedbiad.patterns import NO_SWAPS, Swaps
from fedbiad.rows import Layout
from fedbiad.training import kernels, strips
from fedbiad.training.batches import LocalData, Parts
from fedbiad.training.kernels import Course
from fedbiad.training.objective import cross_entropy
from fedbiad.training.places import Units
from fedbiad.training.strips import Picture

W1, B1, W2, B2 = "layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"


class DualTrainer:
    """Trains a block of clients by A, one after another; the readable twin of `FusedTrainer`."""

    def __init__(
        self,
        u: Params,
        pattern: Pattern,
        data: LocalData,
        *,
        batch: int,
        learning_rate: float,
        scale: float | FloatArray = 1.0,
        silenced: Pattern | None = None,
    ) -> None:
        """`u` is U_{r-1} as each client received it [clients, ...]; logits of `silenced` classes are 0."""
        clients, classes, units = u[W2].shape
        self.u, self.data, self.batch, self.learning_rate = u, data, batch, learning_rate
        self.scale = np.broadcast_to(np.asarray(scale, dtype=np.float64), (clients,))
        self.ends = np.cumsum(data.sizes)
        self.parts = [slice(end - size, end) for end, size in zip(self.ends.tolist(), data.sizes, strict=True)]
        self.x, self.targets = data.vectors, data.targets
        self.grams = self._find()
        self.p = torch.empty(int(self.ends[-1]), units, dtype=u[W1].dtype)
        self.a = torch.empty_like(self.p)  # 0 when training begins
        self.w, self.b = u[W2].clone(), u[B2].clone()
        self._pre_activate(_transposed(u[W1]))
        self._silenced = np.zeros((clients, classes), dtype=np.bool_) if silenced is None else silenced
        self.set_pattern(pattern)

    def _find(self) -> list[Tensor]:
        """The Gram matrices."""
        return [self.data.gram(k) for k in range(len(self.x))]

    def _pre_activate(self, firsts: Tensor) -> None:
        """X U1^T and the bias, of all rows, held or not: picking some of them out would cost what it saves."""
        for bias, x, first, part in zip(self.u[B1], self.x, firsts, self.parts, strict=True):
            torch.addmm(bias, x, first, out=self.p[part])

    def set_pattern(self, pattern: Pattern) -> None:
        """Hold other rows from now on; what dropped rows have learned stays in A."""
        self.pattern, held_classes = by_group(pattern, self.w)
        self.silent = self._silenced | ~held_classes

    def advance(self, first: int, last: int) -> tuple[Losses, Losses]:
        """Iterations `first` up to `last`; the trend looks at the losses of their mini-batches."""
        losses = np.zeros((len(self.x), last - first))
        if first == 0:
            self.a.zero_()
        for k, part in enumerate(self.parts):
            held = torch.from_numpy(np.flatnonzero(self.pattern[k]))
            targets, silent = self.targets[k], torch.from_numpy(self.silent[k])
            p, a = self.p[part], self.a[part]
            scale = float(self.scale[k])
            for v in range(first, last):
                chosen = torch.from_numpy(self.data.schedule[k, v * self.batch : (v + 1) * self.batch])
                hidden = (p[chosen][:, held] + self.grams[k][chosen] @ a[:, held]).relu()
                logits = scale * hidden @ self.w[k][:, held].T + self.b[k]
                logits[:, silent] = 0.0
                loss = cross_entropy(logits[None], targets[chosen][None])
                error = logits.softmax(1)
                error[torch.arange(len(chosen)), targets[chosen]] -= 1.0
                error[:, silent] = 0.0
                error = error * (self.learning_rate / len(chosen))
                back = scale * error @ self.w[k][:, held] * (hidden > 0)
                self.w[k][:, held] -= scale * error.T @ hidden
                self.b[k] -= error.sum(0)
                full = torch.zeros(len(chosen), a.shape[1], dtype=a.dtype)
                full[:, held] = back
                a.index_add_(0, chosen, full, alpha=-1.0)  # a sample may be there twice
                losses[k, v - first] = float(loss)
        return losses, losses

    def finish(self) -> DualLearned:
        """What was learned by now."""
        return DualLearned(self.x, self.grams, self.a, self.ends, self.w - self.u[W2], self.b - self.u[B2])

    def row_norms(self, layout: Layout) -> FloatArray:
        """Of what was learned by now; training can go on."""
        return self.finish().row_norms(layout)


class FusedTrainer(DualTrainer):
    """The same in one compiled function a block; of pictures only what differs from their background is multiplied."""

    def _find(self) -> list[Tensor]:
        facts = self.data.facts()
        self.pictures = [own.picture for own in facts]
        return [own.gram for own in facts]

    def _pre_activate(self, firsts: Tensor) -> None:
        found = {k: picture.by_sample for k, picture in enumerate(self.pictures) if picture is not None}
        begins = self.ends - np.asarray(self.data.sizes)
        strips.multiply(found, firsts.numpy(), self.u[B1].numpy(), begins, self.p.numpy())
        for k, part in enumerate(self.parts):
            if k not in found:
                torch.addmm(self.u[B1][k], self.x[k], firsts[k], out=self.p[part])

    @cached_property
    def _told(self) -> tuple[IntArray, IntArray]:
        """Where each client's Gram matrix stands in memory, and all targets, one client after another."""
        return addresses(self.grams), self.data.all_targets

    def advance(self, first: int, last: int) -> tuple[Losses, Losses]:
        losses = self._train(first, last, self.pattern.copy(), NO_SWAPS).losses
        return losses, losses

    def swap_along(self, pattern: Pattern, swaps: Swaps, iterations: int) -> Course:
        """All iterations in one go with the checks between them; begun with `pattern`."""
        return self._train(0, iterations, pattern.copy(), swaps)

    def _train(self, first: int, last: int, pattern: Pattern, swaps: Swaps) -> Course:
        losses = np.zeros((len(pattern), last - first))
        course = Course(losses, pattern, np.zeros(pattern.shape, dtype=np.int64), losses.astype(np.bool_))
        grams, targets = self._told
        units = Units(self.p.numpy(), self.a.numpy(), self.w.numpy())
        kernels.train(
            units, grams, self.b.numpy(), targets, self.ends,
            self.data.schedule[:, first * self.batch : last * self.batch], self.scale.astype(units.p.dtype),
            self.silent, self.learning_rate, self.batch, swaps, course, first == 0,
        )  # fmt: skip
        return course

    def finish(self) -> DualLearned:
        return replace(super().finish(), pictures=self.pictures)


@dataclass(frozen=True)
class DualLearned:
    """Changes of the first layer as A^T X, never written out for more than one client; the output layer's stacked."""

    x: Parts
    grams: list[Tensor]
    a: Tensor
    ends: IntArray
    w: Tensor
    b: Tensor
    pictures: Sequence[Picture | None] = ()

    @cached_property
    def bias(self) -> Tensor:
        """The changes of the hidden biases [clients, units]: an input of 1 at every sample."""
        return torch.from_numpy(kernels.sums_of_parts(self.a.numpy(), self.ends))

    def change(self, client: int, pattern: Pattern | None = None) -> Params:
        units, inputs = self.a.shape[1], self.x[client].shape[1]
        rows = np.arange(units) if pattern is None else np.flatnonzero(pattern[:units])
        if len(rows) == units:
            return {W1: self._first(client, rows), B1: self.bias[client], W2: self.w[client], B2: self.b[client]}
        change = {
            W1: self.w.new_zeros(units, inputs), B1: self.w.new_zeros(units), W2: torch.zeros_like(self.w[client]),
            B2: self.b[client],
        }  # fmt: skip
        change[W1][rows] = self._first(client, rows)
        change[B1][rows] = self.bias[client, rows]
        change[W2][:, rows] = self.w[client][:, rows]
        return change

    def total(self, layout: Layout, members: IntArray, pattern: Pattern, weights: Sequence[float]) -> Total:
        pictures = [self.pictures[client] for client in members.tolist()] if self.pictures else [None]
        held, held_classes = by_group(pattern, self.w)
        moved = {W1: self._of_pictures([own for own in pictures if own], members, held, weights) if all(pictures)
                 else self._of_first(members, held, weights)}  # fmt: skip
        moved |= {name: torch.zeros(layout.shapes[name], dtype=self.w.dtype) for name in (B1, W2, B2)}
        bias, second, out = (moved[name].numpy() for name in (B1, W2, B2))
        each, whole = np.asarray(weights, dtype=bias.dtype), np.ones((len(pattern), 1), dtype=np.bool_)
        compiled.accumulate_held(bias[None], self.bias.numpy()[:, None], members, whole, held, each)
        compiled.accumulate_held(second, self.w.numpy(), members, held_classes, held, each)
        compiled.accumulate_held(out[:, None], self.b.numpy()[:, :, None], members, held_classes, whole, each)
        return Total(moved, count_holders(layout, pattern, weights), float(sum(weights)))

    def _of_first(self, members: IntArray, pattern: Pattern, weights: Sequence[float]) -> Tensor:
        """The sum of the first layer's changes."""
        total = self.w.new_zeros(self.a.shape[1], self.x[0].shape[1])
        room = torch.empty_like(total)
        change = room.numpy()
        held = [np.arange(len(total))] * len(pattern) if pattern.all() else [np.flatnonzero(own) for own in pattern]
        for client, rows, weight in zip(members.tolist(), held, weights, strict=True):
            self._first(client, rows, out=room if len(rows) == len(room) else room[: len(rows)])
            compiled.accumulate_rows(total.numpy(), change, rows, weight)
        return total

    def _of_pictures(
        self, pictures: list[Picture], members: IntArray, pattern: Pattern, weights: Sequence[float]
    ) -> Tensor:
        """The same to the bit; a row that is not held adds nothing."""
        transposed = np.zeros((self.x[0].shape[1], self.a.shape[1]), self.a.numpy().dtype)
        spans = np.stack([self.ends - np.diff(self.ends, prepend=0), self.ends], axis=1)[members]
        strips.add_back(pictures, self.a.numpy(), spans, pattern, np.asarray(weights, transposed.dtype), transposed)
        return torch.from_numpy(transposed).T

    def row_norms(self, layout: Layout) -> FloatArray:
        # the appended 1 stands for the bias: a_j' (X X' + 1) a_j is the row's norm and the bias's
        own = kernels.quadratic_forms(self.a.numpy(), self.ends, addresses(self.grams))
        norms: FloatArray = (torch.from_numpy(own) + self.w.square().sum(1)).double().clamp(min=0).numpy()
        if layout.num_rows > norms.shape[1]:  # the classes' rows, too
            norms = np.hstack([norms, (self.w.square().sum(2) + self.b.square()).double().numpy()])
        return norms

    def finite(self) -> npt.NDArray[np.bool_]:
        return kernels.all_finite(self.bias.numpy(), self.w.numpy(), self.b.numpy())

    @cached_property
    def _parts(self) -> list[Tensor]:
        return list(torch.split(self.a, np.diff(self.ends, prepend=0).tolist()))

    def _first(self, client: int, rows: IntArray, out: Tensor | None = None) -> Tensor:
        """The changes of some rows of the first layer; the same to the bit for every caller."""
        a = self._parts[client]
        chosen = a if len(rows) == a.shape[1] else a[:, torch.from_numpy(rows)]
        picture = self.pictures[client] if self.pictures else None
        if picture is None:
            return torch.mm(chosen.T, self.x[client], out=out)
        change = torch.from_numpy(turned(picture.back(chosen.numpy())))
        return change if out is None else out.copy_(change)


def by_group(pattern: Pattern, w: Tensor) -> tuple[Pattern, Pattern]:
    """The held units and the held classes of W [.., classes, units]: all, if classes are no rows."""
    *_, classes, units = w.shape
    if pattern.shape[1] > units:
        return pattern[:, :units], pattern[:, units:]
    return pattern, np.ones((len(pattern), classes), dtype=np.bool_)


def addresses(tensors: Sequence[Tensor]) -> IntArray:
    """Where each one's numbers begin in memory."""
    return np.array([tensor.data_ptr() for tensor in tensors])


def laid_out(u: Params) -> Params:
    """U with its first layer in memory as `FusedTrainer` reads and sums it: inputs first."""
    return {**u, W1: u[W1].T.contiguous().T}


def _transposed(first: Tensor) -> Tensor:
    """Every client's first layer with inputs first [clients, inputs, units], as products read it fastest."""
    different = first[:1] if first.stride(0) == 0 else first
    return different.transpose(1, 2).contiguous().expand(len(first), -1, -1)
