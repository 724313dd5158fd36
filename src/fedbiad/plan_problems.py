"""What is wrong with a plan, in words: every problem at once, each with its key and the nearest valid one."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedbiad.compressors import COMPRESSORS, Compressor
from fedbiad.methods import METHODS, Method
from fedbiad.names import nearest, parse


def method_problems(method: str, dropout_rate: float, options: Any, compression: Any) -> list[str]:
    """Problems of the method chosen and of every [methods.NAME] and [compressors.NAME] table."""
    name, problems = parse(method)
    methods, compressors = ({} if not isinstance(t, dict) else t for t in (options, compression))
    if name is not None:
        problems += resolve(method, dropout_rate, methods, compressors)[2]
    for other in methods:
        if name is None or other != name.method:
            problems += _preset(other, METHODS, "method", dropout_rate, methods[other])[1]
    for other in compressors:
        if name is None or other != name.compressor:
            problems += _preset(other, COMPRESSORS, "compressor", dropout_rate, compressors[other])[1]
    return problems


def resolve(
    name: str, dropout_rate: float, methods: Mapping[str, Any], compressors: Mapping[str, Any]
) -> tuple[Method | None, Compressor | None, list[str]]:
    """What a name stands for, with the plan's dropout rate and the options of its tables; or what is wrong with it."""
    parsed, problems = parse(name)
    if parsed is None:
        return None, None, problems
    method, problems = _with_options(
        parsed.method_preset, f"methods.{parsed.method}", dropout_rate, methods.get(parsed.method, {})
    )
    preset = parsed.compressor_preset
    if preset is None:
        return method, None, problems
    chosen = compressors.get(parsed.compressor or "", {})
    compressor, more = _with_options(preset, f"compressors.{parsed.compressor}", dropout_rate, chosen)
    return method, compressor, problems + more


def _preset(name: str, known: Mapping[str, Any], kind: str, dropout_rate: float, options: Any) -> tuple[Any, list[str]]:
    if name not in known:
        return None, [f"{kind}s.{name}: unknown {kind} {name!r}{nearest(name, known)}; there are {', '.join(known)}"]
    return _with_options(known[name], f"{kind}s.{name}", dropout_rate, options)


def _with_options(preset: Any, where: str, dropout_rate: float, options: Any) -> tuple[Any, list[str]]:
    """A preset with options changed, checked."""
    values = dataclasses.asdict(preset)
    if "dropout_rate" in values:
        values["dropout_rate"] = dropout_rate
    if not isinstance(options, dict):
        return None, [f"{where}: should be a table, not {json.dumps(options, default=str)}"]
    try:
        merged = json.dumps({**values, **options}, default=str)
        return TypeAdapter(type(preset)).validate_json(merged, strict=True), []
    except ValidationError as error:
        return None, key_problems(error, dict.fromkeys(values), prefix=f"{where}.")


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
