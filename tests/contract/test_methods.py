"""What every method must keep, whatever it does: one battery over all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedbiad.aggregation import AGGREGATIONS, SumTree, sum_block
from fedbiad.arrays import FloatArray, Params, Pattern
from fedbiad.client import LocalTraining, Trained
from fedbiad.cohort import Cohort
from fedbiad.data.base import FederatedData
from fedbiad.errors import RunError
from fedbiad.methods import METHODS, FedBIAD, Method, RowDropout
from fedbiad.models import MLP
from fedbiad.patterns import kept_count
from fedbiad.rows import Layout
from fedbiad.sending import Arrived, Channel, Senders
from fedbiad.server import RoundOutcome, Server, select_clients
from fedbiad.state import MemoryStore
from fedbiad.training.evaluate import evaluate
from fedbiad.transports.base import Counts, Request, Transport, Updates
from fedbiad.transports.block import BlockTraining
from fedbiad.transports.inprocess import InProcess

CLIENTS, CLASSES, INPUTS = 12, 4, 20
MODEL = MLP(INPUTS, (8,), CLASSES)
BOUNDARY = 2
COUNTED = ("fedavg", "feddrop", "afd", "fedbiad", "fedbiad-letter", "focus")
"""Methods that promise how many rows are uploaded."""
each_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def method_called(name: str) -> Method:
    """The method; FedBIAD with both stages in few rounds, patterns that do change and noise that matters."""
    method = METHODS[name]
    return replace(method, stage_boundary=BOUNDARY, interval=2, noise=1e-3) if isinstance(method, FedBIAD) else method


def blobs(broken: tuple[int, ...] = ()) -> FederatedData:
    """Gaussian blobs, float64; clients of 15 to 26 samples, those in `broken` with a value that is not a number."""
    stream = np.random.default_rng(0)
    centres = stream.normal(size=(CLASSES, INPUTS))
    sizes = [15 + k for k in range(CLIENTS)]
    targets = stream.integers(0, CLASSES, sum(sizes) + 200)
    inputs = centres[targets] + 0.8 * stream.normal(size=(len(targets), INPUTS))
    members = np.split(stream.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    for client in broken:
        inputs[members[client], 3] = np.nan
    pool = sum(sizes)
    return FederatedData.dealt(
        inputs=torch.from_numpy(inputs[:pool]),
        targets=torch.from_numpy(targets[:pool]),
        members=members,
        eval_inputs=torch.from_numpy(inputs[pool:]),
        eval_targets=torch.from_numpy(targets[pool:]),
        eval_split="test",
        classes=CLASSES,
    )


@dataclass(frozen=True)
class Overheard(Channel):
    """A channel that notes each client's own change, of which the server sees sums only."""

    changes: dict[int, Params] = field(default_factory=dict)

    def upload(self, cohort: Cohort, trained: Trained, senders: Senders) -> Arrived:
        for i, client in enumerate(trained.ids):
            self.changes[client] = {name: value[None].clone() for name, value in trained.learned.change(i).items()}
        return super().upload(cohort, trained, senders)


@dataclass(frozen=True)
class Federation:
    """A server, its clients and their states."""

    server: Server
    transport: InProcess
    store: MemoryStore
    layout: Layout
    changes: dict[int, Params]

    def run(self, rounds: int, transport: Transport | None = None) -> list[RoundOutcome]:
        return list(self.server.aggregate(transport or self.transport, initial(), 0, rounds))


def initial() -> Params:
    return {name: value.double() for name, value in MODEL.init(np.random.default_rng(1)).items()}


def federation(
    name: str, *, block: int = 5, seed: int = 3, selected: int = 9, broken: tuple[int, ...] = ()
) -> Federation:
    method, data = method_called(name), blobs(broken)
    layout = MODEL.layout(method.row_kind)
    noise = method.noise_std(MODEL.structure, len(data.targets))
    # the letter's loss over all local data rises only in giant steps; HeteroFL multiplies activations by up to 16
    rate = {"fedbiad-letter": 2.0, "heterofl": 0.02}.get(name, 0.2)
    work = LocalTraining(method, MODEL, layout, 12, 5, rate, dropout=0.1, noise_std=noise)
    store = MemoryStore(lambda: method.init_client(layout))
    channel = Overheard(layout, 0)
    transport = InProcess(BlockTraining(work, data, channel, method.weighting == "clients"), store, seed, block)
    return Federation(Server(method, layout, seed, selected), transport, store, layout, channel.changes)


