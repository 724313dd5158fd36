"""Kill runs with SIGKILL at random moments, resume them, and compare with undisturbed runs bit for bit.

    kill_test.py --kills 100 [--seed 0] [--plans digits,disk,mnist]

Every plan runs once undisturbed. Then, again and again: start it in a fresh directory, kill it after a random time,
resume, kill again ..., until it ends. Model, scores of every client and rounds.jsonl (times aside) must be the same.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedbiad.checkpoint import Checkpoints

PLANS = {
    "digits": [
        "digits", "--set", "rounds=12", "--set", "methods.fedbiad.stage_boundary=8", "--set", "method=fedbiad+dgc",
    ],
    "disk": [
        "digits", "--set", "rounds=12", "--set", "method=feddrop+dgc", "--set", "engine.store=disk",
        "--set", "engine.checkpoint_every=2",
    ],
    "mnist": [
        "mnist", "--set", "rounds=6", "--set", "data.clients=400", "--set", "methods.fedbiad.stage_boundary=4",
        "--set", "training.selected=20", "--set", "engine.checkpoint_every=2",
    ],
}  # fmt: skip
ROUNDS = {"digits": 12, "disk": 12, "mnist": 6}


def main() -> None:
    """Run the test; exit code 1 at the first difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plans", default="digits,disk,mnist")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedbiad-kill-") as scratch:
        kills = kill_until(arguments.kills, arguments.plans.split(","), random.Random(arguments.seed), Path(scratch))
    print(f"{kills} kills, {kills} resumes, every result bit-identical")


def kill_until(wanted: int, plans: list[str], rng: random.Random, scratch: Path) -> int:
    """Kill and resume until `wanted` kills have hit; returns how many did."""
    references = {plan: _reference(plan, scratch) for plan in plans}
    kills = runs = 0
    while kills < wanted:
        plan = plans[runs % len(plans)]
        each_round, expected = references[plan]
        directory = scratch / f"{plan}-{runs}"
        runs += 1
        while not (directory / "summary.json").exists():
            # wait for a random later round, then strike at a random moment within the next one
            target = rng.randint(_rounds_done(directory), ROUNDS[plan]) if kills < wanted else None
            kills += _run_and_kill(plan, directory, target, rng.uniform(0, 1.5 * each_round))
        found = outcome(directory)
        differing = [key for key in expected if found[key] != expected[key]]
        if differing:
            raise SystemExit(f"{plan}: after {kills} kills a resumed run differs in {', '.join(differing)}")
        print(f"{plan}: {kills} kills so far, result identical", flush=True)
    return kills


def _reference(plan: str, scratch: Path) -> tuple[float, dict[str, Any]]:
    """Run undisturbed: seconds a round, and the outcome."""
    directory = scratch / f"{plan}-undisturbed"
    subprocess.run(_command(plan, directory), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    rounds = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    return sum(sum(r["seconds"].values()) for r in rounds) / len(rounds), outcome(directory)


def _run_and_kill(plan: str, directory: Path, target: int | None, delay: float) -> int:
    """Start or resume, kill `delay` seconds after round `target` (None: let it end); 1 if a living process was hit."""
    resumed = (directory / "plan.toml").exists()
    command = [sys.executable, "-m", "fedbiad", "resume", str(directory)] if resumed else _command(plan, directory)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        while target is not None and process.poll() is None:
            if _rounds_done(directory) >= target and (target > 0 or (directory / "checkpoints").exists()):
                time.sleep(delay)
                alive = process.poll() is None
                process.send_signal(signal.SIGKILL)
                process.wait()
                return int(alive)
            time.sleep(0.002)
        if process.wait():
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.read().decode()}")
    return 0


def _rounds_done(directory: Path) -> int:
    path = directory / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _command(plan: str, directory: Path) -> list[str]:
    return [sys.executable, "-m", "fedbiad", "run", *PLANS[plan], "--out", str(directory)]


def outcome(directory: Path) -> dict[str, Any]:
    """What must be the same: model, what server and clients remember, rounds, summary; times aside."""
    rounds = [json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((directory / "summary.json").read_text())
    for record in (*rounds, summary):
        del record["seconds"]
    for timed in ("lttr", "time_to_accuracy"):
        del summary[timed]
    last, damaged = Checkpoints(directory / "checkpoints").load()
    if last is None or damaged:
        raise SystemExit(f"{directory}: a checkpoint is missing or damaged")
    model = {name: value.numpy().tobytes() for name, value in last.u.items()}
    memory = {name: value.tobytes() for name, value in (*last.server.items(), *last.states.items())}
    return {"model": model, "memory": memory, "rounds": rounds, "summary": summary}


if __name__ == "__main__":
    main()
