"""Increments of U: rounding by hand, the choice of the smaller message, and copies that stay equal to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedbiad import wire
from fedbiad.arrays import Params
from fedbiad.coding.multiples import multiples_bits
from fedbiad.coding.parts import blocks_of
from fedbiad.cohort import Cohort
from fedbiad.compressors.nearest import CLOSE, multiples_of, nearest
from fedbiad.errors import PlanError, RunError, UpdateError, WireError
from fedbiad.increments import applied
from fedbiad.messages import IncrementsMessage, RequestMessage
from fedbiad.methods import METHODS
from fedbiad.models import MLP
from fedbiad.payloads import Dense, Float32, Multiples, Payload
from fedbiad.plan import load, warnings
from fedbiad.publishing import Published, Publisher
from fedbiad.sending import Channel, flatten, unflatten
from wire_samples import mutate, reseal

LAYOUT = MLP(24, (12,), 4).layout("units")
SIZE, SHAPES = LAYOUT.num_weights, tuple(LAYOUT.shapes.values())
RUN = 7
CHANNEL = Channel(LAYOUT, RUN, wired=True)


def params(flat: Float32) -> Params:
    return {name: part[0] for name, part in unflatten(LAYOUT, flat[None]).items()}


def changes(seed: int) -> Float32:
    """A few large changes and many small ones."""
    stream = np.random.default_rng(seed)
    return (stream.standard_normal(SIZE) ** 3).astype(np.float32)


def some(seed: int, step: float = 3.0) -> bytes:
    return wire.encode_increment(LAYOUT, Payload((multiples_of(changes(seed), step),), True))


class TestNearest:
    def test_by_hand(self) -> None:
        part = multiples_of(np.array([1.0, -0.4, 0.1, 0.0, -1.75], dtype=np.float32), 0.5)
        assert part.positions.tolist() == [0, 1, 4]
        assert part.multiples.tolist() == [2, -1, -4]  # of 3.5 steps the even number
        assert part.values().tolist() == [1.0, -0.5, 0.0, 0.0, -2.0]

    @pytest.mark.parametrize("most", [400, 1500, 3000])
    def test_takes_the_shortest_step_that_fits(self, most: int) -> None:
        change, blocks = changes(0), blocks_of(SHAPES, 0, SIZE)
        part = nearest(change, blocks, most)
        assert multiples_bits(part, blocks) <= most
        step = float(part.step)
        assert np.abs(change - part.values()).max() <= step / 2 * 1.001
        steps = step / CLOSE ** np.arange(1.0, 4.0)
        assert any(multiples_bits(multiples_of(change, shorter), blocks) > most for shorter in steps)

    def test_nothing_changed(self) -> None:
        part = nearest(np.zeros(SIZE, dtype=np.float32), blocks_of(SHAPES, 0, SIZE), 400)
        assert part.values().tolist() == [0.0] * SIZE

    @pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
    def test_refuses_what_cannot_be_sent(self, value: float) -> None:
        with pytest.raises(UpdateError, match="NaN, infinite or too large"):
            nearest(np.full(SIZE, value, dtype=np.float32), blocks_of(SHAPES, 0, SIZE), 400)

    def test_refuses_too_few_bytes(self) -> None:
        with pytest.raises(UpdateError, match="too few"):
            nearest(changes(0), blocks_of(SHAPES, 0, SIZE), 30)


def test_increments_are_added_one_after_another_in_float32() -> None:
    def step(value: float) -> Payload:
        part = Multiples(2, np.float32(value), np.array([1]), np.array([1], dtype=np.int32))
        return Payload((part,), True)

    got = applied(np.array([1.0, 1.0], dtype=np.float32), [step(2.0**-24), step(2.0**-24), step(0.5)])
    assert got.dtype == np.float32
    assert got.tolist() == [1.0, 1.5]  # two halves of the last digit, each rounded away


class TestWire:
    def test_comes_back(self) -> None:
        bodies = (some(0), some(1), some(2, 1e3))
        data = wire.encode_increments(IncrementsMessage(RUN, 5, 300, bodies))
        assert wire.increments_size(5, 300, [len(one) for one in bodies]) == len(data)
        got = wire.decode_increments(data, RUN, 5, 300)
        assert (got.run, got.round, got.client, got.increments) == (RUN, 5, 300, bodies)
        for seed, body in enumerate(got.increments[:2]):
            assert wire.decode_increment(body, LAYOUT).values().tolist() == (
                multiples_of(changes(seed), 3.0).values().tolist()
            )

    def test_is_refused_with_more_increments_than_rounds(self) -> None:
        data = wire.encode_increments(IncrementsMessage(RUN, 2, 3, (some(0), some(1))))
        with pytest.raises(WireError, match=r"the number of increments is 2, not within 1 \.\. 1"):
            wire.decode_increments(data, RUN, 2, 3)

    def test_is_refused_without_any(self) -> None:
        data = wire.encode_increments(IncrementsMessage(RUN, 2, 3, ()))
        with pytest.raises(WireError, match="the number of increments"):
            wire.decode_increments(data, RUN, 2, 3)

    def test_is_refused_if_bytes_are_missing_or_too_many(self) -> None:
        data = wire.encode_increments(IncrementsMessage(RUN, 5, 3, (some(0),)))
        with pytest.raises(WireError, match="the length of an increment"):
            wire.decode_increments(reseal(data[:-9] + bytes(4)), RUN)
        with pytest.raises(WireError, match="1 bytes too many"):
            wire.decode_increments(reseal(data[:-4] + bytes(5)), RUN)

    def test_is_refused_with_a_pattern(self) -> None:
        data = bytearray(wire.encode_increments(IncrementsMessage(RUN, 5, 3, (some(0),))))
        data[3] |= 4
        with pytest.raises(WireError, match="the whole of U"):
            wire.decode_increments(reseal(bytes(data)), RUN)

    def test_is_no_other_request(self) -> None:
        data = wire.encode_increments(IncrementsMessage(RUN, 5, 3, (some(0),)))
        dense = wire.encode_request(LAYOUT, RequestMessage(RUN, 5, 3, None, Payload((Dense(changes(0)),), False)))
        assert wire.carries_increments(data)
        assert not wire.carries_increments(dense)
        with pytest.raises(WireError):
            wire.decode_request(data, LAYOUT, RUN)
        with pytest.raises(WireError, match="the whole of U"):
            wire.decode_increments(dense, RUN)

    def test_forged_messages_break_nothing(self) -> None:
        rng, copy = np.random.default_rng(0), changes(9)
        data = wire.encode_increments(IncrementsMessage(RUN, 5, 3, (some(0), some(1))))
        refused = 0
        for _ in range(200):
            forged = reseal(mutate(data, data[::-1], rng))
            try:
                got = CHANNEL.receive(forged, 5, 3, copy)
            except WireError:
                refused += 1
                continue
            assert got.shape == (SIZE,)
            assert got.dtype == np.float32
        assert refused > 100

    def test_an_increment_is_whole_and_of_one_kind(self) -> None:
        body = some(0)
        dense = wire.encode_increment(LAYOUT, Payload((Dense(changes(0)),), True))
        with pytest.raises(WireError, match="multiples of a step"):
            wire.decode_increment(dense, LAYOUT)
        for end in range(len(body)):
            with pytest.raises(WireError):
                wire.decode_increment(body[:end], LAYOUT)
        with pytest.raises(WireError):
            wire.decode_increment(body, MLP(2, (2,), 2).layout("units"))


class TestOffer:
    def published(self, lengths: list[int], last: dict[int, int]) -> Published:
        return Published(
            np.zeros(SIZE, dtype=np.float32), np.array(sorted(last)), np.array([last[k] for k in sorted(last)]),
            tuple(bytes(length) for length in lengths), tuple(length * 10 for length in lengths),
        )  # fmt: skip

    def test_the_increments_missed_or_the_model_whichever_is_smaller(self) -> None:
        """The model has 352 weights. Round 5: U_4 is wanted; who last replied in round r has U_{r-1}."""
        whole = 4 * SIZE
        published = self.published([whole * 2 // 3, whole // 3, 100, 50], {0: 4, 1: 3, 2: 2, 3: 1})
        cohort = Cohort(0, 5, (0, 1, 2, 3, 9))
        offer = Publisher(LAYOUT, 0.1).offer(published, cohort)
        assert offer.counts.tolist() == [1, 2, 3, 0, 0]  # 3: two thirds, a third and 150 are more; 9 was never here
        _, counts = Channel(LAYOUT, RUN).download(params(changes(0)), Cohort(0, 5, cohort.ids, offer=offer))
        head = 8 + 2 + 4 + 1
        assert counts.encoded[:2].tolist() == [head + 51, head + 101 + 51]
        assert counts.encoded[3:].tolist() == [wire.dense_request_size(5, 3, None, SIZE)] * 2
        assert counts.paper[[0, 1, 3]].tolist() == [-(-500 // 8), -(-1500 // 8), whole]

    def test_increments_no_longer_kept(self) -> None:
        published = self.published([10, 10], {0: 4, 1: 3, 2: 2})
        assert Publisher(LAYOUT, 0.1).offer(published, Cohort(0, 5, (0, 1, 2))).counts.tolist() == [1, 2, 0]

    def test_lost_copies(self) -> None:
        published = self.published([10] * 4, dict.fromkeys(range(200), 4))
        counts = Publisher(LAYOUT, 0.1, lost=0.25).offer(published, Cohort(0, 5, tuple(range(200)))).counts
        assert 25 < (counts == 0).sum() < 75

    def test_a_block_is_told_its_own(self) -> None:
        cohort = Cohort(0, 5, (0, 1, 2))
        offer = Publisher(LAYOUT, 0.1).offer(self.published([10] * 4, {1: 3, 2: 1}), cohort)
        part = Cohort(0, 5, cohort.ids, offer=offer).part(slice(1, 3)).offer
        assert part is not None
        assert part.counts.tolist() == [2, 4]


class TestPublishing:
    @pytest.mark.parametrize("budget", [0.05, 0.2, 1.0])
    def test_clients_with_copies_of_their_own_have_the_same_bits(self, budget: float) -> None:
        """Six clients that take part now and then; client 5 loses its copy, client 4 takes part once, at the end."""
        publisher = Publisher(LAYOUT, budget, wired=True)
        u, copies = params(changes(99)), dict[int, Float32]()
        _, published = publisher.split({}, u)
        kinds = set()
        for r in range(1, 13):
            ids = tuple(k for k in range(6) if (r % (k + 1) == 0 and k != 4) or r == 12)
            offer = publisher.offer(published, Cohort(0, r, ids))
            if r == 12:
                assert 5 in copies
                del copies[5]
                offer.counts[ids.index(5)] = 0  # it says so
            flat = flatten(LAYOUT, u)
            for i, k in enumerate(ids):
                missed = published.increments[-int(offer.counts[i]) :] if offer.counts[i] else ()
                dense = RequestMessage(RUN, r, k, None, Payload((Dense(flat),), False))
                data = wire.encode_request(LAYOUT, dense) if not missed else (
                    wire.encode_increments(IncrementsMessage(RUN, r, k, missed))
                )  # fmt: skip
                kinds.add(bool(missed))
                copies[k] = CHANNEL.receive(data, r, k, copies.get(k))
                assert copies[k].tobytes() == flat.tobytes()
            received, _ = CHANNEL.download(u, Cohort(0, r, ids, offer=offer))  # the same from the oldest copy
            assert all(torch.equal(received[name][i], u[name]) for name in u for i in range(len(ids)))
            stepped = params(flat + changes(r))
            u, published = publisher.publish(published, u, stepped, r, ids)
        assert kinds == ({True, False} if budget < 1 else {False} | kinds)

    def test_what_is_left_is_added_to_the_next(self) -> None:
        """U and what is left of it are the model without increments; no entry is further off than half a step."""
        publisher, exact = Publisher(LAYOUT, 0.1), np.zeros(SIZE, dtype=np.float64)
        u = params(np.zeros(SIZE, dtype=np.float32))
        _, published = publisher.split({}, u)
        for r in range(1, 20):
            step = changes(r)
            exact += step
            u, published = publisher.publish(published, u, params(flatten(LAYOUT, u) + step), r, (r,))
            (part,) = wire.decode_increment(published.increments[-1], LAYOUT).parts
            assert isinstance(part, Multiples)
            np.testing.assert_allclose(flatten(LAYOUT, u) + published.left, exact, atol=1e-4)
            assert np.abs(published.left).max() <= float(part.step) / 2 * 1.001
            assert len(published.increments[-1]) <= 0.1 * wire.dense_request_size(r, 0, None, SIZE)
        assert published.last.tolist() == published.seen.tolist() == list(range(1, 20))
        assert sum(map(len, published.increments)) <= 4 * SIZE
        assert len(published.increments) < 19  # the oldest are of no use

    def test_the_state_comes_back(self) -> None:
        publisher = Publisher(LAYOUT, 0.1, wired=True)
        u = params(changes(0))
        method, published = publisher.split({"score": np.arange(3)}, u)
        for r in (0, 1, 2):
            if r:
                u, published = publisher.publish(published, u, params(changes(r)), r, (3, 1))
            rest, again = publisher.split({**method, **published.arrays()}, u)
            assert list(rest) == ["score"]
            assert again.increments == published.increments
            assert again.bits == published.bits
            for name, part in published.arrays().items():
                assert again.arrays()[name].tobytes() == part.tobytes()

    def test_wire_cannot_be_switched_on_later(self) -> None:
        u = params(changes(0))
        _, published = Publisher(LAYOUT, 0.1).split({}, u)
        with pytest.raises(RunError, match=r"begun without engine\.wire"):
            Publisher(LAYOUT, 0.1, wired=True).split(published.arrays(), u)

    def test_a_budget_too_small_is_said(self) -> None:
        publisher, u = Publisher(LAYOUT, 0.001), params(changes(0))
        _, published = publisher.split({}, u)
        with pytest.raises(RunError, match=r"round 3: .*raise training.increments"):
            publisher.publish(published, u, params(changes(1)), 3, (0,))

    def test_a_client_without_a_copy_says_so(self) -> None:
        data = wire.encode_increments(IncrementsMessage(RUN, 5, 3, (some(0),)))
        with pytest.raises(WireError, match="must ask for the model"):
            CHANNEL.receive(data, 5, 3, None)


class TestPlan:
    @pytest.mark.parametrize("method", ["feddrop", "afd", "fedmp", "fjord", "heterofl", "feddrop+evidence"])
    def test_methods_that_send_some_rows_are_refused(self, method: str) -> None:
        with pytest.raises(PlanError, match=r"training\.increments does not fit"):
            load("digits", {"method": method, "training.increments": "0.01"})

    @pytest.mark.parametrize("name", METHODS)
    def test_it_is_known_whose_server_sends_some_rows(self, name: str) -> None:
        method = METHODS[name]
        assigned = method.assign(LAYOUT, Cohort(0, 1, (0, 1)), method.init_server(LAYOUT), params(changes(0)))
        assert method.assigns_rows == (assigned is not None)

    def test_is_off_unless_stated(self) -> None:
        assert load("digits").training.increments is None

    @pytest.mark.parametrize("share", ["0.0", "1.5"])
    def test_shares_only(self, share: str) -> None:
        with pytest.raises(PlanError, match=r"training\.increments"):
            load("digits", {"training.increments": share})

    def test_lost_copies_alone_mean_nothing(self) -> None:
        plan = load("digits", {"training.lost_copies": "0.1"})
        assert any("lost_copies has no effect" in warning for warning in warnings(plan))