def request(federation: Federation, ids: tuple[int, ...], round_: int = 1) -> Request:
    """What the server of a fresh run sends to these clients."""
    server = federation.server
    state = server.method.init_server(server.layout)
    assigned = server.method.assign(server.layout, Cohort(server.seed, round_, ids), state, initial())
    return Request(round_, initial(), ids, assigned)


@dataclass(frozen=True)
class Own:
    """One client's update."""

    change: Params  # [1, ...]
    pattern: Pattern  # [1, rows]
    loss: FloatArray
    upload: Counts


def exchanged(federation: Federation, ids: tuple[int, ...], round_: int = 1) -> dict[int, Own]:
    """Each client's own update, by id."""
    updates = {}
    for block in federation.transport.exchange(request(federation, ids, round_)):
        for i, client in enumerate(block.ids):
            one = slice(i, i + 1)
            updates[client] = Own(
                federation.changes[client],
                block.pattern[one],
                block.loss[one],
                Counts(block.upload.paper[one], block.upload.encoded[one]),
            )
    return updates


def mean_of(federation: Federation, updates: dict[int, Own], order: tuple[int, ...]) -> Params:
    """The mean of what these clients sent, summed one by one in this order."""
    method, sums = federation.server.method, SumTree()
    for client in order:
        own = updates[client]
        sums.push(sum_block(federation.layout, own.pattern, own.change, [weight(method, client)]))
    return AGGREGATIONS[method.aggregation].finish(sums.finish(), initial())


def weight(method: Method, client: int) -> int:
    """Client k has 15 + k samples."""
    return 15 + client if method.weighting == "samples" else 1


def assert_same(one: Params, two: Params, tolerance: float = 0.0) -> None:
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=tolerance, atol=tolerance)


def assert_same_dump(one: MemoryStore, two: MemoryStore) -> None:
    left, right = one.dump(), two.dump()
    assert left.keys() == right.keys()
    for part in left:
        np.testing.assert_allclose(
            left[part].astype(np.float64), right[part].astype(np.float64), rtol=1e-12, atol=1e-12
        )


@each_method
@pytest.mark.parametrize("block", [1, 5])
def test_blocks_do_not_matter(name: str, block: int) -> None:
    together, apart = federation(name, block=CLIENTS), federation(name, block=block)
    for one, two in zip(together.run(4), apart.run(4), strict=True):
        # the letter's giant steps make a rounding error a hundred times as large with every round
        tolerance = 1e-9 if name == "fedbiad-letter" and one.round == 4 else 1e-12
        assert_same(one.u, two.u, tolerance)
        left, right = one.tally.record(), two.tally.record()
        for part in left.keys() - {"train_loss", "kept_rows_share", "noise_skipped_share"}:
            assert left[part] == right[part]
        assert left["train_loss"] == pytest.approx(right["train_loss"], rel=tolerance)
        assert left["kept_rows_share"] == pytest.approx(right["kept_rows_share"])
    assert_same_dump(together.store, apart.store)
    if name.startswith("fedbiad"):
        share = federation(name).run(1)[0].tally.record()["resampled_share"]
        assert 0 < share < 1  # both branches of a check were taken


@each_method
def test_the_order_of_the_cohort_does_not_matter(name: str) -> None:
    ids = (1, 2, 4, 5, 7, 8, 11)
    shuffled = (7, 2, 11, 1, 8, 5, 4)
    # a round of stage two as well: both federations have been through the same two rounds
    for round_ in (1, BOUNDARY + 1):
        means = []
        updates, stores = [], []
        for order in (ids, shuffled):
            clients = federation(name)
            stores.append(clients.store)
            for earlier in range(1, round_):
                exchanged(clients, order, earlier)
            updates.append(exchanged(clients, order, round_))
            means.append(mean_of(clients, updates[-1], order))
        assert_same(means[0], means[1], 1e-12)
        for client in ids:
            one, two = updates[0][client], updates[1][client]
            assert_same(one.change, two.change)
            assert np.array_equal(one.pattern, two.pattern)
            assert np.array_equal(one.loss, two.loss)
            assert np.array_equal(one.upload.encoded, two.upload.encoded)
        assert_same_dump(stores[0], stores[1])


@each_method
@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_round_is_the_mean_of_what_was_sent_by_size(name: str, gamma: float) -> None:
    clients, ids = federation(name), select_clients(3, 1, CLIENTS, 9)
    expected, u = mean_of(clients, exchanged(federation(name), ids), ids), initial()
    server = replace(clients.server, server_step=gamma)
    outcome = next(server.aggregate(clients.transport, u, 0, 1))
    assert outcome.round == 1
    assert_same(outcome.u, {part: (1 - gamma) * u[part] + gamma * expected[part] for part in u}, 1e-12)
    assert_same(u, initial())


