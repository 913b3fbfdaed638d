"""Unmodified DistributedDataParallel over the backend: the same training as over Gloo, and all ranks bit for bit alike."""

import json
import os
import subprocess
import tempfile
import unittest

import torch_support
from torch_support import ParameterServer, Switch, init, run


REPLAY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/replay")


def train(group, rank, size, steps=6, hook=None, unused=False, accumulate=False, views=False,
          dtype=None):
    import contextlib

    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 700))
            self.second = nn.Linear(700, 500)
            self.spare = nn.Linear(700, 500)
            self.last = nn.Linear(500, 10)

        def forward(self, images, step):
            middle = self.spare if unused and step % 2 else self.second
            return self.last(torch.relu(middle(torch.relu(self.first(images)))))

    torch.manual_seed(7)
    model = Net()
    if not unused:
        model.spare = None
    if dtype:
        model = model.to(dtype)
    # Small first bucket: several buckets, whose sizes change after the first step.
    parallel = DistributedDataParallel(model, process_group=group, bucket_cap_mb=1, find_unused_parameters=unused,
                                       gradient_as_bucket_view=views)
    if hook:
        parallel.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    for step in range(steps):
        images = torch.randn(8, 1, 8, 8, generator=data).to(dtype or torch.float32)
        labels = torch.randint(0, 10, (8,), generator=data)
        with parallel.no_sync() if accumulate and step % 2 == 0 else contextlib.nullcontext():
            nn.functional.cross_entropy(parallel(images, step).float(), labels).backward()
        if not accumulate or step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([p.detach().reshape(-1).float() for p in parallel.parameters()])


def train_by_power_sgd(group, rank):
    """A hook whose callbacks wait for all-reduces. One bucket, as ranks must issue these in the same order."""
    import torch
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(7)
    parallel = DistributedDataParallel(nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 10)), process_group=group)
    parallel.register_comm_hook(powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2),
                                powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        labels = torch.randint(0, 10, (8,), generator=data)
        nn.functional.cross_entropy(parallel(torch.randn(8, 40, generator=data)), labels).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in parallel.parameters()])


def case_equal_to_gloo(rank, size):
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    import netsum.torch
    init()
    gloo = dist.new_group(backend="gloo")
    world = dist.distributed_c10d._get_default_group()
    for options, tolerance in (({}, 1e-5), ({"unused": True}, 1e-5), ({"accumulate": True}, 1e-5),
                               ({"hook": default_hooks.allreduce_hook}, 1e-5),
                               ({"hook": default_hooks.fp16_compress_hook}, 2e-3)):
        ours, theirs = train(world, rank, size, **options), train(gloo, rank, size, **options)
        assert torch.allclose(ours, theirs, atol=tolerance), (options, (ours - theirs).abs().max())
        everyone = [torch.empty_like(ours) for _ in range(size)]
        dist.all_gather(everyone, ours, group=gloo)
        assert all(torch.equal(everyone[0], other) for other in everyone), options
    ours, theirs = train_by_power_sgd(world, rank), train_by_power_sgd(gloo, rank)
    assert torch.allclose(ours, theirs, atol=1e-4), (ours - theirs).abs().max()
    train(world, rank, size, dtype=torch.bfloat16)  # Gloo alone cannot
    counted = netsum.torch.statistics()
    assert counted["switch_operations"] > 50, counted
    dist.destroy_process_group()
    return counted["path"]


def case_recorded(rank, size):
    import torch.distributed as dist

    init()
    train(None, rank, size, steps=9)
    dist.destroy_process_group()


