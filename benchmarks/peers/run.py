"""The same federated work in other simulators and in ours: rounds a second, as ratios.

    python benchmarks/peers/run.py [--only ours,fedjax] [--repeats 3] [--quick] [--out results/peers.json]

The work: an MLP 784-128-10 on MNIST, 1000 clients of 60 images, 100 a round, local batches of 10, SGD with learning
rate 0.1, 1 or 5 local epochs, the plain mean, accuracy on the test set every tenth round. All start from the same
weights and have the same clients. Timed are the rounds after a warm-up, evaluations included; imports, reading data,
starting workers and compiling are not.

Each peer lives in an environment of its own (`.peers/`, made when missing). All have the same two cores. The first
repeat runs every setting of threads and workers a peer offers, the later ones the fastest of them. Repeats are
interleaved, so a busy spell hits all alike. Accuracies of different simulators must agree, or they did not do the same
work.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import environments
import prepare
import results
import work
from results import OURS, Run

from fedbiad.errors import FedbiadError
from fedbiad.files import write_atomically

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOME = ROOT / ".peers"
CORES = 2
EPOCHS = (1, 5)
AGREE_AT = 5
WARMUP = 2
QUICK_ROUNDS = 3
TIMEOUT = 1200.0
LAST_LINES = 12


@dataclass(frozen=True)
class Peer:
    """How a peer is run: its script, settings (threads, workers), and rounds in all at 1 and at 5 epochs."""

    script: str
    settings: tuple[tuple[int, int], ...]
    rounds: tuple[int, int]


PEERS = {
    OURS: Peer("ours.py", ((1, 1), (1, 2)), (200, 200)),
    "fedjax": Peer("peer_fedjax.py", ((1, 1), (2, 1), (1, 2)), (30, 10)),
    "torch": Peer("peer_torch.py", ((1, 1), (2, 1)), (10, 10)),
    "pfl": Peer("peer_pfl.py", ((1, 2), (2, 1)), (10, 10)),
    "fedlab": Peer("peer_fedlab.py", ((1, 1), (2, 1), (1, 2)), (10, 10)),
    "flower": Peer("peer_flower.py", ((1, 2), (2, 1)), (10, 10)),
}
"""Rounds in all are multiples of ten: the evaluations then weigh alike, and round 10 is judged in every run."""


@dataclass
class Book:
    """All that happened so far."""

    runs: list[Run] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def fail(self, peer: str, what: str, lines: str) -> None:
        """Note a failure and say so."""
        lines = lines.replace(str(ROOT), ".")
        self.failures.append({"peer": peer, "what": what, "lines": lines.splitlines()})
        say(f"{peer} FAILED: {what}\n" + "\n".join(f"    {line}" for line in lines.splitlines()))


def main() -> None:
    """Make environments, run the peers, write the results, print the table."""
    asked = parse()
    cores = two_cores()
    try:
        prepare.prepare(HOME / "data")
    except FedbiadError as error:
        raise SystemExit(f"peers: {error}") from None
    book = Book()
    names = ready_peers(asked.only, book)
    began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    repeats = 1 if asked.quick else asked.repeats
    for repeat in range(1, repeats + 1):
        for epochs in EPOCHS:
            for name in names:
                for setting in settings_of(name, epochs, repeat, asked.quick, book.runs):
                    one_run(name, epochs, setting, repeat, asked.quick, book)
    agreed = results.agreement(book.runs, AGREE_AT)
    if asked.out:
        write(asked.out, began, cores, book, agreed)
    show(book, agreed)
    if book.failures or (agreed is not None and not agreed.holds):
        raise SystemExit(1)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PEERS), help="peers, with commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few rounds of one setting: does everything work?")
    parser.add_argument("--out", type=Path, help="write all runs to this JSON file")
    asked = parser.parse_args()
    unknown = [name for name in asked.only if name not in PEERS]
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; choose among {', '.join(PEERS)}")
    if asked.repeats < 1:
        parser.error("--repeats must be at least 1")
    return asked


def two_cores() -> list[int]:
    """Keep this process, and so all it starts, on two cores."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    return cores


def ready_peers(names: Sequence[str], book: Book) -> list[str]:
    """The peers whose environments are there or could be made."""
    ready = []
    for name in names:
        try:
            if name != OURS:
                environments.make(HOME / name, environments.INSTALLS[name], say)
            ready.append(name)
        except environments.InstallError as error:
            book.fail(name, "its environment cannot be made", str(error))
    return ready


