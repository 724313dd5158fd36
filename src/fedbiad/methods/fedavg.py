"""FedAvg (McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data)."""

from __future__ import annotations

from dataclasses import dataclass

from fedbiad.methods.base import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """Every client trains and uploads the whole model; the server takes the mean weighted by |D^k|."""
