#!/usr/bin/python3
"""Ranks that reach one aggregator over links of different lengths of packets, one of them as long as a loopback device's.

usage: cli_paths.py NETSUM [unittest arguments]
Exit code 77: network namespaces are not permitted here.
"""
import contextlib
import json
import os
import socket
import unittest

import cli_support as cli
import netns_support as netns

LIMIT = 60  # seconds
MTUS = (65520, 1500)  # of the links from LONG and from SHORT; IPoIB's longest, and Ethernet's
TYPE_AT, CONTRIBUTION, CHECKSUMMED = 1, 1, 1  # docs/protocol-switchml.md


class Network:
    """A switch's namespace, with a link to each host's."""

    def __enter__(self):
        self.ended = contextlib.ExitStack()
        self.switch, *self.hosts = (f"paths{os.getpid()}-{name}" for name in ("switch", "long", "short"))
        self.ended.callback(netns.remove, self.switch, *self.hosts)
        netns.add(self.switch, *self.hosts)
        for i, (host, mtu) in enumerate(zip(self.hosts, MTUS)):
            netns.wire(host, "port", self.switch, f"to{i}", more=("mtu", mtu))
            netns.address(host, "port", f"10.9.{i}.2/24")
            netns.address(self.switch, f"to{i}", f"10.9.{i}.1/24")
            netns.ip("-n", host, "route", "add", "default", "via", f"10.9.{i}.1")
        cli.checked(netns.run(self.switch, "sysctl", "-qw", "net.ipv4.ip_forward=1"))
        return self

    def __exit__(self, *_):
        self.ended.close()


def contributions(sniffer):
    """The datagrams that contribute, of those that the sniffer holds: frames of Ethernet and IPv4 without options."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            frame, (_, protocol, *_) = sniffer.recvfrom(1 << 17)
            datagram = frame[42:]
            if protocol == 0x0800 and frame[23] == socket.IPPROTO_UDP and len(datagram) > 48 and datagram[TYPE_AT] & 15 == CONTRIBUTION:
                found.append(datagram)
    return found


class Paths(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.network = cls.enterClassContext(Network())

    def job(self, hosts, protocol="switchml", elements=200_000):
        """What rank 0 reports and logs of an all-reduce of ranks on these hosts."""
        with contextlib.ExitStack() as stack:
            def listen(command):
                daemon = stack.enter_context(netns.Inside(self.network.switch, command, "--listen", "10.9.0.1:0"))
                return daemon.wait_line(daemon.out, "listening ").split()[1]

            words = ["bench", "all-reduce", "--json", "--protocol", protocol, "--elements", elements, "--warmup", 1, "--iterations", 2,
                     "--world-size", len(hosts), "--switch", listen("switch")]
            if protocol == "atp":
                words += ["--ps", listen("ps")]
            ranks = [stack.enter_context(netns.Inside(host, *words, "--rank", i)) for i, host in enumerate(hosts)]
            for rank in ranks:
                self.assertEqual(rank.wait(LIMIT), 0, rank.err)
            report = json.loads("\n".join(ranks[0].out))
            self.assertEqual(report["wrong"], 0)
            return report["placement"]

    def test_a_long_path_is_a_network_all_the_same(self):
        """Packets of 60 KB have checksums, and more of them are under way than on a loopback device."""
        long = self.network.hosts[0]
        with netns.open_socket(self.network.switch, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)) as sniffer:
            sniffer.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
            sniffer.bind(("to0", 0x0003))
            sniffer.setblocking(False)
            placement = self.job([long, long])
            seen = contributions(sniffer)
        self.assertTrue(seen)
        self.assertEqual({datagram[TYPE_AT] >> 4 for datagram in seen}, {CHECKSUMMED})
        self.assertIn("15360 elements per packet", placement)
        self.assertNotIn("lanes of 2 slots", placement)

    def test_ranks_on_long_and_short_paths_agree_on_packets(self):
        for protocol, shown in (("switchml", "320 elements per packet"), ("atp", "elements per packet"), ("netreduce", "path MTU 1024")):
            with self.subTest(protocol=protocol):
                self.assertIn(shown, self.job(self.network.hosts, protocol))


if __name__ == "__main__":
    netns.skip_if_not_permitted()
    cli.main()
