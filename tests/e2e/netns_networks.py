#!/usr/bin/python3
"""Networks as they are: hosts with several addresses, links with a smaller MTU in the middle, and addresses translated on the
way. Each host is a network namespace; all are on one network.

usage: netns_networks.py NETSUM [unittest arguments]

Exit code 77: network namespaces are not permitted here.
"""
import json
import os
import unittest

import cli_support as cli
import netns_support as netns

PREFIX = f"nets{os.getpid()}"
NETWORK, SWITCH, SPINE, *HOSTS = (f"{PREFIX}-{name}" for name in ("network", "switch", "spine", "rank0", "rank1"))
NUMBERS = {SWITCH: 1, SPINE: 2, HOSTS[0]: 10, HOSTS[1]: 11}
FLAGS = ("--iterations", 2, "--warmup", 0, "--json", "--connect-deadline", 20)
ELEMENTS = ("--elements", 100_003)


def build():
    netns.add(NETWORK, *NUMBERS)
    netns.bridge(NETWORK)
    for host, number in NUMBERS.items():
        netns.bridged(NETWORK, f"port{number}", host)
        # The first one is what routes prefer. The last is of no interface of the network: a virtual address on lo.
        netns.address(host, "eth0", first(host) + "/24", second(host) + "/24", f"fd94::{number}/64", f"fd94::1:{number}/64")
        netns.address(host, "lo", virtual(host) + "/32")
    for host in NUMBERS:
        for other in NUMBERS:
            if other != host:
                netns.ip("-n", host, "route", "add", virtual(other) + "/32", "via", first(other), "src", first(host))


def first(host):
    return f"10.94.0.{NUMBERS[host]}"


def second(host):
    return f"10.94.0.{100 + NUMBERS[host]}"


def virtual(host):
    return f"10.94.9.{NUMBERS[host]}"


def destroy():
    netns.remove(NETWORK, *NUMBERS)


def daemon(host, command="switch", listen="0.0.0.0:7170", *flags):
    return netns.daemon(host, command, listen, *flags)


def status(host, port):
    return netns.status(host, f"{first(host)}:{port}")


class Job(netns.Ranks):
    """`at`: where each rank joins, in flags."""

    def __init__(self, *at, flags=()):
        super().__init__(netns.Inside(host, "bench", "all-reduce", "--rank", rank, "--world-size", len(at), *FLAGS, *ELEMENTS, *flags, *where)
                         for rank, (host, where) in enumerate(zip(HOSTS, at)))


def expected(*flags):
    return cli.bench("--workers", 2, "--transport", "udp", "--iterations", 2, "--warmup", 0, *ELEMENTS, *flags)["result_hash"]


class SeveralAddresses(unittest.TestCase):
    """Answers come from the address that was sent to, wherever a daemon listens on all."""

    def check(self, *at, flags=()):
        with Job(*at, flags=flags) as job:
            self.assertEqual(expected(*flags), job.hash())

    def test_ipv4(self):
        for protocol in ("switchml", "netreduce"):
            with self.subTest(protocol=protocol), daemon(SWITCH):
                self.check(("--switch", second(SWITCH) + ":7170"), ("--switch", virtual(SWITCH) + ":7170"), flags=("--protocol", protocol))

    def test_ipv6_and_both(self):
        second_of_six = f"[fd94::1:{NUMBERS[SWITCH]}]:7170"
        with daemon(SWITCH, "switch", "[::]:7170", "--threads", 2):
            for other in (second_of_six, second(SWITCH) + ":7170"):
                self.check(("--switch", second_of_six), ("--switch", other), flags=("--threads", 2))

    def test_atp_with_a_server_beside(self):
        with daemon(SWITCH), daemon(SPINE, "ps", "0.0.0.0:7270"):
            at = ("--switch", second(SWITCH) + ":7170", "--ps", second(SPINE) + ":7270")
            self.check(at, at, flags=("--protocol", "atp"))
            # The switch sends first. From its other address the server would take nothing, and the ranks would do without it.
            counters = status(SPINE, 7270)["counters"]
            self.assertEqual(0, sum(value for name, value in counters.items() if name.endswith("dropped_source")), counters)

    def test_trees(self):
        for protocol in ("switchml", "netreduce"):
            with self.subTest(protocol=protocol), daemon(SPINE), daemon(SWITCH), daemon(HOSTS[1]):
                spine = ("--spine", second(SPINE) + ":7170")
                self.check(("--switch", second(SWITCH) + ":7170", *spine), ("--switch", second(HOSTS[1]) + ":7170", *spine),
                           flags=("--protocol", protocol))


