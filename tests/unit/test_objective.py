"""The objectives against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedbiad.training.objective import average_loss, cross_entropy, variational_loss


def test_variational_loss_by_hand() -> None:
    squared_errors = torch.tensor([[1.0, 2.0, 3.0], [0.0, 4.0, 0.0]])  # sums 6 and 4, mean 5
    assert variational_loss(squared_errors, kl=1.5, alpha=0.5, sigma2=0.25) == 0.5 / 0.5 * 5 + 1.5
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\)"):
        variational_loss(squared_errors, 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="sigma2 must be above 0"):
        variational_loss(squared_errors, 0.0, 0.5, 0.0)


def test_average_loss_by_hand() -> None:
    assert average_loss([6.0, 10.0], [3, 20]) == (2 + 0.5) / 2
    with pytest.raises(ValueError, match="at least 1 client"):
        average_loss([], [])
    with pytest.raises(ValueError, match="at least 1 datum"):
        average_loss([1.0, 2.0], [1, 0])
    with pytest.raises(ValueError, match="argument"):
        average_loss([1.0], [1, 2])


def test_cross_entropy_by_hand() -> None:
    # Probabilities 3/4 and 1/4 for each sample of client one; client two is undecided between two classes.
    logits = torch.tensor([[[math.log(3), 0.0], [math.log(3), 0.0]], [[5.0, 5.0], [0.0, 0.0]]])
    targets = torch.tensor([[0, 1], [1, 1]])
    first, second = math.log(4 / 3), math.log(4)
    loss = cross_entropy(logits, targets)
    assert loss.tolist() == pytest.approx([(first + second) / 2, math.log(2)])
    weight = torch.tensor([[3.0, 1.0], [0.0, 2.0]])
    weighted = cross_entropy(logits, targets, weight)
    assert weighted.tolist() == pytest.approx([(3 * first + second) / 4, math.log(2)])


def test_padding_counts_for_nothing() -> None:
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.tensor([[0, 1, 2], [3, 0, 1]])
    loss = cross_entropy(logits, targets, torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert torch.allclose(loss[0], cross_entropy(logits[:1, :2], targets[:1, :2])[0])
    assert loss[1] == 0
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert bool((gradient[0, :2] != 0).all())
    assert bool((gradient[0, 2] == 0).all())
    assert bool((gradient[1] == 0).all())


def test_a_client_does_not_feel_its_block() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 33, 10, generator=generator)
    targets = torch.randint(0, 10, (5, 33), generator=generator)
    weight = torch.rand(5, 33, generator=generator)
    for chosen in (None, weight):
        block = cross_entropy(logits, targets, chosen)
        for client in range(5):
            one = slice(client, client + 1)
            alone = cross_entropy(logits[one], targets[one], None if chosen is None else chosen[one])
            assert alone[0] == block[client]
