"""Methods by name. To add one: a file in this folder, a line here, an experiment."""

from __future__ import annotations

from fedbiad.methods.afd import AFD
from fedbiad.methods.base import Method, RowDropout
from fedbiad.methods.fedavg import FedAvg
from fedbiad.methods.fedbiad import LETTER, FedBIAD
from fedbiad.methods.feddrop import FedDrop
from fedbiad.methods.fedmp import FedMP
from fedbiad.methods.fjord import FjORD
from fedbiad.methods.focus import Focus
from fedbiad.methods.heterofl import HeteroFL

METHODS: dict[str, Method] = {
    "fedavg": FedAvg(),
    "feddrop": FedDrop(),
    "afd": AFD(),
    "fedmp": FedMP(),
    "fjord": FjORD(),
    "heterofl": HeteroFL(),
    "fedbiad": FedBIAD(),
    "fedbiad-letter": LETTER,
    "focus": Focus(),
}
"""Each as its own paper has it (`focus` has none): the profile `original`."""

PAPER: dict[str, Method] = {
    "afd": AFD(unscored="mean"),
    "fedmp": FedMP(chosen_by="client"),
    "fjord": FjORD(widths="dropout", wide_share=1 / 3),
    "heterofl": HeteroFL(widths="dropout", wide_share=1 / 4),
}
"""Baselines as the upload sizes printed in FedBIAD's paper imply them, where that differs: the profile `paper`."""

__all__ = [
    "AFD",
    "LETTER",
    "METHODS",
    "PAPER",
    "FedAvg",
    "FedBIAD",
    "FedDrop",
    "FedMP",
    "FjORD",
    "Focus",
    "HeteroFL",
    "Method",
    "RowDropout",
]
