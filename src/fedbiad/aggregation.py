"""How the server averages rows that not every client sent: sums over blocks of clients, added up along a fixed tree.

A block sums its own clients; the tree depends only on how many blocks there are, so that the result is the same to the
bit wherever and in whatever order they were trained. The means share their sums and differ in one line each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbiad import compiled
from fedbiad.arrays import Params, Pattern
from fedbiad.rows import Layout, on_axis


@dataclass(frozen=True)
class Total:
    """Sums over clients k of weight w_k, with D^k = U^k - U_{r-1}.

    `moved` is sum_k w_k beta^k o D^k, `holders` sum_k w_k beta^k (as far as it differs between entries), `weight`
    sum_k w_k. With w_k = |D^k|, holders o U_{r-1} + moved is the numerator of Eq. (agg).
    """

    moved: Params
    holders: Params
    weight: float

    def __add__(self, other: Total) -> Total:
        moved = {name: value.double() + other.moved[name] for name, value in self.moved.items()}
        holders = {name: value + other.holders[name] for name, value in self.holders.items()}
        return Total(moved, holders, self.weight + other.weight)


def sum_block(layout: Layout, pattern: Pattern, moved: Params, weights: Sequence[float]) -> Total:
    """The sums over a block of clients: changes [clients, ...], rows sent [clients, rows], weights w_k."""
    masks = layout.axis_masks(pattern, dtype=next(iter(moved.values())).dtype)
    sums: Params = {}
    for name, values in moved.items():
        factors = [on_axis(mask, axis, values.dim()) for axis, mask in masks.get(name, [])]
        sums[name] = total = torch.zeros(values.shape[1:], dtype=values.dtype)
        for client, weight in enumerate(weights):
            change = values[client]
            for factor in factors:
                change = change * factor[client]
            compiled.accumulate(total.view(-1).numpy(), change.flatten().numpy(), weight)
    return Total(sums, count_holders(layout, pattern, weights), float(sum(weights)))


def count_holders(layout: Layout, pattern: Pattern, weights: Sequence[float]) -> Params:
    """sum_k w_k beta^k for each parameter, in a shape that spreads over its entries."""
    masks = layout.axis_masks(pattern, dtype=torch.float64)
    each = torch.tensor(weights, dtype=torch.float64)
    holders: Params = {}
    for name, shape in layout.shapes.items():
        held = each.view(-1, *[1] * len(shape))
        for axis, mask in masks.get(name, []):
            held = held * on_axis(mask, axis, len(shape) + 1)
        holders[name] = held.sum(0)
    return holders


@dataclass
class SumTree:
    """Adds totals of consecutive blocks in pairs, pairs of pairs, and so on: the order of a balanced tree."""

    _stack: list[tuple[int, Total]] = field(default_factory=list)

    def push(self, total: Total, blocks: int = 1) -> None:
        """The next total; of several blocks already added up, if these are a whole branch of the tree or its end."""
        while self._stack and self._stack[-1][0] == blocks:
            before, earlier = self._stack.pop()
            total, blocks = earlier + total, before + blocks
        self._stack.append((blocks, total))

    @property
    def empty(self) -> bool:
        """Whether nothing was pushed."""
        return not self._stack

    def finish(self) -> Total:
        """The sum of everything pushed."""
        total = self._stack[-1][1]
        for _, earlier in reversed(self._stack[:-1]):
            total = earlier + total
        return total


@dataclass(frozen=True)
class Aggregation:
    """From the sums over all clients to the aggregate; subclasses say what the sums mean."""

    def finish(self, total: Total, u: Params) -> Params:
        """The aggregate, from the sums and the old parameters U_{r-1}."""
        means = {name: self.mean(total, name, old.double()) for name, old in u.items()}
        return {name: mean.to(u[name].dtype) for name, mean in means.items()}

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        """The mean of one parameter in float64."""
        raise NotImplementedError


class MeanOverHolders(Aggregation):
    """Each row over the clients that sent it; the old value where nobody did."""

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        return old + total.moved[name] / total.holders[name].clamp(min=1e-300)


class MeanWithZeros(Aggregation):
    """The paper's mean: a row not sent counts as zero.

    Eq. (agg): U_r = sum_k |D^k| beta^k o U^k / sum_k |D^k|.
    """

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        return (total.holders[name] * old + total.moved[name]) / total.weight


class MeanWithOld(Aggregation):
    """A row not sent counts as unchanged: U_{r-1} stands in for it."""

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        return old + total.moved[name] / total.weight


@dataclass(frozen=True)
class MajorityVote(Aggregation):
    """signSGD: every client votes + 1 or - 1 on the entries it kept; U moves one step the way of the majority.

    Clients count alike, whatever their weight elsewhere; a tie, or no vote at all, leaves the old value.
    """

    step: float

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        return old + self.step * total.moved[name].sign()


AGGREGATIONS: dict[str, Aggregation] = {
    "holders": MeanOverHolders(),
    "zeros": MeanWithZeros(),
    "old": MeanWithOld(),
}


def server_step(u: Params, aggregate: Params, gamma: float) -> Params:
    """U_r = U_{r-1} + gamma (aggregate - U_{r-1}); gamma = 1 takes the aggregate as it is."""
    if gamma == 1.0:
        return aggregate
    return {name: old + gamma * (aggregate[name] - old) for name, old in u.items()}
