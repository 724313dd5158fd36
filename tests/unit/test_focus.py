"""Focus: against a loop written out by hand, its forms against each other, and what it sends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedbiad.arrays import FloatArray, Params
from fedbiad.client import LocalTraining, Trained, client_update
from fedbiad.cohort import Cohort
from fedbiad.methods import Focus
from fedbiad.models import CNN, MLP, Model
from fedbiad.plan_problems import resolve
from fedbiad.training.batches import LocalData
from fedbiad.training.forms import Form

INPUTS, UNITS, CLASSES, SAMPLES, BATCH, V, RATE = 16, 6, 3, 7, 4, 6, 0.3
MODEL = MLP(INPUTS, (UNITS,), CLASSES)
UNITS_LAYOUT = MODEL.layout("units")
COHORT = Cohort(5, 1, (0, 3))
STREAM = np.random.default_rng(0)
X, Y = STREAM.normal(size=(2, SAMPLES, INPUTS)), STREAM.integers(0, CLASSES, (2, SAMPLES))
VISITS = COHORT.schedule([SAMPLES] * 2, V * BATCH)


def start(model: Model) -> Params:
    return {name: value.double() for name, value in model.init(np.random.default_rng(1)).items()}


def trained(model: Model, form: Form, method: Focus) -> Trained:
    shape = (INPUTS,) if isinstance(model, MLP) else (1, 4, 4)
    inputs = torch.from_numpy(X.reshape(2 * SAMPLES, *shape))
    spans = [slice(0, SAMPLES), slice(SAMPLES, 2 * SAMPLES)]
    data = LocalData(inputs, torch.from_numpy(Y.reshape(-1)), spans, VISITS, BATCH)
    work = LocalTraining(method, model, model.layout(method.rows), V, BATCH, RATE, form=form, largest=SAMPLES)
    received = {name: value.expand(2, *value.shape) for name, value in start(model).items()}
    return client_update(work, received, COHORT, data, {})


def slow(k: int, method: Focus) -> tuple[list[FloatArray], npt.NDArray[np.bool_], list[float]]:
    """A client's round written out: what it learned, the units it chose, its losses."""
    received = [value.numpy() for value in start(MODEL).values()]
    u = [value.copy() for value in received]
    held, losses = np.ones(UNITS), []
    for v in range(V):
        chosen = VISITS[k, v * BATCH : (v + 1) * BATCH]
        x, y = X[k, chosen], Y[k, chosen]
        before = x @ u[0].T + u[1]
        hidden = np.maximum(before, 0) * held  # a unit that was not chosen says nothing, the others no more than before
        logits = hidden @ u[2].T + u[3]
        chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        losses.append(float(-np.log(chances[np.arange(BATCH), y]).mean()))
        error = (chances - np.eye(CLASSES)[y]) / BATCH
        back = error @ u[2] * (before > 0) * held
        steps = [back.T @ x, back.sum(0), error.T @ hidden, error.sum(0)]
        u = [part - RATE * step for part, step in zip(u, steps, strict=True)]
        if v + 1 == method.full_steps:
            moved = [(new - old) ** 2 for new, old in zip(u, received, strict=True)]
            evidence = moved[0].sum(1) + moved[1] + moved[2].sum(0)
            held = np.array([(evidence > own).sum() < UNITS // 2 for own in evidence]).astype(np.float64)
    return [new - old for new, old in zip(u, received, strict=True)], held > 0, losses


@pytest.mark.parametrize("form", ["masked", "compact", "dual", "fused"])
@pytest.mark.parametrize("full_steps", [1, 3])
def test_a_round_is_the_loop_written_out(form: Form, full_steps: int) -> None:
    method = Focus(full_steps=full_steps)
    found = trained(MODEL, form, method)
    choices = []
    for k in range(2):
        moved, chosen, losses = slow(k, method)
        np.testing.assert_array_equal(found.pattern[k], chosen)
        np.testing.assert_allclose(found.losses[k], losses, rtol=1e-10)
        change = found.learned.change(k)  # also of the units not chosen, from the first iterations
        for own, expected in zip(change.values(), moved, strict=True):
            np.testing.assert_allclose(own.numpy(), expected, rtol=1e-9, atol=1e-12)
        choices.append(chosen.tolist())
    assert choices[0] != choices[1] or full_steps == 3  # after three iterations these two happen to agree
    assert not found.resampled.any()


@pytest.mark.parametrize("rows", ["units", "weight-rows"])
def test_masked_is_compact_in_a_cnn(rows: str) -> None:
    model, method = CNN(4, (5, 4), 6, CLASSES), Focus(rows=rows, full_steps=2)
    masked, compact = trained(model, "masked", method), trained(model, "compact", method)
    np.testing.assert_array_equal(masked.pattern, compact.pattern)
    np.testing.assert_allclose(masked.losses, compact.losses, rtol=1e-10)
    for name, value in masked.learned.change(1).items():
        torch.testing.assert_close(value, compact.learned.change(1)[name], rtol=1e-9, atol=1e-12)


def evidence_of(values: list[float]) -> FloatArray:
    return np.array([values])


def test_the_rows_of_most_evidence_are_held_from_the_first_check_on() -> None:
    method, cohort = Focus(full_steps=3), Cohort(0, 1, (0,))
    assert [list(method.checks(1, V)) for V in (2, 3, 9)] == [[], [2], [2]]
    assert method.first_pattern(UNITS_LAYOUT, cohort, {}).all()
    whole, losses = UNITS_LAYOUT.all_rows(1), np.ones((1, 9))
    pattern, state, _ = method.next_pattern(
        UNITS_LAYOUT, cohort, 2, losses, whole, lambda: evidence_of([0.1, 3.0, 0.0, 2.0, 9.0, 0.5]), {}
    )
    assert pattern.astype(int).tolist() == [[0, 1, 0, 1, 1, 0]]
    sent, _ = method.upload_pattern(UNITS_LAYOUT, cohort, 9 * whole, pattern, unasked, state)
    assert (sent == pattern).all()


def unasked() -> FloatArray:
    raise AssertionError("the choice was made before")


def test_equal_evidence_is_a_draw() -> None:
    layout, whole = UNITS_LAYOUT, UNITS_LAYOUT.all_rows(1)
    drawn = [
        Focus().next_pattern(layout, Cohort(seed, 1, (0,)), 2, np.ones((1, 9)), whole, lambda: np.ones((1, UNITS)), {})[
            0
        ][0]
        for seed in range(60)
    ]
    assert all(own.sum() == UNITS // 2 for own in drawn)
    assert np.all(np.abs(np.mean(drawn, axis=0) - 0.5) < 0.3)


def test_a_round_that_ends_before_the_choice_sends_as_many_rows() -> None:
    found = trained(MODEL, "compact", Focus(full_steps=V + 1))
    assert found.pattern.sum(1).tolist() == [3, 3]
    evidence = found.learned.row_norms(UNITS_LAYOUT)
    for own, sent in zip(evidence, found.pattern, strict=True):
        assert own[sent].min() > own[~sent].max()


def test_rows_are_not_scaled() -> None:
    assert Focus().scale(UNITS_LAYOUT, COHORT) == 1.0
    _, _, problems = resolve("focus", 0.5, {"focus": {"scaling": "inverse", "full_steps": 0}}, {})
    assert len(problems) == 2
    assert "methods.focus.scaling: input should be 'none'" in problems[0]
    assert "methods.focus.full_steps" in problems[1]
