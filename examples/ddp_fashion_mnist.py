#!/usr/bin/python3
"""Trains a network of large fully connected layers on Fashion-MNIST with PyTorch DistributedDataParallel.

    PYTHONPATH=build/release/python torchrun --nproc_per_node 4 examples/ddp_fashion_mnist.py

Debian's torchrun needs options more (docs/pytorch.md#with-torchrun): `--redirects 9:1 --tee 9:1` in Debian 12. On several hosts
NETSUM_SWITCH and NETSUM_TOKEN_FILE name the switch and its token.

The only line that knows about netsum is `import netsum.torch`. Everything else is what any DDP program does, so the same file with
`--backend gloo` is the other half of the comparison that scripts/demo shows. Like VGG, the network has far more parameters (7.9
million) than it computes: each step waits for its gradients.
"""

import argparse
import gzip
import json
import os
import struct
import sys
import time
import zlib

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DATA = "/usr/share/datasets/fashion-mnist"


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
    return images.flatten(1)[:, :, None, None].float().sub_(72.94).div_(90.02)  # mean and deviation of the training set's pixels


def network(hidden):
    """Fully connected layers. As convolutions of 1 x 1 they run on oneDNN, ten times as fast as Debian's plain BLAS runs nn.Linear."""
    wide, narrow = hidden, hidden * 9 // 10
    return nn.Sequential(nn.Conv2d(28 * 28, wide, 1), nn.ReLU(), nn.Conv2d(wide, narrow, 1), nn.ReLU(), nn.Conv2d(narrow, 10, 1),
                         nn.Flatten())


def evaluate(model, images, labels):
    """Share of right answers over all ranks; each rank looks at its own part of the images."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    with torch.no_grad():
        right = (model.module(to_input(images[mine])).argmax(1) == labels[mine]).sum().double().reshape(1)
    dist.all_reduce(right)
    return right.item() / len(images)


def gradients(model, loss):
    return [each.flatten() for each in torch.autograd.grad(loss, list(model.parameters()))]


# Of a value's size; of the largest of its tensor; at least, a rank; of the largest of all, whose exponent it may have.
ROUNDING = {"float32": (2 ** -18, 1e-6, 5e-9, 0), "bfloat16": (2 ** -7, 1e-6, 5e-9, 0), "float16": (2 ** -9, 1e-6, 2 ** -24, 0),
            "int8": (2 ** -18, 1e-6, 5e-9, 2 ** -5), "int4": (2 ** -18, 1e-6, 5e-9, 2 ** -2)}


def wrong_elements(reduced, contributions, wire):
    """How many elements of `reduced` are not the mean of the ranks' `contributions`, but for rounding (docs/numerics.md).

    Each is a list of tensors. `wire`: how values travel."""
    wrong, (relative, of_tensor, absolute, of_all) = 0, ROUNDING[wire]
    largest = max(part.abs().max() for parts in contributions for part in parts)
    for got, *parts in zip(reduced, *contributions):
        mean, magnitude = sum(parts) / len(parts), sum(part.abs() for part in parts) / len(parts)
        bound = relative * magnitude + of_tensor * magnitude.max() + absolute * len(parts) + of_all * largest
        wrong += int((~((got - mean).abs() <= bound)).sum())  # a NaN is wrong too
    return wrong


class Data:
    """The same order of images on all ranks and for every backend: a seed's."""

    def __init__(self, arguments):
        self.images, self.labels = load(arguments.data, "train")
        self.order = torch.Generator().manual_seed(arguments.seed)
        self.size = arguments.batch
        self.rest = torch.empty(0, dtype=torch.long)

    def step(self):
        """The images of all ranks in this step, one tensor each."""
        if len(self.rest) < self.size:
            self.rest = torch.randperm(len(self.images), generator=self.order)
        now, self.rest = self.rest[:self.size], self.rest[self.size:]
        return now.chunk(dist.get_world_size())

    def at(self, which):
        return to_input(self.images[which]), self.labels[which]


