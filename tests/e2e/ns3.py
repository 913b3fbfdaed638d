#!/usr/bin/python3
"""Two simulators: the same scenario over ns-3's network and over ours, with the same times within 3 %; TCP beside a job.

usage: ns3.py NETSUM NETSUM_NS3 [unittest arguments]; skipped (exit code 77) where ns-3 is not installed and the second is not there
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

NETSUM = NS3 = None
WITHIN = 0.03
WITHIN_TCP = 0.05
STAR = '[network]\nhosts = {hosts}\nlink = {{ rate = "10gbit", delay = "1us", buffer = "1MB", mark = "256kB" }}\n'
TREE = '[network]\nkind = "tree"\nfan_out = [3, 4]\nlink = { rate = "10gbit", delay = "1us" }\ntrunk = { rate = "10gbit", delay = "5us" }\n'
JOB = "[[job]]\nelements = 200_000\niterations = 3\nslots = 128\n"


def report(program, scenario, *arguments):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(scenario)
        file.flush()
        command = [program, "simulate", "--json", "--scenario", file.name] if program == NETSUM else [program, "--json", file.name]
        answer = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    if answer.returncode != 0:
        raise AssertionError(answer.stderr)
    return json.loads(answer.stdout)


class TwoSimulators(unittest.TestCase):
    def agree(self, scenario):
        ours, theirs = (report(program, scenario) for program in (NETSUM, NS3))
        for job, other in zip(ours["jobs"], theirs["jobs"]):
            mine, its = (each["iteration_seconds"]["median"] for each in (job, other))
            self.assertLess(abs(its / mine - 1), WITHIN, f"{job['name']}: {mine} s, by ns-3 {its} s")
        bytes_ = [{link["link"]: link["bytes"] for link in each["links"]} for each in (ours, theirs)]
        for name in bytes_[0]:
            self.assertLess(abs(bytes_[1][name] / bytes_[0][name] - 1), WITHIN, name)

    def test_switchml(self):
        self.agree(STAR.format(hosts=8) + JOB)

    def test_small_packets_and_hosts_that_take_time(self):
        self.agree(STAR.format(hosts=4) + 'host = { send = "300ns", receive = "300ns", threads = 2 }\n' + JOB + "packet_elements = 64\n")

    def test_a_tree(self):
        self.agree(TREE + '[aggregation]\nswitches = "all"\n' + JOB)

    def test_atp(self):
        self.agree('protocol = "atp"\n' + STAR.format(hosts=5) + '[aggregation]\naggregators = ["h4"]\nswitches = ["sw"]\npool_slots = 512\n' + JOB
                   + 'hosts = ["h0..h3"]\n')

    def test_atp_with_marks(self):
        """A queue that marks, at the server: windows follow it."""
        self.agree('protocol = "atp"\n' + STAR.format(hosts=5).replace("256kB", "30kB")
                   + '[aggregation]\naggregators = ["h4"]\nswitches = ["sw"]\npool_slots = 16\n' + JOB + 'hosts = ["h0..h3"]\n')

    def test_netreduce(self):
        self.agree('protocol = "netreduce"\n' + STAR.format(hosts=4) + JOB.replace("slots = 128", "slots = 8"))

    def test_background(self):
        self.agree(STAR.format(hosts=5) + '[[background]]\nfrom = "h4"\nto = "h0"\nrate = "4gbit"\nframe = 1000\n' + JOB + 'hosts = ["h0..h3"]\n')

    def test_losses(self):
        """Other packets are lost: as many, and each costs as much."""
        scenario = STAR.format(hosts=4).replace('"1us",', '"1us", loss = 0.002,') + JOB
        for each in (report(program, scenario) for program in (NETSUM, NS3)):
            lost = sum(link["lost"] for link in each["links"])
            sent = sum(link["packets"] for link in each["links"])
            self.assertLess(abs(lost / sent - 0.002), 0.001)
            self.assertGreater(each["jobs"][0]["retransmissions"], 0)


class Tcp(unittest.TestCase):
    def scenario(self, control):
        return (STAR.format(hosts=6).replace("10gbit", "1gbit").replace("256kB", "64kB") + '[[background]]\nname = "tcp"\nfrom = "h4"\nto = "h0"\n'
                f'tcp = "{control}"\n' + JOB.replace("iterations = 3", 'iterations = 8') + 'hosts = ["h0..h3"]\n'
                '[output]\nseries = ["background.tcp.bytes"]\nbin = "1ms"\n')

    def test_shares_a_link_with_a_job(self):
        for control in ("cubic", "dctcp"):
            found = report(NS3, self.scenario(control))
            sent = sum(found["series"]["background.tcp.bytes"])
            self.assertGreater(sent, 0.05 * found["jobs"][0]["bytes"], control)
            self.assertEqual(found["jobs"][0]["iteration_seconds"]["count"], 8)

    def test_is_as_fast_as_ours(self):
        """On links whose queues are too short for it, behind RED, and on one that loses."""
        for control, trunk, seconds in (("reno", 'rate = "20mbit", delay = "10ms", buffer = "20kB"', 60),
                                        ("cubic", 'rate = "20mbit", delay = "30ms", buffer = "30kB"', 60),
                                        ("reno", 'rate = "20mbit", delay = "10ms", buffer = "1MB", red = { min = "30kB", max = "90kB", probability = 0.02 }', 60),
                                        ("reno", 'rate = "1gbit", delay = "10ms", loss = 0.001', 100)):
            scenario = (f'end = "{seconds}s"\n[network]\nkind = "shared"\nleft = 2\nright = 1\nlink = {{ rate = "1gbit" }}\ntrunk = {{ {trunk} }}\n'
                        '[[job]]\nhosts = ["h1"]\n[[job.bucket]]\nelements = 10\nbackward = "110s"\n'
                        f'[[background]]\nname = "tcp"\nfrom = "h0"\nto = "h2"\ntcp = "{control}"\n'
                        '[output]\nseries = ["background.tcp.bytes"]\nbin = "1s"\n').replace('"1000s"', '"110s"')
            ours, theirs = (sum(report(program, scenario)["series"]["background.tcp.bytes"][10:]) for program in (NETSUM, NS3))
            self.assertLess(abs(ours / theirs - 1), WITHIN_TCP, f"{control}, {trunk}: {ours} bytes, by ns-3 {theirs}")

    def test_shares_are_ours(self):
        """Of a link that loses by chance; bench/tcp/shares has more."""
        command = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "tcp", "shares"), "--seeds", "2", "--seconds", "80"]
        found = subprocess.run([*command, "--build", os.path.dirname(os.path.dirname(NS3)), "2 of Reno, round trips of 30 and 70 ms",
                                "CUBIC beside 10 Mbit/s of UDP"], capture_output=True, text=True, timeout=300)
        self.assertEqual(found.returncode, 0, found.stdout + found.stderr)

    def test_what_is_refused(self):
        with self.assertRaisesRegex(AssertionError, "only --level packet has it"):
            report(NETSUM, self.scenario("cubic"), "--level", "flow")
        with self.assertRaisesRegex(AssertionError, r"`job\[0\].priority` is above 0: only netsum simulate has it"):
            report(NS3, self.scenario("cubic").replace("[[job]]", "[[job]]\npriority = 1"))
        with self.assertRaisesRegex(AssertionError, "is one of reno, dctcp, cubic"):
            report(NS3, self.scenario("vegas"))


if __name__ == "__main__":
    NETSUM, NS3 = map(os.path.abspath, (sys.argv.pop(1), sys.argv.pop(1)))
    if not os.access(NS3, os.X_OK):
        print(f"skipped: there is no {NS3}, since ns-3 is not installed (scripts/setup --ns3)")
        sys.exit(77)
    unittest.main(verbosity=2)
