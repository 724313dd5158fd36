"""The Gaussian term: the words a client's data lack, together, as one class of its softmax.

A are these words, w_w and b_w their rows and biases of the output layer, frozen as they were received. With rho_w
proportional to exp(b_w) on A, their part of the softmax's sum at a hidden state h is

  sum_A exp(w_w . h + b_w) = sum_A exp(b_w) x E_rho[exp(w . h)],

and were w Gaussian under rho, with mean m and covariance C, its logarithm would be

  a(h) = log sum_A exp(b_w) + m . h + h' C h / 2.

So the loss is -z_y + log(sum over the client's own words exp(z_w) + exp(a(h))).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbiad.arrays import Params
from fedbiad.rows import AxisMasks

WEIGHT, BIAS = "output.weight", "output.bias"
STRIP = 64
"""Rows of the covariance that are made at a time."""

NAMES = ("absent.log_mass", "absent.mean", "absent.covariance")


@dataclass(frozen=True)
class AbsentWords:
    """The moments of each client's absent words. A model finds them among its parameters, by `NAMES`."""

    log_mass: Tensor  # log sum_A exp(b_w) [clients]
    mean: Tensor  # [clients, units]
    covariance: Tensor  # [clients, units, units]

    @staticmethod
    def of(params: Params) -> AbsentWords | None:
        """Those among the parameters, if any."""
        return AbsentWords(*(params[name] for name in NAMES)) if NAMES[0] in params else None

    @property
    def params(self) -> Params:
        """What `of` reads."""
        return dict(zip(NAMES, (self.log_mass, self.mean, self.covariance), strict=True))

    def logits(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """a(h) [clients, samples] for what the output layer reads [clients, samples, units], and its gradient m + C h.

        m . h + h' C h / 2 = (m + (m + C h)) . h / 2.
        """
        mean = self.mean.unsqueeze(1)
        slope = torch.baddbmm(mean, read, self.covariance)
        return self.log_mass[:, None] + ((slope + mean) * read).sum(2) / 2, slope

    def masked(self, masks: AxisMasks) -> AbsentWords:
        """With the columns of the absent rows dropped and scaled as those of all the output layer's rows are."""
        mean, covariance = self.mean, self.covariance
        for axis, factor in masks.get(WEIGHT, []):
            if axis == 1:
                mean, covariance = mean * factor, covariance * factor[:, :, None] * factor[:, None, :]
        return AbsentWords(self.log_mass, mean, covariance)

    def taken(self, indices: dict[str, list[tuple[int, Tensor]]]) -> AbsentWords:
        """Only the columns that a compact sub-model has."""
        mean, covariance = self.mean, self.covariance
        for axis, kept in indices.get(WEIGHT, []):
            if axis == 1:
                clients = torch.arange(len(kept))[:, None, None]
                mean, covariance = mean.gather(1, kept), covariance[clients, kept[:, :, None], kept[:, None, :]]
        return AbsentWords(self.log_mass, mean, covariance)


def moments(rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log sum exp(b), m and C of rows [words, units] and their biases [words]; no words have the mass 0.

    `rows` are used up.
    """
    root = bias.softmax(0).sqrt()
    weighted = rows.mul_(root[:, None])
    mean = root @ weighted
    return bias.logsumexp(0), mean, _gram(weighted).addr_(mean, mean, alpha=-1)


def _gram(rows: Tensor) -> Tensor:
    """X' X, of which what is below the diagonal is mirrored: in two thirds of the time."""
    units = rows.shape[1]
    found = rows.new_empty(units, units)
    for first in range(0, units, STRIP):
        last = first + STRIP
        strip = rows[:, first:last].T @ rows[:, first:]
        found[first:last, first:], found[first:, first:last] = strip, strip.T
    return found
