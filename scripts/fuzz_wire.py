"""Feed damaged messages to the wire's reader: at random, and guided by coverage.

    fuzz_wire.py [--count 100000] [--engine random|atheris|both] [--seed 0]

Twice each: damaged as they are, none may be accepted; with a checksum recomputed over the damage (a forger's message),
none may crash the reader, or break what is promised of an accepted message. Exit code 1 at the first failure.
The coverage-guided engine is atheris: pip install 'fedbiad[fuzz]'.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

LONGEST = 8000
"""Larger messages of the corpus are left out: they only slow the search down."""


class Tally:
    """What became of the messages."""

    def __init__(self, sealed: bool, corpus: list[Any]) -> None:
        self.sealed, self.seen, self.accepted, self.genuine, self.slowest = sealed, 0, 0, 0, 0.0
        self.reasons: Counter[str] = Counter()
        self._genuine = {case.data for case in corpus}

    def judge(self, case: Any, data: bytes) -> bool:
        """Read one message; any error but a refusal ends the script. False: it was a genuine one and does not count."""
        import wire_samples as samples  # noqa: PLC0415 - after the engine has hooked into imports

        if self.sealed:
            data = samples.reseal(data)
        began = time.process_time()
        reason = samples.outcome(case, data)
        self.slowest = max(self.slowest, time.process_time() - began)
        if data in self._genuine:
            self.genuine += 1
            return False
        self.seen += 1
        if reason is not None:
            self.reasons["".join(c for c in reason.split(":")[0] if not c.isdigit())] += 1
            return True
        self.accepted += 1
        if not self.sealed:
            raise SystemExit(f"accepted: {data.hex()}")
        return True

    def __str__(self) -> str:
        kind = "checksum recomputed" if self.sealed else "damaged"
        refused = sum(self.reasons.values())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        common = ", ".join(f"{reason} {count}" for reason, count in self.reasons.most_common(6))
        return (
            f"{kind}: {self.seen} messages, {refused} refused, {self.accepted} accepted as other valid messages, "
            f"no crash; {self.genuine} more came out as genuine ones; slowest {1000 * self.slowest:.0f} ms; "
            f"process at most {peak} MB\n    {len(self.reasons)} kinds of reasons: {common}"
        )


def cases() -> list[Any]:
    """The messages to damage."""
    import wire_samples as samples  # noqa: PLC0415

    return [case for case in samples.corpus() if len(case.data) < LONGEST]


def run_random(count: int, sealed: bool, seed: int) -> None:
    """Random edits of the corpus."""
    import numpy as np  # noqa: PLC0415

    import wire_samples as samples  # noqa: PLC0415

    rng, corpus = np.random.default_rng(seed), cases()
    tally = Tally(sealed, corpus)
    while tally.seen < count:
        case, other = (corpus[int(i)] for i in rng.integers(0, len(corpus), 2))
        tally.judge(case, samples.mutate(case.data, other.data, rng))
    print(f"random, {tally}", flush=True)


def compiled_modules() -> list[str]:
    """What numba compiles cannot be instrumented."""
    root = Path(__file__).parent.parent / "src"
    found = [path for path in root.rglob("*.py") if re.search(r"fedbiad\.compiling|numba", path.read_text())]
    return [".".join(path.relative_to(root).with_suffix("").parts) for path in found]


def run_atheris(count: int, sealed: bool, seed: int) -> None:
    """libFuzzer's mutations, kept where they reach new branches of the reader; the first byte chooses the message."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["fedbiad"], exclude=compiled_modules()):
        corpus = cases()
    tally, directory = Tally(sealed, corpus), tempfile.TemporaryDirectory(prefix="fedbiad-fuzz-")

    def one_input(data: bytes) -> None:
        case = corpus[data[0] % len(corpus)] if data else corpus[0]
        tally.judge(case, data[1:])
        if tally.seen == count:
            print(f"atheris, {tally}", flush=True)
            directory.cleanup()
            os._exit(0)

    for i, case in enumerate(corpus):
        Path(directory.name, str(i)).write_bytes(bytes([i]) + case.data)
    options = [f"-runs={2 * count}", f"-seed={seed + 1}", f"-max_len={LONGEST}", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, directory.name], one_input)
    atheris.Fuzz()


def main() -> None:
    """Run the engines asked for, one after the other; atheris in processes of its own, which it ends itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="messages of each kind, over all engines")
    parser.add_argument("--engine", choices=["random", "atheris", "both"], default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", choices=["damaged", "sealed"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    engines = ["random", "atheris"] if arguments.engine == "both" else [arguments.engine]
    if "atheris" in engines and importlib.util.find_spec("atheris") is None:
        raise SystemExit("the coverage-guided engine is not installed: pip install 'fedbiad[fuzz]', or --engine random")
    if arguments.one:
        run = run_atheris if arguments.engine == "atheris" else run_random
        run(arguments.count, arguments.one == "sealed", arguments.seed)
        return
    share = -(-arguments.count // len(engines))
    for engine in engines:
        for one in ("damaged", "sealed"):
            options = ["--engine", engine, "--one", one, "--count", str(share), "--seed", str(arguments.seed)]
            done = subprocess.run([sys.executable, __file__, *options], stderr=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{engine}, {one}: failed\n{done.stderr}")


if __name__ == "__main__":
    main()
