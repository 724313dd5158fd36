"""docs/performance.md from the benchmarks' files in results/: `make bench` and `make bench-peers`, then this.

    python benchmarks/page.py [--out docs/performance.md]

The words are here, every number comes from a file; a part whose file is missing says how to make it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbiad.files import write_atomically

RESULTS = Path("results")
HEAD = """# Performance

Written by `benchmarks/page.py` from `results/engine.json`, `results/lstm.json`, `results/peers.json` and
`results/memory.json`. Every table is of one run in which its rows took turns, so that a busy spell hits all alike;
medians, with the least and the most where there is room. Ratios carry over to other machines, milliseconds do not.
A table is as old as its file: `git log results/` tells of which engine it is.
"""


NEXT = """
`kernels.train` is local training itself; `strips._multiply` makes X U1^T and `strips._accumulate` the sum of all A^T X,
both without the background of the images. Rounds are timed with clients met before: the first time a client comes, its
Gram matrix and its strips are made as well. What is left besides is Python, a little for every client, and, with
workers, the time in which the first process adds up and hands out while the others wait: two of them gain less the
shorter a round is. Part of an iteration does not depend on the number of units (exponentials, sums across vectors,
bias), so half of them cost more than half; and FedBIAD swaps a tenth of the held units at a check, which is what it
needs more than FedDrop. The longer a client trains, the more of its checks swap: a loss that hardly falls any more
rises often. A swap is memory: a held unit has a number in every sample's row of P and A, and with 128 held units of 60
samples these two alone are larger than many a first cache. Units swap in turn, so that those of one swap stand side by
side and change places by whole vectors; when every swap drew its units anew, each moved alone, number by number, and
the iteration took 0.66 of FedAvg's where it takes 0.59 now (one processor, by turns).
By samples of `perf` inside the kernel the product with the Gram matrix is half of FedBIAD's iteration, at about the
speed of the processor's multiplications; then the two updates and the logits, each about a ninth, the softmax, a
twelfth, and the swaps, half of that without the lines they drive out of the cache.
What would be next: the listing of units by vector instructions, held units taken and put back by them; two clients by
turns so that one's softmax fills the other's waiting; X U1^T of a client made just before it trains, so that P is still
in the cache; each process adding up its part of the weights. Tried without gain: all units in a ring, of which the held
ones are a part that moves on, so that a swap moves nothing (rows that begin anywhere are so much slower to read that
the iteration took 0.72); fewer moves of lanes where sums across vectors are made, larger tiles of logits; P of units
that come written when a sample is next visited, or an iteration before that; units not held masked instead of moved
aside; lines of P asked for ahead; A moved before P, or both in one loop; X U1^T a hundred inputs at a time; tiles of
ten rows and 32 columns; without AVX-512, columns read number by number instead of gathered, and longer rows; held units
in panels as wide as a vector, a unit's numbers close together.
"""


def read(name: str) -> dict[str, Any] | None:
    """A benchmark's file, if it was run."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def machine(found: dict[str, Any]) -> str:
    """What it was measured on."""
    own = found["machine"]
    return f"{own['cpu']}, {own['cores']} cores, load {own['load']:.1f} when it began, torch {own['torch']}.\n"


def milliseconds(found: dict[str, Any], first: str) -> str:
    """A table of the engine's benchmark."""
    rows = [
        (label, f"{1e3 * own['median']:.1f}", f"{1e3 * own['least']:.1f} to {1e3 * own['most']:.1f}",
         f"{own['ratio']:.2f}")
        for label, own in found.items()
    ]  # fmt: skip
    return table((first, "ms a round", "least to most", "ratio"), rows)


def peers() -> str:
    """Against other simulators."""
    text = """## Other simulators

MLP 784-128-10 on MNIST, 1000 clients of 60 images, 100 a round, batches of 10, plain SGD, accuracy on the test set
every tenth round; everyone has the same two cores and takes its own best setting of threads and workers.
`make bench-peers` installs each in an environment of its own, gives all the same weights and clients, and checks that
the accuracies agree.

"""
    found = read("peers")
    if found is None:
        return text + "Not measured yet: `make bench-peers`.\n"
    own = found["machine"]
    text += f"{own['cpu']}, {own['cores_used']} cores.\n"
    for epochs in sorted({row["epochs"] for row in found["table"]}):
        rows = [
            (row["peer"], row["version"], " x ".join(map(str, row["setting"])), f"{row['median']:.2f}",
             f"{row['lowest']:.2f} to {row['highest']:.2f}", f"{row['ratio']:.1f}")
            for row in found["table"] if row["epochs"] == epochs
        ]  # fmt: skip
        text += f"\n{epochs} local epoch{'s' if epochs > 1 else ''}:\n\n"
        text += table(
            ("simulator", "version", "threads x workers", "rounds a second", "lowest to highest", "ours / it"), rows
        )
    agreed = found["agreement"]
    if agreed:
        each = ", ".join(f"{peer} {100 * value:.1f}" for peer, value in agreed["accuracies"].items())
        text += f"\nAccuracy after round {agreed['round']} at {agreed['epochs']} epochs: {each}.\n"
    for failure in found["failures"]:
        text += f"\nFailed: {failure['peer']} ({failure['what']}).\n"
    return text


