"""The paper's posterior variance, error bound and rates as plain functions; every logarithm is natural."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Structure:
    """The architecture (S, L, D) of the paper without S, plus d and J.

    Differs from the paper: d <= D and equal widths are assumed there, but its own MLP (d = 784, D = 128)
    violates both; here any positive sizes are taken.
    """

    inputs: int
    """d"""
    width: int
    """D"""
    layers: int
    """L: layers of a feed-forward network; the paper's RNN section counts time steps instead."""
    rows: int
    """J"""

    def __post_init__(self) -> None:
        if min(self.inputs, self.width, self.layers, self.rows) < 1:
            raise ValueError(f"every size of a structure must be at least 1, not {self}")

    def unsparse_number(self, dropout_rate: float) -> float:
        """The unsparse number of weights that dropout rate p leaves.

        S = (1 - p) J D.
        It counts every row as D wide: not the exact number of nonzero weights where widths differ.
        """
        if not 0 <= dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1), not {dropout_rate}")
        return (1 - dropout_rate) * self.rows * self.width

    @staticmethod
    def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> Structure:
        """The structure of a model's weight matrices: its tensors of two or more dimensions, in order.

        L = their number, d = columns of the first (trailing dimensions flattened), J = all their rows,
        D = the most rows among all but the last.
        Differs from the paper: widths may differ, D is the largest. An embedding table counts as a matrix
        (D becomes the vocabulary): for a language model give the four numbers instead.
        """
        matrices = [shape for shape in shapes.values() if len(shape) >= 2]
        if not matrices:
            raise ValueError("a structure needs at least one tensor of two or more dimensions")
        hidden = matrices[:-1] or matrices
        return Structure(
            inputs=math.prod(matrices[0][1:]),
            width=max(shape[0] for shape in hidden),
            layers=len(matrices),
            rows=sum(shape[0] for shape in matrices),
        )


def total_input_data(round_: int, iterations: int, sizes: Sequence[int] | npt.NDArray[np.int64]) -> int:
    """The least client-side total input data after r rounds.

    m_r = r V min(|D^1|, ..., |D^K|).
    """
    if len(sizes) == 0:
        raise ValueError("sizes must name the data of at least 1 client")
    return round_ * iterations * int(np.min(sizes))


def _check(S: float, m: float, B: float) -> None:
    if not S > 0:
        raise ValueError(f"the unsparse number S must be above 0, not {S}")
    _check_data(m)
    if not B >= 2:
        raise ValueError(f"the weight bound B must be at least 2, not {B}")


def _check_data(m: float) -> None:
    if not m >= 1:
        raise ValueError(f"the total input data m must be at least 1, not {m}")


def log_posterior_variance(structure: Structure, S: float, m: float, B: float = 2.0) -> float:
    """The natural logarithm of the constant posterior variance, which itself may underflow.

    Eq. (same_variance): s^2 = S / (16 m d^2) / log(3D) (2BD)^(-2L)
    / {(d + 1 + 1/(BD-1))^2 + 1/((BD)^2-1) + 2/(BD-1)^2}.
    Differs from the paper: log(3D)^-1 is read as 1/log(3D), and m is whatever m_r the caller takes (the
    paper calls the variance constant although m_r grows with r).
    """
    _check(S, m, B)
    d, D, L = structure.inputs, structure.width, structure.layers
    log_factor = math.log(S) - math.log(16) - math.log(m) - 2 * math.log(d)
    log_depth = -math.log(math.log(3 * D)) - 2 * L * math.log(2 * B * D)
    leading = d + 1 + 1 / (B * D - 1)
    rest = 1 / ((B * D) ** 2 - 1) + 2 / (B * D - 1) ** 2
    return log_factor + log_depth - 2 * math.log(leading) - math.log1p(rest / leading**2)


def posterior_std(structure: Structure, S: float, m: float, B: float = 2.0) -> float:
    """The posterior standard deviation s, 0.0 only if s itself (not s^2) underflows.

    Eq. (same_variance): s = exp(log(s^2) / 2).
    """
    return math.exp(log_posterior_variance(structure, S, m, B) / 2)


