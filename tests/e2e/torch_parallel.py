"""What torch trains with beside plain DDP: each feature over the backend, against the same training without ranks, or over Gloo.

docs/pytorch.md's table of what takes the switch is `torch_parallel.py --table`.
"""

import contextlib
import importlib.metadata
import sys
import tempfile
import unittest

import torch_support
from torch_support import Switch, init, run

TORCH = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
STEPS = 4
RATE = 0.1


def network(features=16):
    import torch
    from torch import nn
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 8))


def loss_of(model, rank, step, features=16):
    """Of what this rank sees in this step."""
    import torch
    data = torch.Generator().manual_seed(1000 * step + rank)
    images, labels = torch.randn(4, features, generator=data), torch.randn(4, 8, generator=data)
    return torch.nn.functional.mse_loss(model(images), labels)


def flat(parameters):
    import torch
    return torch.cat([p.detach().reshape(-1).float() for p in parameters])


def optimizer_of(parameters):
    import torch
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def train(model, rank, steps=STEPS, optimizer=None, begin=0):
    optimizer = optimizer or optimizer_of(model.parameters())
    for step in range(begin, steps):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return optimizer


def alone(size, steps=STEPS, make_optimizer=optimizer_of):
    """The parameters that a training ends with which sees what all ranks see: what data-parallel training must end with."""
    model = network()
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model, rank, step) for rank in range(size)) / size).backward()
        optimizer.step()
    return flat(model.parameters())


def close(got, expected, tolerance=1e-5):
    import torch
    assert got.shape == expected.shape, (got.shape, expected.shape)
    assert torch.allclose(got.float(), expected.float(), atol=tolerance, rtol=tolerance), (got - expected).abs().max()


def took():
    """Which collectives this rank's groups did, and by which path."""
    import netsum.torch
    by_path = {}
    for statistics in netsum.torch.statistics(every=True):
        for collective, paths in statistics["collectives"].items():
            if paths["switch"]["calls"]:
                by_path.setdefault("switch", set()).add(collective)
            for reason in paths["gloo"]:
                by_path.setdefault("gloo", set()).add(f"{collective}: {reason}")
    return {path: sorted(collectives) for path, collectives in by_path.items()}
