#!/usr/bin/python3
"""NetReduce through the command line: rings of RoCEv2 connections between real processes, through the tunnel of a switch."""
import signal
import time
import unittest

import cli_support as cli

SMALL = ["--elements", 200_000]


def rank(switch, number, world_size, *flags):
    """One rank of a job; it prints `iteration I` lines."""
    return cli.rank_process(switch.address, number, world_size, "--protocol", "netreduce", *flags)


def run_all(test, ranks):
    for process in ranks:
        with process:
            test.assertEqual(process.wait(60), 0, process.err)


class Bench(unittest.TestCase):
    def test_sums_without_a_repeat(self):
        report = cli.bench("--protocol", "netreduce", "--workers", 4, "--elements", 1_000_000, "--iterations", 3)
        self.assertEqual(report["wrong"], 0)
        self.assertTrue(report["bit_identical"])
        self.assertGreater(report["max_abs_error"], 0)  # else nothing was compared
        # A repeat without a loss is a rank's that a busy machine did not schedule for longer than a time-out: one packet each.
        self.assertLess(report["packets"]["retransmitted"], report["packets"]["sent"] / 3)

    @cli.compares
    def test_same_bits_whatever_the_circumstances(self):
        base = ["--protocol", "netreduce", "--workers", 4, "--elements", 300_001, "--iterations", 2, "--seed", 11]
        expected = cli.bench(*base)["result_hash"]
        variants = {
            "loss": ["--loss", 0.01, "--loss-seed", 1],
            "less loss, another seed": ["--loss", 0.001, "--loss-seed", 2],
            "packet numbers wrap": ["--first-psn", 0xffffff - 100],
            "packet numbers wrap, with loss": ["--first-psn", 0xffffff - 40, "--loss", 0.01, "--packet-elements", 256],
            "path MTU of 256": ["--packet-elements", 64],
            "short messages": ["--message-packets", 1],
            "the paper's messages": ["--message-packets", 170, "--slots", 2, "--packet-elements", 256],
            "a window of one message": ["--slots", 1],
            "three threads": ["--threads", 3, "--switch-threads", 3],
            "two accelerators": ["--aggregators", 2],
        }
        for name, flags in variants.items():
            with self.subTest(name=name):
                report = cli.bench(*base, *flags)
                self.assertEqual(report["wrong"], 0)
                self.assertEqual(report["result_hash"], expected)

    @cli.compares
    def test_dtypes_operations_and_lengths(self):
        for dtype in ("float32", "int32", "float16", "bfloat16"):
            for op in ("sum", "avg"):
                with self.subTest(dtype=dtype, op=op):
                    report = cli.bench("--protocol", "netreduce", "--workers", 3, "--elements", 70_001, "--iterations", 2,
                                       "--dtype", dtype, "--op", op)
                    self.assertEqual(report["wrong"], 0)
        for workers, elements in ((1, 1000), (2, 0), (2, 1), (2, 1014), (2, 1015), (5, 16_385)):
            with self.subTest(workers=workers, elements=elements):
                report = cli.bench("--protocol", "netreduce", "--workers", workers, "--elements", elements, "--iterations", 3,
                                   "--warmup", 0)
                self.assertEqual(report["wrong"], 0)


