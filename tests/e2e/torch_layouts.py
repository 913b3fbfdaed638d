"""Every call with tensors of every layout in memory, against arithmetic: over the switch, and over Gloo alone.

NETSUM_TEST_DEVICE=cuda has the tensors in a device's memory.
"""

import math
import unittest

import torch_support
from torch_support import DEVICE, Switch, init_at_host, run

# Each makes a tensor of a shape and type, whose elements are anywhere in its memory.
LAYOUTS = {
    "dense": lambda empty, shape: empty(shape),
    "offset": lambda empty, shape: empty((math.prod(shape) + 3,))[3:].view(shape),
    "transposed": lambda empty, shape: empty(shape[::-1]).t(),
    "columns": lambda empty, shape: empty((shape[0], 3 * shape[1]))[:, 2:2 + shape[1]],
    "strided": lambda empty, shape: empty((2 * shape[0], 3 * shape[1]))[1::2, ::3],
    "expanded": lambda empty, shape: empty((1, shape[1])).expand(shape),
    "negated": lambda empty, shape: empty(shape)._neg_view(),
}
ROWS, COLUMNS = 4, 6


class Layouts:
    """Tensors of one case: what goes in has one layout, what comes out another, and all values are known to all ranks."""

    def __init__(self, dtype, of_inputs, of_outputs, shape, device=DEVICE):
        self.dtype, self.of_inputs, self.of_outputs, self.shape, self.device = dtype, of_inputs, of_outputs, shape, device
        self.rows_are_alike = "expanded" in (of_inputs, of_outputs)

    def make(self, layout, shape):
        import torch
        return LAYOUTS[layout if len(shape) == 2 else "dense"](
            lambda whole: torch.zeros(whole, dtype=self.dtype, device=self.device), shape)

    def values(self, seed):
        """Of a rank, or of a part: integers, the same in each row if rows share their memory."""
        import torch
        count = math.prod(self.shape)
        values = torch.arange(count) % (COLUMNS if self.rows_are_alike else count or 1)
        values = (values + 31 * seed + 1).reshape(self.shape).to(self.dtype)
        return values * (1 + 2j) if self.dtype.is_complex else values

    def input(self, values):
        tensor = self.make(self.of_inputs, tuple(values.shape))
        (tensor[:1] if self.of_inputs == "expanded" and tensor.dim() == 2 else tensor).copy_(
            values[:1] if self.of_inputs == "expanded" and tensor.dim() == 2 else values)
        return tensor

    def output(self, shape=None):
        return self.make(self.of_outputs, self.shape if shape is None else shape)

    def check(self, call, got, expected):
        import torch
        got = got.cpu().resolve_conj().resolve_neg()
        assert torch.equal(got, expected), (call, self.dtype, self.device, self.of_inputs, self.of_outputs, self.shape, got, expected)


def check_every_call(rank, size, case, messages_from_any=DEVICE == "cpu"):
    import torch
    import torch.distributed as dist
    values = case.values
    mine, right, left = values(rank), (rank + 1) % size, (rank - 1) % size
    total = sum(values(r) for r in range(size))

    if case.of_inputs == case.of_outputs:  # in place
        tensor = case.input(mine)
        dist.broadcast(tensor, src=1)
        case.check("broadcast", tensor, values(1))
        tensor = case.input(mine)
        dist.all_reduce(tensor)
        case.check("all_reduce", tensor, total)
        tensor = case.input(mine)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG if case.dtype.is_complex else dist.ReduceOp.MAX)
        case.check("all_reduce", tensor, total / size if case.dtype.is_complex else values(size - 1))
        tensor = case.input(mine)
        dist.reduce(tensor, dst=1)
        case.check("reduce", tensor, total if rank == 1 else tensor.cpu())
        tensors = [case.input(mine), case.input(values(rank + 1))]
        dist.all_reduce_coalesced(tensors)
        case.check("all_reduce_coalesced", tensors[1], total + 31 * size * (1 + 2j if case.dtype.is_complex else 1))

    outputs = [case.output() for _ in range(size)]
    dist.all_gather(outputs, case.input(mine))
    for r, output in enumerate(outputs):
        case.check("all_gather", output, values(r))
    if not case.dtype.is_complex:  # torch.distributed refuses them
        outputs = [case.output() for _ in range(size)] if rank == 1 else None
        dist.gather(case.input(mine), outputs, dst=1)
        for r, output in enumerate(outputs or ()):
            case.check("gather", output, values(r))
        output = case.output()
        dist.scatter(output, [case.input(values(10 + r)) for r in range(size)] if rank == 1 else None, src=1)
        case.check("scatter", output, values(10 + rank))
    output = case.output()
    request = dist.isend(case.input(mine), right)
    dist.recv(output, left)
    request.wait()
    case.check("recv", output, values(left))
    if messages_from_any and math.prod(case.shape) > 0:  # what Gloo takes
        output = case.output()
        request = dist.isend(case.input(mine), right)
        assert size > 2 or dist.recv(output) == left
        request.wait()
        case.check("recv from any rank", output, values(left))
    outputs = [case.output() for _ in range(size)]
    dist.all_to_all(outputs, [case.input(values(7 * rank + r)) for r in range(size)])
    for r, output in enumerate(outputs):
        case.check("all_to_all", output, values(7 * r + rank))
    output = case.output()
    dist.reduce_scatter(output, [case.input(values(rank + r)) for r in range(size)])
    case.check("reduce_scatter", output, sum(values(r + rank) for r in range(size)))

    if len(case.shape) == 0 or case.rows_are_alike:
        return  # parts of one tensor, each with values of its own
    output = case.output((size * case.shape[0], COLUMNS))
    dist._all_gather_base(output, case.input(mine))
    case.check("all_gather_into_tensor", output, torch.cat([values(r) for r in range(size)]))
    output = case.output((size * case.shape[0], COLUMNS))
    dist.all_to_all_single(output, case.input(torch.cat([values(7 * rank + r) for r in range(size)])))
    case.check("all_to_all_single", output, torch.cat([values(7 * r + rank) for r in range(size)]))
    output = case.output()
    dist._reduce_scatter_base(output, case.input(torch.cat([values(rank + r) for r in range(size)])))
    case.check("reduce_scatter_tensor", output, sum(values(r + rank) for r in range(size)))


