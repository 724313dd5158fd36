"""The command: what it prints, how it ends, and that bad input writes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from fedbiad import compare
from fedbiad.compare import Cell
from fedbiad.rundir import RunDir
from running import Ended, fedbiad, outcome, settings, snapshot


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, no data but the digits, and lines wide enough for the tables."""
    for variable, name in (("FEDBIAD_DATA", "data"), ("XDG_CACHE_HOME", "cache")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("COLUMNS", "160")
    path = tmp_path / "here"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def run(*arguments: str, **changes: str) -> Ended:
    """`fedbiad run` with the small plan."""
    return fedbiad("run", "digits", *settings(**changes), *arguments)


class TestRun:
    def test_runs_and_says_what_came_out_and_where(self, here: Path) -> None:
        ended = run("--out", "mine", rounds="2")
        summary = json.loads((here / "mine" / "summary.json").read_text())
        assert (ended.code, summary["rounds"]) == (0, 2)
        assert ended.out.startswith(f"accuracy {summary['accuracy']:.2%} (mean of the last 2 rounds ")
        assert ended.out.endswith("per client and round  in mine\n")

    def test_progress_in_plain_lines(self) -> None:
        ended = run(rounds="3")
        lines = [line for line in ended.err.splitlines() if "round" in line and "warning" not in line]
        assert len(lines) == 3
        for r, line in enumerate(lines, start=1):
            figures = rf"digits fedbiad  round {r}/3  acc [\d.]+%  loss [\d.]+  up [\d.]+ kB  .*left \d+:\d\d"
            assert re.fullmatch(figures, line)
        assert "\x1b" not in ended.err

    def test_quiet_prints_the_result_only(self) -> None:
        ended = run("--quiet")
        assert ended.err == ""
        assert len(ended.out.splitlines()) == 1

    def test_without_out_every_run_has_its_own_directory(self, here: Path) -> None:
        for name in ("digits-fedavg-seed4", "digits-fedavg-seed4-2"):
            ended = run("-q", rounds="1", method="fedavg", seed="4")
            assert ended.out.endswith(f" in runs/{name}\n")
            assert (here / "runs" / name / "summary.json").is_file()

    def test_warnings_come_first_and_do_not_stop_it(self) -> None:
        ended = run("-q", rounds="2")
        assert (ended.code, ended.err) == (0, "warning: stage two never starts: rounds = 2, stage_boundary = 2\n")

    def test_the_plan_kept_has_the_settings(self, here: Path) -> None:
        run("--out", "mine", "-q", rounds="1", method="feddrop", dropout_rate="0.4")
        plan = RunDir(here / "mine").plan()
        assert (plan.method, plan.rounds, plan.dropout_rate) == ("feddrop", 1, 0.4)

    def test_a_finished_run_resumed_shows_its_result_again(self, here: Path) -> None:
        first = run("--out", "mine", "-q", rounds="1")
        before = snapshot(here)
        again = fedbiad("resume", "mine")
        assert (again.code, again.out) == (0, first.out)
        assert snapshot(here) == before


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "hint"),
        [
            (["run", "digit"], "did you mean 'digits'?"),
            (["run", "mine.toml"], "cannot be read"),
            (["run", "digits", "--set", "roundz=3"], "unknown key roundz, did you mean rounds?"),
            (["run", "digits", "--set", "method=fedbiat"], "unknown method 'fedbiat' (did you mean 'fedbiad'?)"),
            (["run", "digits", "--set", "rounds"], "'rounds' is not KEY=VALUE"),
            (["run", "digits", "--set", "rounds=0"], "rounds: input should be greater than or equal to 1"),
            (["run", "digits", "--set", "rounds=2020-01-01"], "rounds"),
            (["run", "digits", "--set", "data.clients=5000"], "use at most 1500 clients"),
            (["run", "mnist"], "fedbiad data fetch mnist"),
            (["run", "fmnist", "--out", "new"], "fedbiad data fetch fmnist"),
            (["run"], "Missing argument 'PLAN'"),
            (["run", "digits", "--rounds", "3"], "No such option"),
            (["walk"], "No such command 'walk'"),
            (["resume", "nowhere"], "holds no run"),
            (["describe", "mnist"], "fedbiad data fetch mnist"),
            (["theory", "digit"], "did you mean 'digits'?"),
            (["compare", "digits", "--methods", "fedavg,fedbiat"], "did you mean 'fedbiad'?"),
            (["compare", "digits", "--methods", ","], "name at least one method"),
            (["compare", "digits", "--seeds", "one"], "'one' is not a comma-separated list of whole numbers"),
            (["compare", "digits", "--seeds", "-1"], "seed: input should be greater than or equal to 0"),
            (["compare", "digits", "--set", "training.rounds=3"], "unknown key training.rounds, did you mean "),
            (["compare", "digits", "--jobs", "0"], "x>=1"),
            (["data", "fetch", "imagenet"], "choose one of mnist, fmnist, digits"),
        ],
    )  # fmt: skip
    def test_ends_with_two_says_what_to_do_and_writes_nothing(
        self, tmp_path: Path, arguments: list[str], hint: str
    ) -> None:
        before = snapshot(tmp_path)
        ended = fedbiad(*arguments)
        assert ended.code == 2
        assert hint in ended.err
        assert "Traceback" not in ended.err
        assert ended.out == ""
        assert snapshot(tmp_path) == before

    def test_compare_without_data_ends_with_two(self) -> None:
        ended = fedbiad("compare", "mnist", "--methods", "fedavg", "-q")
        assert ended.code == 2
        assert "fedbiad data fetch mnist" in ended.err

    @pytest.mark.parametrize("out", ["foreign", "a-file", "another-run", "a-file/run"])
    def test_a_directory_that_is_taken(self, here: Path, out: str) -> None:
        (here / "foreign").mkdir()
        (here / "foreign" / "thesis.tex").write_text("mine")
        (here / "a-file").write_text("mine")
        run("--out", "another-run", "-q", rounds="1")
        before = snapshot(here)
        ended = run("--out", out, "-q")
        assert ended.code == 2
        assert f"{out.partition('/')[0]} " in ended.err
        assert "choose another --out" in ended.err
        assert snapshot(here) == before

    def test_all_problems_are_shown(self) -> None:
        ended = run(rounds="few", **{"training.batch": "0", "trainin.x": "1"})
        assert ended.err.startswith("error: digits: 3 problems\n  - ")
        assert all(key in ended.err for key in ("rounds: ", "training.batch: ", "unknown key trainin, did you mean"))

    def test_numbers_out_of_bounds_blame_the_learning_rate(self) -> None:
        ended = run("-q", "--out", "mine", **{"training.learning_rate": "1e30"})
        assert ended.code == 2
        assert ended.err.startswith(
            "error: round 1: all 4 clients had to be left out (the loss or a weight is not finite)"
        )
        assert "lower training.learning_rate" in ended.err


