#!/usr/bin/python3
"""Four ranks train; two of them are killed on the way, the first rank too. The others go on in their processes, and let new ones of these
ranks in, which get model, optimizer and step (docs/elastic.md).

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
WAITS = (100, 160)        # at these steps for all ranks: here a step takes less time than a process to start


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
    module = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    inputs, targets = data()
    own = slice(rank * SAMPLES // RANKS, (rank + 1) * SAMPLES // RANKS)
    step, model = 0, None
    while step < STEPS:
        state = netsum.torch.admit(lambda: (module.state_dict(), optimizer.state_dict(), step))
        if state is not None:  # somebody came in, perhaps this process
            module.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
            step = state[2]
        if state is not None or model is None:
            model = torch.nn.parallel.DistributedDataParallel(module)
        if step in WAITS and deaths and len(netsum.torch.statistics()["members"]) < RANKS:
            continue
        if deaths.get(step) == rank and not losses.get(("died", rank)):
            losses["died", rank] = True
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        (model(inputs[own]) - targets[own]).square().mean().backward()  # averaged over the ranks that are there
        optimizer.step()
        members = netsum.torch.statistics()["members"]
        if step % 20 == 19 and rank == members[0]:
            with torch.no_grad():
                losses[step] = (module(inputs) - targets).square().mean().item(), len(members)
        step += 1
    dist.destroy_process_group()


def launch(*arguments):
    """One rank, as a launcher would run it: a process that was killed is started again."""
    context = processes.get_context("spawn")
    while True:
        process = context.Process(target=train, args=arguments)
        process.start()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            raise SystemExit(process.exitcode)


def losses_of(deaths):
    """By step: the loss, and how many ranks there were."""
    with tempfile.TemporaryDirectory() as folder, processes.Manager() as manager:
        losses = manager.dict()
        context = processes.get_context("spawn")
        ranks = [context.Process(target=launch, args=(rank, os.path.join(folder, "store"), deaths, losses)) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        failed = [number for number, rank in enumerate(ranks) if rank.exitcode != 0]
        if failed:
            raise SystemExit(f"ranks {failed} ended with an error")
        return {step: loss for step, loss in losses.items() if isinstance(step, int)}


if __name__ == "__main__":
    whole, fewer = losses_of({}), losses_of(DEATHS)
    print("step   all ranks   with deaths   ranks")
    for step in sorted(whole):
        print(f"{step:4}   {whole[step][0]:9.4f}   {fewer[step][0]:11.4f}   {fewer[step][1]:5}")
