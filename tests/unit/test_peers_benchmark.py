"""The pure parts of the benchmark against other simulators: reading a run, choosing settings, agreement, the table."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


def module(name: str) -> ModuleType:
    """A module of the benchmark."""
    spec = importlib.util.spec_from_file_location(f"peers_{name}", PEERS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # a dataclass looks its own module up
    spec.loader.exec_module(found)
    return found


results, work = module("results"), module("work")


def run(peer: str, speed: float, *, epochs: int = 5, setting: tuple[int, int] = (1, 1), repeat: int = 1,
        evaluations: dict[int, float] | None = None) -> Any:  # fmt: skip
    """A run that took as long as it had to."""
    judged = {10: 0.9} if evaluations is None else evaluations
    threads, workers = setting
    return results.Run(peer, "1.0", epochs, 8, 8 / speed, speed, max(judged.values()), threads, workers, judged, repeat)


class TestReading:
    def test_a_script_s_line_is_read_among_other_output(self) -> None:
        asked = work.Arguments(Path(), 5, 8, 2, 1, 2)
        watch = work.Stopwatch(asked, evaluations={10: 0.91}, seconds=4.0)
        found = results.read_line(f"a log\n{watch.line('some', '1.2')}\nbye {{}}\n", 3, 0.5)
        assert found == results.Run("some", "1.2", 5, 8, 4.0, 2.0, 0.91, 1, 2, {10: 0.91}, 3, 0.5)

    def test_no_line_is_no_run(self) -> None:
        assert results.read_line("Traceback\nValueError\n", 1, 0.0) is None


class TestStopwatch:
    def test_judges_every_tenth_round_and_the_last(self) -> None:
        watch, answers = work.Stopwatch(work.Arguments(Path(), 1, 10, 2, 1, 1)), iter([0.1, 0.2])
        for number in range(1, 13):
            watch.round_over(number, lambda: next(answers))
        assert watch.evaluations == {10: 0.1, 12: 0.2}

    def test_times_the_rounds_after_the_warm_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = iter([100.0, 103.0])
        monkeypatch.setattr(work.time, "perf_counter", lambda: next(clock))
        watch = work.Stopwatch(work.Arguments(Path(), 1, 6, 2, 1, 1))
        for number in range(1, 9):
            watch.round_over(number, lambda: 0.5)
        assert json.loads(watch.line("some", "1"))["rounds_per_second"] == 2.0


class TestWork:
    def test_every_image_has_one_client(self) -> None:
        dealt = work.deal(60_000)
        assert dealt.shape == (work.CLIENTS, work.SAMPLES)
        assert np.array_equal(np.sort(dealt.ravel()), np.arange(60_000))
        assert np.array_equal(dealt.ravel(), np.random.default_rng(0).permutation(60_000))

    def test_first_weights_lie_where_linear_layers_draw_them(self) -> None:
        weights = work.first_weights()
        assert [value.shape for value in weights.values()] == list(work.SHAPES)
        for layer, inputs in (("layer1", 784), ("layer2", 128)):
            bound = inputs**-0.5
            values = np.concatenate([weights[f"{layer}.weight"].ravel(), weights[f"{layer}.bias"]])
            assert 0.98 * bound < abs(values).max() <= np.float32(bound)
            assert values.std() == pytest.approx(bound / 3**0.5, rel=0.05)


class TestTable:
    def test_ratio_is_ours_to_the_peer_at_the_kept_setting(self) -> None:
        runs = [
            run("ours", 9.0, setting=(2, 1)), run("ours", 12.0),
            run("slow", 1.0), run("slow", 3.0, setting=(1, 2)),
            run("ours", 10.0, repeat=2), run("slow", 4.0, setting=(1, 2), repeat=2),
            run("ours", 8.0, repeat=3), run("slow", 5.0, setting=(1, 2), repeat=3),
        ]  # fmt: skip
        ours, slow = results.rows(runs, 5)
        assert (ours.peer, ours.setting, ours.median, ours.lowest, ours.highest) == ("ours", (1, 1), 10.0, 8.0, 12.0)
        assert (slow.peer, slow.setting, slow.median, slow.ratio) == ("slow", (1, 2), 4.0, 2.5)

    def test_without_ours_there_is_no_ratio(self) -> None:
        (row,) = results.rows([run("slow", 4.0)], 5)
        assert row.ratio is None
        assert results.table([row]).splitlines()[1].split() == ["slow", "1.0", "1", "x", "1", "4.00", "4.00", "to",
                                                                "4.00", "-"]  # fmt: skip

    def test_epochs_are_kept_apart(self) -> None:
        runs = [run("ours", 10.0, epochs=1), run("ours", 2.0)]
        assert [row.median for row in results.rows(runs, 1)] == [10.0]


class TestAgreement:
    def test_compares_the_last_round_all_were_judged_in(self) -> None:
        runs = [run("ours", 9.0, evaluations={10: 0.90, 20: 0.95}), run("slow", 1.0, evaluations={10: 0.91})]
        found = results.agreement(runs, 5)
        assert (found.round, found.accuracies) == (10, {"ours": 0.90, "slow": 0.91})
        assert found.holds

    def test_a_peer_that_does_other_work_is_found_out(self) -> None:
        runs = [run("ours", 9.0, evaluations={10: 0.90}), run("slow", 1.0, evaluations={10: 0.916})]
        assert not results.agreement(runs, 5).holds

    def test_nothing_in_common_is_no_agreement(self) -> None:
        runs = [run("ours", 9.0, evaluations={20: 0.90}), run("slow", 1.0, evaluations={10: 0.90})]
        assert results.agreement(runs, 5) is None
        assert results.agreement([], 5) is None
