#!/usr/bin/python3
"""A P4 switch (--data-plane bmv2): each rank and the aggregator's daemon is a host of its own (a network namespace) at a port of one
simple_switch, which runs p4/netsum_v1model.p4.

usage: netns_bmv2.py NETSUM P4_FOLDER [unittest arguments]
       netns_bmv2.py NETSUM P4_FOLDER --measure    what a contribution costs simple_switch, instead of tests

Exit code 77: network namespaces are not permitted here, or p4c-bm2-ss or simple_switch is not in PATH.
"""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import cli_support as cli
import netns_support as netns

RANKS = 3
PREFIX = f"bmv2{os.getpid()}"
SWITCH, DAEMON = PREFIX + "-switch", PREFIX + "-daemon"
HOSTS = [f"{PREFIX}-rank{rank}" for rank in range(RANKS)]
ADDRESS, RUNTIME = "10.90.0.1:7170", "10.99.0.2:9090"
FLAGS = ("--json", "--connect-deadline", 30)
TWICE = ("--iterations", 2, "--warmup", 0, "--elements", 100_003)
ENDLESS = ("--iterations", 100_000, "--warmup", 0, "--elements", 100_003)
DATA = 0xc1  # the first byte of the profile's packets
PROGRAM = None


def build():
    netns.add(SWITCH, DAEMON, *HOSTS)
    for port, host in enumerate((DAEMON, *HOSTS)):
        netns.wire(SWITCH, f"port{port}", host)
        netns.sum_before_sending(host, "eth0")
        netns.address(host, "eth0", f"10.90.0.{1 + port}/24")
    # The daemon's own way to the switch's runtime interface.
    netns.wire(SWITCH, "runtime", DAEMON, "runtime")
    netns.address(SWITCH, "runtime", "10.99.0.2/30")
    netns.address(DAEMON, "runtime", "10.99.0.1/30")


def destroy():
    netns.remove(SWITCH, DAEMON, *HOSTS)


