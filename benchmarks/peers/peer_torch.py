"""No simulator: a loop in plain torch, one client after another, an `nn.Module` and an SGD optimiser."""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch_model
import work
from torch import nn


def main() -> None:
    """Run the rounds and print the line."""
    asked = work.arguments(__doc__)
    torch.set_num_threads(asked.threads)
    torch.manual_seed(work.SEED)
    data = work.load(asked.data)
    inputs, targets = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    model = torch_model.first_mlp(data)
    optimiser = torch.optim.SGD(model.parameters(), lr=work.LEARNING_RATE)
    accuracy = functools.partial(torch_model.accuracy, model, torch_model.test_set(data))
    rng, watch = np.random.default_rng(work.SEED), work.Stopwatch(asked)
    for number in range(1, asked.total + 1):
        start = nn.utils.parameters_to_vector(model.parameters()).detach()
        mean = torch.zeros_like(start)
        for client in rng.choice(work.CLIENTS, work.SELECTED, replace=False):
            nn.utils.vector_to_parameters(start.clone(), model.parameters())
            for _ in range(asked.epochs):
                for batch in torch_model.shuffled(work.SAMPLES, work.BATCH):
                    optimiser.zero_grad()
                    loss = nn.functional.cross_entropy(model(inputs[client, batch]), targets[client, batch])
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
            mean += nn.utils.parameters_to_vector(model.parameters()).detach() / work.SELECTED
        nn.utils.vector_to_parameters(mean, model.parameters())
        watch.round_over(number, accuracy)
    print(watch.line("torch", torch.__version__))


if __name__ == "__main__":
    main()
