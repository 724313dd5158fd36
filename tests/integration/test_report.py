"""The report: what it says of known runs, what it refuses, and what a browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from fedbiad import network
from fedbiad import plan as plans
from fedbiad.errors import FedbiadError, RunDirError
from fedbiad.files import safe_name
from fedbiad.report import island, write_report
from fedbiad.rundir import RunDir

ROWS = 24
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")


def sizes(paper: float, overhead: float = 1.02) -> dict[str, float | None]:
    return {"paper": paper, "encoded": paper * overhead, "transport": None}


def record(method: str, seed: int, r: int, rounds: int) -> dict[str, Any]:
    """A made-up round: accuracy climbs to about 0.9, FedAvg uploads 1 MB a client, the others 0.8 MB."""
    stream = np.random.default_rng([seed, r, len(method)])
    dropping, each = method != "fedavg", 1e6 if method == "fedavg" else 8e5
    end = {"fedavg": 0.88, "feddrop": 0.9}.get(method, 0.92) + 0.01 * seed
    local, slowest = 0.02 + 0.005 * dropping + 0.001 * stream.random(), 0.4 if dropping else 0.5
    found: dict[str, Any] = {
        "round": r, "accuracy": end - 0.7 * np.exp(-r / 6) + 0.005 * stream.standard_normal(), "loss": 0.3,
        "clients": 10, "failed": [], "train_loss": 0.2 + 2 * np.exp(-r / 5) + 0.05 * stream.random(),
        "upload": sizes(10 * each), "download": sizes(1e7), "total_upload": sizes(10 * each * r),
        "total_download": sizes(1e7 * r), "kept_rows_share": 0.8, "resampled_share": None, "noise_skipped_share": None,
        "seconds": {"training": 1.0, "evaluation": 0.1, "local": local, "slowest": slowest, "aggregation": 0.1,
                    "round": slowest + 0.1},
    }  # fmt: skip
    if dropping:
        weight = np.linspace(0.2, 1, ROWS) ** (r / rounds)
        found["row_holders"] = stream.binomial(10, weight).tolist()
    if method.startswith("fedbiad") and r % 4 == 1:
        losses = 2 * np.exp(-r / 8) + 0.3 * stream.random(20)
        found["watched"] = {
            "client": 17, "losses": losses.tolist(), "resampled_at": [6, 12][: 1 + r % 2],
            "score": np.abs(stream.standard_normal(ROWS)).tolist() if r > 1 else None,
        }  # fmt: skip
    return found


def make_run(path: Path, method: str = "fedbiad", seed: int = 0, done: int = 30, **changes: Any) -> RunDir:
    """A run of 30 rounds of which `done` are there; it is finished if all are."""
    plan = plans.load("digits").replace(method=method, seed=seed, **changes)
    run = RunDir.create(path, plan)
    for r in range(1, done + 1):
        run.append(record(method, seed, r, plan.rounds))
    if done == plan.rounds:
        run.finish({"plan": plan.name, "method": method, "seed": seed, "eval_samples": 360, "rounds": done})
    return run


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, three seeds, one of the runs not finished."""
    out = tmp_path_factory.mktemp("runs") / "compare-digits"
    for method in ("fedavg", "feddrop", "fedbiad"):
        for seed in range(3):
            make_run(out / f"{method}-seed{seed}", method, seed, 12 if (method, seed) == ("feddrop", 2) else 30)
    return out


def report(tmp_path: Path, *directories: Path) -> str:
    return write_report(directories, tmp_path / "report.html").read_text()


def data_of(page: str) -> Any:
    """The JSON island, by the rules browsers find the end of a script by."""
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script', page, re.DOTALL | re.IGNORECASE)
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def cells(page: str) -> list[dict[str, str]]:
    """The tables' rows by their headings."""
    rows = []
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        heads = re.findall(r'<th scope="col">(.*?)</th>', table)
        for row in re.findall(r'<tr>(<th scope="row">.*?)</tr>', table):
            rows.append(dict(zip(heads, re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row), strict=True)))
    return rows


class TestContent:
    def test_the_table(self, comparison: Path, tmp_path: Path) -> None:
        fedavg, feddrop, fedbiad = cells(report(tmp_path, comparison))
        assert [row["method"] for row in (fedavg, feddrop, fedbiad)] == ["fedavg", "feddrop *", "fedbiad"]
        last = [100 * record("fedavg", seed, 30, 30)["accuracy"] for seed in range(3)]
        assert fedavg["accuracy, last round"] == f"{np.mean(last):.2f} ± {np.std(last, ddof=1):.2f} %"
        five = [np.mean([100 * record("fedavg", s, r, 30)["accuracy"] for r in range(26, 31)]) for s in range(3)]
        assert fedavg["mean of last five"] == f"{np.mean(five):.2f} ± {np.std(five, ddof=1):.2f} %"
        assert fedavg["seeds"] == feddrop["seeds"] == "0, 1, 2"
        assert fedavg["upload, encoded"] == "1.0 MB"
        assert fedbiad["upload, encoded"] == "816.0 kB"
        assert fedbiad["upload, paper"] == "800.0 kB"
        assert fedbiad["of first"] == "80.0%"
        assert fedbiad["download, paper"] == "1.0 MB"
        assert float(fedbiad["LTTR"].split()[0]) == pytest.approx(25.5, abs=0.2)

    def test_unfinished_runs_are_named_and_kept_out_of_the_means(self, comparison: Path, tmp_path: Path) -> None:
        page = report(tmp_path, comparison)
        assert "feddrop is not finished: seed 2 at round 12 of 30; its row is of the finished seeds only" in page
        last = [100 * record("feddrop", seed, 30, 30)["accuracy"] for seed in range(2)]
        assert cells(page)[1]["accuracy, last round"] == f"{np.mean(last):.2f} ± {np.std(last, ddof=1):.2f} %"
        curve = data_of(page)[0]["groups"][1]["accuracy"]
        assert (curve["n"][11], curve["n"][12], curve["x"][-1]) == (3, 2, 30)

    def test_the_heading_says_what_was_run(self, comparison: Path, tmp_path: Path) -> None:
        page = report(tmp_path, comparison)
        assert "digits: 30 rounds, 10 of 50 clients a round, p = 0.2</h2>" in page
        assert "Accuracy is judged on the test set (360 samples). 3 seeds a row." in page
        assert "<nav" not in page

    def test_curves_are_means_with_the_range_of_the_seeds(self, comparison: Path, tmp_path: Path) -> None:
        group = data_of(report(tmp_path, comparison))[0]["groups"][0]
        seeds = [record("fedavg", seed, 7, 30)["accuracy"] for seed in range(3)]
        at = group["accuracy"]["x"].index(7)
        drawn = [group["accuracy"][name][at] for name in ("mean", "low", "high", "n")]
        assert drawn == pytest.approx([np.mean(seeds), min(seeds), max(seeds), 3], rel=1e-5)
        # ten clients, 1 MB each, seven rounds
        assert group["uploaded"]["paper"][at] == pytest.approx(70.0)
        assert group["uploaded"]["encoded"][at] == pytest.approx(71.4)
        assert set(group["uploaded"]["transport"]) == {None}
        assert data_of(report(tmp_path, comparison))[0]["counts"] == ["encoded", "paper"]

    def test_a_point_of_the_frontier_is_what_the_finished_seeds_came_to(self, comparison: Path, tmp_path: Path) -> None:
        feddrop = data_of(report(tmp_path, comparison))[0]["groups"][1]["frontier"]
        ends = [np.mean([record("feddrop", s, r, 30)["accuracy"] for r in range(26, 31)]) for s in range(2)]
        found = [feddrop[name] for name in ("mean", "low", "high", "n")]
        assert found == pytest.approx([np.mean(ends), min(ends), max(ends), 2])
        assert feddrop["sizes"] == {"encoded": 816_000, "paper": 800_000, "transport": None}

    def test_rows_and_the_watched_client(self, comparison: Path, tmp_path: Path) -> None:
        runs = {run["name"]: run for run in data_of(report(tmp_path, comparison))[0]["runs"]}
        assert set(runs) == {
            *(f"fedbiad, seed {seed}" for seed in range(3)),
            "feddrop, seed 0", "feddrop, seed 1", "feddrop, seed 2 (unfinished)",
        }  # fmt: skip
        run, told = runs["fedbiad, seed 1"], record("fedbiad", 1, 5, 30)
        assert [line[4] for line in run["kept"]["percent"]] == [10 * held for held in told["row_holders"]]
        assert run["watched"]["client"] == 17
        seen = {r["round"]: r for r in run["watched"]["rounds"]}
        assert list(seen) == [1, 5, 9, 13, 17, 21, 25, 29]
        assert seen[5]["losses"] == pytest.approx(told["watched"]["losses"], rel=1e-5)
        assert seen[5]["changed"] == [6, 12]
        assert seen[1]["score"] is None
        assert len(seen[5]["score"]) == ROWS
        assert runs["feddrop, seed 0"]["watched"] is None

    def test_a_wide_map_is_averaged(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run", done=0)
        run.append({**record("fedbiad", 0, 1, 30), "row_holders": [0, 10] * 600})
        kept = data_of(report(tmp_path, run.path))[0]["runs"][0]["kept"]
        assert (kept["rows"], len(kept["percent"]), kept["each"]) == (1200, 512, 3)
        assert kept["percent"][0] == [33]  # of rows 0, 1, 2 the middle one was uploaded
        assert kept["y"][:3] == [0, 3, 6]

    def test_times_follow_the_definition(self, comparison: Path, tmp_path: Path) -> None:
        page = report(tmp_path, comparison)
        records = RunDir(comparison / "fedavg-seed0").records()
        target = data_of(page)[0]["target"]
        assert (100 * target) % 1 == pytest.approx(0.0, abs=1e-6)
        finished = [path for path in comparison.iterdir() if RunDir(path).summary()]
        best = min(max(r["accuracy"] for r in RunDir(path).records()) for path in finished)
        assert target <= best < target + 0.01
        times = [network.time_to_accuracy(RunDir(comparison / f"fedavg-seed{s}").records(), target) for s in range(3)]
        mean = float(cells(page)[0][f"TTA to {100 * target:g} %"].split()[0])
        assert mean == pytest.approx(np.mean([time for time in times if time]), rel=0.01)
        drawn = data_of(page)[0]["groups"][0]["times"][0]
        assert drawn["seconds"][9] == pytest.approx(sum(r["seconds"]["round"] for r in records[:10]))

    def test_the_plans_target_and_links_are_told(self, tmp_path: Path) -> None:
        links = {"uplink": 2.0, "count": "paper", "slow_share": 0.25}
        run = make_run(tmp_path / "run", "fedavg", target_accuracy=0.5, network=links)
        page = report(tmp_path, run.path)
        assert data_of(page)[0]["target"] == 0.5
        assert cells(page)[0]["TTA to 50 %"] == f"{network.time_to_accuracy(run.records(), 0.5):.2f} s"
        told = (
            "not measured: 2 Mbit/s up, 110.6 Mbit/s down, “paper” count, 25% of the clients training 4 times slower."
        )
        assert told in page

    def test_numbers_that_are_none_or_not_finite(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run", done=0)
        for r in range(1, 5):
            odd: dict[str, Any] = {**record("fedbiad", 0, r, 30), "accuracy": None if r % 2 else 0.5}
            run.append({**odd, "train_loss": float("nan") if r == 2 else 1.0})
        group = data_of(report(tmp_path, run.path))[0]["groups"][0]
        assert group["accuracy"]["x"] == [2, 4]
        assert group["loss"]["x"] == [1, 3, 4]

    def test_data_cannot_end_their_element(self) -> None:
        hostile = ["</script><script>alert(1)</script>", "<!--", "&", "\u2028"]
        assert "<" not in island(hostile)
        assert json.loads(island(hostile)) == hostile

    def test_no_address_is_loaded(self, comparison: Path, tmp_path: Path) -> None:
        page = report(tmp_path, comparison)
        own = page.replace(re.findall(r"<script>\n/\*\*.*?</script>", page, re.DOTALL)[0], "")
        assert "default-src 'none'" in own
        assert re.findall(r"https?://|\bsrc=|@import|url\(", own) == []


class TestGroups:
    def test_one_run(self, tmp_path: Path) -> None:
        page = report(tmp_path, make_run(tmp_path / "mine", "fedavg").path)
        assert [row["method"] for row in cells(page)] == ["fedavg"]
        assert "1 seed a row; one seed shows no spread" in page
        assert data_of(page)[0]["runs"] == []

    def test_the_same_method_with_other_options_goes_by_its_directory(self, tmp_path: Path) -> None:
        for label, rate in (("slow", 0.05), ("fast", 0.2)):
            training = {**plans.to_dict(plans.load("digits"))["training"], "learning_rate": rate}
            make_run(tmp_path / "runs" / f"{label}-seed0", "fedbiad", 0, 3, training=training)
        page = report(tmp_path, tmp_path / "runs")
        assert [row["method"] for row in cells(page)] == ["fast (unfinished)", "slow (unfinished)"]
        assert "The plans differ beside method and seed: training.learning_rate (0.2, 0.05)" in page

    def test_methods_stand_in_their_order_plain_before_compressed(self, tmp_path: Path) -> None:
        names = ["fedavg", "dgc", "feddrop", "fedmp", "fedmp:paper", "fedbiad", "fedbiad+dgc"]
        for name in names:
            make_run(tmp_path / "runs" / f"{safe_name(name)}-seed0", name, done=1)
        page = report(tmp_path, tmp_path / "runs")
        assert [row["method"].removesuffix(" (unfinished)") for row in cells(page)] == names
        assert "The plans differ beside method and seed: methods.fedmp.chosen_by" in page

    def test_a_run_named_twice_counts_once(self, comparison: Path, tmp_path: Path) -> None:
        page = report(tmp_path, comparison, comparison / "fedavg-seed0")
        assert cells(page)[0]["seeds"] == "0, 1, 2"
        assert "Left out" not in page

    def test_a_plan_and_seed_run_twice_counts_once_and_is_named(self, tmp_path: Path) -> None:
        make_run(tmp_path / "a", done=4)
        make_run(tmp_path / "b", done=6)
        page = report(tmp_path, tmp_path / "a", tmp_path / "b")
        assert len(cells(page)) == 1
        assert f"Left out, being the same plan and seed as another run: {tmp_path / 'a'}." in page
        assert data_of(page)[0]["groups"][0]["accuracy"]["n"] == [1] * 6

    def test_data_sets_have_their_own_sections(self, comparison: Path, tmp_path: Path) -> None:
        data = {**plans.to_dict(plans.load("digits"))["data"], "name": "mnist", "clients": 100}
        make_run(tmp_path / "other", "fedavg", data=data)
        make_run(tmp_path / "held", "fedavg", evaluate_on="validation")
        page = report(tmp_path, comparison, tmp_path / "other", tmp_path / "held")
        assert re.findall(r'<a href="#(.*?)">(.*?)</a>', page) == [
            ("digits-test", "digits"), ("digits-validation", "digits (validation data)"), ("mnist-test", "mnist"),
        ]  # fmt: skip
        assert all(f'<section id="{name}"' in page for name in ("digits-test", "digits-validation", "mnist-test"))
        assert "VALIDATION data held back from training" in page
        assert [len(part["groups"]) for part in data_of(page)] == [3, 1, 1]

    def test_a_run_without_rounds_is_shown(self, comparison: Path, tmp_path: Path) -> None:
        run = make_run(tmp_path / "new", "fedbiad-letter", done=0)
        page = report(tmp_path, comparison, run.path)
        assert cells(page)[3]["method"] == "fedbiad-letter (unfinished)"
        assert cells(page)[3]["accuracy, last round"] == "–"
        assert "seed 0 at round 0 of 30" in page

    def test_a_directory_of_comparisons(self, comparison: Path, tmp_path: Path) -> None:
        assert len(cells(report(tmp_path, comparison.parent))) == 3


class TestRefusals:
    def test_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FedbiadError, match=r"nowhere is no directory; name a run directory"):
            report(tmp_path, tmp_path / "nowhere")

    def test_no_run_in_it(self, tmp_path: Path) -> None:
        with pytest.raises(FedbiadError, match=r"holds no run \(no plan\.toml .*`fedbiad run PLAN --out"):
            report(tmp_path, tmp_path)
        with pytest.raises(FedbiadError, match="no directory named"):
            report(tmp_path)

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("{torn", "cannot be read"),
            ("3", "line 3, record"),
            ('{"round": 3}', "line 3, accuracy: field required"),
            (json.dumps(record("fedavg", 0, 9, 30)), "not rounds 1, 2"),
        ],
    )
    def test_damaged_rounds(self, tmp_path: Path, line: str, problem: str) -> None:
        run = make_run(tmp_path / "run", done=2)
        with (run.path / "rounds.jsonl").open("a") as file:
            file.write(line + "\n")
        with pytest.raises(RunDirError, match=rf"rounds\.jsonl is damaged.*{problem}.*remove it and run its plan"):
            report(tmp_path, run.path)
        assert not (tmp_path / "report.html").exists()

    def test_a_torn_last_line_does_not_count(self, tmp_path: Path) -> None:
        run = make_run(tmp_path / "run", done=2)
        with (run.path / "rounds.jsonl").open("a") as file:
            file.write('{"round": 3, "acc')
        assert "seed 0 at round 2 of 30" in report(tmp_path, run.path)

    def test_a_directory_as_the_output(self, comparison: Path, tmp_path: Path) -> None:
        with pytest.raises(FedbiadError, match=r"is a directory; name a file, e\.g\. .*report\.html"):
            write_report([comparison], tmp_path)

    def test_an_output_that_cannot_be_written(self, comparison: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("mine")
        with pytest.raises(FedbiadError, match=r"cannot be written: .*choose another -o"):
            write_report([comparison], tmp_path / "file" / "report.html")

    def test_directories_of_the_output_are_made(self, comparison: Path, tmp_path: Path) -> None:
        assert write_report([comparison], tmp_path / "a" / "b.html").stat().st_size > 1e6
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.html"]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """Chromium without a screen, with a profile of its own."""
    if not CHROMIUM or not DRIVER:
        pytest.skip("no chromium with chromedriver; on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,900",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def chart(browser: webdriver.Chrome, name: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, f'figure[data-chart="{name}"]')


def traces(browser: webdriver.Chrome, name: str, what: str) -> Any:
    """One property of every trace of a chart."""
    script = "return document.querySelector(arguments[0] + ' .plot').data.map((trace) => trace[arguments[1]])"
    return browser.execute_script(script, f'figure[data-chart="{name}"]', what)


def click(browser: webdriver.Chrome, name: str, selector: str) -> None:
    browser.execute_script("arguments[0].click()", chart(browser, name).find_element(By.CSS_SELECTOR, selector))


def problems(browser: webdriver.Chrome) -> list[Any]:
    """What the console shows, and whatever was asked of a network."""
    asked = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    return [*browser.get_log("browser"), *asked]  # type: ignore[no-untyped-call]


class TestInTheBrowser:
    def test_curves_are_drawn_and_switched(self, browser: webdriver.Chrome, comparison: Path, tmp_path: Path) -> None:
        browser.get(write_report([comparison], tmp_path / "report.html").as_uri())
        names = [figure.get_attribute("data-chart") for figure in browser.find_elements(By.TAG_NAME, "figure")]
        assert names == ["accuracy", "loss", "upload", "frontier", "tta", "lttr", "map", "trend", "scores"]
        captions = browser.find_elements(By.CSS_SELECTOR, "figure > figcaption")
        assert len([caption for caption in captions if caption.text]) == len(names)
        # a band and a line for each of three methods; dashes and markers differ
        assert traces(browser, "accuracy", "visible") == [True] * 6
        assert len({line["dash"] for line in traces(browser, "accuracy", "line") if "dash" in line}) == 3
        drawn = len(chart(browser, "accuracy").find_elements(By.CSS_SELECTOR, ".scatterlayer .trace"))
        click(browser, "accuracy", '.keys [data-key="fedbiad"]')
        hidden = dict(zip(traces(browser, "accuracy", "name"), traces(browser, "accuracy", "visible"), strict=True))
        assert hidden == {"fedavg": True, "feddrop": True, "fedbiad": False}
        left = len(chart(browser, "accuracy").find_elements(By.CSS_SELECTOR, ".scatterlayer .trace"))
        assert left == drawn - 2
        # its section's other charts follow
        assert traces(browser, "loss", "visible") == [True] * 4 + [False] * 2
        click(browser, "loss", '.keys [data-key="fedbiad"]')
        assert traces(browser, "accuracy", "visible") == [True] * 6
        assert problems(browser) == []

    def test_counts_targets_and_runs_are_chosen(
        self, browser: webdriver.Chrome, comparison: Path, tmp_path: Path
    ) -> None:
        browser.get(write_report([comparison], tmp_path / "report.html").as_uri())
        assert max(traces(browser, "upload", "x")[1]) == pytest.approx(306.0)  # 30 rounds, 10 clients, 1.02 MB
        click(browser, "upload", '[data-choice="paper"]')
        assert max(traces(browser, "upload", "x")[1]) == pytest.approx(300.0)
        assert "“paper” count" in chart(browser, "upload").text
        assert traces(browser, "frontier", "x") == pytest.approx(np.array([[1.02e6], [816e3], [816e3]]))
        click(browser, "frontier", '[data-choice="paper"]')
        assert traces(browser, "frontier", "x") == pytest.approx(np.array([[1e6], [800e3], [800e3]]))
        # the chart's times are those of the library, for any target
        field = chart(browser, "tta").find_element(By.TAG_NAME, "input")
        for target in (0.5, 0.89):
            field.clear()
            field.send_keys(f"{100 * target:g}")
            records = [RunDir(comparison / f"fedavg-seed{seed}").records() for seed in range(3)]
            times = [network.time_to_accuracy(run, target) for run in records]
            assert traces(browser, "tta", "x")[0] == pytest.approx([np.mean([t for t in times if t is not None])])
        field.clear()
        field.send_keys("99.9")
        assert chart(browser, "tta").find_element(By.CSS_SELECTOR, ".plot").text.count("not reached") == 3
        box = chart(browser, "trend").find_element(By.TAG_NAME, "select")
        before = traces(browser, "trend", "y")[1]
        box.send_keys("fedbiad, seed 2")
        losses = [value for value in traces(browser, "trend", "y")[1] if value is not None]
        assert losses != [value for value in before if value is not None]
        told = record("fedbiad", 2, 1, 30)["watched"]
        assert losses[:20] == pytest.approx(told["losses"], rel=1e-5)
        # changed after the seventh iteration, drawn between it and the eighth
        assert traces(browser, "trend", "x")[0][:2] == [7.5, 7.5]
        assert chart(browser, "map").find_element(By.TAG_NAME, "option").text == "fedbiad, seed 0"
        assert problems(browser) == []

    def test_the_theme_follows_the_reader(self, browser: webdriver.Chrome, comparison: Path, tmp_path: Path) -> None:
        def ink() -> Any:
            return browser.execute_script(
                "const chart = document.querySelector('.plot').layout;"
                "return [getComputedStyle(document.body).backgroundColor, chart.font.color]"
            )

        def prefer(scheme: str) -> None:
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            # the page is told with the next frame
            browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

        prefer("dark")
        browser.get(write_report([comparison], tmp_path / "report.html").as_uri())
        night = ink()
        assert night == ["rgb(20, 23, 27)", "#e9ebee"]
        prefer("light")
        day = ink()
        assert day == ["rgb(255, 255, 255)", "#1c2126"]
        click(browser, "accuracy", '.keys [data-key="fedavg"]')
        browser.find_element(By.ID, "theme").click()
        assert ink() == night
        assert traces(browser, "accuracy", "visible")[:2] == [False, False]  # still switched off
        prefer("light")
        assert ink() == night  # the button outweighs the system
        browser.find_element(By.ID, "theme").click()
        assert ink() == day
        assert problems(browser) == []

    def test_charts_keep_to_their_panels(self, browser: webdriver.Chrome, comparison: Path, tmp_path: Path) -> None:
        browser.get(write_report([comparison], tmp_path / "report.html").as_uri())
        for width in (1280, 700):
            browser.set_window_size(width, 900)
            wait = WebDriverWait(browser, 10)
            wait.until(lambda driver: driver.execute_script(
                "return [...document.querySelectorAll('.plot')].every((plot) => "
                "Math.abs(plot.querySelector('.main-svg').getBoundingClientRect().width - plot.clientWidth) < 2)"
            ))  # fmt: skip
        assert problems(browser) == []

    def test_a_phone_needs_no_sideways_scrolling(
        self, browser: webdriver.Chrome, comparison: Path, tmp_path: Path
    ) -> None:
        make_run(tmp_path / "long", "fedbiad", 0, 30, evaluate_on="validation")
        screen = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get(write_report([comparison, tmp_path / "long"], tmp_path / "report.html").as_uri())
        width = "return [document.documentElement.scrollWidth, innerWidth]"
        assert browser.execute_script(width) == [400, 400]
        # nothing of a chart is cut off at the right
        beyond = browser.execute_script(
            "return [...document.querySelectorAll('figure *')].filter((e) => e.getBoundingClientRect().right > 400)"
            ".map((e) => e.outerHTML.slice(0, 200))"
        )
        assert beyond == []
        assert problems(browser) == []

    def test_sections_without_anything_to_show_are_left_out(self, browser: webdriver.Chrome, tmp_path: Path) -> None:
        make_run(tmp_path / "mine", "fedavg")
        make_run(tmp_path / "runs" / "new", "fedbiad", done=0)
        browser.get(write_report([tmp_path / "mine"], tmp_path / "report.html").as_uri())
        names = [figure.get_attribute("data-chart") for figure in browser.find_elements(By.TAG_NAME, "figure")]
        assert names == ["accuracy", "loss", "upload", "tta", "lttr"]
        browser.get(write_report([tmp_path / "runs"], tmp_path / "report.html").as_uri())
        assert browser.find_elements(By.TAG_NAME, "figure") == []
        assert problems(browser) == []
