"""What a method decides. The defaults are FedAvg; a dropout method overrides what it does differently.

A method is a frozen dataclass of its hyperparameters with pure functions: all state is passed in and returned. Every
hook works on a block of clients at once (arrays [clients, rows]) and takes random draws from the cohort's streams only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from fedbiad import patterns
from fedbiad.arrays import ClientState, FloatArray, IntArray, Losses, Params, Pattern, ServerState
from fedbiad.cohort import Cohort
from fedbiad.rows import Layout, RowKind
from fedbiad.theory import Structure
from fedbiad.training.batches import Batch
from fedbiad.training.objective import cross_entropy

Resampled = Pattern
"""Which clients of a block changed their pattern at a check [clients]."""


@dataclass(frozen=True)
class Reports:
    """What the server learns of the clients of a round, beside their rows; arrays [clients]."""

    ids: tuple[int, ...]
    loss: FloatArray
    """Mean loss of the local iterations."""
    kept: FloatArray
    """Share of the weights that the uploaded rows have, whatever words the client lacks."""
    transfer: FloatArray
    """Seconds of download and upload on the client's link."""
    slowness: FloatArray
    """How many times slower than an ordinary device the client computes."""
    pattern: Pattern
    """Rows that were uploaded [clients, rows]."""


@dataclass(frozen=True)
class Method:
    """FedAvg's answers to every question a method is asked."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    aggregation: Literal["holders", "zeros", "old"] = "holders"
    weighting: Literal["samples", "clients"] = "samples"
    """What a client weighs in the mean: its |D^k| samples, or as much as any other."""

    # ------------------------------------------------------------------ what does not change during a run

    @property
    def row_kind(self) -> RowKind:
        """What one dropping label drops."""
        return "units"

    @property
    def fixed_count(self) -> bool:
        """Whether all clients always hold equally many rows of each group, so that a block of them can be stacked."""
        return True

    def noise_std(self, structure: Structure, total_data: int) -> float:
        """Standard deviation of the posterior noise on the weights."""
        return 0.0

    # ------------------------------------------------------------------ on the server

    @property
    def assigns_rows(self) -> bool:
        """Whether the server sends each client some rows alone."""
        return False

    def init_server(self, layout: Layout) -> ServerState:
        """What the server remembers before the first round."""
        return {}

    def assign(self, layout: Layout, cohort: Cohort, server: ServerState, u: Params) -> Pattern | None:
        """The rows each client of the round is sent [clients, rows]; None: all rows to everyone."""
        return None

    def observe(self, layout: Layout, server: ServerState, reports: Reports) -> ServerState:
        """What the server remembers after a round."""
        return server

    # ------------------------------------------------------------------ on the clients

    def init_client(self, layout: Layout) -> ClientState:
        """What a client remembers before its first round."""
        return {}

    def scale(self, layout: Layout, cohort: Cohort) -> float | FloatArray:
        """Factor on the scaled slices of held rows in local training: one for all, or one a client [clients]."""
        return 1.0

    def trend_loss(self, round_: int) -> Literal["batch", "local"]:
        """The loss handed to `next_pattern`: of the mini-batch, or over the client's whole local data."""
        return "batch"

    def objective(self, outputs: Tensor, batch: Batch, cohort: Cohort) -> Tensor:
        """What a client minimises, from outputs [clients, batch, classes] to losses [clients]."""
        silenced = self.silenced(cohort)
        if silenced is not None:
            outputs = outputs.masked_fill(torch.from_numpy(silenced)[:, None, :], 0.0)
        return cross_entropy(outputs, batch.targets, batch.weight)

    def silenced(self, cohort: Cohort) -> Pattern | None:
        """Classes whose logits are 0 in a client's training, whatever its weights [clients, classes]; None: none."""
        return None

    @property
    def looks_at_classes(self) -> bool:
        """Whether a client's own classes matter (`Cohort.present`)."""
        return False

    @property
    def distils(self) -> bool:
        """Whether there is a `teacher`."""
        return False

    def teacher(self, cohort: Cohort) -> Pattern | None:
        """The pattern whose outputs the held rows also learn to imitate in every iteration; None: no distillation."""
        return None

    def first_pattern(
        self, layout: Layout, cohort: Cohort, state: ClientState, received: Params | None = None
    ) -> Pattern:
        """The pattern a client's local training starts with: all that it was sent.

        `received` is U_{r-1} as each client got it [clients, ...]; None where a plan is only described.
        """
        return layout.all_rows(len(cohort)) if cohort.assigned is None else cohort.assigned

    def checks(self, round_: int, iterations: int) -> range:
        """After which iterations `next_pattern` is asked."""
        return range(0)

    def next_pattern(
        self,
        layout: Layout,
        cohort: Cohort,
        step: int,
        losses: Losses,
        pattern: Pattern,
        evidence: Callable[[], FloatArray],
        state: ClientState,
    ) -> tuple[Pattern, ClientState, Resampled]:
        """The pattern for the iterations after `step`, given the losses so far [clients, iterations].

        `evidence()` is ||mu - mu_received||^2 of every row [clients, rows] by now, computed only when asked for.
        """
        return pattern, state, np.zeros(len(pattern), dtype=np.bool_)

    def swaps(self, cohort: Cohort, pattern: Pattern) -> patterns.Swaps | None:
        """What `next_pattern` comes to in this round, if no more than to swap rows by the losses of mini-batches."""
        return None

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

        `evidence()` is as for `next_pattern`, at the end of the round.
        """
        return pattern, state


@dataclass(frozen=True)
class RowDropout(Method):
    """What every method that drops a share p of the rows has in common."""

    dropout_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    rows: RowKind = "units"
    scope: patterns.Scope = "group"
    scaling: Literal["inverse", "none"] = "inverse"

    @property
    def row_kind(self) -> RowKind:
        return self.rows

    @property
    def fixed_count(self) -> bool:
        return self.scope == "group"

    def scale(self, layout: Layout, cohort: Cohort) -> float | FloatArray:
        """1/(1-p) keeps the mean input of the next layer: the posterior mean of a row is (1-p) mu."""
        return 1.0 / (1.0 - self.dropout_rate) if self.scaling == "inverse" else 1.0

    def draw(self, layout: Layout, luck: FloatArray) -> Pattern:
        """Patterns drawn uniformly from Z^S_N."""
        return patterns.draw(layout, self.dropout_rate, luck, self.scope)

    def draw_each(self, layout: Layout, cohort: Cohort) -> Pattern:
        """A pattern for each client, by its own luck [clients, rows]."""
        return self.draw(layout, cohort.luck("pattern", layout.num_rows))
