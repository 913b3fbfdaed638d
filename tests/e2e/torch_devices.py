"""Tensors in a device's memory, at a device that works late and whose memory the host cannot touch (fake_device.cc), or at a GPU
(NETSUM_TEST_DEVICE=cuda)."""

import os
import time
import types
import unittest

import torch_support
from torch_support import TORCH, init_at_host, run

DEVICE = "cuda" if os.environ.get("NETSUM_TEST_DEVICE") == "cuda" else "privateuseone"


class Gpu:
    """fake_device's calls, for a GPU."""
    hold_seconds = 2

    @classmethod
    def hold(cls, held):
        """The current stream does nothing for so long, by a clock of 2 GHz."""
        import torch
        if held:
            for _ in range(cls.hold_seconds):
                torch.cuda._sleep(2_000_000_000)

    @staticmethod
    def fill_later(tensor, value):
        tensor.fill_(value)


def import_device():
    """The module of the device. torch 2.x imports torch.privateuseone when it meets the device first."""
    import torch
    if DEVICE == "cuda":
        return Gpu
    import fake_device
    runtime = types.ModuleType("torch.privateuseone")
    runtime._lazy_init = lambda: None
    torch._register_device_module(DEVICE, runtime)
    return fake_device


def at_device(tensor):
    return tensor.to(DEVICE)


def case_collectives(rank, size):
    """Each collective gives at the device what it gives at the host."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    import_device()
    init_at_host()
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(100_003, generator=generator)

    def both(function, *tensors):
        """function(*tensors) at the host and at the device: it returns the tensors that hold results."""
        expected = function(*[t.clone() for t in tensors])
        results = function(*[at_device(t) for t in tensors])
        for want, got in zip(expected, results, strict=True):
            assert got.device.type == DEVICE and torch.equal(want, got.cpu()), (want, got.cpu())

    def all_reduce(op):
        def call(tensor):
            dist.all_reduce(tensor, op=op)
            return [tensor]
        return call

    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        both(all_reduce(op), values)
    both(all_reduce(dist.ReduceOp.SUM), torch.arange(1_400_000, dtype=torch.int64) * (rank + 1))  # 5.3 chunks
    both(all_reduce(dist.ReduceOp.SUM), torch.empty(0))
    both(all_reduce(dist.ReduceOp.BAND), torch.randint(255, (1000,), generator=generator, dtype=torch.uint8))

    def all_reduce_of_a_view(tensor):
        dist.all_reduce(tensor.view(-1, 11)[:, 3:7])
        return [tensor]
    both(all_reduce_of_a_view, values[:99_000])

    def broadcast(tensor):
        dist.broadcast(tensor, 1)
        return [tensor]
    both(broadcast, values)

    def broadcast_of_an_expanded_tensor(tensor):
        dist.broadcast(tensor[None].expand(3, -1), 1)
        return [tensor]
    both(broadcast_of_an_expanded_tensor, values[:1000])

    def reduce(tensor):
        dist.reduce(tensor, 1)
        return [tensor] if rank == 1 else []
    both(reduce, values)

    def all_gather(tensor):
        parts = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor)
        return parts
    both(all_gather, values)

    def reduce_scatter(tensor):
        out = torch.empty_like(tensor)
        dist.reduce_scatter(out, [tensor * (r + 1) for r in range(size)])
        return [out]
    both(reduce_scatter, values)

    def tensors_whole(tensor):
        flat = torch.empty(size * tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        name = "all_gather_into_tensor" if hasattr(dist, "all_gather_into_tensor") else "_all_gather_base"
        getattr(dist, name)(flat, tensor)
        part = torch.empty_like(tensor)
        name = "reduce_scatter_tensor" if hasattr(dist, "reduce_scatter_tensor") else "_reduce_scatter_base"
        getattr(dist, name)(part, flat)
        return [flat, part]
    both(tensors_whole, values)

    def gather_and_scatter(tensor):
        parts = [torch.empty_like(tensor) for _ in range(size)] if rank == 0 else None
        dist.gather(tensor, parts, 0)
        out = torch.empty_like(tensor)
        dist.scatter(out, parts, 0)
        return [out] + (parts or [])
    both(gather_and_scatter, values)

    def all_to_all(tensor):
        out = torch.empty_like(tensor)
        dist.all_to_all_single(out, tensor)
        return [out]
    both(all_to_all, values[:1000 * size])

    def send_and_recv(tensor):
        out = torch.empty_like(tensor)
        if rank == 0:
            dist.send(tensor, 1)
        elif rank == 1:
            dist.recv(out, 0)
        return [out] if rank == 1 else []
    both(send_and_recv, values)

    def batch(tensor):
        """As pipelines exchange: batch_isend_irecv() does this with a GPU's tensors."""
        out = torch.empty_like(tensor)
        with dist.distributed_c10d._coalescing_manager(None, tensor.device, async_ops=True) as manager:
            dist.isend(tensor, (rank + 1) % size)
            dist.irecv(out, (rank - 1) % size)
            dist.broadcast(tensor, 0)
        for work in manager.works:
            work.wait()
        return [out, tensor]
    if TORCH >= (2, 0):
        both(batch, values)

    dist.barrier()
    counted = netsum.torch.statistics()
    assert counted["staged_tensor_bytes"] > 0 and counted["collectives"]["all_reduce"]["switch"]["calls"] >= 14, counted


