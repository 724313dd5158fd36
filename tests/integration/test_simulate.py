"""One's own module on one's own data, against the same network as the package's own model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbiad.arrays import Params
from fedbiad.data import FederatedData
from fedbiad.errors import DataError, FedbiadError, LayoutError, PlanError
from fedbiad.experiment import Record, assemble, simulate
from fedbiad.methods import METHODS, FedBIAD
from fedbiad.models import MLP, module_shapes
from fedbiad.plan import EnginePlan, TrainingPlan
from fedbiad.rows import Layout, RowGroup, Slice

INPUTS, HIDDEN, CLASSES, CLIENTS = 8, 12, 4, 6
NAMES = {"layer1.weight": "0.weight", "layer1.bias": "0.bias", "layer2.weight": "2.weight", "layer2.bias": "2.bias"}
Labelled = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def blobs(sizes: Sequence[int], seed: int) -> list[Labelled]:
    """Gaussian blobs around the same centres, for clients of these sizes."""
    centres = 2 * torch.randn(CLASSES, INPUTS, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    targets = [torch.randint(CLASSES, (size,), generator=generator) for size in sizes]
    return [(centres[y] + torch.randn(len(y), INPUTS, generator=generator), y) for y in targets]


def clients() -> list[Labelled]:
    return blobs([20 + k for k in range(CLIENTS)], seed=1)


def judged() -> Labelled:
    return blobs([200], seed=2)[0]


def federated() -> FederatedData:
    """The same data in one pool, dealt out in order."""
    inputs, targets = (torch.cat(parts) for parts in zip(*clients(), strict=True))
    members = np.split(np.arange(len(targets)), np.cumsum([len(y) for _, y in clients()])[:-1])
    return FederatedData.dealt(inputs, targets, members, *judged(), "test", CLASSES)


def network(*more: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES), *more)


def layout(module: nn.Module) -> Layout:
    """A hidden unit is its row, its bias and the column that reads it."""
    slices = (Slice("0.weight", 0), Slice("0.bias", 0), Slice("2.weight", 1, scaled=True))
    return Layout(module_shapes(module), (RowGroup("hidden", HIDDEN, slices),))


@pytest.mark.parametrize("method", ["fedavg", "feddrop", "fedbiad"])
def test_a_module_learns(method: str) -> None:
    module, seen = network(), list[Record]()
    result = simulate(
        model=module, layout=layout(module), clients=clients(), test=judged(), method=method, rounds=8,
        on_round=seen.append,
    )  # fmt: skip
    assert seen == result.records
    assert [record["round"] for record in seen] == list(range(1, 9))
    assert result.summary["accuracy"] > 0.8  # chance is 1 / CLASSES
    assert set(result.params) == set(NAMES.values())
    assert (seen[0]["upload"]["paper"] / seen[0]["clients"] < 4 * layout(module).num_weights) == (method != "fedavg")


@pytest.mark.parametrize("method", ["fedavg", "feddrop", FedBIAD(stage_boundary=3, noise=1e-3)])
def test_it_equals_our_own_network(method: str | FedBIAD) -> None:
    module, settings = network(), TrainingPlan(0.2, 8, 10, 4)
    start = {name: value.detach().clone() for name, value in module.named_parameters()}
    result = simulate(
        model=module, layout=layout(module), clients=clients(), test=judged(), method=method, rounds=5, seed=3,
        learning_rate=0.2, iterations=8, selected=4,
    )  # fmt: skip
    chosen = METHODS[method] if isinstance(method, str) else method
    own = assemble(chosen, MLP(INPUTS, (HIDDEN,), CLASSES), federated(), settings, EnginePlan(form="masked"), 5, 3, 4)
    u: Params = {ours: start[theirs] for ours, theirs in NAMES.items()}
    for (record, outcome), theirs in zip(own.run(u), result.records, strict=True):
        u = outcome.u
        assert record["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-5)
        assert record["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert record["upload"] == theirs["upload"]
    for ours, theirs_name in NAMES.items():
        torch.testing.assert_close(result.params[theirs_name], u[ours], rtol=0, atol=1e-5)
        assert not torch.equal(u[ours], start[theirs_name])


def test_the_module_itself_keeps_its_weights() -> None:
    module = network()
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    simulate(model=module, layout=layout(module), clients=clients(), test=judged(), rounds=1)
    for name, value in module.named_parameters():
        assert torch.equal(value, before[name])


def test_our_own_models_need_no_layout() -> None:
    result = simulate(model=MLP(INPUTS, (HIDDEN,), CLASSES), clients=clients(), test=judged(), rounds=2)
    assert len(result.records) == 2


def test_it_is_the_same_every_time_and_for_every_global_seed() -> None:
    module = network(nn.Dropout(0.2))
    found = []
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found.append(simulate(model=module, layout=layout(module), clients=clients(), test=judged(), rounds=2))
    for name, value in found[0].params.items():
        assert torch.equal(value, found[1].params[name])


@pytest.mark.parametrize("broken", [3, 10])
def test_a_client_whose_numbers_break_is_left_out(broken: int) -> None:
    own, module = blobs([20] * 11, seed=1), network()
    own[broken] = (torch.full_like(own[broken][0], torch.nan), own[broken][1])
    # ten clients are trained side by side: the eleventh is alone in its block
    result = simulate(model=module, layout=layout(module), clients=own, test=judged(), rounds=2)
    assert [(record["failed"], record["clients"]) for record in result.records] == [([broken], 10)] * 2
    assert all(value.isfinite().all() for value in result.params.values())


class TestRefused:
    def test_a_module_without_a_layout(self) -> None:
        with pytest.raises(
            DataError, match=r"needs a layout: simulate\(layout=Layout\(module_shapes\(model\), groups\)"
        ):
            simulate(model=network(), clients=clients(), test=judged())

    def test_a_layout_of_another_module(self) -> None:
        other = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES + 1))
        with pytest.raises(LayoutError, match="the layout was stated for"):
            simulate(model=network(), layout=layout(other), clients=clients(), test=judged())

    @pytest.mark.parametrize("client", [0, 3])
    def test_an_empty_client(self, client: int) -> None:
        own = clients()
        own[client] = (torch.zeros(0, INPUTS), torch.zeros(0, dtype=torch.int64))
        module = network()
        with pytest.raises(DataError, match=rf"at least one; look at clients \[{client}\]"):
            simulate(model=module, layout=layout(module), clients=own, test=judged())

    def test_more_labels_than_inputs(self) -> None:
        own, module = clients(), network()
        own[2] = (own[2][0][1:], own[2][1])
        with pytest.raises(DataError, match=r"as many inputs as labels, .*look at clients \[2\]"):
            simulate(model=module, layout=layout(module), clients=own, test=judged())

    def test_no_clients(self) -> None:
        module = network()
        with pytest.raises(DataError, match="client"):
            simulate(model=module, layout=layout(module), clients=[], test=judged())

    def test_batch_norm(self) -> None:
        module = network(nn.BatchNorm1d(CLASSES))
        with pytest.raises(LayoutError, match=r"3\.running_mean.*GroupNorm in place of BatchNorm"):
            simulate(model=module, layout=layout(module), clients=clients(), test=judged())

    def test_an_unknown_method(self) -> None:
        module = network()
        with pytest.raises(FedbiadError, match="did you mean 'fedbiad'"):
            simulate(model=module, layout=layout(module), clients=clients(), test=judged(), method="fedbiat")

    def test_more_clients_a_round_than_exist(self) -> None:
        module = network()
        with pytest.raises(FedbiadError, match="clients a round"):
            simulate(model=module, layout=layout(module), clients=clients(), test=judged(), selected=CLIENTS + 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rounds": 0}, "rounds"),
        ({"selected": 0}, "selected"),
        ({"batch": 0}, "batch"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"method": FedBIAD(upload="fnal")}, "upload"),  # type: ignore[arg-type]
        ({"method": FedBIAD(interval=0)}, "interval"),
    ],
)
def test_settings_made_in_code_are_checked(wrong: dict[str, Any], said: str) -> None:
    module = network()
    with pytest.raises(PlanError, match=said):
        simulate(model=module, layout=layout(module), clients=clients(), test=judged(), **wrong)


def test_without_a_test_set_nothing_is_judged() -> None:
    module = network()
    result = simulate(model=module, layout=layout(module), clients=clients(), method="fedavg", rounds=2)
    assert [record["accuracy"] for record in result.records] == [None, None]
    assert result.summary["accuracy"] is None
    assert result.summary["upload_per_client"]["encoded"] > 0


def test_frozen_parameters_and_needless_layouts_are_refused() -> None:
    module = network()
    stated = layout(module)
    next(module.parameters()).requires_grad_(False)
    with pytest.raises(LayoutError, match="frozen"):
        simulate(model=module, layout=stated, clients=clients(), test=judged())
    with pytest.raises(LayoutError, match="states its own rows"):
        simulate(model=MLP(2, (3,), 2), layout=stated, clients=clients(), test=judged())
