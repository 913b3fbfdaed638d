#!/usr/bin/python3
"""Processes that die: the others end with an error that says who, and nothing stays behind."""
import json
import os
import signal
import time
import unittest

import cli_support as cli

FOREVER = ["--elements", 200_000, "--iterations", 1_000_000]
NOTICED_WITHIN = 10
ONE_OF = {"switchml": "aggregator", "netreduce": "accelerator", "atp": "parameter server"}  # as a rank says where it sums


class Job:
    """Ranks of one job against a switch, in the middle of their iterations."""

    def __init__(self, switch, world_size, *flags):
        self.ranks = [cli.rank_process(switch.address, rank, world_size, *FOREVER, *flags) for rank in range(world_size)]

    def __enter__(self):
        for rank in self.ranks:
            rank.wait_line(rank.out, "iteration 3")
        return self.ranks

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.__exit__()


class Failures(unittest.TestCase):
    def check_noticed(self, ranks, pattern):
        deadline = time.monotonic() + NOTICED_WITHIN
        for rank in ranks:
            self.assertEqual(rank.wait(max(0.1, deadline - time.monotonic())), 1, rank.err)
            self.assertEqual(len(rank.error_lines()), 1, rank.err)
            self.assertRegex(rank.error_lines()[0], pattern)

    def test_killed_worker_is_named(self):
        with cli.Switch() as switch, Job(switch, 3) as ranks:
            ranks[1].signal(signal.SIGKILL)
            self.check_noticed([ranks[0], ranks[2]], r"rank 1\b")
            cli.until(lambda: switch.status()["slots_free"] == switch.status()["slots"], 10, "the job's slots are free")

    def test_stopped_worker_is_named(self):
        with cli.Switch("--heartbeat-timeout-ms", 3000) as switch, Job(switch, 2) as ranks:
            ranks[1].signal(signal.SIGSTOP)
            self.check_noticed([ranks[0]], r"rank 1\b")

    def test_killed_switch_is_named(self):
        with cli.Switch() as switch, Job(switch, 2) as ranks:
            switch.signal(signal.SIGKILL)
            self.check_noticed(ranks, switch.address.replace(".", r"\."))

    def test_switch_that_stops_in_good_order_says_so(self):
        with cli.Switch() as switch, Job(switch, 2) as ranks:
            switch.signal(signal.SIGTERM)
            self.assertEqual(switch.wait(10), 0, switch.err)
            self.check_noticed(ranks, r"stop|shut|no longer serves")

    def test_restarted_switch_is_an_error_that_says_so(self):
        with cli.Switch() as switch, Job(switch, 2) as ranks:
            switch.signal(signal.SIGKILL)
            switch.wait(5)
            with cli.Switch(listen=switch.address) as again:
                self.check_noticed(ranks, r"restart")
                self.assertEqual(again.address, switch.address)

    def test_switch_that_is_not_there(self):
        began = time.monotonic()
        result = cli.run("bench", "all-reduce", "--switch", "127.0.0.1:9", "--rank", 0, "--world-size", 2,
                         "--connect-deadline", 2)
        self.assertEqual(result.returncode, 3)
        self.assertLess(time.monotonic() - began, 6)
        self.assertIn("127.0.0.1:9", result.stderr)
        result = cli.run("status", "--switch", "127.0.0.1:9", "--connect-deadline", 2)
        self.assertEqual(result.returncode, 3)

    def test_rank_that_never_comes_is_named(self):
        with cli.Switch() as switch:
            result = cli.run("bench", "all-reduce", "--switch", switch.address, "--rank", 0, "--world-size", 2,
                             "--connect-deadline", 1, limit=15)
            self.assertNotEqual(result.returncode, 0)
            self.assertRegex(result.stderr, r"(?m)^netsum: rank 0: .*\b1\b")

    def test_refusals_are_3(self):
        with cli.Switch() as switch, Job(switch, 2):
            result = cli.run("bench", "all-reduce", "--switch", switch.address, "--rank", 0, "--world-size", 2, *FOREVER)
            self.assertEqual(result.returncode, 3, result.stderr)

    def test_address_in_use_fails(self):
        with cli.Switch() as switch:
            result = cli.run("switch", "--listen", switch.address)
            self.assertEqual(result.returncode, 1)
            self.assertIn(switch.address, result.stderr)


