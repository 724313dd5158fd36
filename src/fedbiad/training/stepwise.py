"""Local training iteration by iteration: any model, any method, any form of the step."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from torch import Tensor

from fedbiad.arrays import FloatArray, Losses, Params, Pattern
from fedbiad.cohort import Cohort
from fedbiad.methods.base import Method
from fedbiad.rows import Layout
from fedbiad.training.batches import Batch, LocalSamples
from fedbiad.training.distillation import distilled_update
from fedbiad.training.learned import Learned, Stacked
from fedbiad.training.local_words import LocalWords
from fedbiad.training.step import LocalStep, Objective, plain_objective


class Trainer(Protocol):
    """A block of clients in local training."""

    def advance(self, first: int, last: int) -> tuple[Losses, Losses]:
        """Iterations `first` up to `last`: the losses of their mini-batches and those the trend looks at.

        Both [clients, iterations]. Lines 16 and 17 of Algorithm 1 for each.
        """
        ...

    def set_pattern(self, pattern: Pattern) -> None:
        """Hold other rows from now on; what dropped rows have learned is not lost."""
        ...

    def row_norms(self, layout: Layout) -> FloatArray:
        """||D^k_j||^2 of every row by now [clients, rows]."""
        ...

    def finish(self) -> Learned:
        """What was learned."""
        ...


class Stepwise:
    """One `LocalStep` after another."""

    def __init__(
        self,
        step: LocalStep,
        received: Params,
        method: Method,
        cohort: Cohort,
        data: LocalSamples,
        batch: int,
        dropout: float,
        words: LocalWords | None = None,
    ) -> None:
        self._step, self._received, self._method, self._cohort = step, received, method, cohort
        self._data: LocalSamples = words or data
        self._batch, self._dropout, self._words = batch, dropout, words
        own_loss = type(method).objective is not Method.objective or method.silenced(cohort) is not None
        self._objective: Objective = self._own_objective if own_loss else plain_objective

    def advance(self, first: int, last: int) -> tuple[Losses, Losses]:
        """Iterations `first` up to `last`, one by one."""
        losses, trend = np.zeros((2, len(self._cohort), last - first))
        for v in range(first, last):
            losses[:, v - first], trend[:, v - first] = self._iteration(v)
        return losses, trend

    def _iteration(self, v: int) -> tuple[Losses, Losses]:
        step, method, cohort, batch = self._step, self._method, self._cohort, self._data.batch(v)
        unit_masks = cohort.unit_masks(step.model.dropout_sites, self._batch, self._dropout, v)
        teacher = method.teacher(cohort)
        if teacher is not None:
            losses = distilled_update(step, teacher, step.pattern, v, batch, unit_masks, self._objective).numpy()
            return losses, losses
        theta = step.sample_weights(v)  # line 16
        whole = method.trend_loss(cohort.round) == "local"
        watched = step.loss(theta, self._data.whole(), self._objective).numpy() if whole else None
        losses = step.update(theta, batch, unit_masks, self._objective).numpy()  # line 17
        return losses, losses if watched is None else watched

    def _own_objective(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self._method.objective(outputs, batch, self._cohort)

    def set_pattern(self, pattern: Pattern) -> None:
        """Hold other rows from now on."""
        self._step.set_pattern(pattern)

    def finish(self) -> Stacked:
        """U^{k,V} - U_{r-1}, every weight written out."""
        return self._learned({name: value.sub_(self._received[name]) for name, value in self._step.trained().items()})

    def row_norms(self, layout: Layout) -> FloatArray:
        """As `finish` would have them by now; training can go on."""
        moved = {name: value - self._received[name] for name, value in self._step.trained().items()}
        return self._learned(moved).row_norms(layout)

    def _learned(self, moved: Params) -> Stacked:
        return Stacked(moved if self._words is None else self._words.everywhere(moved))
