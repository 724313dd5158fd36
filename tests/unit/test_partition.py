"""Partitions: disjoint, seeded, with the labels and sizes they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedbiad import streams
from fedbiad.arrays import IntArray
from fedbiad.data.base import Dataset, FederatedData, federate, load
from fedbiad.data.partition import PARTITIONS, Settings, split
from fedbiad.errors import DataError

quick = settings(deadline=None, max_examples=50)
names = st.sampled_from(sorted(PARTITIONS))
seeds = st.integers(0, 2**32)


def make_targets(samples: int, classes: int, seed: int) -> IntArray:
    return np.random.default_rng(seed).permutation(np.arange(samples, dtype=np.int64) % classes)


def deal(name: str, targets: IntArray, clients: int, seed: int, **extra: float) -> list[IntArray]:
    chosen = Settings(classes=10, **{"labels_per_client": 5, **extra})  # type: ignore[arg-type]
    return split(name, targets, clients, streams.stream(seed, 0, streams.SERVER, "partition"), chosen)


@quick
@given(name=names, seed=seeds, clients=st.integers(2, 12), samples=st.integers(400, 900))
def test_disjoint_in_range_nonempty_and_determined_by_the_seed(
    name: str, seed: int, clients: int, samples: int
) -> None:
    targets = make_targets(samples, 10, seed)
    before = targets.copy()
    members = deal(name, targets, clients, seed)
    everyone = np.concatenate(members)
    assert len(members) == clients
    assert all(indices.dtype == np.int64 and len(indices) for indices in members)
    assert len(np.unique(everyone)) == len(everyone)
    assert everyone.min() >= 0
    assert everyone.max() < samples
    np.testing.assert_array_equal(targets, before)
    again = deal(name, targets, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(members, again, strict=True))
    other = deal(name, targets, clients, seed + 1)
    assert not all(np.array_equal(a, b) for a, b in zip(members, other, strict=True))


@quick
@given(seed=seeds, clients=st.integers(1, 12), k=st.integers(1, 10), name=st.sampled_from(["labels", "cyclic"]))
def test_each_client_has_exactly_its_labels_and_owners_share_equally(
    seed: int, clients: int, k: int, name: str
) -> None:
    targets = make_targets(600, 10, seed)
    members = deal(name, targets, clients, seed, labels_per_client=k)
    counts = np.stack([np.bincount(targets[indices], minlength=10) for indices in members])
    assert ((counts > 0).sum(axis=1) == k).all()
    for label in range(10):
        shares = counts[:, label][counts[:, label] > 0]
        if len(shares):
            assert shares.sum() == 60
            assert shares.max() - shares.min() <= 1
    if name == "cyclic":
        for u in range(clients):
            assert set(np.flatnonzero(counts[u])) == {(k * u + j) % 10 for j in range(k)}


def test_cyclic_with_half_the_labels_has_two_label_sets() -> None:
    targets = make_targets(1000, 10, 0)
    sets = {tuple(np.unique(targets[m])) for m in deal("cyclic", targets, 10, 0)}
    assert sets == {(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)}


def test_labels_are_drawn_uniformly() -> None:
    targets = make_targets(40_000, 10, 0)
    members = deal("labels", targets, 2000, 3, labels_per_client=2)
    owners = np.bincount(np.concatenate([np.unique(targets[m]) for m in members]), minlength=10)
    assert owners.sum() == 4000
    assert abs(owners - 400).max() < 5 * np.sqrt(2000 * 0.2 * 0.8)


@quick
@given(seed=seeds, clients=st.integers(1, 40), concentration=st.sampled_from([1e-3, 0.1, 0.5, 10.0, 1e4]))
def test_dirichlet_clients_have_equal_sizes(seed: int, clients: int, concentration: float) -> None:
    members = deal("dirichlet", make_targets(503, 10, seed), clients, seed, concentration=concentration)
    assert {len(indices) for indices in members} == {503 // clients}


def test_dirichlet_skew_follows_the_concentration() -> None:
    targets = make_targets(10_000, 10, 0)

    def first_share(concentration: float) -> float:
        members = deal("dirichlet", targets, 20, 1, concentration=concentration)
        return float(np.mean([np.bincount(targets[m]).max() / len(m) for m in members[:10]]))

    # The largest share of ten labels: one label alone at 0.01, a tenth each (0.1) at 10,000.
    assert first_share(0.01) > 0.9
    assert 0.25 < first_share(0.5) < 0.65
    assert first_share(1e4) < 0.15


@quick
@given(seed=seeds, clients=st.integers(1, 60), samples=st.integers(60, 200))
def test_iid_uses_every_sample_in_equal_parts(seed: int, clients: int, samples: int) -> None:
    members = deal("iid", make_targets(samples, 10, seed), clients, seed)
    sizes = [len(indices) for indices in members]
    assert sum(sizes) == samples
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("name", "clients", "extra", "message"),
    [
        ("iid", 101, {}, r"101 clients but only 100 training samples; use at most 100"),
        ("iid", 0, {}, r"0 clients; at least 1"),
        ("labels", 5, {"labels_per_client": 0}, r"labels_per_client is 0; .* choose 1 to 10"),
        ("cyclic", 5, {"labels_per_client": 11}, r"labels_per_client is 11; .* choose 1 to 10"),
        ("dirichlet", 5, {"concentration": 0.0}, r"concentration is 0.0; .* above 0"),
        ("dirichlet", 5, {"concentration": float("nan")}, r"concentration is nan"),
        ("dirichlet", 5, {"concentration": float("inf")}, r"concentration is inf"),
        ("shards", 5, {}, r"unknown partition 'shards'; choose one of labels, cyclic, dirichlet, iid"),
    ],
)
def test_wrong_arguments_say_what_to_do(name: str, clients: int, extra: dict[str, float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        deal(name, make_targets(100, 10, 0), clients, 0, **extra)


def test_clients_without_samples_are_named() -> None:
    # Label 0 has 3 samples for its 10 owners (clients 0, 10, 20, ...): from the fourth on none is left.
    targets = np.repeat(np.arange(10, dtype=np.int64), [3] + [30] * 9)
    message = r"leaves 7 of 100 clients without samples \(client 30, 40, 50, 60, 70, \.\.\.\); use fewer clients or"
    with pytest.raises(DataError, match=message):
        deal("cyclic", targets, 100, 0, labels_per_client=1)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load("digits")


def contents(inputs: Tensor, targets: Tensor) -> list[tuple[bytes, int]]:
    """The labelled samples, whatever their order."""
    return sorted((x.numpy().tobytes(), y) for x, y in zip(inputs, targets.tolist(), strict=True))


def test_samples_dealt_out_stand_one_client_after_another() -> None:
    inputs, targets = torch.arange(14.0).view(7, 2), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    members = [np.array([5, 0]), np.array([3]), np.array([1, 6, 2])]
    data = FederatedData.dealt(inputs, targets, members, inputs[:1], targets[:1], "validation", 3)
    assert (data.num_clients, data.sizes.tolist(), data.starts.tolist(), data.unused) == (3, [2, 1, 3], [0, 2, 3, 6], 1)
    for client, own in enumerate(members):
        assert torch.equal(data.inputs[data.span(client)], inputs[own])
        assert torch.equal(data.targets[data.span(client)], targets[own])
    assert (data.eval_split, data.eval_targets.tolist(), data.classes) == ("validation", [0], 3)


def test_federate_on_test_gives_clients_all_training_samples(dataset: Dataset) -> None:
    data: FederatedData = federate(dataset, partition="iid", clients=7, seed=1)
    assert (data.num_clients, sum(data.sizes), data.unused, data.classes) == (7, 1500, 0, 10)
    assert data.sizes[6] == len(data.inputs[data.span(6)]) == len(data.targets[data.span(6)]) == 214
    assert data.eval_split == "test"
    assert data.eval_inputs is dataset.test_inputs
    assert data.eval_targets is dataset.test_targets


@pytest.mark.parametrize(("asked", "held"), [(None, 250), (1, 1), (300, 300)])
def test_federate_on_validation_holds_out_the_last_samples(dataset: Dataset, asked: int | None, held: int) -> None:
    data = federate(dataset, partition="iid", clients=5, seed=1, evaluate_on="validation", validation_size=asked)
    assert len(data.inputs) == len(data.targets) == sum(data.sizes) == 1500 - held
    assert data.eval_split == "validation"
    assert torch.equal(data.eval_inputs, dataset.train_inputs[1500 - held :])
    assert torch.equal(data.eval_targets, dataset.train_targets[1500 - held :])
    kept = slice(1500 - held)
    assert contents(data.inputs, data.targets) == contents(dataset.train_inputs[kept], dataset.train_targets[kept])


def test_federate_counts_samples_of_labels_nobody_owns(dataset: Dataset) -> None:
    data = federate(dataset, partition="cyclic", clients=2, seed=0, labels_per_client=3)
    unowned = int((dataset.train_targets >= 6).sum())
    assert data.unused == unowned > 0
    assert federate(dataset, partition="dirichlet", clients=7, seed=0).unused == 1500 % 7


@pytest.mark.parametrize("size", [0, -1, 1500])
def test_impossible_validation_sizes_are_refused(dataset: Dataset, size: int) -> None:
    with pytest.raises(DataError, match=rf"validation_size is {size}; .* choose 1 to 1499"):
        federate(dataset, partition="iid", clients=2, seed=0, evaluate_on="validation", validation_size=size)


def test_unknown_evaluation_split_is_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match=r"'train'; choose 'test' or 'validation'"):
        federate(dataset, partition="iid", clients=2, seed=0, evaluate_on="train")  # type: ignore[arg-type]
