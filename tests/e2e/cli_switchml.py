#!/usr/bin/python3
"""SwitchML's trees through the command line: leaves and roots as processes of their own (SwitchML 7)."""
import contextlib
import json
import signal
import unittest

import cli_support as cli

SMALL = ["--elements", 200_000]
UNENDING = [*SMALL, "--iterations", 1_000_000]


@contextlib.contextmanager
def running(processes):
    """Ranks of a job that does not end by itself, once it is under way."""
    try:
        for process in processes:
            process.wait_line(process.out, "iteration 2")
        yield processes
    finally:
        for process in processes:
            process.__exit__()


class Racks(unittest.TestCase):
    def test_same_bits_as_with_one_switch(self):
        base = ["--protocol", "switchml", "--transport", "udp", "--workers", 5, "--elements", 70_001, "--iterations", 2, "--seed", 11]
        racks = {
            "two racks": ["--racks", 2],
            "losses": ["--racks", 2, "--loss", 0.01, "--loss-seed", 1],
            "a rack for each rank": ["--racks", 5],
            "two roots": ["--racks", 2, "--aggregators", 2],
            "two levels below the root": ["--racks", "4,2"],
            "short packets": ["--racks", 2, "--packet-elements", 64],
            "three threads": ["--racks", 2, "--threads", 3, "--switch-threads", 3],
        }
        formats = [["--dtype", "float32"], ["--dtype", "float16"], ["--dtype", "bfloat16", "--op", "avg"], ["--dtype", "int32"]]
        for number, dtype in enumerate(formats[:1] if cli.is_sanitized() else formats):
            expected = cli.bench(*base, *dtype)
            for name, flags in racks.items() if number == 0 else list(racks.items())[:2]:
                with self.subTest(name=name, dtype=dtype):
                    report = cli.bench(*base, *dtype, *flags)
                    self.assertEqual(report["wrong"], 0)
                    self.assertEqual(report["result_hash"], expected["result_hash"])

    def test_few_floats_have_the_same_bits_too(self):
        base = ["--protocol", "switchml", "--transport", "udp", "--workers", 4, "--elements", 3, "--iterations", 20, "--seed", 12]
        self.assertEqual(cli.bench(*base, "--racks", 2)["result_hash"], cli.bench(*base)["result_hash"])

    def test_a_rack_sends_each_chunk_upstream_once_however_many_workers_are_in_it(self):
        with cli.Switch() as one, cli.Switch() as two, cli.Switch() as four, cli.Switch() as root:
            with running(cli.ranks_in_tree(root, [one, two, two, four, four, four, four], *UNENDING)):
                for switch_id, workers in ((one, 1), (two, 2), (four, 4)):
                    job = switch_id.status()["jobs"][0]
                    counters = job["counters"]
                    with self.subTest(workers=workers):
                        self.assertGreater(counters["chunks"], 0)
                        self.assertEqual(counters["sums_sent"] - counters["sums_repeated"], counters["chunks"])
                        of_open_rounds = counters["contributions"] - workers * counters["chunks"]
                        self.assertIn(of_open_rounds, range(workers * job["slots"] + 1))

    def test_three_levels_and_a_rank_at_the_root(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as middle:
            with cli.Switch("--switch-parent", f"{leaf.address}={middle.address}") as root:
                places = [leaf, leaf, middle, other, root]
                for process in cli.ranks_in_tree(root, places, *SMALL, "--iterations", 3):
                    with process:
                        self.assertEqual(process.wait(60), 0, process.err)
                for switch_id in (leaf, middle, other, root):
                    cli.until(lambda a=switch_id: not a.status()["jobs"], 10, "all switches forget a job that has ended")
                with running(cli.ranks_in_tree(root, places, *UNENDING)):
                    below = [a.status()["jobs"][0]["world_size"] for a in (leaf, middle, other)]
                self.assertEqual([2, 3, 1], below)

    def test_a_killed_leaf_is_named(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as root:
            with running(cli.ranks_in_tree(root, [leaf, other], *UNENDING)) as ranks:
                leaf.signal(signal.SIGKILL)
                for process in ranks:
                    self.assertEqual(process.wait(20), 1)
                    self.assertIn(leaf.address, process.error_lines()[0])

    def test_a_leaf_that_comes_back_has_lost_the_sums(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as root:
            with running(cli.ranks_in_tree(root, [leaf, other, root], *UNENDING)) as ranks:
                leaf.signal(signal.SIGKILL)
                leaf.wait(10)
                with cli.Switch(listen=leaf.address):
                    for process in ranks[1:]:
                        self.assertEqual(process.wait(20), 1)
                        self.assertIn(leaf.address, process.error_lines()[0])

    def test_a_straggler_in_another_rack_is_named(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as root:
            with running(cli.ranks_in_tree(root, [leaf, leaf, other, other], *UNENDING, "--deadline", 2)) as ranks:
                ranks[3].signal(signal.SIGSTOP)
                self.assertEqual(ranks[0].wait(15), 1)
                self.assertRegex(ranks[0].error_lines()[0], r"waits for rank 3$")

    def test_survivors_in_racks_go_on_without_a_killed_rank(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as root:
            ranks = cli.ranks_in_tree(root, [leaf, leaf, other, other], *SMALL, "--iterations", 40, "--recovery", 30, "--survivors", 2)
            for process in ranks:
                process.wait_line(process.out, "iteration 5")
            with ranks[1]:
                ranks[1].signal(signal.SIGKILL)
            for process in (ranks[0], *ranks[2:]):
                with process:
                    self.assertEqual(process.wait(60), 0, process.err)
                    self.assertEqual(json.loads(process.out[-1])["wrong"], 0)

    def test_a_job_that_recovers_goes_on_when_its_leaf_is_back(self):
        with cli.Switch() as leaf, cli.Switch() as other, cli.Switch() as root:
            ranks = cli.ranks_in_tree(root, [leaf, other], *SMALL, "--iterations", 40, "--recovery", 30)
            for process in ranks:
                process.wait_line(process.out, "iteration 5")
            leaf.signal(signal.SIGKILL)
            leaf.wait(10)
            with cli.Switch(listen=leaf.address):
                for process in ranks:
                    with process:
                        self.assertEqual(process.wait(60), 0, process.err)


if __name__ == "__main__":
    cli.main()
