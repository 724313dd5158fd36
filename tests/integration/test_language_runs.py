"""Next-word prediction from a plan to a result: every method, real bytes, exact resume, examples."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbiad import plan as plans
from fedbiad.compressors import COMPRESSORS
from fedbiad.data import text
from fedbiad.data.language import LanguageData
from fedbiad.errors import DataError, LayoutError
from fedbiad.experiment import build, load_federated
from fedbiad.methods import METHODS
from fedbiad.plan import Plan
from fedbiad.rundir import RunDir
from fedbiad.runner import Stopped, resume, start
from running import nothing, outcome, stop_after

SMALL = {
    "rounds": "3", "data.vocabulary": "60", "data.bptt": "6", "model.embedding": "10", "model.hidden": "[8]",
    "training.selected": "3", "training.iterations": "8", "training.batch": "2", "evaluate_every": "1",
    "methods.fedbiad.stage_boundary": "2", "methods.fedbiad.interval": "2", "training.learning_rate": "5.0",
}  # fmt: skip


def missing() -> str | None:
    try:
        text.load("ptb", words=60)
    except DataError as error:
        return str(error)
    return None


pytestmark = pytest.mark.skipif(missing() is not None, reason=f"no Penn Treebank here: {missing()}")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def data() -> LanguageData:
    """Penn Treebank with fewer tokens to judge on, so that a round takes no time."""
    found = load_federated(small())
    assert isinstance(found, LanguageData)
    return replace(found, eval_tokens=found.eval_tokens[:4000])


def small(method: str = "fedavg", **settings: str) -> Plan:
    return plans.load("ptb", {**SMALL, "method": method, **settings})


def run(plan: Plan, data: LanguageData) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    experiment = build(plan, data)
    records, model = [], {}
    for record, ended in experiment.run(experiment.initial()):
        del record["seconds"]
        records.append(record)
        model = {name: value.numpy().tobytes() for name, value in ended.u.items()}
    return records, model


@pytest.mark.parametrize("method", [*METHODS, "fedbiad+dgc", "fedmp:paper", "fjord:paper", "heterofl:paper"])
def test_every_method_runs(method: str, data: LanguageData) -> None:
    records, _ = run(small(method), data)
    assert [record["round"] for record in records] == [1, 2, 3]
    last = records[-1]
    assert last["failed"] == []
    assert 0 < last["top1"] <= last["accuracy"] <= 1  # among the three likeliest
    assert last["loss"] < math.log(60)  # better than knowing nothing
    assert last["upload"]["encoded"] > 0


@pytest.mark.parametrize("method", ["fedbiad", "feddrop+stc", *COMPRESSORS])
def test_real_bytes_change_nothing(method: str, data: LanguageData) -> None:
    room = {"compressors.evidence.budget": "0.2"}  # of a few thousand weights
    assert run(small(method, **room), data) == run(small(method, **room, **{"engine.wire": "true"}), data)


@pytest.mark.parametrize("rows", ["paper", "units", "output-words", "embedding-words+gates-ih", "weight-rows"])
@pytest.mark.parametrize("carry", ["true", "false"])
def test_masked_is_compact(rows: str, carry: str, data: LanguageData) -> None:
    """Up to rounding, through whole rounds in which patterns change; counts are the same."""
    losses = []
    for form in ("masked", "compact"):
        plan = small("fedbiad", **{"engine.form": form, "methods.fedbiad.rows": rows, "data.carry": carry})
        carried = data if carry == "false" else _carrying(data)
        records, _ = run(plan, carried)
        losses.append([record["train_loss"] for record in records])
        assert any(record["resampled_share"] for record in records)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def _carrying(data: LanguageData) -> LanguageData:
    return replace(data, carry=True)


def test_a_carried_state_matters(data: LanguageData) -> None:
    """The same windows with and without it give other losses."""
    assert run(small(), data)[0] != run(small(), _carrying(data))[0]


@pytest.mark.parametrize("method", ["fedavg", "fedbiad+dgc", "afd"])
def test_stopped_and_resumed(tmp_path: Path, method: str) -> None:
    plan = small(method, **{"data.carry": "true", "training.dropout": "0.2"})
    start(plan, tmp_path / "whole", nothing)
    with pytest.raises(Stopped):
        start(plan, tmp_path / "parts", nothing, stop_after(1))
    resume(tmp_path / "parts", nothing)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_a_summary_has_examples_and_perplexity(tmp_path: Path) -> None:
    start(small(), tmp_path / "run", nothing)
    summary = RunDir(tmp_path / "run").summary()
    assert summary is not None
    assert summary["perplexity"] == pytest.approx(math.exp(summary["loss"]))
    vocabulary = text.load("ptb", words=60).vocabulary
    assert len(summary["examples"]) == 8
    for example in summary["examples"]:
        assert {example["truth"], *example["context"]} <= set(vocabulary)
        for stage in ("before", "after"):
            chances = [chance for _, chance in example[stage]]
            assert len(chances) == 3
            assert chances == sorted(chances, reverse=True)
    assert any(example["before"] != example["after"] for example in summary["examples"])


def test_clients_without_a_window_are_named(tmp_path: Path) -> None:
    """5,000 clients have eight lines each; some of them not the 101 tokens of a window."""
    warnings: list[str] = []
    plan = small(**{"data.clients": "5000", "data.bptt": "100", "rounds": "1", "training.iterations": "1"})
    start(plan, tmp_path / "run", nothing, warn=warnings.append)
    assert warnings == ["3 clients have less text than one window and are left out: 2866, 3969, 4965"]
    assert RunDir(tmp_path / "run").summary() is not None


def test_word_rows_need_words() -> None:
    with pytest.raises(LayoutError, match="rows = 'embedding-words' is not known to MLP; it has units"):
        build(plans.load("digits", {"methods.fedbiad.rows": "embedding-words"}))
