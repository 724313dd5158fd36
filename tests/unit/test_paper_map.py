"""docs/paper-map.md against the code: every name, test and option on the page exists and means what it says."""

from __future__ import annotations

import ast
import dataclasses
import pkgutil
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from fedbiad.errors import PlanError
from fedbiad.methods import LETTER, FedBIAD
from fedbiad.plan import Plan, load

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fedbiad"
PAGE = ROOT / "docs" / "paper-map.md"

LABELS = {
    "loss", "loss_goal", "local_update", "loss_diff", "score_update", "agg", "global_weights",
    "avg_error", "same_variance", "upper_bound", "varepsilon_m", "xi_k", "xiaoyu", "dayu",
}  # fmt: skip
"""Every labelled equation in the body of the paper."""

SYMBOLS = {
    "K", "κ", "c", "𝒞_r", "R", "r", "V", "v", "τ", "R_b", "p", "J", "N", "S", "D", "L", "d", "B", "𝒵^S_N", "β", "U",
    "μ_j", "θ", "s̃²", "Eᵏ", "e_j", "λᵏ_r", "Δℒ", "ℒ̄", "η", "α", "σ²", "m", "m_r", "ε", "ξᵏ", "γ", "C₁", "C₂", "f_θ",
    "f₀ᵏ",
}  # fmt: skip

LAST_LINE = 28
"""Algorithm 1 as printed."""

