"""The Gaussian term for absent words: its moments by hand, its size against the exact sum, its gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedbiad.arrays import Params
from fedbiad.models import LSTM
from fedbiad.models.absent import NAMES, STRIP, AbsentWords, moments
from fedbiad.models.base import Gradient, Rows
from fedbiad.models.heads import Likelihood, losses_and_errors
from fedbiad.training.objective import cross_entropy

MODEL = LSTM(9, embedding=5, hidden=4, layers=2)
CLIENTS, OWN, BATCH, TIME = 2, 6, 3, 5


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def exact(rows: Tensor, bias: Tensor, h: Tensor) -> Tensor:
    """log sum_A exp(w . h + b) for h [samples, units]."""
    return (h @ rows.T + bias).logsumexp(1)


def term(rows: Tensor, bias: Tensor) -> AbsentWords:
    log_mass, mean, covariance = moments(rows.clone(), bias)
    return AbsentWords(log_mass[None], mean[None], covariance[None])


class TestMoments:
    def test_by_hand(self) -> None:
        # e^b = 1 and 3: rho = 1/4 and 3/4, m = (1/4, 3/2), distances (3/4, -3/2) and (-1/4, 1/2)
        rows = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
        log_mass, mean, covariance = moments(rows, torch.tensor([1.0, 3.0], dtype=torch.float64).log())
        assert float(log_mass) == pytest.approx(math.log(4))
        assert mean.tolist() == pytest.approx([0.25, 1.5])
        assert covariance.flatten().tolist() == pytest.approx([0.1875, -0.375, -0.375, 0.75])

    @pytest.mark.parametrize("units", [1, 7, STRIP, 2 * STRIP + 3])
    def test_by_a_loop(self, units: int) -> None:
        rows, bias = random(20, units), 3.0 * random(20, seed=1) + 50.0
        mass = sum(math.exp(b) for b in bias.tolist())
        mean, covariance = torch.zeros(units).double(), torch.zeros(units, units).double()
        for w, b in zip(rows, bias.tolist(), strict=True):
            mean += math.exp(b) / mass * w
        for w, b in zip(rows, bias.tolist(), strict=True):
            covariance += math.exp(b) / mass * torch.outer(w - mean, w - mean)
        found = moments(rows.clone(), bias)
        torch.testing.assert_close(found, (torch.tensor(math.log(mass)).double(), mean, covariance))

    def test_no_words_have_no_mass(self) -> None:
        log_mass, mean, covariance = moments(torch.empty(0, 3), torch.empty(0))
        assert float(log_mass) == -math.inf
        assert not mean.any()
        assert not covariance.any()


class TestTerm:
    def test_by_hand(self) -> None:
        # log 4 + (1, 2) . (1, -1) + (3, -1; -1, 5) by (1, -1) both sides / 2 = log 4 - 1 + 5; slope (1, 2) + (4, -6)
        covariance = torch.tensor([[[3.0, -1.0], [-1.0, 5.0]]])
        own = AbsentWords(torch.tensor([4.0]).log(), torch.tensor([[1.0, 2.0]]), covariance)
        logits, slope = own.logits(torch.tensor([[[1.0, -1.0]]]))
        assert logits.item() == pytest.approx(math.log(4) + 4)
        assert slope.flatten().tolist() == [5.0, -4.0]

    def test_equal_rows_have_an_exact_term(self) -> None:
        rows, bias, h = random(1, 6).expand(30, 6), random(30, seed=1), random(8, 6, seed=2)
        torch.testing.assert_close(term(rows, bias).logits(h[None])[0][0], exact(rows, bias, h), rtol=1e-12, atol=1e-12)

    def test_gaussian_rows_have_almost_an_exact_term(self) -> None:
        # 40,000 draws: the mean of exp(w . h) with w . h of variance 1 is known to about sqrt(1.7 / 40,000) = 0.7 %
        rows, bias = random(40_000, 6), random(40_000, seed=1)
        h = torch.nn.functional.normalize(random(8, 6, seed=2), dim=1)
        error = term(rows, bias).logits(h[None])[0][0] - exact(rows, bias, h)
        assert error.abs().max() < 0.05
        no_spread = term(rows, bias).log_mass - exact(rows, bias, h)
        assert no_spread.abs().min() > 0.4  # so the covariance is what makes it right

    def test_a_class_beside_the_outputs(self) -> None:
        """The head's likelihood with `rest` is the cross-entropy with one class more."""
        outputs, rest = 3.0 * random(CLIENTS, 7, 5), 3.0 * random(CLIENTS, 7, seed=1)
        targets = torch.randint(0, 5, (CLIENTS, 7))
        weight = (random(CLIENTS, 7, seed=2) > 0).double()
        whole = torch.cat([outputs, rest.unsqueeze(2)], 2)
        expected, gradient = losses_and_errors(lambda out: cross_entropy(out, targets, weight), whole)
        losses = Likelihood(targets, weight).part(outputs, 0, None, rest)
        torch.testing.assert_close(losses, expected)
        torch.testing.assert_close(torch.cat([outputs, rest.unsqueeze(2)], 2), gradient)

    def test_a_class_without_mass_changes_nothing(self) -> None:
        outputs, targets = random(CLIENTS, 7, 5).float(), torch.randint(0, 5, (CLIENTS, 7))
        same, rest = outputs.clone(), torch.full((CLIENTS, 7), -math.inf)
        assert torch.equal(Likelihood(targets).part(outputs, 0), Likelihood(targets).part(same, 0, None, rest))
        assert torch.equal(outputs, same)
        assert not rest.any()