def case_order(rank, size):
    """Nothing waits for the device, and calls keep their order, whatever memory their tensors are in."""
    import torch
    import torch.distributed as dist
    fake_device = import_device()
    init_at_host()
    at_host = [torch.full((300_000,), float(rank + i)) for i in range(4)]
    at_dev = [at_device(torch.zeros(300_000)) for _ in range(4)]
    fake_device.hold(True)  # from here the device does nothing
    works = []
    for i in range(4):
        fake_device.fill_later(at_dev[i], float(rank + 10 * i))  # the all-reduce must come behind it
        works.append(dist.all_reduce(at_dev[i], async_op=True))
        works.append(dist.all_reduce(at_host[i], async_op=True) if i % 2 == 0 else
                     dist.broadcast(at_host[i], 0, async_op=True))
    barrier = dist.barrier(async_op=True) if TORCH >= (2, 0) else None
    assert not any(work.is_completed() for work in works), "an operation overtook one whose device has done nothing"
    dist_time = time.monotonic()
    fake_device.hold(False)
    for i in range(4):
        if i % 2 == 0:
            works[2 * i].wait()  # makes the current stream wait, so the copy below comes behind the sum
        else:
            while not works[2 * i].is_completed():
                pass
            works[2 * i].synchronize()  # so does this
        assert torch.equal(at_dev[i].cpu(), torch.full((300_000,), float(sum(r + 10 * i for r in range(size)))))
        works[2 * i + 1].wait()
        expected = float(sum(r + i for r in range(size)) if i % 2 == 0 else i)
        assert torch.equal(at_host[i], torch.full((300_000,), expected)), i
    if barrier is not None:
        barrier.wait()
    assert time.monotonic() - dist_time < 20
    dist.destroy_process_group()


