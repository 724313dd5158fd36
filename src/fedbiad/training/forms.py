"""Which form local training takes: the fastest one that is exact for the method, the model and the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedbiad.methods.base import Method
from fedbiad.models.base import Model
from fedbiad.models.mlp import MLP
from fedbiad.rows import Layout
from fedbiad.training.compact import has_idle

Form = Literal["auto", "masked", "compact", "dual", "fused"]

FARTHEST = 8.6
"""No normal variate made from 64 random bits is more standard deviations away."""


@dataclass(frozen=True)
class Regime:
    """What decides the form, beside the method and the model."""

    weight_decay: float = 0.0
    dropout: float = 0.0
    clip: float | None = None
    noise_std: float = 0.0
    largest: int | None = None
    """Samples of the client that has most; None: not known, or samples are no plain vectors."""
    alone: bool = False
    """Blocks are of one client, so that it does not matter how many rows others hold."""


def choose(method: Method, model: Model, layout: Layout, regime: Regime) -> tuple[Form, str]:
    """The form, and why not a faster one."""
    obstacle = dual_obstacle(method, model, layout, regime)
    if obstacle is None:
        return "fused", ""
    decays_idle = bool(regime.weight_decay) and has_idle(layout)
    if not (method.fixed_count or regime.alone):
        return "masked", f"{obstacle}; clients hold different numbers of rows"
    if not model.compacts or decays_idle:
        why = "weight decay reaches idle columns" if decays_idle else "the model runs whole only"
        return "masked", f"{obstacle}; {why}"
    return "compact", obstacle


def dual_obstacle(method: Method, model: Model, layout: Layout, regime: Regime) -> str | None:
    """Why local training cannot take its dual form; None: it can."""
    if not (isinstance(model, MLP) and len(model.hidden) == 1):
        return "the model is not a network with one hidden layer"
    obstacles = {
        "rows are not hidden units": layout not in (model.layout("units"), model.layout("units-and-classes")),
        "a client has more samples than a sample has inputs": (regime.largest or model.inputs + 1) > model.inputs,
        "weight decay, ordinary dropout or clipping is on": bool(regime.weight_decay or regime.dropout or regime.clip),
        "the method has a loss of its own": type(method).objective is not Method.objective or method.distils,
        "the trend looks at the whole local data": method.trend_loss(1) == "local",
        "posterior noise is above the resolution of float32": not noise_is_lost(regime.noise_std, model.inputs),
    }
    return next((why for why, there in obstacles.items() if there), None)


def noise_is_lost(std: float, inputs: int) -> bool:
    """Whether noise on the weights is lost in the rounding of a pre-activation sum_i w_i x_i.

    It moves the sum by at most FARTHEST std ||x|| <= FARTHEST std sqrt(D) max|x|; one product of a weight of order
    1/sqrt(D) is rounded by up to 2^-24 max|x| / sqrt(D).
    """
    return bool(FARTHEST * std * inputs < np.finfo(np.float32).eps / 2)
