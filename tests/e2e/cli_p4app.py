#!/usr/bin/python3
"""p4app's protocol with real processes: sums over sockets, with losses, and what is refused."""
import contextlib
import json
import os
import re
import socket
import unittest

import cli_support as cli

HOST = f"127.{1 + os.getpid() // 256 % 254}.{os.getpid() % 256}."  # a worker is an address, and the switch's port is fixed


def switch(*arguments):
    return cli.Switch("--compat", "p4app", *arguments, listen=HOST + "1:0")


def rank(address, number, ranks, *arguments):
    return cli.Process("bench", "all-reduce", "--compat", "p4app", "--switch", address, "--bind", f"{HOST}{number + 2}:4000", "--rank",
                       number, "--world-size", ranks, "--elements", 5000, "--iterations", 3, "--json", *arguments)


class P4app(unittest.TestCase):
    def bench(self, *arguments):
        done = cli.run("bench", "all-reduce", "--compat", "p4app", "--json", "--iterations", 3, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual((report["wrong"], report["bit_identical"], report["protocol"]), (0, True, "p4app"))
        return report

    def test_sums(self):
        for dtype in ("int32", "float32"):
            for elements, flags in ((100_000, ()), (1, ()), (5000, ("--packet-elements", 64, "--slots", 16, "--threads", 2))):
                with self.subTest(dtype=dtype, elements=elements):
                    report = self.bench("--dtype", dtype, "--elements", elements, "--workers", 3, *flags)
                    self.assertEqual(report["packets"]["dropped_down"], 0)

    def test_sums_with_losses(self):
        report = self.bench("--loss", 0.02, "--elements", 50_000, "--workers", 4)
        self.assertGreater(report["packets"]["dropped_down"], 0)
        self.assertGreater(report["packets"]["retransmitted"], 0)

    def test_one_session_after_the_other(self):
        with switch() as server:
            self.assertTrue(cli.until(lambda: any("names its round by a slot and one bit" in line for line in server.err), 10, "the log"))
            for ranks in (2, 3):
                with self.subTest(ranks=ranks):
                    processes = [rank(server.address, number, ranks) for number in range(ranks)]
                    for process in processes:
                        with process:
                            self.assertEqual(process.wait(60), 0, process.err)
            server.signal(15)
            self.assertEqual(server.wait(20), 0)
            summary = next(line for line in server.err if "sums," in line and "session" not in line)
            # Warm-up and iterations, each of 20 packets and as many with exponents alone.
            self.assertEqual(int(re.search(r"(\d+) sums", summary)[1]), 2 * 5 * 2 * 20)
            self.assertIn("added twice 0, to another packet's sum 0, answered with another packet's sum 0", summary)

    def test_a_rank_that_is_missing(self):
        with switch() as server, rank(server.address, 0, 2, "--connect-deadline", 0.5) as alone:
            self.assertEqual(alone.wait(20), 1)
            self.assertIn("a rank is missing", alone.error_lines()[0])

    def test_silent_connections_keep_nobody_out(self):
        with switch() as server, contextlib.ExitStack() as silent:
            host, port = server.address.rsplit(":", 1)
            for _ in range(200):
                silent.enter_context(socket.create_connection((host, int(port)), timeout=10))
            processes = [rank(server.address, number, 2) for number in range(2)]
            for process in processes:
                with process:
                    self.assertEqual(process.wait(60), 0, process.err)

    def test_what_is_refused(self):
        for arguments, words in (
                (("switch", "--compat", "atp"), "--compat must be p4app"),
                (("switch", "--compat", "p4app", "--threads", 2), "--threads cannot be used with --compat"),
                (("switch", "--compat", "p4app", "--listen", "0.0.0.0:0"), "one IPv4 address"),
                (("switch", "--compat", "p4app", "--listen", "203.0.113.9:0"), "an address of no interface of this host"),
                (("bench", "all-reduce", "--compat", "p4app", "--dtype", "int8"), "float32 or int32"),
                (("bench", "all-reduce", "--compat", "p4app", "--packet-elements", 128), "64 or 256"),
                (("bench", "all-reduce", "--compat", "p4app", "--workers", 33), "at most 32"),
                (("bench", "all-reduce", "--compat", "p4app", "--op", "max"), "--op cannot be used with --compat")):
            with self.subTest(arguments=arguments):
                done = cli.run(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(words, done.stderr)
        done = cli.run("switch", "--compat", "p4app", "--listen", "203.0.113.9:0", env={"NETSUM_ANYONE_MAY_JOIN": "false"})
        self.assertIn("this protocol has no tokens", done.stderr)


if __name__ == "__main__":
    cli.main()
