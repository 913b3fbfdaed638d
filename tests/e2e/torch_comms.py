"""torchcomms' backend: what torchcomms' own Python gets from it, against arithmetic.

Exit code 77: this Python has no torchcomms, or the backend is not built.
"""

import datetime
import importlib.util
import sys
import time
import unittest

import torch_support
from torch_support import Switch, run

SECONDS = datetime.timedelta(seconds=30)


def new_comm(rank, size, device="cpu"):
    import torch
    import torchcomms
    store = torch_support.tcp_store(rank, size)
    torch.set_num_threads(1)
    return torchcomms.new_comm("netsum", torch.device(device), "world", timeout=SECONDS, store=store), store


def meet(store, size, place):
    until = time.monotonic() + 20
    store.add(place, 1)
    while store.add(place, 0) < size:
        if time.monotonic() > until:
            raise TimeoutError(f"{store.add(place, 0)} of {size} ranks came to '{place}' within 20 s")
        time.sleep(0.01)


def leave(store, rank, size):
    """No rank ends before all are here. Rank 0 has the store, and ends when no other rank asks it any more."""
    meet(store, size, "here")
    if rank == 0:
        meet(store, size, "end")
    else:
        store.add("end", 1)


def ranks_sum(size):
    return size * (size + 1) / 2


def case_collectives(rank, size):
    import torch
    import netsum.torch
    from torchcomms import ReduceOp
    comm, _ = new_comm(rank, size)
    assert (comm.get_rank(), comm.get_size(), comm.get_backend()) == (rank, size, "netsum")
    own = torch.arange(1000.0) * (rank + 1)  # what the ranks have sums to `all_of`
    all_of = torch.arange(1000.0) * ranks_sum(size)

    def check(got, wanted):
        assert torch.equal(got, wanted), (got, wanted)

    for op, wanted in ((ReduceOp.SUM, all_of), (ReduceOp.AVG, all_of / size), (ReduceOp.MIN, torch.arange(1000.0)),
                       (ReduceOp.MAX, torch.arange(1000.0) * size)):
        tensor = own.clone()
        comm.all_reduce(tensor, op, False)
        torch.testing.assert_close(tensor, wanted, rtol=1e-5, atol=1e-3)
    tensor = torch.full((7,), rank + 2, dtype=torch.int32)
    comm.all_reduce(tensor, ReduceOp.PRODUCT, False)
    check(tensor, torch.full((7,), torch.arange(2, size + 2).prod().item(), dtype=torch.int32))
    tensor = torch.ones(7)
    comm.all_reduce(tensor, ReduceOp.PREMUL_SUM(0.5), False)
    check(tensor, torch.full((7,), size / 2))

    works = [(tensor, comm.all_reduce(tensor, ReduceOp.SUM, True)) for tensor in (own.clone() for _ in range(20))]
    until = time.monotonic() + 20
    while not all(work.is_completed() for _, work in works):  # they end without wait()
        assert time.monotonic() < until
        time.sleep(0.001)
    for tensor, work in works:
        work.wait()
        torch.testing.assert_close(tensor, all_of)

    tensor = torch.full((5,), rank, dtype=torch.int64)
    comm.broadcast(tensor, size - 1, False)
    check(tensor, torch.full((5,), size - 1))
    tensor = own.clone()
    comm.reduce(tensor, 1, ReduceOp.SUM, False)
    if rank == 1:
        torch.testing.assert_close(tensor, all_of)

    parts = [torch.empty(3) for _ in range(size)]
    comm.all_gather(parts, torch.full((3,), float(rank)), False)
    check(torch.stack(parts), torch.arange(float(size))[:, None].expand(size, 3))
    parts = [torch.empty(r + 1) for r in range(size)]
    comm.all_gather_v(parts, torch.full((rank + 1,), float(rank)), False)
    for r, part in enumerate(parts):
        check(part, torch.full((r + 1,), float(r)))
    whole = torch.empty(size * 3)
    comm.all_gather_single(whole, torch.full((3,), float(rank)), False)
    check(whole, torch.arange(float(size)).repeat_interleave(3))

    out = torch.empty(4)
    comm.reduce_scatter(out, [torch.full((4,), float(r + rank)) for r in range(size)], ReduceOp.SUM, False)
    check(out, torch.full((4,), size * rank + size * (size - 1) / 2))
    out = torch.empty(rank + 1)
    comm.reduce_scatter_v(out, [torch.ones(r + 1) for r in range(size)], ReduceOp.SUM, False)
    check(out, torch.full((rank + 1,), float(size)))
    out = torch.empty(4)
    comm.reduce_scatter_single(out, torch.ones(4 * size), ReduceOp.SUM, False)
    check(out, torch.full((4,), float(size)))

    comm.barrier(False)
    by_switch = sorted({each["name"] for _, _, flights in netsum.torch._C.flights() for each in flights})
    comm.finalize()
    return by_switch


def case_gloo(rank, size):
    """What the switch has not."""
    import torch
    comm, _ = new_comm(rank, size)
    after, before = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(3)
    sent = comm.send(torch.full((3,), float(rank)), after, True)
    comm.recv(got, before, False)
    sent.wait()
    assert sent.is_completed() and (got == before).all(), got
    batch = comm.batch_op_create()
    batch.send(torch.full((3,), float(rank + 10)), after)
    batch.recv(got, before)
    batch.issue(True).wait()
    assert (got == before + 10).all(), got

    out = torch.empty(size)
    comm.all_to_all_single(out, torch.arange(float(size)) + 10 * rank, False)
    assert torch.equal(out, torch.arange(float(size)) * 10 + rank), out
    out = torch.empty(size)
    comm.all_to_all_v_single(out, torch.arange(float(size)) + 10 * rank, [1] * size, [1] * size, False)
    assert torch.equal(out, torch.arange(float(size)) * 10 + rank), out
    outs = [torch.empty(2) for _ in range(size)]
    comm.all_to_all(outs, [torch.full((2,), float(10 * rank + r)) for r in range(size)], False)
    assert [out[0].item() for out in outs] == [10 * r + rank for r in range(size)], outs

    out = torch.empty(2)
    comm.scatter(out, [torch.full((2,), float(r)) for r in range(size)] if rank == 0 else [], 0, False)
    assert (out == rank).all(), out
    outs = [torch.empty(2) for _ in range(size)] if rank == 0 else []
    comm.gather(outs, torch.full((2,), float(rank)), 0, False)
    assert [out[0].item() for out in outs] == (list(range(size)) if rank == 0 else []), outs
    out = torch.empty(2 * size)
    comm.gather_single(out, torch.full((2,), float(rank)), 1, False)
    if rank == 1:
        assert torch.equal(out, torch.arange(float(size)).repeat_interleave(2)), out
    comm.finalize()


def case_device(rank, size):
    """Tensors in a device's memory, which the device fills later."""
    import torch
    from torch_devices import DEVICE, at_device, import_device
    from torchcomms import ReduceOp
    device = import_device()
    comm, _ = new_comm(rank, size, torch.device(DEVICE, 0))
    works = []
    for number in range(4):
        tensor = at_device(torch.empty(1_000_000))
        device.fill_later(tensor, float(rank + number))
        works.append((tensor, comm.all_reduce(tensor, ReduceOp.SUM, True)))
    for number, (tensor, work) in enumerate(works):
        work.wait()
        assert (tensor.cpu() == size * number + size * (size - 1) / 2).all(), tensor.cpu()
    whole, own = at_device(torch.empty(size * 3)), at_device(torch.full((3,), float(rank)))
    work = comm.all_gather_single(whole, own, True)
    work.wait_blocking()
    assert work.is_completed() and torch.equal(whole.cpu(), torch.arange(float(size)).repeat_interleave(3)), whole.cpu()
    comm.all_to_all_single(whole, at_device(torch.full((3 * size,), float(rank))), False)
    assert torch.equal(whole.cpu(), torch.arange(float(size)).repeat_interleave(3)), whole.cpu()
    comm.barrier(False)
    comm.finalize()


def case_environment(rank, size):
    """Without a store: torchrun's variables tell where it is. Two communicators, of the same store."""
    import torch
    import torchcomms
    comms = [torchcomms.new_comm("netsum", torch.device("cpu"), name, timeout=SECONDS) for name in ("one", "two")]
    for comm in comms:
        tensor = torch.ones(10)
        comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, False)
        assert (tensor == size).all(), tensor
    for comm in comms:
        comm.finalize()


def case_split(rank, size):
    import torch
    import netsum.torch
    from torchcomms import ReduceOp
    comm, store = new_comm(rank, size)
    for number in range(2):  # rank 0 alone, and the others in the reverse order
        ranks = [0] if rank == 0 else list(range(size - 1, 0, -1))
        part = comm.split(ranks, f"part{number}")
        assert (part.get_rank(), part.get_size()) == (ranks.index(rank), len(ranks))
        tensor = torch.full((10,), float(rank + 1))
        part.all_reduce(tensor, ReduceOp.SUM, False)
        assert (tensor == sum(r + 1 for r in ranks)).all(), tensor
        if rank == 1 and number == 1:  # alone
            try:
                part.all_reduce(tensor, ReduceOp.SUM, False, timeout=datetime.timedelta(seconds=1))
            except netsum.torch.Error as error:
                assert error.ranks == [2], error
        meet(store, size, f"part{number}")
        part.finalize()
    try:
        comm.split([rank, rank], "twice")
    except RuntimeError as error:
        text = str(error)
    assert comm.split([], "none") is None
    comm.finalize()
    leave(store, rank, size)
    return text


def alone(rank, size, set_timeout, **more):
    """Rank 0 alone calls: its operation ends at its deadline."""
    import torch
    import netsum.torch
    from torchcomms import ReduceOp
    comm, store = new_comm(rank, size)
    if set_timeout:
        comm.set_timeout(set_timeout)
    result = None
    if rank == 0:
        work = comm.all_reduce(torch.ones(10), ReduceOp.SUM, True, **more)
        try:
            work.wait()
        except netsum.torch.Error as error:
            result = error.code, str(error), work.is_completed()
    leave(store, rank, size)
    return result


def case_timeout(rank, size):
    return alone(rank, size, None, timeout=datetime.timedelta(seconds=1))


def case_set_timeout(rank, size):
    return alone(rank, size, datetime.timedelta(seconds=1))


def case_abort(rank, size):
    """Rank 0 aborts, while the others wait for it."""
    import torch
    from torchcomms import ReduceOp
    comm, store = new_comm(rank, size)
    tensor, texts = torch.ones(10), []
    comm.all_reduce(tensor, ReduceOp.SUM, False)

    def note_error(call, *arguments):
        try:
            call(*arguments)
        except RuntimeError as error:
            texts.append((getattr(error, "code", None), str(error)))

    assert comm.is_abort_supported() and not comm.is_aborted()
    if rank == 0:
        pending = comm.all_reduce(tensor, ReduceOp.SUM, True)
        comm.abort()
        comm.abort()
        assert comm.is_aborted()
        store.set("aborted", "yes")
        note_error(pending.wait)
        assert not pending.is_completed()
    else:
        store.wait(["aborted"], SECONDS)
    for _ in range(2):  # rank 0's part of the first may have come
        note_error(comm.all_reduce, tensor, ReduceOp.SUM, False)
    leave(store, rank, size)
    comm.finalize()
    note_error(comm.barrier, False)
    return texts


def case_killed(rank, size):
    """The last rank dies."""
    import os
    import torch
    import netsum.torch
    from torchcomms import ReduceOp
    comm, _ = new_comm(rank, size)
    comm.barrier(False)
    if rank == size - 1:
        os._exit(3)
    try:
        comm.all_reduce(torch.ones(10), ReduceOp.SUM, False)
    except netsum.torch.Error as error:
        return error.code


class TorchComms(unittest.TestCase):
    def run(self, result=None):
        with Switch() as self.switch:
            return super().run(result)

    def ranks(self, case, size=3, **more):
        return [r.result for r in run(case, size, environment={"NETSUM_SWITCH": self.switch.address, "NETSUM_MODE": "force"}, **more)]

    def test_collectives(self):
        for by_switch in self.ranks("collectives"):
            self.assertEqual(by_switch, ["_all_gather_base", "_reduce_scatter_base", "all_gather", "all_reduce", "broadcast", "reduce",
                                         "reduce_scatter"])

    def test_at_a_device(self):
        self.ranks("device")

    def test_over_gloo(self):
        self.ranks("gloo")

    def test_from_the_environment(self):
        self.ranks("environment", 2)

    def test_split(self):
        for rank, text in enumerate(self.ranks("split")):
            self.assertEqual(text, f"netsum: rank {rank} of the torchcomms communicator 'world' asked to split off the ranks {rank}, {rank}: "
                                   "give different ranks below 3, its own among them, or none")

    def test_timeout(self):
        for case in ("timeout", "set_timeout"):
            code, text, completed = self.ranks(case, 2)[0]
            self.assertEqual((code, completed), ("deadline", False))
            self.assertRegex(text, "did not end within its 1.0 s: .* waits for rank 1")

    def test_abort(self):
        first, *others = self.ranks("abort")
        closed = [None, "netsum: the torchcomms communicator 'world' is not initialized, or finalized: use new_comm()"]
        (code, text), *after = first
        self.assertEqual(code, "closed")
        self.assertIn("the process group was aborted", text)
        self.assertEqual(after, [[None, "netsum: rank 0 aborted this process group: build another"]] * 2 + [closed])
        for *_, (code, text), after in others:
            self.assertEqual((code, after), ("worker_lost", closed))
            self.assertIn("the process group was aborted", text)

    def test_killed(self):
        self.assertEqual(self.ranks("killed", expect_failure=[2])[:2], ["worker_lost"] * 2)


if __name__ == "__main__":
    if importlib.util.find_spec("torchcomms") is None or importlib.util.find_spec("netsum.torchcomms") is None:
        print("skipped: this Python has no torchcomms, or netsum was built without -DNETSUM_TORCHCOMMS")
        sys.exit(77)
    torch_support.main()