class Recovery(unittest.TestCase):
    """With --recovery, a death is a pause."""

    FLAGS = ["--elements", 200_000, "--iterations", 60, "--recovery", 30]

    def ended_well(self, ranks):
        for rank in ranks:
            with rank:
                self.assertEqual(rank.wait(60), 0, rank.err)
                self.assertEqual(json.loads(rank.out[-1])["wrong"], 0)

    def test_a_killed_worker_is_started_again_and_the_switch_as_well(self):
        with cli.Switch() as switch:
            ranks = [cli.rank_process(switch.address, rank, 3, *self.FLAGS) for rank in range(3)]
            for rank in ranks:
                rank.wait_line(rank.out, "iteration 3")
            with ranks[2]:
                ranks[2].signal(signal.SIGKILL)
            ranks[2] = cli.rank_process(switch.address, 2, 3, *self.FLAGS)
            ranks[2].wait_line(ranks[2].out, "iteration ")
            switch.signal(signal.SIGKILL)
            switch.wait(10)
            with cli.Switch(listen=switch.address):
                self.ended_well(ranks)
            self.assertGreater(json.loads(ranks[2].out[-1])["first_iteration"], 0)


class Survivors(unittest.TestCase):
    """With --survivors, the others go on with the operation that they were in, as the sum over those that are left."""

    FLAGS = ["--elements", 200_000, "--recovery", 30, "--survivors", 2]

    def ranks(self, switch, *flags, of=4, iterations=60):
        ranks = [cli.rank_process(switch.address, rank, of, *self.FLAGS, "--iterations", iterations, *flags) for rank in range(of)]
        for rank in ranks:
            self.addCleanup(rank.__exit__)
            rank.wait_line(rank.out, "iteration 3")
        return ranks

    def ended_alike(self, ranks):
        hashes = set()
        for rank in ranks:
            self.assertEqual(rank.wait(60), 0, rank.err)
            report = json.loads(rank.out[-1])
            self.assertEqual(report["wrong"], 0)
            hashes.add(tuple(report["hashes"]))
        self.assertEqual(len(hashes), 1)

    def test_the_others_go_on_without_killed_ranks(self):
        for flags in ([], ["--protocol", "netreduce"], ["--op", "avg", "--dtype", "int32"], ["--loss", "0.01"]):
            with self.subTest(flags=flags), cli.Switch() as switch:
                ranks = self.ranks(switch, *flags)
                ranks[2].signal(signal.SIGKILL)
                ranks[0].wait_line(ranks[0].out, "iteration 20")
                ranks[0].signal(signal.SIGKILL)
                self.ended_alike([ranks[1], ranks[3]])

    def test_a_stopped_rank_that_goes_on_is_told(self):
        with cli.Switch() as switch:
            ranks = self.ranks(switch, of=3, iterations=1_000_000)
            ranks[1].signal(signal.SIGSTOP)
            cli.until(lambda: any("with ranks 0, 2 of 3" in line for line in ranks[0].err), 20, "the others have gone on")
            ranks[1].signal(signal.SIGCONT)
            self.assertEqual(ranks[1].wait(20), 1, ranks[1].err)
            self.assertRegex(ranks[1].error_lines()[-1], "rank 1 .* was declared dead: ranks 0, 2 continue without it")


