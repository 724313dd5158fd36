"""Likelihood and rank of the right answer against torch, with ties and numbers that are none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedbiad.training.evaluate import judged


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 3, 64, 200])
def test_against_torch(dtype: torch.dtype, classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    outputs = 10 * torch.randn(50, classes, generator=generator, dtype=dtype)
    targets = torch.randint(0, classes, (50,), generator=generator)
    nll, ahead = judged(outputs.numpy(), targets.numpy())
    expected = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    assert nll == pytest.approx(expected.numpy(), rel=3e-6, abs=3e-6)
    place = (outputs.argsort(1, descending=True) == targets[:, None]).int().argmax(1)
    assert ahead.tolist() == place.tolist()


def test_ties_by_hand() -> None:
    outputs = np.array([[1.0, 2.0, 2.0, 0.0]] * 4)
    nll, ahead = judged(outputs, np.arange(4))
    assert ahead.tolist() == [2, 0, 1, 3]  # of equals the first comes first
    assert nll[1] == pytest.approx(math.log(2 + math.exp(-1) + math.exp(-2)))


def test_what_is_not_a_number_is_never_right() -> None:
    outputs = np.array([[math.nan, 1.0, 0.0], [2.0, 1.0, math.nan]])
    nll, ahead = judged(outputs, np.array([0, 0]))
    assert np.isnan(nll).all()
    assert ahead.tolist() == [2, 1]
