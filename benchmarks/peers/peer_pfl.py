"""pfl-research: its federated averaging over its simulated backend.

More than one worker: torchrun starts this script once for each, as pfl's documentation has it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import torch_model
import work
from torch import Tensor, nn

ASKED = work.arguments(__doc__)
if ASKED.workers > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:  # pfl joins its workers when it is imported
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ASKED.workers}"]
    os.execv(sys.executable, [sys.executable, *start, *sys.argv])

from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]  # noqa: E402
from pfl.callback.central_evaluation import CentralEvaluationCallback  # type: ignore[import-not-found]  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]  # noqa: E402
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found]  # noqa: E402
from pfl.metrics import Metrics, StringMetricName, Weighted  # type: ignore[import-not-found]  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]  # noqa: E402

NEVER = 10**9
"""pfl can judge the clients' models as well; it is asked to once in so many rounds."""


class Net(nn.Sequential):
    """The model with the two methods pfl asks of one."""

    def __init__(self, data: work.Data) -> None:
        super().__init__(*torch_model.first_mlp(data))

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """What a client minimises."""
        return nn.functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """What the model is judged by."""
        return {"accuracy": Weighted(float((self(inputs).argmax(1) == targets).sum()), len(targets))}


class AfterRound(TrainingProcessCallback):  # type: ignore[misc]
    """Stops the time, and judges the model with pfl's own central evaluation."""

    def __init__(self, watch: work.Stopwatch, evaluation: Any) -> None:
        self.watch, self.evaluation = watch, evaluation

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        """pfl counts from 0."""

        def accuracy() -> float:
            _, found = self.evaluation.after_central_iteration(Metrics(), model, central_iteration=1)
            return float(found[StringMetricName("Central val | accuracy")].overall_value)

        self.watch.round_over(central_iteration + 1, accuracy)
        return False, Metrics()


def cohorts() -> Iterator[int]:
    """The clients of one round after another, each round's drawn without replacement."""
    rng = np.random.default_rng(work.SEED)
    while True:
        yield from rng.choice(work.CLIENTS, work.SELECTED, replace=False).tolist()


def federated(data: work.Data) -> Any:
    """The clients as pfl's in-memory data sets, which keep their batches ready."""
    users = [
        PyTorchTensorDataset((torch.from_numpy(inputs), torch.from_numpy(targets)), user_id=str(client))
        for client, (inputs, targets) in enumerate(zip(data.inputs, data.targets, strict=True))
    ]
    return FederatedDataset(users.__getitem__, cohorts().__next__)


def main() -> None:
    """Run the rounds and print the line."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(ASKED.threads)
    np.random.seed(work.SEED)  # noqa: NPY002  pfl draws from the global state
    data, watch = work.load(ASKED.data), work.Stopwatch(ASKED)
    net, users = Net(data), federated(data)
    test = PyTorchTensorDataset(torch_model.test_set(data))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(ASKED.total, NEVER, work.SELECTED, val_cohort_size=0),
        backend=SimulatedBackend(users, users),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_batch_size=work.BATCH, local_num_epochs=ASKED.epochs, local_learning_rate=work.LEARNING_RATE
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[AfterRound(watch, CentralEvaluationCallback(test))],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", "0")) == 0:
        print(watch.line("pfl", version("pfl")))


if __name__ == "__main__":
    main()