class ErrorTerms(NamedTuple):
    """The four terms of Eq. (varepsilon_m), in its order."""

    depth: float
    architecture: float
    prior: float
    precision: float

    @property
    def total(self) -> float:
        """epsilon itself: the sum of the terms."""
        return math.fsum(self)


def estimation_error(structure: Structure, S: float, m: float, B: float = 2.0) -> ErrorTerms:
    """The terms of the estimation error, which vanishes as data grow.

    Eq. (varepsilon_m): epsilon = SL/m log(2BD) + 3S/m log(LD) + S B^2/(2m) + 2S/m log(4d max(m/S, 1)).
    """
    _check(S, m, B)
    d, D, L = structure.inputs, structure.width, structure.layers
    per_datum = S / m
    return ErrorTerms(
        depth=per_datum * L * math.log(2 * B * D),
        architecture=3 * per_datum * math.log(L * D),
        prior=per_datum * B**2 / 2,
        precision=2 * per_datum * math.log(4 * d * max(m / S, 1.0)),
    )


def error_bound(epsilon: float, xi: Sequence[float], alpha: float = 0.5, sigma2: float = 1.0) -> float:
    """The upper bound of the average generalization error over the K = len(xi) clients.

    Eq. (upper_bound): 2 sigma^2 / (a (1-a)) (1 + a/sigma^2) epsilon + 2 / (K (1-a)) sum_k xi^k, a = alpha.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), not {alpha}")
    if not sigma2 > 0:
        raise ValueError(f"sigma2 must be above 0, not {sigma2}")
    if len(xi) == 0:
        raise ValueError("xi must hold the approximation error of at least 1 client")
    estimation = 2 * sigma2 / (alpha * (1 - alpha)) * (1 + alpha / sigma2) * epsilon
    return estimation + 2 / (len(xi) * (1 - alpha)) * math.fsum(xi)


def approximation_error(candidates: FloatArray, truth: FloatArray) -> float:
    """The least squared sup-norm distance of candidates [models, points, outputs] to truth [points, outputs].

    Eq. (xi_k): xi^k = inf over theta* of ||f_theta* - f_0^k||_inf^2.
    Differs from the paper: inf and sup run over the given models and points only; several outputs are
    measured by their euclidean norm, so that the sup-norm still bounds the L2 distance.
    """
    squared = np.square(candidates - truth).sum(axis=2)
    return float(squared.max(axis=1).min())


def average_generalization_error(samples: FloatArray, truths: FloatArray) -> float:
    """The mean squared L2 distance of sampled global models to the K clients' true functions.

    Eq. (avg_error): E[1/K sum_k integral ||f_theta - f_0^k||_2^2 pi^g(d theta)], with samples
    [draws, points, outputs] of theta ~ pi^g and truths [K, points, outputs].
    Differs from the paper: Monte Carlo over the draws, and the L2 distance is a mean over the given points.
    """
    return float(np.mean([np.square(samples - truth).sum(axis=2).mean() for truth in truths]))


def upper_rate(m: float, smoothness: float, inputs: int, C1: float = 1.0) -> float:
    """The rate at which the error of FedBIAD falls for gamma-Hölder smooth true functions.

    Eq. (xiaoyu): C1 m^(-2 gamma / (2 gamma + d)) log^2 m.
    Differs from the paper: C1 is an unknown constant there.
    """
    return C1 * minimax_rate(m, smoothness, inputs) * math.log(m) ** 2


def minimax_rate(m: float, smoothness: float, inputs: int, C2: float = 1.0) -> float:
    """The rate which no method can beat on gamma-Hölder smooth true functions.

    Eq. (dayu): C2 m^(-2 gamma / (2 gamma + d)).
    Differs from the paper: C2 is an unknown constant there.
    """
    _check_data(m)
    if not 0 < smoothness < inputs:
        raise ValueError(f"smoothness must be in (0, {inputs}), not {smoothness}")
    return float(C2 * m ** (-2 * smoothness / (2 * smoothness + inputs)))


# ---------------------------------------------------------------------- evidence coding (docs/evidence.md)


def expected_count(delta: FloatArray, step: float, floor: float = 0.0) -> float:
    """How many weights a message with this step holds on average: sum_i max(min(1, |delta_i| / D), floor)."""
    _check_step(step)
    return float(np.clip(np.abs(delta) / step, floor, 1).sum())


def rounding_variances(delta: FloatArray, step: float, floor: float = 0.0) -> FloatArray:
    """The variance that rounding to multiples of the step adds to each weight: D^2 f_i (1 - f_i).

    f_i is the fraction of |delta_i| / D. A weight that is sent with the probability of a floor above |delta_i| / D is
    D, -D or 0 on arrival: D^2 floor - delta_i^2.
    """
    _check_step(step)
    sizes = np.abs(delta) / step
    fractions = sizes % 1
    variances: FloatArray = step**2 * np.where(sizes < floor, floor - sizes**2, fractions * (1 - fractions))
    return variances


def added_variance(delta: FloatArray, step: float, floor: float = 0.0) -> float:
    """The variance that rounding to multiples of the step adds, summed over weights: E ||D q - delta||^2."""
    return float(rounding_variances(delta, step, floor).sum())


def inclusion_probabilities(delta: FloatArray, count: float) -> FloatArray:
    """The probabilities pi_i of sending delta_i / pi_i that add the least variance among all of sum `count`.

    pi_i = min(1, c |delta_i|), c such that they sum to the count; all of them 1 if no more are not 0.
    """
    sizes = np.abs(delta).astype(np.float64)
    if not 0 < count <= len(sizes):
        raise ValueError(f"count must be in (0, {len(sizes)}], not {count}")
    descending = -np.sort(-sizes)
    rest = np.append(np.cumsum(descending[::-1])[::-1], 0.0)  # of those from the i-th largest on
    for certain in range(len(sizes)):
        if descending[certain] == 0 or (count - certain) * descending[certain] <= rest[certain]:
            break
    c = (count - certain) / rest[certain] if rest[certain] else math.inf
    return np.where(sizes == 0, 0.0, np.minimum(1.0, c * np.where(sizes == 0, 1.0, sizes)))


def sampling_variance(delta: FloatArray, probabilities: FloatArray) -> float:
    """The variance that sending delta_i / pi_i with probability pi_i, else 0, adds: sum_i delta_i^2 (1 / pi_i - 1)."""
    some = delta != 0
    return float((np.square(delta[some]) * (1 / probabilities[some] - 1)).sum())


def mean_variance(weights: FloatArray, variances: FloatArray) -> float:
    """The variance of the server's mean of independent clients: sum_k w_k^2 V_k, w_k their shares.

    It stands beside sum_k w_k^2 sigma_k^2, the variance of stochastic gradients, in FedAvg's own convergence result.
    """
    shares = weights / weights.sum()
    return float((np.square(shares) * variances).sum())


def sampling_noise(between: float, within: float, selected: int, registered: int) -> float:
    """The variance of a mean over c of K clients that is there anyway: who was selected, and what each then drew.

    S^2 (1 / c - 1 / K) + W / K: S^2 is the variance between clients as they are seen, W the part of it that is within
    each client (its batches, its pattern). Selection is without replacement: with c = K only W / c is left.
    """
    return between * (1 / selected - 1 / registered) + within / registered


def least_rate(variances: FloatArray, added: float) -> float:
    """Bits that any unbiased coding takes at least to add no more variance than `added`, all weights together.

    For independent Gaussian weights whose variances both sides know: min sum_i log2(1 + s_i^2 / V_i) / 2 over
    sum_i V_i = `added`, which V_i (V_i + s_i^2) = s_i^2 t solves for one t.
    """
    own = variances[variances > 0].astype(np.float64)
    if not added > 0:
        raise ValueError(f"the added variance must be above 0, not {added}")

    def allotted(t: float) -> FloatArray:
        return 2 * t / (1 + np.sqrt(1 + 4 * t / own))  # (sqrt(s^4 + 4 s^2 t) - s^2) / 2, without cancellation

    low, high = added / max(len(own), 1) / 2, added
    while len(own) and float(allotted(high).sum()) < added:
        low, high = high, 2 * high
    while high > (1 + 1e-12) * low:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if float(allotted(middle).sum()) < added else (low, middle)
    return float(0.5 * np.log2(1 + own / allotted(high)).sum()) if len(own) else 0.0


def _check_step(step: float) -> None:
    if not step > 0:
        raise ValueError(f"the step must be above 0, not {step}")
