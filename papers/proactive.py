#!/usr/bin/python3
"""What a proactive overflow mechanism would keep from the switches (ATP §B.2, Table 1): prints a table, and writes it into
build/reproduce.

Trains the demo's network on Fashion-MNIST, and computes in each step the gradients of 8 to 64 workers, each of its own images. Of
each packet of a worker it asks: is a value beyond B, so that the proactive mechanism would send the packet past the switches? And
does the sum of all workers' values leave int32, so that the packet had to go there? And how many values are smaller than 10^-5 (§B.1), and
than 10^-8, which round to less than one (§5.3.1)? Nothing travels: the values alone decide.
"""
import argparse
import json
import os
import sys

import torch
from torch import nn

from network import ROOT
from output import say, table

sys.path.insert(0, os.path.join(ROOT, "examples"))
import ddp_fashion_mnist as example  # noqa: E402

SCALE = 1e8  # §B.1
INT32 = 2 ** 31


def bound(workers):
    """B of §B.2: no sum of so many values up to it overflows."""
    return (INT32 - workers) / (workers * SCALE)


def packets(values, elements):
    """A row a packet; the last one is filled up with zeros."""
    return nn.functional.pad(values, (0, -len(values) % elements)).reshape(-1, elements)


def count(workers, options):
    """Packets of all workers and steps, those that the proactive mechanism sends past the switches, and those of them and of all whose
    sum overflows."""
    images, labels = example.load(options.data, "train")
    order = torch.Generator().manual_seed(options.seed)
    torch.manual_seed(options.seed)
    model = example.network(options.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4)
    loss_of = nn.CrossEntropyLoss()
    seen = {"workers": workers, "bound": bound(workers), "packets": 0, "past": 0, "in_vain": 0, "overflowed": 0, "largest": 0.0,
            "values": 0, "zero": 0, "below_1e-5": 0, "below_1e-8": 0}
    for _ in range(options.steps):
        batches = torch.randperm(len(images), generator=order)[:workers * options.batch].chunk(workers)
        total = mean = past = 0
        for batch in batches:
            loss = loss_of(model(example.to_input(images[batch])), labels[batch])
            gradient = torch.cat(example.gradients(model, loss))
            of_packets = packets(gradient, options.packet_elements)
            largest = of_packets.abs().amax(1)
            past = past + (largest > bound(workers)).int()
            total = total + (of_packets.double() * SCALE).round()
            mean = mean + gradient / workers
            seen["largest"] = max(seen["largest"], largest.max().item())
            sizes = gradient.abs()
            seen["values"] += len(sizes)
            seen["zero"] += (sizes == 0).sum().item()
            for name, limit in (("below_1e-5", 1e-5), ("below_1e-8", 1e-8)):
                seen[name] += ((sizes > 0) & (sizes < limit)).sum().item()
        overflows = (total.abs() >= INT32).any(1)
        seen["packets"] += workers * len(total)
        seen["past"] += past.sum().item()
        seen["in_vain"] += past[~overflows].sum().item()
        seen["overflowed"] += workers * overflows.sum().item()
        at = 0
        for parameter in model.parameters():
            parameter.grad = mean[at:at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        optimizer.step()
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="build/reproduce", help=argparse.SUPPRESS)
    parser.add_argument("what", choices=("atp-proactive",))
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="images of a worker in a step")
    parser.add_argument("--hidden", type=int, default=640, help="width of the layers (640: 0.9 million parameters)")
    parser.add_argument("--packet-elements", type=int, default=353)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--data", default=example.DATA)
    options = parser.parse_args()
    if options.quick:
        options.steps = 4
    results = []
    for workers in options.workers:
        say(f"{workers} workers")
        results.append(count(workers, options))
    print("Packets that a proactive mechanism sends past the switches, and how many of these sums would have fitted (Table 1)")
    table([[it["workers"], f"{it['bound']:.3f}", f"{it['largest']:.3f}", it["packets"], it["past"], it["in_vain"], it["overflowed"]]
           for it in results], ["workers", "B", "largest value", "packets", "past the switches", "of these in vain", "overflow"])
    print("\nGradients of all workers and steps, in % of those that are not 0 (§5.3.1, §B.1)")
    table([[it["workers"], f"{100 * it['zero'] / it['values']:.1f}", *(f"{100 * it[name] / (it['values'] - it['zero']):.5f}" for name in ("below_1e-5", "below_1e-8"))]
           for it in results], ["workers", "zero, % of all", "below 10^-5", "below 10^-8"])
    os.makedirs(options.output, exist_ok=True)
    with open(os.path.join(options.output, options.what + ".json"), "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
