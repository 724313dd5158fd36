"""The LSTM language model against torch's own layers, its rows entry by entry, its sizes against the paper's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbiad import patterns
from fedbiad.arrays import Params, Pattern
from fedbiad.cohort import Cohort
from fedbiad.errors import LayoutError, PlanError
from fedbiad.models import CNN, LSTM, MLP, Model
from fedbiad.models.base import Gradient, Outer, Rows
from fedbiad.models.lstm import ALIASES
from fedbiad.plan import from_dict
from fedbiad.rows import ROW_KINDS, Layout, on_axis
from fedbiad.theory import Structure
from fedbiad.training.batches import Batch
from fedbiad.training.compact import CompactStep
from fedbiad.training.masked import MaskedStep
from fedbiad.training.objective import cross_entropy
from fedbiad.training.step import LocalStep, Noise

CLIENTS, BATCH, TIME, RATE = 3, 4, 5, 0.4
TINY = LSTM(7, embedding=4, hidden=3, layers=2)
KINDS = tuple(TINY.row_groups())


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def block_params(model: Model, dtype: torch.dtype = torch.float64) -> Params:
    """Different parameters for every client, none of them 0."""
    own = [model.init(np.random.default_rng(k)) for k in range(CLIENTS)]
    params = {name: torch.stack([start[name] for start in own]).to(dtype) for name in model.shapes}
    return {name: torch.where(value == 0, 0.05, value) for name, value in params.items()}


def tokens(step: int, *shape: int) -> Tensor:
    return torch.randint(0, TINY.vocabulary, shape, generator=torch.Generator().manual_seed(step))


class Plain(nn.Module):
    """Torch's own layers, with a mask on what each layer but the first reads."""

    def __init__(self, model: LSTM) -> None:
        super().__init__()
        widths = [model.embedding, *[model.hidden] * (model.layers - 1)]
        self.embedding = nn.Embedding(model.vocabulary, model.embedding)
        self.lstm = nn.ModuleList([nn.LSTM(width, model.hidden, batch_first=True) for width in widths])
        self.output = nn.Linear(model.hidden, model.vocabulary)
        self.double()

    def run(self, words: Tensor, masks: list[Tensor]) -> Tensor:
        """Words [batch, time] and masks [batch, units] give logits [batch x time, words]."""
        x = self.embedding(words) * masks[0][:, None]
        for layer, mask in zip(self.lstm, masks[1:], strict=True):
            x = layer(x)[0] * mask[:, None]
        out: Tensor = self.output(x)
        return out.flatten(0, 1)


def formed(gradient: Gradient, param: Tensor) -> Tensor:
    """A gradient that may have been left unformed."""
    if isinstance(gradient, Rows):
        return gradient.dense(param.shape)
    return gradient.dense() if isinstance(gradient, Outer) else gradient


