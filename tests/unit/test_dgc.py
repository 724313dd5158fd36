"""DGC, and the choice of the largest entries it shares with STC, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedbiad.arrays import ClientState
from fedbiad.compressors import DGC, STC, Segment
from fedbiad.compressors.stc import count, largest
from fedbiad.payloads import Dense, Part, Sparse, Ternary

WEIGHTS = [Segment("w", slice(0, 4), 2)]


def sent(
    compressor: DGC | STC, delta: list[float], state: ClientState, round_: int = 9, segments: list[Segment] = WEIGHTS
) -> tuple[tuple[Part, ...], list[float], ClientState]:
    stream = np.random.default_rng(0)
    where = np.arange(len(delta))
    payload, state = compressor.compress(np.array(delta, dtype=np.float32), where, segments, state, round_, stream)
    return payload.parts, payload.values().tolist(), state


def test_two_rounds_with_factor_masking() -> None:
    dgc = DGC(density=0.25, momentum=0.5, warmup=())
    _, values, state = sent(dgc, [4.0, 3.0, -1.0, 0.0], dgc.init_client(4))
    assert values == [4.0, 0.0, 0.0, 0.0]  # u = v = g; the largest is sent, u and v are zeroed there
    assert state["momentum"].tolist() == [0.0, 3.0, -1.0, 0.0]
    assert state["accumulator"].tolist() == [0.0, 3.0, -1.0, 0.0]
    _, values, state = sent(dgc, [1.0, 1.0, 1.0, 1.0], state)
    # u = [1, 2.5, 0.5, 1], v = [1, 5.5, -0.5, 1]
    assert values == [0.0, 5.5, 0.0, 0.0]
    assert state["momentum"].tolist() == [1.0, 0.0, 0.5, 1.0]
    assert state["accumulator"].tolist() == [1.0, 0.0, -0.5, 1.0]


def test_without_factor_masking_momentum_stays() -> None:
    dgc = DGC(density=0.25, momentum=0.5, warmup=(), factor_masking=False)
    _, values, state = sent(dgc, [4.0, 3.0, -1.0, 0.0], dgc.init_client(4))
    assert values == [4.0, 0.0, 0.0, 0.0]
    assert state["momentum"].tolist() == [4.0, 3.0, -1.0, 0.0]
    assert state["accumulator"].tolist() == [0.0, 3.0, -1.0, 0.0]


def test_nesterov() -> None:
    dgc = DGC(density=0.25, momentum=0.5, warmup=(), nesterov=True)
    # u = g/2 = [2, 1, 0, 0]; v = u + g = [6, 3, 0, 0]
    _, values, state = sent(dgc, [4.0, 2.0, 0.0, 0.0], dgc.init_client(4))
    assert values == [6.0, 0.0, 0.0, 0.0]
    # u = (1 + 2)/2 = 1.5; v = 3 + 1.5 + 2 = 6.5
    _, values, _ = sent(dgc, [0.0, 2.0, 0.0, 0.0], state)
    assert values == [0.0, 6.5, 0.0, 0.0]


@pytest.mark.parametrize(("clip", "scale"), [(None, 1.0), (2.5, 0.5), (5.0, 1.0), (9.0, 1.0)])
def test_clipping_comes_before_accumulation_and_takes_biases_along(clip: float | None, scale: float) -> None:
    dgc = DGC(density=0.5, momentum=0.5, warmup=(), clip=clip)
    state: ClientState = {"momentum": np.array([8, 0, 0], np.float32), "accumulator": np.array([0, 64, 0], np.float32)}
    segments = [Segment("w", slice(0, 2), 2), Segment("b", slice(2, 3), 1)]
    # the difference has norm 5; u and v of before are not scaled: v = [4, 64] + scale * [3, 0], the bias is scale * 4
    _, values, state = sent(dgc, [3.0, 0.0, 4.0], state, segments=segments)
    assert values == [0.0, 64.0, 4.0 * scale]
    assert state["accumulator"].tolist() == [4 + 3 * scale, 0.0, 0.0]


def test_warm_up_counts_rounds_of_the_run() -> None:
    dgc, n = DGC(), 10_000
    delta = np.random.default_rng(0).standard_normal(n).tolist()
    counts = {}
    for round_ in (1, 2, 3, 4, 5, 60):
        (part,), _, _ = sent(dgc, delta, dgc.init_client(n), round_, [Segment("w", slice(0, n), 2)])
        assert isinstance(part, Sparse)
        counts[round_] = len(part.positions)
    # 10 000 x 0.25, 0.0625, 0.015625 (156.25), 0.004, then 0.001
    assert counts == {1: 2500, 2: 625, 3: 157, 4: 40, 5: 10, 60: 10}
    assert DGC(warmup=()).density_of(1) == 0.001


def test_biases_go_whole_and_are_not_remembered() -> None:
    segments = [Segment("w", slice(0, 3), 2), Segment("b", slice(3, 5), 1), Segment("v", slice(5, 8), 2)]
    delta = [1.0, 5.0, 2.0, 0.25, -0.5, 4.0, 3.0, 0.0]
    dgc = DGC(density=0.3, warmup=())
    parts, values, state = sent(dgc, delta, dgc.init_client(8), segments=segments)
    assert [type(part) for part in parts] == [Sparse, Dense, Sparse]
    assert values == [0.0, 5.0, 0.0, 0.25, -0.5, 4.0, 0.0, 0.0]
    assert state["momentum"].tolist() == state["accumulator"].tolist() == [1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 3.0, 0.0]
    # over the model: ceil(0.3 x 6) = 2 of the six weights; with biases as well ceil(0.3 x 8) = 3 of eight, in one part
    parts, values, _ = sent(DGC(density=0.3, warmup=(), per="model"), delta, dgc.init_client(8), segments=segments)
    assert [part.size for part in parts] == [3, 2, 3]
    assert values == [0.0, 5.0, 0.0, 0.25, -0.5, 4.0, 0.0, 0.0]
    all_alike = DGC(density=0.3, warmup=(), per="model", dense_biases=False)
    parts, values, _ = sent(all_alike, delta, dgc.init_client(8), segments=segments)
    assert [part.size for part in parts] == [8]
    assert values == [0.0, 5.0, 0.0, 0.0, 0.0, 4.0, 3.0, 0.0]


def test_only_biases_kept_send_only_biases() -> None:
    parts, values, _ = sent(DGC(), [1.0, 2.0], DGC().init_client(2), segments=[Segment("b", slice(0, 2), 1)])
    assert [type(part) for part in parts] == [Dense]
    assert values == [1.0, 2.0]


def test_ties_go_to_the_first_and_zeros_to_none() -> None:
    def chosen(sizes: list[float], number: int) -> list[int]:
        return [int(i) for i in largest(np.array(sizes, dtype=np.float32), number)]

    assert chosen([2.0, 1.0, 2.0, 2.0, 3.0], 3) == [0, 2, 4]
    assert chosen([1.0] * 5, 2) == [0, 1]
    assert chosen([0.0, 1.0, 0.0], 2) == [1]
    assert chosen([0.0, 0.0], 1) == []
    assert chosen([3.0, 1.0], 2) == [0, 1]
    many = np.random.default_rng(0).integers(0, 5, 20_000).astype(np.float32)
    for number in (1, 777, 12_345, 20_000):
        by_sorting = sorted(np.argsort(-many, kind="stable")[:number].tolist())
        assert chosen(many.tolist(), number) == [i for i in by_sorting if many[i] > 0]


def test_count_by_hand() -> None:
    cases = {
        (0.001, 1000): 1,
        (0.001, 1001): 2,
        (0.07, 100): 7,
        (0.001, 3): 1,
        (1.0, 5): 5,
        (1 / 400, 7_454_800): 18_637,
    }
    assert {case: count(*case) for case in cases} == cases


def test_stc_by_hand() -> None:
    stc = STC(density=0.5)
    (part,), values, state = sent(stc, [4.0, 1.0, -2.0, 0.5], stc.init_client(4))
    assert isinstance(part, Ternary)
    assert part.magnitude == 3.0
    assert part.positions.tolist() == [0, 2]
    assert values == [3.0, 0.0, -3.0, 0.0]
    assert state["residual"].tolist() == [1.0, 1.0, 1.0, 0.5]
    _, values, state = sent(stc, [0.0, 1.0, -1.0, 0.0], state)
    assert values == [1.5, 1.5, 0.0, 0.0]  # of the sum [1, 2, 0, 0.5]
    assert state["residual"].tolist() == [-0.5, 0.5, 0.0, 0.5]
