#!/usr/bin/python3
"""Trains a small convolutional network on Fashion-MNIST with PyTorch DistributedDataParallel.

    PYTHONPATH=build/release/python /usr/bin/python3 -m torch.distributed.run --nproc_per_node 4 \
        examples/ddp_fashion_mnist.py --backend netsum --output netsum.json

The only line that knows about netsum is `import netsum.torch`. Everything else is what any DDP program does, so the same
file with `--backend gloo` is the other half of the comparison that scripts/demo shows.
"""

import argparse
import gzip
import json
import os
import socket
import struct
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ETHERNET_IP_TCP = 14 + 20 + 32  # bytes in front of a TCP segment's payload (IPv4, time stamps on)


def read_idx(path):
    """The format of the MNIST family: big-endian magic (its last byte is the rank), dimensions, bytes."""
    try:
        with gzip.open(path, "rb") as file:
            magic = struct.unpack(">I", file.read(4))[0]
            shape = struct.unpack(f">{magic & 0xFF}I", file.read(4 * (magic & 0xFF)))
            return torch.from_numpy(numpy.frombuffer(file.read(), dtype=numpy.uint8).copy()).view(*shape)
    except FileNotFoundError:
        sys.exit(f"{path} is missing: install the Debian package dataset-fashion-mnist, or pass --data DIR")


def load(directory, split):
    images = read_idx(os.path.join(directory, f"{split}-images-idx3-ubyte.gz"))
    labels = read_idx(os.path.join(directory, f"{split}-labels-idx1-ubyte.gz"))
    return images, labels.long()


def to_input(images):
    return images.unsqueeze(1).float().sub_(72.94).div_(90.02)  # mean and deviation of the training set's pixels


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10))


def evaluate(model, images, labels):
    """Share of right answers over all ranks; each rank looks at its own part of the images."""
    model.eval()
    right = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for begin in range(dist.get_rank() * 500, len(images), dist.get_world_size() * 500):
            answer = model(to_input(images[begin:begin + 500])).argmax(1)
            right += torch.tensor([(answer == labels[begin:begin + 500]).sum().item(), len(answer)])
    model.train()
    dist.all_reduce(right)
    return (right[0] / right[1]).item()


def tcp_bytes():
    """(sent, received) by this process's TCP sockets as the kernel counted them (TCP_INFO), headers included."""
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as s:
                if s.type != socket.SOCK_STREAM or s.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed meanwhile, or not a TCP socket
            continue
        if len(info) < 144:
            continue
        bytes_acked, bytes_received = struct.unpack_from("QQ", info, 120)
        segments_out, segments_in = struct.unpack_from("II", info, 136)
        sent += bytes_acked + ETHERNET_IP_TCP * segments_out
        received += bytes_received + ETHERNET_IP_TCP * segments_in
    return sent, received


def wire_bytes(backend):
    sent, received = tcp_bytes()
    if backend == "netsum":
        import netsum.torch
        statistics = netsum.torch.statistics()
        sent += statistics["wire_bytes_sent"]
        received += statistics["wire_bytes_received"]
    return sent, received


class Progress:
    """One line that is rewritten on a terminal, a line every few seconds otherwise."""

    def __init__(self, backend, steps, quiet):
        self.backend, self.steps, self.quiet = backend, steps, quiet
        self.live = sys.stderr.isatty()
        self.last = 0.0

    def show(self, step, loss, accuracy, seconds_per_step):
        now = time.monotonic()
        final = step == self.steps
        if self.quiet or not (final or now - self.last >= (0.2 if self.live else 5)):
            return
        self.last = now
        share = step / self.steps
        text = f"step {step:4d}/{self.steps}  loss {loss:.3f}  test accuracy {100 * accuracy:5.2f} %  {1000 * seconds_per_step:.0f} ms/step"
        if self.live:
            bar = "█" * int(20 * share) + "░" * (20 - int(20 * share))
            sys.stderr.write(f"\r  {self.backend:6s} {bar} {text}\033[K" + ("\n" if final else ""))
        else:
            sys.stderr.write(f"  {self.backend:6s} {text}\n")
        sys.stderr.flush()


def main():
    parser = argparse.ArgumentParser(description="Fashion-MNIST with DistributedDataParallel")
    parser.add_argument("--backend", default="netsum", help="a torch.distributed backend: netsum, gloo, ...")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=64, help="images per step and worker")
    parser.add_argument("--learning-rate", type=float, default=0.1, help="the highest; warms up, then falls to 0")
    parser.add_argument("--evaluate-every", type=int, default=40, help="steps between two looks at the test set")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--output", help="write what was measured to this file as JSON (rank 0)")
    arguments = parser.parse_args()

    if arguments.backend == "netsum":
        import netsum.torch  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = load(arguments.data, "train")
    test_images, test_labels = load(arguments.data, "t10k")

    torch.manual_seed(arguments.seed)
    model = DistributedDataParallel(network())
    model._set_ddp_runtime_logging_sample_rate(1)  # DDP's own stopwatch, the same for every backend
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.learning_rate, total_steps=arguments.steps)
    loss_of = nn.CrossEntropyLoss()

    order = torch.Generator().manual_seed(arguments.seed)
    per_step = arguments.batch * world
    permutation = torch.randperm(len(images), generator=order)
    position = 0
    progress = Progress(arguments.backend, arguments.steps, quiet=rank != 0)
    losses, accuracies, accuracy = [], [], 0.0
    seconds_training = seconds_all_reduce = 0.0

    for step in range(1, arguments.steps + 1):
        started = time.perf_counter()
        if position + per_step > len(permutation):
            permutation, position = torch.randperm(len(images), generator=order), 0
        mine = permutation[position + rank * arguments.batch:position + (rank + 1) * arguments.batch]
        position += per_step
        optimizer.zero_grad()
        loss = loss_of(model(to_input(images[mine])), labels[mine])
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        seconds_training += time.perf_counter() - started
        seconds_all_reduce += model._get_ddp_logging_data().get("backward_comm_time", 0) / 1e9
        if step % arguments.evaluate_every == 0 or step == arguments.steps:
            accuracy = evaluate(model, test_images, test_labels)
            accuracies.append([step, accuracy])
        progress.show(step, losses[-1], accuracy, seconds_training / step)

    sent, received = wire_bytes(arguments.backend)
    mean = torch.tensor([losses, [sent] * len(losses), [received] * len(losses)], dtype=torch.float64)
    dist.all_reduce(mean)
    mean /= world
    if rank == 0 and arguments.output:
        result = {
            "backend": arguments.backend,
            "workers": world,
            "steps": arguments.steps,
            "images_per_step": per_step,
            "parameters": sum(p.numel() for p in model.parameters()),
            "loss": mean[0].tolist(),
            "accuracy": accuracies,
            "test_accuracy": accuracy,
            "seconds_per_step": seconds_training / arguments.steps,
            "seconds_in_all_reduce": seconds_all_reduce,
            "wire_bytes_sent_per_worker": int(mean[1][0]),
            "wire_bytes_received_per_worker": int(mean[2][0]),
        }
        if arguments.backend == "netsum":
            result["statistics"] = netsum.torch.statistics()
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump(result, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
