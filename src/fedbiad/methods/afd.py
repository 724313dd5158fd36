"""AFD, Adaptive Federated Dropout (Bouacida et al. 2020): sub-models by a score map that the server learns.

Differs from the original: held rows are scaled by 1/(1-p) as in FedDrop here, so that the two differ in the choice of
rows alone (`scaling = "none"` for the original); compression of what is sent is a matter of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbiad import patterns, streams
from fedbiad.arrays import FloatArray, IntArray, Params, Pattern, ServerState
from fedbiad.cohort import Cohort
from fedbiad.methods import seen
from fedbiad.methods.base import Reports, RowDropout
from fedbiad.rows import Layout


@dataclass(frozen=True)
class AFD(RowDropout):
    """A sub-model that made the loss fall is recorded and kept; after a rise, the next is drawn by the scores."""

    model: Literal["single", "multi"] = "single"
    """One score map and one sub-model for all clients, or one of each for every client."""
    unscored: Literal["last", "mean"] = "last"
    """Rows of score 0 in a draw: only when no others are left, or as if of the mean score of the others.

    With "last" the first sub-model to make the loss fall is the only one with scores, and is drawn ever after.
    """

    def init_server(self, layout: Layout) -> ServerState:
        rows = np.zeros(layout.num_rows)
        return seen.nothing(
            loss=np.zeros(()), recorded=np.zeros((), np.bool_), active=rows.astype(np.bool_), score=rows
        )

    @property
    def assigns_rows(self) -> bool:
        return True

    def assign(self, layout: Layout, cohort: Cohort, server: ServerState, u: Params) -> Pattern | None:
        """The recorded sub-model, else one drawn in proportion to the scores: uniformly while there are none."""
        owners, owner = np.unique(self._owners(cohort.ids), return_inverse=True)
        memory, places = seen.entries(server, owners)
        recorded, active = memory["recorded"].astype(np.bool_), memory["active"].astype(np.bool_)
        score = memory["score"].astype(np.float64)
        weights = np.stack([self._weights(own) for own in score[places]])
        keys = [streams.key(cohort.seed, cohort.round, client, "pattern") for client in owners.tolist()]
        luck = streams.luck(keys, layout.num_rows)
        drawn = patterns.weighted(layout, weights, self.dropout_rate, luck, self.scope)
        chosen: Pattern = np.where(recorded[places, None], active[places], drawn)
        return chosen[owner]

    def observe(self, layout: Layout, server: ServerState, reports: Reports) -> ServerState:
        """If the mean loss fell since the last time: record the sub-model and score its rows.

        Score of the rows held: (l_old - l_new) / l_old, in place of what it was.
        """
        owners, first, owner = np.unique(self._owners(reports.ids), return_index=True, return_inverse=True)
        memory, places = seen.entries(server, owners)
        before, score = memory["loss"].astype(np.float64), memory["score"].astype(np.float64)
        active, recorded = memory["active"].astype(np.bool_), memory["recorded"].astype(np.bool_)
        losses = np.bincount(owner, reports.loss) / np.bincount(owner)
        for place, loss, held in zip(places, losses, reports.pattern[first], strict=True):
            recorded[place] = loss < before[place]  # 0 before the first time: nothing can have fallen
            if recorded[place]:
                active[place] = held
                score[place, held] = (before[place] - loss) / before[place]
            before[place] = loss
        return {**memory, "loss": before, "recorded": recorded, "active": active, "score": score}

    def _weights(self, score: FloatArray) -> FloatArray:
        """The weight of each row in a draw; a score is 0 or at least 2^-53, so 0 as a weight does come last."""
        scored = score > 0
        if self.unscored == "last" or not scored.any():
            return score
        return np.where(scored, score, score[scored].mean())

    def _owners(self, ids: Sequence[int]) -> IntArray:
        """Whose score map each client uses: the server's or its own."""
        own = np.array(ids, dtype=np.int64)
        return own if self.model == "multi" else np.full_like(own, streams.SERVER)
