"""What only a GPU has: streams, graphs, inference mode, its memory running out, and a rank that dies while tensors are on their way."""

import os
import signal
import unittest

import on_gpu
import torch_support
from on_gpu import IS_GPU
from torch_support import Switch, init, run

FOUND = {}


def case_streams(rank, size):
    """Results are used on another stream than the call's; the group is used from two streams; copies begin right after wait()."""
    import torch
    import torch.distributed as dist
    init()
    total = sum(range(1, size + 1))
    cuda = on_gpu.cuda()
    busy = torch.randn(2000, 2000) if IS_GPU else torch.ones(1, 1)
    one, other = cuda.Stream(), cuda.Stream()
    for round_ in range(20):
        with cuda.stream(one):
            busy @ busy  # the tensor is written late
            first = torch.full((700_000,), float(rank + 1 + round_))
            work = dist.all_reduce(first, async_op=True)
        with cuda.stream(other):
            busy @ busy
            second = torch.full((300_001,), float(rank + 1) * 2)
            dist.all_reduce(second)
            on_host = on_gpu.pinned(second.shape)
            on_host.copy_(second, non_blocking=True)
            work.wait()  # this stream's, not the one that the call was made on
            doubled = first * 2
        other.synchronize()
        assert (on_host == total * 2).all(), round_
        assert (doubled == 2 * (total + size * round_)).all(), (round_, doubled[0].item())


def case_temporary(rank, size):
    """Tensors whose last reference goes while they are on their way, and whose memory the allocator would hand out again."""
    import torch
    import torch.distributed as dist
    init()
    results = []
    for round_ in range(30):
        future = dist.all_reduce(torch.full((500_000,), float(rank + round_)), async_op=True).get_future()
        results.append(future.then(lambda done: done.value()[0].clone()))
        torch.full((500_000,), -1.0)  # would be that memory
    for round_, result in enumerate(results):
        assert (result.wait() == sum(r + round_ for r in range(size))).all(), round_


def case_graph(rank, size):
    """An all-reduce while a graph is captured is an error in words; the group and the GPU go on afterwards."""
    import torch
    import torch.distributed as dist
    init()
    cuda = on_gpu.cuda()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    cuda.synchronize()
    text = None
    try:
        with cuda.graph(cuda.CUDAGraph()):
            dist.all_reduce(tensor)
    except RuntimeError as error:
        text = str(error)
    cuda.synchronize()
    after = torch.ones(1000)
    dist.all_reduce(after)
    assert (after == size).all()
    return text


def case_inference(rank, size):
    import torch
    import torch.distributed as dist
    init()
    with torch.inference_mode():
        tensor = torch.full((100_000,), rank + 1.0)
        dist.all_reduce(tensor)
        parts = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor)
        assert (tensor == sum(range(1, size + 1))).all() and all(torch.equal(part, tensor) for part in parts)


def case_out_of_memory(rank, size):
    """The GPU has no memory for the copy of a strided tensor: an error on that rank, and nothing hangs on the others."""
    import torch
    import torch.distributed as dist
    init(seconds=10)
    tensor = torch.ones(4096, 8192)
    dist.all_reduce(tensor[:, :64])
    assert (tensor[:, :64] == size).all()
    on_gpu.cuda().synchronize()
    if rank == 0 and IS_GPU:
        torch.cuda.empty_cache()
        everything = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (8 << 20)) / everything)
    try:
        if rank == 0 and not IS_GPU:
            on_gpu.cuda().out_of_memory()
        dist.all_reduce(tensor.t()[:, :4000])
        on_gpu.cuda().synchronize()
        return "no error"
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def case_killed(rank, size):
    """One rank dies while 400 MB are on their way: the others name it."""
    import torch
    import torch.distributed as dist
    init(seconds=20)
    tensor = torch.ones(100_000_000)
    dist.all_reduce(torch.ones(1))
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        work.wait()
        on_gpu.cuda().synchronize()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("the all-reduce ended without rank 1")


class Streams(unittest.TestCase):
    def over_switch(self, case, ranks=2, **more):
        with Switch() as switch:
            ended = run(case, ranks, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "NETSUM_SHARED_MEMORY": "off"}, **more)
        FOUND[case] = [rank.result for rank in ended]
        return ended

    def test_streams(self):
        self.over_switch("streams")
        run("streams", 4)
        run("streams", 2, environment={"NETSUM_MODE": "off"})

    def test_temporary(self):
        self.over_switch("temporary")

    def test_graph(self):
        for rank in self.over_switch("graph"):
            self.assertIn("graph", rank.result or "")

    def test_inference(self):
        self.over_switch("inference")

    def test_out_of_memory(self):
        ranks = self.over_switch("out_of_memory")
        self.assertNotEqual(ranks[0].result, "no error")

    def test_killed(self):
        ranks = self.over_switch("killed", 3, expect_failure=(1,))
        for rank in (0, 2):
            self.assertIn("rank 1", ranks[rank].result)


def tearDownModule():
    on_gpu.save(FOUND)


if __name__ == "__main__":
    torch_support.main()