def case_parameters_of_all_sizes(rank, size):
    """The gradients of one bucket: small ones keep their values beside large ones of another parameter."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large = torch.nn.Parameter(torch.ones(100)), torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return (self.small * x).sum() * 1e-5 + (self.large * x[:1]).sum() * 1e5

    model = torch.nn.parallel.DistributedDataParallel(Model())
    model.register_comm_hook(None, netsum.torch.bucket_hook)
    model(torch.ones(100)).backward()
    assert torch.allclose(model.module.small.grad, torch.tensor(1e-5), rtol=1e-6, atol=0), model.module.small.grad
    assert model.module.large.grad == 1e5, model.module.large.grad
    # As one tensor, which is what DDP's flat bucket is, the small ones become 0, and are counted.
    before = netsum.torch.statistics()
    assert before["values_underflowed"] == 0 < before["values_examined"], before
    flat = torch.full((101,), 1e-5)
    flat[50] = 1e5
    dist.all_reduce(flat)
    after = netsum.torch.statistics()
    assert after["values_underflowed"] == 100 and after["values_examined"] == before["values_examined"] + 101, (before, after)
    dist.destroy_process_group()


def case_few_bits(rank, size):
    """Gradients of 8 or 4 bits: what a rank rounds is given back, and DDP trains nearly as without."""
    import os
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    wire = os.environ["NETSUM_WIRE"]
    hook, most = getattr(netsum.torch.hooks, wire), {"int8": 64, "int4": 4}[wire]

    class Bucket:
        def __init__(self, values):
            self.values = values

        def buffer(self):
            return self.values

        def index(self):
            return 0

    # A block whose steps are 1, and so are those of the sum: each value but one becomes 0, or 1 when enough is left of it.
    state, means = netsum.torch.hooks.Feedback(), torch.zeros(64)
    for _ in range(20):
        values = torch.full((64,), 0.3)
        values[rank] = most
        means += hook(state, Bucket(values)).wait() / 20
    assert (means[:2] - (most + 0.3) / size).abs().max() < 0.06 and (means[2:] - 0.3).abs().max() < 0.06, means

    # The same of a reduce-scatter's parts, each with steps of its own, in steps of two calls that begin with a model's forward pass.
    model, means, ranks = torch.nn.Identity(), torch.zeros(2, 40), torch.arange(size)
    scales = 8.0 ** -ranks
    netsum.torch.hooks.give_back(model)
    for _ in range(20):
        model(0)
        for call in range(2):
            values = torch.full((size, 40), 0.3 - 0.6 * call)
            values[ranks, ranks] = most
            part = torch.empty(40)
            dist.reduce_scatter_tensor(part, (values * scales[:, None]).flatten(), op=dist.ReduceOp.AVG)
            means[call] += part / scales[rank] / 20
    for mean, expected in zip(means, (0.3, -0.3)):
        assert (mean[rank] - most).abs() < 0.06 and (mean[torch.arange(40) != rank] - expected).abs().max() < 0.06, means

    odd = torch.tensor([1.0, float("nan"), float("inf"), -3.0])
    rounded = torch.empty(4)
    netsum.torch._C.round_as(getattr(netsum.torch._C.WireFormat, wire), odd, rounded)
    assert rounded[[0, 3]].tolist() == [1.0, -3.0] and rounded[1:3].isnan().all(), rounded

    world = dist.distributed_c10d._get_default_group()
    plain = train(dist.new_group(backend="gloo"), rank, size)
    for dtype in (None, torch.bfloat16):
        state = netsum.torch.hooks.Feedback()
        ours = train(world, rank, size, hook=lambda _, bucket: hook(state, bucket), dtype=dtype)
        difference = (ours - plain).norm() / plain.norm()
        assert 0 < difference < (0.01 if dtype is None else 0.02) * (1 if wire == "int8" else 10), (dtype, difference)
    dist.destroy_process_group()
    return True


def case_buckets_in_shared_memory(rank, size):
    """DDP over netsum's hook: the same training as without it, and nothing copied where ranks share memory."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    world = dist.distributed_c10d._get_default_group()
    for options in ({}, {"views": True}, {"unused": True, "views": True}, {"accumulate": True, "views": True}):
        plain = train(world, rank, size, **options)
        before = netsum.torch.statistics()
        ours = train(world, rank, size, hook=netsum.torch.bucket_hook, **options)
        counted = netsum.torch.statistics()
        assert torch.allclose(ours, plain, atol=1e-5), (options, (ours - plain).abs().max())
        if counted["shared_memory"]:  # of broadcasts, a rank copies each byte in or out, or both
            broadcast = [each["collectives"]["broadcast"]["switch"]["bytes"] for each in (before, counted)]
            copied = counted["bytes_copied"] - before["bytes_copied"]
            assert 0 < copied <= 2 * (broadcast[1] - broadcast[0]), (options, before, counted)
    for dtype in (torch.float32, torch.int32, torch.float64):
        tensor = netsum.torch.empty(50, 1000, dtype=dtype).fill_(rank + 1)
        part = tensor[20:]
        dist.all_reduce(part)
        assert (part == size * (size + 1) // 2).all() and (tensor[:20] == rank + 1).all(), dtype
    copied = netsum.torch.statistics()["bytes_copied"]
    assert copied == counted["bytes_copied"], (copied, counted)
    dist.destroy_process_group()
    tensor.fill_(5)  # the memory is still there
    assert tensor.sum() == 5 * tensor.numel()
    return [counted["path"], counted["shared_memory"]]


def case_data_loader(rank, size):
    """Forked loader workers beside the group's threads and sockets, for several epochs, and a group used in a child."""
    import os

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data.distributed import DistributedSampler

    class Numbers(Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, i):
            return torch.tensor([float(i)])

    init()
    dataset = Numbers()
    loader = DataLoader(dataset, batch_size=8, num_workers=2, sampler=DistributedSampler(dataset, shuffle=False))
    for _ in range(3):
        total = torch.zeros(1)
        for batch in loader:
            part = batch.sum().reshape(1)
            dist.all_reduce(part)
            total += part
        assert total.item() == 95 * 96 / 2, total
    child = os.fork()
    if child == 0:
        status = 1
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            status = 0 if "fork()" in str(error) else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    dist.barrier()
    dist.destroy_process_group()


class Training(unittest.TestCase):
    def test_equal_to_gloo_over_a_switch(self):
        with Switch() as switch:
            ranks = run("equal_to_gloo", 2, seconds=120, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address})
            self.assertEqual("switch", ranks[0].result)

    def test_equal_to_gloo_over_atp(self):
        with Switch("--pool-slots", "64") as switch, ParameterServer() as server:
            ranks = run("equal_to_gloo", 2, seconds=120, environment={
                "NETSUM_MODE": "force", "NETSUM_PROTOCOL": "atp", "NETSUM_PS": server.address, "NETSUM_SWITCH": switch.address})
            self.assertEqual("switch", ranks[0].result)

    def test_equal_to_gloo_over_netreduce(self):
        with Switch() as switch:
            ranks = run("equal_to_gloo", 2, seconds=120, environment={
                "NETSUM_MODE": "force", "NETSUM_PROTOCOL": "netreduce", "NETSUM_SWITCH": switch.address})
            self.assertEqual("switch", ranks[0].result)

    def test_equal_to_gloo_in_two_racks(self):
        for protocol in ("switchml", "netreduce"):
            with self.subTest(protocol=protocol), Switch() as leaf, Switch() as other, Switch() as spine:
                ranks = run("equal_to_gloo", 2, seconds=120, environment={
                    "NETSUM_MODE": "force", "NETSUM_PROTOCOL": protocol, "NETSUM_SPINE": spine.address},
                    of_rank={0: {"NETSUM_SWITCH": leaf.address}, 1: {"NETSUM_SWITCH": other.address}})
                self.assertEqual("switch", ranks[0].result)

    def test_equal_to_gloo_without_a_switch_running(self):
        ranks = run("equal_to_gloo", 3, seconds=120)
        self.assertEqual("switch", ranks[0].result)

    def test_parameters_of_all_sizes(self):
        run("parameters_of_all_sizes", 2, environment={"NETSUM_SHARED_MEMORY": "off"})

    def test_buckets_in_shared_memory(self):
        for size, environment, expected in ((3, {"NETSUM_SHARED_MEMORY": "required"}, ["switch", True]),
                                            (2, {"NETSUM_SHARED_MEMORY": "off"}, ["switch", False]),
                                            (2, {"NETSUM_MODE": "off"}, ["gloo", False])):
            with self.subTest(environment=environment):
                ranks = run("buckets_in_shared_memory", size, seconds=120, environment=environment)
                self.assertEqual(expected, ranks[0].result)

    def test_few_bits(self):
        for wire in ("int8", "int4"):
            with self.subTest(wire=wire):
                run("few_bits", 2, environment={"NETSUM_WIRE": wire, "NETSUM_SHARED_MEMORY": "off"})

    def test_flight_records_make_a_scenario(self):
        with tempfile.TemporaryDirectory() as folder:
            run("recorded", 2, environment={"NETSUM_FLIGHT_RECORD": f"{folder}/rank_"})
            printed = subprocess.run([REPLAY, f"{folder}/rank_0", f"{folder}/rank_1", "--output", f"{folder}/replay.toml"],
                                     capture_output=True, text=True, check=True).stdout
            self.assertRegex(printed, "2 ranks, [5-8] steps, 2 all-reduces per step")
            report = json.loads(subprocess.run([torch_support.NETSUM, "simulate", "--scenario", f"{folder}/replay.toml", "--json"],
                                               capture_output=True, text=True, check=True).stdout)
        calls = [bucket["elements"] for bucket in report["jobs"][0]["buckets"]]
        self.assertEqual(sum(calls), 4 * 9 + 4 + 2 * 4 + 144 * 700 + 700 + 700 * 500 + 500 + 500 * 10 + 10)  # the network's parameters

    def test_data_loader_workers(self):
        run("data_loader", 2)


if __name__ == "__main__":
    torch_support.main()
