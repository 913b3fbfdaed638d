"""Ranks that die, hang or differ, and a switch that dies: every other rank gets an error in time that says which and why."""

import datetime
import time
import unittest

import torch_support
from torch_support import Switch, init, run

NOTICED_WITHIN = 5.0


def die_with_children_alive():
    """Ends this process by SIGKILL while two children live on that inherited everything: a DataLoader worker and a plain fork."""
    import os
    import signal

    import torch
    from torch.utils.data import DataLoader

    iterator = iter(DataLoader(torch.arange(10_000), batch_size=1, num_workers=1))
    next(iterator)
    if os.fork() == 0:
        time.sleep(100)  # ended by the test
        os._exit(0)
    print(f"dies {time.time()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def until_error(call):
    """Calls again and again; (when it failed, its words)."""
    until = time.time() + 40
    while time.time() < until:
        try:
            call()
        except RuntimeError as error:
            return time.time(), str(error)
    raise AssertionError("no error came")


def reduce_until_error(victim, rank):
    import torch
    import torch.distributed as dist
    init(seconds=60)
    for _ in range(5):
        dist.all_reduce(torch.ones(10_000))
    if rank == victim:
        die_with_children_alive()
    return until_error(lambda: dist.all_reduce(torch.ones(10_000)))


def case_last_rank_dies(rank, size):
    return reduce_until_error(size - 1, rank)


def case_first_rank_dies(rank, size):
    return reduce_until_error(0, rank)


def case_rank_dies_before_barrier(rank, size):
    import torch
    import torch.distributed as dist
    init(seconds=60)
    dist.all_reduce(torch.ones(10))
    dist.barrier()
    if rank == 1:
        die_with_children_alive()
    return until_error(dist.barrier)


def case_absent(rank, size):
    """Rank 1 does not come to an all-reduce: the group's time-out ends it on the others."""
    import torch
    import torch.distributed as dist
    init(seconds=5)
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        time.sleep(10)
        return None
    started = time.time()
    ended, words = until_error(lambda: dist.all_reduce(torch.ones(1000)))
    again, more = until_error(lambda: dist.all_reduce(torch.ones(1000)))
    assert again - ended < 1
    return ended - started, words, more


def case_impatient(rank, size):
    """wait(timeout) gives up earlier than the group; the operation itself goes on."""
    import torch
    import torch.distributed as dist
    init(seconds=30)
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(10)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        started = time.time()
        try:
            work.wait(datetime.timedelta(seconds=1))
            raise AssertionError("waited for nobody")
        except RuntimeError as error:
            assert "1000 ms" in str(error) and "10 " in str(error), error
        assert 0.9 < time.time() - started < 3
        store.set("go", "on")
        work.wait()
    else:
        store.wait(["go"], datetime.timedelta(seconds=20))
        dist.all_reduce(tensor)
    assert (tensor == size).all()
    dist.destroy_process_group()


def case_differ(rank, size):
    import torch
    import torch.distributed as dist
    init(seconds=20)
    return until_error(lambda: dist.all_reduce(torch.ones(10 + rank)))[1]


def case_codes(rank, size):
    """The code of an error, and a deadline that ends the wait of a future's callback."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init(seconds=5)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["chained"], datetime.timedelta(seconds=20))
        dist.all_reduce(torch.ones(1))
        time.sleep(8)
        return None

    def code_of_error(_):
        try:
            dist.all_reduce(torch.ones(10))
        except netsum.torch.Error as error:
            return error.code
        return "no error came"

    chained = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(code_of_error)
    store.set("chained", "yes")
    return chained.wait()


def case_switch_dies(rank, size):
    import torch
    import torch.distributed as dist
    init(seconds=60)
    for _ in range(5):
        dist.all_reduce(torch.ones(10_000))
    print("ready", flush=True)
    return until_error(lambda: dist.all_reduce(torch.ones(10_000)))


def case_never_comes(rank, size):
    """Rank 1 never builds the group: the others say who is missing, within the time-out."""
    if rank == 1:
        time.sleep(12)
        return None
    try:
        init(seconds=5)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("the group was built")


class Failures(unittest.TestCase):
    def check_noticed(self, ranks, victim, words, within=NOTICED_WITHIN):
        died = next(float(line.split()[1]) for line in ranks[victim].output.splitlines() if line.startswith("dies "))
        for rank in ranks:
            if rank.rank != victim:
                when, text = rank.result
                self.assertLess(when - died, within, text)
                for word in words:
                    self.assertIn(word, text)

    def test_a_killed_rank_is_named_though_its_children_live(self):
        with Switch() as switch:
            ranks = run("last_rank_dies", 3, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address},
                        expect_failure=(2,))
            self.check_noticed(ranks, 2, ["rank 2"])

    def test_a_killed_rank_is_named_by_a_shard(self):
        # The host of the shard hears of it first and may end before another rank's next heartbeat on a busy machine: that
        # rank then names the shard that went away, and learns it later.
        ranks = run("last_rank_dies", 3, expect_failure=(2,))
        self.check_noticed(ranks, 2, [], within=2 * NOTICED_WITHIN)
        self.assertIn("rank 2", ranks[0].result[1])

    def test_a_killed_rank_takes_its_shard_along(self):
        self.check_noticed(run("first_rank_dies", 3, expect_failure=(0,)), 0, ["aggregator 127.0.0.1:"])

    def test_a_killed_rank_ends_what_gloo_does(self):
        for environment in ({}, {"NETSUM_MODE": "off"}):
            self.check_noticed(run("rank_dies_before_barrier", 3, environment=environment, expect_failure=(1,)), 1, [])

    def test_the_groups_time_out_is_kept_and_names_who_is_missing(self):
        with Switch() as switch:
            for rank in run("absent", 3, environment={"NETSUM_SWITCH": switch.address, "NETSUM_MODE": "force"}):
                if rank.rank != 1:
                    seconds, words, more = rank.result
                    self.assertTrue(4.5 < seconds < 9, rank.result)
                    self.assertIn("rank 1", words)
                    self.assertIn("failed earlier", more)

    def test_wait_with_a_time_out(self):
        run("impatient", 2)
        run("impatient", 2, environment={"NETSUM_MODE": "off"})

    def test_ranks_that_differ_are_both_named(self):
        for rank in run("differ", 2):
            self.assertRegex(rank.result, "ranks (0 and 1|1 and 0) issued different calls")

    def test_errors_have_codes(self):
        self.assertEqual("deadline", run("codes", 2)[0].result)

    def test_a_killed_switch_is_named(self):
        with Switch() as switch:
            ready, killed = [], []

            def kill_when_all_are_ready(rank, line):
                if line == "ready":
                    ready.append(rank.rank)
                    if len(ready) == 2:
                        killed.append(time.time())
                        switch.process.kill()

            for rank in run("switch_dies", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address},
                            on_line=kill_when_all_are_ready):
                when, words = rank.result
                self.assertLess(when - killed[0], NOTICED_WITHIN)
                self.assertIn(f"aggregator {switch.address}", words)

    def test_a_rank_that_never_comes_is_named(self):
        ranks = run("never_comes", 3)
        for rank in (ranks[0], ranks[2]):
            self.assertIn("rank 1 of 3 did not come", rank.result)


if __name__ == "__main__":
    torch_support.main()
