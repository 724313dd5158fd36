"""Evidence coding: budgets in every unit, kept by real messages; what is sent is without bias; bad input is named.

The statistical test is on fixed seeds; with a correct rounding each claim fails on at most 1e-9 of all seeds.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedbiad import wire
from fedbiad.arrays import Pattern
from fedbiad.coding.multiples import put_multiples
from fedbiad.coding.sink import Sink
from fedbiad.compressors import Evidence, Room, Segment
from fedbiad.compressors.evidence import APART, CEILING, FRAME, Search, Within, entropy, mean_multiple
from fedbiad.errors import UpdateError
from fedbiad.messages import ReplyMessage, Report
from fedbiad.models import MLP
from fedbiad.network import Network
from fedbiad.payloads import Dense, Float32, Multiples, Payload
from fedbiad.plan_problems import key_problems_of
from fedbiad.rows import Layout
from fedbiad.theory import added_variance

LAYOUT = MLP(40, (24,), 10).layout("units")
ALL = LAYOUT.all_rows(1)[0]
RUN, ERROR_RATE = 5, 1e-9


def segments(layout: Layout, pattern: Pattern) -> list[Segment]:
    """The kept entries of every parameter, with their rows."""
    found, start = [], 0
    for name, shape in layout.kept_shapes(pattern).items():
        stop = start + math.prod(shape)
        found.append(Segment(name, slice(start, stop), len(shape), shape[0] if len(shape) > 1 else 1))
        start = stop
    return found


def changes(rng: np.random.Generator, size: int) -> Float32:
    """Of many scales, rows that share theirs, now and then few or equal ones."""
    values = rng.standard_normal(size) * np.exp(rng.normal(0, rng.uniform(0, 3), size // 8 + 1)).repeat(8)[:size]
    kind = rng.integers(0, 6)
    if kind == 0:
        values[rng.random(size) < 0.95] = 0
    elif kind == 1:
        values = np.sign(values)
    elif kind == 2:
        values[rng.integers(size)] = 1e4
    scaled: Float32 = (values * 10.0 ** rng.uniform(-30, 30)).astype(np.float32)
    return scaled


def reply_of(compressor: Evidence, delta: Float32, pattern: Pattern, key: int = 1) -> tuple[ReplyMessage, int]:
    """The reply of a client that chose the rows itself, as the channel would make it, and FedAvg's bytes."""
    rows = None if pattern.all() else pattern
    empty = Payload((Dense(np.zeros(0, np.float32)),), difference=True)
    message = ReplyMessage(RUN, 3, 300, 60, rows, empty, Report(0.5, 2, 1))
    dense, besides = wire.reply_room(LAYOUT, message)
    stream = np.random.Generator(np.random.Philox(key=key))
    payload, state = compressor.for_message(Room(dense, besides)).compress(
        delta, np.flatnonzero(LAYOUT.kept_entries(pattern)), segments(LAYOUT, pattern), {}, 3, stream
    )
    assert state == {}
    return replace(message, payload=payload), dense


def part_of(message: ReplyMessage) -> Multiples:
    (part,) = message.payload.parts
    assert isinstance(part, Multiples)
    return part


# ---------------------------------------------------------------------- budgets


def test_the_room_of_a_message_is_what_its_parts_leave() -> None:
    pattern = ALL.copy()
    pattern[::3] = False
    for rows in (ALL, pattern):
        message, dense = reply_of(Evidence(budget=0.1), changes(np.random.default_rng(1), kept(rows)), rows)
        values = Payload((Dense(np.zeros(kept(rows), np.float32)),), difference=True)
        size = wire.reply_size(LAYOUT, replace(message, payload=values))
        assert wire.reply_room(LAYOUT, message) == (dense, size - 4 * kept(rows) - 2)
    whole = Payload((Dense(np.zeros(LAYOUT.num_weights, np.float32)),), difference=True)
    assert dense == wire.reply_size(LAYOUT, replace(message, pattern=None, payload=whole))


def kept(pattern: Pattern) -> int:
    return int(LAYOUT.kept_weights(pattern[None])[0])


