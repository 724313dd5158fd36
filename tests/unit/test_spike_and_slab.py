"""The draws are normal, random-access and bounded; skipping noise that cannot matter changes no bit."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from torch import Tensor

from fedbiad import compiled
from fedbiad.arrays import IntArray
from fedbiad.spike_and_slab import MAX_NORMAL, Draws, kl_to_prior, may_change, normal_at, sample, sample_global

N = 200_000
STDS = (1e-60, 2.0**-153, 1e-44, 1e-30, 1e-19, 10**-12.5, 1e-6, 0.01, 3.0, 1e30, 1e300)


def weights_of_all_sizes(dtype: torch.dtype) -> Tensor:
    """Random bit patterns, powers of two with their neighbours, zeros and subnormal numbers; all finite."""
    rng = np.random.default_rng(5)
    kind, bits, least = (np.float32, np.uint32, -149) if dtype == torch.float32 else (np.float64, np.uint64, -1074)
    patterns = rng.integers(0, np.iinfo(bits).max, 4000, dtype=bits, endpoint=True).view(kind)
    powers = np.ldexp(kind(1), np.arange(least, 120)).astype(kind)
    around = [powers, np.nextafter(powers, kind(np.inf)), np.nextafter(powers, kind(0))]
    ordinary = (rng.standard_normal(1000) * 0.05).astype(kind)
    values = np.concatenate([patterns[np.isfinite(patterns)], *around, ordinary, np.zeros(3, kind)])
    return torch.from_numpy(np.concatenate([values, -values]))


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int64)


@pytest.mark.parametrize(("key", "step"), [(0, 0), (1, 0), (0, 1), (2**64 - 1, 19), (0x9E3779B97F4A7C15, 7)])
def test_draws_are_standard_normal(key: int, step: int) -> None:
    """Each statistic would exceed its limit for about 1 key in 1000; the keys are fixed, so never by chance."""
    z = normal_at(key, step, np.arange(N))
    assert abs(z.mean()) * math.sqrt(N) < 3.3
    assert abs(z.var() - 1) * math.sqrt(N / 2) < 3.3
    cdf = torch.special.ndtr(torch.from_numpy(np.sort(z))).numpy()
    steps = np.arange(N + 1) / N
    kolmogorov = max(np.abs(cdf - steps[1:]).max(), np.abs(cdf - steps[:-1]).max())
    assert kolmogorov * math.sqrt(N) < 1.95


def test_draws_of_other_keys_steps_and_places_are_uncorrelated() -> None:
    """3.9 standard errors: about 1 in 10,000 each; coordinates that a weak hash would confuse."""
    base = normal_at(3, 5, np.arange(N))
    others = [
        normal_at(4, 5, np.arange(N)),
        normal_at(3, 6, np.arange(N)),
        normal_at(5, 3, np.arange(N)),
        normal_at(3 + 0x9E3779B97F4A7C15, 4, np.arange(N)),
        normal_at(3, 5, np.arange(N) + 1),
        normal_at(3, 5, np.arange(N) + N),
        normal_at(3, 5, np.arange(N) + 2**32),
    ]
    for other in others:
        for left, right in ((base, other), (base**2 - 1, (other**2 - 1) / 2)):
            assert abs(np.mean(left * right)) * math.sqrt(N) < 3.9 * math.sqrt(np.mean(left**2 * right**2))


def test_a_draw_depends_on_its_own_place_alone() -> None:
    index = np.random.default_rng(0).integers(0, 2**40, 1000)
    z = normal_at(11, 2, index)
    order = np.random.default_rng(1).permutation(1000)
    assert np.array_equal(normal_at(11, 2, index[order]), z[order])
    for length in range(1, 40):  # vectorised loops treat remainders apart
        assert np.array_equal(normal_at(11, 2, index[7 : 7 + length]), z[7 : 7 + length])
    assert np.array_equal(normal_at(11, 2, index.reshape(10, 100).T), z.reshape(10, 100).T)
    assert normal_at(11, 2, np.array(index[3])) == z[3]


def test_no_draw_exceeds_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pytest.approx(math.sqrt(66 * math.log(2)), rel=1e-5) == MAX_NORMAL
    assert np.abs(normal_at(1, 1, np.arange(N))).max() <= MAX_NORMAL

    # The worst hash, all bits zero: the least uniform, 2^-33, and an angle of 0.
    def worst_hash(first: np.uint64, second: np.uint64, index: IntArray, uniform: Draws, angle: Draws) -> None:
        uniform[:], angle[:] = 2.0**-33, 0.0

    monkeypatch.setattr("fedbiad.compiled.hashed_pairs", worst_hash)
    worst = normal_at(1, 1, np.arange(3))
    assert (worst <= MAX_NORMAL).all()
    assert worst == pytest.approx(MAX_NORMAL, rel=1e-5)


def test_the_hash_against_whole_numbers_of_python() -> None:
    def mixed(x: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = ((x ^ (x >> shift)) * factor) % 2**64
        return x ^ (x >> 31)

    uniform, angle = np.empty((2, 7), dtype=np.float32)
    index = np.array([0, 1, 2, 3, 99, 2**31, 2**40])
    compiled.hashed_pairs(np.uint64(2**63 + 5), np.uint64(77), index, uniform, angle)
    for i, place in enumerate(index.tolist()):
        word = mixed(mixed(((place + 1) * 0x9E3779B97F4A7C15 + 2**63 + 5) % 2**64) ^ 77)
        assert uniform[i] == pytest.approx((word % 2**32 + 0.5) / 2**32, rel=1e-6)
        assert angle[i] == pytest.approx(2 * math.pi * (word // 2**32) / 2**32, rel=1e-6)


def test_entries_not_looked_at_keep_their_value_and_change_no_other() -> None:
    mu = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    rows = np.random.default_rng(0).random((3, 6, 1)) < 0.5
    whole, _ = sample(mu, 0.1, [7, 8, 9], 2)
    some, drawn = sample(mu, 0.1, [7, 8, 9], 2, held=rows)
    assert drawn == 5 * rows.sum()
    assert torch.equal(some, torch.where(torch.from_numpy(rows), whole, mu))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", STDS)
def test_what_may_not_change_does_not(dtype: torch.dtype, std: float) -> None:
    weight = weights_of_all_sizes(dtype)
    stays = weight[~may_change(weight, std)]
    for z in (MAX_NORMAL, np.nextafter(MAX_NORMAL, 0), 6.0, 1.0, 1e-9):
        for sign in (1, -1):
            assert torch.equal((stays.double() + sign * std * z).to(dtype), stays)
    # Far above the threshold (in float64, too) nothing is named.
    assert not bool((may_change(weight, std) & (weight.abs().double() > 2**60 * std)).any())


@pytest.mark.parametrize(("dtype", "half"), [(torch.float32, 2.0**-25), (torch.float64, 2.0**-54)])
def test_may_change_is_sharp_at_a_power_of_two(dtype: torch.dtype, half: float) -> None:
    one = torch.ones(1, dtype=dtype)
    above, below = half / MAX_NORMAL * (1 + 1e-6), half / MAX_NORMAL * (1 - 1e-6)
    assert bool(may_change(one, above))
    assert (one.double() - above * MAX_NORMAL).to(dtype) != one
    assert not bool(may_change(one, below))


def test_may_change_at_zero() -> None:
    tiny = torch.tensor([0.0, -0.0, 2.0**-149, -(2.0**-126)])
    assert bool(may_change(tiny, 1e-19).all())
    assert not bool(may_change(tiny, 0.0).any())
    assert bool(may_change(tiny, 2.0**-150).all())  # z = 1 reaches half of the least number
    assert not bool(may_change(tiny, 1e-114).any())  # the paper's PTB by time steps
    assert bool(may_change(tiny.double(), 1e-300)[:2].all())
    for std in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"std must be in \[0, inf\)"):
            may_change(tiny, std)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("std", STDS)
def test_sample_equals_its_slow_twin_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, std: float
) -> None:
    monkeypatch.setattr("fedbiad.spike_and_slab.CHUNK", 1000)
    weight = weights_of_all_sizes(dtype)
    mu = torch.stack([weight, weight.flip(0), weight.roll(17)])
    fast, drawn = sample(mu, std, [7, 8, 9], 4)
    slow, all_of_them = sample(mu, std, [7, 8, 9], 4, everywhere=True)
    assert torch.equal(bits_of(fast), bits_of(slow))
    assert all_of_them == mu.numel()
    assert drawn == int(may_change(mu, std).sum())
    assert (fast is mu) == (drawn == 0)


def test_sample_does_not_depend_on_the_block_or_the_selection() -> None:
    mu = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
    whole, _ = sample(mu, 0.1, [7, 8, 9], 2)
    for client in range(3):
        alone, _ = sample(mu[client : client + 1], 0.1, [7 + client], 2)
        assert torch.equal(alone[0], whole[client])
    kept = torch.tensor([1, 4])
    index = np.arange(30).reshape(6, 5)[kept]
    compact, _ = sample(mu[:, kept], 0.1, [7, 8, 9], 2, lambda _, place: index.ravel()[place])
    assert torch.equal(compact, whole[:, kept])
    transposed, _ = sample(mu.mT, 0.1, [7, 8, 9], 2, lambda _, place: np.arange(30).reshape(6, 5).T.ravel()[place])
    assert torch.equal(transposed, whole.mT)


def test_sample_has_the_stated_mean_and_spread_and_no_gradient() -> None:
    mu = torch.full((2, N), 3.0, dtype=torch.float64, requires_grad=True)
    theta, drawn = sample(mu, 0.25, [1, 2], 0)
    assert drawn == 2 * N
    assert not theta.requires_grad
    noise = (theta - 3).numpy(force=True) / 0.25
    assert np.allclose(noise[1], normal_at(2, 0, np.arange(N)))
    assert bool((mu == 3).all())
    assert sample(mu, 0.0, [1, 2], 0) == (mu, 0)
    with pytest.raises(ValueError, match="one key per client"):
        sample(mu, 0.1, [1], 0)


def test_global_weights_share_no_draw() -> None:
    U = {"a": torch.zeros(4, 5), "bias": torch.zeros(5), "b": torch.zeros(4, 5), "scale": torch.zeros(())}
    theta = sample_global(U, 1.0, key=6)
    drawn = torch.cat([tensor.reshape(-1) for tensor in theta.values()])
    assert [tensor.shape for tensor in theta.values()] == [tensor.shape for tensor in U.values()]
    assert np.array_equal(drawn.numpy(), normal_at(6, 0, np.arange(46)).astype(np.float32))
    assert len(set(drawn.tolist())) == 46
    still = sample_global({"a": torch.ones(4, 5)}, 1e-19, key=6)
    assert torch.equal(still["a"], torch.ones(4, 5))


@pytest.mark.parametrize(("mean", "variance", "prior"), [(0.7, 0.3, 1.5), (-1.2, 2.0, 0.5), (0.1, 0.99, 1.0)])
def test_kl_agrees_with_numerical_integration(mean: float, variance: float, prior: float) -> None:
    """Row one is held, row two dropped: each part against the part of the prior which it can see."""
    p = 0.3

    def integrand(x: mpmath.mpf) -> mpmath.mpf:
        q = mpmath.npdf(x, mean, mpmath.sqrt(variance))
        return q * mpmath.log(q / ((1 - p) * mpmath.npdf(x, 0, mpmath.sqrt(prior))))

    slab = mpmath.quad(integrand, [mean - 12, mean - 3, mean, mean + 3, mean + 12])
    mu = torch.tensor([[mean], [5.0]], dtype=torch.float64)
    kl = kl_to_prior(mu, torch.tensor([True, False]), variance, prior, p)
    assert kl == pytest.approx(float(slab) - math.log(p), rel=1e-10)


def test_kl_at_its_corners() -> None:
    zeros, held, dropped = torch.zeros(2, 3), torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)
    assert kl_to_prior(zeros, held, 0.5, 0.5, 0.0) == 0
    assert kl_to_prior(zeros, dropped, 0.5, 0.5, 1.0) == 0
    assert kl_to_prior(zeros, dropped, 0.5, 0.5, 0.25) == pytest.approx(2 * math.log(4))
    assert kl_to_prior(zeros, dropped, 0.5, 0.5, 0.0) == math.inf
    assert kl_to_prior(zeros, held, 0.5, 0.5, 1.0) == math.inf
    assert kl_to_prior(zeros, held, 0.0, 0.5, 0.0) == math.inf
    near = 1 + 1e-9  # six weights of (r - 1 - ln r) / 2 = (r - 1)^2 / 4 each
    assert kl_to_prior(zeros, held, near, 1.0, 0.0) == pytest.approx(6 * 1e-18 / 4, rel=1e-6, abs=0)
    small = kl_to_prior(zeros, held, 1e-229, 1.0, 0.0)
    assert small == pytest.approx(3 * (229 * math.log(10) - 1))
    with pytest.raises(ValueError, match=r"dropout_rate in \[0, 1\]"):
        kl_to_prior(zeros, held, 1.0, 1.0, 1.5)
