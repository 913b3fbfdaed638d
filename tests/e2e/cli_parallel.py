#!/usr/bin/python3
"""`netsum bench parallel`: machines of several GPUs as processes, in all four patterns."""
import json
import os
import re
import signal
import socket
import tempfile
import unittest

import cli_support as cli

PATTERNS = ("fr", "ta", "pn", "pr")
FIELDS = {"pattern", "protocol", "machines", "gpus", "elements", "dtype", "iterations", "placement", "tat_seconds", "stage_seconds",
          "ate_per_second", "algorithm_gbps", "link_bytes_per_machine", "max_abs_error", "error_bound", "max_error_over_bound",
          "wrong", "bit_identical", "result_hash"}


def parallel(*arguments, limit=60):
    return json.loads(cli.checked(cli.run("bench", "parallel", "--json", *arguments, limit=limit)).stdout)


def shared_memory():
    with open("/proc/net/unix", encoding="utf-8") as sockets:
        return {line.split()[-1] for line in sockets if "@netsum-group-" in line}


class Parallel(unittest.TestCase):
    def right(self, report):
        self.assertEqual(report["wrong"], 0)
        self.assertTrue(report["bit_identical"])
        self.assertLessEqual(report["max_error_over_bound"], 1)

    def test_report(self):
        for pattern in PATTERNS:
            with self.subTest(pattern=pattern):
                report = parallel("--pattern", pattern, "--machines", 2, "--gpus", 2, "--elements", 200_001, "--iterations", 4)
                self.assertEqual(set(report), FIELDS)
                self.right(report)
                self.assertGreater(report["max_abs_error"], 0)  # else nothing was compared
                self.assertEqual((report["pattern"], report["machines"], report["gpus"], report["elements"], report["iterations"]),
                                 (pattern, 2, 2, 200_001, 4))
                self.assertEqual(report["protocol"], "netreduce" if pattern == "pn" else None)
                times, stages = report["tat_seconds"], report["stage_seconds"]
                self.assertTrue(0 < times["min"] <= times["median"] <= times["p99"] <= times["max"])
                self.assertGreater(stages["across"], 0)
                self.assertEqual(stages["before"] > 0, pattern != "fr")
                self.assertEqual(stages["after"] > 0, pattern != "fr")
                self.assertAlmostEqual(report["ate_per_second"], 200_001 / times["median"], delta=1)

    @cli.compares
    def test_a_machines_link_carries_what_the_model_says(self):
        machines, gpus, elements = 3, 2, 1_500_000
        ranks = machines * gpus
        times_the_tensor = {"fr": 2 * (ranks - 1) / ranks, "ta": 2 * (machines - 1) / machines, "pr": 2 * (machines - 1) / machines,
                            "pn": 1}
        for pattern, factor in times_the_tensor.items():
            report = parallel("--pattern", pattern, "--machines", machines, "--gpus", gpus, "--elements", elements,
                              "--iterations", 2)
            self.right(report)
            for way in ("sent", "received"):
                with self.subTest(pattern=pattern, way=way):
                    carried = report["link_bytes_per_machine"][way] / (4 * elements)
                    self.assertGreater(carried, factor)
                    # Repeats to ranks that a busy machine does not schedule are the machine's.
                    self.assertLess(carried, 1.2 * factor if pattern != "pn" else 2)

    def test_other_protocols_across(self):
        for protocol in ("switchml", "atp"):
            with self.subTest(protocol=protocol):
                report = parallel("--protocol", protocol, "--elements", 100_003, "--iterations", 3)
                self.right(report)
                self.assertEqual(report["protocol"], protocol)

    @cli.compares
    def test_shapes_and_lengths(self):
        for pattern in PATTERNS:
            for machines, gpus in ((1, 1), (1, 3), (3, 1), (2, 3)):
                with self.subTest(pattern=pattern, machines=machines, gpus=gpus):
                    self.right(parallel("--pattern", pattern, "--machines", machines, "--gpus", gpus, "--elements", 5_000,
                                        "--iterations", 2))
            for elements in (0, 1, 257):
                with self.subTest(pattern=pattern, elements=elements):
                    self.right(parallel("--pattern", pattern, "--elements", elements, "--iterations", 2, "--warmup", 0))

    @cli.compares
    def test_a_run_repeats_bit_for_bit(self):
        for pattern in PATTERNS:
            with self.subTest(pattern=pattern):
                flags = ["--pattern", pattern, "--machines", 2, "--gpus", 3, "--elements", 50_001, "--iterations", 2, "--seed", 5]
                self.assertEqual(parallel(*flags)["result_hash"], parallel(*flags, "--warmup", 0)["result_hash"])

    def test_table(self):
        result = cli.checked(cli.run("bench", "parallel", "--elements", 1000, "--iterations", 2))
        for word in ("TAT", "stages", "placement", "link"):
            self.assertIn(word, result.stdout)
        self.assertRegex(result.stdout, r"wrong +0,")

    def test_each_process_by_itself(self):
        with tempfile.NamedTemporaryFile("w") as secret:
            secret.write("a secret\n")
            secret.flush()
            self.each_process_by_itself(secret.name)

    def each_process_by_itself(self, token):
        with cli.Switch("--token-file", token) as switch:
            ranks = [cli.Process("bench", "parallel", "--pattern", "pn", "--switch", switch.address, "--token-file", token, "--job", f"alone{os.getpid()}",
                                 "--machines", 2, "--gpus", 2, "--machine", machine, "--gpu", gpu, "--elements", 10_000,
                                 "--iterations", 3)
                     for machine in range(2) for gpu in range(2)]
            reports = []
            for rank in ranks:
                with rank:
                    self.assertEqual(rank.wait(30), 0, rank.err)
                    self.assertEqual(len(rank.out), 1)
                    reports.append(json.loads(rank.out[0]))
        self.assertEqual([report["rank"] for report in reports], [0, 1, 2, 3])
        self.assertEqual({report["wrong"] for report in reports}, {0})
        self.assertEqual(len({str(report["hashes"]) for report in reports}), 1)