def test_ctrl_c_ends_after_a_round_and_resume_completes(here: Path) -> None:
    arguments = settings(rounds="100", method="fedavg")
    command = [sys.executable, "-m", "fedbiad", "run", "digits", *arguments, "--out", "mine"]
    rounds = here / "mine" / "rounds.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (rounds.exists() and rounds.read_bytes().count(b"\n") >= 2):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    done = len(RunDir(here / "mine").records())
    assert process.returncode == 130
    assert 2 <= done < 100
    assert "ending after this round (again to stop at once)" in err
    assert err.endswith(f"stopped after round {done}; go on with `fedbiad resume mine`\n")
    assert (out, "Traceback" in err) == ("", False)
    ended = fedbiad("resume", "mine")
    assert ended.code == 0
    assert f"round {done + 1}/100" in ended.err
    assert f"round {done}/100" not in ended.err
    run("--out", "undisturbed", "-q", rounds="100", method="fedavg")
    assert outcome(here / "mine") == outcome(here / "undisturbed")


def test_a_second_ctrl_c_ends_at_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunDir, "append", twice)
    ended = run("--out", "mine", rounds="3")
    assert ended.code == 130
    assert ended.err.endswith("interrupted\n")


def test_ctrl_c_in_a_comparison_ends_its_runs_without_a_traceback(here: Path) -> None:
    """The terminal signals the whole process group, also while a run is still being imported."""
    command = [
        sys.executable,
        "-m",
        "fedbiad",
        "compare",
        "digits",
        *settings(rounds="400"),
        "--out",
        "all",
        "--jobs",
        "2",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        while process.poll() is None and not (here / "all").exists():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "0 of 3 runs finished; the same command goes on" in err
    assert (out, "Traceback" in err) == ("", False)


class TestCompare:
    def test_runs_reuses_goes_on_and_refuses_another_plan(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        launched: list[str] = []
        launch = compare._launch

        def counted(cell: Cell, scratch: Path) -> Any:
            launched.append(cell.path.name)
            return launch(cell, scratch)

        monkeypatch.setattr(compare, "_launch", counted)
        arguments = ["compare", "digits", "--methods", "fedavg,fedbiad", "--seeds", "0,1", "--rounds", "2",
                     "--jobs", "2", "--out", "side-by-side", *settings(rounds="9")]  # fmt: skip

        first = fedbiad(*arguments, "--json")
        assert first.code == 0
        assert sorted(launched) == ["fedavg-seed0", "fedavg-seed1", "fedbiad-seed0", "fedbiad-seed1"]
        found = json.loads(first.out)
        assert found["plan"]["rounds"] == 2
        assert [(row["label"], row["seeds"]) for row in found["rows"]] == [("fedavg", [0, 1]), ("fedbiad", [0, 1])]
        for row in found["rows"]:
            runs = [RunDir(here / "side-by-side" / f"{row['label']}-seed{seed}") for seed in (0, 1)]
            assert [own.plan().seed for own in runs] == [0, 1]
            summaries = [own.summary() or {} for own in runs]
            accuracies = [summary["accuracy"] for summary in summaries]
            assert row["accuracy_values"] == accuracies
            assert row["accuracy"] == pytest.approx(mean(accuracies))
            assert row["accuracy_std"] == pytest.approx(stdev(accuracies))
            for count in ("paper", "encoded"):
                assert row["total_upload"][count] == mean(summary["total_upload"][count] for summary in summaries)
        fedavg, other = found["rows"]
        assert other["upload_per_client"]["encoded"] < fedavg["upload_per_client"]["encoded"]

        # a run that was not finished goes on; the others are taken as they are
        launched.clear()
        (here / "side-by-side" / "fedavg-seed1" / "summary.json").unlink()
        second = fedbiad(*arguments, "--json")
        assert (second.code, second.out) == (0, first.out)
        assert "3 of 4 runs were finished before, in side-by-side" in second.err
        assert launched == ["fedavg-seed1"]

        launched.clear()
        table = fedbiad(*arguments)
        assert table.code == 0
        assert re.search(r"Verdict: fedbiad uploads \d\d% of fedavg's bytes at [+-][\d.]+ points \((within|beyond)",
                         table.out)  # fmt: skip

        before = snapshot(here)
        refused = fedbiad(*arguments, "--set", "training.learning_rate=0.2", "--methods", "feddrop,fedavg")
        assert refused.code == 2
        assert "fedavg-seed0 holds a run of another plan (it differs in training); choose another --out" in refused.err
        assert snapshot(here) == before
        assert launched == []

    def test_how_the_work_is_done_makes_no_other_plan(self, here: Path) -> None:
        run("--out", "c/fedavg-seed0", "-q", rounds="1", method="fedavg")
        arguments = ["compare", "digits", "--methods", "fedavg", "--rounds", "1", "--out", "c", *settings()]
        assert fedbiad(*arguments, "--set", "engine.block=3", "--json").code == 0

    def test_an_empty_table_of_options_makes_no_other_plan(self, here: Path) -> None:
        plan = here / "mine.toml"
        plan.write_text(
            '[data]\nname="digits"\nclients=9\n[training]\nlearning_rate=0.1\nselected=3\n[methods.fedavg]\n'
        )
        fedbiad("run", "mine.toml", "-q", "--set", "rounds=1", "--set", "method=fedavg", "--out", "c/fedavg-seed0")
        ended = fedbiad("compare", "mine.toml", "--methods", "fedavg", "--rounds", "1", "--out", "c", "--json")
        assert (ended.code, ended.err) == (0, "1 of 1 runs were finished before, in c\n")

    def test_a_run_that_fails_is_named_with_its_message(self) -> None:
        ended = fedbiad("compare", "digits", "--methods", "fedavg", "--out", "c",
                        *settings(**{"training.learning_rate": "1e30"}))  # fmt: skip
        assert ended.code == 2
        assert "fedavg seed 0 failed:\nerror: round 1: " in ended.err
        assert "lower training.learning_rate" in ended.err


class TestShow:
    def test_describe(self, here: Path) -> None:
        ended = fedbiad("describe", "digits")
        assert (ended.code, ended.err) == (0, "")
        assert "50 clients" in ended.out
        assert "judged on 297 test samples; 10 clients a round, 30 rounds" in ended.out
        assert "2,410 weights = 9.6 kB" in ended.out
        assert "J = 32 labels" in ended.out
        # 26 rows of 64 + 1 + 10 weights, 10 biases, 32 bits each, and 32 labels of one bit: 7844 bytes
        for row in (r"fedavg .* 32 of 32 .* 9\.6 kB .* 100%", r"fedbiad .* 26 of 32 .* 7\.8 kB .* 81%"):
            assert re.search(row, ended.out)
        assert snapshot(here) == {}

    def test_describe_says_what_a_row_is(self) -> None:
        assert "layer1.weight[j] + layer1.bias[j] + layer2.weight[:, j]" in fedbiad("describe", "digits").out

    def test_describe_says_over_whom_the_mean_of_each_group_is(self) -> None:
        def means(*changes: str) -> dict[str, str]:
            wanted = [part for change in changes for part in ("--set", change)]
            lines = fedbiad("describe", "ptb", *wanted).out.splitlines()
            cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
            return {row[0]: row[3] for row in cells if len(row) == 4 and row[0]}

        narrow = "methods.fedbiad.rows=embedding-words+output-columns"
        sent = dict.fromkeys(("embedding-words", "output-columns", "all else"), "the clients that sent it")
        assert means(narrow) == sent
        own = dict.fromkeys(("embedding-words", "words"), "the clients with the word that sent it")
        assert means(narrow, "training.word_mean=present") == {**sent, **own}
        old = means(narrow, "methods.fedbiad.aggregation=zeros", "training.word_mean=present")
        assert old["all else"] == "all clients, 0 where not sent"
        assert old["words"] == "all clients with the word, 0 where not sent"
        assert "at most:" in fedbiad("describe", "ptb", "--set", "training.word_mean=present").out

    def test_describe_warns(self) -> None:
        ended = fedbiad("describe", "digits", "--set", "rounds=3")
        assert "warning: stage two never starts: rounds = 3, stage_boundary = 25" in ended.out

    def test_theory(self, here: Path) -> None:
        ended = fedbiad("theory", "digits", "--set", "rounds=12")
        assert (ended.code, ended.err) == (0, "")
        assert "d = 64, D = 32, L = 2, J = 42, p = 0.2" in ended.out
        rounds = [int(found) for found in re.findall(r"^│ +(\d+) │", ended.out, re.MULTILINE)]
        assert rounds == [1, 2, 5, 10, 12]
        bounds = [float(found.replace(",", "")) for found in re.findall(r"│ +([\d.,]+) │$", ended.out, re.MULTILINE)]
        assert len(bounds) == 5
        assert bounds == sorted(bounds, reverse=True)
        assert snapshot(here) == {}

    def test_theory_in_eighty_columns_cuts_no_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        ended = fedbiad("theory", "digits", "--set", "rounds=2")
        assert not re.search(r"\d…", ended.out)

    def test_data_list(self, tmp_path: Path) -> None:
        before = snapshot(tmp_path)
        ended = fedbiad("data", "list")
        assert (ended.code, ended.err) == (0, "")
        assert [line.split(maxsplit=1) for line in ended.out.splitlines()] == [
            ["mnist", "missing: fedbiad data fetch mnist"],
            ["fmnist", "missing: fedbiad data fetch fmnist"],
            ["digits", "ready"],
            *[[name, f"missing: fedbiad data fetch {name}"] for name in ("ptb", "wikitext2", "reddit")],
        ]
        assert snapshot(tmp_path) == before

    def test_help(self) -> None:
        ended = fedbiad("--help")
        assert ended.code == 0
        assert all(
            command in ended.out
            for command in ("run", "resume", "compare", "describe", "theory", "data", "report", "reproduce", "results")
        )
