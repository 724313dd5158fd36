"""What the documents show works: the example method of CONTRIBUTING.md, the commands and links of README.md."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

import fedbiad
from fedbiad import cli, plan
from fedbiad.cohort import Cohort

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_example_method_runs() -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(re.sub(r"^   ", "", code, flags=re.MULTILINE), names)
    method: Any = names["Turns"](dropout_rate=0.5)
    model = fedbiad.MLP(3, (6,), 2)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 3, generator=generator)
    clients = [(inputs[i::4], (inputs[i::4, 0] > 0).long()) for i in range(4)]
    kept: list[float] = []
    result = fedbiad.simulate(
        model=model, clients=clients, test=clients[0], method=method, rounds=4,
        on_round=lambda record: kept.append(record["kept_rows_share"]),
    )  # fmt: skip
    assert kept == [0.5] * 4
    assert result.summary["accuracy"] > 0.5
    # taking turns: what was held in one round is not held in the next
    layout, cohort = model.layout("units"), Cohort(0, 1, (0,))
    state = {name: value[None] for name, value in method.init_client(layout).items()}
    first = method.first_pattern(layout, cohort, state)
    _, state = method.upload_pattern(layout, cohort, None, first, None, state)
    assert (method.first_pattern(layout, Cohort(0, 2, (0,)), state) == ~first).all()


def test_commands_of_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text()
    lines = [line.split("#")[0] for line in re.findall(r"^\.venv/bin/fedbiad (.*)$", text, re.MULTILINE)]
    assert len(lines) >= 5
    group = typer.main.get_command(cli.app)
    for line in lines:
        name, *arguments = shlex.split(line)
        command = group.commands[name]  # type: ignore[attr-defined]
        context = command.make_context(name, arguments)  # refuses unknown options
        if "plan" in context.params:
            settings = dict(pair.split("=") for pair in context.params.get("settings") or [])
            plan.load(context.params["plan"], settings)


def test_the_example_of_the_readme_is_there() -> None:
    [script] = re.findall(r"^\.venv/bin/python (\S+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert (ROOT / script).is_file()


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"`?make ([a-z-]+)", page.read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_page_of_plans_is_that_of_the_code() -> None:
    """It fails where a key says nothing about itself, too."""
    script = ROOT / "scripts" / "plan_page.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