def parse():
    parser = argparse.ArgumentParser(description="Fashion-MNIST with DistributedDataParallel")
    parser.add_argument("--backend", default="netsum", help="a torch.distributed backend: netsum, gloo, ... (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="images per step, of all workers together (%(default)s)")
    parser.add_argument("--hidden", type=int, default=2560, help="width of the layers (%(default)s: 7.9 million parameters)")
    parser.add_argument("--learning-rate", type=float, default=4e-4, help="Adam's; falls to 0 (%(default)s)")
    parser.add_argument("--evaluate-every", type=int, default=2, metavar="STEPS", help="looks at the test set (%(default)s)")
    parser.add_argument("--test-images", type=int, default=2000, help="of 10000 that each look takes (%(default)s)")
    parser.add_argument("--check-every", type=int, default=10, metavar="STEPS", help="checks of all sums; 0: none (%(default)s)")
    parser.add_argument("--fp16-hook", action="store_true", help="DDP's fp16_compress_hook: gradients travel as float16")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--data", default=DATA, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="each rank prints what it measured, an object a line")
    parser.add_argument("--wait", action="store_true", help="rank 0 trains when a line arrives on its input, after its 'begin'")
    arguments = parser.parse_args()
    if arguments.backend == "netsum":
        import netsum.torch  # noqa: F401 - registers the backend
    return arguments


class Report:
    """What this rank says: JSON lines, or, on rank 0, a line for people."""

    def __init__(self, arguments):
        self.json = arguments.json

    def say(self, kind, text=None, **more):
        if self.json:
            print(json.dumps({"kind": kind, **more}), flush=True)
        elif text and dist.get_rank() == 0:
            print(text, file=sys.stderr, flush=True)


def on_the_wire(arguments):
    if arguments.fp16_hook:
        return "float16"
    told = os.environ.get("NETSUM_WIRE", "native") if arguments.backend == "netsum" else "native"
    return "float32" if told == "native" else told


def train(arguments, report):
    data = Data(arguments)
    test_images, test_labels = (each[:arguments.test_images] for each in load(arguments.data, "t10k"))
    torch.manual_seed(arguments.seed)
    plain = network(arguments.hidden)
    model = DistributedDataParallel(plain)
    if arguments.fp16_hook:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / arguments.steps)
    loss_of = nn.CrossEntropyLoss()
    rank = dist.get_rank()

    seconds = 0.0  # of training: without looks at the test set and checks
    report.say("begin", accuracy=evaluate(model, test_images, test_labels), parameters=sum(p.numel() for p in plain.parameters()))
    if arguments.wait and rank == 0:
        sys.stdin.readline()
    dist.barrier()
    for step in range(1, arguments.steps + 1):
        began = time.perf_counter()
        batches = data.step()
        optimizer.zero_grad()
        images, labels = data.at(batches[rank])
        loss = loss_of(model(images), labels)
        loss.backward()
        reduced_after = time.perf_counter() - began
        checked = arguments.check_every and (step - 1) % arguments.check_every == 0
        if checked:  # all ranks' gradients again, by this rank alone
            contributions = []
            for batch in batches:
                images, labels = data.at(batch)
                contributions.append(gradients(plain, loss_of(plain(images), labels)))
            reduced = [p.grad.flatten() for p in plain.parameters()]
            wrong = wrong_elements(reduced, contributions, on_the_wire(arguments))
            report.say("check", step=step, elements=sum(len(each) for each in reduced), wrong=wrong)
            del contributions
            dist.barrier()  # nobody checks on a processor that others still need
        resumed = time.perf_counter()
        optimizer.step()
        schedule.step()
        seconds += reduced_after + time.perf_counter() - resumed
        accuracy = None
        if step % arguments.evaluate_every == 0 or step == arguments.steps:
            accuracy = evaluate(model, test_images, test_labels)
        report.say("step", f"step {step}/{arguments.steps}  {seconds:.1f} s  loss {loss.item():.3f}"
                   + (f"  test accuracy {100 * accuracy:.1f} %" if accuracy is not None else ""),
                   step=step, seconds=seconds, accuracy=accuracy)
        if accuracy is not None:
            dist.barrier()
    bits = b"".join(p.detach().numpy().tobytes() for p in plain.parameters())
    report.say("end", weights=f"{zlib.crc32(bits):08x}", **(
        {"statistics": netsum_statistics()} if arguments.backend == "netsum" else {}))


def netsum_statistics():
    import netsum.torch
    return netsum.torch.statistics()


def main():
    arguments = parse()
    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    if arguments.batch % dist.get_world_size() != 0:
        sys.exit(f"--batch {arguments.batch} cannot be shared among {dist.get_world_size()} workers: give a multiple")
    report = Report(arguments)
    train(arguments, report)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
