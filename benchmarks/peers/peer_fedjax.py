"""FedJAX: its federated averaging over its own for_each_client backends.

One worker: the jit backend. More: the pmap backend over as many devices made of the CPU.

FedJAX 0.0.17 is older than what it stands on. Added here: `jax.tree_map`, `jax.device_put_sharded` and
`jax.device_put_replicated`, which jax has removed since, and the first axis of what a pmapped function returns, which
jax no longer drops from one device's part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import work

ASKED = work.arguments(__doc__)
FLAGS = [f"--xla_force_host_platform_device_count={ASKED.workers}"]
if ASKED.threads == 1:
    FLAGS.append("--xla_cpu_multi_thread_eigen=false")
os.environ["XLA_FLAGS"] = " ".join(FLAGS)  # read when jax is imported
os.environ["JAX_PLATFORMS"] = "cpu"

import fedjax  # type: ignore[import-not-found]  # noqa: E402
import haiku as hk  # type: ignore[import-not-found]  # noqa: E402
import jax  # type: ignore[import-not-found]  # noqa: E402
import jax.numpy as jnp  # type: ignore[import-not-found]  # noqa: E402
from fedjax.algorithms import fed_avg  # type: ignore[import-not-found]  # noqa: E402
from fedjax.core import for_each_client  # type: ignore[import-not-found]  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # type: ignore[import-not-found]  # noqa: E402

tree_map = jax.tree_util.tree_map
jax.tree_map = tree_map


def device_put_sharded(shards: Any, devices: Any) -> Any:
    """Each device its shard, when the pmapped function is called."""
    return tree_map(lambda *parts: np.stack(parts), *shards)


def device_put_replicated(value: Any, devices: Any) -> Any:
    """Each device a copy."""
    rows = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec("devices"))
    return tree_map(lambda leaf: jax.device_put(np.stack([leaf] * len(devices)), rows), value)


jax.device_put_sharded, jax.device_put_replicated = device_put_sharded, device_put_replicated


class Pmap(for_each_client.ForEachClientBackend):  # type: ignore[misc]
    """FedJAX's pmap backend, each client's output without the axis of the devices."""

    def __call__(self, client_init: Any, client_step: Any, client_final: Any) -> Any:
        """What runs the clients."""
        inner = for_each_client.ForEachClientPmapBackend()(client_init, client_step, client_final)

        def run(shared_input: Any, clients: Any) -> Iterator[tuple[Any, Any, Any]]:
            for client, output, results in inner(shared_input, clients):
                yield client, tree_map(lambda leaf: leaf[0], output), results

        return run


def mlp() -> Any:
    """The model in FedJAX's own form."""
    forward = hk.transform(
        lambda batch: hk.Sequential([hk.Linear(work.HIDDEN), jax.nn.relu, hk.Linear(work.CLASSES)])(batch["x"])
    )
    sample = {"x": jnp.zeros((1, work.INPUTS)), "y": jnp.zeros(1, jnp.int32)}
    return fedjax.create_model_from_haiku(
        forward, sample,
        lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs),
        {"accuracy": fedjax.metrics.Accuracy()},
    )  # fmt: skip


def first_params(data: work.Data) -> dict[str, dict[str, Any]]:
    """The first weights under haiku's names; haiku multiplies from the other side."""
    return {
        name: {"w": jnp.asarray(data.weights[f"{layer}.weight"].T), "b": jnp.asarray(data.weights[f"{layer}.bias"])}
        for name, layer in (("linear", "layer1"), ("linear_1", "layer2"))
    }


def main() -> None:
    """Run the rounds and print the line."""
    data, model = work.load(ASKED.data), mlp()
    clients = {k: {"x": x, "y": y} for k, (x, y) in enumerate(zip(data.inputs, data.targets, strict=True))}
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.InMemoryFederatedData(clients), work.SELECTED, work.SEED
    )
    test = [{"x": jnp.asarray(data.test_inputs), "y": jnp.asarray(data.test_targets)}]
    with fedjax.for_each_client_backend("jit" if ASKED.workers == 1 else Pmap()):
        algorithm = fed_avg.federated_averaging(
            fedjax.model_grad(model), fedjax.optimizers.sgd(work.LEARNING_RATE), fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=work.BATCH, num_epochs=ASKED.epochs),
        )  # fmt: skip
    state = algorithm.init(first_params(data))
    watch = work.Stopwatch(ASKED)

    def accuracy() -> float:
        return float(fedjax.evaluate_model(model, state.params, test)["accuracy"])

    for number in range(1, ASKED.total + 1):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        watch.round_over(number, accuracy)
    print(watch.line("fedjax", f"{version('fedjax')}, jax {jax.__version__}"))


if __name__ == "__main__":
    main()
