"""Data: labelled images, their partition among clients, and where their files come from.

`fetch` here is the function; what else `fedbiad.data.fetch` holds is imported from that module by name.
"""

from fedbiad.data.base import DATASETS, Dataset, FederatedData, federate, load
from fedbiad.data.fetch import fetch
from fedbiad.data.mapped import MappedData, Scaling
from fedbiad.data.mapped_writing import write_mapped, write_mapped_pool
from fedbiad.data.partition import PARTITIONS

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "Dataset",
    "FederatedData",
    "MappedData",
    "Scaling",
    "federate",
    "fetch",
    "load",
    "write_mapped",
    "write_mapped_pool",
]
