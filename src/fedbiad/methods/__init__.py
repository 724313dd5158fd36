"""Methods by name. To add one: a file in this folder, a line here, an experiment."""

from __future__ import annotations

from fedbiad.methods.base import Method, RowDropout
from fedbiad.methods.fedavg import FedAvg
from fedbiad.methods.fedbiad import LETTER, FedBIAD
from fedbiad.methods.feddrop import FedDrop

METHODS: dict[str, Method] = {
    "fedavg": FedAvg(),
    "feddrop": FedDrop(),
    "fedbiad": FedBIAD(),
    "fedbiad-letter": LETTER,
}

__all__ = ["LETTER", "METHODS", "FedAvg", "FedBIAD", "FedDrop", "Method", "RowDropout"]
