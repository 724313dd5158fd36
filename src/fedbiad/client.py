"""Algorithm 1, ClientUpdate: what happens on the clients in one round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from fedbiad.arrays import ClientState, IntArray, Losses, Params, Pattern
from fedbiad.cohort import Cohort
from fedbiad.methods.base import Method
from fedbiad.models.base import Model
from fedbiad.rows import Layout
from fedbiad.training.batches import LocalData
from fedbiad.training.compact import CompactStep, has_idle
from fedbiad.training.masked import MaskedStep
from fedbiad.training.step import Form, LocalStep, Noise


@dataclass(frozen=True)
class LocalTraining:
    """What every client of a run is told once: the method, the model and how to train."""

    method: Method
    model: Model
    layout: Layout
    iterations: int  # V
    batch: int
    learning_rate: float  # eta
    weight_decay: float = 0.0
    dropout: float = 0.0  # ordinary dropout inside local training, a regulariser apart from what is uploaded
    noise_std: float = 0.0  # posterior standard deviation
    form: Form = "auto"

    def step_class(self) -> type[LocalStep]:
        """The form of the local step: compact where it is exact and clients can be stacked, else masked."""
        if self.form != "auto":
            return CompactStep if self.form == "compact" else MaskedStep
        decays_idle = bool(self.weight_decay) and has_idle(self.layout)
        return CompactStep if self.method.fixed_count and self.model.compacts and not decays_idle else MaskedStep


@dataclass(frozen=True)
class Updates:
    """What a block of clients sends back, and what is told about how it went."""

    ids: tuple[int, ...]
    pattern: Pattern  # rows uploaded [clients, rows]
    u: Params  # trained parameters [clients, ...]; only rows in `pattern` count
    state: ClientState
    losses: Losses  # of the mini-batches [clients, V]
    usable: npt.NDArray[np.bool_]  # False: a loss or a weight is not finite
    checks: int  # of the loss trend, the same for every client
    resampled: IntArray  # checks after which the pattern was changed [clients]
    noise_drawn: int = 0
    noise_weights: int = 0

    def only_usable(self) -> Updates:
        """The same without the clients that failed."""
        if self.usable.all():
            return self
        good = np.flatnonzero(self.usable)
        return replace(
            self, ids=tuple(self.ids[i] for i in good), pattern=self.pattern[good],
            u={name: value[good] for name, value in self.u.items()},
            state={name: value[good] for name, value in self.state.items()},
            losses=self.losses[good], usable=self.usable[good], resampled=self.resampled[good],
        )  # fmt: skip


def client_update(work: LocalTraining, u: Params, cohort: Cohort, data: LocalData, state: ClientState) -> Updates:
    """ClientUpdate(U_{r-1}, r) for a block of clients at once; line numbers are those of Algorithm 1."""
    method, layout, clients = work.method, work.layout, len(cohort)
    received = {name: value.unsqueeze(0).repeat(clients, *[1] * value.dim()) for name, value in u.items()}
    pattern = method.first_pattern(layout, cohort, state)  # lines 10-14
    noise = Noise(work.noise_std, cohort.keys("noise"))
    step = work.step_class()(  # line 9: U^{k,0} <- U_{r-1}
        work.model, layout, received, pattern,
        scale=method.scale, noise=noise, learning_rate=work.learning_rate, weight_decay=work.weight_decay,
    )  # fmt: skip
    losses, trend = np.zeros((2, clients, work.iterations))
    held = np.zeros(pattern.shape, dtype=np.int64)
    resampled, checks = np.zeros(clients, dtype=np.int64), 0
    watched = method.trend_loss(cohort.round)
    for v in range(work.iterations):  # line 15
        held += pattern
        theta = step.sample_weights(v)  # line 16
        if watched == "local":
            trend[:, v] = step.loss(theta, data.whole()).numpy()
        unit_masks = cohort.unit_masks(work.model.dropout_sites, work.batch, work.dropout, v)
        losses[:, v] = step.update(theta, data.batch(v), unit_masks).numpy()  # line 17
        if watched == "batch":
            trend[:, v] = losses[:, v]
        if method.is_check(cohort.round, v):  # lines 18-26
            pattern, state, changed = method.next_pattern(layout, cohort, v, trend, pattern, state)
            step.set_pattern(pattern)
            resampled += changed
            checks += 1
    trained = step.finish()
    sent, state = method.upload_pattern(
        layout, cohort, held, pattern, lambda: layout.row_norms(_difference(trained, u)), state
    )
    usable = np.isfinite(losses).all(1) & _finite(trained)
    return Updates(
        cohort.ids, sent, trained, state, losses, usable, checks, resampled, noise.drawn, noise.weights
    )  # line 28


def _difference(trained: Params, u: Params) -> Params:
    return {name: value - u[name] for name, value in trained.items()}


def _finite(params: Params) -> npt.NDArray[np.bool_]:
    finite = [torch.isfinite(value.flatten(1).sum(1)).numpy() for value in params.values()]
    usable: npt.NDArray[np.bool_] = np.logical_and.reduce(finite)
    return usable
