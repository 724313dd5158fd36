"""Every compressor against a slow version in plain loops, over rounds with changing patterns, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fedbiad.arrays import IntArray
from fedbiad.compressors import DGC, STC, Compressor, FedPAQ, HalfPrecision, Segment, SignSGD
from fedbiad.payloads import Float32

f32 = np.float32
Memory = dict[str, list[np.float32]]
PARAMETERS = (("w1", 24, 2), ("b1", 6, 1), ("w2", 14, 2), ("b2", 4, 1))
SIZE = 48


def kept(draws: np.random.Generator) -> tuple[IntArray, list[Segment]]:
    """Some entries of every parameter, now and then none of one."""
    held = draws.random(SIZE) < draws.choice([0.3, 0.8])
    held[30:44] &= draws.random() < 0.8  # w2 as a whole
    held[0] = True
    ends = np.cumsum([0, *(size for _, size, _ in PARAMETERS)])
    counts = np.concatenate([[0], np.cumsum(held)])[ends]
    return np.flatnonzero(held), [
        Segment(name, slice(int(counts[i]), int(counts[i + 1])), dims) for i, (name, _, dims) in enumerate(PARAMETERS)
    ]


def difference(draws: np.random.Generator, size: int) -> Float32:
    """Plain numbers, or few of them: many ties and zeros."""
    values = draws.standard_normal(size) * float(draws.choice([1e-3, 1.0]))
    return values.astype(f32) if draws.random() < 0.5 else np.round(values).astype(f32)


def top(values: Sequence[np.float32], positions: Sequence[int], density: float) -> list[int]:
    k = max(1, math.ceil(round(density * len(positions), 6)))
    ranked = sorted(positions, key=lambda i: (-abs(values[i]), i))
    return sorted(i for i in ranked[:k] if values[i] != 0)


def runs_of(segments: Sequence[Segment], per: str) -> list[list[int]]:
    own = [list(range(s.entries.start, s.entries.stop)) for s in segments if s.size]
    return own if per == "tensor" else [[i for run in own for i in run]]


def slow_dgc(c: DGC, delta: Float32, where: IntArray, segments: list[Segment], memory: Memory, round_: int,
             _: np.random.Generator) -> list[np.float32]:  # fmt: skip
    g, u, v = list(delta), memory["momentum"], memory["accumulator"]
    norm = math.sqrt(math.fsum(float(x) ** 2 for x in delta))
    if c.clip is not None and norm > c.clip:
        g = [x * f32(c.clip / norm) for x in g]
    thin = [s for s in segments if not (c.dense_biases and s.dims == 1)]
    compressed = {i for run in runs_of(thin, "tensor") for i in run}
    sent = [f32(0) if i in compressed else x for i, x in enumerate(g)]
    for i in compressed:
        full = where[i]
        if c.nesterov:
            u[full] = f32(c.momentum) * (u[full] + g[i])
            v[full] = v[full] + u[full] + g[i]
        else:
            u[full] = f32(c.momentum) * u[full] + g[i]
            v[full] = v[full] + u[full]
    density = [*c.warmup, *[c.density] * round_][round_ - 1]
    own = [v[full] for full in where]
    for run in runs_of(thin, c.per):
        for i in top(own, run, density) if run else []:
            sent[i] = own[i]
            v[where[i]] = f32(0)
            if c.factor_masking:
                u[where[i]] = f32(0)
    return sent


def slow_stc(c: STC, delta: Float32, where: IntArray, segments: list[Segment], memory: Memory, round_: int,
             _: np.random.Generator) -> list[np.float32]:  # fmt: skip
    total = [memory["residual"][full] + x for full, x in zip(where, delta, strict=True)]
    sent = [f32(0)] * len(total)
    for run in runs_of(segments, c.per):
        chosen = top(total, run, c.density)
        for i in chosen:
            mean = f32(math.fsum(abs(float(total[j])) for j in chosen) / len(chosen))
            sent[i] = mean if total[i] > 0 else -mean
    for i, full in enumerate(where):
        memory["residual"][full] = total[i] - sent[i]
    return sent


def slow_signs(c: SignSGD, delta: Float32, where: IntArray, segments: list[Segment], memory: Memory, round_: int,
               stream: np.random.Generator) -> list[np.float32]:  # fmt: skip
    vote = c.mode == "majority"
    total = list(delta) if vote else [memory["residual"][full] + x for full, x in zip(where, delta, strict=True)]
    sent = [f32(0)] * len(total)
    for run in runs_of(segments, "model" if vote else c.per):
        zeros = [i for i in run if total[i] == 0]
        drawn = dict(zip(zeros, stream.integers(0, 2, len(zeros), dtype=np.bool_).tolist(), strict=True))
        size = f32(1) if vote else f32(math.fsum(abs(float(total[i])) for i in run) / len(run))
        for i in run:
            sent[i] = size if drawn.get(i, total[i] > 0) else -size
    if not vote:
        for i, full in enumerate(where):
            memory["residual"][full] = total[i] - sent[i]
    return sent


def slow_fedpaq(c: FedPAQ, delta: Float32, where: IntArray, segments: list[Segment], memory: Memory, round_: int,
                stream: np.random.Generator) -> list[np.float32]:  # fmt: skip
    s = {2: 1, 3: 3, 8: 127}[c.bits]
    sent = [f32(0)] * len(delta)
    for run in runs_of(segments, c.per):
        sizes = [abs(float(delta[i])) for i in run]
        norm = f32(max(sizes) if c.norm == "max" else math.sqrt(math.fsum(x * x for x in sizes)))
        for i, x in zip(run, sizes, strict=True) if norm else []:
            exact = x / float(norm) * s
            level = math.floor(exact)
            level += stream.random() < exact - level
            sent[i] = f32(math.copysign(level, delta[i])) * norm / f32(s)
    return sent


def slow_half(c: HalfPrecision, delta: Float32, *_: object) -> list[np.float32]:
    return [f32(np.float16(min(max(float(x), -65504.0), 65504.0))) for x in delta]


CASES: list[tuple[Compressor, Callable[..., list[np.float32]]]] = [
    *((own, slow_dgc) for own in (
        DGC(),
        DGC(per="model"),
        DGC(per="model", warmup=(), dense_biases=False),
        DGC(density=0.3, warmup=(), nesterov=True, dense_biases=False),
        DGC(density=0.2, warmup=(0.5,), factor_masking=False),
        DGC(density=0.1, clip=0.5, momentum=0.0, per="model", nesterov=True),
    )),
    *((own, slow_stc) for own in (STC(), STC(density=0.3), STC(density=0.2, per="model"), STC(density=1.0))),
    *((own, slow_signs) for own in (SignSGD(), SignSGD(mode="scaled"), SignSGD(mode="scaled", per="model"))),
    *((own, slow_fedpaq) for own in (FedPAQ(), FedPAQ(norm="max", per="tensor"), FedPAQ(bits=2), FedPAQ(bits=3))),
    (HalfPrecision(), slow_half),
]  # fmt: skip


@pytest.mark.parametrize(
    ("compressor", "slow"), CASES, ids=lambda own: repr(own) if isinstance(own, Compressor) else ""
)
def test_against_the_slow_version(compressor: Compressor, slow: Callable[..., list[np.float32]]) -> None:
    for client in range(12):
        draws = np.random.default_rng(client)
        state = compressor.init_client(SIZE)
        memory: Memory = {name: [f32(0)] * SIZE for name in state}
        for round_ in range(1, 9):
            where, segments = kept(draws)
            delta = difference(draws, len(where))
            streams = [np.random.Generator(np.random.Philox(key=round_)) for _ in range(2)]
            payload, state = compressor.compress(delta, where, segments, state, round_, streams[0])
            expected = slow(compressor, delta, where, segments, memory, round_, streams[1])
            assert payload.values().tolist() == [float(x) for x in expected]
            assert {name: value.tolist() for name, value in state.items()} == {
                name: [float(x) for x in value] for name, value in memory.items()
            }