@each_method
def test_the_seed_decides_everything(name: str) -> None:
    first, again, other = (federation(name, seed=seed).run(3) for seed in (3, 3, 4))
    assert_same(first[-1].u, again[-1].u)
    assert first[-1].tally.record() == again[-1].tally.record()
    assert all(not torch.equal(first[0].u[part], other[0].u[part]) for part in first[0].u)


@each_method
def test_global_randomness_is_neither_used_nor_disturbed(name: str) -> None:
    torch.manual_seed(1)
    first = federation(name).run(2)[-1].u
    drawn = torch.rand(3)
    torch.manual_seed(2)
    second = federation(name).run(2)[-1].u
    torch.manual_seed(1)
    assert_same(first, second)
    assert torch.equal(drawn, torch.rand(3))


@each_method
def test_patterns_hold_the_promised_count(name: str) -> None:
    method, clients = method_called(name), federation(name)
    for round_ in range(1, BOUNDARY + 3):
        for updates in exchanged(clients, tuple(range(CLIENTS)), round_).values():
            pattern = updates.pattern[0]
            if name not in COUNTED:
                continue  # widths that differ between clients have tests of their own
            if not isinstance(method, RowDropout):
                assert pattern.all()
            elif method.fixed_count:
                for rows in clients.layout.ranges.values():
                    size = rows.stop - rows.start
                    assert int(pattern[rows].sum()) == kept_count(size, method.dropout_rate)
            elif round_ <= BOUNDARY:  # to the letter: counted over all 8 + 4 rows
                assert int(pattern.sum()) == 6
            else:  # strictly above the median: never more than half, never none
                assert 1 <= int(pattern.sum()) <= 6


def test_a_row_never_held_comes_back_as_it_was_received() -> None:
    clients = federation("feddrop")
    for updates in exchanged(clients, tuple(range(CLIENTS))).values():
        dropped = ~torch.from_numpy(updates.pattern[0])
        for part in ("layer1.weight", "layer1.bias"):
            assert not updates.change[part][0][dropped].any()
            assert updates.change[part][0][~dropped].any()
        assert not updates.change["layer2.weight"][0][:, dropped].any()


@each_method
def test_only_selected_clients_change_their_state(name: str) -> None:
    clients = federation(name, selected=3)
    seen: set[int] = set()
    stateful = bool(method_called(name).init_client(clients.layout))
    before = states(clients.store)
    rounds = clients.server.aggregate(clients.transport, initial(), 0, BOUNDARY + 2)
    for outcome in rounds:
        chosen = set(select_clients(3, outcome.round, CLIENTS, 3))
        assert len(chosen) == 3
        after = states(clients.store)
        for client in range(CLIENTS):
            same = all(np.array_equal(before[part][client], after[part][client]) for part in before)
            staged = isinstance(method_called(name), FedBIAD) and outcome.round > BOUNDARY
            learns = stateful and client in chosen and not staged
            assert same != learns
        seen |= chosen
        before = after
    assert 3 < len(seen) < CLIENTS
    assert set(clients.store.dump().get("clients", np.array(sorted(seen))).tolist()) == seen


@each_method
def test_paper_count_by_brute_force(name: str) -> None:
    method, clients = method_called(name), federation(name, selected=CLIENTS)
    u, ids = initial(), tuple(range(CLIENTS))
    for round_ in (1, BOUNDARY + 1):
        updates = exchanged(clients, ids, round_)
        assigned = request(clients, ids, round_).assigned
        for client, own in updates.items():
            held, weights = own.pattern[0], 0
            for part, value in u.items():
                for entry in np.ndindex(tuple(value.shape)):
                    unit = entry[1] if part == "layer2.weight" else None if part == "layer2.bias" else entry[0]
                    output = entry[0] + 8 if part.startswith("layer2") else None
                    if method.row_kind == "weight-rows":
                        unit = None if part.startswith("layer2") else entry[0]
                    if method.row_kind == "units":
                        output = None
                    weights += bool((unit is None or held[unit]) and (output is None or held[output]))
            told = clients.layout.all_rows(1)[0] if assigned is None else assigned[client]
            labels = 0 if np.array_equal(held, told) else math.ceil(clients.layout.num_rows / 8)
            assert own.upload.paper.tolist() == [4 * weights + labels]
            assert own.upload.encoded[0] > 4 * weights
    # by hand: 8 of 8 units 160 + 8 + 32 + 4 = 204 weights; 4 of 8 units 80 + 4 + 16 + 4 = 104 weights and 1 byte
    record = federation(name, selected=CLIENTS).run(1)[0].tally.record()
    half = 104 * 4
    by_hand = {
        "fedavg": (204 * 4, 204 * 4),
        "feddrop": (half, half + 1),
        "afd": (half, half + 1),
        "fedbiad": (half + 1, 204 * 4),
        "focus": (half + 1, 204 * 4),
    }
    if name in by_hand:
        assert (record["upload"]["paper"], record["download"]["paper"]) == tuple(CLIENTS * n for n in by_hand[name])


