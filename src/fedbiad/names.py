"""What a method's name stands for: METHOD[:PROFILE][+COMPRESSOR[:PROFILE]], or a compressor alone (with fedavg).

Profiles: `original` (the default: what a user of that name expects) and `paper` (what the tables of the FedBIAD paper
imply), where they differ.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedbiad import compressors, methods
from fedbiad.compressors import COMPRESSORS, Compressor
from fedbiad.methods import METHODS, Method

PROFILES = ("original", "paper")


@dataclass(frozen=True)
class Name:
    """A name taken apart."""

    method: str
    method_profile: str = "original"
    compressor: str | None = None
    compressor_profile: str = "original"

    @property
    def method_preset(self) -> Method:
        """The method as its profile has it."""
        return methods.PAPER.get(self.method, METHODS[self.method]) if self._papers(0) else METHODS[self.method]

    @property
    def compressor_preset(self) -> Compressor | None:
        """The compressor as its profile has it."""
        if self.compressor is None:
            return None
        preset = COMPRESSORS[self.compressor]
        return compressors.PAPER.get(self.compressor, preset) if self._papers(1) else preset

    def _papers(self, part: int) -> bool:
        return (self.method_profile, self.compressor_profile)[part] == "paper"


def parse(name: str) -> tuple[Name | None, list[str]]:
    """The name taken apart, or what is wrong with it."""
    parts = [part.partition(":") for part in name.split("+")]
    if len(parts) > 2:
        return None, [f"{name!r} has {len(parts)} parts: a method and one compressor at most, e.g. 'fedbiad+dgc'"]
    problems = [
        f"unknown profile {profile!r} in {name!r}{nearest(profile, PROFILES)}; there are {', '.join(PROFILES)}"
        for _, colon, profile in parts
        if colon and profile not in PROFILES
    ]
    (first, _, first_profile), *rest = parts
    if not rest and first in COMPRESSORS:
        found = Name("fedavg", "original", first, first_profile or "original")
    else:
        second, _, second_profile = rest[0] if rest else ("", "", "")
        problems += _unknown("method", first, METHODS, "" if rest else " or a compressor")
        problems += _unknown("compressor", second, COMPRESSORS) if rest else []
        found = Name(first, first_profile or "original", second or None, second_profile or "original")
    return (None if problems else found), problems


def _unknown(kind: str, name: str, known: Mapping[str, Any], also: str = "") -> list[str]:
    if name in known:
        return []
    alternatives = f"{also} ({', '.join(COMPRESSORS)})" if also else ""
    return [f"unknown {kind} {name!r}{nearest(name, known)}; there are {', '.join(known)}{alternatives}"]


def nearest(name: str, names: Iterable[str]) -> str:
    """A question after the name that was probably meant, or nothing."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.4)
    return f" (did you mean {close[0]!r}?)" if close else ""
