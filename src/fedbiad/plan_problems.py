"""What is wrong with a plan, in words: every problem at once, each with its key and the nearest valid one."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedbiad.methods import METHODS, Method


def method_problems(method: str, dropout_rate: float, options: Any) -> list[str]:
    """Problems of the method chosen and of every [methods.NAME] table."""
    if not isinstance(options, dict):
        return []
    problems = []
    for name in dict.fromkeys([method, *options]):
        problems += resolve_method(name, dropout_rate, options.get(name, {}))[1]
    return problems


def resolve_method(name: str, dropout_rate: float, options: Any) -> tuple[Method | None, list[str]]:
    """The named preset with the plan's dropout rate and its own options, or what is wrong with them."""
    if name not in METHODS:
        return None, [f"unknown method {name!r}{nearest(name, METHODS)}; there are {', '.join(METHODS)}"]
    preset = METHODS[name]
    values = dataclasses.asdict(preset)
    if "dropout_rate" in values:
        values["dropout_rate"] = dropout_rate
    try:
        merged = json.dumps({**values, **(options if isinstance(options, dict) else {"?": options})}, default=str)
        method: Method = TypeAdapter(type(preset)).validate_json(merged, strict=True)
    except ValidationError as error:
        return None, key_problems(error, dict.fromkeys(values), prefix=f"methods.{name}.")
    return method, []


def key_problems(error: ValidationError, keys: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One line for each problem, with the key, what is wrong and the nearest valid key."""
    lines = []
    for item in error.errors(include_url=False):
        path = [str(part) for part in item["loc"] if not str(part).startswith(("function", "constrained"))]
        key = prefix + ".".join(path)
        if item["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            lines.append(f"unknown key {key}{_nearest_key(path, keys, prefix)}")
        elif item["type"] in ("missing", "missing_argument"):
            lines.append(f"{key} is missing")
        else:
            lines.append(f"{key}: {item['msg'].lower()}, not {json.dumps(item['input'])}")
    return lines


def _nearest_key(path: list[str], keys: Mapping[str, Any], prefix: str) -> str:
    """The nearest key of the same table or, if the name exists elsewhere, where it belongs."""
    table: Any = keys
    for part in path[:-1]:
        table = table.get(part) or {}
    elsewhere = [f"{name}.{path[-1]}" for name, inner in keys.items() if isinstance(inner, dict) and path[-1] in inner]
    if len(path) > 1 and keys.get(path[-1], 0) is None:
        elsewhere.insert(0, path[-1])
    if elsewhere:
        return f", did you mean {elsewhere[0]}?"
    close = difflib.get_close_matches(path[-1], table, n=1, cutoff=0.5)
    return f", did you mean {prefix}{'.'.join([*path[:-1], close[0]])}?" if close else f" (valid: {', '.join(table)})"


def nearest(name: str, names: Any) -> str:
    """A question after the name that was probably meant, or nothing."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.4)
    return f" (did you mean {close[0]!r}?)" if close else ""
