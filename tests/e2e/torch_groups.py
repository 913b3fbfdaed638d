"""Several process groups, groups of some of the ranks, groups that are destroyed and built again."""

import datetime
import os
import tempfile
import time
import unittest

import torch_support
from torch_support import Switch, free_port, init, jobs_at, run, tcp_store


EXITS = int(os.environ.get("EXITS", "1"))  # how many of each kind


def threads():
    return len(os.listdir("/proc/self/task"))


def case_subgroups(rank, size):
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    halves = [dist.new_group([0, 2]), dist.new_group([1, 2, 3])]
    alone = dist.new_group([0])
    again = dist.new_group()
    for _ in range(20):
        for group, members in zip(halves, ([0, 2], [1, 2, 3])):
            if rank in members:
                tensor = torch.full((777,), float(rank + 1))
                dist.all_reduce(tensor, group=group)
                assert (tensor == sum(m + 1 for m in members)).all()
        tensor = torch.full((777,), float(rank + 1))
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in ((tensor, None), (tensor.clone(), again))]
        for work in works:
            work.wait()
        assert (tensor == size * (size + 1) / 2).all()
    if rank == 0:
        tensor = torch.ones(5)
        dist.all_reduce(tensor, group=alone)
        assert (tensor == 1).all() and netsum.torch.statistics(alone)["path"] == "gloo"
    jobs = [netsum.torch.statistics(g)["job"] for g, members in ((None, range(4)), (again, range(4)), (halves[0], [0, 2]),
                                                                (halves[1], [1, 2, 3])) if rank in members]
    assert len(set(jobs)) == len(jobs) and all(jobs), jobs
    if rank in (0, 2):
        dist.destroy_process_group(halves[0])
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    dist.barrier()
    dist.destroy_process_group()


def case_built_again(rank, size):
    """The same process builds, destroys and builds its world; threads and descriptors do not pile up."""
    import torch
    import torch.distributed as dist
    counts = []
    for round_number in range(4):
        os.environ["MASTER_PORT"] = os.environ["PORTS"].split(",")[round_number]
        init()
        tensor = torch.full((1000,), float(rank + round_number))
        dist.all_reduce(tensor)
        assert (tensor == sum(r + round_number for r in range(size))).all()
        dist.barrier()
        dist.destroy_process_group()
        counts.append((threads(), len(os.listdir("/proc/self/fd"))))
    return counts


def case_same_store(rank, size):
    """Groups of the same name in the same store: the second must not read what the first one wrote."""
    import datetime

    import torch
    import torch.distributed as dist

    import netsum.torch
    store = tcp_store(rank, size)
    jobs = []
    for round_number in range(3):
        group = netsum.torch._create(dist.PrefixStore("same", store), rank, size, datetime.timedelta(seconds=30))
        tensor = torch.full((1000,), float(rank + round_number))
        group.allreduce([tensor]).wait()
        assert (tensor == sum(r + round_number for r in range(size))).all()
        jobs.append(group._netsum_statistics()["job"])
        group.barrier().wait()
        del group
    assert len(set(jobs)) == 3, jobs


def case_built_again_in_one_store(rank, size):
    """As under torchrun, whose store outlives the groups: torch 1.13 alone times out in the second round."""
    import datetime

    import torch
    import torch.distributed as dist
    store = tcp_store(rank, size)
    for round_number in range(3):
        init(seconds=15, store=store, rank=rank, world_size=size)
        pair = dist.new_group([0, 1])
        tensor = torch.full((1000,), float(rank + round_number))
        if rank < 2:
            dist.all_reduce(tensor, group=pair)
        dist.all_reduce(tensor)
        dist.barrier()
        dist.destroy_process_group()


def case_store_in_a_file(rank, size):
    import torch
    import torch.distributed as dist
    for number in range(2):  # each with a file of its own: torch may remove one after a rank has begun to use it again
        init(init_method=f"file://{os.environ['FILE']}{number}", rank=rank, world_size=size)
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        assert (tensor == size).all()
        dist.barrier()
        dist.destroy_process_group()


def case_left_open(rank, size):
    """A program that ends without destroying its group ends all the same, also while callbacks in Python are yet to run."""
    import torch
    import torch.distributed as dist
    init()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert (tensor == size).all()
    works = [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(3)]
    for work in works:
        work.get_future().then(lambda done: sum(range(2_000_000)))
    works[-1].wait()


def case_shards_left_open(rank, size):
    """As on three hosts: each rank has a shard, which the others leave before it ends. The store is in rank 0's process."""
    import netsum.torch.agreement
    netsum.torch.agreement.host_identity = lambda: str(rank)
    case_left_open(rank, size)
    assert netsum.torch.statistics()["switches"].count(",") == size - 1, netsum.torch.statistics()


def case_errors_of_a_group(rank, size):
    """They name a rank by its number in the group and in the world."""
    import torch
    import torch.distributed as dist
    init()
    group = dist.new_group([1, 2], timeout=datetime.timedelta(seconds=1))
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        try:
            dist.all_reduce(torch.ones(100), group=group)
            raise AssertionError("the sum of one rank of two ended")
        except RuntimeError as error:
            assert "rank 1 (global rank 2)" in str(error), error
        store.set("ended", "")
    store.wait(["ended"])


def case_cost_of_a_group(rank, size):
    """Threads and descriptors of a group that is held, beside those of one of Gloo's, of which it has one."""
    import torch
    import torch.distributed as dist
    init()
    dist.all_reduce(torch.ones(10))

    def held():
        return threads(), len(os.listdir("/proc/self/fd"))

    def cost_of(backend, groups=6):
        before = held()
        kept = [dist.new_group(backend=backend) for _ in range(groups)]
        for group in kept:
            dist.all_reduce(torch.ones(10), group=group)
        least, until = held(), time.monotonic() + 5
        while time.monotonic() < until:  # threads that wait for more to do end after a while
            least = min(least, held())
            time.sleep(0.05)
            if least[0] - before[0] <= 4 * groups:
                break
        for group in kept:
            dist.destroy_process_group(group)
        return [(now - then) / groups for now, then in zip(least, before)]

    return {"gloo": cost_of("gloo"), "netsum": cost_of("netsum")}


class Groups(unittest.TestCase):
    def test_cost_of_a_group(self):
        with Switch() as switch:
            cost = run("cost_of_a_group", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address})[0].result
        print("threads and descriptors of a group:", cost)
        for netsum, gloo in zip(cost["netsum"], cost["gloo"]):
            self.assertLessEqual(netsum, gloo + 2)

    def test_subgroups_over_a_switch(self):
        with Switch() as switch:
            run("subgroups", 4, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address})

    def test_subgroups_without_a_switch_running(self):
        run("subgroups", 4)

    def test_errors_of_a_group(self):
        with Switch() as switch:
            run("errors_of_a_group", 3, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address})

    def test_built_again(self):
        ports = {"PORTS": ",".join(str(free_port()) for _ in range(4))}
        for environment in ({}, {"NETSUM_MODE": "off"}):
            for rank in run("built_again", 2, environment=ports | environment):
                (first_threads, first_descriptors), *_, (last_threads, last_descriptors) = rank.result[1:]
                self.assertLessEqual(last_threads, first_threads, rank.result)
                self.assertLessEqual(last_descriptors, first_descriptors + 2, rank.result)

    def test_same_store(self):
        run("same_store", 2)

    def test_built_again_in_one_store(self):
        run("built_again_in_one_store", 3)

    def test_store_in_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            run("store_in_a_file", 2, environment={"FILE": os.path.join(directory, "store")})

    def test_left_open(self):
        with Switch("--heartbeat-timeout-ms", "600000") as switch:  # which does not notice who dies
            for case, environment in (("left_open", {"NETSUM_SWITCH": switch.address}), ("left_open", {}),
                                      ("shards_left_open", {"NETSUM_ADDRESS": "127.0.0.1"})) * EXITS:
                for rank in run(case, 3, seconds=30, environment=environment | {"NETSUM_MODE": "force"}):
                    self.assertNotIn("frame #", rank.log)  # a backtrace of C++, from torch
            self.assertEqual([], jobs_at(switch.address))


if __name__ == "__main__":
    torch_support.main()
