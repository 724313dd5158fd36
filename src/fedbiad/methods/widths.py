"""Nested widths: the first rows of every group, so that a narrow sub-model lies inside every wider one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedbiad import streams
from fedbiad.arrays import FloatArray, IntArray, Params, Pattern, ServerState
from fedbiad.cohort import Cohort
from fedbiad.methods.base import Method
from fedbiad.rows import Layout

Widths = Annotated[tuple[Annotated[float, Field(gt=0.0, le=1.0)], ...], Field(min_length=1)]


@dataclass(frozen=True)
class NestedWidths(Method):
    """What FjORD and HeteroFL have in common: a client's tier is the widest sub-model it trains."""

    dropout_rate: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
    """p; counts only with widths = "dropout"."""
    widths: Literal["dropout"] | Widths = (1.0,)
    """The tiers as shares of the rows; "dropout" is short for 1-p and 1."""
    wide_share: Literal["even"] | Annotated[float, Field(ge=0.0, le=1.0)] = "even"
    """Chance that a client is of the widest tier; the others share the rest evenly. "even": all tiers alike."""

    @property
    def fixed_count(self) -> bool:
        return False

    @property
    def levels(self) -> FloatArray:
        """All widths, ascending."""
        return np.unique((1.0 - self.dropout_rate, 1.0) if self.widths == "dropout" else self.widths)

    def tier_round(self, cohort: Cohort) -> int:
        """The round whose draw is a client's tier: one before all others, so that it stays."""
        return 0

    def tiers(self, cohort: Cohort) -> FloatArray:
        """The width of each client's tier [clients], from the client's own stream."""
        levels = self.levels
        chances = np.full(len(levels), 1.0 / len(levels))
        if self.wide_share != "even" and len(levels) > 1:
            chances[:] = (1.0 - self.wide_share) / (len(levels) - 1)
            chances[-1] = self.wide_share
        drawn: FloatArray = levels[_drawn(cohort.seed, self.tier_round(cohort), cohort.ids, tuple(chances.tolist()))]
        return drawn

    @property
    def assigns_rows(self) -> bool:
        return True

    def assign(self, layout: Layout, cohort: Cohort, server: ServerState, u: Params) -> Pattern | None:
        """Each client is sent the sub-model of its tier."""
        return nested(layout, self.tiers(cohort))


@lru_cache(maxsize=64)
def _drawn(seed: int, round_: int, clients: tuple[int, ...], chances: tuple[float, ...]) -> IntArray:
    """Which of so many tiers each client is of; a block asks for the same ones before every iteration."""
    below = np.cumsum(chances)
    luck = [streams.stream(seed, round_, client, "tier").random() for client in clients]
    return np.searchsorted(below / below[-1], luck, side="right")


def nested(layout: Layout, widths: FloatArray) -> Pattern:
    """The first ceil(width x size) rows of each group for widths [clients]; class rows are held whole."""
    pattern = layout.all_rows(len(widths))
    for group in layout.groups:
        if not group.output:
            pattern[:, layout.ranges[group.name]] = np.arange(group.size) < held_count(widths, group.size)[:, None]
    return pattern


def held_count(widths: FloatArray, size: int) -> FloatArray:
    """ceil(width x size), where a product a rounding error above a whole number counts as that number (0.07 x 100)."""
    return np.maximum(np.ceil(widths * size - 1e-9), 1.0)