class Failures(unittest.TestCase):
    def setUp(self):
        self.before = shared_memory()

    def killed(self, pattern, machine, gpu):
        flags = ["--pattern", pattern, "--machines", 2, "--gpus", 2, "--elements", 200_000, "--iterations", 1_000_000,
                 "--connect-deadline", 5]
        with cli.Process("bench", "parallel", *flags) as run:
            def victim():
                for pid, words in cli.children_of(run.pid).items():
                    named = dict(zip(words, words[1:]))
                    if (named.get("--machine"), named.get("--gpu")) == (str(machine), str(gpu)):
                        return pid
                return None
            pid = cli.until(victim, 20, "the process is there")
            if pattern != "fr":  # on its way into its machine's memory, or in the middle of its work
                cli.until(lambda: self.mapped(pid), 20, "it has its memory")
            os.kill(pid, signal.SIGKILL)
            self.assertEqual(run.wait(30), 1, run.err)
            self.assertEqual(run.error_lines(), [f"netsum: GPU {gpu} of machine {machine} was killed by signal 9 (KILL)"])
        self.assertEqual(shared_memory() - self.before, set())

    @staticmethod
    def mapped(pid):
        with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
            return "/memfd:netsum-" in maps.read()

    def test_a_killed_process_is_named_and_nothing_stays_behind(self):
        for pattern in PATTERNS:
            for machine, gpu in ((0, 0), (1, 1)):
                with self.subTest(pattern=pattern, machine=machine, gpu=gpu):
                    self.killed(pattern, machine, gpu)

    def test_each_survivor_says_in_one_line_whom_it_missed(self):
        ports = [f"127.0.0.1:{port}" for port in self.free_ports(4)]
        ranks = [cli.Process("bench", "parallel", "--pattern", "pr", "--peers", ",".join(ports), "--job", f"dead{os.getpid()}",
                             "--machines", 2, "--gpus", 2, "--machine", rank // 2, "--gpu", rank % 2, "--elements", 200_000,
                             "--iterations", 1_000_000, "--rank-report") for rank in range(4)]
        with ranks[0], ranks[1], ranks[2], ranks[3]:
            for rank in ranks:
                rank.wait_line(rank.out, "iteration 3")
            ranks[1].signal(signal.SIGKILL)
            errors = {}
            for survivor in (0, 2, 3):
                self.assertEqual(ranks[survivor].wait(20), 1)
                said = [line for line in ranks[survivor].out if line.startswith("error ")]
                self.assertEqual(len(said), 1, ranks[survivor].err)
                errors[survivor] = said[0]
            # Of its machine, and of its ring; the others may hear of it from those.
            self.assertRegex(errors[0] + errors[3], r"member 1 died|rank 0 closed its connection")
            for survivor, error in errors.items():
                self.assertRegex(error, rf"\Aerror GPU {survivor % 2} of machine {survivor // 2}: .*(died|closed|failed)")

    @staticmethod
    def free_ports(count):
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        return ports

    def test_a_process_that_never_comes_is_named(self):
        ports = [f"127.0.0.1:{port}" for port in self.free_ports(4)]
        result = cli.run("bench", "parallel", "--pattern", "ta", "--peers", ",".join(ports), "--job", f"lonely{os.getpid()}",
                         "--machine", 0, "--gpu", 0, "--connect-deadline", 1, limit=15)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\Anetsum: GPU 0 of machine 0: [^\n]*it waits for member 1\n\Z")

    def test_interrupted(self):
        with cli.Process("bench", "parallel", "--pattern", "ta", "--iterations", 1_000_000) as run:
            cli.until(lambda: len(cli.children_of(run.pid)) == 4, 20, "the processes are there")
            run.signal(signal.SIGINT)
            self.assertEqual(run.wait(20), 1)
            self.assertIn("netsum: interrupted", run.err)
        self.assertEqual(shared_memory() - self.before, set())

    def test_bad_usage_is_one_line_and_2(self):
        for words in (["--pattern", "ring"], ["--protocol", "tcp"], ["--machines", 0], ["--gpus", 0], ["--machines", 100, "--gpus", 3],
                      ["--elements", -1], ["--iterations", 0], ["--gpu", 1], ["--switch", "127.0.0.1:1"], ["--peers", "127.0.0.1:1"],
                      ["--pattern", "fr", "--protocol", "atp"], ["--pattern", "pr", "--slots", 4],
                      ["--machine", 2, "--switch", "127.0.0.1:1"], ["--machine", 0, "--gpu", 2, "--switch", "127.0.0.1:1"],
                      ["--machine", 0], ["--machine", 0, "--switch", "127.0.0.1:1", "--ps", "127.0.0.1:2"],
                      ["--machine", 0, "--switch", "127.0.0.1:1", "--protocol", "atp"],
                      ["--pattern", "fr", "--machine", 0, "--peers", "127.0.0.1:1"],
                      ["--machine", 0, "--peers", "a:1,b:1,c:1,d:1"]):
            with self.subTest(words=words):
                result = cli.run("bench", "parallel", *words)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertRegex(result.stderr, r"\Anetsum: [^\n]+\n\Z")

    def test_help_teaches(self):
        result = cli.checked(cli.run("bench", "parallel", "--help"))
        self.assertIn("netsum bench parallel --pattern pn", result.stdout)


if __name__ == "__main__":
    cli.main()
