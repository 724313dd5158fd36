"""The variational family: rows follow beta_j N(mu_j, s^2 I) + (1 - beta_j) delta(0).

A draw is random-access: it depends on (key, step, index of the weight) alone, so noise that could not
change a weight is never drawn, and what is drawn does not depend on what was skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbiad import compiled
from fedbiad.arrays import FloatArray, IntArray

Draws = npt.NDArray[np.float32]
Held = npt.NDArray[np.bool_]
"""Which entries are looked at [clients, ...]; axes of length 1 stand for the whole axis."""

Positions = Callable[[int, IntArray], IntArray]
"""From the number of a client in its block and flat places in its tensor to the places in the full model."""

MAX_NORMAL = math.sqrt(-2 * math.log(2.0**-33)) * (1 + 2.0**-18)
"""No draw exceeds this size (about 6.76): the least uniform is 2^-33; a hair more covers rounding in float32."""

CHUNK = 16_384
"""Draws made at a time, so that what is in between stays in the cache."""

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_WORD = 2**64 - 1


def _mix_int(x: int) -> int:
    """splitmix64's finaliser of one Python integer (numpy scalars would warn of overflow)."""
    x &= _WORD
    x = ((x ^ (x >> 30)) * _MIX_1) & _WORD
    x = ((x ^ (x >> 27)) * _MIX_2) & _WORD
    return x ^ (x >> 31)


def _seeds(key: int, step: int) -> tuple[int, int]:
    """Two words hashed from (key, step)."""
    seed = _mix_int(_mix_int(key + _GOLDEN) + (step + 1) * _GOLDEN)
    return seed, _mix_int(seed + _GOLDEN)


def normal_at(key: int, step: int, index: IntArray) -> FloatArray:
    """Standard normal draws, each a function of (key, step, its index) alone; none exceeds MAX_NORMAL.

    Box-Muller: sqrt(-2 ln u1) cos(2 pi u2), u1 and u2 hashed from the three coordinates.
    """
    return _normals(_seeds(key, step), index.reshape(-1)).astype(np.float64).reshape(index.shape)


def _normals(seeds: tuple[int, int], index: IntArray) -> Draws:
    """The draws at places `index` [n] of the two seeds."""
    draws = np.empty(len(index), dtype=np.float32)
    angle = np.empty(min(len(index), CHUNK), dtype=np.float32)
    first, second = (np.uint64(seed) for seed in seeds)
    for start in range(0, len(index), CHUNK):
        part = draws[start : start + CHUNK]
        turn = angle[: len(part)]
        compiled.hashed_pairs(first, second, index[start : start + CHUNK], part, turn)
        np.log(part, out=part)
        part *= np.float32(-2)
        np.sqrt(part, out=part)
        part *= np.cos(turn, out=turn)
    return draws


def may_change(weight: Tensor, std: float) -> Tensor:
    """Which entries adding std * z, |z| <= MAX_NORMAL, could change after rounding to the tensor's dtype.

    An entry w stays if |w| 2^-25 > std MAX_NORMAL (2^-54 in float64): half the spacing of numbers below a
    power of two. Zeros and subnormal numbers stay only if all noise is under half of the least number.
    Never misses an entry; may name too many by a factor of two in size.
    """
    # Rounding the bound to the dtype is harmless: no number of that dtype lies between the two.
    # numpy compares more than twice as fast as torch.
    small = np.abs(weight.detach().numpy()) <= _largest_changed(std, weight.dtype)
    return torch.from_numpy(small)


def _largest_changed(std: float, dtype: torch.dtype) -> float:
    """No weight of a larger size changes; below 0: none at all."""
    if not 0 <= std < math.inf:
        raise ValueError(f"std must be in [0, inf), not {std}")
    numbers = torch.finfo(dtype)
    bound = std * MAX_NORMAL * 4 / numbers.eps
    return -1.0 if bound < numbers.tiny else bound


