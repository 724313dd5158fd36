"""The two forms of the local step give the same numbers, and those of plain autograd."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedbiad import patterns
from fedbiad.arrays import Params, Pattern
from fedbiad.errors import LayoutError
from fedbiad.models import CNN, MLP, Model
from fedbiad.rows import Layout, RowGroup, RowKind, Slice
from fedbiad.spike_and_slab import normal_at
from fedbiad.training.batches import Batch
from fedbiad.training.clipping import squared_norm
from fedbiad.training.compact import CompactStep
from fedbiad.training.masked import MaskedStep
from fedbiad.training.step import LocalStep, Noise, plain_objective

CLIENTS, BATCH, CLASSES, RATE = 3, 6, 4, 0.4
STEPS, CHANGE_EVERY = 50, 7

MODELS: dict[str, Model] = {
    "mlp1": MLP(16, (10,), CLASSES),
    "mlp2": MLP(16, (10, 7), CLASSES),
    "mlp3": MLP(16, (10, 7, 5), CLASSES),
    "cnn": CNN(4, (5, 4), 6, CLASSES),
}


@dataclass(frozen=True)
class Options:
    scale: float = 1.0
    weight_decay: float = 0.0
    dropout: float = 0.0
    noise: float = 0.0
    clip: float | None = None


PLAIN = Options()
OPTIONS = {
    "plain": PLAIN,
    "scale": Options(scale=1 / (1 - RATE)),
    "decay": Options(scale=1 / (1 - RATE), weight_decay=0.05),
    "dropout": Options(dropout=0.3),
    "noise": Options(scale=1 / (1 - RATE), noise=1e-2),
    "clip": Options(scale=1 / (1 - RATE), clip=0.9),
    "all": Options(scale=1 / (1 - RATE), dropout=0.3, noise=1e-2),
}
CASES = [
    pytest.param(model, kind, options, id=f"{model}-{kind}-{options}")
    for model in MODELS
    for kind in ("units", "weight-rows")
    for options in OPTIONS
    if not (OPTIONS[options].weight_decay and kind == "weight-rows")  # refused, see below
]
each_case = pytest.mark.parametrize(("model_name", "kind", "options_name"), CASES)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def start(model: Model, dtype: torch.dtype) -> Params:
    own = [model.init(np.random.default_rng(k)) for k in range(CLIENTS)]
    return {name: torch.stack([params[name] for params in own]).to(dtype) for name in model.shapes}


def batch_of(step: int, dtype: torch.dtype) -> Batch:
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(CLIENTS, BATCH, 1, 4, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, CLASSES, (CLIENTS, BATCH), generator=generator)
    return Batch(inputs.to(dtype), targets)


def pattern_of(layout: Layout, change: int) -> Pattern:
    """As many rows of each group for every client, other ones for each; the last client changes every other time."""
    keys = [(change, client) for client in range(CLIENTS - 1)] + [(change // 2, CLIENTS)]
    *drawn, last = (patterns.draw(layout, RATE, np.random.default_rng(key).random(layout.num_rows)) for key in keys)
    return np.stack([*drawn, last])


def unit_masks_of(model: Model, rate: float, step: int) -> dict[str, Tensor]:
    if rate == 0:
        return {}
    generator = torch.Generator().manual_seed(step)
    return {
        site: (torch.rand(CLIENTS, BATCH, units, generator=generator) >= rate).float() / (1 - rate)
        for site, units in model.dropout_sites.items()
    }


def make(
    form: type[LocalStep], model: Model, layout: Layout, options: Options, dtype: torch.dtype, rate: float = 0.1
) -> LocalStep:
    return form(
        model,
        layout,
        start(model, dtype),
        pattern_of(layout, 0),
        scale=options.scale,
        noise=Noise(options.noise, [11, 22, 33]),
        learning_rate=rate,
        weight_decay=options.weight_decay,
        clip=options.clip,
    )


def train(
    form: type[LocalStep], model: Model, layout: Layout, options: Options, dtype: torch.dtype
) -> tuple[Tensor, Params]:
    """Losses [2 x steps, clients] (of the mini-batch and of another batch, weighted) and the trained parameters."""
    step = make(form, model, layout, options, dtype)
    losses = []
    weight = torch.tensor([[1.0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]], dtype=dtype)
    for v in range(STEPS):
        theta = step.sample_weights(v)
        other = batch_of(v + 500, dtype)
        losses.append(step.loss(theta, Batch(other.inputs, other.targets, weight)))
        losses.append(step.update(theta, batch_of(v, dtype), unit_masks_of(model, options.dropout, v)))
        if (v + 1) % CHANGE_EVERY == 0:
            step.set_pattern(pattern_of(layout, (v + 1) // CHANGE_EVERY))
    return torch.stack(losses), step.trained()


@each_case
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_masked_is_compact(
    model_name: str, kind: RowKind, options_name: str, dtype: torch.dtype, tolerance: float
) -> None:
    model, options = MODELS[model_name], OPTIONS[options_name]
    layout = model.layout(kind)
    losses, u = train(MaskedStep, model, layout, options, dtype)
    same_losses, same_u = train(CompactStep, model, layout, options, dtype)
    torch.testing.assert_close(losses, same_losses, rtol=tolerance, atol=tolerance)
    begin = start(model, dtype)
    for name in model.shapes:
        assert u[name].dtype == dtype
        torch.testing.assert_close(u[name], same_u[name], rtol=tolerance, atol=tolerance)
        assert not torch.allclose(u[name], begin[name], atol=1e-4)  # it did train


@cache
def brute_mask(model_name: str, kind: RowKind, change: int, name: str, scale: float) -> Tensor:
    """The mask of a parameter, entry by entry."""
    layout = MODELS[model_name].layout(kind)
    pattern = pattern_of(layout, change)
    mask = np.ones((CLIENTS, *layout.shapes[name]))
    for group in layout.groups:
        for part in group.slices:
            if part.param == name:
                for client, *entry in np.ndindex(mask.shape):
                    row = layout.ranges[group.name].start + (entry[part.axis] // part.span) % group.size
                    mask[client, *entry] *= pattern[client, row] * (scale if part.scaled else 1.0)
    return torch.from_numpy(mask)


def plain_forward(model: Model, theta: Params, x: Tensor, unit_masks: dict[str, Tensor], client: int) -> Tensor:
    """One client's outputs with torch's functions."""
    own = list(theta.items())
    for i in range(0, len(own), 2):
        (name, weight), (_, bias) = own[i], own[i + 1]
        layer = name.removesuffix(".weight")
        if layer.startswith("conv"):
            x = functional.max_pool2d(functional.conv2d(x, weight, bias, padding=2).relu(), 2)
            continue
        x = functional.linear(x.flatten(1), weight, bias)
        if i + 2 < len(own):
            x = x.relu()
        if layer in unit_masks:
            x = x * unit_masks[layer][client]
    return x


@each_case
@pytest.mark.parametrize("form", [MaskedStep, CompactStep])
def test_steps_are_plain_autograd(model_name: str, kind: RowKind, options_name: str, form: type[LocalStep]) -> None:
    """theta = mask o (U + noise) inside the graph; U <- U - eta (dL/dU + decay x held U), client by client."""
    model, options, rate, dtype = MODELS[model_name], OPTIONS[options_name], 0.1, torch.float64
    layout = model.layout(kind)
    step = make(form, model, layout, options, dtype, rate)
    u = start(model, dtype)
    for v in range(3):
        step.set_pattern(pattern_of(layout, v))
        batch, unit_masks = batch_of(v, dtype), unit_masks_of(model, options.dropout, v)
        losses = step.update(step.sample_weights(v), batch, unit_masks)
        masks = {name: brute_mask(model_name, kind, v, name, options.scale) for name in u}
        held = {name: brute_mask(model_name, kind, v, name, 1.0) for name in u}
        for client, key in enumerate([11, 22, 33]):
            own = {name: value[client].clone().requires_grad_() for name, value in u.items()}
            theta, offset = {}, 0
            for name, value in own.items():
                places = offset + np.arange(value.numel()).reshape(tuple(value.shape))
                noise = torch.from_numpy(options.noise * normal_at(key, v, places))
                theta[name] = masks[name][client] * (value + noise)
                offset += value.numel()
            x = batch.inputs[client] if model_name == "cnn" else batch.inputs[client].flatten(1)
            outputs = plain_forward(model, theta, x, unit_masks, client)
            loss = functional.cross_entropy(outputs, batch.targets[client])
            assert losses[client].item() == pytest.approx(loss.item(), rel=1e-12)
            gradients = torch.autograd.grad(loss, list(own.values()))
            if options.clip is not None:
                norm = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
                gradients = tuple(gradient * min(1.0, options.clip / norm) for gradient in gradients)
            for name, gradient in zip(own, gradients, strict=True):
                decay = options.weight_decay * held[name][client] * own[name].detach()
                u[name][client] -= rate * (gradient + decay)
    trained = step.trained()
    for name in u:
        torch.testing.assert_close(trained[name], u[name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("form", [MaskedStep, CompactStep])
@pytest.mark.parametrize("kind", ["units", "weight-rows"])
@pytest.mark.parametrize("model_name", MODELS)
def test_dropped_rows_keep_their_value_bit_for_bit(model_name: str, kind: RowKind, form: type[LocalStep]) -> None:
    model = MODELS[model_name]
    options = OPTIONS["all"] if kind == "weight-rows" else Options(2.0, 0.05, 0.3, 1e-2)
    layout = model.layout(kind)
    step = make(form, model, layout, options, torch.float32)
    for change in range(4):
        step.set_pattern(pattern_of(layout, change))
        before = {name: value.clone() for name, value in step.trained().items()}
        for v in range(3):
            step.update(step.sample_weights(v), batch_of(v, torch.float32), unit_masks_of(model, options.dropout, v))
        after = step.trained()
        for name in layout.shapes:
            dropped = brute_mask(model_name, kind, change, name, 1.0) == 0
            assert torch.equal(after[name][dropped], before[name][dropped])
            assert not torch.equal(after[name][~dropped], before[name][~dropped])


def test_a_dropped_class_has_logit_zero() -> None:
    model = MODELS["mlp1"]
    layout = model.layout("weight-rows")
    for form in (MaskedStep, CompactStep):
        step = make(form, model, layout, PLAIN, torch.float64)
        dropped = torch.from_numpy(~pattern_of(layout, 0)[:, layout.ranges["layer2"]])
        inputs = batch_of(0, torch.float64).inputs
        outputs = step.full_outputs(model.forward(step.sample_weights(0), inputs, {}))
        assert outputs.shape == (CLIENTS, BATCH, CLASSES)
        assert ((outputs == 0).all(1) == dropped).all()


def test_weight_decay_with_idle_columns_is_refused_by_the_compact_step() -> None:
    model = MODELS["mlp1"]
    with pytest.raises(LayoutError, match=r"form = 'masked' or rows = 'units'"):
        make(CompactStep, model, model.layout("weight-rows"), OPTIONS["decay"], torch.float32)
    make(MaskedStep, model, model.layout("weight-rows"), OPTIONS["decay"], torch.float32)


def test_the_compact_step_refuses_unequal_counts() -> None:
    model = MODELS["mlp1"]
    layout = model.layout("units")
    step = make(CompactStep, model, layout, PLAIN, torch.float32)
    ragged = pattern_of(layout, 0)
    ragged[0, :10] = True
    with pytest.raises(LayoutError, match="different numbers of rows of 'layer1'"):
        step.set_pattern(ragged)


def test_compact_computes_with_the_kept_rows_only() -> None:
    step = make(CompactStep, MODELS["mlp2"], MODELS["mlp2"].layout("units"), PLAIN, torch.float32)
    shapes = {name: tuple(value.shape) for name, value in step.sample_weights(0).items()}
    # 0.6 x 10 = 6 and 0.6 x 7 = 4.2 units
    assert shapes["layer1.weight"] == (CLIENTS, 6, 16)
    assert shapes["layer2.weight"] == (CLIENTS, 4, 6)
    assert shapes["layer3.weight"] == (CLIENTS, CLASSES, 4)


def test_noise_is_drawn_for_held_rows_only() -> None:
    model = MODELS["mlp1"]
    layout = model.layout("units")
    weights = 6 * 16 + 6 + 4 * 6 + 4
    for form in (MaskedStep, CompactStep):
        step = make(form, model, layout, OPTIONS["noise"], torch.float32)
        step.sample_weights(0)
        assert step.noise.weights == step.noise.drawn == CLIENTS * weights


def test_one_step_by_hand() -> None:
    """One input, one hidden unit held of two, scale 2, eta 0.5: numbers a pocket calculator gives."""
    model = MLP(1, (2,), 2)
    own = (Slice("layer1.weight", 0), Slice("layer1.bias", 0), Slice("layer2.weight", 1, scaled=True))
    layout = Layout(model.shapes, (RowGroup("layer1", 2, own),))
    for form in (MaskedStep, CompactStep):
        u = {
            "layer1.weight": torch.tensor([[[1.0], [5.0]]]),
            "layer1.bias": torch.tensor([[0.0, 5.0]]),
            "layer2.weight": torch.tensor([[[0.5, 7.0], [0.5, 7.0]]]),
            "layer2.bias": torch.zeros(1, 2),
        }
        step = form(model, layout, u, np.array([[True, False]]), scale=2.0, learning_rate=0.5)
        # x = 3: the unit gives 3, both logits 2 x 0.5 x 3 = 3, both probabilities 1/2; the target is class 0
        losses = step.update(step.sample_weights(0), Batch(torch.tensor([[[3.0]]]), torch.tensor([[0]])), {})
        assert losses.tolist() == pytest.approx([np.log(2)])
        trained = step.trained()
        # d logits = (-1/2, 1/2); d theta2 = 3 (-1/2, 1/2); d U2 = 2 x that = (-3, 3); step 0.5
        assert trained["layer2.weight"].tolist() == [[[2.0, 7.0], [-1.0, 7.0]]]
        assert trained["layer2.bias"].tolist() == [[0.25, -0.25]]
        # d unit = 1 x (-1/2) + 1 x (1/2) = 0: its own row stays
        assert trained["layer1.weight"].tolist() == [[[1.0], [5.0]]]
        assert trained["layer1.bias"].tolist() == [[0.0, 5.0]]


def test_clipping_bites_for_some_and_spares_others() -> None:
    """The battery above is no proof unless both happen: 0.9 lies among the norms of its gradients."""
    model = MODELS["mlp1"] if "mlp1" in MODELS else next(iter(MODELS.values()))
    step = make(MaskedStep, model, model.layout("units"), OPTIONS["clip"], torch.float64)
    norms = []
    for v in range(3):
        _, gradients = step.gradients(step.sample_weights(v), batch_of(v, torch.float64), {}, plain_objective)
        squares = [squared_norm(gradient) for gradient in gradients.values()]
        norms += torch.stack(squares).sum(0).sqrt().tolist()
    assert min(norms) < 0.9 < max(norms)
