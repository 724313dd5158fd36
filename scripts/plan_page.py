"""docs/plan.md from the plan's own classes: every key, what it may be, its default and what it means.

python scripts/plan_page.py [--check]
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from pathlib import Path

from fedbiad.files import write_atomically
from fedbiad.network import Network
from fedbiad.plan import DataPlan, EnginePlan, ModelPlan, Plan, TrainingPlan

PAGE = Path(__file__).parent.parent / "docs" / "plan.md"
TABLES = {"": Plan, "data": DataPlan, "model": ModelPlan, "training": TrainingPlan, "engine": EnginePlan,
          "network": Network}  # fmt: skip
HEAD = """# Plans

A plan is a TOML file that determines a run; the ones that come along are in `experiments/` and go by their names
(`fedbiad run mnist`). Every key can be set on the command line: `--set training.learning_rate=0.05`. Unknown keys and
wrong values are all named at once, each with the nearest valid one. `fedbiad describe PLAN` tells what a plan comes to
before it is run, and a run directory keeps the plan with every option written out. Written by `scripts/plan_page.py`
from `src/fedbiad/plan.py`.
"""
TYPES = {
    "Count": "1, 2, ...", "Positive": "above 0", "Share": "above 0, at most 1", "Rate": "at least 0, below 1",
    "Speed": "above 0", "bool": "true or false", "str": "text", "Form": "`auto`, `masked`, `compact`, `dual`, `fused`",
    "Softmax": "`exact`, `gaussian`",
}  # fmt: skip


def main() -> None:
    """Write the page, or say whether it is up to date."""
    text = page()
    if "--check" in sys.argv:
        raise SystemExit(0 if PAGE.read_text() == text else f"{PAGE} is out of date: python scripts/plan_page.py")
    write_atomically(PAGE, text.encode())


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, kind in TABLES.items():
        summary = (inspect.getdoc(kind) or "").replace("\n\n", "\n")
        parts.append(f"## `[{name}]`\n\n{summary}\n" if name else f"## At the top\n\n{summary}\n")
        rows = [f"| `{key}` | {kinds} | {default} | {meaning} |" for key, kinds, default, meaning in keys(kind)]
        parts.append("\n".join(["| key | values | default | meaning |", "|---|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def keys(kind: type) -> list[tuple[str, str, str, str]]:
    """Each key of a class: its name, values, default and meaning, as the source has them."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found = []
    for here, after in zip(body.body, [*body.body[1:], ast.Pass()], strict=True):
        if not (isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name)):
            continue
        told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if not told and here.target.id not in TABLES:
            raise SystemExit(f"{kind.__name__}.{here.target.id} says nothing about itself")
        if told:
            meaning = " ".join(str(ast.literal_eval(after.value)).split())  # type: ignore[attr-defined]
            found.append((here.target.id, values(here.annotation), default(here.value), meaning.replace("|", "\\|")))
    return found


def values(kind: ast.expr) -> str:
    """What a key may be, in words."""
    if isinstance(kind, ast.BinOp):
        sides = [values(side) for side in (kind.left, kind.right) if ast.unparse(side) != "None"]
        return " or ".join(sides)
    if isinstance(kind, ast.Subscript):
        inner = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
        outer = ast.unparse(kind.value)
        if outer == "Literal":
            return ", ".join(f"`{ast.literal_eval(one)}`" for one in inner)
        if outer == "Annotated":
            limits = {word.arg: ast.unparse(word.value) for word in inner[1].keywords}  # type: ignore[attr-defined]
            words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
            told = ", ".join(f"{words[name]} {limit}" for name, limit in limits.items() if name in words)
            return told or values(inner[0])
        return "a list of numbers" if outer == "tuple" else "tables"
    name = ast.unparse(kind)
    return TYPES.get(name, name)


def default(value: ast.expr | None) -> str:
    """The default as TOML would have it."""
    if value is None:
        return "needed"
    if isinstance(value, ast.Call):
        return "none"
    plain = ast.literal_eval(value)
    if plain is None:
        return "none"
    if isinstance(plain, bool):
        return f"`{str(plain).lower()}`"
    return f"`{list(plain) if isinstance(plain, tuple) else plain}`"


if __name__ == "__main__":
    main()