def settings_of(name: str, epochs: int, repeat: int, quick: bool, runs: Sequence[Run]) -> Sequence[tuple[int, int]]:
    """All settings of a peer in the first repeat, the fastest after that; none once nothing has worked."""
    if repeat == 1:
        return PEERS[name].settings[:1] if quick else PEERS[name].settings
    tried = [run for run in runs if run.peer == name and run.epochs == epochs and run.repeat == 1]
    return [results.fastest_setting(tried)] if tried else []


def one_run(name: str, epochs: int, setting: tuple[int, int], repeat: int, quick: bool, book: Book) -> None:
    """Run a peer's script once and note what came of it."""
    peer, (threads, workers) = PEERS[name], setting
    total = WARMUP + QUICK_ROUNDS if quick else peer.rounds[EPOCHS.index(epochs)]
    load = os.getloadavg()[0]
    what = f"{epochs} epochs, {threads} threads x {workers} workers"
    python = sys.executable if name == OURS else str(environments.interpreter(HOME / name))
    command = [python, str(HERE / peer.script), "--data", str(HOME / "data"), "--epochs", str(epochs),
               "--rounds", str(total - WARMUP), "--warmup", str(WARMUP),
               "--threads", str(threads), "--workers", str(workers)]  # fmt: skip
    code, output = finished(command, environment(name, threads))
    run = results.read_line(output, repeat, load) if code == 0 else None
    if run is None:
        why = "took too long" if code is None else f"ended with code {code} and no result"
        book.fail(name, f"{what}: {why}", "\n".join(output.strip().splitlines()[-LAST_LINES:]))
        return
    book.runs.append(run)
    say(f"repeat {repeat}: {name:7} {what}: {run.rounds_per_second:.2f} rounds/s, accuracy {run.accuracy:.4f} "
        f"after {total} rounds, load before {load:.2f}")  # fmt: skip


def environment(name: str, threads: int) -> dict[str, str]:
    """The environment variables of a run: no more threads than asked, and for a peer nothing of this project."""
    chosen = dict(os.environ)
    if name != OURS:
        chosen.pop("PYTHONPATH", None)
    return chosen | {f"{kind}_NUM_THREADS": str(threads) for kind in ("OMP", "MKL", "OPENBLAS")}


def finished(command: list[str], variables: dict[str, str]) -> tuple[int | None, str]:
    """Exit code (None: took too long) and all output of a command; whatever it started ends with it."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=variables,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def machine(cores: Sequence[int]) -> dict[str, Any]:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return {"cpu": model, "cores": os.cpu_count(), "cores_used": len(cores) or os.cpu_count(),
            "system": platform.system(), "python": platform.python_version()}  # fmt: skip


def write(path: Path, began: str, cores: Sequence[int], book: Book, agreed: results.Agreement | None) -> None:
    """All runs and what they come to, as JSON."""
    content = {
        "began": began,
        "machine": machine(cores),
        "work": {name.lower(): getattr(work, name) for name in (
            "INPUTS", "HIDDEN", "CLASSES", "CLIENTS", "SAMPLES", "SELECTED", "BATCH", "LEARNING_RATE", "EVALUATE_EVERY"
        )},
        "table": [dataclasses.asdict(row) for epochs in EPOCHS for row in results.rows(book.runs, epochs)],
        "agreement": None if agreed is None else {**dataclasses.asdict(agreed), "holds": agreed.holds},
        "runs": [dataclasses.asdict(run) for run in book.runs],
        "failures": book.failures,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
    say(f"wrote {path}")


def show(book: Book, agreed: results.Agreement | None) -> None:
    """The tables, the accuracies and what failed."""
    for epochs in EPOCHS:
        rows = results.rows(book.runs, epochs)
        if rows:
            print(f"\n{epochs} local epoch{'s' if epochs > 1 else ''} "
                  f"({epochs * work.SAMPLES // work.BATCH} steps a client)\n{results.table(rows)}")  # fmt: skip
    if agreed is None:
        print("\naccuracies were not compared: no round was judged in every run")
    else:
        listed = ", ".join(f"{peer} {value:.2%}" for peer, value in agreed.accuracies.items())
        verdict = "agree" if agreed.holds else f"DISAGREE by more than {results.TOLERANCE:.1%}"
        print(f"\naccuracies after round {agreed.round} at {agreed.epochs} epochs {verdict}: {listed}")
    for failure in book.failures:
        print(f"{failure['peer']} failed: {failure['what']}")


def say(line: str) -> None:
    """Tell how far things are, apart from the table."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
