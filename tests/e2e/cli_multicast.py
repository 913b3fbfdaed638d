#!/usr/bin/python3
"""Results by IP multicast with real processes: what the switch sends, who cannot join, and a network that carries nothing."""
import contextlib
import os
import socket
import unittest

import cli_support as cli

RANKS = 4
PORT = 22000 + os.getpid() % 8000  # tests that run at once have groups of their own
GROUP = "239.255.77.1"
FLAGS = ("--elements", 200_000, "--packet-elements", 256, "--slots", 16, "--iterations", 10, "--warmup", 1, "--threads", 1)


def counters(switch):
    return switch.status()["counters"]


class Multicast(unittest.TestCase):
    def run_job(self, switch, *flags):
        """All ranks, each a process; the counters of the switch afterwards, and what the ranks logged."""
        with contextlib.ExitStack() as stack:
            ranks = [stack.enter_context(cli.rank_process(switch.address, rank, RANKS, "--seed", 1, "--loss-seed", rank + 1,
                                                          *FLAGS, *flags)) for rank in range(RANKS)]
            for rank in ranks:
                self.assertEqual(rank.wait(60), 0, rank.err)
            return counters(switch), [line for rank in ranks for line in rank.err]

    def test_the_switch_sends_each_result_once(self):
        with cli.Switch("--multicast", f"{GROUP}:{PORT}") as switch:
            seen, _ = self.run_job(switch)
            self.assertGreater(seen["packets_received"], RANKS * 11 * 200_000 // 256)
            # Each contribution would bring a result to its sender; so one in four does, and some repeats.
            self.assertLess(seen["packets_sent"], seen["packets_received"] / 2)
            self.assertEqual(seen["send_failures"], 0)

    def test_within_this_host_by_itself(self):
        for flags in ((), ("--multicast", "off")):
            with self.subTest(flags=flags), cli.Switch(*flags) as switch:
                seen, log = self.run_job(switch)
                self.assertEqual(seen["packets_sent"] < seen["packets_received"] / 2, not flags)
                self.assertEqual(any("results by IP multicast" in line for line in log), not flags)

    def test_losses(self):
        with cli.Switch("--multicast", f"{GROUP}:{PORT}", "--loss", 0.01) as switch:
            seen, _ = self.run_job(switch, "--loss", 0.01)
            self.assertGreater(seen["dropped_injected"], 0)
            self.assertLess(seen["packets_sent"], seen["packets_received"] / 2)

    def test_ranks_that_cannot_join(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as owner, cli.Switch("--multicast", f"{GROUP}:{PORT}") as switch:
            owner.bind((GROUP, PORT))
            seen, log = self.run_job(switch)
            self.assertGreater(seen["packets_sent"], seen["packets_received"] * 0.9)
            warnings = [line for line in log if f"{GROUP}:{PORT}" in line]
            self.assertTrue(warnings)
            self.assertIn("rank", warnings[0])

    def test_a_group_that_nobody_hears(self):
        """The ranks join it on the loopback; the switch, which listens everywhere, sends elsewhere or nowhere."""
        with cli.Switch("--multicast", f"{GROUP}:{PORT}", listen="0.0.0.0:0") as switch:
            switch.address = "127.0.0.1:" + switch.address.rsplit(":", 1)[1]
            seen, _ = self.run_job(switch)
            # After a few windows each rank has its results by itself: a repeat is the exception again.
            contributions = RANKS * 11 * (-(-200_000 // 256))
            self.assertLess(seen["packets_received"], 1.5 * contributions)
            self.assertGreater(seen["packets_sent"], 0.9 * contributions)

    def test_bench(self):
        report = cli.bench("--workers", RANKS, "--elements", 500_000, "--iterations", 5, "--aggregators", 2,
                           "--multicast", f"239.255.0.0/16:{PORT}")
        self.assertEqual(report["wrong"], 0)
        self.assertTrue(report["bit_identical"])
        self.assertIn("by IP multicast", report["placement"])

    def test_same_bits_with_and_without(self):
        hashes = {cli.bench("--workers", 3, "--elements", 70_001, "--iterations", 2, "--seed", 5, *flags)["result_hash"]
                  for flags in ((), ("--multicast", f"{GROUP}:{PORT}"))}
        self.assertEqual(len(hashes), 1)

    def test_usage(self):
        result = cli.run("switch", "--listen", "127.0.0.1:0", "--multicast", "10.0.0.1:7180")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("10.0.0.1:7180", result.stderr)
        result = cli.run("bench", "all-reduce", "--protocol", "atp", "--multicast", f"{GROUP}:{PORT}")
        self.assertEqual(result.returncode, 2, result.stderr)


if __name__ == "__main__":
    cli.main()