def engine() -> str:
    """Against itself."""
    found = read("engine")
    if found is None:
        return "## The engine against itself\n\nNot measured yet: `make bench`.\n"
    text = f"""## The engine against itself

The same work without evaluation, one thread, FedAvg unless said otherwise. {machine(found)}
"""
    for epochs in (1, 5):
        own = found[f"forms, {epochs} epochs"]
        text += f"\nForms of local training, {epochs} local epoch{'s' if epochs > 1 else ''}; "
        text += f"fused runs at {own['fused']['of_limit']:.2f} of the limit that the plain form's multiplications "
        text += f"set at {found['product_speed'] / 1e9:.0f} GFLOP/s (it needs fewer of them):\n\n"
        text += milliseconds(own, "form")
    titles = {
        "methods": "Methods at p = 0.5, 5 epochs", "compressors": "Compressors, 5 epochs",
        "block": "Clients of a block, 5 epochs", "clients": "Clients a round, 5 epochs, blocks of 10",
        "width": "Hidden units, 5 epochs", "epochs": "Local epochs",
        "workers, 1 epochs": "Worker processes, 1 epoch", "workers, 5 epochs": "Worker processes, 5 epochs",
        "workers, PTB": "Worker processes, PTB's language model, 10 clients of 20 iterations a round",
    }  # fmt: skip
    for key, title in titles.items():
        if not found.get(key):
            continue
        text += f"\n{title}:\n\n" + milliseconds(found[key], title.split(",")[0].split(" at ")[0].lower())
    steps = [
        (label, f"{1e6 * own['median']:.2f}", f"{own['ratio']:.2f}") for label, own in found["local steps"].items()
    ]
    text += "\nOne more local iteration of a client, its checks and changes of pattern included, p = 0.5:\n\n"
    text += table(("method", "microseconds", "ratio"), steps)
    for name, own in found["profile"].items():
        text += f"\nWhere the time of a round goes, {name}, 5 epochs (own time of the largest functions):\n\n"
        text += table(("function", "share"), [(f"`{part}`", f"{100 * share:.0f} %") for part, share in own.items()])
    return text + NEXT


def language() -> str:
    """The LSTM's step."""
    found = read("lstm")
    if found is None:
        return "## A step of the language model\n\nNot measured yet: `make bench`.\n"
    text = f"""## A step of the language model

Embedding 300, LSTM 2 x 300, 10,000 words; one client, one thread, half of the rows of a kind dropped. The limit is the
time of the step's multiplications at the speed of one large product. {machine(found)}
"""
    for shape, own in found["steps"].items():
        full = own["fedavg"]
        rows = [(label, f"{value / full:.2f}") for label, value in own.items()]
        text += f"\n{shape} tokens, FedAvg {1e3 * full:.1f} ms = 1:\n\n" + table(("step", "ratio"), rows)
    return text


def memory() -> str:
    """A million clients."""
    found = read("memory")
    text = "## Registered clients\n\n"
    if found is None:
        return text + "Not measured yet: `make bench`.\n"
    first = found["rows"][0]
    rows = [
        (f"{row['clients']:,}", f"{row['peak_bytes'] / 1e6:.0f}", f"{row['peak_bytes'] / first['peak_bytes']:.2f}",
         f"{1e3 * row['round_seconds']:.1f}", f"{row['round_seconds'] / first['round_seconds']:.2f}")
        for row in found["rows"]
    ]  # fmt: skip
    head = ("registered clients", "peak memory, MB", "ratio", "ms a round", "ratio")
    return (
        text
        + machine(found)
        + "FedBIAD, 100 clients a round, data in a memory-mapped file, states on disk.\n\n"
        + table(head, rows)
        + "".join(
            f"\nPTB at its real size, FedBIAD, {one['selected']} of 100 clients a round: a peak of "
            f"{one['peak_bytes'] / 1e6:.0f} MB; the weights of one client are {one['weight_bytes'] / 1e6:.1f} MB.\n"
            for one in found.get("ptb", [])
        )
    )


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/performance.md"))
    arguments = parser.parse_args()
    parts = [HEAD, peers(), engine(), language(), memory()]
    write_atomically(arguments.out, "\n".join(parts).encode())
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
