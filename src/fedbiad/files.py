"""Writing files so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from fedbiad.errors import DataError

DRAFT = ".draft-"


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` through a temporary file in the same directory."""
    draft = path.with_name(f"{DRAFT}{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)  # noqa: PTH105  Path.replace would read as str.replace
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


@contextlib.contextmanager
def write_directory(path: Path) -> Iterator[Path]:
    """A new directory to fill: it is at `path` once everything in it is there and durable, or not at all."""
    if path.exists():
        raise DataError(f"{path} is already there; remove it, or choose another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{DRAFT}{secrets.token_hex(8)}")
    draft.mkdir()
    try:
        yield draft
        for file in draft.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def append_line(path: Path, line: str) -> None:
    """Append one line and make it durable before returning."""
    with path.open("ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def remove_drafts(directory: Path) -> None:
    """Remove what writes that were killed left behind."""
    for draft in directory.glob(f"{DRAFT}*"):
        draft.unlink()


def safe_name(label: str) -> str:
    """A label as the name of a file: letters, digits and a few signs."""
    return re.sub(r"[^A-Za-z0-9.+_-]+", "-", label).lstrip(".") or "unnamed"
