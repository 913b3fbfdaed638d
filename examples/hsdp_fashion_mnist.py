#!/usr/bin/python3
"""Trains as ddp_fashion_mnist.py does, with hybrid sharded data parallel (HSDP): parameters, gradients and the optimizer's state are
sharded over the ranks of a host, and the hosts' sums of gradients meet in the switch. For torch 2.x.

On each of two hosts, with four ranks each, and the same with RANK from 4 on the other (docs/pytorch.md has torchrun's options):

    NETSUM_SWITCH=10.0.0.1:7170 PYTHONPATH=build/release/python torchrun ... --nnodes 2 --nproc-per-node 4 examples/hsdp_fashion_mnist.py

Between hosts each rank sends a quarter of the gradients, in all-reduces, which take a switch up to half of a ring's bytes.
Reduce-scatters and all-gathers stay within a host.
"""

import argparse
import os

import torch
import torch.distributed as dist
from ddp_fashion_mnist import DATA, Data, load, network, to_input
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import netsum.torch


def parse():
    parser = argparse.ArgumentParser(description="Fashion-MNIST with hybrid sharded data parallel")
    parser.add_argument("--ranks-per-host", type=int, default=int(os.environ.get("LOCAL_WORLD_SIZE", 1)), help="(torchrun's: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="images per step, of all ranks together (%(default)s)")
    parser.add_argument("--hidden", type=int, default=2560, help="width of the layers (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--data", default=DATA, help="(%(default)s)")
    return parser.parse_args()


def main():
    arguments = parse()
    torch.set_num_threads(1)
    dist.init_process_group("netsum")
    hosts = dist.get_world_size() // arguments.ranks_per_host
    mesh = init_device_mesh("cpu", (hosts, arguments.ranks_per_host), mesh_dim_names=("between_hosts", "within_host"))

    torch.manual_seed(arguments.seed)
    model = FullyShardedDataParallel(network(arguments.hidden), sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh,
                                     auto_wrap_policy=ModuleWrapPolicy({torch.nn.Conv2d}), device_id=torch.device("cpu"),
                                     use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4)
    data = Data(arguments)
    test_images, test_labels = (each[:2000] for each in load(arguments.data, "t10k"))
    for step in range(1, arguments.steps + 1):
        optimizer.zero_grad()
        images, labels = data.at(data.step()[dist.get_rank()])
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}/{arguments.steps}  loss {loss.item():.3f}", flush=True)
    with torch.no_grad():  # all ranks take part in each forward pass
        right = (model(to_input(test_images)).argmax(1) == test_labels).float().mean().item()
    if dist.get_rank() == 0:
        print(f"test accuracy {100 * right:.1f} %")
        for dimension in mesh.mesh_dim_names:
            print(f"{dimension}: {netsum.torch.statistics(mesh.get_group(dimension))['collectives']}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
