#!/usr/bin/python3
"""Switches that DNS or a file names: two aggregators, ranks that are told a service's name alone, and a DNS server of a page.

The test runs in a network namespace of its own, where it is 127.0.0.1's port 53 and /etc/resolv.conf: without the right to make one
it is skipped.
"""
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import cli_support as cli
import netns_support as netns

SRV, A = 33, 1
ZONE = {}  # (name, type): data of records


def name_in(labels):
    return b"".join(bytes([len(label)]) + label.encode() for label in labels.split(".")) + b"\0"


def service(priority, port, host):
    return struct.pack(">HHH", priority, 0, port) + name_in(host)


def answered(query):
    """A server's answer: the records that ZONE has, or that there is no such name."""
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    kind = struct.unpack(">H", query[at + 1:at + 3])[0]
    records = ZONE.get((".".join(labels), kind), [])
    code = 0 if any(name == ".".join(labels) for name, _ in ZONE) else 3
    answer = query[:2] + struct.pack(">HHHHH", 0x8580 | code, 1, len(records), 0, 0) + query[12:at + 5]
    return answer + b"".join(struct.pack(">HHHIH", 0xc00c, kind, 1, 60, len(data)) + data for data in records)


def serve(server):
    while True:
        query, client = server.recvfrom(512)
        server.sendto(answered(query), client)


class Discovery(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        cls.server.bind(("127.0.0.1", 53))
        threading.Thread(target=serve, args=(cls.server,), daemon=True).start()
        cls.switches = [cli.Process("switch", "--listen", "127.0.0.1:0") for _ in range(2)]
        cls.addClassCleanup(lambda: [switch.__exit__() for switch in cls.switches])
        cls.addresses = [switch.wait_line(switch.out, "listening ").split()[1] for switch in cls.switches]
        cls.ports = [int(address.rsplit(":", 1)[1]) for address in cls.addresses]
        ZONE["one.test", A] = ZONE["two.test", A] = [bytes([127, 0, 0, 1])]
        # In an order that is not the list's.
        ZONE["_netsum._tcp.test", SRV] = [service(20, cls.ports[1], "two.test"), service(10, cls.ports[0], "one.test")]
        ZONE["_one._tcp.test", SRV] = [service(10, cls.ports[0], "one.test")]
        ZONE["_none._tcp.test", SRV] = [service(0, 0, "")[:-1]]

    def ranks(self, switch, *flags, count=2, env=None):
        words = ["--switch", switch] if switch else []
        with netns.Ranks(cli.Process("bench", "all-reduce", *words, "--rank", number, "--world-size", count, "--elements", 10007,
                                     "--iterations", 2, "--json", *flags, env=env) for number in range(count)) as ranks:
            digest = ranks.hash()
            return digest, json.loads("\n".join(ranks.ranks[0].out))

    def test_a_service_is_a_list_in_one_order(self):
        digest, report = self.ranks("srv:_netsum._tcp.test", "--job", "by-name")
        self.assertIn("2 aggregators (one.test:{}, two.test:{})".format(*self.ports), report["placement"])
        again, _ = self.ranks(",".join(self.addresses), "--job", "by-address")
        self.assertEqual(digest, again)

    def test_a_variable_names_it_too(self):
        _, report = self.ranks(None, "--job", "by-variable", env={"NETSUM_SWITCH": "srv:_one._tcp.test"})
        self.assertIn("1 aggregator (one.test:{})".format(self.ports[0]), report["placement"])

    def test_a_file_is_a_list(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# both\n" + "\n".join(self.addresses) + "\n")
            file.flush()
            _, report = self.ranks("@" + file.name, "--job", "by-file")
            self.assertIn("2 aggregators ({}, {})".format(*self.addresses), report["placement"])
            several = cli.run("status", "--switch", "@" + file.name)
            self.assertEqual(several.returncode, 2)
            self.assertIn("names 2 switches, but exactly one is required", several.stderr)
            top = cli.checked(cli.run("top", "--switch", "@" + file.name, "--frames", 1, "--interval", 0.2))
            for address in self.addresses:
                self.assertIn(address, top.stdout)

    def test_status_of_a_service(self):
        self.assertIn("netsum ", cli.checked(cli.run("status", "--switch", "srv:_one._tcp.test")).stdout)

    def test_errors_say_what_to_do(self):
        for name, code, words in (("srv:_nothing._tcp.test", 3, "there is no such name (check with: dig SRV _nothing._tcp.test)"),
                                  ("srv:one.test", 3, "the name has no service records"),
                                  ("srv:_none._tcp.test", 3, "the service is declared absent"),
                                  ("srv:", 2, "srv:_netsum._tcp.DOMAIN"),
                                  ("@/nowhere", 2, "cannot read the list of switches /nowhere")):
            result = cli.run("bench", "all-reduce", "--switch", name, "--rank", 0, "--world-size", 1, "--elements", 10)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(words, result.stderr)


def within_namespaces():
    """Runs this again in namespaces of its own."""
    with tempfile.NamedTemporaryFile("w") as resolver:
        resolver.write("nameserver 127.0.0.1\n")
        resolver.flush()
        script = 'mount --make-rprivate / && mount --bind "$1" "$(readlink -f /etc/resolv.conf)" && ip link set lo up && exec "${@:2}"'
        words = [*netns.alone("--mount"), "bash", "-c", script, "bash", resolver.name]
        if subprocess.run([*words, "true"], capture_output=True).returncode != 0:
            print("skipped: no right to make namespaces")
            return netns.SKIPPED
        return subprocess.run([*words, sys.executable, *sys.argv], env={**os.environ, "NETSUM_TEST_INSIDE": "1"}).returncode


if __name__ == "__main__":
    if os.environ.get("NETSUM_TEST_INSIDE"):
        cli.main()
    sys.exit(within_namespaces())