class TestForward:
    @pytest.mark.parametrize("layers", [1, 2, 3])
    @pytest.mark.parametrize("dropout", [0.0, 0.4])
    def test_outputs_and_gradients_are_torchs_for_every_client(self, layers: int, dropout: float) -> None:
        model = LSTM(7, embedding=4, hidden=3, layers=layers)
        params, module = block_params(model), Plain(model)
        x, y = tokens(0, CLIENTS, BATCH, TIME), tokens(1, CLIENTS, BATCH * TIME)
        masks = Cohort(0, 1, (0, 1, 2)).unit_masks(model.dropout_sites, BATCH, dropout, 0)
        outputs = model.forward(params, x, masks)
        assert outputs.shape == (CLIENTS, BATCH * TIME, 7)
        losses, gradients = model.loss_and_gradients(params, x, masks, lambda out: cross_entropy(out, y))
        for client in range(CLIENTS):
            with torch.no_grad():
                for own, value in zip(module.parameters(), params.values(), strict=True):
                    own.copy_(value[client])
            ones = {site: torch.ones(CLIENTS, BATCH, units) for site, units in model.dropout_sites.items()}
            expected = module.run(x[client], [mask[client] for mask in {**ones, **masks}.values()])
            torch.testing.assert_close(outputs[client], expected, rtol=1e-12, atol=1e-12)
            loss = nn.functional.cross_entropy(expected, y[client])
            torch.testing.assert_close(losses[client], loss.detach(), rtol=1e-12, atol=1e-12)
            found = torch.autograd.grad(loss, list(module.parameters()))
            for name, gradient in zip(params, found, strict=True):
                own_gradient = formed(gradients[name], params[name])
                assert gradient.abs().max() > 0
                torch.testing.assert_close(own_gradient[client], gradient, rtol=1e-12, atol=1e-14)

    def test_a_state_is_carried_on(self) -> None:
        params, x = block_params(TINY), tokens(0, CLIENTS, BATCH, TIME)
        whole, last = TINY.run(params, x, {}, TINY.initial_state(params, BATCH))
        first, state = TINY.run(params, x[:, :, :2], {}, TINY.initial_state(params, BATCH))
        second, end = TINY.run(params, x[:, :, 2:], {}, state)
        parts = torch.cat([part.view(CLIENTS, BATCH, -1, 7) for part in (first, second)], dim=2)
        torch.testing.assert_close(parts.flatten(1, 2), whole, rtol=1e-12, atol=1e-14)
        assert not torch.allclose(TINY.forward(params, x[:, :, 2:], {}), second)
        for (h, c), (same_h, same_c) in zip(last, end, strict=True):
            torch.testing.assert_close((h, c), (same_h, same_c), rtol=1e-12, atol=1e-14)

    def test_the_grouping_of_clients_does_not_matter(self) -> None:
        params, x, y = block_params(TINY), tokens(0, CLIENTS, BATCH, TIME), tokens(1, CLIENTS, BATCH * TIME)
        losses, gradients = TINY.loss_and_gradients(params, x, {}, lambda out: cross_entropy(out, y))
        for some in ([0], [2, 1]):
            own, wanted = {name: value[some] for name, value in params.items()}, y[some]
            alone, of_own = TINY.loss_and_gradients(own, x[some], {}, partial(cross_entropy, targets=wanted))
            torch.testing.assert_close(alone, losses[some], rtol=1e-13, atol=1e-14)
            for name, gradient in gradients.items():
                mine, theirs = formed(of_own[name], own[name]), formed(gradient, params[name])[some]
                torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-15)

    def test_a_word_beyond_the_vocabulary_is_no_other_clients_word(self) -> None:
        with pytest.raises(IndexError):
            TINY.forward(block_params(TINY), torch.full((CLIENTS, BATCH, TIME), 7), {})

    def test_init(self) -> None:
        model = LSTM(50, embedding=9, hidden=16)
        params = model.init(np.random.default_rng(0))
        assert {name: tuple(value.shape) for name, value in params.items()} == model.shapes
        for name, value in params.items():
            bound = 0.0 if name == "output.bias" else 0.1 if name.endswith(".weight") else 0.25
            assert value.dtype == torch.float32
            assert 0.9 * bound <= float(value.abs().max()) <= bound

    def test_structure_is_the_papers(self) -> None:
        assert LSTM(10_000).structure == Structure(300, 300, 4, 10_000 + 1_200 * 4 + 10_000)


Row = list[tuple[str, tuple[int | slice, ...]]]


def dropped_by(kind: str) -> list[Row]:
    """For every row of TINY the entries it drops, written out."""
    every, layers, gates = slice(None), (1, 2), range(4)
    if kind == "lstm-units":
        return [
            [(f"lstm{i}.{part}", (gate * 3 + j,)) for gate in gates for part in ("bias_ih", "bias_hh")]
            + [(f"lstm{i}.{part}", (gate * 3 + j, every)) for gate in gates for part in ("weight_ih", "weight_hh")]
            + [(f"lstm{i}.weight_hh", (every, j)), ("lstm2.weight_ih" if i == 1 else "output.weight", (every, j))]
            for i in layers
            for j in range(3)
        ]
    if kind in ("gates-ih", "gates-hh"):
        return [[(f"lstm{i}.weight_{kind[-2:]}", (j, every))] for i in layers for j in range(12)]
    others: dict[str, list[Row]] = {
        "embedding-columns": [[("embedding.weight", (every, j))] for j in range(4)],
        "embedding-words": [[("embedding.weight", (j, every))] for j in range(7)],
        "output-columns": [[("output.weight", (every, j))] for j in range(3)],
        "output-words": [[("output.weight", (j, every)), ("output.bias", (j,))] for j in range(7)],
    }
    return others[kind]


