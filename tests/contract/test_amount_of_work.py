"""How much is computed for a round, counted: a fast path that is lost turns these red on any machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from counting import Work
from fedbiad.arrays import Params
from fedbiad.client import LocalTraining, client_update
from fedbiad.cohort import Cohort
from fedbiad.data.base import FederatedData
from fedbiad.data.language import LanguageData
from fedbiad.methods import METHODS, FedBIAD, FedDrop, Method
from fedbiad.models import LSTM, MLP
from fedbiad.rows import Layout
from fedbiad.sending import Channel
from fedbiad.state import States
from fedbiad.training.forms import Form
from fedbiad.transports.block import BlockTraining

SAMPLES, INPUTS, UNITS, CLASSES, CLIENTS, V, BATCH = 12, 50, 16, 4, 3, 9, 4
MODEL = MLP(INPUTS, (UNITS,), CLASSES)
IDS = tuple(range(CLIENTS))


def images(background: float = 0.0) -> FederatedData:
    """Of which the share `background` is background."""
    stream = np.random.default_rng(0)
    inputs = torch.from_numpy(stream.normal(size=(SAMPLES * CLIENTS, INPUTS)).astype(np.float32))
    inputs[:, : int(background * INPUTS)] = 0.5
    targets = torch.from_numpy(stream.integers(0, CLASSES, SAMPLES * CLIENTS))
    return FederatedData(inputs, targets, np.arange(0, len(targets) + 1, SAMPLES), inputs, targets, "test", CLASSES, 0)


def quiet(method: Method) -> Method:
    return replace(method, noise=0.0, stage_two="sample") if isinstance(method, FedBIAD) else method


def work_of(method: Method, form: Form, background: float = 0.0, rounds: int = 0) -> Work:
    """A round of all clients, sums included, in a process that has trained before; or so many of a new one's."""
    work = LocalTraining(quiet(method), MODEL, MODEL.layout(method.row_kind), V, BATCH, 0.1, form=form, largest=SAMPLES)
    training = BlockTraining(work, images(background), Channel(work.layout, 0))
    u = MODEL.init(np.random.default_rng(1))
    state = {name: np.stack([part] * CLIENTS) for name, part in method.init_client(work.layout).items()}
    counted = Work()
    if not rounds:
        training.warm.append(True)
    with counted:
        for _ in range(rounds or 1):
            training.train(u, asked(method, work.layout, IDS, u), States(IDS, state, {}))
    return counted


def asked(method: Method, layout: Layout, ids: tuple[int, ...], u: Params) -> Cohort:
    """The clients, with the rows the server assigns."""
    cohort = Cohort(0, 1, ids)
    return replace(cohort, assigned=method.assign(layout, cohort, method.init_server(layout), u))


GRAM = CLIENTS * SAMPLES * INPUTS * SAMPLES
THERE_AND_BACK = 2 * CLIENTS * SAMPLES * INPUTS * UNITS
"""X U1^T and A^T X."""


def test_the_fused_form_touches_the_inputs_three_times_only() -> None:
    assert work_of(METHODS["fedavg"], "auto").products == GRAM + THERE_AND_BACK


def test_a_client_trains_twice_only_where_a_process_begins() -> None:
    assert work_of(METHODS["fedavg"], "auto", rounds=1).products == GRAM + THERE_AND_BACK * (CLIENTS + 1) // CLIENTS
    assert work_of(METHODS["fedavg"], "auto", rounds=2).products == GRAM + THERE_AND_BACK * (2 * CLIENTS + 1) // CLIENTS


def test_the_background_of_pictures_is_not_multiplied() -> None:
    assert work_of(METHODS["fedavg"], "auto", background=0.6).products == 0  # all of them are with strips
    local = images(0.6).local(Cohort(0, 1, IDS), V, BATCH)
    for picture in (facts.picture for facts in local.facts()):
        assert picture is not None
        # 6 strips of samples, each with 20 inputs that differ; 10 strips of such inputs, each with all samples
        assert (len(picture.by_sample.columns), len(picture.by_input.columns)) == (6 * 20, 10 * SAMPLES)


NORMS = CLIENTS * SAMPLES * SAMPLES * UNITS
"""G A: the norms of what was learned, the evidence of FedBIAD and of Focus."""


@pytest.mark.parametrize(
    ("method", "norms"), [(FedDrop(dropout_rate=0.5), 0), (METHODS["fedbiad"], NORMS), (METHODS["focus"], NORMS)]
)
def test_half_the_rows_are_half_the_products_on_the_way_back(method: Method, norms: int) -> None:
    assert work_of(method, "auto").products == GRAM + 3 * THERE_AND_BACK // 4 + norms


