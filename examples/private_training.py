#!/usr/bin/python3
"""Three clinics train one model, each on patients of its own, over an aggregator that cannot read their gradients (docs/private-sums.md).

    PYTHONPATH=build/release/python /usr/bin/python3 examples/private_training.py

All three run on this machine, and the first one runs the aggregator; with NETSUM_SWITCH=HOST:PORT it is the switch there.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

CLINICS, PATIENTS, STEPS = 3, 400, 60
TRUTH = torch.tensor([1.5, -2.0, 0.5])


def train(rank, store):
    os.environ.update(NETSUM_PRIVATE="1", NETSUM_MODE="force")  # force: an error, if there is no way through an aggregator
    import netsum.torch  # noqa: F401

    dist.init_process_group("netsum", init_method=f"file://{store}", rank=rank, world_size=CLINICS)
    torch.manual_seed(rank)  # other patients at each clinic
    patients = torch.randn(PATIENTS, len(TRUTH)) + rank
    outcomes = patients @ TRUTH + 0.1 * torch.randn(PATIENTS)

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(len(TRUTH), 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(patients).squeeze(1) - outcomes).square().mean()
        loss.backward()  # DDP's sums of gradients are private
        optimizer.step()
    if rank == 0:
        learnt = ", ".join(f"{weight:.2f}" for weight in model.module.weight.flatten())
        print(f"learnt {learnt}; loss at clinic 0: {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(train, args=(os.path.join(folder, "store"),), nprocs=CLINICS)
