"""Compressors by name. To add one: a file in this folder and a line here."""

from __future__ import annotations

from fedbiad.compressors.base import Compressor, Room, Segment
from fedbiad.compressors.dgc import DGC
from fedbiad.compressors.evidence import Evidence
from fedbiad.compressors.fedpaq import FedPAQ
from fedbiad.compressors.half import HalfPrecision
from fedbiad.compressors.signsgd import SignSGD
from fedbiad.compressors.stc import STC

COMPRESSORS: dict[str, Compressor] = {
    "dgc": DGC(),
    "signsgd": SignSGD(),
    "fedpaq": FedPAQ(),
    "stc": STC(),
    "half": HalfPrecision(),
    "evidence": Evidence(),
}
"""Each as its own paper has it."""

PAPER: dict[str, Compressor] = {
    "dgc": DGC(per="model", warmup=(), dense_biases=False),
    "signsgd": SignSGD(mode="scaled", per="model"),
    "fedpaq": FedPAQ(norm="max", per="tensor"),
    "stc": STC(per="model"),
}
"""As the tables of the FedBIAD paper count them, where that differs."""

__all__ = [
    "COMPRESSORS", "DGC", "PAPER", "STC", "Compressor", "Evidence", "FedPAQ", "HalfPrecision", "Room", "Segment",
    "SignSGD",
]  # fmt: skip
