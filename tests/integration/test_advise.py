"""`fedbiad advise`: what it says of finished runs, that it comes true, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from fedbiad import plan as plans
from fedbiad.advice import Advice, Prospect
from fedbiad.advise import BUDGETS, advise
from fedbiad.data import load as load_data
from fedbiad.data import text
from fedbiad.errors import DataError, RunDirError
from fedbiad.methods import METHODS
from fedbiad.rundir import RunDir
from fedbiad.runner import Stopped, start
from running import checkpoints, fedbiad, nothing, settings, small_plan, snapshot, stop_after

SMALL_TEXT = {
    "rounds": "2", "data.vocabulary": "60", "data.bptt": "6", "model.embedding": "10", "model.hidden": "[8]",
    "training.selected": "3", "training.iterations": "8", "training.batch": "2",
}  # fmt: skip
SMALL_BUDGETS = (0.05, 0.1, 0.3)
"""A thousand weights are too few for the usual ones."""


def finished(path: Path, method: str = "fedavg", **changes: object) -> Path:
    start(small_plan(method, **changes), path, nothing)
    return path


def at(advice: Advice, budget: float) -> Prospect:
    (found,) = [one for one in advice.prospects if one.budget == budget]
    return found


def known(value: float | None) -> float:
    assert value is not None
    return value


# ---------------------------------------------------------------------- what it says


@pytest.mark.parametrize("method", [*METHODS, "fedbiad+dgc", "signsgd", "feddrop+evidence", "fjord:paper"])
def test_every_method_can_be_advised(tmp_path: Path, method: str) -> None:
    path = finished(tmp_path / "run", method, rounds=3)
    before = snapshot(path)
    advice = advise(path, SMALL_BUDGETS)
    assert snapshot(path) == before
    assert (advice.round, advice.clients, advice.selected, advice.registered) == (3, 10, 4, 12)
    assert advice.noise > 0
    assert advice.between > 0
    assert advice.within > 0
    variances = [known(one.variance) for one in advice.prospects]
    assert [one.budget for one in advice.prospects] == [0.3, 0.1, 0.05]
    assert variances == sorted(variances)
    assert known(at(advice, 0.1).bytes) > known(at(advice, 0.05).bytes)
    for one in advice.prospects:
        assert known(one.of_noise) == pytest.approx(known(one.variance) / advice.noise)
        assert known(one.of_update) == pytest.approx(known(one.variance) / advice.update)
        assert 0 < known(one.uncertainty) < 1


def test_the_smallest_budget_that_adds_little_enough(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    shares = [known(one.of_noise) for one in advise(path, SMALL_BUDGETS).prospects]
    assert shares == sorted(shares)
    for i, budget in enumerate((0.3, 0.1, 0.05)):
        assert advise(path, SMALL_BUDGETS, share=1.001 * shares[i]).pick == budget
    assert advise(path, SMALL_BUDGETS, share=0.999 * shares[0]).pick is None


def test_all_clients_selected_leaves_the_noise_of_their_draws(tmp_path: Path) -> None:
    training = {**plans.to_dict(small_plan())["training"], "selected": 12}
    advice = advise(finished(tmp_path / "run", training=training), SMALL_BUDGETS)
    assert advice.clients == 12
    assert advice.noise == pytest.approx(advice.within / 12)


def test_a_floor_costs_variance(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    free, floored = (at(advise(path, [0.03], floor=floor), 0.03) for floor in (0.0, 0.08))
    assert known(free.bytes) == pytest.approx(known(floored.bytes), rel=0.05)
    assert 1.1 * known(free.variance) < known(floored.variance) < 10 * known(free.variance)
    assert "a floor of 0.4 sends" in str(at(advise(path, [0.02], floor=0.4), 0.02).obstacle)


def test_a_budget_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    advice = advise(finished(tmp_path / "run"), (0.1, 0.0005))
    assert "is below the" in str(at(advice, 0.0005).obstacle)
    assert at(advice, 0.0005).bytes is None
    assert at(advice, 0.1).obstacle is None


def test_language(tmp_path: Path) -> None:
    try:
        text.load("ptb", words=60)
    except DataError as error:
        pytest.skip(f"no Penn Treebank here: {error}")
    start(plans.load("ptb", {**SMALL_TEXT, "method": "fedbiad"}), tmp_path / "run", nothing)
    advice = advise(tmp_path / "run", SMALL_BUDGETS, clients=3)
    assert advice.clients == 3
    assert 0 < known(at(advice, 0.1).variance) < known(at(advice, 0.05).variance)


# ---------------------------------------------------------------------- that it comes true


def test_messages_know_their_error(tmp_path: Path) -> None:
    """A record tells the mean squared distance of what arrived from what was learned, if they differ."""
    for method, told in (("fedavg", False), ("signsgd", False), ("evidence", True), ("fedpaq", True)):
        records = RunDir(finished(tmp_path / method, method)).records()
        assert [("message_error" in record) for record in records] == [told] * 5
        assert not told or all(record["message_error"] > 0 for record in records)


def compare_with_a_run(tmp_path: Path, plan: plans.Plan, rounds: int, budget: float, last: int) -> tuple[float, float]:
    """Predicted after `rounds` of FedAvg, over what a run with the budget shows: in the next round, in some more."""
    start(plan.replace(method="fedavg", rounds=rounds), tmp_path / "fedavg", nothing)
    table = {"evidence": {"budget": budget}}
    start(plan.replace(method="evidence", rounds=rounds + last, compressors=table), tmp_path / "evidence", nothing)
    shown = [record["message_error"] for record in RunDir(tmp_path / "evidence").records()[-last:]]
    predicted = known(at(advise(tmp_path / "fedavg", [budget]), budget).added_variance)
    return predicted / shown[0], predicted / float(np.mean(shown))


def test_what_fashion_mnist_shows_at_half_a_percent(tmp_path: Path) -> None:
    """Predicted by formula from a run that sent everything; shown by the messages of a run that sent 0.5 %."""
    try:
        load_data("fmnist")
    except DataError as error:
        pytest.skip(f"no Fashion-MNIST here: {error}")
    tuned = {"training.learning_rate": "0.12", "training.server_step": "2.0", "evaluate_every": "50"}
    plan = plans.load("fmnist", {**tuned, "evaluate_last": "1"})
    assert compare_with_a_run(tmp_path, plan, 6, 0.005, 2) == pytest.approx((1, 1), abs=0.1)


# ---------------------------------------------------------------------- the command


def test_the_command_shows_a_table_and_which_to_take(tmp_path: Path) -> None:
    path = str(finished(tmp_path / "run", "fedbiad+stc"))
    ended = fedbiad("advise", path, "--budgets", "0.3, 0.07", "--share", "1e9", "--clients", "10")
    assert (ended.code, ended.err) == (0, "")
    assert "fedbiad after round 5: what a budget of `evidence` would cost" in ended.out
    assert "0.0005: a budget of" in ended.out
    assert "are selected and what they draw. Looked at 10 clients" in " ".join(ended.out.split())
    assert "--set method=fedbiad+evidence --set compressors.evidence.budget=0.01" in ended.out  # 0.005 does not fit
    assert "0.07" in ended.out
    none = fedbiad("advise", path, "--share", "1e-9")
    assert (none.code, "No budget here adds at most 1e-09 times the sampling noise" in none.out) == (0, True)


def test_the_command_prints_json(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    ended = fedbiad("advise", str(path), "--json", "--clients", "5", "--budgets", "0.3")
    told = json.loads(ended.out)
    expected = dataclasses.asdict(advise(path, (*BUDGETS, 0.3), clients=5))
    assert told == json.loads(json.dumps(expected))
    assert len(told["prospects"]) == len(BUDGETS) + 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--share", "0"], "0 is not above 0"),
        (["--share", "nan"], "nan is not above 0"),
        (["--budgets", "a"], "'a' is not a comma-separated list of numbers"),
        (["--budgets", "0.1,2"], "2 is not above 0 and at most 1"),
        (["--clients", "1"], "x>=2"),
        (["--clients", "13"], "13 clients cannot be compared; there are 12"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, arguments: list[str], said: str) -> None:
    path = str(finished(tmp_path / "run", rounds=1))
    ended = fedbiad("advise", path, *arguments)
    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""


def test_runs_that_cannot_be_advised(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="holds no run"):
        advise(tmp_path)
    with pytest.raises(Stopped):
        start(small_plan("fedavg"), tmp_path / "part", nothing, stop_after(2))
    with pytest.raises(RunDirError, match=r"part is not finished; `fedbiad resume .*part` goes on"):
        advise(tmp_path / "part")
    alone = ["run", "digits", *settings(**{"data.clients": "1", "training.selected": "1", "rounds": "1"}), "-q"]
    assert fedbiad(*alone, "--out", str(tmp_path / "alone")).code == 0
    ended = fedbiad("advise", str(tmp_path / "alone"))
    assert (ended.code, "the run has one client" in ended.err) == (2, True)


def test_a_damaged_checkpoint_is_passed_over_and_none_at_all_is_an_error(tmp_path: Path) -> None:
    path = finished(tmp_path / "run")
    earlier, newest = checkpoints(path)
    newest.write_bytes(newest.read_bytes()[:-5])
    warnings: list[str] = []
    assert advise(path, SMALL_BUDGETS, warn=warnings.append).round == 4
    assert warnings == [f"checkpoint {newest} is damaged and passed over; what follows is of round 4"]
    earlier.unlink()
    with pytest.raises(RunDirError, match=r"every checkpoint of .* is damaged, so there is no model"):
        advise(path, SMALL_BUDGETS)
    newest.unlink()
    with pytest.raises(RunDirError, match=r"every checkpoint of .* is missing"):
        advise(path, SMALL_BUDGETS)
