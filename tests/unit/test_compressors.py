"""What every compressor promises, over all presets; bad options; sizes by the paper's count."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedbiad.arrays import ClientState, IntArray
from fedbiad.compressors import COMPRESSORS, DGC, PAPER, STC, Compressor, Evidence, FedPAQ, Segment, SignSGD
from fedbiad.errors import RunError
from fedbiad.payloads import Float32, Sparse, Ternary
from fedbiad.plan_problems import key_problems_of

PRESETS = {f"original {name}": own for name, own in COMPRESSORS.items()} | {
    f"paper {name}": own for name, own in PAPER.items()
}
PRESETS["original evidence"] = Evidence(bytes=100)  # 60 weights: half a percent would not hold one of them
each_preset = pytest.mark.parametrize("name", PRESETS)
SIZE = 60
WHERE: IntArray = np.flatnonzero(np.random.default_rng(5).random(SIZE) < 0.6)


def segmented(*sizes: int) -> list[Segment]:
    """Weights and biases by turns."""
    ends = [0, *np.cumsum(sizes).tolist()]
    return [Segment(f"p{i}", slice(first, last), 2 - i % 2) for i, (first, last) in enumerate(pairwise(ends))]


def stream(key: int = 1) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key))


def difference(round_: int, size: int) -> Float32:
    return np.random.default_rng(round_).standard_normal(size).astype(np.float32)


def after_rounds(compressor: Compressor, rounds: int) -> ClientState:
    state = compressor.init_client(SIZE)
    for round_ in range(1, rounds + 1):
        delta = difference(round_, SIZE)
        state = compressor.compress(delta, np.arange(SIZE), segmented(SIZE), state, round_, stream())[1]
    return state


def same_state(one: ClientState, two: ClientState) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[part], two[part]) for part in one)


@each_preset
def test_parts_cover_every_kept_entry_in_order_and_skip_empty_segments(name: str) -> None:
    delta, n = difference(9, len(WHERE)), len(WHERE)
    segments = segmented(0, 3, n - 10, 0, 5, 2, 0)
    payload, _ = PRESETS[name].compress(delta, WHERE, segments, PRESETS[name].init_client(SIZE), 9, stream())
    assert payload.difference
    assert payload.size == n == len(payload.values())
    filled = [segment.size for segment in segments if segment.size]
    assert [part.size for part in payload.parts] in (filled, [n])
    sent = payload.values() != 0
    assert sent.any()
    assert (np.sign(payload.values()[sent]) == np.sign(delta[sent])).all()  # the first round: nothing was kept before


@each_preset
def test_the_stream_decides_and_arguments_are_left_alone(name: str) -> None:
    state, delta = after_rounds(PRESETS[name], 2), difference(9, len(WHERE))
    delta[::4] = 0
    before, delta_before, where_before = {k: v.copy() for k, v in state.items()}, delta.copy(), WHERE.copy()
    outcomes = [
        PRESETS[name].compress(delta, WHERE, segmented(20, len(WHERE) - 20), state, 9, stream(key)) for key in (1, 1, 2)
    ]
    (first, first_state), (again, again_state), (other, _) = outcomes
    assert np.array_equal(first.values(), again.values())
    assert same_state(first_state, again_state)
    drawn = name in ("original fedpaq", "paper fedpaq", "original signsgd", "original evidence")
    assert np.array_equal(first.values(), other.values()) != drawn
    assert same_state(state, before)
    assert np.array_equal(delta, delta_before)
    assert np.array_equal(WHERE, where_before)


@each_preset
def test_state_keeps_its_form_and_entries_not_kept_are_untouched(name: str) -> None:
    fresh, state = PRESETS[name].init_client(SIZE), {**after_rounds(PRESETS[name], 2), "score": np.arange(3.0)}
    segments = segmented(20, len(WHERE) - 20)
    _, after = PRESETS[name].compress(difference(9, len(WHERE)), WHERE, segments, state, 9, stream())
    assert np.array_equal(after["score"], np.arange(3.0))  # what others remember passes through
    assert after.keys() == {*fresh, "score"}
    for part, value in fresh.items():
        assert (after[part].dtype, after[part].shape) == (value.dtype, value.shape)
        assert (value.dtype, value.shape) == (np.dtype(np.float32), (SIZE,))
        assert np.delete(state[part], WHERE).any()
        assert np.array_equal(np.delete(after[part], WHERE), np.delete(state[part], WHERE))
        assert not np.array_equal(after[part][WHERE], state[part][WHERE])


@each_preset
def test_absent_rounds_change_nothing(name: str) -> None:
    state, delta, segments = after_rounds(PRESETS[name], 5), difference(9, len(WHERE)), segmented(20, len(WHERE) - 20)
    soon, late = (PRESETS[name].compress(delta, WHERE, segments, state, round_, stream()) for round_ in (6, 60))
    assert np.array_equal(soon[0].values(), late[0].values())
    assert same_state(soon[1], late[1])


@each_preset
def test_an_empty_kept_set_is_refused(name: str) -> None:
    nothing, nowhere = np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int64)
    for segments in ([], segmented(0, 0)):
        with pytest.raises(RunError, match=r"round 7: a client keeps no entry .* lower the dropout rate"):
            PRESETS[name].compress(nothing, nowhere, segments, PRESETS[name].init_client(SIZE), 7, stream())


@each_preset
def test_nothing_learned_sends_nothing_but_votes(name: str) -> None:
    delta = np.zeros(len(WHERE), dtype=np.float32)
    state = PRESETS[name].init_client(SIZE)
    payload, after = PRESETS[name].compress(delta, WHERE, segmented(9, len(WHERE) - 9), state, 1, stream())
    assert same_state(after, state)
    assert (payload.values() == 0).all() == (PRESETS[name].vote_step is None)


@given(
    st.sampled_from(sorted(PRESETS)),
    st.lists(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), max_size=9), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_messages_are_well_formed(name: str, entries: list[list[float]], rounds: int, gaps: int) -> None:
    delta = np.array([value for own in entries for value in own], dtype=np.float32)
    if not len(delta):
        return
    where = np.arange(len(delta)) * (gaps + 1)
    state = PRESETS[name].init_client(len(delta) * (gaps + 1))
    for round_ in range(1, rounds + 1):
        payload, state = PRESETS[name].compress(
            delta, where, segmented(*map(len, entries)), state, round_, stream(round_)
        )
        values = payload.values()
        assert values.shape == delta.shape
        assert values.dtype == np.float32
        assert np.isfinite(values).all()
        assert payload.paper_bits > 0 or not np.any(delta)
        for part in payload.parts:
            assert part.size > 0
            if isinstance(part, Sparse | Ternary):
                assert (np.diff(part.positions) > 0).all()
                assert ((part.positions >= 0) & (part.positions < part.size)).all()
                assert part.positions.dtype == np.int64


@each_preset
def test_presets_survive_a_plan(name: str) -> None:
    preset = PRESETS[name]
    assert key_problems_of(preset) == []
    written = json.dumps(dataclasses.asdict(preset))
    assert TypeAdapter(type(preset)).validate_json(written, strict=True) == preset


@pytest.mark.parametrize(
    ("settings_", "said"),
    [
        (DGC(density=0.0), "density: input should be greater than 0, not 0.0"),
        (DGC(warmup=(0.5, 1.5)), "warmup.1: input should be less than or equal to 1, not 1.5"),
        (DGC(momentum=1.0), "momentum: input should be less than 1, not 1.0"),
        (DGC(clip=0.0), "clip: input should be greater than 0, not 0.0"),
        (STC(density=1.01), "density: input should be less than or equal to 1, not 1.01"),
        (STC(per="layer"), "per: input should be 'tensor' or 'model', not \"layer\""),  # type: ignore[arg-type]
        (FedPAQ(bits=9), "bits: input should be less than or equal to 8, not 9"),
        (FedPAQ(bits=1), "bits: input should be greater than or equal to 2, not 1"),
        (SignSGD(step_share=0.0), "step_share: input should be greater than 0, not 0.0"),
        (SignSGD(step_share=math.inf), "step_share"),
    ],
)
def test_bad_options_are_named(settings_: Compressor, said: str) -> None:
    (problem,) = key_problems_of(settings_)
    assert said in problem


PTB, MNIST = 7_454_800, 132_490
"""Parameters of the paper's models, as its tables give them away."""


@pytest.mark.parametrize(
    ("name", "size", "kib"),
    [("signsgd", MNIST, 16.2), ("fedpaq", MNIST, 129.4), ("stc", PTB, 147.9), ("dgc", PTB, 87.4)],
)
def test_sizes_of_the_papers_tables(name: str, size: int, kib: float) -> None:
    # n + 32 bits; 8 n + 32; 65 ceil(n / 400) + 32; 96 ceil(n / 1000)
    delta, state = difference(1, size), PAPER[name].init_client(size)
    payload, _ = PAPER[name].compress(delta, np.arange(size), segmented(size), state, 1, stream())
    assert payload.paper_bits / 8 / 1024 == pytest.approx(kib, abs=0.05)
