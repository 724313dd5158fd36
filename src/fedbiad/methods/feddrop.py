"""FedDrop (Caldas et al. 2018; Wen et al. 2021): a uniformly random sub-model per client and round."""

from __future__ import annotations

from dataclasses import dataclass

from fedbiad.methods.base import RowDropout


@dataclass(frozen=True)
class FedDrop(RowDropout):
    """A fixed number of rows drawn at random, held for the whole round; the mean over the clients that held a row."""
