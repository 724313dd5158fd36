"""How the server averages rows that not every client sent: sums over blocks of clients, added up along a fixed tree.

A block sums its own clients; the tree depends only on how many blocks there are, so that the result is the same to the
bit wherever and in whatever order they were trained. The means share their sums and differ in one line each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedbiad import compiled
from fedbiad.arrays import Params, Pattern
from fedbiad.rows import Layout, RowGroup, on_axis


@dataclass(frozen=True)
class Total:
    """Sums over clients k of weight w_k, with D^k = U^k - U_{r-1}.

    `moved` is sum_k w_k beta^k o D^k, `holders` sum_k w_k beta^k (as far as it differs between entries), `weight`
    sum_k w_k. With w_k = |D^k|, holders o U_{r-1} + moved is the numerator of Eq. (agg). `known` is, for parameters
    with rows of words, sum_k w_k over the clients whose data contain the word; empty: words are as all other rows.
    """

    moved: Params
    holders: Params
    weight: float
    known: Params = field(default_factory=dict)

    def doubled(self) -> Total:
        """A copy in float64, to be added to."""
        return replace(self, moved={name: _doubled(value) for name, value in self.moved.items()})

    def __iadd__(self, other: Total) -> Total:
        moved = {name: value.add_(other.moved[name]) for name, value in self.moved.items()}
        holders = {name: value + other.holders[name] for name, value in self.holders.items()}
        known = {name: value + other.known[name] for name, value in self.known.items()}
        return Total(moved, holders, self.weight + other.weight, known)

    def __add__(self, other: Total) -> Total:
        total = self.doubled()
        total += other
        return total

    def asked(self, name: str) -> Tensor | float:
        """The weight of all clients that a parameter's mean is over, whether they sent it or not."""
        return self.known[name].clamp(min=1e-300) if name in self.known else self.weight


def _doubled(value: Tensor) -> Tensor:
    """A copy in float64."""
    return value.to(torch.float64, copy=True)


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
    each = torch.tensor(weights, dtype=torch.float64)
    if pattern.all():
        everyone = each.sum()
        return {name: everyone.view([1] * len(shape)) for name, shape in layout.shapes.items()}
    masks = layout.axis_masks(pattern, dtype=torch.float64)
    holders: Params = {}
    for name, shape in layout.shapes.items():
        held = each.view(-1, *[1] * len(shape))
        for axis, mask in masks.get(name, []):
            if not mask.all():  # else nothing differs along this axis
                held = held * on_axis(mask, axis, len(shape) + 1)
        holders[name] = held.sum(0)
    return holders


def count_known(layout: Layout, present: Pattern, weights: Sequence[float]) -> Params:
    """sum_k w_k over the clients that have a word, for each parameter with words; `present` [clients, words]."""
    by_word = Layout(layout.shapes, (RowGroup("words", layout.num_words, layout.words),))
    counts = count_holders(by_word, present, weights)
    return {part.param: counts[part.param] for part in layout.words}


@dataclass
class SumTree:
    """Adds totals of consecutive blocks in pairs, pairs of pairs, and so on: the order of a balanced tree.

    What is not added to an earlier one is copied at once: a server that waits for the next block has the time, and the
    place it stands in may be used again.
    """

    _stack: list[tuple[int, Total]] = field(default_factory=list)

    def push(self, total: Total, blocks: int = 1) -> None:
        """The next total; of several blocks already added up, if these are a whole branch of the tree or its end."""
        alone = True
        while self._stack and self._stack[-1][0] == blocks:
            before, earlier = self._stack.pop()
            earlier += total
            total, blocks, alone = earlier, before + blocks, False
        self._stack.append((blocks, total.doubled() if alone else total))

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
        means = {name: self.mean(total, name, _doubled(old)) for name, old in u.items()}
        return {name: mean.to(u[name].dtype) for name, mean in means.items()}

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        """The mean of one parameter in float64; `old` is a copy to be changed in place."""
        raise NotImplementedError

    def over(self, clients: str = "clients") -> str:
        """In words, over whom a row's mean goes that could be sent by these clients."""
        raise NotImplementedError


class MeanOverHolders(Aggregation):
    """Each row over the clients that sent it; the old value where nobody did.

    Of words told by presence, `holders` are the clients that have the word and whose pattern holds its row.
    """

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        return old.add_(total.moved[name] / total.holders[name].clamp(min=1e-300))

    def over(self, clients: str = "clients") -> str:
        return f"the {clients} that sent it"


class MeanWithZeros(Aggregation):
    """The paper's mean: a row not sent counts as zero.

    Eq. (agg): U_r = sum_k |D^k| beta^k o U^k / sum_k |D^k|. A word told by presence: both sums over the clients that
    have it; the old value where nobody does.
    """

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        mean = (total.holders[name] * old + total.moved[name]) / total.asked(name)
        return torch.where(total.known[name] > 0, mean, old) if name in total.known else mean

    def over(self, clients: str = "clients") -> str:
        return f"all {clients}, 0 where not sent"


class MeanWithOld(Aggregation):
    """A row not sent counts as unchanged: U_{r-1} stands in for it.

    A word told by presence: over the clients that have it.
    """

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        return old.add_(total.moved[name] / total.asked(name))

    def over(self, clients: str = "clients") -> str:
        return f"all {clients}, unchanged where not sent"


@dataclass(frozen=True)
class MajorityVote(Aggregation):
    """signSGD: every client votes + 1 or - 1 on the entries it kept; U moves one step the way of the majority.

    Clients count alike, whatever their weight elsewhere; a tie, or no vote at all, leaves the old value.
    """

    step: float

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        return old.add_(self.step * total.moved[name].sign())

    def over(self, clients: str = "clients") -> str:
        return f"the majority of the {clients} that sent it"


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
