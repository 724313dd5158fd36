"""The theory against 50-digit transcriptions of the paper's equations and numbers worked out by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from fedbiad.theory import (
    Structure,
    approximation_error,
    average_generalization_error,
    error_bound,
    estimation_error,
    log_posterior_variance,
    minimax_rate,
    posterior_std,
    total_input_data,
    upper_rate,
)

# PTB's rows: embedding 10,000, two LSTM layers with W_ih and W_hh of 4 * 300 rows each, output 10,000.
PTB_ROWS = 10_000 + 1_200 * 4 + 10_000
CASES = {
    "mnist": (Structure(784, 128, 2, 138), 0.2, 72_000),
    "fmnist": (Structure(784, 256, 2, 266), 0.5, 72_000),
    "less data than weights": (Structure(784, 128, 2, 138), 0.2, 100),
    "ptb": (Structure(300, 300, 4, PTB_ROWS), 0.5, 11_000_000),
    "ptb by time steps": (Structure(300, 300, 35, PTB_ROWS), 0.5, 11_000_000),
}
case = pytest.mark.parametrize(("structure", "p", "m"), CASES.values(), ids=CASES.keys())


def reference_variance(structure: Structure, S: float, m: float, B: float) -> Any:
    with mpmath.workdps(50):
        d, D, L = (mpmath.mpf(x) for x in (structure.inputs, structure.width, structure.layers))
        S, m, B = mpmath.mpf(S), mpmath.mpf(m), mpmath.mpf(B)
        brace = (d + 1 + 1 / (B * D - 1)) ** 2 + 1 / ((B * D) ** 2 - 1) + 2 / (B * D - 1) ** 2
        return S / (16 * m * d**2) * mpmath.log(3 * D) ** -1 * (2 * B * D) ** (-2 * L) * brace**-1


def reference_terms(structure: Structure, S: float, m: float, B: float) -> list[Any]:
    with mpmath.workdps(50):
        d, D, L = (mpmath.mpf(x) for x in (structure.inputs, structure.width, structure.layers))
        S, m, B = mpmath.mpf(S), mpmath.mpf(m), mpmath.mpf(B)
        return [
            S * L / m * mpmath.log(2 * B * D),
            3 * S / m * mpmath.log(L * D),
            S * B**2 / (2 * m),
            2 * S / m * mpmath.log(4 * d * max(m / S, mpmath.mpf(1))),
        ]


def naive_variance(structure: Structure, S: float, m: float, kind: type[np.floating[Any]]) -> float:
    """Eq. (same_variance) multiplied out in a fixed precision."""
    d, D, B = kind(structure.inputs), kind(structure.width), kind(2)
    one = kind(1)
    brace = (d + one + one / (B * D - one)) ** 2 + one / ((B * D) ** 2 - one) + kind(2) / (B * D - one) ** 2
    depth = one
    for _ in range(2 * structure.layers):
        depth = depth / (kind(2) * B * D)
    return float(kind(S) / (kind(16) * kind(m) * d**2) / np.log(kind(3) * D) * depth / brace)


@case
@pytest.mark.parametrize("B", [2.0, 3.5])
def test_variance_and_terms_agree_with_fifty_digits(structure: Structure, p: float, m: int, B: float) -> None:
    S = structure.unsparse_number(p)
    log_variance = mpmath.log(reference_variance(structure, S, m, B))
    assert log_posterior_variance(structure, S, m, B) == pytest.approx(float(log_variance), rel=1e-12)
    std = mpmath.sqrt(reference_variance(structure, S, m, B))
    assert posterior_std(structure, S, m, B) == pytest.approx(float(std), rel=1e-12)
    terms = estimation_error(structure, S, m, B)
    expected = reference_terms(structure, S, m, B)
    assert list(terms) == pytest.approx([float(term) for term in expected], rel=1e-12)
    assert terms.total == pytest.approx(float(sum(expected)), rel=1e-12)


@case
def test_bound_agrees_with_fifty_digits(structure: Structure, p: float, m: int) -> None:
    S, alpha, sigma2, xi = structure.unsparse_number(p), 0.3, 1.7, [0.1, 0.25, 0.7]
    with mpmath.workdps(50):
        a, s2 = mpmath.mpf(alpha), mpmath.mpf(sigma2)
        epsilon = sum(reference_terms(structure, S, m, 2))
        expected = 2 * s2 / (a * (1 - a)) * (1 + a / s2) * epsilon + 2 / (3 * (1 - a)) * sum(map(mpmath.mpf, xi))
    bound = error_bound(estimation_error(structure, S, m).total, xi, alpha, sigma2)
    assert bound == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "decimal_exponent", "rounding"),
    [("mnist", -25.1, 0.05), ("fmnist", -26.0, 0.05), ("ptb", -37.05, 0.005), ("ptb by time steps", -227.96, 0.005)],
)
def test_size_of_the_variance(name: str, decimal_exponent: float, rounding: float) -> None:
    structure, p, m = CASES[name]
    log_variance = log_posterior_variance(structure, structure.unsparse_number(p), m)
    assert log_variance / math.log(10) == pytest.approx(decimal_exponent, abs=rounding)


def test_smallest_structure_by_hand() -> None:
    one = Structure(1, 1, 1, 1)  # BD = 2: the brace is (1+1+1)^2 + 1/3 + 2 = 34/3
    assert log_posterior_variance(one, 1, 1) == pytest.approx(math.log(3 / (34 * 16 * 16) / 1.0986122886681098))
    assert list(estimation_error(one, 1, 1)) == pytest.approx([1.3862943611, 0, 2, 2.7725887222])
    assert error_bound(6.1588830833, [0.5, 1.5]) == pytest.approx(73.9065969996 + 4)  # 12 epsilon + 4 mean(xi)


def test_only_log_space_survives_small_variances() -> None:
    mnist, p, m = CASES["mnist"]
    S = mnist.unsparse_number(p)
    assert naive_variance(mnist, S, m, np.float64) == pytest.approx(posterior_std(mnist, S, m) ** 2, rel=1e-12)
    ptb, p, m = CASES["ptb"]
    S = ptb.unsparse_number(p)
    assert naive_variance(ptb, S, m, np.float32) == pytest.approx(8.86e-38, rel=1e-3)  # only just above 1e-38
    all_matrices = Structure(300, 300, 6, PTB_ROWS)  # embedding and output counted as layers, too
    assert naive_variance(all_matrices, S, m, np.float32) == 0
    assert naive_variance(CASES["ptb by time steps"][0], S, m, np.float32) == 0
    deep = Structure(300, 300, 60, PTB_ROWS)
    assert naive_variance(deep, S, m, np.float64) == 0
    assert log_posterior_variance(deep, S, m) < -800
    assert posterior_std(deep, S, m) > 0
    assert posterior_std(Structure(300, 300, 200, PTB_ROWS), S, m) == 0


def test_structure_from_shapes() -> None:
    mlp = {"hidden.weight": (128, 784), "hidden.bias": (128,), "out.weight": (10, 128), "out.bias": (10,)}
    assert Structure.from_shapes(mlp) == Structure(inputs=784, width=128, layers=2, rows=138)
    assert Structure.from_shapes(mlp).unsparse_number(0.25) == 0.75 * 138 * 128
    cnn = {"conv": (32, 3, 5, 5), "hidden": (64, 800), "out": (100, 64)}
    assert Structure.from_shapes(cnn) == Structure(inputs=75, width=64, layers=3, rows=196)
    assert Structure.from_shapes({"only": (7, 5)}) == Structure(inputs=5, width=7, layers=1, rows=7)
    with pytest.raises(ValueError, match="at least one tensor"):
        Structure.from_shapes({"bias": (7,)})


def test_bound_falls_with_every_round() -> None:
    structure, p, _ = CASES["mnist"]
    S = structure.unsparse_number(p)
    data = [total_input_data(r, 20, [75, 60, 90]) for r in range(1, 61)]
    assert data[:2] == [1200, 2400]
    bounds = [error_bound(estimation_error(structure, S, m).total, [0.0]) for m in data]
    assert all(later < earlier for earlier, later in itertools.pairwise(bounds))


def test_rates() -> None:
    assert minimax_rate(10_000, 1, 2) == pytest.approx(0.01)  # exponent -2/(2+2)
    assert minimax_rate(10_000, 1, 2, C2=3) == pytest.approx(0.03)
    for m in (10, 1e4, 1e9):
        assert upper_rate(m, 1.5, 4, C1=2) / minimax_rate(m, 1.5, 4) == pytest.approx(2 * math.log(m) ** 2)


def test_function_distances_by_hand() -> None:
    truth = np.array([[0.0, 0.0], [1.0, 1.0]])
    near_but_once = np.array([[0.0, 0.0], [4.0, 5.0]])  # squared distances 0 and 25
    even = np.array([[2.0, 2.0], [1.0, 3.0]])  # 8 and 4
    candidates = np.stack([near_but_once, even])
    assert approximation_error(candidates, truth) == 8
    assert approximation_error(np.stack([even, truth]), truth) == 0
    assert average_generalization_error(candidates, truth[None]) == (0 + 25 + 8 + 4) / 4
    other = truth + 1  # squared distances of the draws to it: 2 and 13, 2 and 2
    assert average_generalization_error(candidates, np.stack([truth, other])) == (37 / 4 + 19 / 4) / 2


def test_wrong_arguments_name_the_allowed_range() -> None:
    mnist = CASES["mnist"][0]
    for function in (log_posterior_variance, posterior_std, estimation_error):
        with pytest.raises(ValueError, match="B must be at least 2"):
            function(mnist, 1.0, 1.0, 1.99)
        with pytest.raises(ValueError, match="m must be at least 1"):
            function(mnist, 1.0, 0.5, 2.0)
        with pytest.raises(ValueError, match="S must be above 0"):
            function(mnist, 0.0, 1.0, 2.0)
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\)"):
            error_bound(1.0, [0.0], alpha)
    for rate in (upper_rate, minimax_rate):
        with pytest.raises(ValueError, match=r"smoothness must be in \(0, 4\)"):
            rate(10, 4, 4)
        with pytest.raises(ValueError, match="m must be at least 1"):
            rate(0, 1, 4)
    with pytest.raises(ValueError, match=r"dropout_rate must be in \[0, 1\)"):
        mnist.unsparse_number(1.0)
