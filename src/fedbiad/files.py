"""Writing files so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

DRAFT = ".draft-"


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` through a temporary file in the same directory."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=DRAFT)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105  a Path method of the same name would read as str.replace
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
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
