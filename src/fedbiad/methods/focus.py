"""Focus: a few iterations of the whole model, then only the rows that learned most from them.

The rows not chosen are left out of the rest of the round, as rows not held are in every method: their units output
nothing, and nothing is computed for them. What they learned in the first iterations is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedbiad import patterns
from fedbiad.arrays import ClientState, FloatArray, IntArray, Losses, Pattern
from fedbiad.cohort import Cohort
from fedbiad.methods.base import Resampled, RowDropout
from fedbiad.rows import Layout


@dataclass(frozen=True)
class Focus(RowDropout):
    """The (1-p) rows of most evidence after the first iterations are trained on and uploaded."""

    scaling: Literal["none"] = "none"
    """Rows are chosen because they matter, not drawn: what they miss is less than a share p, and not made up for."""
    full_steps: Annotated[int, Field(ge=1)] = 3
    """Iterations with all rows, before the choice."""

    def checks(self, round_: int, iterations: int) -> range:
        return range(self.full_steps - 1, min(self.full_steps, iterations))

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
        """The choice; every client makes it, so that it is not counted as a change."""
        return self._chosen(layout, cohort, evidence), state, np.zeros(len(pattern), dtype=np.bool_)

    def upload_pattern(
        self,
        layout: Layout,
        cohort: Cohort,
        held: IntArray,
        pattern: Pattern,
        evidence: Callable[[], FloatArray],
        state: ClientState,
    ) -> tuple[Pattern, ClientState]:
        """The rows chosen; where the round was over before, they are chosen now."""
        return (self._chosen(layout, cohort, evidence) if pattern.all() else pattern), state

    def _chosen(self, layout: Layout, cohort: Cohort, evidence: Callable[[], FloatArray]) -> Pattern:
        luck = cohort.luck("pattern", layout.num_rows)
        return patterns.top(layout, evidence(), self.dropout_rate, luck, self.scope)