@contextlib.contextmanager
def p4_switch():
    ports = [word for port in range(RANKS + 1) for word in ("-i", f"{port}@port{port}")]

    def answers():
        with netns.open_socket(DAEMON, socket.AF_INET, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(("10.99.0.2", 9090)) == 0

    with netns.Inside(SWITCH, *ports, "--thrift-port", 9090, PROGRAM, program=shutil.which("simple_switch")) as switch:
        cli.until(answers, 60, "simple_switch has a Thrift server")
        yield switch


class Daemon(netns.Inside):
    def __init__(self, *arguments):
        super().__init__(DAEMON, "switch", "--listen", ADDRESS, "--allow-fcs-only", "--slots", 2, "--data-plane", "bmv2",
                         "--target", RUNTIME, *arguments)
        self.wait_line(self.out, "listening ")

    def status(self):
        return netns.status(DAEMON, ADDRESS)

    def jobs(self):
        return self.status()["jobs"]


class Job(netns.Ranks):
    def __init__(self, *flags):
        super().__init__(netns.Inside(host, "bench", "all-reduce", "--switch", ADDRESS, "--rank", rank, "--world-size", RANKS, *FLAGS, *flags)
                         for rank, host in enumerate(HOSTS))


def hash_of(*flags):
    with Job(*TWICE, *flags) as job:
        return job.hash(240)  # bmv2 interprets the program


class Sums(unittest.TestCase):
    def expected(self, *flags):
        return cli.bench("--workers", RANKS, "--profile", "chip", "--transport", "udp", *TWICE, *flags)["result_hash"]

    def test_those_of_the_software_chip(self):
        expected = self.expected()
        with p4_switch(), Daemon() as daemon:
            self.assertEqual(expected, hash_of())
            self.assertEqual(expected, hash_of("--loss", 0.01))
            self.assertEqual([], daemon.jobs())
            small = ("--packet-elements", 64)
            self.assertEqual(self.expected(*small), hash_of(*small))

    def test_says_whom_a_chunk_waits_for(self):
        with p4_switch(), Daemon() as daemon, Job(*ENDLESS) as job:
            cli.until(lambda: chunks_of(daemon) > 50, 60, "chunks counted")
            for rank in (job.ranks[1].pid, *cli.children_of(job.ranks[1].pid)):
                os.kill(rank, signal.SIGSTOP)
            stalled = cli.until(lambda: next((each["stalled"] for each in daemon.jobs() if each["stalled"]), None), 20, "a chunk that waits")
            self.assertEqual([1], stalled[0]["missing"])

    def test_a_switch_that_ends(self):
        with p4_switch() as switch, Daemon() as daemon, Job(*ENDLESS) as job:
            cli.until(lambda: chunks_of(daemon) > 50, 60, "chunks counted")
            signal_all(switch, signal.SIGKILL)
            for rank in job.ranks:
                self.assertNotEqual(0, rank.wait(120))
        with p4_switch(), Daemon():
            hash_of()

    def test_a_switch_that_begins_anew(self):
        """Its daemon sets it up again, without which no host would reach another."""
        expected = self.expected()
        with p4_switch() as former, Daemon():
            self.assertEqual(expected, hash_of())
            signal_all(former, signal.SIGKILL)
            with p4_switch():
                self.assertEqual(expected, hash_of())

    def test_a_silent_switch_holds_up_nobody(self):
        with p4_switch() as switch, Daemon() as daemon, Job(*ENDLESS) as job:
            counted = cli.until(lambda: chunks_of(daemon), 60, "chunks counted")
            signal_all(switch, signal.SIGSTOP)
            for _ in range(5):
                self.assertGreaterEqual(chunks_of(daemon), counted)
            signal_all(switch, signal.SIGCONT)
            counted = chunks_of(daemon)
            cli.until(lambda: chunks_of(daemon) > counted, 60, "more chunks counted")
            self.assertEqual([None] * RANKS, [rank.process.poll() for rank in job.ranks])


class Beside(unittest.TestCase):
    def datagram(self, elements, epoch=1):
        """A contribution."""
        packet = bytearray(48 + 4 * elements)
        packet[0:2] = (DATA, 1)
        packet[8:16] = epoch.to_bytes(8, "little")
        return bytes(packet)

    def test_forwards_what_is_not_the_aggregator_s(self):
        with p4_switch(), Daemon(), netns.open_socket(HOSTS[0], socket.AF_INET, socket.SOCK_DGRAM) as one, \
             netns.open_socket(HOSTS[1], socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("10.90.0.3", 7170))
            other.settimeout(20)
            for packet in (b"x", b"y" * 1400, self.datagram(64), self.datagram(256), self.datagram(256)[:100]):
                one.sendto(packet, ("10.90.0.3", 7170))
                received, sender = other.recvfrom(2048)
                self.assertEqual(packet, received)
                other.sendto(packet, sender)
                one.settimeout(20)
                self.assertEqual(packet, one.recv(2048))

    def test_answers_a_contribution_of_an_unknown_job_with_its_header(self):
        with p4_switch(), Daemon() as daemon, netns.open_socket(HOSTS[0], socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.connect(("10.90.0.1", 7170))
            stranger.settimeout(20)
            for elements in (64, 256):
                packet = self.datagram(elements, epoch=0x123456789)
                stranger.send(packet)
                self.assertEqual(packet[:1] + b"\x03" + packet[2:48], stranger.recv(2048))
            cli.until(lambda: daemon.status()["counters"].get("dropped_unknown_job", 0) == 2, 20, "two of an unknown job")


def signal_all(process, number):
    for each in (process.pid, *cli.children_of(process.pid)):
        os.kill(each, number)


def chunks_of(daemon):
    return sum(job["counters"].get("chunks", 0) for job in daemon.jobs())


def processor_seconds(process):
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def measure():
    """What simple_switch's processor time is, whatever else the machine does: all in it, results and repeats too."""
    chunks, iterations = 200, 5
    for elements in (64, 256):
        flags = ("--packet-elements", elements, "--elements", chunks * elements, "--iterations", iterations)
        with p4_switch() as switch, Daemon(), Job("--warmup", 0, *flags) as job:
            before = processor_seconds(switch)
            job.hash(600)
            seconds = processor_seconds(switch) - before
            report = json.loads("\n".join(job.ranks[0].out))
        contributions = chunks * iterations * RANKS
        passes = chunks * iterations * elements // 64 * (RANKS + 1)  # each contribution's, and as many again of the one that completes
        print(f"{elements} elements, {RANKS} ranks: {seconds / contributions * 1e6:.0f} us of simple_switch's processor time for a contribution, "
              f"{seconds / passes * 1e6:.0f} us for a pass; {chunks * RANKS / report['tat_seconds']['median']:.0f} contributions a second here; "
              f"{report['packets']['retransmitted'] / chunks / iterations:.2f} repeats of each", flush=True)


if __name__ == "__main__":
    missing = [tool for tool in ("p4c-bm2-ss", "simple_switch") if shutil.which(tool) is None]
    if missing:
        print(f"skipped: not in PATH: {', '.join(missing)}", file=sys.stderr)
        sys.exit(netns.SKIPPED)
    netns.skip_if_not_permitted()
    folder = sys.argv.pop(2)
    with tempfile.TemporaryDirectory() as made:
        PROGRAM = os.path.join(made, "netsum.json")
        subprocess.run(["p4c-bm2-ss", "--std", "p4-16", "-o", PROGRAM, os.path.join(folder, "netsum_v1model.p4")], check=True)
        try:
            build()
            if sys.argv[2:] == ["--measure"]:
                cli.NETSUM = os.path.abspath(sys.argv[1])
                measure()
            else:
                cli.main()
        finally:
            destroy()
