"""Tables of the paper: the search, the choice, the result file and the page."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from xml.etree import ElementTree

import pytest

from fedbiad import compare, results, tables
from fedbiad import reproduce as reproduction
from fedbiad.compare import Cell, lowest_loss
from fedbiad.errors import DataError, PlanError
from fedbiad.picture import frontier_picture
from fedbiad.reproduce import Reproduction, reproduce
from fedbiad.results import PRINTED, section, write_results
from fedbiad.tables import Setting, Variant
from running import fedbiad

ROOT = Path(__file__).parent.parent.parent
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of two methods on the digits, with two learning rates."""
    setting = Setting({}, rates=(0.0001, 0.1), search_rounds=2)
    rows = {"FedAvg": Variant("fedavg"), "DGC": Variant("fedbiad+dgc:paper")}
    monkeypatch.setattr(reproduction, "SETTINGS", {"digits": setting})
    monkeypatch.setattr(reproduction, "TABLES", {"table1": rows})
    monkeypatch.setattr(reproduction, "DATA", {"table1": ("digits",)})


class Here:
    """Takes the place of a process that runs the command: runs it at once in this one, which has read all modules."""

    def __init__(self, command: list[str], stderr: IO[bytes], **_: object) -> None:
        ended = fedbiad(*command[command.index("fedbiad") + 1 :])
        stderr.write(ended.err.encode())
        self.code = ended.code

    def poll(self) -> object:
        return self.code

    def terminate(self) -> None:
        pass

    wait = terminate


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "subprocess", SimpleNamespace(Popen=Here, DEVNULL=None))


def nothing(*_: object) -> None:
    pass


@pytest.mark.usefixtures("small")
class TestReproduce:
    def test_searches_then_tests(self, tmp_path: Path) -> None:
        stages: list[str] = []
        todo = Reproduction("table1", "digits", tmp_path / "runs", seeds=(0, 1), rounds=3)
        path = reproduce(todo, 2, tmp_path / "results", lambda stage, *_: stages.append(stage), lambda: False)
        assert path == tmp_path / "results" / "table1-digits.json"
        assert list(dict.fromkeys(stages)) == ["search", "test", "time"]
        found = json.loads(path.read_text())
        assert [row["label"] for row in found["rows"]] == ["FedAvg", "DGC"]
        fedavg, dgc = found["rows"]
        assert fedavg["learning_rate"] == 0.1  # 0.0001 learns nothing in two rounds
        assert fedavg["search"]["lr=0.1"] > fedavg["search"]["lr=0.0001"]
        assert len(fedavg["accuracy_values"]) == len(fedavg["rounds_to_target"]) == 2
        assert fedavg["time_to_accuracy"] is None  # the digits have no target
        assert 0 < fedavg["lttr"] < fedavg["round_seconds"]
        assert dgc["upload_per_client"]["encoded"] < fedavg["upload_per_client"]["encoded"]
        assert found["search"] == {
            "rates": [0.0001, 0.1],
            "server_steps": [1.0],
            "rounds": 2,
            "seed": 0,
            "judged_by": "accuracy",
        }
        assert not list((tmp_path / "runs").rglob("*.safetensors"))
        before = path.read_bytes()
        assert reproduce(todo, 2, tmp_path / "results", nothing, lambda: False) == path  # nothing left to run
        assert path.read_bytes() == before

    @pytest.mark.usefixtures("without_processes")
    def test_rows_a_file_has_are_not_run_again(self, tmp_path: Path) -> None:
        """Not even where no run of them is left; another row joins them, in the order of the table."""

        def todo(*only: str, seeds: tuple[int, ...] = (0,), rounds: int = 2) -> Reproduction:
            return Reproduction("table1", "digits", tmp_path / "-".join(only), seeds, rounds, only or None)

        path = reproduce(todo("DGC"), 1, tmp_path, nothing, lambda: False)
        assert path is not None
        (first,) = json.loads(path.read_text())["rows"]
        assert reproduce(todo(), 1, tmp_path, nothing, lambda: False) == path
        rows = json.loads(path.read_text())["rows"]
        assert [row["label"] for row in rows] == ["FedAvg", "DGC"]
        assert rows[1] == first
        assert not list(tmp_path.glob("digits/test/DGC*"))
        assert reproduce(todo("DGC", seeds=(0, 1)), 1, tmp_path, nothing, lambda: False) == path
        assert [row["seeds"] for row in json.loads(path.read_text())["rows"]] == [[0], [0, 1]]
        with pytest.raises(PlanError, match="is of another plan; move it away to run the table anew"):
            reproduce(todo(rounds=3), 1, tmp_path, nothing, lambda: False)
        with pytest.raises(PlanError, match="has no row 'STC'; it has FedAvg; DGC"):
            reproduce(todo("STC"), 1, tmp_path, nothing, lambda: False)

    @pytest.mark.usefixtures("without_processes")
    def test_a_row_is_written_as_soon_as_its_runs_are_finished(self, tmp_path: Path) -> None:
        def stop() -> bool:
            return (tmp_path / "table1-digits.json").exists()

        todo = Reproduction("table1", "digits", tmp_path / "runs", (0,), 2)
        assert reproduce(todo, 1, tmp_path, nothing, stop) is None
        (row,) = json.loads((tmp_path / "table1-digits.json").read_text())["rows"]
        assert (row["label"], row["lttr"]) == ("FedAvg", None)  # times are taken at the end
        path = reproduce(todo, 1, tmp_path, nothing, lambda: False)
        assert path is not None
        assert all(row["lttr"] > 0 for row in json.loads(path.read_text())["rows"])

    def test_a_search_never_sees_the_test_data(self, tmp_path: Path) -> None:
        todo = Reproduction("table1", "digits", tmp_path)
        searched = [cell for cells in todo.tuning().values() for cell in cells]
        tested = [cell for cells in todo.final({"FedAvg": (0.1, 1.0), "DGC": (0.1, 1.0)}).values() for cell in cells]
        assert {cell.plan.evaluate_on for cell in searched} == {"validation"}
        assert {cell.plan.evaluate_on for cell in tested} == {"test"}
        assert len({cell.path for cell in searched + tested}) == len(searched + tested) == 2 * 2 + 2 * 3
        each = [[cell.plan.training.learning_rate for cell in cells] for cells in todo.tuning().values()]
        assert each == [[0.0001, 0.1]] * 2  # the same search for every method

    def test_a_search_may_be_longer_but_not_longer_than_a_run(self, tmp_path: Path) -> None:
        def rounds(asked: int | None) -> set[int]:
            todo = Reproduction("table1", "digits", tmp_path, rounds=5, search_rounds=asked)
            return {cell.plan.rounds for cells in todo.tuning().values() for cell in cells} | {todo.searched}

        assert (rounds(None), rounds(4), rounds(60)) == ({2}, {4}, {5})

    def test_stopped_before_the_end_there_is_no_result(self, tmp_path: Path) -> None:
        todo = Reproduction("table1", "digits", tmp_path / "runs", rounds=2)
        assert reproduce(todo, 1, tmp_path, nothing, lambda: True) is None
        assert not (tmp_path / "table1-digits.json").exists()

    def test_unknown(self, tmp_path: Path) -> None:
        for table, data in (("table9", "digits"), ("table1", "imagenet")):
            with pytest.raises(PlanError, match="there is table1 for digits"):
                reproduce(Reproduction(table, data, tmp_path), 1, tmp_path, nothing, lambda: False)


