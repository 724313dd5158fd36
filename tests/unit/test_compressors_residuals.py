"""Nothing is lost: what was sent and what is kept are, entry by entry, all that was ever added.

The differences are small whole numbers, every division is by a power of two and the rounds are few, so that all
numbers fit 24 bits and float32 arithmetic is exact: the identities hold without a tolerance.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

from fedbiad.arrays import ClientState, FloatArray, IntArray
from fedbiad.compressors import DGC, STC, Compressor, Segment, SignSGD

SEQUENCES, ROUNDS = 1000, 5
PARAMETERS = ((16, 2), (8, 1), (8, 2))
SIZE = 32
EIGHTH = 1 / 8
"""At most two of 16 entries: their mean is exact."""


def kept(draws: np.random.Generator, power_of_two: bool) -> tuple[IntArray, list[Segment]]:
    """Some entries of each parameter; if asked for, 1, 2, 4, 8 of each, so that means over them are exact."""
    where, sizes = [], []
    for start, (size, _) in zip((0, 16, 24), PARAMETERS, strict=True):
        number = 2 ** draws.integers(0, 4) if power_of_two else draws.integers(1 if start == 0 else 0, size + 1)
        where.append(np.sort(start + draws.choice(size, number, replace=False)))
        sizes.append(int(number))
    ends = [0, *accumulate(sizes)]
    segments = [Segment("", slice(ends[i], ends[i + 1]), dims) for i, (_, dims) in enumerate(PARAMETERS)]
    return np.concatenate(where), segments


def momentum_added(dgc: DGC, state: ClientState, where: IntArray, g: FloatArray) -> FloatArray:
    """What one round adds to v, from the u of before."""
    u = state["momentum"].astype(np.float64)[where]
    return dgc.momentum * (u + g) + g if dgc.nesterov else dgc.momentum * u + g


CASES: list[Compressor] = [
    STC(density=EIGHTH),
    SignSGD(mode="scaled"),
    DGC(momentum=0.0, density=EIGHTH, warmup=(0.5,)),
    DGC(momentum=0.0, density=EIGHTH, per="model", dense_biases=False),
    DGC(momentum=0.5, density=EIGHTH, dense_biases=False),
    DGC(momentum=0.5, density=EIGHTH, dense_biases=False, factor_masking=False, per="model"),
    DGC(momentum=0.5, density=EIGHTH, dense_biases=False, nesterov=True),
]


@pytest.mark.parametrize("compressor", CASES, ids=repr)
def test_sent_and_kept_are_all_that_was_added(compressor: Compressor) -> None:
    memory = "accumulator" if isinstance(compressor, DGC) else "residual"
    waiting = 0
    for sequence in range(SEQUENCES):
        draws = np.random.default_rng(sequence)
        state = compressor.init_client(SIZE)
        added, sent = np.zeros(SIZE), np.zeros(SIZE)
        for round_ in range(1, ROUNDS + 1):
            where, segments = kept(draws, isinstance(compressor, SignSGD))
            delta = draws.integers(-8, 9, len(where)).astype(np.float32)
            g = delta.astype(np.float64)
            added[where] += momentum_added(compressor, state, where, g) if isinstance(compressor, DGC) else g
            before = state
            payload, state = compressor.compress(delta, where, segments, before, round_, draws)
            sent[where] += payload.values()
            for name in state:
                assert np.array_equal(np.delete(state[name], where), np.delete(before[name], where))
        assert np.array_equal(sent + state[memory].astype(np.float64), added)
        waiting += bool(state[memory].any())
    assert waiting == SEQUENCES  # there was something to lose


@pytest.mark.parametrize("compressor", [STC(density=0.1), SignSGD(mode="scaled"), DGC(momentum=0.0)], ids=repr)
def test_plain_numbers_lose_only_rounding(compressor: Compressor) -> None:
    """Each round rounds twice an entry, each time by at most 2^-24 of the largest number there was."""
    memory = "accumulator" if isinstance(compressor, DGC) else "residual"
    rounds, draws = 200, np.random.default_rng(0)
    state = compressor.init_client(SIZE)
    added, sent, top = np.zeros(SIZE), np.zeros(SIZE), 0.0
    for round_ in range(1, rounds + 1):
        where, segments = kept(draws, False)
        delta = draws.standard_normal(len(where)).astype(np.float32)
        top = max(top, float(np.abs(state[memory].astype(np.float64)).max()) + float(np.abs(delta).max()))
        payload, state = compressor.compress(delta, where, segments, state, round_, draws)
        added[where] += delta
        sent[where] += payload.values()
        top = max(top, float(np.abs(state[memory].astype(np.float64)).max()))
    lost = np.abs(sent + state[memory].astype(np.float64) - added).max()
    assert lost <= 2 * rounds * top * 2.0**-24
