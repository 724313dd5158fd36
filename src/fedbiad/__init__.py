"""Communication-efficient federated learning: FedBIAD (Bayesian inference-based adaptive dropout) and its baselines."""

from fedbiad.errors import DataError, FedbiadError, LayoutError, PlanError, RunDirError, RunError
from fedbiad.experiment import SimulationResult, simulate
from fedbiad.methods import METHODS, FedAvg, FedBIAD, FedDrop, Method
from fedbiad.models import CNN, MLP, Model, module_shapes
from fedbiad.plan import Plan
from fedbiad.plan import load as load_plan
from fedbiad.rows import Layout, RowGroup, Slice

__all__ = [
    "CNN",
    "METHODS",
    "MLP",
    "DataError",
    "FedAvg",
    "FedBIAD",
    "FedDrop",
    "FedbiadError",
    "Layout",
    "LayoutError",
    "Method",
    "Model",
    "Plan",
    "PlanError",
    "RowGroup",
    "RunDirError",
    "RunError",
    "SimulationResult",
    "Slice",
    "load_plan",
    "module_shapes",
    "simulate",
]
