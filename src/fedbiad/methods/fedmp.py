"""FedMP (Jiang et al. 2022): the server prunes a sub-model for each client, a bandit chooses how much.

Differs from the original, of which no code is public: the bandit is plain UCB over a fixed set of ratios, and the L1
norm of a row takes in all that is pruned with it (also the next layer's column). Each client has its own bandit; one
selected in a tenth of 60 rounds tries every arm about once, so its ratios stay near uniform over [0, p].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedbiad import patterns
from fedbiad.arrays import ClientState, FloatArray, IntArray, Params, Pattern, ServerState
from fedbiad.cohort import Cohort
from fedbiad.methods import seen
from fedbiad.methods.base import Reports, RowDropout
from fedbiad.rows import Layout

NEAR = 0.1
"""Completion times this share of the mean apart halve the reward of the best."""


@dataclass(frozen=True)
class FedMP(RowDropout):
    """The rows of smallest L1 norm are pruned; R2SP: a row not sent counts as unchanged in the mean."""

    aggregation: Literal["holders", "zeros", "old"] = "old"
    scaling: Literal["inverse", "none"] = "none"
    chosen_by: Literal["server", "client"] = "server"
    """Who prunes: the server by a bandit's ratio, or each client what it received, by a ratio uniform over [0, p]."""
    arms: Annotated[int, Field(ge=2)] = 5
    """Ratios the bandit chooses from, evenly spaced over [0, p]; those that prune equally many rows are one."""
    compute_seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1.0
    """Local training of the whole model on an ordinary device, for the completion times that rewards are made of."""

    @property
    def fixed_count(self) -> bool:
        return False

    def scale(self, layout: Layout, cohort: Cohort) -> float | FloatArray:
        """1/(1 - ratio), each client its own."""
        if self.scaling == "none":
            return 1.0
        own = self._drawn_ratios(cohort)
        if cohort.assigned is not None:
            ratios, kept = self.ratios(layout)
            own = ratios[np.searchsorted(kept, cohort.assigned.sum(1))]
        return 1.0 / (1.0 - own)

    @property
    def assigns_rows(self) -> bool:
        return self.chosen_by == "server"

    def init_server(self, layout: Layout) -> ServerState:
        if self.chosen_by == "client":
            return {}
        arms = np.zeros(len(self.ratios(layout)[0]))
        return {"loss": np.array([np.inf]), **seen.nothing(reward=arms, tried=arms.astype(np.int64))}

    def assign(self, layout: Layout, cohort: Cohort, server: ServerState, u: Params) -> Pattern | None:
        if self.chosen_by == "client":
            return None
        memory, places = seen.entries(_bandits(server), np.array(cohort.ids, dtype=np.int64))
        rewards, tried = memory["reward"].astype(np.float64)[places], memory["tried"].astype(np.int64)[places]
        arms = [best_arm(rewards[i], tried[i], cohort.stream(i, "arm")) for i in range(len(cohort))]
        norms = l1_norms(layout, {name: value.unsqueeze(0) for name, value in u.items()})
        return self._pruned(layout, cohort, norms.repeat(len(cohort), axis=0), self.ratios(layout)[0][arms])

    def observe(self, layout: Layout, server: ServerState, reports: Reports) -> ServerState:
        """Each client's arm earns its reward; the first round has no loss to compare with and teaches nothing."""
        if self.chosen_by == "client":
            return server
        before, loss = float(server["loss"].astype(np.float64)[0]), float(np.mean(reports.loss))
        if np.isinf(before):
            return {**server, "loss": np.array([loss])}
        memory, places = seen.entries(_bandits(server), np.array(reports.ids, dtype=np.int64))
        arms = np.searchsorted(self.ratios(layout)[1], reports.pattern.sum(1))
        seconds = reports.slowness * reports.kept * self.compute_seconds + reports.transfer
        rewards, tried = memory["reward"].astype(np.float64), memory["tried"].astype(np.int64)
        rewards[places, arms] += earned(before - loss, seconds)
        tried[places, arms] += 1
        return {**memory, "loss": np.array([loss]), "reward": rewards, "tried": tried}

    def first_pattern(
        self, layout: Layout, cohort: Cohort, state: ClientState, received: Params | None = None
    ) -> Pattern:
        if self.chosen_by == "server":
            return super().first_pattern(layout, cohort, state, received)
        norms = np.zeros((len(cohort), layout.num_rows)) if received is None else l1_norms(layout, received)
        return self._pruned(layout, cohort, norms, self._drawn_ratios(cohort))

    def ratios(self, layout: Layout) -> tuple[FloatArray, IntArray]:
        """The bandit's arms: ratios and, in ascending order, how many rows each keeps."""
        ratios = np.linspace(0.0, self.dropout_rate, self.arms)
        sizes = [rows.stop - rows.start for rows in patterns.scopes(layout, self.scope)]
        kept, distinct = np.unique(
            [sum(patterns.kept_count(size, ratio) for size in sizes) for ratio in ratios], return_index=True
        )
        return ratios[distinct], kept

    def _drawn_ratios(self, cohort: Cohort) -> FloatArray:
        return np.array([cohort.stream(i, "ratio").uniform(0.0, self.dropout_rate) for i in range(len(cohort))])

    def _pruned(self, layout: Layout, cohort: Cohort, norms: FloatArray, ratios: FloatArray) -> Pattern:
        each = zip(norms, ratios.tolist(), cohort.luck("pattern", layout.num_rows), strict=True)
        return np.stack([patterns.top(layout, own, ratio, luck, self.scope) for own, ratio, luck in each])


def l1_norms(layout: Layout, u: Params) -> FloatArray:
    """Sum of the absolute weights of every row over all its slices [clients, rows]."""
    return layout.row_norms({name: value.double().abs().sqrt() for name, value in u.items()})


def best_arm(rewards: FloatArray, tried: IntArray, stream: np.random.Generator) -> int:
    """UCB: an untried arm, else that of largest mean reward + sqrt(2 ln n / n_arm); ties at random."""
    times = np.maximum(tried, 1)
    bound = rewards / times + np.sqrt(2.0 * np.log(max(int(tried.sum()), 1)) / times)
    order = stream.permutation(len(tried))
    return int(order[np.argmax(np.where(tried == 0, np.inf, bound)[order])])


def earned(decrease: float, seconds: FloatArray) -> FloatArray:
    """Rewards in [0, 1]: decrease / (|T_k - mean T| + NEAR mean T), as shares of the round's largest; 0 after a rise.

    The decrease is common to all clients of a round, so that its size cancels and its sign remains.
    """
    gap = np.abs(seconds - seconds.mean()) + NEAR * seconds.mean()
    if decrease <= 0:
        return np.zeros(len(seconds))
    shares: FloatArray = np.ones(len(seconds)) if gap.max() == 0 else gap.min() / gap
    return shares


def _bandits(server: ServerState) -> ServerState:
    return {name: part for name, part in server.items() if name != "loss"}
