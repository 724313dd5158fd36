"""Training with absent words as one Gaussian term: against an independent slow version; whole runs; refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbiad.arrays import Params, Pattern
from fedbiad.client import LocalTraining, client_update
from fedbiad.cohort import Cohort
from fedbiad.data.language import LanguageData
from fedbiad.errors import PlanError
from fedbiad.experiment import Experiment, Record, assemble
from fedbiad.methods import LETTER, METHODS, FedBIAD, FedDrop, FjORD, Focus, Method
from fedbiad.models import LSTM, MLP
from fedbiad.plan import EnginePlan, TrainingPlan, from_dict
from fedbiad.rows import Layout
from fedbiad.training.batches import Batch
from fedbiad.training.forms import Form
from fedbiad.training.local_words import LocalWords

WORDS, BPTT, BATCH, STEPS = 40, 4, 3, 6
MODEL = LSTM(WORDS, embedding=5, hidden=6, layers=2)
SIZES = (30, 45, 22, 60, 37)
KINDS = ("embedding-columns", "embedding-words", "gates-ih", "gates-hh", "lstm-units", "output-columns", "paper")


def data(carry: bool = False, words: int = WORDS) -> LanguageData:
    """Each client has text of its own: other words, and another number of them."""
    stream = np.random.default_rng(0)
    texts = [stream.choice(stream.choice(WORDS, 8 + 3 * k, replace=False), size) for k, size in enumerate(SIZES)]
    ends = np.cumsum(SIZES).tolist()
    spans = tuple(zip([0, *ends[:-1]], ends, strict=True))
    tokens = torch.from_numpy(np.concatenate(texts)) % words
    names, judged = tuple(map(str, range(len(SIZES)))), torch.from_numpy(stream.integers(0, WORDS, 200))
    return LanguageData(tokens, spans, names, judged, "test", WORDS, BPTT, (), 0, carry=carry)


def start(dtype: torch.dtype = torch.float64) -> Params:
    """No bias is 0, so that some absent words weigh more than others."""
    params = MODEL.init(np.random.default_rng(7))
    params["output.bias"] = torch.from_numpy(np.random.default_rng(8).normal(size=WORDS))
    return {name: 3.0 * value.to(dtype) for name, value in params.items()}


def received(clients: int) -> Params:
    return {name: value.expand(clients, *value.shape) for name, value in start().items()}


def trained(
    method: Method, ids: tuple[int, ...], form: Form = "auto", carry: bool = False, **training: Any
) -> tuple[Params, np.ndarray[Any, Any]]:
    """What clients learn of all rows, and their losses, in float64."""
    layout = MODEL.layout(method.row_kind)
    work = LocalTraining(method, MODEL, layout, STEPS, BATCH, 0.5, form=form, absent_words="gaussian", **training)
    cohort = Cohort(3, 1, ids)
    local = data(carry).local(cohort, STEPS, BATCH)
    state = {name: np.stack([part] * len(ids)) for name, part in method.init_client(layout).items()}
    found = client_update(work, received(len(ids)), cohort, local, state)
    changes = [found.learned.change(k) for k in range(len(ids))]
    return {name: torch.stack([change[name] for change in changes]) for name in MODEL.shapes}, found.losses


EVERYTHING: dict[str, Any] = {"dropout": 0.3, "clip": 0.4, "noise_std": 1e-2, "carry": True}


class Alternating(FedDrop):
    """Another pattern after every other iteration."""

    def checks(self, round_: int, iterations: int) -> range:
        return range(1, iterations, 2)

    def next_pattern(self, layout, cohort, step, losses, pattern, evidence, state):  # type: ignore[no-untyped-def]
        luck = cohort.luck(f"pattern/{step}", layout.num_rows)
        return self.draw(layout, luck), state, np.ones(len(pattern), dtype=np.bool_)


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("rows", [*KINDS, "embedding-words+lstm-units"])
def test_masked_is_compact(rows: str, options: dict[str, Any]) -> None:
    method = Alternating(rows=rows, dropout_rate=0.4)
    masked, losses = trained(method, (0, 1, 3), "masked", **options)
    compact, same = trained(method, (0, 1, 3), "compact", **options)
    np.testing.assert_allclose(losses, same, rtol=1e-12)
    for name, value in masked.items():
        torch.testing.assert_close(value, compact[name], rtol=1e-11, atol=1e-12)
        assert value.any()


@pytest.mark.parametrize("rows", ["paper", "lstm-units"])
def test_rows_chosen_by_evidence_are_the_same_in_both_forms(rows: str) -> None:
    method = Focus(rows=rows, full_steps=2)
    masked, losses = trained(method, (0, 1, 3), "masked", **EVERYTHING)
    compact, same = trained(method, (0, 1, 3), "compact", **EVERYTHING)
    np.testing.assert_allclose(losses, same, rtol=1e-12)
    for name, value in masked.items():
        torch.testing.assert_close(value, compact[name], rtol=1e-11, atol=1e-12)


def test_weight_decay_too() -> None:
    method = Alternating(rows="lstm-units", dropout_rate=0.4)
    masked, compact = (trained(method, (0, 1, 3), form, weight_decay=0.05)[0] for form in ("masked", "compact"))
    for name, value in masked.items():
        torch.testing.assert_close(value, compact[name], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", ["masked", "compact"])
def test_blocks_do_not_matter(form: Form) -> None:
    """Clients with fewer words are padded, which changes nothing."""
    method = Alternating(rows="paper", dropout_rate=0.4)
    together, losses = trained(method, (0, 1, 3, 4), form, **EVERYTHING)
    for k, client in enumerate((0, 1, 3, 4)):
        alone, own = trained(method, (client,), form, **EVERYTHING)
        np.testing.assert_allclose(own[0], losses[k], rtol=1e-12)
        for name, value in alone.items():
            torch.testing.assert_close(value[0], together[name][k], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("training", [{}, {"weight_decay": 0.1}, EVERYTHING])
def test_nothing_is_learned_of_absent_words(training: dict[str, Any]) -> None:
    moved, _ = trained(METHODS["fedavg"], (0, 2, 4), **training)
    present = torch.from_numpy(data().local(Cohort(3, 1, (0, 2, 4)), STEPS, BATCH).present(WORDS))
    assert not present.all(1).any()
    for name in ("output.weight", "output.bias"):
        learned = moved[name].flatten(2).abs().sum(2) if name == "output.weight" else moved[name].abs()
        assert torch.equal(learned > 0, present)


def slow_round(layout: Layout, pattern: Pattern, scale: float, client: int, steps: int, rate: float) -> Params:
    """SGD by autograd on the loss written out, the moments made of the masked and scaled rows themselves."""
    cohort = Cohort(3, 1, (client,))
    local = data().local(cohort, steps, BATCH)
    lacking = ~local.present(WORDS)[0]
    u = {name: value.clone() for name, value in start().items()}
    masks = {name: torch.ones(shape, dtype=torch.float64) for name, shape in MODEL.shapes.items()}
    for name, axes in layout.axis_masks(pattern[None], scale, torch.float64).items():
        for axis, factor in axes:
            shape = [1] * masks[name].dim()
            shape[axis] = -1
            masks[name] = masks[name] * factor[0].view(shape)
    frozen = {name: value[lacking] for name, value in start().items() if name.startswith("output")}
    frozen["output.weight"] = frozen["output.weight"] * masks["output.weight"][lacking]
    rho = frozen["output.bias"].exp() / frozen["output.bias"].exp().sum()
    mean = (rho[:, None] * frozen["output.weight"]).sum(0)
    spread = [w - mean for w in frozen["output.weight"]]
    covariance = torch.stack([p * torch.outer(d, d) for p, d in zip(rho, spread, strict=True)]).sum(0)
    for v in range(steps):
        batch = local.batch(v)
        leaves = {name: value.clone().requires_grad_() for name, value in u.items()}
        theta = {name: (value * masks[name])[None] for name, value in leaves.items()}
        identity = {"output.weight": torch.eye(6).double()[None], "output.bias": torch.zeros(1, 6).double()}
        h = autograd_forward(theta | identity, batch.inputs)
        z = h @ theta["output.weight"][0].T + theta["output.bias"][0]
        a = frozen["output.bias"].exp().sum().log() + h @ mean + ((h @ covariance) * h).sum(1) / 2
        total = torch.log(z[:, ~torch.from_numpy(lacking)].exp().sum(1) + a.exp())
        loss = (total - z[torch.arange(len(z)), batch.targets[0]]).mean()
        found = torch.autograd.grad(loss, list(leaves.values()))
        u = {name: u[name] - rate * own for name, own in zip(u, found, strict=True)}
    return {name: value - start()[name] for name, value in u.items()}


def autograd_forward(theta: Params, tokens: Tensor) -> Tensor:
    """What the output layer reads [samples, units], by torch's own cell."""
    x = theta["embedding.weight"][0][tokens[0]]
    for layer in (1, 2):
        w = {part: theta[f"lstm{layer}.{part}"][0] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        h, c, read = torch.zeros(len(x), 6).double(), torch.zeros(len(x), 6).double(), []
        for t in range(x.shape[1]):
            given = x[:, t] @ w["weight_ih"].T + h @ w["weight_hh"].T + w["bias_ih"] + w["bias_hh"]
            i, f, g, o = given.chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            read.append(h)
        x = torch.stack(read, 1)
    return x.flatten(0, 1)


@pytest.mark.parametrize("form", ["masked", "compact"])
@pytest.mark.parametrize("rows", ["lstm-units", "output-columns", "gates-hh"])
def test_it_is_the_slow_version(rows: str, form: Form) -> None:
    """Also with the factor 1/(1-p) on columns, which the absent words' rows take as all others do."""
    method = FedDrop(rows=rows, dropout_rate=0.4)
    layout = MODEL.layout(rows)
    cohort = Cohort(3, 1, (1, 3))
    pattern = method.first_pattern(layout, cohort, {})
    moved, _ = trained(method, (1, 3), form)
    for k, client in enumerate((1, 3)):
        expected = slow_round(layout, pattern[k], 1 / 0.6, client, STEPS, 0.5)
        for name, value in expected.items():
            torch.testing.assert_close(moved[name][k], value, rtol=1e-10, atol=1e-11)


def test_a_client_with_every_word_trains_as_ever() -> None:
    everyone = Cohort(3, 1, (3,))
    few = data(words=4)
    model = LSTM(4, embedding=5, hidden=6, layers=2)
    local = few.local(everyone, STEPS, BATCH)
    assert local.present(4).all()
    params = {name: value[None].double() for name, value in model.init(np.random.default_rng(0)).items()}
    found = []
    for words in ("exact", "gaussian"):
        work = LocalTraining(METHODS["fedavg"], model, model.layout("units"), STEPS, BATCH, 0.5, absent_words=words)
        found.append(client_update(work, params, everyone, local, {}))
    np.testing.assert_allclose(found[0].losses, found[1].losses, rtol=1e-12)
    for name, value in found[0].learned.change(0).items():
        torch.testing.assert_close(value, found[1].learned.change(0)[name], rtol=1e-11, atol=1e-13)


def test_own_words_by_hand() -> None:
    class Two:
        """Client 0 has words 1 and 3 of 4, client 1 has all but 0."""

        def batch(self, step: int) -> Batch:
            return Batch(torch.zeros(2, 1, 2, dtype=torch.int64), torch.tensor([[3, 1], [2, 3]]))

        def whole(self) -> Batch:
            return self.batch(0)

        def present(self, classes: int) -> Pattern:
            return np.array([[False, True, False, True], [False, True, True, True]])

    words = LocalWords(Two(), 4)
    assert words.batch(0).targets.tolist() == words.whole().targets.tolist() == [[1, 0], [1, 2]]
    params = {"output.weight": torch.arange(8.0).view(1, 4, 2).expand(2, 4, 2),
              "output.bias": torch.tensor([0.0, 1.0, 2.0, 3.0]).expand(2, 4)}  # fmt: skip
    own = words.only(params)
    assert own["output.weight"].tolist() == [[[2, 3], [6, 7], [0, 0]], [[2, 3], [4, 5], [6, 7]]]
    assert own["output.bias"][0, :2].tolist() == [1, 3]
    assert own["output.bias"][0, 2] < -1e20  # padding: never likely
    assert own["output.bias"][1].tolist() == [1, 2, 3]
    absent = words.absent(params)
    assert absent.log_mass.tolist() == pytest.approx([np.log(1 + np.exp(2)), 0.0])
    assert absent.mean[1].tolist() == [0, 1]
    back = words.everywhere(own)
    assert back["output.weight"].tolist() == [[[0, 0], [2, 3], [0, 0], [6, 7]], [[0, 0], [2, 3], [4, 5], [6, 7]]]
    assert back["output.bias"].tolist() == [[0, 1, 0, 3], [0, 1, 2, 3]]


def experiment(method: Method, workers: int = 1, wire: bool = False) -> Experiment:
    training = TrainingPlan(0.5, STEPS, BATCH, 4, absent_words="gaussian")
    engine = EnginePlan(block=2, workers=workers, wire=wire)
    return assemble(method, MODEL, data(), training, engine, 2, 0, 4)


def run(method: Method, workers: int = 1, wire: bool = False) -> tuple[Params, list[Record]]:
    ready = experiment(method, workers, wire)
    records = []
    try:
        for record, outcome in ready.run(start(torch.float32)):
            records.append({**record, "seconds": None})
            u = outcome.u
    finally:
        ready.close()
    return u, records


METHODS_THAT_FIT: dict[str, Method] = {
    **{name: own for name, own in METHODS.items() if name not in ("heterofl", "fedbiad-letter")},
    "fedbiad-letter": replace(LETTER, rows="paper"),
    "fedbiad, checked": FedBIAD(rows="paper", stage_boundary=1, interval=2),
    "fjord, distilled": FjORD(distillation=True),
    "fedbiad, whole local loss": FedBIAD(rows="paper", trend="local", interval=2),
}


@pytest.mark.parametrize("name", METHODS_THAT_FIT)
def test_every_method_runs(name: str) -> None:
    before, (after, records) = start(torch.float32), run(METHODS_THAT_FIT[name])
    assert [record["failed"] for record in records] == [[], []]
    assert all(np.isfinite(record["loss"]) for record in records)
    assert not torch.equal(after["output.weight"], before["output.weight"])


def test_real_messages_change_no_bit() -> None:
    for name in ("fedbiad, checked", "fjord"):  # the second is sent a part of the columns only
        (u, records), (same, others) = run(METHODS_THAT_FIT[name]), run(METHODS_THAT_FIT[name], wire=True)
        assert all(torch.equal(value, same[part]) for part, value in u.items())
        assert records == others


def test_two_workers_give_the_same_bits() -> None:
    method = METHODS_THAT_FIT["fedbiad, checked"]
    (u, records), (same, others) = run(method), run(method, workers=2)
    assert all(torch.equal(value, same[part]) for part, value in u.items())
    assert records == others


class OwnLoss(Method):
    """A method with a loss of its own."""

    def objective(self, outputs, batch, cohort):  # type: ignore[no-untyped-def]
        return 2.0 * super().objective(outputs, batch, cohort)


class TestRefused:
    @pytest.mark.parametrize(
        ("method", "why"),
        [
            (METHODS["heterofl"], "drop words of the output layer"),
            (FedDrop(rows="weight-rows"), "drop words of the output layer"),
            (FedDrop(rows="units-and-classes"), "drop words of the output layer"),
            (OwnLoss(), "a loss of its own"),
        ],
    )
    def test_methods_that_look_at_words(self, method: Method, why: str) -> None:
        with pytest.raises(PlanError, match=f"absent_words = 'gaussian' does not fit: .*{why}.*; use 'exact'"):
            experiment(method)

    def test_other_models(self) -> None:
        training = TrainingPlan(0.5, absent_words="gaussian")
        with pytest.raises(PlanError, match="no output over words"):
            assemble(METHODS["fedavg"], MLP(4, (3,), WORDS), data(), training, EnginePlan(), 2, 0, 4)
        with pytest.raises(PlanError) as caught:
            from_dict({"data": {"name": "digits", "clients": 10},
                       "training": {"learning_rate": 0.1, "absent_words": "gaussian"}})  # fmt: skip
        assert caught.value.problems == [
            "training.absent_words = 'gaussian' is for language models: the mlp has no output over words; leave it out"
        ]

    def test_other_names(self) -> None:
        with pytest.raises(PlanError, match=r"training\.absent_words: input should be 'exact' or 'gaussian'"):
            from_dict({"data": {"name": "digits", "clients": 10},
                       "training": {"learning_rate": 0.1, "absent_words": "sampled"}})  # fmt: skip
