#!/usr/bin/python3
"""`netsum switch` seen from outside: ready line, status, metrics, tokens, clean end."""
import os
import re
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.request

import cli_support as cli


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Status(unittest.TestCase):
    def test_ready_line_and_clean_end(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with cli.Switch("--threads", 2) as switch:
                self.assertRegex(switch.out[0], r"^listening 127\.0\.0\.1:\d+$")
                self.assertNotIn(":0", switch.address[-2:])
                switch.signal(number)
                self.assertEqual(switch.wait(10), 0, switch.err)

    def test_ipv6(self):
        with cli.Switch(listen="[::1]:0") as switch:
            self.assertEqual(switch.address[:6], "[::1]:")
            ranks = [cli.rank_process(switch.address, rank, 2, "--elements", 1000) for rank in range(2)]
            for rank in ranks:
                with rank:
                    self.assertEqual(rank.wait(30), 0, rank.err)

    def test_idle(self):
        with cli.Switch("--threads", 2, "--slots", 4096) as switch:
            status = switch.status()
            self.assertEqual((status["lanes"], status["slots"], status["slots_free"], status["jobs"]), (2, 4096, 4096, []))
            self.assertIn("no jobs", cli.checked(cli.run("status", "--switch", switch.address)).stdout)

    def test_stalled_operation_names_the_ranks_that_it_waits_for(self):
        # A rank that is stopped for less than the heartbeat's patience is a straggler, not dead.
        with cli.Switch("--heartbeat-timeout-ms", 60_000) as switch:
            ranks = [cli.rank_process(switch.address, rank, 3, "--job", "vision", "--elements", 200_000, "--iterations", 1_000_000)
                     for rank in range(3)]
            with ranks[0], ranks[1], ranks[2]:
                ranks[2].wait_line(ranks[2].out, "iteration 3")
                ranks[2].signal(signal.SIGSTOP)

                def stalled():
                    jobs = switch.status()["jobs"]
                    return next((stall for stall in jobs[0]["stalled"] if stall["missing"] == [2]), None)
                cli.until(stalled, 10, "a stalled operation that waits for rank 2 alone")
                table = cli.checked(cli.run("status", "--switch", switch.address)).stdout
                self.assertRegex(table, r"(?m)^vision +running +3/3")
                self.assertRegex(table, r"operation \d+, chunk \d+ .*waits for ranks 2")
                ranks[2].signal(signal.SIGCONT)
                seen = len(ranks[0].out)
                cli.until(lambda: len(ranks[0].out) > seen + 2, 20, "the job goes on")

    def test_metrics(self):
        port = free_port()
        with cli.Switch("--metrics", f"127.0.0.1:{port}") as switch:
            ranks = [cli.rank_process(switch.address, rank, 2, "--job", "m", "--elements", 100_000, "--iterations", 1_000_000)
                     for rank in range(2)]
            with ranks[0], ranks[1]:
                ranks[0].wait_line(ranks[0].out, "iteration 3")
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
                    text = reply.read().decode()
            self.assertRegex(text, r"(?m)^netsum_\w*packets_received\w*(\{[^}]*\})? [1-9]")
            self.assertRegex(text, r'(?m)^netsum_\w+\{[^}]*job="m"[^}]*\} [1-9]')
            self.assertTrue(re.search(r"(?m)^# TYPE netsum_\w+ (counter|gauge)", text))


class Secrets(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, text=None):
        path = os.path.join(self.folder.name, name)
        if text is not None:
            with open(path, "w") as out:
                out.write(text)
        return path

    def test_token(self):
        right, wrong = self.path("right", "secret\n"), self.path("wrong", "guess\n")
        with cli.Switch("--token-file", right) as switch:
            for flags in ([], ["--token-file", wrong]):
                result = cli.run("status", "--switch", switch.address, *flags)
                self.assertEqual(result.returncode, 3, result.stderr)
                self.assertIn("token", result.stderr)
            cli.checked(cli.run("status", "--switch", switch.address, "--token-file", right))
            result = cli.run("bench", "all-reduce", "--switch", switch.address, "--rank", 0, "--world-size", 1)
            self.assertEqual(result.returncode, 3, result.stderr)
            cli.checked(cli.run("bench", "all-reduce", "--switch", switch.address, "--rank", 0, "--world-size", 1,
                                "--token-file", right))

    def test_tls(self):
        certificate, key = self.path("cert.pem"), self.path("key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
                       check=True, capture_output=True, timeout=60)
        with cli.Switch("--tls-cert", certificate, "--tls-key", key) as switch:
            cli.checked(cli.run("status", "--switch", switch.address, "--tls-ca", certificate))
            result = cli.run("status", "--switch", switch.address, "--connect-deadline", 2)
            self.assertEqual(result.returncode, 3, result.stderr)


if __name__ == "__main__":
    cli.main()
