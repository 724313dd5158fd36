"""Atomic writes: the old content or the new, whatever happens in between."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fedbiad import files
from fedbiad.files import append_line, remove_drafts, write_atomically


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


class TestWriteAtomically:
    def test_writes_and_replaces(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        for content in (b"first, and longer", b"second", b""):
            write_atomically(path, content)
            assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("call", ["fsync", "replace"])
    @pytest.mark.parametrize("failure", [full, interrupted])
    def test_a_failure_leaves_the_old_content_and_no_draft(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, failure: object
    ) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"old")
        monkeypatch.setattr(os, call, failure)
        with pytest.raises((OSError, KeyboardInterrupt)):
            write_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_failure_of_a_first_write_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            write_atomically(tmp_path / "file", b"new")
        assert list(tmp_path.iterdir()) == []

    def test_the_content_is_durable_before_it_takes_the_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, seen = tmp_path / "file", []
        synchronise, replace = os.fsync, os.replace

        def fsync(handle: int) -> None:
            seen.append(("fsync", os.fstat(handle).st_size, path.exists()))
            synchronise(handle)

        def swap(source: str, target: Path) -> None:
            seen.append(("replace", Path(source).stat().st_size, path.exists()))
            assert Path(source).parent == target.parent  # another file system could not be renamed into
            replace(source, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", swap)
        write_atomically(path, b"12345")
        assert seen == [("fsync", 5, False), ("replace", 5, False)]


class TestAppendLine:
    def test_lines_follow_each_other(self, tmp_path: Path) -> None:
        path = tmp_path / "lines"
        for line in ("one", "zwölf", ""):
            append_line(path, line)
        assert path.read_bytes() == "one\nzwölf\n\n".encode()

    def test_a_line_is_durable_before_it_returns(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes: list[int] = []
        monkeypatch.setattr(os, "fsync", lambda handle: sizes.append(os.fstat(handle).st_size))
        append_line(tmp_path / "lines", "123")
        append_line(tmp_path / "lines", "56")
        assert sizes == [4, 7]

    def test_a_full_disk_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            append_line(tmp_path / "lines", "123")


def test_drafts_are_removed_and_nothing_else(tmp_path: Path) -> None:
    drafts = [tmp_path / f"{files.DRAFT}{i}" for i in range(3)]
    others = [tmp_path / name for name in ("draft", ".hidden", "file.draft-1")]
    for path in (*drafts, *others):
        path.write_bytes(b"x")
    remove_drafts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_killed_write_leaves_what_remove_drafts_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(Path, "unlink", full)  # killed: nothing tidies up
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "file", b"x")
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    remove_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == []
