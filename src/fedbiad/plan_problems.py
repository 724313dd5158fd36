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
    if not isinstance(options, dict):
        return None, [f"methods.{name}: should be a table, not {json.dumps(options, default=str)}"]
    try:
        merged = json.dumps({**values, **options}, default=str)
        method: Method = TypeAdapter(type(preset)).validate_json(merged, strict=True)
    except ValidationError as error:
        return None, key_problems(error, dict.fromkeys(values), prefix=f"methods.{name}.")
    return method, []


def key_problems(error: ValidationError, keys: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One line for each key with a problem: what is wrong, and the nearest valid key."""
    lines: dict[str, str] = {}
    for item in error.errors(include_url=False):
        unknown = item["type"] in ("unexpected_keyword_argument", "extra_forbidden")
        path = _key_path(item["loc"], keys, unknown)
        key = prefix + ".".join(path)
        said = item["msg"].lower().replace("an object", "a table").replace(" after validation", "")
        if unknown:
            lines[key] = f"unknown key {key}{_nearest_key(path, keys, prefix)}"
        elif item["type"] in ("missing", "missing_argument"):
            lines[key] = f"{key} is missing"
        elif key in lines:  # another member of a union: one problem, not two
            lines[key] = lines[key].replace(", not ", f", or {said.removeprefix('input ')}, not ", 1)
        else:
            lines[key] = f"{key}: {said}, not {json.dumps(item['input'], default=str)}"
    return list(lines.values())


def _key_path(where: tuple[int | str, ...], keys: Mapping[str, Any], unknown: bool) -> list[str]:
    """The parts of a location that are keys, without the names of union members."""
    path: list[str] = []
    table: Any = keys
    for part in map(str, where):
        if isinstance(table, Mapping) and part in table:
            path.append(part)
            table = table[part]
        elif part.isdigit() or unknown:
            path.append(part)
            table = None
    return path


def key_problems_of(settings: Any) -> list[str]:
    """Problems of a dataclass of settings made in code, where nothing was checked yet."""
    values = dataclasses.asdict(settings)
    try:
        TypeAdapter(type(settings)).validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        return key_problems(error, dict.fromkeys(values))
    return []


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
