"""A virtual environment for each peer, made once and made anew when what belongs into it changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedbiad.files import write_atomically

TORCH = "torch==2.13.0"
NUMPY = "numpy==2.4.6"
READY = "ready.json"

INSTALLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "torch": ((TORCH, NUMPY),),
    "flower": ((TORCH, NUMPY), ("flwr[simulation]==1.41.0", "ray==2.55.1", TORCH, NUMPY)),
    "pfl": ((TORCH, NUMPY), ("pfl[pytorch]==0.6.0", TORCH, NUMPY)),
    # torchvision is left out: a build of it fits one build of torch only, and only unused data sets ask for it
    "fedlab": ((TORCH, NUMPY, "pandas", "scikit-learn", "pynvml", "tqdm", "pillow"), ("--no-deps", "fedlab==1.3.0")),
    "fedjax": (("fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2", "dm-haiku==0.0.17", NUMPY),),
}
"""By peer: what pip installs, step by step; torch before a peer that would ask for a larger one."""


class InstallError(Exception):
    """An environment could not be made; the message says which and why."""


def interpreter(directory: Path) -> Path:
    """The Python of an environment."""
    return directory / "bin" / "python"


def make(directory: Path, steps: Sequence[Sequence[str]], say: Callable[[str], None]) -> None:
    """Make the environment unless it is there with the same content."""
    wanted = json.dumps([list(step) for step in steps]).encode()
    ready = directory / READY
    if ready.exists() and ready.read_bytes() == wanted:
        return
    say(f"making the environment {directory.name}")
    shutil.rmtree(directory, ignore_errors=True)
    _checked([sys.executable, "-m", "venv", str(directory)], directory.name)
    pip = [str(interpreter(directory)), "-m", "pip", "--disable-pip-version-check"]
    for step in steps:
        _checked([*pip, "install", "--quiet", "--no-compile", *step], directory.name)
    if any(TORCH in step for step in steps):
        _check_torch(directory)
    write_atomically(ready, wanted)


def _check_torch(directory: Path) -> None:
    """All peers on torch stand on the same one; a peer's own wish must not have replaced it."""
    ask = "from importlib.metadata import version; print(version('torch'))"
    found = _checked([str(interpreter(directory)), "-c", ask], directory.name).strip()
    if found.split("+")[0] != TORCH.split("==")[1]:
        raise InstallError(f"{directory.name}: torch {found} was installed instead of {TORCH}")


def _checked(command: list[str], name: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise InstallError(f"{name}: {' '.join(command[1:])} failed:\n{last}")
    return done.stdout