class SmallerMtu(unittest.TestCase):
    """Of a link in the middle, at whose ends nobody knows: longer packets are dropped, and nobody says so."""

    @classmethod
    def setUpClass(cls):
        for host, number in NUMBERS.items():
            netns.ip("-n", host, "link", "set", "eth0", "mtu", 9000)
            netns.ip("-n", NETWORK, "link", "set", f"port{number}", "mtu", 1500 if host == HOSTS[0] else 9000)

    def test_ranks_agree_on_what_passes(self):
        ps = ("--ps", first(SPINE) + ":7270")
        for protocol, more in (("switchml", ()), ("netreduce", ()), ("atp", ps)):
            with self.subTest(protocol=protocol), daemon(SWITCH), daemon(SPINE, "ps", "0.0.0.0:7270"):
                at = ("--switch", first(SWITCH) + ":7170", *more)
                with Job(at, at, flags=("--protocol", protocol)) as job:
                    job.hash()
                    told = [[line for line in rank.err if "packets of 9000 bytes" in line] for rank in job.ranks]
                self.assertEqual([], told[1])
                self.assertRegex(told[0][0], f"do not reach {first(SWITCH)}:7170: the path drops them.* at most 1500 bytes")

    def test_a_length_that_was_asked_for_and_does_not_pass(self):
        with daemon(SWITCH):
            at = ("--switch", first(SWITCH) + ":7170")
            with Job(at, flags=("--packet-elements", 1024)) as job:
                self.assertNotIn(0, job.codes())
                self.assertRegex(" ".join(job.ranks[0].error_lines()), r"packets of 4\d+ bytes do not reach aggregator .*, and packets of 1500 bytes do")


class TranslatedPorts(unittest.TestCase):
    """As `docker -p 8170:7170 -p 8170:7170/udp` maps them."""

    def nft(self, *words):
        made = netns.run(SWITCH, "nft", *words)
        if made.returncode != 0:
            self.skipTest("nft: " + made.stderr.strip())

    def test_the_same_ports_pass(self):
        """As `docker -p 7170:7170 -p 7170:7170/udp`, to a container with an address of its own."""
        inner = f"{PREFIX}-container"
        self.addCleanup(netns.remove, inner)
        netns.add(inner)
        netns.wire(SWITCH, "docker0", inner)
        netns.address(SWITCH, "docker0", "172.31.0.1/24")
        netns.address(inner, "eth0", "172.31.0.2/24")
        netns.ip("-n", inner, "route", "add", "default", "via", "172.31.0.1")
        cli.checked(netns.run(SWITCH, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"))
        self.nft("add table ip mapped; add chain ip mapped in { type nat hook prerouting priority dstnat; }; "
                 "add rule ip mapped in meta l4proto { tcp, udp } th dport 7170 dnat to 172.31.0.2")
        self.addCleanup(self.nft, "delete table ip mapped")
        with daemon(inner):
            at = ("--switch", first(SWITCH) + ":7170")
            with Job(at, at) as job:
                self.assertEqual(expected(), job.hash())

    def test_joins_and_the_doctor_name_it(self):
        self.nft("add table ip mapped; add chain ip mapped in { type nat hook prerouting priority dstnat; }; "
                 "add rule ip mapped in tcp dport 8170 redirect to :7170; add rule ip mapped in udp dport 8170 redirect to :7170; "
                 "add table ip closed; add chain ip closed in { type filter hook prerouting priority -350; }; "
                 "add rule ip closed in meta l4proto { tcp, udp } th dport 7170 drop")
        self.addCleanup(self.nft, "delete table ip mapped; delete table ip closed")
        mapped = first(SWITCH) + ":8170"
        words = f"{mapped} answers on TCP, but not on UDP {first(SWITCH)}:7170, where it receives data: "
        with daemon(SWITCH):
            at = ("--switch", mapped)
            with Job(at) as job:
                self.assertNotIn(0, job.codes())
                self.assertIn(words + "is its address or port translated on the way", " ".join(job.ranks[0].error_lines()))
            found = json.loads(netns.run(HOSTS[0], cli.NETSUM, "doctor", "--json", "--switch", mapped, limit=60).stdout)
            self.assertIn(words + "its address or port is translated", [each["what"] for each in found["findings"] if each["name"] == "translation"][0])


def setUpModule():
    unittest.addModuleCleanup(destroy)
    build()


if __name__ == "__main__":
    netns.skip_if_not_permitted()
    cli.main()