def test_the_compact_form_computes_only_held_rows() -> None:
    # forward and weights' gradient of both layers, and what flows back into the hidden one
    each = CLIENTS * V * BATCH * (2 * INPUTS * UNITS + 3 * UNITS * CLASSES)
    assert work_of(METHODS["fedavg"], "compact").products == each
    assert work_of(FedDrop(dropout_rate=0.5), "compact").products == each // 2
    assert work_of(FedDrop(dropout_rate=0.5), "masked").products == each
    # three iterations of nine whole, then half the rows
    assert work_of(METHODS["focus"], "compact").products == each * 3 // V + each * (V - 3) // V // 2


def test_the_fused_form_never_writes_clients_weights_more_than_once() -> None:
    whole = CLIENTS * INPUTS * UNITS * 4
    fused, compact = work_of(METHODS["fedavg"], "auto").written, work_of(METHODS["fedavg"], "compact").written
    assert fused < 5 * whole  # A^T X, the sum of it, and things the size of the samples
    assert compact > V * whole  # an update of all weights in every iteration


# ---------------------------------------------------------------------- language

WORDS, WIDTH, TIME = 120, 8, 5
LANGUAGE = LSTM(WORDS, WIDTH, WIDTH, 2)


def text_work(rows: str, rate: float, batch: int) -> Work:
    stream = np.random.default_rng(0)
    tokens = torch.from_numpy(stream.integers(0, WORDS, 400))
    data = LanguageData(tokens, ((0, 200), (200, 400)), ("a", "b"), tokens[:50], "test", WORDS, TIME, (), 0)
    method = FedDrop(dropout_rate=rate, rows=rows) if rate else METHODS["fedavg"]
    layout, u = LANGUAGE.layout(rows), LANGUAGE.init(np.random.default_rng(1))
    work = LocalTraining(method, LANGUAGE, layout, 2, batch, 0.1, clip=1.0)
    cohort = asked(method, layout, (0, 1), u)
    received = {k: v.expand(2, *v.shape) for k, v in u.items()}
    counted = Work()
    with counted:
        client_update(work, received, cohort, data.local(cohort, 2, batch), {})
    return counted


def products(kept: dict[str, float], batch: int) -> float:
    """Of two clients, two iterations: forward, backward, and the matrices' own gradients."""
    tokens = batch * TIME
    gates = 4 * WIDTH * WIDTH
    layers = sum(3 * tokens * gates * kept.get(part, 1.0) for part in ("ih1", "hh1", "ih2", "hh2"))
    return 4 * (layers + 3 * tokens * WORDS * WIDTH * kept.get("output", 1.0))


def test_an_lstm_step_has_the_products_it_must_have() -> None:
    counted, least = text_work("paper", 0.0, 1).products, products({}, 1)
    assert least <= counted < 1.5 * least  # norms for clipping come on top, from Gram matrices


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ("output-columns", {"output": 0.5}),
        ("gates-hh", {"hh1": 0.5, "hh2": 0.5}),
        ("embedding-columns", {"ih1": 0.5}),
        ("output-words", {"output": 0.5}),
        ("lstm-units", {"ih1": 0.5, "hh1": 0.25, "ih2": 0.25, "hh2": 0.25, "output": 0.5}),
    ],
)
def test_rows_not_held_are_not_computed(rows: str, kept: dict[str, float]) -> None:
    saved = text_work(rows, 0.0, 4).products - text_work(rows, 0.5, 4).products
    assert saved >= products({}, 4) - products(kept, 4)


def test_many_samples_never_hold_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbiad.models.recurrent.LOGITS", 1)
    largest = 0

    class Largest(Work):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = super().__torch_dispatch__(func, types, args, kwargs)
            if isinstance(result, torch.Tensor) and result.shape[-1:] == (WORDS,) and result.dim() == 3:
                largest = max(largest, result.shape[1])
            return result

    cohort, received = Cohort(0, 1, (0,)), {k: v[None] for k, v in LANGUAGE.init(np.random.default_rng(1)).items()}
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, WORDS, 2000))
    data = LanguageData(tokens, ((0, 2000),), ("a",), tokens[:50], "test", WORDS, TIME, (), 0)
    work = LocalTraining(METHODS["fedavg"], LANGUAGE, LANGUAGE.layout("paper"), 1, 40, 0.1)
    with Largest():
        client_update(work, received, cohort, data.local(cohort, 1, 40), {})
    assert 0 < largest <= 64 < 40 * TIME