SCALED = {
    "embedding-columns": ("embedding.weight",),
    "embedding-words": ("embedding.weight",),
    "gates-ih": ("lstm1.weight_ih", "lstm2.weight_ih"),
    "gates-hh": ("lstm1.weight_hh", "lstm2.weight_hh"),
    "lstm-units": ("lstm1.weight_hh", "lstm2.weight_ih", "lstm2.weight_hh", "output.weight"),
    "output-columns": ("output.weight",),
    "output-words": (),
}
"""Parameters that take the factor 1/(1-p), once for each kind."""


def full_masks(layout: Layout, pattern: Pattern, scale: float) -> Params:
    masks = {name: torch.ones(len(pattern), *shape) for name, shape in layout.shapes.items()}
    for name, axes in layout.axis_masks(pattern, scale).items():
        for axis, mask in axes:
            masks[name] = masks[name] * on_axis(mask, axis, masks[name].dim())
    return masks


class TestRows:
    @pytest.mark.parametrize("rows", [*KINDS, "paper", "weight-rows", "units-and-classes"])
    def test_masks_by_brute_force(self, rows: str) -> None:
        layout = TINY.layout(rows)
        kinds = [kind for kind in KINDS if kind in ALIASES.get(rows, (rows,))]
        entries = [row for kind in kinds for row in dropped_by(kind)]
        assert layout.num_rows == len(entries)
        random = np.random.default_rng(0).random((4, len(entries))) < 0.5
        for pattern in (*~np.eye(len(entries), dtype=np.bool_), *random, layout.all_rows(1)[0]):
            masks = {name: torch.ones(shape) for name, shape in TINY.shapes.items()}
            for name in (name for kind in kinds for name in SCALED[kind]):
                masks[name] *= 2.5
            for j in np.flatnonzero(~pattern):
                for name, index in entries[j]:
                    masks[name][index] = 0
            found = full_masks(layout, pattern[None], 2.5)
            for name, mask in masks.items():
                assert torch.equal(found[name][0], mask)
            kept = torch.cat([mask.flatten() != 0 for mask in masks.values()])
            assert np.array_equal(layout.kept_entries(pattern), kept.numpy())
            assert layout.kept_weights(pattern[None])[0] == int(kept.sum())

    def test_names(self) -> None:
        assert set(ROW_KINDS) == {*KINDS, *ALIASES}
        for alias, kinds in ALIASES.items():
            assert TINY.layout(alias) == TINY.layout("+".join(kinds)) == TINY.layout("+".join(reversed(kinds)))
        names = [group.name for group in TINY.layout("output-words+units+embedding-columns").groups]
        assert names == ["embedding", "lstm1", "lstm2", "output"]

    @pytest.mark.parametrize(
        ("rows", "problem"),
        [
            ("lstm-units+gates-hh", "gates-hh and lstm-units both have axis 0 of 'lstm1.weight_hh'"),
            ("gates-ih+units", "gates-ih and lstm-units both have axis 0 of 'lstm1.weight_ih'"),
            ("units+output-columns", "lstm-units and output-columns both have axis 1 of 'output.weight'"),
            ("paper+gates-hh", "rows = 'paper\\+gates-hh': gates-hh is named twice"),
            ("paper+rows", "rows = 'rows' is not known to LSTM; it has units, .*, output-words"),
            ("", "rows = '' is not known to LSTM"),
        ],
    )
    def test_what_does_not_go_together(self, rows: str, problem: str) -> None:
        with pytest.raises(LayoutError, match=problem):
            TINY.layout(rows)

    @pytest.mark.parametrize("model", [MLP(4, (3,), 2), CNN(4, (2, 2), 3, 2)])
    def test_other_models_name_the_kinds_they_have(self, model: Model) -> None:
        name = type(model).__name__
        known = f"rows = 'gates-hh' is not known to {name}; it has units, weight-rows, units-and-classes"
        with pytest.raises(LayoutError, match=f"^{known}$"):
            model.layout("gates-hh")

    def test_a_plan_knows_the_names(self) -> None:
        def plan(rows: object) -> None:
            from_dict({"data": {"name": "digits", "clients": 10}, "training": {"learning_rate": 0.1},
                       "methods": {"fedbiad": {"rows": rows}}})  # fmt: skip

        for good in (*ROW_KINDS, "embedding-columns+gates-hh+output-columns"):
            plan(good)
        with pytest.raises(PlanError) as caught:
            plan("units+gate-hh")
        assert caught.value.problems == [
            f"methods.fedbiad.rows: input should be one of {', '.join(ROW_KINDS)}, or several joined by '+' "
            "(did you mean 'gates-hh'?), not \"units+gate-hh\""
        ]
        for bad in (3, "", "units+"):
            with pytest.raises(PlanError, match=r"methods\.fedbiad\.rows: input should be "):
                plan(bad)


