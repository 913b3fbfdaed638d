"""torchcomms' backend "netsum": reductions, gathers and broadcasts through an aggregation switch, the rest over Gloo.

    comm = torchcomms.new_comm("netsum", torch.device("cpu"), name="training")

torchcomms imports this by its entry point, and then loads the library that the variable names. docs/pytorch.md tells more.
"""

import os
import pathlib

from torch.distributed import PrefixStore
from torch.distributed.rendezvous import rendezvous

import netsum.torch

os.environ.setdefault("TORCHCOMMS_BACKEND_LIB_PATH_NETSUM", str(pathlib.Path(__file__).with_name("libnetsum_torchcomms.so")))


def build(store, name, rank, size, world_rank, timeout):
    """What the library calls for a communicator: (its process group, its part of the store)."""
    if store is None:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=timeout))
    store = PrefixStore(f"torchcomms/{name}", store)
    return netsum.torch._create(store, rank, size, timeout, world_rank), store
