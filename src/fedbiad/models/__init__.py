"""Models: functional, with a leading client axis, each stating its rows."""

from fedbiad.models.base import Model
from fedbiad.models.cnn import CNN
from fedbiad.models.lstm import LSTM
from fedbiad.models.mlp import MLP
from fedbiad.models.torch_module import TorchModule, module_shapes

__all__ = ["CNN", "LSTM", "MLP", "Model", "TorchModule", "module_shapes"]
