#!/usr/bin/python3
"""Four ranks train, and the last takes three times as long for a step: the others wait for it, or go on without it (docs/elastic.md).

    netsum switch --anyone-may-join --listen 127.0.0.1:7170 &
    NETSUM_SWITCH=127.0.0.1:7170 PYTHONPATH=build/release/python /usr/bin/python3 examples/straggler_ddp.py

Prints how long the training takes, what the model knows then of data that it has not seen, and in how many steps all ranks took part.
"""

import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

RANKS, STEPS, CLASSES = 4, 30, 10
SECONDS, SLOW = 0.3, 3  # of a step; the last rank's takes so many times as long


def samples(seed, labels):
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(CLASSES, 32, generator=generator)
    generator.manual_seed(seed)
    return centers[labels] + 1.2 * torch.randn(len(labels), 32, generator=generator)


def train(rank, store, deadline, gives_later):
    os.environ.update(NETSUM_MODE="force", NETSUM_RECOVERY="30", NETSUM_SURVIVORS="2", NETSUM_STRAGGLER_SECONDS=deadline)
    import netsum.torch

    dist.init_process_group("netsum", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, CLASSES))
    model = torch.nn.parallel.DistributedDataParallel(module)
    state = netsum.torch.hooks.Late()
    model.register_comm_hook(state, netsum.torch.hooks.late)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    slow = rank == RANKS - 1
    labels = torch.arange(512) % 2 + 8 if slow else torch.arange(512) % 8  # two classes are at the slow rank alone
    inputs = samples(1 + rank, labels)
    netsum.torch.finish()  # all begin
    began, whole = time.monotonic(), 0
    for step in range(STEPS):
        if not gives_later:
            state.kept.clear()
        batch = slice(0, 1)
        if not state.follows():
            batch = slice(None)
            time.sleep(SECONDS * (SLOW if slow else 1))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
        whole += len(netsum.torch.statistics()["members"]) == RANKS
    netsum.torch.finish()
    seconds = time.monotonic() - began
    unseen = torch.arange(2000) % CLASSES
    with torch.no_grad():
        outputs = module(samples(100, unseen))
        loss = torch.nn.functional.cross_entropy(outputs, unseen).item()
        right = (outputs.argmax(1) == unseen).float().mean().item()
    torch.save(torch.cat([each.detach().flatten() for each in module.parameters()]), f"{store}.{rank}")
    netsum.torch.finish()
    if any(not torch.equal(torch.load(f"{store}.0"), torch.load(f"{store}.{other}")) for other in range(RANKS)):
        raise SystemExit("the ranks' parameters differ")
    dist.destroy_process_group()
    return seconds, right, loss, whole / STEPS


def train_thrice(rank, folder):
    if rank == 0:
        print("                                    seconds   right    loss   steps of all ranks")
    for number, (name, deadline, gives_later) in enumerate((("all wait", "0", True), ("late gradients go into later steps", "0.1", True),
                                                            ("late gradients are dropped", "0.1", False))):
        seconds, right, loss, whole = train(rank, os.path.join(folder, str(number)), deadline, gives_later)
        if rank == 0:
            print(f"{name:34}  {seconds:7.1f}  {100 * right:4.1f} %  {loss:6.3f}  {100 * whole:17.0f} %", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as stores:
        processes.spawn(train_thrice, (stores,), nprocs=RANKS)
