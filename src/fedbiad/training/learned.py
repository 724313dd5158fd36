"""What a block of clients learned in a round: D^k = U^{k,V} - U_{r-1}, in the form its training left it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedbiad.aggregation import Total, sum_block
from fedbiad.arrays import FloatArray, IntArray, Params, Pattern
from fedbiad.rows import Layout


class Learned(Protocol):
    """The changes of a block of clients."""

    def change(self, client: int, pattern: Pattern | None = None) -> Params:
        """D^k of the client at this place of the block; only the rows in `pattern` [rows] count (None: all)."""
        ...

    def total(self, layout: Layout, members: IntArray, pattern: Pattern, weights: Sequence[float]) -> Total:
        """The sums over the clients at places `members`, of the rows in `pattern` [members, rows]."""
        ...

    def row_norms(self, layout: Layout) -> FloatArray:
        """||D^k_j||^2 of every row [clients, rows]."""
        ...

    def finite(self) -> npt.NDArray[np.bool_]:
        """Whose changes are all finite [clients]."""
        ...


@dataclass(frozen=True)
class Stacked:
    """Every change written out [clients, ...]."""

    moved: Params

    def change(self, client: int, pattern: Pattern | None = None) -> Params:
        return {name: value[client] for name, value in self.moved.items()}

    def total(self, layout: Layout, members: IntArray, pattern: Pattern, weights: Sequence[float]) -> Total:
        all_of_them = len(members) == len(next(iter(self.moved.values())))
        chosen = self.moved if all_of_them else {name: value[members] for name, value in self.moved.items()}
        return sum_block(layout, pattern, chosen, weights)

    def row_norms(self, layout: Layout) -> FloatArray:
        return layout.row_norms(self.moved)

    def finite(self) -> npt.NDArray[np.bool_]:
        finite = [torch.isfinite(value.flatten(1).sum(1)).numpy() for value in self.moved.values()]
        usable: npt.NDArray[np.bool_] = np.logical_and.reduce(finite)
        return usable