@torch.no_grad()
def sample(
    mu: Tensor,
    std: float,
    keys: Sequence[int],
    step: int,
    positions: Positions = lambda client, place: place,
    everywhere: bool = False,
    held: Held | None = None,
) -> tuple[Tensor, int]:
    """theta ~ N(mu, std^2 I) for a block of clients [clients, ...], and for how many entries noise was not skipped.

    Client i draws with keys[i]; `positions` gives entries their places in the full model, by default the flat
    position within the client's tensor. Tensors of one client must not share positions in one step. `held` tells
    which entries are looked at, if not every one; the others may keep theirs.
    Noise is added in float64 and rounded to mu's dtype, and only drawn where `may_change`; if that is
    nowhere, theta is mu itself. `everywhere` is the slow twin that draws all of it.

    No gradient flows through: d theta / d mu = I, so the gradient with respect to mu is the gradient at the
    sampled theta (reparameterisation); put requires_grad on theta.
    """
    if len(keys) != len(mu):
        raise ValueError(f"one key per client is needed: {len(mu)} clients, {len(keys)} keys")
    flat = mu.detach().contiguous().view(-1).numpy()
    if not everywhere and not compiled.any_within(flat, _largest_changed(std, mu.dtype)):
        return mu, 0  # mostly, and seen without making a mask
    wanted = (torch.ones_like(mu, dtype=torch.bool) if everywhere else may_change(mu, std)).numpy()
    if held is not None:
        wanted = wanted & held
    touched = [client for client, own in enumerate(wanted) if own.any()]
    if not touched:
        return mu, 0
    theta = mu.detach().clone(memory_format=torch.contiguous_format)
    drawn = 0
    for client in touched:
        places = np.flatnonzero(wanted[client])
        z = _normals(_seeds(keys[client], step), positions(client, places))
        compiled.shift(theta[client].view(-1).numpy(), places, std, z)
        drawn += len(places)
    return theta, drawn


def shifted(offset: int) -> Positions:
    """Positions of a whole tensor whose first entry stands at `offset` in the full model."""
    return lambda client, place: place + offset


def sample_global(U: Mapping[str, Tensor], std: float, key: int) -> dict[str, Tensor]:
    """The global weights of a round; no two of them share a draw.

    Eq. (global_weights): theta_r ~ N(U_r, s^2 I).
    A tensor which the noise cannot change shares its memory with U.
    """
    theta = {}
    offset = 0
    for name, mu in U.items():
        drawn, _ = sample(mu.unsqueeze(0), std, [key], 0, shifted(offset))
        theta[name] = drawn[0].detach()
        offset += mu.numel()
    return theta


def kl_to_prior(mu: Tensor, pattern: Tensor, variance: float, prior_variance: float, dropout_rate: float) -> float:
    """KL of the rows' variational approximation, given the dropping pattern, to the spike-and-slab prior.

    Eq. (loss), KL(pi~ || pi), for rows mu [rows, width] with pi = p delta(0) + (1-p) N(0, prior_variance I):
    a held row costs KL(N(mu_j, s^2 I) || N(0, prior_variance I)) - ln(1-p), a dropped one -ln p, because
    spike and slab are mutually singular.
    Differs from the paper: it never states its prior.
    """
    if not (variance >= 0 and prior_variance > 0 and 0 <= dropout_rate <= 1):
        raise ValueError(
            "needed: variance >= 0, prior_variance > 0 and dropout_rate in [0, 1], "
            f"not {variance}, {prior_variance} and {dropout_rate}"
        )
    held = mu.detach()[pattern].double()
    dropped = len(pattern) - len(held)
    labels = _cost(len(held), 1 - dropout_rate) + _cost(dropped, dropout_rate)
    if held.numel() == 0:
        return labels
    ratio = variance / prior_variance
    if ratio == 0:
        return math.inf  # a point mass has no density against a Gaussian
    spread = held.numel() * (ratio - 1 - math.log(ratio))
    return 0.5 * (spread + float(held.square().sum()) / prior_variance) + labels


def _cost(rows: int, probability: float) -> float:
    """-ln of the prior probability of that many labels; labels that do not occur cost nothing."""
    if rows == 0:
        return 0.0
    return -rows * math.log(probability) if probability > 0 else math.inf
