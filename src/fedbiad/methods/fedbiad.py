"""FedBIAD: Bayesian inference-based adaptive dropout, the method of the paper.

Stage one (rounds 1 .. R_b): start from a random pattern; every tau iterations, if the loss rose, change the pattern;
learn a score for every row. Stage two: hold rows by their scores. Where the paper is ambiguous or was measured
to fail, the reading is an option; `docs/readings.md` has what each is worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedbiad import importance, loss_trend, patterns, theory
from fedbiad.arrays import ClientState, FloatArray, IntArray, Losses, Params, Pattern
from fedbiad.cohort import Cohort
from fedbiad.methods.base import Resampled, RowDropout
from fedbiad.rows import Layout

LINE = "line"
"""What a client remembers within a round: how many rows are before each one, in the line to leave or to come."""


@dataclass(frozen=True)
class FedBIAD(RowDropout):
    """The default reading; `LETTER` below is the paper's text to the letter."""

    interval: Annotated[int, Field(ge=1)] = 3
    """tau: iterations between two checks of the loss trend."""
    stage_boundary: Annotated[int, Field(ge=0)] = 55
    """R_b: the last round of stage one."""
    trend: Literal["batch", "local"] = "batch"
    """The loss that drives the trend: of the mini-batch, or over all local data as in Eq. (loss_goal)."""
    resample: Literal["swap", "anew"] = "swap"
    """On a positive gap: swap a share of the held rows, or draw the whole pattern anew."""
    swap_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """Share of the held rows that a swap exchanges: in turn, in an order that each client draws once a round."""
    upload: Literal["longest", "final"] = "longest"
    """Rows uploaded: those held for most iterations of the round, or the final pattern."""
    score: Literal["evidence", "holds"] = "evidence"
    """What feeds E^k: ranks of the rows' evidence, or Eq. (score_update)."""
    stage_two: Literal["sample", "top", "above"] = "sample"
    """Rows held: (1-p) drawn in proportion to their scores, the (1-p) of highest score, or all above the p-quantile."""
    noise: Literal["posterior"] | Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = "posterior"
    """Posterior noise: as Eq. (same_variance), or a fixed standard deviation (0 = none)."""

    def trend_loss(self, round_: int) -> Literal["batch", "local"]:
        """Stage two never looks at it, so there the cheap one will do."""
        return self.trend if round_ <= self.stage_boundary else "batch"

    @property
    def fixed_count(self) -> bool:
        return self.scope == "group" and self.stage_two != "above"

    def init_client(self, layout: Layout) -> ClientState:
        return {"score": np.zeros(layout.num_rows), "holds": np.zeros(layout.num_rows, dtype=np.int64)}

    def noise_std(self, structure: theory.Structure, total_data: int) -> float:
        if self.noise != "posterior":
            return self.noise
        return theory.posterior_std(structure, structure.unsparse_number(self.dropout_rate), total_data)

    def first_pattern(
        self, layout: Layout, cohort: Cohort, state: ClientState, received: Params | None = None
    ) -> Pattern:
        """Lines 10-14 of Algorithm 1: at random in stage one, from the scores E^k in stage two."""
        if cohort.round <= self.stage_boundary:
            return self.draw_each(layout, cohort)
        luck = cohort.luck("pattern", layout.num_rows)
        return STAGE_TWO[self.stage_two](layout, self._scores(state), self.dropout_rate, luck, self.scope)

    def checks(self, round_: int, iterations: int) -> range:
        """Line 18: only in stage one, every tau iterations from 2 tau on."""
        return loss_trend.checks(iterations if round_ <= self.stage_boundary else 0, self.interval)

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
        """Lines 19-26: a positive loss gap changes the pattern; then the scores learn."""
        gap = loss_trend.loss_gap(losses, step, self.interval)
        worse = gap > 0
        following = pattern.copy()
        if worse.any() and self.resample == "anew":
            following[worse] = self.draw(layout, cohort.only(worse).luck("resample", layout.num_rows, step))
        elif worse.any():
            before = state.get(LINE)
            if before is None:  # nobody has swapped in this round
                before = patterns.line_up(layout, pattern, cohort.order("resample", layout.num_rows), self.scope)
            lines = before.astype(np.int64)
            following[worse], lines[worse] = patterns.swap(
                layout, pattern[worse], lines[worse], self.swap_share, self.scope
            )
            state = {**state, LINE: lines}
        if self.score == "holds":
            state = {**state, "score": importance.update_scores(_float(state["score"]), pattern, gap, following)}
        return following, state, worse

    def swaps(self, cohort: Cohort, pattern: Pattern) -> patterns.Swaps | None:
        own_rule = type(self).next_pattern is not FedBIAD.next_pattern
        plain = self.resample == "swap" and self.trend == "batch" and self.score == "evidence"
        if own_rule or not plain or cohort.round > self.stage_boundary:
            return None
        keys = np.array(cohort.keys("resample"), dtype=np.uint64)
        return patterns.Swaps(self.interval, patterns.swapped_rows(pattern, self.swap_share), keys)

    def upload_pattern(
        self,
        layout: Layout,
        cohort: Cohort,
        held: IntArray,
        pattern: Pattern,
        evidence: Callable[[], FloatArray],
        state: ClientState,
    ) -> tuple[Pattern, ClientState]:
        """The rows to send, and (stage one) the evidence they gathered into the scores."""
        sent, state = pattern, {name: kept for name, kept in state.items() if name != LINE}
        if self.upload == "longest" and cohort.round <= self.stage_boundary:
            luck = cohort.luck("upload", layout.num_rows)
            sent = patterns.top(layout, _float(held), self.dropout_rate, luck, self.scope)
        if self.score == "evidence" and cohort.round <= self.stage_boundary:
            ranks = importance.evidence_ranks(layout, evidence(), sent)
            state = {**state, "score": _float(state["score"]) + ranks, "holds": state["holds"] + sent}
        return sent, state

    def _scores(self, state: ClientState) -> FloatArray:
        """E^k as used in stage two: the mean rank per hold, or the bare count."""
        if self.score == "evidence":
            return importance.mean_scores(_float(state["score"]), state["holds"].astype(np.int64))
        return _float(state["score"])


StageTwo = Callable[[Layout, FloatArray, float, FloatArray, patterns.Scope], Pattern]
STAGE_TWO: dict[str, StageTwo] = {"sample": patterns.weighted, "top": patterns.top, "above": importance.above_threshold}
"""The patterns of stage two from the clients' scores."""

LETTER = FedBIAD(
    aggregation="zeros",
    rows="weight-rows",
    scope="global",
    scaling="none",
    trend="local",
    resample="anew",
    upload="final",
    score="holds",
    stage_two="above",
)
"""Every option as the paper's text has it."""


def _float(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> FloatArray:
    return array.astype(np.float64)