@each_method
def test_it_learns(name: str) -> None:
    data = blobs()
    before = evaluate(MODEL, initial(), data.evaluation())
    clients = federation(name)
    after = evaluate(MODEL, clients.run(12)[-1].u, data.evaluation())
    if name == "fedbiad-letter":  # a mean that counts dropped rows as zero shrinks the model; it need not learn
        assert math.isfinite(after.loss)
    else:
        assert after.accuracy > 0.7 > before.accuracy  # chance is 0.25
        assert after.loss < before.loss


@dataclass(frozen=True)
class Without:
    """A transport on which one client was never asked."""

    transport: InProcess
    client: int

    @property
    def num_clients(self) -> int:
        return self.transport.num_clients

    def exchange(self, request: Request) -> Iterator[Updates]:
        asked = tuple(k for k in request.ids if k != self.client)
        kept = [i for i, k in enumerate(request.ids) if k != self.client]
        assigned = None if request.assigned is None else request.assigned[kept]
        return self.transport.exchange(Request(request.round, request.u, asked, assigned))


def states(store: MemoryStore) -> dict[str, npt.NDArray[np.generic]]:
    return dict(store.lend(range(CLIENTS)).own)


@each_method
@pytest.mark.parametrize("block", [1, 5, CLIENTS])
def test_a_client_that_fails_is_left_out(name: str, block: int) -> None:
    failing = 4
    broken = federation(name, block=block, broken=(failing,), selected=CLIENTS)
    healthy = federation(name, block=block, selected=CLIENTS)
    with_it = broken.run(2)
    without_it = healthy.run(2, Without(healthy.transport, failing))
    for one, two in zip(with_it, without_it, strict=True):
        assert list(one.tally.failed) == [failing]
        assert two.tally.failed == {}
        assert_same(one.u, two.u, 1e-12)
        assert all(bool(torch.isfinite(value).all()) for value in one.u.values())
        left, right = one.tally.record(), two.tally.record()
        assert left["clients"] == right["clients"] == CLIENTS - 1
        assert left["upload"] == right["upload"]
        assert left["download"]["paper"] > right["download"]["paper"]  # it was asked, too
    assert_same_dump(broken.store, healthy.store)
    fresh = method_called(name).init_client(broken.layout)
    for part, value in states(broken.store).items():
        assert np.array_equal(value[failing], fresh[part])


def test_checks_of_a_client_that_fails_are_not_counted() -> None:
    broken, healthy = federation("fedbiad", broken=(4,), selected=CLIENTS), federation("fedbiad", selected=CLIENTS)
    one, two = broken.run(1)[0].tally.record(), healthy.run(1, Without(healthy.transport, 4))[0].tally.record()
    assert one["resampled_share"] == two["resampled_share"] > 0


@each_method
@pytest.mark.parametrize("block", [1, 5, CLIENTS])
def test_no_usable_client_ends_the_run(name: str, block: int) -> None:
    broken = federation(name, block=block, broken=tuple(range(CLIENTS)), selected=CLIENTS)
    with pytest.raises(RunError, match=r"round 1: all 12 clients .*not finite.* lower training.learning_rate"):
        broken.run(1)
    assert broken.store.dump() == {}


def test_selection() -> None:
    chosen = [select_clients(0, r, 12, 3) for r in range(1, 60)]
    assert all(list(ids) == sorted(set(ids)) and len(ids) == 3 for ids in chosen)
    assert {client for ids in chosen for client in ids} == set(range(12))
    assert select_clients(0, 1, 12, 3) == chosen[0]
    assert select_clients(1, 1, 12, 3) != chosen[0]
    assert select_clients(0, 1, 12, 12) == tuple(range(12))
