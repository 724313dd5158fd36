"""FjORD (Horvath et al. 2021): ordered dropout, a width sampled for every local iteration up to a client's tier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbiad.arrays import ClientState, FloatArray, IntArray, Losses, Params, Pattern
from fedbiad.cohort import Cohort
from fedbiad.methods.base import Resampled
from fedbiad.methods.widths import NestedWidths, Widths, nested
from fedbiad.rows import Layout


@dataclass(frozen=True)
class FjORD(NestedWidths):
    """The sub-model of the tier is sent both ways; each iteration trains one of the sub-models nested in it."""

    widths: Literal["dropout"] | Widths = (0.2, 0.4, 0.6, 0.8, 1.0)
    distillation: bool = False
    """Each iteration trains the tier's sub-model on the labels, and the sampled one to answer as that one does."""

    def first_pattern(
        self, layout: Layout, cohort: Cohort, state: ClientState, received: Params | None = None
    ) -> Pattern:
        return self._sampled(layout, cohort, 0)

    def checks(self, round_: int, iterations: int) -> range:
        return range(iterations)

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
        """The next iteration's width; a change is the rule and not counted as one."""
        return self._sampled(layout, cohort, step + 1), state, np.zeros(len(cohort), dtype=np.bool_)

    def upload_pattern(
        self,
        layout: Layout,
        cohort: Cohort,
        held: IntArray,
        pattern: Pattern,
        evidence: Callable[[], FloatArray],
        state: ClientState,
    ) -> tuple[Pattern, ClientState]:
        """The tier's sub-model, whatever width came last."""
        return pattern if cohort.assigned is None else cohort.assigned, state

    @property
    def distils(self) -> bool:
        return self.distillation

    def teacher(self, cohort: Cohort) -> Pattern | None:
        return cohort.assigned if self.distillation else None

    def _sampled(self, layout: Layout, cohort: Cohort, step: int) -> Pattern:
        """A width for each client, uniform over those up to its tier."""
        levels = self.levels
        up_to = np.searchsorted(levels, self.tiers(cohort), side="right").tolist()
        drawn = [cohort.stream(i, f"width/{step}").integers(count) for i, count in enumerate(up_to)]
        return nested(layout, levels[drawn])
