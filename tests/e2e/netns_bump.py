#!/usr/bin/python3
"""A bump in the wire between two hosts (network namespaces on veth pairs with the offloads that they have by default): to
them it is to be a cable.

usage: netns_bump.py BUMP [unittest arguments]

Exit code 77: network namespaces are not permitted here.
"""
import hashlib
import json
import os
import platform
import random
import signal
import socket
import struct
import sys
import threading
import unittest

import netns_support as netns

BUMP = None
LIMIT = 20  # seconds, for what takes a fraction of one

PREFIX = f"bump{os.getpid()}"
LEFT, RIGHT, MIDDLE = (f"{PREFIX}-{name}" for name in ("left", "right", "middle"))
PORTS = {LEFT: "wire0", RIGHT: "wire1"}
FAMILIES = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}
# Of each host: name of a device, by what is between Ethernet and IP, and the number of its networks.
DEVICES = {"untagged": ("eth0", 1)}
TAGGED_DEVICES = {"VLAN": ("vlan7", 7), "stacked VLANs": ("inner5", 5)}  # where the kernel has such

UDP_SEGMENT = 103
SO_RCVBUFFORCE = 33


def address(host, version, network=1):
    number = 1 if host == LEFT else 2
    return f"10.88.{network}.{number}" if version == "IPv4" else f"fd88:{network}::{number}"


def build():
    netns.add(LEFT, RIGHT, MIDDLE)
    for host, port in PORTS.items():
        netns.wire(MIDDLE, port, host, silent=True)  # frames of the hosts and no others
    try:
        for host in PORTS:
            netns.ip("-n", host, "link", "add", "vlan7", "link", "eth0", "type", "vlan", "id", "7")
            netns.ip("-n", host, "link", "add", "outer9", "link", "eth0", "type", "vlan", "proto", "802.1ad", "id", "9")
            netns.ip("-n", host, "link", "set", "outer9", "up")
            netns.ip("-n", host, "link", "add", "inner5", "link", "outer9", "type", "vlan", "id", "5")
        DEVICES.update(TAGGED_DEVICES)
    except OSError as error:
        print("without VLANs:", error, file=sys.stderr)
    for host in PORTS:
        for device, network in DEVICES.values():
            netns.ip("-n", host, "link", "set", device, "up")
            netns.address(host, device, address(host, "IPv4", network) + "/24", address(host, "IPv6", network) + "/64")


def take_down():
    netns.remove(LEFT, RIGHT, MIDDLE)


def open_socket(host, version, kind, protocol=0):
    made = netns.open_socket(host, FAMILIES[version], kind, protocol)
    made.settimeout(LIMIT)
    return made


def tcp(data, sender, receiver, version, network):
    """Sends it over a connection, and returns the hash of what arrived, as the receiver says."""
    with open_socket(receiver, version, socket.SOCK_STREAM) as listener, \
         open_socket(sender, version, socket.SOCK_STREAM) as client:
        listener.bind((address(receiver, version, network), 0))
        listener.listen()

        def serve():
            server, _ = listener.accept()
            server.settimeout(LIMIT)
            digest = hashlib.sha256()
            with server:
                while piece := server.recv(1 << 20):
                    digest.update(piece)
                server.sendall(digest.digest())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client.connect((address(receiver, version, network), listener.getsockname()[1]))
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as stream:
            digest = stream.read()
        thread.join(LIMIT)
        return digest


def echo(version, length):
    """One ping from the left host to the right one; what came back."""
    v6 = version == "IPv6"
    protocol, request, reply = (socket.IPPROTO_ICMPV6, 128, 129) if v6 else (socket.IPPROTO_ICMP, 8, 0)
    payload = random.Random(length).randbytes(length)
    header = struct.pack("!BBHHH", request, 0, 0, os.getpid() & 0xffff, length & 0xffff)
    if not v6:  # of ICMPv6 the kernel computes it
        words = header + payload + bytes(length % 2)
        total = sum(struct.unpack(f"!{len(words) // 2}H", words))
        while total >> 16:
            total = (total & 0xffff) + (total >> 16)
        header = header[:2] + struct.pack("!H", ~total & 0xffff) + header[4:]
    with open_socket(LEFT, version, socket.SOCK_RAW, protocol) as sender:
        sender.sendto(header + payload, (address(RIGHT, version), 0))
        while True:  # a raw socket hears everything
            answer = sender.recv(65536)
            answer = answer if v6 else answer[(answer[0] & 15) * 4:]
            if answer[0] == reply and answer[4:8] == header[4:8]:
                return answer[8:] == payload


