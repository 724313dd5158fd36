"""Stated gradients equal autograd's: loss and every gradient, for every model that states them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedbiad.models import MLP, Model
from fedbiad.models.base import Outer
from fedbiad.training.objective import cross_entropy

CLIENTS, BATCH, INPUTS, CLASSES = 3, 7, 6, 4
MODELS = {depth: MLP(INPUTS, (5, 8, 3)[:depth], CLASSES) for depth in (1, 2, 3)}


@pytest.mark.parametrize("depth", MODELS)
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_stated_gradients_equal_autograd(depth: int, dropout: bool, weighted: bool) -> None:
    model = MODELS[depth]
    generator = torch.Generator().manual_seed(depth)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    params = {name: normal(CLIENTS, *shape) for name, shape in model.shapes.items()}
    inputs = normal(CLIENTS, BATCH, 1, 2, 3)
    targets = torch.randint(CLASSES, (CLIENTS, BATCH), generator=generator)
    weight = torch.rand(CLIENTS, BATCH, generator=generator, dtype=torch.float64) if weighted else None
    masks = {
        site: (normal(CLIENTS, BATCH, units) > 0).double() * 2 for site, units in model.dropout_sites.items() if dropout
    }

    def head(outputs: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, weight)

    stated_loss, stated = model.loss_and_gradients(params, inputs, masks, head)
    loss, expected = Model.loss_and_gradients(model, params, inputs, masks, head)
    assert torch.allclose(stated_loss, loss, rtol=0, atol=1e-14)
    assert stated.keys() == expected.keys()
    for name, gradient in stated.items():
        dense = gradient.dense() if isinstance(gradient, Outer) else gradient
        reference = expected[name]
        assert isinstance(reference, Tensor)
        assert reference.abs().max() > 0
        assert torch.allclose(dense, reference, rtol=0, atol=1e-13), name