def parameters(seed: int = 0) -> Params:
    """A model whose output layer has OWN words, and the moments of the others."""
    params = {n: random(CLIENTS, *shape, seed=seed + i) for i, (n, shape) in enumerate(MODEL.shapes.items())}
    rows, bias = params["output.weight"], params["output.bias"]
    absent = [moments(w[OWN:].clone(), b[OWN:]) for w, b in zip(rows, bias, strict=True)]
    found = [torch.stack(part) for part in zip(*absent, strict=True)]
    own = {"output.weight": rows[:, :OWN].contiguous(), "output.bias": bias[:, :OWN].contiguous()}
    return {**params, **own, **dict(zip(NAMES, found, strict=True))}


def slow_loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
    """-z_y + log(sum over own words exp(z_w) + exp(a(h))), written out; what is read is found by an output of ones."""
    plain = {name: value for name, value in params.items() if name not in NAMES}
    reads = {**plain, "output.weight": torch.eye(4).double().expand(CLIENTS, 4, 4),
             "output.bias": torch.zeros(CLIENTS, 4).double()}  # fmt: skip
    losses = []
    for k, h in enumerate(MODEL.forward(reads, x, {})):
        z = h @ params["output.weight"][k].T + params["output.bias"][k]
        log_mass, mean, covariance = (params[name][k] for name in NAMES)
        a = log_mass + h @ mean + torch.einsum("si,ij,sj->s", h, covariance, h) / 2
        right = z.gather(1, y[k][:, None])[:, 0]
        losses.append((torch.log(z.exp().sum(1) + a.exp()) - right).mean())
    return torch.stack(losses)


class TestGradient:
    @pytest.mark.parametrize("windows", [1, BATCH, 30])  # fewer samples than units, more, and more than 64
    @pytest.mark.parametrize("stated", [True, False])
    def test_it_is_the_slow_formulas(self, windows: int, stated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fedbiad.models.recurrent.LOGITS", 1)  # 64 samples at a time
        time = 3 if windows == 1 else TIME
        params = parameters()
        x, y = torch.randint(0, 9, (CLIENTS, windows, time)), torch.randint(0, OWN, (CLIENTS, windows * time))
        head = Likelihood(y) if stated else lambda out: cross_entropy(out, y)
        losses, found = MODEL.loss_and_gradients(params, x, {}, head)
        with torch.no_grad():
            torch.testing.assert_close(losses, slow_loss(params, x, y), rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(cross_entropy(MODEL.forward(params, x, {}), y), losses, rtol=1e-12, atol=1e-12)
        assert not set(found) & set(NAMES)  # the absent words are frozen
        for name, gradient in found.items():
            own = formed(gradient, params[name])
            for place in range(0, params[name][0].numel(), 7):
                difference = finite_difference(params, name, place, x, y)
                torch.testing.assert_close(own.flatten(1)[:, place], difference, rtol=1e-7, atol=1e-8)

    def test_of_what_is_read_against_autograd(self) -> None:
        absent = AbsentWords.of(parameters())
        assert absent is not None
        h = random(CLIENTS, 7, 4, seed=5).requires_grad_()
        logits, slope = absent.logits(h)
        (expected,) = torch.autograd.grad(logits.sum(), h)
        torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-13)


def formed(gradient: Gradient, param: Tensor) -> Tensor:
    if isinstance(gradient, Tensor):
        return gradient
    return gradient.dense(param.shape) if isinstance(gradient, Rows) else gradient.dense()


def finite_difference(params: Params, name: str, place: int, x: Tensor, y: Tensor, step: float = 1e-5) -> Tensor:
    """Of each client's slow loss in one entry [clients], the error of order step^2 taken out."""

    def at(distance: float) -> Tensor:
        moved = params[name].clone()
        moved.view(CLIENTS, -1)[:, place] += distance
        return slow_loss({**params, name: moved}, x, y)

    with torch.no_grad():
        near, far = (at(step) - at(-step)) / (2 * step), (at(2 * step) - at(-2 * step)) / (4 * step)
        return (4 * near - far) / 3