def case_given_back(rank, size):
    """What 8 bits round of reduce-scatters is given back in the next step, also where steps begin while the device lags behind."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    device = import_device()
    init_at_host()
    model, values, parts, works = torch.nn.Identity(), torch.full((size, 64), 0.3), [at_device(torch.zeros(64)) for _ in range(20)], []
    values[:, 0] = 64  # so that a step of these values is 1
    values = at_device(values.flatten())
    netsum.torch.hooks.give_back(model)
    device.hold(True)
    for part in parts:
        model(0)
        works.append(dist.reduce_scatter_tensor(part, values, op=dist.ReduceOp.AVG, async_op=True))
    device.hold(False)
    for work in works:
        work.wait()
    mean = sum(part.cpu() for part in parts) / len(parts)
    assert (mean[1:] - 0.3).abs().max() < 0.06, mean
    dist.destroy_process_group()


def case_temporaries(rank, size):
    """A tensor that nobody holds any more lives until its copies are over."""
    import torch
    import torch.distributed as dist
    fake_device = import_device()
    init_at_host()
    futures = []
    for i in range(20):
        tensor = at_device(torch.zeros(50_000))
        fake_device.fill_later(tensor, float(rank + i))
        future = dist.all_reduce(tensor, async_op=True).get_future()
        futures.append(future.then(lambda done: done.value()[0] * 2))
        del tensor
    for i, future in enumerate(futures):
        assert torch.equal(future.wait().cpu(), torch.full((50_000,), 2.0 * sum(r + i for r in range(size)))), i


def case_capture(rank, size):
    """A call while a graph is captured is refused before anything is done for it, and the group goes on."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    import_device()
    init_at_host()
    tensor = at_device(torch.ones(1000))
    module = getattr(torch, DEVICE)
    before = module.__dict__.get("is_current_stream_capturing")
    module.is_current_stream_capturing = lambda: True
    for call in (lambda: dist.all_reduce(tensor), lambda: dist.broadcast(tensor, 0), lambda: dist.send(tensor, 1 - rank)):
        try:
            call()
            raise AssertionError("a call became part of a graph")
        except netsum.torch.Error as error:
            assert error.code == "bad_argument" and "cannot be part of a graph" in str(error), error
    module.is_current_stream_capturing = before or (lambda: False)
    dist.all_reduce(tensor)
    assert torch.equal(tensor.cpu(), torch.full((1000,), float(size)))


def case_ddp(rank, size):
    """DistributedDataParallel trains at the device as it does at the host, bit for bit."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import netsum.torch
    import_device()
    init_at_host()

    def train(device):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(40, 60), torch.nn.ReLU(), torch.nn.Linear(60, 3)).to(device)
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.005)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
        inputs = torch.randn(30, 8, 40, generator=torch.Generator().manual_seed(rank))
        for batch in inputs:
            optimizer.zero_grad(set_to_none=True)
            (parallel(batch.to(device)) ** 2).mean().backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    # A GPU's own products differ from the host's in their last bits.
    same = torch.equal if DEVICE != "cuda" else lambda want, got: torch.allclose(want, got, rtol=1e-3, atol=1e-4)
    expected = train("cpu")
    for want, got in zip(expected, train(DEVICE), strict=True):
        assert same(want, got), (want - got).abs().max()
    counted = netsum.torch.statistics()
    assert counted["staged_tensor_bytes"] > 0, counted


def case_a_device_that_hangs(rank, size):
    """A device that comes to nothing ends the operation with an error, in the group's time and some seconds."""
    import torch
    import torch.distributed as dist
    fake_device = import_device()
    init_at_host(seconds=2)
    tensor = at_device(torch.ones(1000))
    dist.all_reduce(tensor)  # allocates the pinned buffers, for which CUDA waits until the device is idle
    if rank == 0:
        fake_device.hold_seconds = 15
        fake_device.hold(True)
    began = time.monotonic()
    work = dist.all_reduce(tensor, async_op=True)
    try:
        work.wait()
    except RuntimeError as error:
        return str(error)
    raise AssertionError(f"the all-reduce ended after {time.monotonic() - began:.1f} s")