class Jobs(unittest.TestCase):
    def test_beside_a_job_of_switchml(self):
        with cli.Switch() as switch:
            rings = [rank(switch, number, 3, *SMALL, "--job", "rings", "--iterations", 20) for number in range(3)]
            others = [cli.rank_process(switch.address, number, 2, *SMALL, "--job", "others", "--iterations", 20)
                      for number in range(2)]
            run_all(self, rings + others)
            self.assertGreater(switch.status()["counters"]["roce_taken"], 0)
            self.assertEqual(switch.status()["slots_free"], switch.status()["slots"])

    def test_a_killed_rank_is_named(self):
        with cli.Switch() as switch:
            ranks = [rank(switch, number, 3, *SMALL, "--iterations", 1_000_000) for number in range(3)]
            for process in ranks:
                process.wait_line(process.out, "iteration 3")
            ranks[1].signal(signal.SIGKILL)
            for survivor in (ranks[0], ranks[2]):
                with survivor:
                    self.assertEqual(survivor.wait(15), 1)
                    self.assertRegex(survivor.error_lines()[0], r"rank 1\b")
            ranks[1].__exit__()

    def test_a_killed_switch_is_named(self):
        with cli.Switch() as switch:
            ranks = [rank(switch, number, 2, *SMALL, "--iterations", 1_000_000) for number in range(2)]
            for process in ranks:
                process.wait_line(process.out, "iteration 3")
            switch.signal(signal.SIGKILL)
            for process in ranks:
                with process:
                    self.assertEqual(process.wait(15), 1)
                    self.assertIn(switch.address, process.error_lines()[0])

    def test_a_straggler_is_named_when_the_deadline_comes(self):
        with cli.Switch() as switch:
            ranks = [rank(switch, number, 3, *SMALL, "--iterations", 1_000_000, "--deadline", 2) for number in range(3)]
            try:
                for process in ranks:
                    process.wait_line(process.out, "iteration 3")
                ranks[2].signal(signal.SIGSTOP)
                with ranks[0] as first:
                    self.assertEqual(first.wait(15), 1)
                    # Its predecessor may wait for its acknowledgements.
                    self.assertRegex(first.error_lines()[0], r"waits for (rank|ranks 1,) 2$")
            finally:
                for process in ranks:
                    process.__exit__()

    def test_ranks_that_call_differently_are_both_named(self):
        with cli.Switch() as switch:
            ranks = [rank(switch, number, 2, "--elements", 1000 + number, "--iterations", 1) for number in range(2)]
            for process in ranks:
                with process:
                    self.assertEqual(process.wait(30), 1)
            for process in ranks:
                self.assertRegex(process.error_lines()[0], r"ranks 0 and 1 issued different calls")

    def test_a_switch_that_comes_back_costs_a_job_that_recovers_only_time(self):
        with cli.Switch() as first:
            ranks = [rank(first, number, 2, *SMALL, "--iterations", 40, "--recovery", 30) for number in range(2)]
            for process in ranks:
                process.wait_line(process.out, "iteration 5")
            first.signal(signal.SIGKILL)
            first.wait(10)
            with cli.Switch(listen=first.address):
                run_all(self, ranks)


