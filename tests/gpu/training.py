"""Trainings over netsum and over Gloo from the same seeds, with the model on the GPU: DDP and its hooks, FSDP2, and torch.compile."""

import contextlib
import unittest

import on_gpu
import torch_support
from torch_support import DEVICE, Switch, init, run

FOUND = {}
STEPS = 8


def model_of(torch):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)]
    return torch.nn.Sequential(*layers).to(DEVICE)


def train(rank, model, autocast=None):
    """The loss of each step, on data that is the rank's own."""
    import torch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator(DEVICE).manual_seed(100 + rank)
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(64, 256, generator=generator, device=DEVICE)
        labels = inputs[:, :10].argmax(1)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, autocast) if autocast else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def case_ddp(rank, size):
    import torch
    init()
    return train(rank, torch.nn.parallel.DistributedDataParallel(model_of(torch), bucket_cap_mb=1))


def case_ddp_bucket_hook(rank, size):
    import torch

    import netsum.torch
    init()
    model = torch.nn.parallel.DistributedDataParallel(model_of(torch), bucket_cap_mb=1, gradient_as_bucket_view=True)
    model.register_comm_hook(None, netsum.torch.bucket_hook)
    return train(rank, model)


def case_ddp_bf16_hook(rank, size):
    import torch
    init()
    model = torch.nn.parallel.DistributedDataParallel(model_of(torch), bucket_cap_mb=1)

    def hook(_, bucket):  # torch's own bf16_compress_hook demands NCCL
        compressed = bucket.buffer().to(torch.bfloat16).div_(size)
        work = torch.distributed.all_reduce(compressed, async_op=True)
        return work.get_future().then(lambda done: bucket.buffer().copy_(done.value()[0]))

    model.register_comm_hook(None, hook)
    return train(rank, model)


def case_ddp_autocast(rank, size):
    import torch
    init()
    return train(rank, torch.nn.parallel.DistributedDataParallel(model_of(torch)), autocast=torch.bfloat16)


def case_mixed_backends(rank, size):
    """The host's tensors over Gloo, the GPU's over netsum, in one group; and netsum's own calls find their group there."""
    import torch

    import netsum.torch
    init(backend=f"cpu:gloo,{DEVICE}:netsum" if on_gpu.IS_GPU else "netsum")
    losses = train(rank, torch.nn.parallel.DistributedDataParallel(model_of(torch)))
    at_host = torch.ones(10, device="cpu")
    torch.distributed.all_reduce(at_host)
    assert (at_host == size).all()
    assert netsum.torch.statistics()["collectives"]["all_reduce"]["switch"]["calls"] > 0
    return losses


def case_fsdp2(rank, size):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    init()
    mesh = init_device_mesh(DEVICE, (size,))
    model = model_of(torch)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32))
    fully_shard(model, mesh=mesh)
    return train(rank, model)


def case_compiled(rank, size):
    import torch
    init()
    return train(rank, torch.compile(torch.nn.parallel.DistributedDataParallel(model_of(torch))))


class Training(unittest.TestCase):
    def check(self, case, tolerance=1e-3, like=None, **more):
        """Its losses over netsum, equal on a second run, and those of the same training over Gloo within `tolerance`."""
        with Switch() as switch:
            over_switch = {"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address}
            ours = [rank.result for rank in run(case, 2, environment=over_switch, seconds=90, **more)]
        theirs = [rank.result for rank in run(like or case, 2, environment={"NETSUM_MODE": "off"}, seconds=90, **more)]
        FOUND[case] = {"netsum": ours[0], "gloo": theirs[0]}
        for mine, other in zip(ours, theirs, strict=True):
            self.assertEqual(len(mine), STEPS)
            for a, b in zip(mine, other, strict=True):
                self.assertLess(abs(a - b), tolerance * max(1.0, abs(b)), (case, mine, other))

    def test_ddp(self):
        self.check("ddp")

    def test_ddp_bucket_hook(self):
        self.check("ddp_bucket_hook", like="ddp")

    def test_ddp_bf16_hook(self):
        self.check("ddp_bf16_hook", tolerance=2e-2, like="ddp")

    def test_ddp_autocast(self):
        self.check("ddp_autocast", tolerance=2e-2)

    def test_mixed_backends(self):
        self.check("mixed_backends", like="ddp")

    @unittest.skipUnless(on_gpu.IS_GPU, "torch before 2.7 has no fully_shard on CPUs")
    def test_fsdp2(self):
        self.check("fsdp2")

    @unittest.skipUnless(on_gpu.IS_GPU, "a rehearsal has no compiler for torch.compile")
    def test_compiled(self):
        self.check("compiled", tolerance=1e-2)


def tearDownModule():
    on_gpu.save(FOUND)


if __name__ == "__main__":
    torch_support.main()
