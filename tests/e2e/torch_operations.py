"""Every operation and dtype of the backend against Gloo, or against arithmetic where Gloo has no such operation."""

import math
import os
import unittest

import torch_support
from torch_support import DEVICE, TORCH, Switch, init, run

LENGTHS = (0, 1, 255, 256, 257, 5000, 100_003)


def inputs_of(make, size):
    """What every rank passes in, known to all: make(generator) per rank, from a seed that is the rank."""
    import torch
    return [make(torch.Generator(DEVICE).manual_seed(1000 + rank)) for rank in range(size)]


def same_bits_everywhere(tensor):
    import torch
    import torch.distributed as dist
    raw = tensor.contiguous().view(torch.uint8) if tensor.numel() else torch.zeros(0, dtype=torch.uint8)
    gathered = [torch.empty_like(raw) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, raw)
    return all(torch.equal(raw, other) for other in gathered)


def case_all_reduce_by_switch(rank, size):
    """float32, float16, bfloat16 within docs/numerics.md's bound of the exact sum, int32 exactly; all ranks bit for bit."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    assert netsum.torch.statistics()["path"] == "switch"
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for length in LENGTHS:
            for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
                inputs = inputs_of(lambda g: (torch.randn(length, generator=g) * 10).to(dtype), size)
                tensor = inputs[rank].clone()
                dist.all_reduce(tensor, op=op)
                exact = sum(t.double() for t in inputs) / divisor
                # The fixed-point grid of a block of 256, and one rounding to the dtype.
                largest = max((t.double().abs().max().item() for t in inputs if length), default=0)
                grid = size * size * largest * 2.0 ** -29
                bound = grid + exact.abs() * torch.finfo(dtype).eps
                error = (tensor.double() - exact).abs()
                assert (error <= bound).all(), (dtype, length, op, (error - bound).max())
                assert same_bits_everywhere(tensor), (dtype, length, op)
    for length in LENGTHS:
        inputs = inputs_of(lambda g: torch.randint(-2**31, 2**31 - 1, (length,), generator=g, dtype=torch.int32), size)
        tensor = inputs[rank].clone()
        dist.all_reduce(tensor)
        exact = sum(t.long() for t in inputs)
        assert torch.equal(tensor, exact.to(torch.int32)), length  # modulo 2^32
        small = [t // 8 for t in inputs]
        tensor = small[rank].clone()
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert torch.equal(tensor, sum(t.long() for t in small).div(size, rounding_mode="trunc").to(torch.int32)), length
    counted = netsum.torch.statistics()
    assert counted["collectives"]["all_reduce"]["switch"]["calls"] == len(LENGTHS) * 8, counted
    assert "all_reduce" not in counted["gloo_operations"], counted
    dist.destroy_process_group()


def case_special_values(rank, size):
    """NaN, infinities, zeros, subnormals and the largest finite value, each beside ordinary elements of its block."""
    import torch
    import torch.distributed as dist
    init()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        largest = torch.finfo(dtype).max
        columns = [  # (value of rank 0, value of all others, the sum)
            (math.nan, 1.0, math.nan), (math.inf, 1.0, math.inf), (-math.inf, 1.0, -math.inf),
            (math.inf, -math.inf, math.nan), (math.inf, math.inf, math.inf), (0.0, 0.0, 0.0), (-0.0, -0.0, 0.0),
            (largest, largest, math.inf), (largest, -largest, largest - (size - 1) * largest),
        ]
        for first, others, expected in columns:
            tensor = torch.ones(600, dtype=dtype)
            tensor[300] = first if rank == 0 else others
            dist.all_reduce(tensor)
            got = tensor[300].item()
            expected = torch.tensor(expected, dtype=torch.float64).to(dtype).item()
            if math.isnan(expected):
                assert math.isnan(got), (dtype, first, others, got)
            else:
                assert got == expected or math.isclose(got, expected, rel_tol=1e-6), (dtype, first, others, got, expected)
            assert same_bits_everywhere(tensor)
            if not math.isfinite(first) or not math.isfinite(others):
                assert (tensor[:300] == size).all() and (tensor[301:] == size).all(), (dtype, first, others)
    for value in (1e-45, 1e-38):
        tensor = torch.full((300,), value)
        dist.all_reduce(tensor)
        assert (tensor == torch.tensor(value) * size).all(), (value, tensor[0])
    dist.destroy_process_group()


def case_layouts(rank, size):
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    total = size * (size + 1) // 2
    base = torch.arange(600.0).reshape(20, 30)
    for view in (base.t(), base[::2], base[:, 3:17], base.reshape(1, 4, 10, 15).contiguous(memory_format=torch.channels_last),
                 torch.tensor(3.0), base.view(-1)[1:]):
        tensor = view.clone(memory_format=torch.preserve_format) * (rank + 1)
        whole = torch.zeros(40, 60)
        strided = whole[::2, ::2] if view.shape == (20, 30) else tensor
        strided.copy_(tensor)
        dist.all_reduce(strided)
        assert torch.allclose(strided, view * total), view.shape
    parameter = torch.ones(7, requires_grad=True)
    dist.all_reduce(parameter.detach())
    assert (parameter == size).all()
    bundle = [torch.full((n,), rank + 1.0) for n in (3, 0, 500)]
    dist.all_reduce_coalesced(bundle)
    assert all((t == total).all() for t in bundle)
    counted = netsum.torch.statistics()
    assert "all_reduce" not in counted["gloo_operations"] and "all_reduce_coalesced" not in counted["gloo_operations"], counted
    dist.destroy_process_group()


def case_work(rank, size):
    import datetime

    import torch
    import torch.distributed as dist
    init()
    tensors = [torch.full((10_000,), float(i)) for i in range(50)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    called = []
    chained = [w.get_future().then(lambda f, i=i: called.append(i) or f.value()[0] + 1) for i, w in enumerate(works)]
    for i, work in enumerate(works):
        assert work.wait(datetime.timedelta(seconds=20)) and work.is_completed() and work.is_success()
        work.synchronize()
        assert work.result()[0] is tensors[i] or torch.equal(work.result()[0], tensors[i])
        assert (tensors[i] == i * size).all()
        assert (chained[i].wait() == i * size + 1).all()
    assert sorted(called) == list(range(50)), called

    # Callbacks may wait for operations that end later, themselves and in their callbacks: each is on a thread of its own.
    later = [torch.full((10,), float(i)) for i in range(4)]
    first = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    issued = [dist.all_reduce(t, async_op=True) for t in later]

    def nested(depth):
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        return future.wait()[0] if depth == 0 else future.then(lambda f: nested(depth - 1) + f.value()[0]).wait()

    waits = first.then(lambda f: [w.wait() for w in issued] and nested(3))
    futures = [w.get_future().then(lambda f, w=w: w.wait() and f.value()[0]) for w in issued]  # for what has ended just now
    for i, future in enumerate(futures):
        assert (future.wait() == i * size).all()
    assert waits.wait().item() == 4 * size
    barrier = dist.barrier(async_op=True)
    barrier.wait()
    dist.destroy_process_group()


def case_the_rest(rank, size):
    """What Gloo does for us, and what PyTorch's Gloo refuses, on every dtype."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    gloo = dist.new_group(backend="gloo")
    movable = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32,
               torch.int64, torch.bool, torch.complex64, torch.complex128)

    def value(dtype, of, shape=(2, 3)):
        return (torch.arange(math.prod(shape)).reshape(shape) * 3 + of).remainder(100).to(dtype)

    for dtype in movable:
        mine = value(dtype, rank)
        tensor = mine.clone()
        dist.broadcast(tensor, src=1)
        assert torch.equal(tensor, value(dtype, 1)), dtype
        gathered = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(gathered, mine)
        assert all(torch.equal(t, value(dtype, r)) for r, t in enumerate(gathered)), dtype
        whole = torch.empty(size * 2, 3, dtype=dtype)
        dist._all_gather_base(whole, mine)
        assert torch.equal(whole, torch.cat([value(dtype, r) for r in range(size)])), dtype
        if not dtype.is_complex:  # refused by torch.distributed itself
            collected = [torch.empty_like(mine) for _ in range(size)] if rank == 1 else None
            dist.gather(mine, collected, dst=1)
            assert rank != 1 or all(torch.equal(t, value(dtype, r)) for r, t in enumerate(collected)), dtype
            received = torch.empty_like(mine)
            dist.scatter(received, [value(dtype, 10 + r) for r in range(size)] if rank == 0 else None, src=0)
            assert torch.equal(received, value(dtype, 10 + rank)), dtype
        received = torch.empty_like(mine)
        right, left = (rank + 1) % size, (rank - 1) % size
        request = dist.isend(mine, right)
        dist.recv(received, left)
        request.wait()
        assert torch.equal(received, value(dtype, left)), dtype
        exchanged = [torch.empty(r + 1, dtype=dtype) for _, r in ((0, rank),) * size]
        dist.all_to_all(exchanged, [value(dtype, 7 * rank + r, (r + 1,)) for r in range(size)])
        assert all(torch.equal(t, value(dtype, 7 * r + rank, (rank + 1,))) for r, t in enumerate(exchanged)), dtype
        single = torch.empty(size, 4, dtype=dtype)
        dist.all_to_all_single(single, torch.stack([value(dtype, 7 * rank + r, (4,)) for r in range(size)]))
        assert torch.equal(single, torch.stack([value(dtype, 7 * r + rank, (4,)) for r in range(size)])), dtype

    ops = (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64):
        bitwise = () if dtype.is_floating_point else (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
        for op in ops + bitwise:
            ours, theirs = value(dtype, rank).remainder(4), value(dtype, rank).remainder(4)
            dist.all_reduce(ours, op=op)
            dist.all_reduce(theirs, op=op, group=gloo)
            assert torch.allclose(ours.double(), theirs.double(), rtol=1e-3), (dtype, op, ours, theirs)
            ours, theirs = value(dtype, rank).remainder(4), value(dtype, rank).remainder(4)
            dist.reduce(ours, dst=0, op=op)
            dist.reduce(theirs, dst=0, op=op, group=gloo)
            assert rank != 0 or torch.allclose(ours.double(), theirs.double(), rtol=1e-3), (dtype, op)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):  # -0 < +0, and NaN stays, whoever has them
        for op, zero in ((dist.ReduceOp.MIN, True), (dist.ReduceOp.MAX, False)):
            tensor = torch.tensor([0.0 if rank == r else -0.0 for r in range(size)] +
                                  [math.nan if rank == r else 1.0 for r in range(size)] + [-1.0 - rank, math.inf], dtype=dtype)
            dist.all_reduce(tensor, op=op)
            assert (torch.signbit(tensor[:size]) == zero).all() and (tensor[:size] == 0).all(), (dtype, op, tensor)
            assert tensor[size:2 * size].isnan().all(), (dtype, op, tensor)
            assert tensor[2 * size:].tolist() == [-size if zero else -1, math.inf], (dtype, op, tensor)
    total = sum(range(1, size + 1))
    for dtype in (torch.float64, torch.int64, torch.int16, torch.uint8, torch.bfloat16):  # Gloo has no average
        tensor = torch.full((9,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert (tensor == total).all(), (dtype, tensor)
        tensor = torch.full((9,), 10 * (rank + 1), dtype=dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert (tensor == 10 * total // size).all(), (dtype, tensor)
        tensor = torch.full((9,), 10 * (rank + 1), dtype=dtype)
        dist.reduce(tensor, dst=0, op=dist.ReduceOp.AVG)
        assert rank != 0 or (tensor == 10 * total // size).all(), (dtype, tensor)
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        mine = torch.empty(2, 3, dtype=dtype)
        dist.reduce_scatter(mine, [torch.full((2, 3), (rank + 1) * (r + 1), dtype=dtype) for r in range(size)])
        assert (mine == total * (rank + 1)).all(), (dtype, mine)
        for lengths in ([2, 3, 1, 7][:size], [0, 5, 0, 2][:size]):  # equal for some ranks, or empty
            mine = torch.empty(lengths[rank], dtype=dtype)
            dist.reduce_scatter(mine, [torch.full((n,), (rank + 1) * (r + 1), dtype=dtype) for r, n in enumerate(lengths)])
            assert (mine == total * (rank + 1)).all(), (dtype, lengths, mine)
            if os.environ["NETSUM_MODE"] == "off":
                continue  # PyTorch 1.13's Gloo refuses them in all_gather
            parts = [torch.empty(n, dtype=dtype) for n in lengths]
            dist.all_gather(parts, torch.full((lengths[rank],), rank + 1, dtype=dtype))
            for r, part in enumerate(parts):
                assert part.tolist() == [r + 1] * lengths[r], (dtype, lengths, parts)
        mine = torch.empty(2, 3, dtype=dtype)
        source = torch.stack([torch.full((2, 3), (rank + 1) * (r + 1), dtype=dtype) for r in range(size)])
        dist._reduce_scatter_base(mine, source)
        assert (mine == total * (rank + 1)).all(), (dtype, mine)
        assert (source[0] == rank + 1).all()

    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, True, False]
    complex_tensor = torch.full((4,), complex(rank + 1, -1))
    dist.all_reduce(complex_tensor)
    assert (complex_tensor == complex(total, -size)).all()
    sparse = torch.sparse_coo_tensor([[rank]], [1.0 + rank], (size,))
    dist.all_reduce(sparse)
    assert torch.equal(sparse.to_dense(), torch.arange(1.0, size + 1))

    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    shared = [f"from {rank}"]
    dist.broadcast_object_list(shared, src=1)
    assert shared == ["from 1"]
    scattered = [None]
    dist.scatter_object_list(scattered, [f"to {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert scattered == [f"to {rank}"]
    dist.barrier()

    # torch 2.x refuses quantized tensors itself.
    refused, name = ((torch.ones(4).to(torch.float8_e5m2), "Float8_e5m2") if TORCH >= (2, 0)
                     else (torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "QInt8"))
    try:
        dist.all_reduce(refused)
        raise AssertionError(f"a tensor of {name} was reduced")
    except (RuntimeError, ValueError) as error:
        assert name in str(error) and "neither the switch nor Gloo" in str(error), error
    dist.destroy_process_group()
    return True


def case_both_directions(rank, size):
    """A short all-gather behind a long reduce-scatter ends first: each way has its own window, and its own line of works."""
    import torch
    import torch.distributed as dist
    init()
    ended = []
    for attempt in range(3):  # a busy machine may keep a thread from seeing the end of what is short
        long, part = torch.ones(size, 3_000_000), torch.empty(3_000_000)
        short, whole = torch.full((4,), float(rank), dtype=torch.bfloat16), torch.empty(size, 4, dtype=torch.bfloat16)
        order = []
        works = (dist._reduce_scatter_base(part, long, async_op=True), dist._all_gather_base(whole, short, async_op=True))
        seen = [work.get_future().then(lambda _, name=name: order.append(name)) for work, name in zip(works, ("long", "short"))]
        for future in seen:
            future.wait()
        assert (part == size).all() and torch.equal(whole.float(), torch.arange(float(size)).unsqueeze(1).expand(size, 4)), attempt
        ended.append(order[0])
    assert "short" in ended, ended
    dist.barrier()
    dist.destroy_process_group()
    return True


class Operations(unittest.TestCase):
    """Each case over a switch of its own; those that must not notice the difference also over Gloo alone."""

    def over_switch(self, case, ranks=3, **more):
        with Switch() as switch:
            run(case, ranks, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address}, **more)

    def test_all_reduce_by_switch(self):
        self.over_switch("all_reduce_by_switch")

    def test_special_values(self):
        self.over_switch("special_values")

    def test_layouts(self):
        self.over_switch("layouts")

    def test_work(self):
        self.over_switch("work")
        run("work", 2, environment={"NETSUM_MODE": "off"})

    def test_both_directions(self):
        with Switch() as switch:
            run("both_directions", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "NETSUM_SHARED_MEMORY": "off"})

    def test_the_rest(self):
        self.over_switch("the_rest")
        run("the_rest", 3, environment={"NETSUM_MODE": "off"})


if __name__ == "__main__":
    torch_support.main()
