"""What training minimises: the paper's variational loss, and the likelihood that stands in for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def variational_loss(squared_errors: Tensor, kl: float, alpha: float, sigma2: float) -> float:
    """The loss of a variational approximation from squared errors [draws of theta, samples].

    Eq. (loss): L = alpha / (2 sigma^2) sum_i integral (y_i - f_theta(x_i))^2 pi~(d theta) + KL(pi~ || pi).
    Differs from the paper: the integral is the mean over the draws.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), not {alpha}")
    if not sigma2 > 0:
        raise ValueError(f"sigma2 must be above 0, not {sigma2}")
    expected = float(squared_errors.double().sum(dim=1).mean())
    return alpha / (2 * sigma2) * expected + kl


def average_loss(losses: Sequence[float], sizes: Sequence[int]) -> float:
    """The average over the clients of their loss per datum, which the global posterior shall minimise.

    Eq. (loss_goal): 1/K sum_k L^k / |D^k|, without the min.
    """
    if len(losses) == 0 or min(sizes, default=0) < 1:
        raise ValueError("the average loss needs at least 1 client, each with at least 1 datum")
    return math.fsum(loss / size for loss, size in zip(losses, sizes, strict=True)) / len(losses)


def cross_entropy(logits: Tensor, targets: Tensor, weight: Tensor | None = None) -> Tensor:
    """Each client's mean negative log likelihood: logits [clients, batch, classes], targets [clients, batch].

    `weight` [clients, batch] makes it a weighted mean (0 for padding); no weight at all gives a loss of 0.
    Differs from the paper: Eq. (loss) is Gaussian, classification needs the categorical likelihood; the KL
    enters as weight decay on held rows (its gradient is mu / prior_variance), off by default.
    """
    nll = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    nll = nll.view(targets.shape)
    if weight is None:
        return nll.mean(dim=1)
    total = weight.sum(dim=1)
    return (weight * nll).sum(dim=1) / torch.where(total > 0, total, torch.ones_like(total))