class Cable(unittest.TestCase):
    def setUp(self):
        self.bump = netns.Inside(MIDDLE, *PORTS.values(), program=BUMP)
        self.addCleanup(lambda: self.bump.__exit__())
        self.bump.wait_line(self.bump.out, "ready", LIMIT)

    def statistics(self):
        self.bump.signal(signal.SIGTERM)
        self.assertEqual(self.bump.wait(LIMIT), 0, self.bump.err)
        return json.loads(self.bump.out[-1])

    def expect_no_loss(self):
        statistics = self.statistics()
        for port in statistics["ports"]:
            dropped = {name: count for name, count in port.items() if name.startswith("dropped") and count != 0}
            self.assertEqual(dropped, {})
            self.assertGreater(port["frames_sent"], 0)
        self.assertEqual(statistics["ports"][0]["frames_received"], statistics["ports"][1]["frames_sent"])
        self.assertEqual(statistics["ports"][1]["frames_received"], statistics["ports"][0]["frames_sent"])
        return statistics

    def test_ping(self):
        for version in FAMILIES:
            for length in (0, 1, 56, 1400, 5000, 60_000):  # the last two in fragments
                with self.subTest(version=version, length=length):
                    self.assertTrue(echo(version, length))
        self.expect_no_loss()

    def test_udp_both_ways_and_in_order(self):
        lengths = [0, 1, 2, 17, 18, 19, 1471, 1472, 1473, 9000, 65507]
        datagrams = [random.Random(number).randbytes(length) for number, length in enumerate(lengths * 5)]
        for version in FAMILIES:
            for sender, receiver in ((LEFT, RIGHT), (RIGHT, LEFT)):
                with self.subTest(version=version, sender=sender), \
                     open_socket(receiver, version, socket.SOCK_DGRAM) as there, \
                     open_socket(sender, version, socket.SOCK_DGRAM) as here:
                    there.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
                    there.bind((address(receiver, version), 0))
                    here.connect((address(receiver, version), there.getsockname()[1]))
                    for datagram in datagrams:
                        here.send(datagram)
                    self.assertEqual([there.recv(65536) for _ in datagrams], datagrams)
        self.expect_no_loss()

    def test_udp_trains(self):
        if tuple(map(int, platform.release().split(".")[:2])) < (6, 2):
            self.skipTest("this kernel's packet sockets have no words for trains of UDP")
        data = random.Random(1).randbytes(40_000)
        with open_socket(RIGHT, "IPv4", socket.SOCK_DGRAM) as there, open_socket(LEFT, "IPv4", socket.SOCK_DGRAM) as here:
            there.bind((address(RIGHT, "IPv4"), 0))
            here.connect((address(RIGHT, "IPv4"), there.getsockname()[1]))
            self.assertTrue(echo("IPv4", 1))
            here.setsockopt(socket.SOL_UDP, UDP_SEGMENT, 1000)
            here.send(data)
            self.assertEqual([there.recv(65536) for _ in range(40)], [data[i:i + 1000] for i in range(0, 40_000, 1000)])
        statistics = self.expect_no_loss()
        self.assertLess(statistics["ports"][0]["frames_received"], 40)

    def test_tcp(self):
        data = random.Random(2).randbytes(20_000_000)
        expected = hashlib.sha256(data).digest()
        for tags, (_, network) in DEVICES.items():
            for version in FAMILIES:
                for sender, receiver in ((LEFT, RIGHT), (RIGHT, LEFT)):
                    with self.subTest(tags=tags, version=version, sender=sender):
                        self.assertEqual(tcp(data, sender, receiver, version, network), expected)
        for port in self.statistics()["ports"]:  # the hosts' offloads were on, or this showed nothing
            self.assertGreater(port["bytes_received"] / port["frames_received"], 1600)

    def test_long_frames(self):
        everywhere = [(LEFT, "eth0"), (RIGHT, "eth0"), (MIDDLE, "wire0"), (MIDDLE, "wire1")]
        for namespace, device in everywhere:
            netns.ip("-n", namespace, "link", "set", device, "mtu", 9000)
        self.addCleanup(lambda: [netns.ip("-n", *each[:1], "link", "set", each[1], "mtu", 1500) for each in everywhere])
        self.assertTrue(echo("IPv4", 8900))
        data = random.Random(3).randbytes(10_000_000)
        self.assertEqual(tcp(data, LEFT, RIGHT, "IPv4", 1), hashlib.sha256(data).digest())
        self.statistics()


class Usage(unittest.TestCase):
    def expect_error(self, ports, *words):
        with netns.Inside(MIDDLE, *ports, program=BUMP) as process:
            self.assertEqual(process.wait(LIMIT), 1)
            self.assertEqual(len(process.err), 1, process.err)
            for word in words:
                self.assertIn(word, process.err[0])

    def test_says_what_is_wrong(self):
        self.expect_error(["wire0", "eth:nowhere"], "eth:nowhere", "no such interface")
        self.expect_error(["wire0", "lo"], "eth:lo", "Ethernet")
        self.expect_error(["wire0", "eth:wire0"], "'eth:wire0'", "twice")
        self.expect_error(["wire0", "nothing:wire1"], "'nothing:wire1' is not a port")


def main():
    global BUMP
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BUMP = os.path.abspath(sys.argv.pop(1))
    netns.skip_if_not_permitted()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends a test ends its processes too
    try:
        build()
        unittest.main(module="__main__", verbosity=2)
    finally:
        take_down()


if __name__ == "__main__":
    main()
