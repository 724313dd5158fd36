"""The software that decides the last bit of a result."""

from __future__ import annotations

import platform
from importlib import metadata


def versions() -> dict[str, str]:
    """What is installed here, by name."""
    names = ("fedbiad", "torch", "numpy")
    found = {name: metadata.version(name) for name in names}
    return {**found, "python": platform.python_version(), "machine": platform.machine()}
