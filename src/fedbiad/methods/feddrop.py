"""FedDrop (Caldas et al. 2018; Wen et al. 2021): a uniformly random sub-model per client and round."""

from __future__ import annotations

from dataclasses import dataclass

from fedbiad.arrays import Params, Pattern, ServerState
from fedbiad.cohort import Cohort
from fedbiad.methods.base import RowDropout
from fedbiad.rows import Layout


@dataclass(frozen=True)
class FedDrop(RowDropout):
    """A fixed number of rows drawn by the server and held for the whole round; the mean over the holders of a row."""

    @property
    def assigns_rows(self) -> bool:
        return True

    def assign(self, layout: Layout, cohort: Cohort, server: ServerState, u: Params) -> Pattern | None:
        return self.draw_each(layout, cohort)
