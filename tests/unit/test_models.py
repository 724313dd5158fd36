"""Models against torch's own layers, one client at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbiad.arrays import Params
from fedbiad.cohort import Cohort
from fedbiad.errors import LayoutError
from fedbiad.models import CNN, MLP, Model, TorchModule, module_shapes
from fedbiad.models.base import Outer
from fedbiad.rows import Layout, RowGroup, Slice
from fedbiad.training.batches import Batch
from fedbiad.training.evaluate import evaluate
from fedbiad.training.objective import cross_entropy


def plain_mlp(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def plain_cnn(model: CNN) -> nn.Sequential:
    first, second = model.filters
    return nn.Sequential(
        nn.Conv2d(model.channels, first, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (model.side // 4) ** 2, model.hidden),
        nn.ReLU(),
        nn.Linear(model.hidden, model.outputs),
    ).double()


def block_params(model: Model, clients: int) -> Params:
    """Different parameters for every client, float64."""
    own = [model.init(np.random.default_rng(k)) for k in range(clients)]
    return {name: torch.stack([params[name].double() for params in own]) for name in model.shapes}


def load(module: nn.Module, params: Params, client: int) -> None:
    """Copy one client's parameters into a module, by order."""
    with torch.no_grad():
        for own, value in zip(module.parameters(), params.values(), strict=True):
            own.copy_(value[client])


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("hidden", [(), (6,), (6, 5), (6, 5, 4)])
def test_mlp_is_torchs_for_every_client(hidden: tuple[int, ...]) -> None:
    model, x = MLP(8, hidden, 3), inputs(4, 7, 2, 4)  # images are flattened
    params, module = block_params(model, 4), plain_mlp([8, *hidden, 3])
    out = model.forward(params, x, {})
    assert out.shape == (4, 7, 3)
    for client in range(4):
        load(module, params, client)
        torch.testing.assert_close(out[client], module(x[client].flatten(1)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("hidden", [(), (6,), (6, 5), (6, 5, 4)])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_mlps_own_backpropagation_is_autograd(hidden: tuple[int, ...], dropout: float) -> None:
    model, x = MLP(8, hidden, 3), inputs(4, 7, 8)
    params, targets = block_params(model, 4), torch.arange(28).view(4, 7) % 3
    masks = Cohort(0, 1, (0, 1, 2, 3)).unit_masks(model.dropout_sites, 7, dropout, 0)

    def head(outputs: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) * torch.arange(1, 5)  # another weight for every client

    losses, gradients = model.loss_and_gradients(params, x, masks, head)
    slow_losses, slow_gradients = Model.loss_and_gradients(model, params, x, masks, head)
    torch.testing.assert_close(losses, slow_losses, rtol=1e-12, atol=1e-12)
    assert gradients.keys() == slow_gradients.keys() == params.keys()
    for name, expected in slow_gradients.items():
        found = gradients[name]
        dense = found.dense() if isinstance(found, Outer) else found
        assert isinstance(expected, Tensor)
        assert isinstance(dense, Tensor)
        assert dense.abs().max() > 0
        torch.testing.assert_close(dense, expected, rtol=1e-12, atol=1e-14)
    assert not any(value.requires_grad for value in params.values())


@pytest.mark.parametrize("channels", [1, 2])
def test_cnn_is_torchs_for_every_client(channels: int) -> None:
    model, x = CNN(8, (3, 4), 6, 5, channels), inputs(3, 7, channels, 8, 8)
    params, module = block_params(model, 3), plain_cnn(model)
    out = model.forward(params, x, {})
    assert out.shape == (3, 7, 5)
    for client in range(3):
        load(module, params, client)
        torch.testing.assert_close(out[client], module(x[client]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", [MLP(50, (40, 30), 10), CNN(8, (6, 7), 20, 10)])
def test_init_is_uniform_within_the_bound(model: Model) -> None:
    params = model.init(np.random.default_rng(0))
    assert {name: tuple(value.shape) for name, value in params.items()} == model.shapes
    assert all(value.dtype == torch.float32 for value in params.values())
    for name, value in params.items():
        weight = model.shapes[name.replace("bias", "weight")]
        bound = 1 / math.sqrt(math.prod(weight[1:]))  # 1 / sqrt(inputs of a unit), its bias the same
        largest = float(value.abs().max())
        assert largest <= bound
        if value.numel() > 100:  # all of them under 0.9 of the bound: 0.9^100 < 3e-5
            assert largest > 0.9 * bound
            assert abs(float(value.mean())) < 5 * bound / math.sqrt(3 * value.numel())
    again, other = model.init(np.random.default_rng(0)), model.init(np.random.default_rng(1))
    assert all(torch.equal(params[name], again[name]) for name in params)
    assert not any(torch.equal(params[name], other[name]) for name in params)


@pytest.mark.parametrize(
    ("model", "shape", "sites"),
    [
        (MLP(8, (6, 5), 3), (2, 7, 8), {"layer1": 6, "layer2": 5}),
        (CNN(8, (3, 4), 6, 5), (2, 7, 1, 8, 8), {"hidden": 6}),
    ],
)
def test_dropout_sites(model: Model, shape: tuple[int, ...], sites: dict[str, int]) -> None:
    """A site's mask of zeros for unit 1 is as if the next layer did not read unit 1; a mask of ones is none."""
    assert model.dropout_sites == sites
    params, x = block_params(model, 2), inputs(*shape)
    ones = {site: torch.ones(2, 7, units) for site, units in sites.items()}
    assert torch.equal(model.forward(params, x, ones), model.forward(params, x, {}))
    names = list(model.shapes)
    for site, units in sites.items():
        mask = torch.ones(2, 7, units)
        mask[:, :, 1] = 0
        following = names[names.index(f"{site}.bias") + 1]
        unread = {**params, following: params[following].clone()}
        unread[following][:, :, 1] = 0
        out = model.forward(params, x, {site: mask})
        torch.testing.assert_close(out, model.forward(unread, x, {}), rtol=1e-12, atol=1e-12)
        assert not torch.allclose(out, model.forward(params, x, {}))


def test_layouts_by_hand() -> None:
    cnn = CNN(8, (3, 4), 6, 5)
    units = cnn.layout("units")
    assert {group.name: group.size for group in units.groups} == {"conv1": 3, "conv2": 4, "hidden": 6}
    bare = cnn.layout("weight-rows")
    assert {group.name: group.size for group in bare.groups} == {"conv1": 3, "conv2": 4, "hidden": 6, "output": 5}
    pattern = units.all_rows(1)
    pattern[0, 3] = False  # filter 0 of conv2: 3 x 25 weights, its bias, and 2 x 2 columns of 6 hidden units
    assert units.num_weights - int(units.kept_weights(pattern)[0]) == 75 + 1 + 24
    pattern = bare.all_rows(1)
    pattern[0, 3] = False  # as a bare row it leaves the columns
    assert bare.num_weights - int(bare.kept_weights(pattern)[0]) == 75 + 1


def wrapped(module: nn.Module, hidden: int) -> TorchModule:
    """A two-layer module (names 0 and 2 of an nn.Sequential) with its hidden units as rows."""
    own = (Slice("0.weight", 0), Slice("0.bias", 0), Slice("2.weight", 1, scaled=True))
    return TorchModule(module, Layout(module_shapes(module), (RowGroup("hidden", hidden, own),)))


def test_torch_module_is_the_mlp_on_the_same_weights() -> None:
    mlp, model = MLP(8, (6,), 3), wrapped(plain_mlp([8, 6, 3]), 6)
    params, x = block_params(mlp, 4), inputs(4, 7, 8)
    renamed = dict(zip(model.shapes, params.values(), strict=True))
    torch.testing.assert_close(model.forward(renamed, x, {}), mlp.forward(params, x, {}), rtol=1e-12, atol=1e-12)
    assert not model.compacts
    assert mlp.compacts
    assert model.layout("units").num_rows == 6


def test_torch_module_starts_from_its_own_weights() -> None:
    module = plain_mlp([8, 6, 3])
    start = wrapped(module, 6).init(np.random.default_rng(0))
    assert all(torch.equal(start[name], value) for name, value in module.named_parameters())
    start["0.weight"].zero_()
    assert float(next(module.parameters()).detach().abs().sum()) > 0


def test_dropout_inside_a_torch_module_draws_by_client_and_only_in_training() -> None:
    module = nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    model, x = wrapped(module, 6), inputs(3, 7, 8)
    params = {name: torch.stack([value.detach() + k for k in range(3)]) for name, value in module.named_parameters()}
    trained = model.forward(params, x, {})
    torch.rand(5)  # earlier draws do not matter, nor do the other clients of the block
    last = model.forward({name: value[2:] for name, value in params.items()}, x[2:], {})
    assert torch.equal(trained[2:], last)
    with torch.no_grad():
        judged = model.forward(params, x, {})
    assert not torch.allclose(trained, judged)
    bare = nn.Sequential(module[0], nn.Identity(), module[2])
    load(bare, params, 1)
    torch.testing.assert_close(judged[1], bare(x[1]), rtol=1e-12, atol=1e-12)


def test_torch_module_refuses_buffers() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with pytest.raises(LayoutError, match=r"buffers \(1.running_mean.*GroupNorm in place of BatchNorm"):
        TorchModule(module, Layout(module_shapes(module), (RowGroup("h", 3, (Slice("0.weight", 0),)),)))


def test_torch_module_refuses_a_layout_for_other_shapes() -> None:
    layout = wrapped(plain_mlp([8, 6, 3]), 6).stated_layout
    with pytest.raises(LayoutError, match="build it with Layout"):
        TorchModule(plain_mlp([8, 7, 3]), layout)


def test_evaluate_by_hand() -> None:
    # One input x, two classes with logits 0 and x: the probability of class 1 is 1 / (1 + e^-x).
    model = MLP(1, (), 2)
    u = {"layer1.weight": torch.tensor([[0.0], [1.0]]), "layer1.bias": torch.zeros(2)}
    x, y = torch.tensor([[math.log(3)], [math.log(3)], [-math.log(3)], [0.5]]), torch.tensor([1, 0, 0, 1])
    metrics = evaluate(model, u, [Batch(x[None], y[None])])
    losses = [math.log(4 / 3), math.log(4), math.log(4 / 3), math.log(1 + math.exp(-0.5))]
    assert metrics.loss == pytest.approx(sum(losses) / 4, rel=1e-6)
    assert metrics.accuracy == metrics.top1 == 0.75
    weighted = evaluate(model, u, [Batch(x[None], y[None], torch.tensor([[1.0, 1, 1, 0]]))])
    assert weighted.loss == pytest.approx(sum(losses[:3]) / 3, rel=1e-6)
    assert weighted.accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize(("top", "right"), [(1, 1), (2, 2), (3, 3), (4, 4), (9, 4)])
def test_evaluate_among_the_likeliest(top: int, right: int) -> None:
    """Four classes with logits 0, 1, 2, 3 whatever the input; the answers are the classes in turn."""
    model = MLP(1, (), 4)
    u = {"layer1.weight": torch.zeros(4, 1), "layer1.bias": torch.arange(4.0)}
    metrics = evaluate(model, u, [Batch(torch.zeros(1, 4, 1), torch.arange(4)[None])], top)
    assert (metrics.accuracy, metrics.top1) == (right / 4, 1 / 4)


def test_evaluate_in_batches() -> None:
    model = MLP(3, (4,), 2)
    u = model.init(np.random.default_rng(0))
    x = inputs(4500, 3).float()
    y = (x.sum(1) > 0).long()
    with torch.no_grad():
        logits = model.forward({name: value[None] for name, value in u.items()}, x[None], {})[0]
    parts = [Batch(x[None, i : i + 2000], y[None, i : i + 2000]) for i in range(0, 4500, 2000)]
    metrics = evaluate(model, u, parts)
    assert metrics.accuracy == pytest.approx(float((logits.argmax(1) == y).double().mean()))
    assert metrics.loss == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)
