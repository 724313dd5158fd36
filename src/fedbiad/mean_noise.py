"""By how much the server's mean of a round varies: who was selected, what each then drew, what their messages add."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedbiad import theory
from fedbiad.aggregation import Aggregation, Total, count_known, sum_block
from fedbiad.arrays import FloatArray, Params, Pattern
from fedbiad.payloads import Float32
from fedbiad.rows import Layout
from fedbiad.sending import unflatten


@dataclass(frozen=True, eq=False)
class Learned:
    """What one client learned: the rows it uploads [rows], its changes [N], 0 elsewhere, and what it counts for."""

    client: int
    weight: int
    pattern: Pattern
    delta: Float32
    present: Pattern | None = None
    """The words it has, where it sends no others."""

    def sent(self, layout: Layout) -> Pattern:
        """The rows of `layout.sent` that it uploads."""
        return self.pattern if self.present is None else layout.sent_rows(self.pattern, self.present)

    def total(self, layout: Layout, sign: int = 1) -> Total:
        """Its part of the server's sums; with -1, what takes it out of them again."""
        weights, moved = [sign * self.weight], unflatten(layout, self.delta[None])
        total = sum_block(layout.sent, self.sent(layout)[None], moved, weights)
        if self.present is None:
            return total
        return replace(total, known=count_known(layout, self.present[None], weights))


@dataclass(frozen=True, eq=False)
class MeanNoise:
    """Clients and the server's mean of them."""

    clients: list[Learned]
    layout: Layout
    rule: Aggregation
    u: Params
    """U in float64."""
    total: Total
    mean: FloatArray
    """Their mean [N]."""
    gain: FloatArray
    """How far the mean goes with one unit of a client's weighted change [N]; means nothing where no one sends."""

    @classmethod
    def of(cls, clients: list[Learned], layout: Layout, rule: Aggregation, u: Params) -> MeanNoise:
        """Sum the clients up."""
        old = {name: u[name].double() for name in layout.shapes}
        total = clients[0].total(layout)
        for one in clients[1:]:
            total = total + one.total(layout)
        total = replace(total, moved={name: value.double() for name, value in total.moved.items()})
        ones = replace(total, moved={name: torch.ones_like(value) for name, value in old.items()})
        gain = _flat(rule.finish(ones, {name: torch.zeros_like(value) for name, value in old.items()}))
        return cls(clients, layout, rule, old, total, _flat(rule.finish(total, old)), gain)

    @property
    def update(self) -> float:
        """||mean - U||^2."""
        return float(np.square(self.mean - _flat(self.u)).sum())

    def between(self) -> float:
        """S^2, such that S^2 / n is the variance of a mean of n such clients: the jackknife, each left out in turn."""
        moved = sum(self._moved(self.total + one.total(self.layout, -1)) for one in self.clients)
        return (len(self.clients) - 1) * moved

    def within(self, again: Iterable[Learned]) -> float:
        """W, the part of S^2 within a client: each in turn replaced by itself with other draws."""
        known, moved = {one.client: one for one in self.clients}, []
        for other in again:
            one = known.get(other.client)
            if one is not None:
                moved.append(self._moved(self.total + one.total(self.layout, -1) + other.total(self.layout)))
        return len(self.clients) ** 2 * float(np.mean(moved)) / 2 if moved else 0.0

    def added(self, one: Learned, step: float, floor: float = 0.0) -> tuple[float, float]:
        """The variance of a client's message with this step and floor, and its part in that of the mean."""
        kept = self.layout.sent.kept_entries(one.sent(self.layout))
        variances = theory.rounding_variances(one.delta[kept].astype(np.float64), step, floor)
        return float(variances.sum()), float((np.square(one.weight * self.gain[kept]) * variances).sum())

    def _moved(self, total: Total) -> float:
        """How far another mean is from this one, squared."""
        return float(np.square(_flat(self.rule.finish(total, self.u)) - self.mean).sum())


def _flat(params: Params) -> FloatArray:
    return np.concatenate([value.numpy().ravel() for value in params.values()])