def test_budgets_are_kept() -> None:
    """Random updates, patterns and budgets: never above 1.01 of it, and hardly below where there is enough to send."""
    rng, shares = np.random.default_rng(0), []
    for key in range(10_000):
        pattern = ALL if key % 2 else rng.random(LAYOUT.num_rows) < 0.7
        if not pattern.any():
            continue
        budget = float(np.exp(rng.uniform(np.log(0.025), np.log(0.3))))
        delta = changes(rng, kept(pattern))
        message, dense = reply_of(Evidence(budget=budget), delta, pattern, key)
        size = wire.reply_size(LAYOUT, message)
        assert size <= CEILING * budget * dense
        shares.append(size / (budget * dense))
    assert np.median(shares) > 0.96  # few or like changes, and one among many that are far smaller, take less


def test_bytes_and_seconds_instead_of_a_share() -> None:
    delta, besides = changes(np.random.default_rng(1), LAYOUT.num_weights), 30
    room = Room(dense=4 * LAYOUT.num_weights + 32, besides=besides, uplink=1000.0)
    for budget in (Evidence(budget=0.1), Evidence(bytes=500), Evidence(seconds=0.5), Evidence(seconds=0.5, bytes=9)):
        limit = 0.1 * room.dense if budget.bytes is None and budget.seconds is None else 500
        payload, _ = budget.for_message(room).compress(
            delta, np.arange(len(delta)), segments(LAYOUT, ALL), {}, 1, np.random.default_rng(0)
        )
        message = ReplyMessage(RUN, 3, 300, 60, None, payload, Report(0.5, 2, 1))
        assert 0.95 < wire.reply_size(LAYOUT, message) / limit < CEILING
    network = Network(uplink=14.0)
    assert network.upload_seconds(0, 1_750_000, 0) == pytest.approx(1.0)  # bytes a second for `Room.uplink`


def test_without_being_told_the_room_a_budget_still_holds() -> None:
    delta = changes(np.random.default_rng(4), LAYOUT.num_weights)
    own = [Segment(one.name, one.entries, one.dims) for one in segments(LAYOUT, ALL)]  # rows unknown
    payload, _ = Evidence(budget=0.1).compress(delta, np.arange(len(delta)), own, {}, 1, np.random.default_rng(0))
    message = ReplyMessage(RUN, 3, 300, 60, None, payload, Report(0.5, 2, 1))
    assert wire.reply_size(LAYOUT, message) <= 0.1 * (4 * LAYOUT.num_weights + 48) * CEILING


@pytest.mark.parametrize("looked_at", [0.0, 1.0, 30.0])
def test_what_some_rows_tell_does_not_decide_whether_a_budget_is_kept(looked_at: float) -> None:
    """The rows from which the first step is found may be empty, like the others or far from them."""
    delta = np.random.default_rng(5).standard_normal((128, 100)).astype(np.float32)
    delta[APART // 2 :: APART] *= np.float32(looked_at)
    own = [Segment("w", slice(0, delta.size), 2, 128)]
    for limit in (300, 1000, 5000):
        within = Within(limit, 40)
        payload, _ = within.compress(delta.ravel(), np.arange(delta.size), own, {}, 1, np.random.default_rng(limit))
        (part,), sink = payload.parts, Sink()
        assert isinstance(part, Multiples)
        put_multiples(sink, part, [(128, 100)])
        assert 0.9 * limit < 40 + FRAME + sink.plain_size() + len(sink.coded()) <= CEILING * limit


def test_a_larger_budget_means_a_shorter_step_and_less_noise() -> None:
    delta = changes(np.random.default_rng(3), LAYOUT.num_weights)
    found = []
    for budget in (0.03, 0.1, 0.3, 1.0):
        part = part_of(reply_of(Evidence(budget=budget), delta, ALL)[0])
        found.append((part.step, added_variance(delta.astype(np.float64), float(part.step))))
    assert found == sorted(found, reverse=True)
    assert found[0][0] > 10 * found[-1][0]


def test_the_step_does_not_depend_on_chance() -> None:
    delta = changes(np.random.default_rng(3), LAYOUT.num_weights)
    parts = [part_of(reply_of(Evidence(budget=0.1), delta, ALL, key)[0]) for key in range(30)]
    assert len({float(part.step) for part in parts}) == 1
    assert len({part.positions.tobytes() for part in parts}) > 20


def test_what_arrives_is_right_on_average() -> None:
    delta = np.random.default_rng(3).standard_normal(LAYOUT.num_weights).astype(np.float32)
    step = float(part_of(reply_of(Evidence(budget=0.05), delta, ALL)[0]).step)
    times = 150
    errors = np.stack([reply_of(Evidence(budget=0.05), delta, ALL, key)[0].payload.values() for key in range(times)])
    errors = (errors - delta.astype(np.float64)) / step
    bound = math.sqrt(math.log(2 * len(delta) / ERROR_RATE) / (2 * times))
    assert np.abs(errors.mean(axis=0)).max() < bound
    # the mean of squares over weights and times varies less than one over independent draws: Hoeffding over times
    variance = added_variance(delta.astype(np.float64), step) / step**2
    assert (errors**2).sum(axis=1).mean() == pytest.approx(variance, rel=0.02)


def test_the_budget_of_plain_numbers() -> None:
    for mean in (1e-9, 0.003, 0.5, 1.0, 40.0):
        assert mean_multiple(entropy(mean)) == pytest.approx(mean, rel=1e-3)
    # sizes 0, 1, 2, ... with chances 1/2, 1/4, ...: 2 bits, and a sign for every other one
    assert entropy(1.0) == 2 + 0.5
    assert entropy(1e-6) == pytest.approx(1e-6 * (math.log2(1e6) + math.log2(math.e) + 1), rel=1e-5)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Evidence(budget=0.0), "budget: input should be greater than 0, not 0.0"),
        (Evidence(budget=1.5), "budget: input should be less than or equal to 1, not 1.5"),
        (Evidence(bytes=0), "bytes: input should be greater than or equal to 1, not 0"),
        (Evidence(seconds=0.0), "seconds: input should be greater than 0, not 0.0"),
        (Evidence(seconds=math.inf), "seconds"),
    ],
)
def test_bad_budgets_are_named(settings: Evidence, said: str) -> None:
    (problem,) = key_problems_of(settings)
    assert said in problem


