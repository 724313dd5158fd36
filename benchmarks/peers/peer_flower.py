"""Flower: its FedAvg strategy over its simulation engine, every client a SuperNode of its own."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from typing import Any

import torch
import torch_model
import work

ASKED = work.arguments(__doc__)
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ.update(SILENT | {"FLWR_HOME": str(ASKED.data / "flwr")})  # read when flwr is imported

import flower_client  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord  # type: ignore[import-not-found]  # noqa: E402
from flwr.serverapp import ServerApp  # type: ignore[import-not-found]  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found]  # noqa: E402
from flwr.simulation import run_simulation  # type: ignore[import-not-found]  # noqa: E402


def serve(asked: work.Arguments, watch: work.Stopwatch) -> Any:
    """What the server does in a run: the stock strategy, judged centrally every tenth round."""
    torch.set_num_threads(asked.threads)
    data, model = work.load(asked.data), torch_model.mlp()
    test = torch_model.test_set(data)

    def accuracy(arrays: Any) -> float:
        model.load_state_dict(arrays.to_torch_state_dict())
        return torch_model.accuracy(model, test)

    def after_round(number: int, arrays: Any) -> None:
        if number:  # Flower asks before the first round, too
            watch.round_over(number, lambda: accuracy(arrays))

    def run(grid: Any, context: Any) -> None:
        FedAvg(fraction_train=work.SELECTED / work.CLIENTS, fraction_evaluate=0.0).start(
            grid=grid,
            initial_arrays=ArrayRecord(torch_model.first_state(data)),
            num_rounds=asked.total,
            train_config=ConfigRecord({"data": str(asked.data), "epochs": asked.epochs, "threads": asked.threads}),
            evaluate_fn=after_round,
        )

    return run


def main() -> None:
    """Run the rounds and print the line."""
    watch, server = work.Stopwatch(ASKED), ServerApp()
    server.main()(serve(ASKED, watch))
    local = {"address": "local", "num_cpus": ASKED.threads * ASKED.workers}  # never somebody else's cluster
    try:
        run_simulation(
            server_app=server,
            client_app=flower_client.app,
            num_supernodes=work.CLIENTS,
            backend_config={
                "init_args": local,
                "client_resources": {"num_cpus": ASKED.threads, "num_gpus": 0.0},
            },
        )
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the server's thread would wait an hour for replies
    print(watch.line("flower", f"{version('flwr')}, ray {version('ray')}"))


if __name__ == "__main__":
    main()
