#!/usr/bin/python3
"""Four ranks train; two of them are killed on the way, the first rank too. The others go on in their processes (docs/elastic.md).

    netsum switch --anyone-may-join --listen 127.0.0.1:7170 &
    NETSUM_SWITCH=127.0.0.1:7170 PYTHONPATH=build/release/python /usr/bin/python3 examples/elastic_ddp.py

Prints the loss over all data every 20 steps, beside the same training without deaths.
"""

import os
import signal
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

RANKS, STEPS, SAMPLES = 4, 200, 4096
DEATHS = {60: 2, 120: 0}  # at this step this rank


def data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 16, generator=generator)
    return inputs, torch.tanh(inputs @ torch.randn(16, 1, generator=generator) / 4)


def train(rank, store, deaths, losses):
    os.environ.update(NETSUM_MODE="force", NETSUM_RECOVERY="30", NETSUM_SURVIVORS="2")
    import netsum.torch

    dist.init_process_group("netsum", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = data()
    own = slice(rank * SAMPLES // RANKS, (rank + 1) * SAMPLES // RANKS)
    for step in range(STEPS):
        if deaths.get(step) == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        (model(inputs[own]) - targets[own]).square().mean().backward()  # averaged over the ranks that are there
        optimizer.step()
        members = netsum.torch.statistics()["members"]
        if step % 20 == 19 and rank == members[0]:
            with torch.no_grad():
                losses[step] = (model.module(inputs) - targets).square().mean().item(), len(members)
    dist.destroy_process_group()


def losses_of(deaths):
    """By step: the loss, and how many ranks there were."""
    with tempfile.TemporaryDirectory() as folder, processes.Manager() as manager:
        losses = manager.dict()
        context = processes.get_context("spawn")
        ranks = [context.Process(target=train, args=(rank, os.path.join(folder, "store"), deaths, losses)) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        failed = [number for number, rank in enumerate(ranks) if rank.exitcode != 0 and number not in deaths.values()]
        if failed:
            raise SystemExit(f"ranks {failed} ended with an error")
        return dict(losses)


if __name__ == "__main__":
    whole, fewer = losses_of({}), losses_of(DEATHS)
    print("step   all ranks   with deaths   ranks left")
    for step in sorted(whole):
        print(f"{step:4}   {whole[step][0]:9.4f}   {fewer[step][0]:11.4f}   {fewer[step][1]:10}")