def case_a_device_that_fails(rank, size):
    """Whichever of a device's calls fails, the host keeps the memory that copies of before are on their way to."""
    import torch
    import torch.distributed as dist
    fake_device = import_device()
    init_at_host()
    for calls in range(1, 5):  # a mark on the caller's stream, its wait, the copy of the input, a mark behind it
        group = dist.new_group(backend="netsum")
        tensor = at_device(torch.ones(10_000_000))  # so long that freed memory is given back, and a copy to it ends the process
        fake_device.synchronize()
        fake_device.hold(True)
        fake_device.fail_in(calls)
        try:
            dist.broadcast(tensor, 0, group=group)
            raise AssertionError(f"call {calls} of the device did not fail")
        except RuntimeError as error:
            assert "told to fail" in str(error), error
        dist.destroy_process_group(group)
        fake_device.hold(False)
        fake_device.synchronize_all()


def case_inference(rank, size):
    """Tensors of inference mode, which another thread writes."""
    import torch
    import torch.distributed as dist
    import_device()
    init_at_host()
    with torch.inference_mode():
        tensor = at_device(torch.full((100_000,), rank + 1.0))
        dist.all_reduce(tensor)
        parts = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(parts, tensor)
        for result in [tensor, *parts]:
            assert torch.equal(result.cpu(), torch.full((100_000,), size * (size + 1) / 2)), result


def case_profiled(rank, size):
    """The profiler sees what went by the switch as netsum's, at the host and at the device; and so do flight records."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    import_device()
    init_at_host()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(3, 5))
        dist.all_reduce(at_device(torch.ones(7)))
        dist.broadcast(at_device(torch.ones(9)), 0)
        dist.barrier()
    spans = [(event.name, event.input_shapes) for event in profiler.events() if event.name.startswith("netsum:")]
    expected = [("netsum:all_reduce", [[3, 5]]), ("netsum:all_reduce", [[7]]), ("netsum:broadcast", [[9]])]
    assert [span for span in spans if span[0] != "netsum:barrier"] == expected, spans
    entries = [(each["profiling_name"], each["input_sizes"], each["state"]) for each in netsum.torch.flight_record()["entries"]]
    assert entries == [("nccl:all_reduce", [[3, 5]], "completed"), ("nccl:all_reduce", [[7]], "completed"),
                       ("nccl:broadcast", [[9]], "completed")], entries


def case_beside_another_backend(rank, size):
    """A group of torch 2.x with Gloo for host memory; a device without a backend has none after the import either."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    import_device()
    assert "netsum" not in dist.Backend.default_device_backend_map.values(), dist.Backend.default_device_backend_map
    init_at_host(backend=f"cpu:gloo,{DEVICE}:netsum")
    tensor = at_device(torch.ones(10))
    dist.all_reduce(tensor)
    dist.all_reduce(torch.ones(10))
    assert torch.equal(tensor.cpu(), torch.full((10,), float(size)))
    counted = netsum.torch.statistics()["collectives"]["all_reduce"]["switch"]
    assert counted == {"calls": 1, "bytes": 40}, counted


class Devices(unittest.TestCase):
    def test_profiled(self):
        run("profiled", 2)

    @unittest.skipIf(TORCH < (2, 0), "torch 1.x has one backend for a group")
    def test_beside_another_backend(self):
        run("beside_another_backend", 2)

    def test_inference(self):
        run("inference", 2)

    def test_collectives(self):
        run("collectives", 3)

    def test_over_gloo_alone(self):
        run("order", 2, environment={"NETSUM_MODE": "off"})

    def test_order(self):
        run("order", 2)

    def test_given_back(self):
        run("given_back", 2, environment={"NETSUM_WIRE": "int8"})

    def test_temporaries(self):
        run("temporaries", 2)

    def test_ddp(self):
        run("ddp", 2)

    def test_capture(self):
        run("capture", 2)

    @unittest.skipIf(DEVICE == "cuda", "a GPU does not fail when it is told to")
    def test_a_device_that_fails(self):
        run("a_device_that_fails", 1)

    def test_a_device_that_hangs(self):
        ranks = run("a_device_that_hangs", 2)
        self.assertIn("the device of the tensors has made no progress for 2000 ms", ranks[0].result)
        self.assertIn("rank 0", ranks[1].result)


if __name__ == "__main__":
    torch_support.main()