class Aggregators(unittest.TestCase):
    """With --survivors, the others take the part of an aggregator that ended; once it is back, it takes its part again."""

    FLAGS = ["--elements", 200_000, "--recovery", 30, "--survivors", 2, "--iterations", 1_000_000]
    PROTOCOLS = {"switchml": cli.Switch, "netreduce": cli.Switch, "atp": cli.ParameterServer}

    def ranks(self, ranks):
        for rank in ranks:
            self.addCleanup(rank.__exit__)
            rank.wait_line(rank.out, "iteration 3")
        return ranks

    def goes_on(self, ranks, words, times=1):
        """The first rank says so, and each iteration's result is checked."""
        cli.until(lambda: sum(words in line for line in ranks[0].err) >= times, 20, words)
        done = len(ranks[0].out)
        cli.until(lambda: len(ranks[0].out) > done + 2, 20, "more iterations")
        self.assertEqual([rank.process.poll() for rank in ranks], [None] * len(ranks))

    def test_one_of_two_and_a_standby(self):
        for protocol, daemon in self.PROTOCOLS.items():
            for standby in (False, True):
                with self.subTest(protocol=protocol, standby=standby), daemon() as first, daemon() as second:
                    at = "--ps" if protocol == "atp" else "--switch"
                    where = [at, first.address, "--standby", second.address] if standby else [at, f"{first.address},{second.address}"]
                    ranks = self.ranks([cli.Process("bench", "all-reduce", "--rank-report", "--protocol", protocol, *where, "--rank", rank,
                                                    "--world-size", 3, *self.FLAGS) for rank in range(3)])
                    first.signal(signal.SIGKILL)
                    self.goes_on(ranks, f"1 {ONE_OF[protocol]} ({second.address})")
                    top = cli.run("top", "--switch", second.address, "--frames", 1).stdout
                    self.assertIn(f"without {first.address}", top)
                    with daemon(listen=first.address) as again:
                        self.goes_on(ranks, f"1 {ONE_OF[protocol]} ({again.address})" if standby
                                     else f"2 {ONE_OF[protocol]}s ({first.address}, {second.address})", 2)
                    for rank in ranks:
                        rank.__exit__()

    def test_a_racks_switch(self):
        for protocol in ("switchml", "netreduce"):
            with self.subTest(protocol=protocol), cli.Switch() as root, cli.Switch() as rack, cli.Switch() as other:
                ranks = self.ranks(cli.ranks_in_tree(root, [rack, rack, other, other], "--protocol", protocol, *self.FLAGS))
                other.signal(signal.SIGKILL)
                self.goes_on(ranks, "with all 4 ranks")
                with cli.Switch(listen=other.address):
                    self.goes_on(ranks, "with all 4 ranks", 2)
                for rank in ranks:
                    rank.__exit__()


class LocalMode(unittest.TestCase):
    """The parent that starts everything: one failure ends all of it."""

    def running_bench(self):
        bench = cli.Process("bench", "all-reduce", "--workers", 3, *FOREVER)
        self.addCleanup(bench.__exit__)
        return bench

    def children(self, bench):
        def all_there():
            children = cli.children_of(bench.pid)
            return children if len([c for c in children.values() if "--rank-report" in c]) == 3 else None
        children = cli.until(all_there, 20, "three workers")
        cli.until(lambda: any("switchml over" in line for line in bench.err), 20, "all ranks have joined")
        return children

    def check_all_gone(self, children):
        cli.until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children), 5, "no process stays behind")

    def test_killed_worker(self):
        bench = self.running_bench()
        children = self.children(bench)
        victim = next(pid for pid, words in children.items() if "--rank" in words and words[words.index("--rank") + 1] == "1")
        os.kill(victim, signal.SIGKILL)
        self.assertEqual(bench.wait(NOTICED_WITHIN), 1)
        self.assertEqual(bench.error_lines()[-1], "netsum: worker rank 1 was killed by signal 9 (KILL)")
        for rank in (0, 2):
            lines = [line for line in bench.error_lines() if line.startswith(f"netsum: rank {rank}: ")]
            self.assertEqual(len(lines), 1, bench.err)
            self.assertRegex(lines[0], r": .*rank 1\b")
        self.check_all_gone(children)

    def test_killed_switch(self):
        bench = self.running_bench()
        children = self.children(bench)
        victim = next(pid for pid, words in children.items() if "switch" in words)
        os.kill(victim, signal.SIGKILL)
        self.assertEqual(bench.wait(NOTICED_WITHIN), 1)
        self.assertEqual(bench.error_lines()[-1], "netsum: aggregator 0 was killed by signal 9 (KILL)")
        self.check_all_gone(children)

    def test_interrupt_and_kill_leave_nothing_behind(self):
        for number, code in ((signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGKILL, -9)):
            with self.subTest(signal=number):
                bench = self.running_bench()
                children = self.children(bench)
                bench.signal(number)
                self.assertEqual(bench.wait(5), code)
                self.check_all_gone(children)


if __name__ == "__main__":
    cli.main()
