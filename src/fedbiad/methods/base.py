"""What a method decides. The defaults are FedAvg; a dropout method overrides what it does differently.

A method is a frozen dataclass of its hyperparameters with pure functions: all state is passed in and returned. Every
hook works on a block of clients at once (arrays [clients, rows]) and takes random draws from the cohort's streams only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field

from fedbiad import patterns
from fedbiad.arrays import ClientState, FloatArray, IntArray, Losses, Pattern
from fedbiad.cohort import Cohort
from fedbiad.rows import Layout, RowKind
from fedbiad.theory import Structure

Resampled = Pattern
"""Which clients of a block changed their pattern at a check [clients]."""


@dataclass(frozen=True)
class Method:
    """FedAvg's answers to every question a method is asked."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    aggregation: Literal["holders", "zeros", "old"] = "holders"

    @property
    def row_kind(self) -> RowKind:
        """What one dropping label drops."""
        return "units"

    @property
    def scale(self) -> float:
        """Factor on the scaled slices of held rows in local training."""
        return 1.0

    def trend_loss(self, round_: int) -> Literal["batch", "local"]:
        """The loss handed to `next_pattern`: of the mini-batch, or over the client's whole local data."""
        return "batch"

    @property
    def fixed_count(self) -> bool:
        """Whether every pattern holds equally many rows of each group, so that clients of a block can be stacked."""
        return True

    def init_client(self, layout: Layout) -> ClientState:
        """What a client remembers before its first round."""
        return {}

    def noise_std(self, structure: Structure, total_data: int) -> float:
        """Standard deviation of the posterior noise on the weights."""
        return 0.0

    def first_pattern(self, layout: Layout, cohort: Cohort, state: ClientState) -> Pattern:
        """The pattern a client's local training starts with."""
        return layout.all_rows(len(cohort))

    def is_check(self, round_: int, step: int) -> bool:
        """Whether `next_pattern` is asked after iteration `step`."""
        return False

    def next_pattern(
        self, layout: Layout, cohort: Cohort, step: int, losses: Losses, pattern: Pattern, state: ClientState
    ) -> tuple[Pattern, ClientState, Resampled]:
        """The pattern for the iterations after `step`, given the losses so far [clients, iterations]."""
        return pattern, state, np.zeros(len(pattern), dtype=np.bool_)

    def upload_pattern(
        self,
        layout: Layout,
        cohort: Cohort,
        held: IntArray,
        pattern: Pattern,
        evidence: Callable[[], FloatArray],
        state: ClientState,
    ) -> tuple[Pattern, ClientState]:
        """The rows to upload, given for how many iterations each was held [clients, rows] and the final pattern.

        `evidence()` is ||mu_end - mu_received||^2 of every row, computed only when asked for.
        """
        return pattern, state


@dataclass(frozen=True)
class RowDropout(Method):
    """What every method that drops rows has in common."""

    dropout_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    rows: RowKind = "units"
    scope: patterns.Scope = "group"
    scaling: Literal["inverse", "none"] = "inverse"

    @property
    def row_kind(self) -> RowKind:
        return self.rows

    @property
    def scale(self) -> float:
        """1/(1-p) keeps the mean input of the next layer: the posterior mean of a row is (1-p) mu."""
        return 1.0 / (1.0 - self.dropout_rate) if self.scaling == "inverse" else 1.0

    @property
    def fixed_count(self) -> bool:
        return self.scope == "group"

    def draw(self, layout: Layout, stream: np.random.Generator) -> Pattern:
        """One pattern drawn uniformly from Z^S_N."""
        return patterns.draw(layout, self.dropout_rate, stream, self.scope)

    def first_pattern(self, layout: Layout, cohort: Cohort, state: ClientState) -> Pattern:
        return cohort.patterns("pattern", lambda _, stream: self.draw(layout, stream))