class TestSizes:
    """The paper's printed sizes, p = 0.5: 10,000 words (PTB, Reddit) and 28,911 (WikiText-2)."""

    @pytest.mark.parametrize(
        ("rows", "sizes"),
        [
            ("output-columns", ("23.8", "57.9")),  # FedDrop
            ("output-columns+gates-ih", ("22.4", "56.5")),  # AFD
            ("paper", ("16.4", "39.1")),  # FedBIAD
        ],
    )
    def test_upload(self, rows: str, sizes: tuple[str, str]) -> None:
        for words, size in zip((10_000, 28_911), sizes, strict=True):
            layout = LSTM(words).layout(rows)
            pattern = patterns.draw(layout, 0.5, np.random.default_rng(0).random((1, layout.num_rows)))
            values = 4 * int(layout.kept_weights(pattern)[0])
            for labels in (0, layout.num_rows / 8):
                assert f"{(values + labels) / 1e6:.1f}" == size

    def test_whole(self) -> None:
        assert LSTM(10_000).layout("paper").num_weights == 7_454_800
        sizes = [4 * LSTM(words).layout("paper").num_weights / 1e6 for words in (10_000, 28_911)]
        assert [f"{size:.1f}" for size in sizes] == ["29.8", "75.3"]

    def test_labels_of_the_papers_pattern(self) -> None:
        layout = LSTM(10_000).layout("paper")
        assert [group.size for group in layout.groups] == [300, 1200, 1200, 300]


@dataclass(frozen=True)
class Options:
    scale: float = 1.0
    weight_decay: float = 0.0
    dropout: float = 0.0
    noise: float = 0.0
    clip: float | None = None
    carry: bool = False


ALL = Options(scale=1 / (1 - RATE), dropout=0.3, noise=1e-2, clip=0.4, carry=True)
DECAY = Options(scale=1 / (1 - RATE), weight_decay=0.05, dropout=0.3)
STEPPED = LSTM(7, embedding=6, hidden=5, layers=2)


def pattern_of(layout: Layout, change: int) -> Pattern:
    luck = [np.random.default_rng((change, client)).random(layout.num_rows) for client in range(CLIENTS)]
    drawn = [patterns.draw(layout, RATE, own) for own in luck]
    return np.stack(drawn)


def make(form: type[LocalStep], rows: str, options: Options) -> LocalStep:
    layout = STEPPED.layout(rows)
    return form(
        STEPPED, layout, block_params(STEPPED), pattern_of(layout, 0), scale=options.scale,
        noise=Noise(options.noise, [11, 22, 33]), learning_rate=0.5, weight_decay=options.weight_decay,
        clip=options.clip,
    )  # fmt: skip


