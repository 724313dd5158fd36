"""Algorithm 1, ClientUpdate: what happens on the clients in one round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbiad.arrays import ClientState, Losses, Params, Pattern
from fedbiad.cohort import Cohort
from fedbiad.methods.base import Method
from fedbiad.models.base import Model
from fedbiad.rows import Layout
from fedbiad.training.batches import Batch, LocalSamples
from fedbiad.training.compact import CompactStep, has_idle
from fedbiad.training.distillation import distilled_update
from fedbiad.training.learned import Learned, Stacked
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
    clip: float | None = None  # largest norm of a client's gradient

    def step_class(self) -> type[LocalStep]:
        """The form of the local step: compact where it is exact and clients can be stacked, else masked."""
        if self.form != "auto":
            return CompactStep if self.form == "compact" else MaskedStep
        decays_idle = bool(self.weight_decay) and has_idle(self.layout)
        return CompactStep if self.method.fixed_count and self.model.compacts and not decays_idle else MaskedStep


@dataclass(frozen=True)
class Trained:
    """A block of clients after local training, before anything is sent."""

    ids: tuple[int, ...]
    pattern: Pattern  # rows to upload [clients, rows]
    learned: Learned  # D^k; only rows in `pattern` count
    state: ClientState
    losses: Losses  # of the mini-batches [clients, V]
    usable: npt.NDArray[np.bool_]  # False: a loss or a weight is not finite
    checks: int  # of the loss trend, the same for every client
    resampled: npt.NDArray[np.bool_]  # iterations after which the pattern was changed [clients, V]
    noise_drawn: int = 0
    noise_weights: int = 0


def client_update(
    work: LocalTraining, received: Params, cohort: Cohort, data: LocalSamples, state: ClientState
) -> Trained:
    """ClientUpdate(U_{r-1}, r) for a block of clients at once; line numbers are those of Algorithm 1.

    `received` is U_{r-1} as each client got it [clients, ...]; rows it was not sent are never looked at.
    """
    method, layout, clients = work.method, work.layout, len(cohort)
    own = {name: value.clone(memory_format=torch.contiguous_format) for name, value in received.items()}
    pattern = method.first_pattern(layout, cohort, state, received)  # lines 10-14
    noise = Noise(work.noise_std, cohort.keys("noise"))
    scale = method.scale(layout, cohort)
    step = work.step_class()(  # line 9: U^{k,0} <- U_{r-1}
        work.model, layout, own, pattern,
        scale=scale if isinstance(scale, float) else torch.from_numpy(scale), noise=noise,
        learning_rate=work.learning_rate, weight_decay=work.weight_decay, clip=work.clip,
    )  # fmt: skip
    losses, trend = np.zeros((2, clients, work.iterations))
    held = np.zeros(pattern.shape, dtype=np.int64)
    resampled, checks = np.zeros((clients, work.iterations), dtype=np.bool_), 0
    watched, teacher = method.trend_loss(cohort.round), method.teacher(cohort)

    def objective(outputs: Tensor, batch: Batch) -> Tensor:
        return method.objective(outputs, batch, cohort)

    for v in range(work.iterations):  # line 15
        held += pattern
        batch = data.batch(v)
        unit_masks = cohort.unit_masks(work.model.dropout_sites, work.batch, work.dropout, v)
        if teacher is not None:
            losses[:, v] = distilled_update(step, teacher, pattern, v, batch, unit_masks, objective).numpy()
        else:
            theta = step.sample_weights(v)  # line 16
            if watched == "local":
                trend[:, v] = step.loss(theta, data.whole(), objective).numpy()
            losses[:, v] = step.update(theta, batch, unit_masks, objective).numpy()  # line 17
        if watched == "batch":
            trend[:, v] = losses[:, v]
        if method.is_check(cohort.round, v):  # lines 18-26
            pattern, state, resampled[:, v] = method.next_pattern(layout, cohort, v, trend, pattern, state)
            step.set_pattern(pattern)
            checks += 1
    learned = Stacked({name: value.sub_(received[name]) for name, value in step.finish().items()})
    sent, state = method.upload_pattern(layout, cohort, held, pattern, lambda: learned.row_norms(layout), state)
    usable = np.isfinite(losses).all(1) & learned.finite()
    return Trained(
        cohort.ids, sent, learned, state, losses, usable, checks, resampled, noise.drawn, noise.weights
    )  # line 28
