"""The stated likelihood against autograd, whole and in parts, also where some classes are not there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedbiad.models import LSTM
from fedbiad.models.base import Gradient, Rows
from fedbiad.models.heads import Head, Likelihood, losses_and_errors
from fedbiad.training.objective import cross_entropy

CLIENTS, SAMPLES, CLASSES = 3, 7, 6


def case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    outputs = 3.0 * torch.randn(CLIENTS, SAMPLES, CLASSES, dtype=torch.float64)
    weight = (torch.rand(CLIENTS, SAMPLES, dtype=torch.float64) > 0.3).double()
    weight[2] = 0.0  # nothing but padding
    return outputs, torch.randint(0, CLASSES, (CLIENTS, SAMPLES)), weight


def test_two_classes_by_hand() -> None:
    # logits 0 and ln 3: probabilities 1/4 and 3/4; the answer is the first
    outputs = torch.tensor([[[0.0, 3.0]]], dtype=torch.float64).log().nan_to_num(neginf=0.0)
    losses, errors = losses_and_errors(Likelihood(torch.tensor([[0]])), outputs)
    assert losses.item() == pytest.approx(1.3862943611198906)  # ln 4
    assert errors.flatten().tolist() == pytest.approx([-0.75, 0.75])


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_cross_entropy(weighted: bool) -> None:
    outputs, targets, weight = case()
    own = weight if weighted else None
    slow: Head = lambda out: cross_entropy(out, targets, own)  # noqa: E731
    expected, gradient = losses_and_errors(slow, outputs.clone())
    head = Likelihood(targets, own)
    torch.testing.assert_close(head(outputs), expected)
    losses, errors = losses_and_errors(head, outputs)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(errors, gradient)


@pytest.mark.parametrize("at_a_time", [1, 2, 5])
def test_parts_add_up(at_a_time: int) -> None:
    outputs, targets, weight = case(1)
    head = Likelihood(targets, weight)
    losses, errors = losses_and_errors(head, outputs.clone())
    parts = [outputs[:, i : i + at_a_time].clone() for i in range(0, SAMPLES, at_a_time)]
    summed = sum(head.part(part, i * at_a_time) for i, part in enumerate(parts))
    torch.testing.assert_close(summed, losses)
    torch.testing.assert_close(torch.cat(parts, 1), errors)


@pytest.mark.parametrize("kept", [1, 3, 6])
def test_classes_that_are_not_there_have_logit_0(kept: int) -> None:
    outputs, targets, _ = case(2)
    rows = torch.stack([torch.randperm(CLASSES)[:kept].sort().values for _ in range(CLIENTS)])
    full = torch.zeros_like(outputs).scatter(2, rows[:, None].expand(-1, SAMPLES, -1), outputs[:, :, :kept])
    slow: Head = lambda out: cross_entropy(out, targets)  # noqa: E731
    expected, gradient = losses_and_errors(slow, full)
    losses, errors = losses_and_errors(Likelihood(targets, None, rows, CLASSES), outputs[:, :, :kept].clone())
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(errors, gradient.gather(2, rows[:, None].expand(-1, SAMPLES, -1)))


def test_large_logits_do_not_overflow() -> None:
    losses, errors = losses_and_errors(Likelihood(torch.tensor([[1]])), torch.tensor([[[1e4, -1e4]]]))
    assert losses.item() == pytest.approx(2e4)
    assert errors.flatten().tolist() == [1.0, -1.0]


def test_an_output_layer_in_parts_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """More samples than units: gradients formed from parts, 64 samples at a time at least."""
    monkeypatch.setattr("fedbiad.models.recurrent.LOGITS", 1)
    torch.manual_seed(0)
    model = LSTM(11, 5, 4, 2)
    params = {name: torch.randn(2, *shape, dtype=torch.float64) for name, shape in model.shapes.items()}
    x, y = torch.randint(0, 11, (2, 9, 20)), torch.randint(0, 11, (2, 180))
    slow: Head = lambda out: cross_entropy(out, y)  # noqa: E731
    expected, of_slow = model.loss_and_gradients(params, x, {}, slow)
    losses, found = model.loss_and_gradients(params, x, {}, Likelihood(y))
    torch.testing.assert_close(losses, expected)
    assert isinstance(found["output.weight"], Tensor)
    for name, gradient in of_slow.items():
        torch.testing.assert_close(_dense(found[name], params[name].shape), _dense(gradient, params[name].shape))


def _dense(gradient: Gradient, shape: torch.Size) -> Tensor:
    if isinstance(gradient, Tensor):
        return gradient
    return gradient.dense(shape) if isinstance(gradient, Rows) else gradient.dense()
