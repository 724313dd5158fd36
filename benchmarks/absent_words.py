"""The Gaussian term for absent words against the exact sum: on a trained model, and by what training with it comes to.

    python benchmarks/absent_words.py [--rounds 20] [--vocabulary 2000] [--width 128] [--judged 10] [--seeds 0]

Penn Treebank, FedAvg; the smaller model trains in minutes. The exact run's model is looked at after a quarter of its
rounds and at the end: for each token of the judged clients' own data, log sum_A exp(z_w) over the words the client
lacks, and a(h), which stands for it; and what that makes of the negative log likelihood. `left out`: with neither.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedbiad import plan as plans
from fedbiad.arrays import Params
from fedbiad.cohort import Cohort
from fedbiad.data.language import LanguageData
from fedbiad.experiment import Experiment, build, load_federated
from fedbiad.models import Model
from fedbiad.plan import Plan
from fedbiad.training.batches import Batch
from fedbiad.training.local_words import LocalWords

WINDOWS = 64
"""Windows looked at side by side."""


def main() -> None:
    """Train both ways, look at the exact run's model, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--judged", type=int, default=10, help="clients on whose data the term is compared")
    parser.add_argument("--seeds", default="0", help="comma-separated")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in map(int, arguments.seeds.split(",")):
        settings = {
            "seed": str(seed), "rounds": str(arguments.rounds), "data.vocabulary": str(arguments.vocabulary),
            "model.embedding": str(arguments.width), "model.hidden": f"[{arguments.width}]", "method": "fedavg",
            "evaluate_last": "1",
        }  # fmt: skip
        plan = plans.load("ptb", settings)
        data = load_federated(plan)
        assert isinstance(data, LanguageData)
        for words in ("exact", "gaussian"):
            experiment = build(plans.load("ptb", {**settings, "training.absent_words": words}), data)
            for record, outcome in experiment.run(experiment.initial()):
                if record["accuracy"] is not None:
                    print(f"seed {seed}, {words:8} round {outcome.round:3}: test NLL {record['loss']:.4f}, "
                          f"top-3 {100 * record['accuracy']:.2f} %", flush=True)  # fmt: skip
                if words == "exact" and outcome.round in (plan.rounds // 4, plan.rounds):
                    compared(experiment, plan, data, outcome.u, arguments.judged)
            experiment.close()


def compared(experiment: Experiment, plan: Plan, data: LanguageData, u: Params, judged: int) -> None:
    """Print how far the term is from the exact sum on clients' own data, over all their tokens."""
    parts = [own for client in range(judged) for own in tokens(experiment.model, plan, data, u, client)]
    exact, term, own, answer = (torch.cat(column) for column in zip(*parts, strict=True))
    error = term - exact
    losses = {
        "exact": torch.logaddexp(own, exact), "with the term": torch.logaddexp(own, term), "left out": own,
    }  # fmt: skip
    share = (exact - losses["exact"]).exp()
    print(f"  {len(error):,} tokens of {judged} clients; absent words take {100 * share.mean():.2f} % of the softmax")
    print(f"  a(h) - log sum_A: mean {error.mean():+.1e}, mean size {error.abs().mean():.1e}, "
          f"largest {error.abs().max():.1e}")  # fmt: skip
    for label, total in losses.items():
        nll = (total - answer).mean()
        print(f"  NLL {label:14} {nll:.5f} ({nll - (losses['exact'] - answer).mean():+.5f})", flush=True)


def tokens(
    model: Model, plan: Plan, data: LanguageData, u: Params, client: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of every token: log sum_A exp(z_w), a(h), the same sum over own words, and the answer's logit; in float64."""
    received = {name: value.double().unsqueeze(0) for name, value in u.items()}
    local = data.local(Cohort(plan.seed, 1, (client,)), 1, 1)
    words = LocalWords(local, data.classes)
    with_term = {**words.only(received), **words.absent(received).params}
    lacking = torch.from_numpy(np.flatnonzero(~local.present(data.classes)[0]))
    placed = words.whole()
    for first in range(0, placed.inputs.shape[1], WINDOWS):
        inputs, answers, real = part(placed, first, data.bptt)
        exact = model.forward(received, inputs, {})[0][:, lacking].logsumexp(1)
        outputs = model.forward(with_term, inputs, {})[0]
        answer = outputs.gather(1, answers[:, None])[:, 0]
        yield exact[real], outputs[real, -1], outputs[real, :-1].logsumexp(1), answer[real]


def part(batch: Batch, first: int, bptt: int) -> tuple[Tensor, Tensor, Tensor]:
    """Some windows of a client's data, their answers, and which of these are no padding."""
    assert batch.weight is not None
    span = slice(first * bptt, (first + WINDOWS) * bptt)
    return batch.inputs[:, first : first + WINDOWS], batch.targets[0, span], batch.weight[0, span] > 0


if __name__ == "__main__":
    main()
