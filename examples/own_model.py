"""Bring your own model and data: any nn.Module, with its rows stated by hand.

Run it with: .venv/bin/python examples/own_model.py
"""

import torch
from torch import nn

import fedbiad
from fedbiad.data import federate, load

# the data: 50 clients with 5 kinds of digits each; yours is a list of (inputs, labels) tensors
data = federate(load("digits"), partition="labels", clients=50, seed=0)
spans = [data.span(client) for client in range(data.num_clients)]
clients = [(data.inputs[own], data.targets[own]) for own in spans]

# the model: any module that turns a batch of inputs into logits
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

# its rows: unit j is row j of the first layer, its bias, and column j of the second layer
units = fedbiad.RowGroup(
    "hidden units",
    32,
    (fedbiad.Slice("1.weight", 0), fedbiad.Slice("1.bias", 0), fedbiad.Slice("3.weight", 1, scaled=True)),
)
layout = fedbiad.Layout(fedbiad.module_shapes(model), (units,))

# stage two of FedBIAD begins after round 15
for method in (fedbiad.FedAvg(), fedbiad.FedDrop(), fedbiad.FedBIAD(stage_boundary=15)):
    result = fedbiad.simulate(
        model=model,
        layout=layout,
        clients=clients,
        test=(data.eval_inputs, data.eval_targets),
        method=method,
        rounds=20,
        selected=0.2,
    )
    accuracy, upload = result.summary["accuracy"], result.summary["upload_per_client"]["encoded"]
    print(f"{type(method).__name__:8} accuracy {accuracy:.2%}  upload {upload / 1e3:.1f} kB")