def test_a_budget_below_the_header_says_what_it_would_take() -> None:
    with pytest.raises(
        UpdateError, match=r"a budget of 20 bytes is below the \d+ bytes that a message with one weight"
    ):
        reply_of(Evidence(bytes=20), np.ones(LAYOUT.num_weights, np.float32), ALL)


def test_the_least_budget_holds_one_weight() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UpdateError) as refusal:
        reply_of(Evidence(bytes=1), changes(rng, LAYOUT.num_weights), ALL)
    least = int(str(refusal.value).split("below the ")[1].split()[0])
    counts = []
    for key in range(40):
        message, _ = reply_of(Evidence(bytes=least), changes(rng, LAYOUT.num_weights), ALL, key)
        assert wire.reply_size(LAYOUT, message) <= least
        counts.append(len(part_of(message).positions))
    assert 0 < np.mean(counts) < 4


def test_seconds_need_a_link() -> None:
    with pytest.raises(UpdateError, match="a budget in seconds needs the client's uplink"):
        Evidence(seconds=1.0).for_message(Room(1000, 30))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_refused(value: float) -> None:
    delta = np.ones(LAYOUT.num_weights, np.float32)
    delta[7] = value
    with pytest.raises(UpdateError, match="NaN or infinite"):
        reply_of(Evidence(budget=0.1), delta, ALL)


def test_an_update_beyond_float32_is_refused() -> None:
    with pytest.raises(UpdateError, match="too large"):
        reply_of(Evidence(budget=0.1), np.full(LAYOUT.num_weights, 3e38, np.float32), ALL)


def test_nothing_learned_is_a_tiny_message() -> None:
    message, _ = reply_of(Evidence(budget=0.1), np.zeros(LAYOUT.num_weights, np.float32), ALL)
    data = wire.encode_reply(LAYOUT, message)
    assert len(data) < 40
    assert not wire.decode_reply(data, LAYOUT, RUN).payload.values().any()


def test_the_tiniest_updates_are_sent() -> None:
    """Below float32's normal numbers steps are coarse, but not 0."""
    delta = np.full(LAYOUT.num_weights, 1e-45, np.float32)
    part = part_of(reply_of(Evidence(budget=1.0), delta, ALL)[0])
    assert part.values().tolist() == delta.tolist()


def test_too_long_by_chance_means_a_longer_step() -> None:
    """A search that may not exceed what it aims at tries again until it does not."""
    delta = changes(np.random.default_rng(3), LAYOUT.num_weights)
    blocks = [(24, 40), (1, 24), (10, 24), (1, 10)]
    largest = float(np.abs(delta).max())
    free, bound = (Search(delta, blocks, 2000.0, most, largest) for most in (9999.0, 1800.0))
    steps = [search.part(np.random.default_rng(0)).step for search in (free, bound)]
    assert 1.05 < steps[1] / steps[0] < 2