SPAN = re.compile(r"`([^`]+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
OPTION = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*) = ([^`]+)`")

Row = dict[str, str]
Option = tuple[str, Any]


# --------------------------------------------------------------------------------------------------- reading the page


@cache
def section(title: str) -> str:
    """The text below a heading of the second level."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[title]


def rows(title: str, *headings: str) -> list[Row]:
    """The rows of all tables of a section that have these headings."""
    found: list[Row] = []
    for block in re.findall(r"(?:^\|.*\n)+", section(title), flags=re.MULTILINE):
        head, _, *body = [cells(line) for line in block.splitlines()]
        if tuple(head) == headings:
            found += [dict(zip(head, line, strict=True)) for line in body]
    assert found, f"no table {headings} under {title}"
    return found


def cells(line: str) -> list[str]:
    """The cells of a table's line; `\\|` is no border."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def equations() -> list[Row]:
    return rows("Equations", "label", "what", "function", "test")


def unlabelled() -> list[Row]:
    return rows("Equations", "where", "what", "function", "test")


def algorithm() -> list[Row]:
    return rows("Algorithm 1", "line", "pseudocode", "code")


def symbols() -> list[Row]:
    return rows("Symbols", "symbol", "meaning", "name in the code", "file")


def choices() -> list[Row]:
    return rows("Deviations", "the paper says", "the default does", "reason", "the letter")


def options(text: str) -> list[Option]:
    """Every `key = value` of a text, the value read as TOML."""
    return [(key, tomllib.loads(f"value = {value}")["value"]) for key, value in OPTION.findall(text)]


# --------------------------------------------------------------------------------------------------- reading the code


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def identifiers(path: Path) -> set[str]:
    """Names used in a file, and strings that are names (keys of dictionaries); comments and prose do not count."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        for field in ("id", "attr", "arg", "name"):
            found.add(str(getattr(node, field, "")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def members(path: Path, name: str) -> set[str]:
    """Fields and methods of a class as its file writes them."""
    found: set[str] = set()
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    found.add(part.name)
                elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    found.add(part.target.id)
    return found


def functions(path: Path) -> set[str]:
    return {node.name for node in tree(path).body if isinstance(node, ast.FunctionDef)}


def unresolved(names: list[str]) -> list[str]:
    """Which dotted names below `fedbiad` lead nowhere."""
    lost = []
    for name in names:
        try:
            pkgutil.resolve_name(f"fedbiad.{name}")
        except (ImportError, AttributeError, ValueError):
            lost.append(name)
    return lost


def in_plan(plan: Plan, key: str) -> Any:
    """The value of an option: of the method FedBIAD, or with dots of the plan."""
    value: Any = plan if "." in key else plan.resolved_method("fedbiad")
    for part in key.split("."):
        value = getattr(value, part)
    return value


def accepted(option: Option, written: str) -> bool:
    key, value = option
    try:
        plan = load("mnist", {key if "." in key else f"methods.fedbiad.{key}": written})
    except PlanError:
        return False
    return bool(in_plan(plan, key) == value)


# -------------------------------------------------------------------------------------------------------------- tests


def test_every_labelled_equation_is_mapped() -> None:
    assert {row["label"].strip("`") for row in equations()} == LABELS


def test_docstrings_cite_no_other_equation() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert set(re.findall(r"Eq\. \((\w+)\)", path.read_text())) <= LABELS, path


def test_functions_of_equations_exist() -> None:
    for row in equations() + unlabelled():
        names = SPAN.findall(row["function"])
        assert len(names) == 1, row
        assert unresolved(names) == []


def test_docstrings_name_their_equation() -> None:
    silent = []
    for row in equations():
        label, name = row["label"].strip("`"), row["function"].strip("`")
        if f"Eq. ({label})" not in (pkgutil.resolve_name(f"fedbiad.{name}").__doc__ or ""):
            silent.append((name, label))
    assert silent == []


def test_every_equation_has_a_test() -> None:
    assert [row for row in equations() + unlabelled() if not TEST.fullmatch(row["test"])] == []


def test_named_tests_exist() -> None:
    named = TEST.findall(PAGE.read_text())
    missing_files = {path for path, _ in named if not (ROOT / path).is_file()}
    assert missing_files == set()
    assert [(path, test) for path, test in named if test not in functions(ROOT / path)] == []


def test_algorithm_is_mapped_line_by_line() -> None:
    lines: set[int] = set()
    for row in algorithm():
        names = SPAN.findall(row["code"])
        assert names, row
        assert unresolved(names) == []
        if row["line"] != "input":
            first, _, last = row["line"].partition("-")
            lines |= set(range(int(first), int(last or first) + 1))
    assert lines == set(range(1, LAST_LINE + 1))


def test_every_symbol_is_mapped() -> None:
    assert {symbol for row in symbols() for symbol in row["symbol"].split(", ")} >= SYMBOLS


def test_names_of_symbols_are_in_their_files() -> None:
    lost = []
    for row in symbols():
        names, (file,) = SPAN.findall(row["name in the code"]), SPAN.findall(row["file"])
        path = PACKAGE / file
        assert names, row
        assert path.is_file(), row
        for name in names:
            owner, _, member = name.rpartition(".")
            if member not in (members(path, owner) if owner else identifiers(path)):
                lost.append((file, name))
    assert lost == []


def test_options_take_the_values_named() -> None:
    text = section("Deviations")
    refused = [
        f"{option[0]} = {written}"
        for option, (_, written) in zip(options(text), OPTION.findall(text), strict=True)
        if not accepted(option, written)
    ]
    assert refused == []


def test_defaults_are_the_defaults() -> None:
    plan = load("mnist")
    named = [option for row in choices() for option in options(row["the default does"])]
    assert [(key, value) for key, value in named if in_plan(plan, key) != value] == []
    own = {field.name: field.default for field in dataclasses.fields(FedBIAD)}
    assert [(key, value) for key, value in named if "." not in key and own[key] != value] == []


def test_the_letter_is_the_letter() -> None:
    named = {key: value for row in choices() for key, value in options(row["the letter"]) if "." not in key}
    assert {key: getattr(LETTER, key) for key in named} == named
    default = FedBIAD()
    differing = {f.name for f in dataclasses.fields(FedBIAD) if getattr(LETTER, f.name) != getattr(default, f.name)}
    assert differing <= set(named)


def test_no_option_is_misspelt_as_prose() -> None:
    """A code span with an equals sign that is not a readable option would escape the tests above."""
    spans = [span for span in SPAN.findall(section("Deviations")) if "=" in span]
    assert [span for span in spans if not OPTION.fullmatch(f"`{span}`")] == []
