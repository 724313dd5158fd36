"""A run packed for other processes is the same run there."""

from __future__ import annotations

import pickle

import pytest
import torch

from fedbiad import plan as plans
from fedbiad.cohort import Cohort
from fedbiad.errors import RunError
from fedbiad.experiment import build
from fedbiad.transports import packing


def test_trains_the_same_from_data_that_are_not_copied() -> None:
    experiment = build(plans.load("digits", {"method": "feddrop"}))
    training, states = experiment.transport.training, experiment.transport.store.lend((3, 5))
    packed = packing.pack(training, pickle.Pickler)
    for part in packed.tensors:
        part.flags.writeable = False  # as Ray's object store gives them
    found = packing.unpack(packed)
    assert found.data.sizes.tolist() == training.data.sizes.tolist()
    assert len(packed.content) < 10_000
    assert packed.tensors[0].nbytes > 100_000
    one, other = (part.train(experiment.initial(), Cohort(0, 1, (3, 5)), states)[0] for part in (training, found))
    assert one.loss.tolist() == other.loss.tolist()
    assert one.total is not None
    assert other.total is not None
    assert all(torch.equal(value, other.total.moved[name]) for name, value in one.total.moved.items())


def test_other_software_on_a_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = build(plans.load("digits"))
    packed = packing.pack(experiment.transport.training, pickle.Pickler)
    monkeypatch.setattr(packing, "versions", lambda: {**packed.versions, "torch": "1.0"})
    with pytest.raises(RunError, match=r"torch 1\.0 instead of .*install the same software on every node"):
        packing.unpack(packed)
