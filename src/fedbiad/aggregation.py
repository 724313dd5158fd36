"""How the server averages rows that not every client sent. Streaming: `init`, `add` blocks of clients, `finish`.

The three means share their sums and differ in one line each. Sums are in float64, client by client in the order of
the cohort, so that the result does not depend on how clients were grouped into blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbiad.arrays import Params, Pattern
from fedbiad.rows import Layout, on_axis


@dataclass
class Total:
    """Running sums: sum_k |D^k| beta^k o U^k, the weight of the holders of each entry, and sum_k |D^k|."""

    values: Params
    holders: Params
    weight: float


@dataclass(frozen=True)
class Aggregation:
    """Sums over clients; subclasses say what the sums mean."""

    def init(self, layout: Layout) -> Total:
        """Empty sums."""
        zeros = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in layout.shapes.items()}
        return Total(zeros, {name: torch.zeros((), dtype=torch.float64) for name in zeros}, 0.0)

    def add(self, total: Total, layout: Layout, pattern: Pattern, u: Params, sizes: Sequence[int]) -> None:
        """Add a block of clients: parameters [clients, ...], rows sent [clients, rows], sizes |D^k|."""
        masks = layout.axis_masks(pattern, dtype=torch.float64)
        for name, values in u.items():
            factors = [on_axis(mask, axis, values.dim()) for axis, mask in masks.get(name, [])]
            for client, size in enumerate(sizes):
                held = torch.ones((), dtype=torch.float64)
                for factor in factors:
                    held = held * factor[client]
                total.values[name].add_(values[client].double() * held, alpha=size)
                total.holders[name] = total.holders[name] + size * held
        total.weight += float(sum(sizes))

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
        holders = total.holders[name].expand(old.shape)
        return torch.where(holders > 0, total.values[name] / holders.clamp(min=1e-300), old)


class MeanWithZeros(Aggregation):
    """The paper's mean: a row not sent counts as zero.

    Eq. (agg): U_r = sum_k |D^k| beta^k o U^k / sum_k |D^k|.
    """

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        return total.values[name] / total.weight


class MeanWithOld(Aggregation):
    """A row not sent counts as unchanged: U_{r-1} stands in for it."""

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        return (total.values[name] + (total.weight - total.holders[name]) * old) / total.weight


@dataclass(frozen=True)
class MajorityVote(Aggregation):
    """signSGD: every client votes U_{r-1} + 1 or - 1 on the entries it kept; U moves one step the way of the majority.

    Clients count alike, whatever their weight elsewhere; a tie, or no vote at all, leaves the old value.
    """

    step: float

    def mean(self, total: Total, name: str, old: Tensor) -> Tensor:
        # U +- 1 was rounded to float32, far below half a vote
        votes = (total.values[name] - total.holders[name] * old).round()
        return old + self.step * votes.sign()


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
