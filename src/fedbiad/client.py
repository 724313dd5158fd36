"""Algorithm 1, ClientUpdate: what happens on the clients in one round."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fedbiad.arrays import ClientState, Losses, Params, Pattern
from fedbiad.cohort import Cohort
from fedbiad.errors import PlanError
from fedbiad.methods.base import Method
from fedbiad.models.absent import BIAS
from fedbiad.models.base import Model
from fedbiad.rows import Layout
from fedbiad.training import dual, forms
from fedbiad.training.batches import LocalData, LocalSamples
from fedbiad.training.compact import CompactStep
from fedbiad.training.dual import DualTrainer, FusedTrainer
from fedbiad.training.forms import Form
from fedbiad.training.kernels import Course
from fedbiad.training.learned import Learned
from fedbiad.training.local_words import LocalWords, Softmax
from fedbiad.training.masked import MaskedStep
from fedbiad.training.step import Noise
from fedbiad.training.stepwise import Stepwise, Trainer


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
    largest: int | None = None  # samples of the client that has most, where they are plain vectors
    absent_words: Softmax = "exact"  # how words that are not in a client's data stand in its softmax
    asked_block: int | None = None  # clients trained side by side, if that is not left open

    @cached_property
    def chosen(self) -> tuple[Form, str]:
        """The form local training takes and why not a faster one; a form that was asked for must be exact."""
        alone = (self.asked_block or self._stacked) == 1
        regime = forms.Regime(self.weight_decay, self.dropout, self.clip, self.noise_std, self.largest, alone)
        if self.form == "auto":
            return forms.choose(self.method, self.model, self.layout, regime)
        obstacle = forms.dual_obstacle(self.method, self.model, self.layout, regime)
        if self.form in ("dual", "fused") and obstacle is not None:
            raise PlanError([f"engine.form = {self.form!r} is not exact here: {obstacle}; use 'auto'"], "engine")
        return self.form, "asked for"

    @property
    def block(self) -> int:
        """How many clients are trained side by side; else what is best: benchmarks/engine.py, benchmarks/lstm_step.py.

        The fused form gains until its calls no longer count; others until a block's weights leave the caches.
        """
        return self.asked_block or (50 if self.chosen[0] == "fused" else self._stacked)

    def laid_out(self, u: Params) -> Params:
        """U in memory as the form reads and sums it fastest; what is computed from it stays so."""
        return dual.laid_out(u) if self.chosen[0] == "fused" else u

    @property
    def _stacked(self) -> int:
        return max(1, min(20, 8_000_000 // self.layout.num_weights))

    def trainer(self, received: Params, cohort: Cohort, data: LocalSamples, pattern: Pattern, noise: Noise) -> Trainer:
        """The block of clients at the start of a round; line 9 of Algorithm 1: U^{k,0} <- U_{r-1}."""
        scale, form = self.method.scale(self.layout, cohort), self.chosen[0]
        if form in ("dual", "fused") and isinstance(data, LocalData):
            kind = FusedTrainer if form == "fused" else DualTrainer
            noise.weights += self.iterations * self.layout.num_weights * len(cohort) if self.noise_std else 0
            return kind(
                received, pattern, data, batch=self.batch, learning_rate=self.learning_rate, scale=scale,
                silenced=self.method.silenced(cohort),
            )  # fmt: skip
        words = LocalWords(data, self.model.shapes[BIAS][0]) if self.absent_words == "gaussian" else None
        begin = received if words is None else words.only(received)
        step = (MaskedStep if form == "masked" else CompactStep)(
            self.model, self.layout,
            {name: value.clone(memory_format=torch.contiguous_format) for name, value in begin.items()}, pattern,
            scale=scale if isinstance(scale, float) else torch.from_numpy(scale), noise=noise,
            learning_rate=self.learning_rate, weight_decay=self.weight_decay, clip=self.clip,
            absent=None if words is None else words.absent(received),
        )  # fmt: skip
        return Stepwise(step, begin, self.method, cohort, data, self.batch, self.dropout, words)


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
    method, layout = work.method, work.layout
    pattern = method.first_pattern(layout, cohort, state, received)  # lines 10-14
    noise = Noise(work.noise_std, cohort.keys("noise") if work.noise_std else [])
    trainer = work.trainer(received, cohort, data, pattern, noise)  # line 9
    checks = method.checks(cohort.round, work.iterations)
    only_units = len(layout.groups) == 1
    swaps = method.swaps(cohort, pattern) if isinstance(trainer, FusedTrainer) and only_units else None
    if isinstance(trainer, FusedTrainer) and swaps is not None:
        course = trainer.swap_along(pattern, swaps, work.iterations)
    else:
        course, state = _local_iterations(work, trainer, cohort, pattern, checks, state)
    learned = trainer.finish()
    sent, state = method.upload_pattern(
        layout, cohort, course.held, course.pattern, lambda: learned.row_norms(layout), state
    )
    usable = np.isfinite(course.losses).all(1) & learned.finite()
    return Trained(
        cohort.ids, sent, learned, state, course.losses, usable, len(checks), course.changed, noise.drawn, noise.weights
    )  # line 28


def _local_iterations(
    work: LocalTraining, trainer: Trainer, cohort: Cohort, pattern: Pattern, checks: Sequence[int], state: ClientState
) -> tuple[Course, ClientState]:
    """Lines 15-27, with the method asked at every check."""
    method, layout = work.method, work.layout
    losses, trend = np.zeros((2, len(pattern), work.iterations))
    held, changed = np.zeros(pattern.shape, dtype=np.int64), np.zeros(losses.shape, dtype=np.bool_)
    ends = sorted({0, *(v + 1 for v in checks), work.iterations})
    for first, last in itertools.pairwise(ends):  # line 15
        held += pattern * (last - first)
        losses[:, first:last], trend[:, first:last] = trainer.advance(first, last)  # lines 16-17
        if last - 1 in checks:  # lines 18-26
            pattern, state, changed[:, last - 1] = method.next_pattern(
                layout, cohort, last - 1, trend, pattern, lambda: trainer.row_norms(layout), state
            )
            trainer.set_pattern(pattern)
    return Course(losses, pattern, held, changed), state
