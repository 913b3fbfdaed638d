#!/usr/bin/python3
"""The flight recorder: what a daemon writes when a job fails, and `netsum explain` of it."""
import glob
import json
import os
import re
import signal
import socket
import tempfile
import unittest
import urllib.request

import cli_support as cli
from cli_status import free_port


class Flight(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def record(self, what):
        """The only record, once it is there, and its explanation."""
        def written():
            files = glob.glob(os.path.join(self.folder, "*.flight.json"))
            return files if files and all(os.path.getsize(file) for file in files) else None
        files = cli.until(written, 20, what)
        self.assertEqual(len(files), 1)
        text = cli.checked(cli.run("explain", files[0])).stdout
        with open(files[0]) as file:
            return json.load(file), text

    def ranks(self, switch, count, *flags):
        return [cli.rank_process(switch.address, rank, count, "--job", "vision", "--elements", 200_000, "--iterations", 1_000_000, *flags)
                for rank in range(count)]

    def test_a_silent_rank(self):
        with cli.Switch("--heartbeat-timeout-ms", 2500, "--flight-records", self.folder) as switch:
            ranks = self.ranks(switch, 3)
            with ranks[0], ranks[1], ranks[2]:
                ranks[2].wait_line(ranks[2].out, "iteration 3")
                ranks[2].signal(signal.SIGSTOP)
                record, text = self.record("the record of a job whose rank 2 fell silent")
                self.assertEqual((record["cause"], record["rank"], record["world_size"]), ("silent", 2, 3))
                kinds = [event["kind"] for event in record["events"]]
                self.assertEqual(kinds[:4], ["joined"] * 3 + ["started"])
                self.assertIn("stalled", kinds)
                self.assertEqual(kinds[-1], "failed")
                self.assertEqual([stall["missing"] for stall in record["stalled"]][0], [2])
                self.assertGreater(record["counters"]["contributions"], 0)
                for words in ("rank 2 of job 'vision' has not been heard from for 2.5 s", f"waited for rank 2 (127.0.0.1, {socket.gethostname()}, process {ranks[2].pid})",
                              "ranks 0-2, until +", "What to do", "OOM killer"):
                    self.assertIn(words, text)
                self.assertTrue(any("netsum explain" in line for line in switch.err), switch.err)
                job = switch.status()["jobs"][0]
                self.assertEqual((job["state"], job["events"][-1]["kind"], job["protocol"]), ("failed", "failed", "switchml"))
                self.assertEqual(job["hosts"], [{"address": "127.0.0.1", "ranks": [0, 1, 2], "name": socket.gethostname(),
                                                 "processes": [rank.pid for rank in ranks]}])

    def test_a_rank_that_leaves_early(self):
        with cli.Switch("--flight-records", self.folder) as switch:
            short = cli.rank_process(switch.address, 2, 3, "--job", "vision", "--elements", 200_000, "--warmup", 0, "--iterations", 2)
            long = [cli.rank_process(switch.address, rank, 3, "--job", "vision", "--elements", 200_000, "--warmup", 0, "--iterations", 9)
                    for rank in range(2)]
            with short, long[0], long[1]:
                self.assertEqual(short.wait(30), 0, short.err)
                record, text = self.record("the record of a job whose rank 2 left")
                self.assertEqual((record["job"], record["cause"], record["rank"]), ("vision", "left", 2))
                self.assertIn("rank 2 of job 'vision' left while others waited for it", text)
                self.assertIn("All ranks must make the same calls", text)

    def test_every_end_is_logged_once_recorded_and_counted_by_cause(self):
        port = free_port()
        with cli.Switch("--flight-records", self.folder, "--metrics", port, "--heartbeat-timeout-ms", 60_000) as switch:
            def pair(job, first, second):
                return [cli.rank_process(switch.address, rank, 2, "--job", job, *flags) for rank, flags in enumerate((first, second))]
            endless = ["--elements", 1000, "--iterations", 1_000_000]
            lengths = pair("lengths", endless, ["--elements", 2000])
            late = pair("late", [*endless, "--deadline", 1], endless)
            well = pair("well", ["--elements", 1000], ["--elements", 1000])
            with lengths[0], lengths[1], late[0], late[1], well[0], well[1]:
                late[0].wait_line(late[0].out, "iteration 3")
                late[1].signal(signal.SIGSTOP)
                self.assertEqual(late[0].wait(30), 1)
                late[1].signal(signal.SIGCONT)
                self.assertEqual([rank.wait(30) for rank in (*lengths, late[1], *well)], [1, 1, 1, 0, 0])

            def ends():
                found = [re.search(r"job '(\w+)' (failed|ended)", line) for line in switch.err]
                return sorted(each.groups() for each in found if each)
            cli.until(lambda: len(ends()) >= 3, 20, f"three ends in {switch.err}")
            self.assertEqual(ends(), [("late", "failed"), ("lengths", "failed"), ("well", "ended")])
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                failed = re.findall(r'netsum_jobs_failed_total{cause="(\w+)"} ([1-9]\d*)', answer.read().decode())
            self.assertEqual(dict(failed), {"mismatch": "1", "deadline": "1"})
            records = cli.until(lambda: [each for each in [glob.glob(os.path.join(self.folder, "*.json"))] if len(each) == 2], 20, "two records")[0]
            causes = set()
            for path in records:
                with open(path) as file:
                    causes.add(json.load(file)["cause"])
            self.assertEqual(causes, {"mismatch", "deadline"})

    def test_a_daemon_explains_its_jobs(self):
        with cli.Switch("--flight-records", self.folder) as switch:
            def explain(*words, **more):
                return cli.run("explain", "--switch", switch.address, "vision", *words, **more)
            self.assertEqual(explain().returncode, 3)
            ranks = self.ranks(switch, 2)
            with ranks[0], ranks[1]:
                ranks[0].wait_line(ranks[0].out, "iteration 3")
                self.assertIn("it has not ended", cli.checked(explain()).stdout)
                ranks[1].signal(signal.SIGKILL)
                _, text = self.record("the record of a job whose rank 1 was killed")
                of_daemon = cli.checked(explain()).stdout
                self.assertEqual([line for line in of_daemon.splitlines() if not line.startswith("from ")],
                                 [line for line in text.splitlines() if not line.startswith("from ")])
                record = json.loads(cli.checked(explain("--json")).stdout)
                self.assertEqual((record["job"], record["cause"], record["rank"]), ("vision", "died", 1))
            file = glob.glob(os.path.join(self.folder, "*.flight.json"))[0]
            self.assertEqual(cli.checked(cli.run("explain", file, env={"NETSUM_SWITCH": switch.address})).stdout, text)

    def test_no_record_of_what_ends_well(self):
        with cli.Switch("--flight-records", self.folder) as switch:
            ranks = [cli.rank_process(switch.address, rank, 2, "--elements", 1000, "--iterations", 3) for rank in range(2)]
            for rank in ranks:
                with rank:
                    self.assertEqual(rank.wait(30), 0, rank.err)
            cli.until(lambda: not switch.status()["jobs"], 10, "the job has ended")
            self.assertEqual(os.listdir(self.folder), [])

    def test_atp_and_netreduce_name_the_rank_that_they_wait_for(self):
        for protocol, unit in (("atp", "sequence"), ("netreduce", "message")):
            with self.subTest(protocol), cli.Switch("--heartbeat-timeout-ms", 60_000) as switch, \
                    cli.ParameterServer("--heartbeat-timeout-ms", 60_000) as server:
                joined = server if protocol == "atp" else switch
                flags = ["--protocol", protocol] + (["--ps", server.address] if protocol == "atp" else [])
                ranks = self.ranks(switch, 2, *flags)
                with ranks[0], ranks[1]:
                    ranks[1].wait_line(ranks[1].out, "iteration 3")

                    def stalled():
                        jobs = json.loads(cli.checked(cli.run("status", "--switch", joined.address, "--json")).stdout)["jobs"]
                        return next((jobs[0] for stall in jobs[0]["stalled"] if 1 in stall["missing"]), None)

                    def stopped_and_stalled():  # it may stop where it owes the ring only acknowledgements: then again
                        ranks[1].signal(signal.SIGSTOP)
                        try:
                            return cli.until(stalled, 1, "")
                        except AssertionError:
                            ranks[1].signal(signal.SIGCONT)
                            return None
                    job = cli.until(stopped_and_stalled, 30, "something that waits for rank 1")
                    self.assertEqual(job["stalled_unit"], unit)

    def test_what_is_no_record(self):
        path = os.path.join(self.folder, "x")
        with open(path, "w") as file:
            file.write("{}")
        result = cli.run("explain", path)
        self.assertEqual(result.returncode, 2)
        self.assertIn("not a netsum flight record", result.stderr)
        self.assertEqual(cli.run("explain", path + "y").returncode, 2)
        self.assertEqual(cli.run("explain").returncode, 2)

    def test_a_folder_that_cannot_be_written(self):
        result = cli.run("switch", "--listen", "127.0.0.1:0", "--flight-records", "/proc/flights")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--flight-records", result.stderr)


if __name__ == "__main__":
    cli.main()