def test_rounds_to_a_target() -> None:
    records = [{"round": r, "accuracy": a} for r, a in ((1, 0.5), (2, None), (3, 0.8), (4, 0.79), (5, 0.9))]
    assert reproduction._rounds_to(records, 0.8) == 3
    assert reproduction._rounds_to(records, 0.81) == 5
    assert reproduction._rounds_to(records, 0.95) is None
    assert reproduction._rounds_to(records, None) is None


def row(label: str, accuracy: float, spread: float, **more: Any) -> dict[str, Any]:
    return {
        "label": label, "method": label.lower(), "learning_rate": 0.06, "accuracy": accuracy, "accuracy_std": spread,
        "accuracy_last_five": accuracy, "accuracy_last_five_std": spread, "lttr": 0.0051, "time_to_accuracy": None,
        "upload_per_client": {"paper": 530_000.0, "encoded": 529_000.0}, "download_per_client": {"encoded": 1e6},
        **more,
    }  # fmt: skip


def result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "table": "table1", "data": "fmnist", "seeds": [0, 1, 2], "rows": rows, "versions": {"torch": "2.13.0"},
        "search": {"rates": [0.03, 0.06], "rounds": 20, "seed": 0},
        "plan": {
            "rounds": 60, "dropout_rate": 0.5, "target_accuracy": 0.8, "data": {"clients": 1000, "image_size": 32},
        },
    }  # fmt: skip