def check_complex(rank, size):
    """torch.distributed's functions take the parts of complex tensors; what calls the group itself does not."""
    import torch
    import torch.distributed as dist
    values = torch.full((5, 2), 1 + 2j, device=DEVICE) * (rank + 1)
    outputs = [torch.zeros_like(values) for _ in range(size)]
    dist.group.WORLD.allgather([outputs], [values.conj()]).wait()
    assert all((output.cpu() == (1 - 2j) * (r + 1)).all() for r, output in enumerate(outputs)), outputs
    dist.group.WORLD.allreduce([values]).wait()
    assert (values.cpu() == (1 + 2j) * size * (size + 1) / 2).all(), values
    weight = torch.nn.Module()
    weight.weight = torch.nn.Parameter(torch.ones(20, dtype=torch.complex64, device=DEVICE))
    weight.forward = lambda x: (weight.weight * x).abs().square().sum()
    model = torch.nn.parallel.DistributedDataParallel(weight)
    model(torch.full((20,), rank + 1.0, device=DEVICE)).backward()
    assert (weight.weight.grad.cpu() == sum(2 * (r + 1) ** 2 for r in range(size)) / size).all(), weight.weight.grad


def case_every_call(rank, size):
    import torch
    import torch.distributed as dist
    init_at_host()
    for dtype in (torch.float32, torch.int16, torch.complex64):
        for layout in LAYOUTS:
            if layout == "negated" and not dtype.is_floating_point:
                continue
            # Of outputs that are to be negated torch's dispatcher lends copies, and writes them back too soon.
            pairs = [("dense", layout), (layout, layout)] if layout != "negated" else []
            for of_inputs, of_outputs in [(layout, "dense"), *pairs]:
                check_every_call(rank, size, Layouts(dtype, of_inputs, of_outputs, (ROWS, COLUMNS)))
        for shape in ((0, COLUMNS), ()):
            check_every_call(rank, size, Layouts(dtype, "dense", "dense", shape))
    check_complex(rank, size)
    if DEVICE == "cpu":
        try:
            dist.scatter(torch.zeros(1).expand(3), [torch.arange(3.0)] * size if rank == 0 else None)
            raise AssertionError("three values went into one element")
        except RuntimeError as error:
            assert "share their memory" in str(error), error
    dist.destroy_process_group()


def case_one_rank_alone(rank, size):
    """What one rank alone sees decides nothing: rank 0's tensors have another layout, or are at another device, or are of
    inference mode, or come from another thread."""
    import threading

    import torch
    from torch_devices import DEVICE as OTHER
    from torch_devices import import_device
    import_device()
    init_at_host()
    shapes = ((ROWS, COLUMNS), (100_000, COLUMNS), (0, COLUMNS), ())  # 2.4 MB are more than a chunk

    def check(shape, layout="dense", device=DEVICE):
        case = Layouts(torch.float32, layout, layout, shape, device) if rank == 0 else Layouts(torch.float32, "dense", "dense", shape)
        case.rows_are_alike = layout == "expanded"
        check_every_call(rank, size, case, messages_from_any=False)

    for shape in shapes:
        for layout in ("offset", "transposed", "strided", "expanded") if len(shape) == 2 else ():
            check(shape, layout)
        check(shape, device=OTHER)
        with torch.inference_mode(rank == 0):
            check(shape)
            check(shape, device=OTHER)
        errors = []
        if rank == 0:
            def guarded():
                try:
                    check(shape, device=OTHER)
                except BaseException as error:
                    errors.append(error)
            thread = threading.Thread(target=guarded)
            thread.start()
            thread.join()
        else:
            check(shape)
        assert not errors, errors
    check((100_000, COLUMNS), layout="strided", device=OTHER)


class EveryLayout(unittest.TestCase):
    def test_one_rank_alone(self):
        with Switch() as switch:
            run("one_rank_alone", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address})
        run("one_rank_alone", 2, environment={"NETSUM_MODE": "off"})

    def test_over_the_switch(self):
        with Switch() as switch:
            run("every_call", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address})

    def test_over_gloo(self):
        run("every_call", 2, environment={"NETSUM_MODE": "off"})


if __name__ == "__main__":
    torch_support.main()
