"""The dual form of local training, for networks with one hidden layer under plain SGD.

A client's first layer is always U1 + A^T X, with X its own samples (a 1 appended for the bias) and A [samples, units]
how much each sample has moved each unit. So A is trained instead of the weights: pre-activations are X U1^T, made once
a round, plus the Gram matrix X X^T times A. It is exact, also for changing patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbiad.aggregation import Total, count_holders
from fedbiad.arrays import FloatArray, IntArray, Losses, Params, Pattern
from fedbiad.rows import Layout
from fedbiad.training import kernels
from fedbiad.training.batches import LocalData
from fedbiad.training.objective import cross_entropy

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
    ) -> None:
        """`u` is U_{r-1} as each client received it [clients, ...]."""
        clients, _, units = u[W2].shape
        self.u, self.data, self.batch, self.learning_rate = u, data, batch, learning_rate
        self.scale = np.broadcast_to(np.asarray(scale, dtype=np.float64), (clients,))
        ends = np.cumsum(data.sizes)
        self.parts = [slice(end - size, end) for end, size in zip(ends.tolist(), data.sizes, strict=True)]
        self.ends = ends
        self.x = [data.samples(k)[0].flatten(1) for k in range(clients)]
        self.grams = [data.gram(k) for k in range(clients)]
        self.p = torch.empty(int(ends[-1]), units, dtype=u[W1].dtype)
        self.a = torch.zeros_like(self.p)
        self.w, self.b = u[W2].clone(), u[B2].clone()
        self._known = np.zeros((clients, units), dtype=np.bool_)
        self.set_pattern(pattern)

    def set_pattern(self, pattern: Pattern) -> None:
        """Hold other rows from now on; what dropped rows have learned stays in A."""
        self.pattern = pattern
        for k, new in enumerate(pattern & ~self._known):
            if new.all():
                torch.addmm(self.u[B1][k], self.x[k], self.u[W1][k].T, out=self.p[self.parts[k]])
            elif new.any():
                rows = torch.from_numpy(np.flatnonzero(new))
                own = torch.addmm(self.u[B1][k][rows], self.x[k], self.u[W1][k][rows].T)
                self.p[self.parts[k]].index_copy_(1, rows, own)
        self._known |= pattern

    def advance(self, first: int, last: int) -> tuple[Losses, Losses]:
        """Iterations `first` up to `last`; the trend looks at the losses of their mini-batches."""
        losses = np.zeros((len(self.x), last - first))
        for k, part in enumerate(self.parts):
            held = torch.from_numpy(np.flatnonzero(self.pattern[k]))
            targets = self.data.samples(k)[1]
            p, a = self.p[part], self.a[part]
            scale = float(self.scale[k])
            for v in range(first, last):
                chosen = torch.from_numpy(self.data.schedule[k, v * self.batch : (v + 1) * self.batch])
                hidden = (p[chosen][:, held] + self.grams[k][chosen] @ a[:, held]).relu()
                logits = scale * hidden @ self.w[k][:, held].T + self.b[k]
                loss = cross_entropy(logits[None], targets[chosen][None])
                error = logits.softmax(1)
                error[torch.arange(len(chosen)), targets[chosen]] -= 1.0
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
        """What was learned."""
        return DualLearned(
            self.x, self.grams, [self.a[part] for part in self.parts], self.w - self.u[W2], self.b - self.u[B2]
        )


class FusedTrainer(DualTrainer):
    """The same in one compiled function a block."""

    def advance(self, first: int, last: int) -> tuple[Losses, Losses]:
        losses = np.zeros((len(self.x), last - first))
        kernels.train(
            self.p.numpy(), self._grams, self.a.numpy(), self.w.numpy(), self.b.numpy(), self._targets, self.ends,
            self.data.schedule[:, first * self.batch : last * self.batch], self.pattern,
            self.scale.astype(self.p.numpy().dtype), self.learning_rate, self.batch, losses,
        )  # fmt: skip
        return losses, losses

    @property
    def _grams(self) -> FloatArray:
        if not hasattr(self, "_flat_grams"):
            self._flat_grams = torch.cat([gram.flatten() for gram in self.grams]).numpy()
        return self._flat_grams

    @property
    def _targets(self) -> IntArray:
        if not hasattr(self, "_flat_targets"):
            self._flat_targets = torch.cat([self.data.samples(k)[1] for k in range(len(self.x))]).numpy()
        return self._flat_targets


@dataclass(frozen=True)
class DualLearned:
    """Changes of the first layer as A^T X, never written out for more than one client; the output layer's stacked."""

    x: list[Tensor]
    grams: list[Tensor]
    a: list[Tensor]
    w: Tensor
    b: Tensor

    def change(self, client: int, pattern: Pattern | None = None) -> Params:
        units, inputs = self.a[client].shape[1], self.x[client].shape[1]
        rows = torch.arange(units) if pattern is None else torch.from_numpy(np.flatnonzero(pattern))
        first, bias, second = self._rows(client, rows)
        change = {
            W1: first.new_zeros(units, inputs), B1: first.new_zeros(units), W2: first.new_zeros(len(second), units),
            B2: self.b[client],
        }  # fmt: skip
        change[W1][rows], change[B1][rows], change[W2][:, rows] = first, bias, second
        return change

    def total(self, layout: Layout, members: IntArray, pattern: Pattern, weights: Sequence[float]) -> Total:
        units, inputs = self.a[0].shape[1], self.x[0].shape[1]
        dtype = self.w.dtype
        first, bias = torch.zeros(units, inputs, dtype=dtype), torch.zeros(units, dtype=dtype)
        second, out = torch.zeros(self.w.shape[1:], dtype=dtype), torch.zeros(self.b.shape[1:], dtype=dtype)
        for client, own, weight in zip(members.tolist(), pattern, weights, strict=True):
            rows = torch.from_numpy(np.flatnonzero(own))
            changes = self._rows(client, rows)
            if len(rows) == units:
                for total, change in zip((first, bias, second), changes, strict=True):
                    total.add_(change, alpha=weight)
            else:
                first.index_add_(0, rows, changes[0], alpha=weight)
                bias.index_add_(0, rows, changes[1], alpha=weight)
                second.index_add_(1, rows, changes[2], alpha=weight)
            out.add_(self.b[client], alpha=weight)
        moved = {W1: first, B1: bias, W2: second, B2: out}
        return Total(moved, count_holders(layout, pattern, weights), float(sum(weights)))

    def row_norms(self, layout: Layout) -> FloatArray:
        # the appended 1 stands for the bias: a_j' (X X' + 1) a_j is the row's norm and the bias's
        own = [(a * (gram @ a)).sum(0) for a, gram in zip(self.a, self.grams, strict=True)]
        norms: FloatArray = (torch.stack(own) + self.w.square().sum(1)).double().clamp(min=0).numpy()
        return norms

    def finite(self) -> npt.NDArray[np.bool_]:
        sums = torch.stack([a.sum() for a in self.a]) + self.w.sum((1, 2)) + self.b.sum(1)
        usable: npt.NDArray[np.bool_] = torch.isfinite(sums).numpy()
        return usable

    def _rows(self, client: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The changes of some units: rows, biases and outgoing columns; the same to the bit for every caller."""
        a, second = self.a[client], self.w[client]
        if len(rows) < a.shape[1]:
            a, second = a[:, rows], second[:, rows]
        return a.T @ self.x[client], a.sum(0), second