class TestPage:
    def test_the_paper_beside_ours(self) -> None:
        lines = section(result([row("FedAvg", 0.8467, 0.001), row("FedBIAD", 0.8449, 0.001, learning_rate=0.03)]))
        fedavg = next(line for line in lines if line.startswith("| FedAvg"))
        assert "81.18 ± 1.09 | 84.67 ± 0.10" in fedavg
        assert "| 1.1 MB | 530.0 kB | 529.0 kB | 1.0 MB | 5.10 ms | - |" in fedavg
        assert any("| 0.06* |" in line for line in lines)  # at the end of the grid
        assert "Not run: AFD; FedDrop; FedMP; FjORD; HeteroFL." in " ".join(lines)

    def test_no_times_where_none_were_taken_and_the_seeds_of_a_row_that_has_others(self) -> None:
        rows = [row("FedAvg", 0.8467, 0.001, lttr=None), row("FedBIAD", 0.8449, 0.001, lttr=None, seeds=[0])]
        text = " ".join(section(result(rows)))
        assert "LTTR" not in text
        assert "TTA" not in text
        assert "84.49 ± 0.10 (seed 0) |" in text

    def test_language_tells_the_likelihood_and_no_time_to_a_target_it_does_not_have(self) -> None:
        found = result([row("FedAvg", 0.277, 0.0, loss=5.62, server_step=2.0, learning_rate=20.0)])
        found["data"], found["seeds"] = "ptb", [0]
        found["plan"] = {"rounds": 60, "dropout_rate": 0.5, "top": 3, "data": {"clients": 100}}
        found["search"] = {"rates": [10, 20], "server_steps": [1, 2], "rounds": 10, "seed": 0, "judged_by": "loss"}
        text = "\n".join(section(found))
        assert "best loss after 10 rounds" in text.replace("\n", " ")
        assert "| 28.54 ± 0.15 | 27.70 ± 0.00 | 27.70 ± 0.00 | 5.620 | 276 | 20* | 2 |" in text
        assert "TTA" not in text
        assert "before the end" not in text  # not known

    def test_language_tells_its_model_and_who_has_overfitted(self) -> None:
        rows = [row(label, 0.4, 0.0, loss=4.5, server_step=1.0, lowest_loss={"loss": lowest, "round": 12.0})
                for label, lowest in (("FedAvg", 4.4), ("FedDrop", 4.49))]  # fmt: skip
        found = result(rows)
        found["table"], found["data"], found["seeds"] = "heavy", "ptb", [0]
        found["plan"] = {
            "rounds": 20, "dropout_rate": 0.5, "top": 3, "training": {"iterations": 116, "batch": 20},
            "data": {"clients": 100, "vocabulary": 2000, "bptt": 20},
            "model": {"name": "lstm", "hidden": [128], "embedding": 128, "layers": 2},
        }  # fmt: skip
        text = " ".join(section(found))
        assert "LSTM of 2 x 128, embedding 128, the 2,000 most frequent words; 116 local iterations of 20 x 20" in text
        assert "NLL was lower before the end: FedAvg 4.400 in round 12." in text
        rows[0]["lowest_loss"] = None
        assert "No NLL was lower before the end." in " ".join(section(found))

    @pytest.mark.parametrize(("ours", "turned"), [(0.84, True), (0.8461, False), (0.86, False)])
    def test_where_the_order_does_not_come_out(self, ours: float, turned: bool) -> None:
        """The paper has FedBIAD 83.59 ± .13 above FedAvg 81.18 ± 1.09: beyond both spreads."""
        text = " ".join(section(result([row("FedAvg", 0.8467, 0.001), row("FedBIAD", ours, 0.001)])))
        assert ("FedBIAD above FedAvg" in text) == turned
        assert ("No pair comes out the other way" in text) != turned
        assert "Best in the paper: FedBIAD; here: " + ("FedBIAD" if ours > 0.8467 else "FedAvg") in text

    def test_all_methods_of_the_tables_have_printed_figures(self) -> None:
        for (table, data), printed in PRINTED.items():
            extra = tables.EXTRA.get((table, data), {})
            assert list(printed) + list(extra) == list(Reproduction(table, data, Path("x")).rows)

    def test_regenerates_without_a_difference(self, tmp_path: Path) -> None:
        page = ROOT / "docs" / "results.md"
        assert write_results(ROOT / "results", tmp_path / "results.md").read_bytes() == page.read_bytes()

    def test_no_files(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="holds no result file; make one with `fedbiad reproduce table1`"):
            write_results(tmp_path, tmp_path / "page.md")

    def test_a_damaged_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "table1-mnist.json").write_text("{")
        ended = fedbiad("results", "--from", str(tmp_path), "-o", str(tmp_path / "page.md"))
        assert ended.code == 2
        assert "table1-mnist.json is damaged" in ended.err
        assert not (tmp_path / "page.md").exists()


def test_heavy_training_has_a_setting_and_a_place_of_its_own() -> None:
    heavy, light = Reproduction("heavy", "ptb", Path("x")), Reproduction("table1", "ptb", Path("x"))
    best = dict.fromkeys(heavy.rows, (10.0, 1.0))
    cells = {label: cells[0] for label, cells in heavy.final(best).items()}
    assert cells["FedAvg"].path != light.final(dict.fromkeys(light.rows, (10.0, 1.0)))["FedAvg"][0].path
    assert cells["FedAvg, dropout 0.5"].plan.training.dropout == 0.5
    assert (cells["FedBIAD p=.2"].plan.dropout_rate, cells["FedBIAD p=.5"].plan.dropout_rate) == (0.2, 0.5)
    assert cells["FedAvg"].plan.training.iterations * cells["FedAvg"].plan.training.batch * 20 == 5 * 9280