def train(step: LocalStep, options: Options) -> Iterator[Tensor]:
    """Losses [clients] of 20 steps, before each also of another batch; the pattern changes after every third."""
    weight = (tokens(7, CLIENTS, BATCH * TIME) > 1).double()
    for v in range(20):
        theta = step.sample_weights(v)
        other = Batch(tokens(500 + v, CLIENTS, BATCH, TIME), tokens(600 + v, CLIENTS, BATCH * TIME), weight)
        yield step.loss(theta, other)
        follows = torch.tensor([v > 0, v % 2 > 0, v % 4 > 0]) if options.carry else None
        batch = Batch(tokens(v, CLIENTS, BATCH, TIME), tokens(100 + v, CLIENTS, BATCH * TIME), continues=follows)
        masks = Cohort(0, 1, (0, 1, 2)).unit_masks(STEPPED.dropout_sites, BATCH, options.dropout, v)
        yield step.update(theta, batch, masks)
        if v % 3 == 2:
            step.set_pattern(pattern_of(step.layout, v))


SETS = [{kind for kind, taken in zip(KINDS, choice, strict=True) if taken} for choice in product((0, 1), repeat=7)][1:]


def unions() -> list[str]:
    """Every set of kinds that a layout allows."""
    found = []
    for chosen in SETS:
        rows = "+".join(sorted(chosen))
        with contextlib.suppress(LayoutError):
            STEPPED.layout(rows)
            found.append(rows)
    return found


class TestSteps:
    @pytest.mark.parametrize(
        ("rows", "options"),
        [
            *[(rows, ALL) for rows in unions()],
            *[(rows, Options()) for rows in KINDS],
            ("units-and-classes", DECAY),
        ],
    )
    def test_masked_is_compact(self, rows: str, options: Options) -> None:
        masked, compact = make(MaskedStep, rows, options), make(CompactStep, rows, options)
        for loss, same in zip(train(masked, options), train(compact, options), strict=True):
            torch.testing.assert_close(loss, same, rtol=1e-12, atol=1e-12)
        begin, same_u = block_params(STEPPED), compact.trained()
        for name, value in masked.trained().items():
            torch.testing.assert_close(value, same_u[name], rtol=1e-12, atol=1e-12)
            assert not torch.allclose(value, begin[name], atol=1e-4)  # it did train

    def test_every_union_was_compared(self) -> None:
        """Of the 127 sets of kinds, those in which no axis belongs to two."""
        apart = {"lstm-units": {"gates-ih", "gates-hh", "output-columns"}}
        assert len(unions()) == 71 == sum(not any(one in s and s & other for one, other in apart.items()) for s in SETS)

    def test_compact_computes_with_the_kept_rows_only(self) -> None:
        theta = make(CompactStep, "embedding-columns+units-and-classes", ALL).sample_weights(0)
        # 0.6 x 6 = 3.6 columns, 0.6 x 5 = 3 units, 0.6 x 7 = 4.2 words
        assert [tuple(theta[f"lstm1.{part}"].shape[1:]) for part in ("weight_ih", "weight_hh", "bias_hh")] == [
            (12, 4), (12, 3), (12,),
        ]  # fmt: skip
        assert (theta["embedding.weight"].shape[1:], theta["output.weight"].shape[1:]) == ((7, 4), (4, 3))

    @pytest.mark.parametrize("kind", KINDS)
    def test_dropped_rows_keep_their_value(self, kind: str) -> None:
        step = make(MaskedStep, kind, ALL)
        before, pattern = block_params(STEPPED), pattern_of(step.layout, 0)
        batch = Batch(tokens(0, CLIENTS, BATCH, TIME), tokens(1, CLIENTS, BATCH * TIME))
        step.update(step.sample_weights(0), batch, {})
        for name, mask in full_masks(step.layout, pattern, 1.0).items():
            after = step.trained()[name]
            assert torch.equal(after[mask == 0], before[name][mask == 0])
            assert not torch.equal(after[mask == 1], before[name][mask == 1])