class Racks(unittest.TestCase):
    """Leaves and a spine as processes of their own (NetReduce 3.3)."""

    def ranks_in(self, spine, places, *flags):
        """One rank per entry of `places`: the leaf that it is at, or the spine."""
        return cli.ranks_in_tree(spine, places, "--protocol", "netreduce", *flags)

    def test_two_leaves_and_a_spine(self):
        one_rack = ["--protocol", "netreduce", "--workers", 4, "--elements", 300_001, "--iterations", 2, "--seed", 11]
        base = [*one_rack, "--racks", 2]
        expected = cli.bench(*base)
        self.assertEqual(expected["wrong"], 0)
        self.assertGreater(expected["max_abs_error"], 0)
        # The order of the additions is that of the tree.
        self.assertNotEqual(expected["result_hash"], cli.bench(*one_rack)["result_hash"])
        variants = {
            "loss everywhere": ["--loss", 0.01, "--loss-seed", 1],
            "packet numbers wrap, with loss": ["--first-psn", 0xffffff - 40, "--loss", 0.01, "--packet-elements", 256],
            "short messages": ["--message-packets", 1],
            "two spines": ["--aggregators", 2],
        }
        for name, flags in variants.items():
            with self.subTest(name=name):
                report = cli.bench(*base, *flags)
                self.assertEqual(report["wrong"], 0)
                self.assertEqual(report["result_hash"], expected["result_hash"])

    @cli.compares
    def test_dtypes_and_operations(self):
        for dtype in ("float32", "int32", "float16", "bfloat16"):
            for op in ("sum", "avg"):
                with self.subTest(dtype=dtype, op=op):
                    report = cli.bench("--protocol", "netreduce", "--workers", 5, "--racks", 3, "--elements", 70_001,
                                       "--iterations", 2, "--dtype", dtype, "--op", op)
                    self.assertEqual(report["wrong"], 0)

    def test_three_levels_and_a_rank_at_the_spine(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as middle:
            with cli.Switch("--switch-parent", f"{leaf.address}={middle.address}") as spine:
                places = [leaf, leaf, middle, other, spine]
                run_all(self, self.ranks_in(spine, places, *SMALL, "--iterations", 3))
                for switch_id in (leaf, middle, other, spine):
                    cli.until(lambda a=switch_id: not a.status()["jobs"], 10, "all switches forget a job that has ended")
                ranks = self.ranks_in(spine, places, *SMALL, "--iterations", 1_000_000)
                try:
                    for process in ranks:
                        process.wait_line(process.out, "iteration 2")
                    below = {a.address: a.status()["jobs"][0] for a in (leaf, middle, other)}
                finally:
                    for process in ranks:
                        process.__exit__()
                self.assertEqual([2, 3, 1], [below[a.address]["world_size"] for a in (leaf, middle, other)])
                for job in below.values():
                    self.assertGreater(job["counters"]["sums_sent_up"], 0)

    def test_a_killed_leaf_is_named(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as spine:
            ranks = self.ranks_in(spine, [leaf, other], *SMALL, "--iterations", 1_000_000)
            for process in ranks:
                process.wait_line(process.out, "iteration 3")
            leaf.signal(signal.SIGKILL)
            for process in ranks:
                with process:
                    self.assertEqual(process.wait(20), 1)
                    self.assertIn(leaf.address, process.error_lines()[0])

    def test_a_leaf_that_comes_back_has_lost_the_sums(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as spine:
            ranks = self.ranks_in(spine, [leaf, other], *SMALL, "--iterations", 1_000_000)
            for process in ranks:
                process.wait_line(process.out, "iteration 3")
            leaf.signal(signal.SIGKILL)
            killed = time.monotonic()
            leaf.wait(10)
            with cli.Switch(listen=leaf.address):
                why = "has lost the job's sums" if time.monotonic() - killed < 2 else "has lost the job's sums|has not answered for 3 s"
                for process in ranks:
                    with process:
                        self.assertEqual(process.wait(20), 1)
                        self.assertIn(leaf.address, process.error_lines()[0])
                        self.assertRegex(process.error_lines()[0], why)

    def test_a_straggler_in_another_rack_is_named(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as spine:
            ranks = self.ranks_in(spine, [leaf, leaf, other, other], *SMALL, "--iterations", 1_000_000, "--deadline", 2)
            try:
                for process in ranks:
                    process.wait_line(process.out, "iteration 3")
                ranks[3].signal(signal.SIGSTOP)
                with ranks[0] as first:
                    self.assertEqual(first.wait(15), 1)
                    # Its predecessor may wait for its acknowledgements, in the same rack.
                    self.assertRegex(first.error_lines()[0], r"waits for (rank|ranks 2,) 3$")
            finally:
                for process in ranks:
                    process.__exit__()

    def test_ranks_that_call_differently_are_both_named(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as spine:
            ranks = [cli.rank_process(a.address, number, 2, "--protocol", "netreduce", "--spine", spine.address,
                                      "--elements", 1000 + number, "--iterations", 1)
                     for number, a in enumerate((leaf, other))]
            for process in ranks:
                with process:
                    self.assertEqual(process.wait(30), 1)
                    self.assertRegex(process.error_lines()[0], r"ranks 0 and 1 issued different calls")

    def test_what_is_no_leaf_is_refused(self):
        with cli.Process("ps", "--listen", "127.0.0.1:0") as server, cli.Switch() as spine:
            address = server.wait_line(server.out, "listening ").split()[1]
            result = cli.run("bench", "all-reduce", "--protocol", "netreduce", "--spine", spine.address, "--switch", address,
                             "--rank", 0, "--world-size", 1)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertIn("is not a switch", result.stderr.splitlines()[-1])


class Usage(unittest.TestCase):
    def test_bad_usage(self):
        for words, complaint in ((["--packet-elements", 100], "64, 128, 256, 512 or 1024"),
                                 (["--packet-elements", 2000], "64, 128, 256, 512 or 1024"),
                                 (["--message-packets", 5000], "message-packets"),
                                 (["--first-psn", "x"], "first-psn"),
                                 (["--first-psn", 1 << 24], "first-psn"),
                                 (["--slots", 3], "power of two"),
                                 (["--spine", "127.0.0.1:1", "--racks", 2, "--rank", 0, "--world-size", 1], "--racks"),
                                 (["--ps", "127.0.0.1:1"], "--ps")):
            with self.subTest(words=words):
                result = cli.run("bench", "all-reduce", "--protocol", "netreduce", *words)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(complaint, result.stderr)
        result = cli.run("bench", "all-reduce", "--message-packets", 4)
        self.assertEqual(result.returncode, 2, result.stderr)

    def test_too_much_for_24_bits_of_packet_numbers(self):
        with cli.Switch() as switch:
            result = cli.run("bench", "all-reduce", "--protocol", "netreduce", "--switch", switch.address, "--rank", 0,
                             "--world-size", 1, "--slots", 1024, "--message-packets", 4096, "--packet-elements", 64)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertIn("24-bit packet sequence numbers", result.stderr.splitlines()[-1])


if __name__ == "__main__":
    cli.main()