def test_the_lowest_loss_of_a_run() -> None:
    records = [{"round": r, "loss": loss} for r, loss in ((1, None), (2, 4.5), (3, None), (4, 4.25), (5, 4.75))]
    assert lowest_loss(records) == {"loss": 4.25, "round": 4}
    assert lowest_loss(records[:1]) is None


def test_cells_have_names() -> None:
    cells = Reproduction("table2", "mnist", Path("x")).tuning()["STC"]
    assert all(isinstance(cell, Cell) for cell in cells)
    assert cells[0].name == "STC lr=0.03 seed 0"
    assert results.TITLES.keys() == tables.TABLES.keys()


def test_every_table_has_its_plans_and_titles() -> None:
    for table, names in tables.DATA.items():
        for data in names:
            todo = Reproduction(table, data, Path("x"))
            assert data in tables.NAMES
            assert all(cell.plan.rounds for cells in todo.tuning().values() for cell in cells)


def test_the_frontier_asks_for_its_partition_its_clients_and_its_budgets() -> None:
    todo = Reproduction("frontier", "fmnist-cyclic-ten", Path("x"))
    plan = todo.tuning()["FedAvg, evidence 0.2 %"][0].plan
    assert (plan.data.partition, plan.selected_clients, plan.evaluate_on) == ("cyclic", 10, "validation")
    assert getattr(plan.resolved()[1], "budget", None) == 0.002
    paths = [cell.path for data in tables.DATA["frontier"] for cells in Reproduction("frontier", data, Path("x"))
             .tuning().values() for cell in cells]  # fmt: skip
    assert len(set(paths)) == len(paths)


def sized(label: str, accuracy: float, size: float) -> dict[str, Any]:
    return row(label, accuracy, 0.001, upload_per_client={"paper": size, "encoded": size})


class TestFrontier:
    ROWS = (sized("FedAvg", 0.85, 800_000), sized("DGC", 0.84, 8_000), sized("FedBIAD letter", 0.1, 400_000),
            sized("FedAvg, evidence 1 %", 0.851, 8_000), sized("FedAvg, evidence 0.1 %", 0.83, 800))  # fmt: skip

    def found(self) -> dict[str, Any]:
        return {**result(list(self.ROWS)), "table": "frontier"}

    def test_the_table_tells_the_share_of_the_bytes(self) -> None:
        lines = section(self.found())
        assert "![Fashion-MNIST: accuracy against encoded bytes](frontier-fmnist.svg)" in lines
        head = next(line for line in lines if line.startswith("| method"))
        assert "of FedAvg's" in head
        assert "paper: accuracy" not in head
        assert "| 0.1 % |" in next(line for line in lines if line.startswith("| FedAvg, evidence 0.1 %"))

    def test_the_picture_shows_every_row_in_its_place(self) -> None:
        tree = ElementTree.fromstring(frontier_picture(self.found()))
        dots = [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in tree.iter(SVG + "circle")]
        fedavg, dgc = max(dots), next(dot for dot in dots if dot[1] == sorted(y for _, y in dots)[2])
        assert len(dots) == 4
        assert len(list(tree.iter(SVG + "path"))) == 1  # the letter lies below the floor
        coded = min(dots)
        # a decade is as wide everywhere: 100 % to 1 % twice that of 1 % to 0.1 %
        assert fedavg[0] - dgc[0] == pytest.approx(2 * (dgc[0] - coded[0]), abs=0.3)
        # a point of accuracy is as high everywhere: 85 to 84, 84 to 83
        assert dgc[1] - fedavg[1] == pytest.approx(coded[1] - dgc[1], abs=0.3)
        texts = " ".join(text.text or "" for text in tree.iter(SVG + "text"))
        assert "FedAvg + evidence, 0.1 %" in texts
        assert "FedBIAD letter (10 %), 50%" in texts
        assert ", 3 seeds" in texts
        found = self.found()
        found["rows"][0]["seeds"] = [0]
        assert ", 1 to 3 seeds" in frontier_picture(found)

    def test_the_picture_is_written_beside_the_page(self, tmp_path: Path) -> None:
        (tmp_path / "frontier-fmnist.json").write_text(json.dumps(self.found()))
        write_results(tmp_path, tmp_path / "docs" / "results.md")
        assert (tmp_path / "docs" / "frontier-fmnist.svg").read_text() == frontier_picture(self.found())
