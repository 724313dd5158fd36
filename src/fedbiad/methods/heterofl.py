"""HeteroFL (Diao et al. 2021): static sub-models of a client's rate, nested in each other.

Differs from the original: no batch normalisation (the models here have none), no clipping of gradients, plain SGD. Both
tame the scaler: without them it multiplies the steps of the columns behind a narrow layer by 1/rate^2, so a step size
that suits FedAvg can make clients of rate 1/16 diverge; lower it, or leave the scaler or the narrowest rates out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fedbiad.arrays import ClientState, FloatArray, IntArray, Pattern
from fedbiad.cohort import Cohort
from fedbiad.methods.widths import NestedWidths, Widths
from fedbiad.rows import Layout, RowKind


@dataclass(frozen=True)
class HeteroFL(NestedWidths):
    """Clients count alike in the mean over the holders; a label's row is sent by clients that own the label."""

    weighting: Literal["samples", "clients"] = "clients"
    widths: Literal["dropout"] | Widths = (1.0, 0.5, 0.25, 0.125, 0.0625)
    mode: Literal["fix", "dynamic"] = "fix"
    """A client's rate is drawn once, or anew in every round."""
    scaler: bool = True
    """In training, outputs of hidden layers are divided by the rate."""
    masked_logits: bool = True
    """In training, logits of labels that the client lacks are set to 0."""

    @property
    def row_kind(self) -> RowKind:
        return "units-and-classes"

    @property
    def looks_at_classes(self) -> bool:
        return True

    def tier_round(self, cohort: Cohort) -> int:
        return 0 if self.mode == "fix" else cohort.round

    def scale(self, layout: Layout, cohort: Cohort) -> float | FloatArray:
        """1/rate on the next layer's columns: behind relu and pooling the same as dividing the layer's output."""
        return 1.0 / self.tiers(cohort) if self.scaler else 1.0

    def silenced(self, cohort: Cohort) -> Pattern | None:
        return ~cohort.present if self.masked_logits and cohort.present is not None else None

    def upload_pattern(
        self,
        layout: Layout,
        cohort: Cohort,
        held: IntArray,
        pattern: Pattern,
        evidence: Callable[[], FloatArray],
        state: ClientState,
    ) -> tuple[Pattern, ClientState]:
        """The sub-model without the rows of labels that the client lacks."""
        sent = pattern.copy()
        for group in layout.groups:
            if group.output and cohort.present is not None:
                sent[:, layout.ranges[group.name]] &= cohort.present
        return sent, state
