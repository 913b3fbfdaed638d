#!/usr/bin/python3
"""Somebody on the only path between ranks, their switches and their aggregator (network namespaces): every packet of theirs passes
through a program that reads it, and sends others in front of it. With keys none of these is believed; without, sums are wrong.

usage: netns_seals.py NETSUM [unittest arguments]

Exit code 77: network namespaces are not permitted here.
"""
import collections
import json
import os
import random
import select
import socket
import struct
import subprocess
import tempfile
import threading
import unittest
import zlib

import cli_support as cli
import netns_support as netns

PREFIX = f"seals{os.getpid()}"
AGGREGATOR, RANKS, LEAVES, MIDDLE = (f"{PREFIX}-{name}" for name in ("aggregator", "ranks", "leaves", "middle"))
PORTS = {AGGREGATOR: "wire0", RANKS: "wire1", LEAVES: "wire2"}
ADDRESSES = {AGGREGATOR: "10.89.0.1", RANKS: "10.89.0.2", LEAVES: "10.89.0.3"}
PORTS_OF_DATA = (7170, 7270)  # the aggregator, or ATP's switch; the parameter server; two switches of a tree
FLAGS = ("--elements", 20000, "--iterations", 3, "--warmup", 0)
SEAL_BYTES = {"none": 0, "tag": 16, "encrypt": 24}
# Bytes of the common header, and where the type is, and the types with values or news (docs/protocol-*.md), without probes.
SWITCHML, ROCE = 3, 0x45  # its version; an IPv4 header in the tunnel
FORMATS = {SWITCHML: (20, 15, {*range(7), 12, 13}), 0xa3: (40, 255, set(range(7))), ROCE: (44, 0, {0})}


def build():
    netns.add(*PORTS, MIDDLE)
    for host, port in PORTS.items():
        netns.wire(MIDDLE, port, host, silent=True)
        netns.ip("-n", host, "link", "set", "eth0", "gso_max_segs", "1")  # one frame a packet: what is in the middle reads frames
        netns.address(host, "eth0", ADDRESSES[host] + "/24")


def destroy():
    netns.remove(*PORTS, MIDDLE)


def crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82f63b78 if value & 1 else 0)
        table.append(value)
    return table


CRC32C = crc32c_table()


def crc32c(data, previous):
    state = previous ^ 0xffffffff
    for byte in data:
        state = state >> 8 ^ CRC32C[(state ^ byte) & 255]
    return state ^ 0xffffffff


def with_icrc(packet):
    """What routers may change counts as ones: in the IP header, the UDP checksum, the base transport header."""
    masked = bytearray(packet[:-4])
    for at in (1, 8, 10, 11, 26, 27, 32):
        masked[at] = 255
    return packet[:-4] + struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


def with_checksum(packet):
    if packet[0] == ROCE:
        return with_icrc(packet)
    return packet[:4] + struct.pack("<I", crc32c(packet[8:], struct.unpack("<I", packet[:4])[0])) + packet[8:]


def internet_checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data[:len(data) // 2 * 2])) + (data[-1] << 8 if len(data) % 2 else 0)
    while total > 0xffff:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def mended(frame):
    """Sums that the sender left to a card which is not there."""
    if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
        return frame
    tcp = frame[34:14 + struct.unpack("!H", frame[16:18])[0]]
    pseudo = frame[26:34] + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(tcp))
    tcp = tcp[:16] + b"\0\0" + tcp[18:]
    return frame[:34] + tcp[:16] + struct.pack("!H", internet_checksum(pseudo + tcp)) + tcp[18:]


def datagram_of(frame):
    """The payload of a UDP frame from or to the aggregator's lane; None: it is something else."""
    if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_UDP or not set(PORTS_OF_DATA) & set(struct.unpack("!HH", frame[34:38])):
        return None
    return frame[42:34 + struct.unpack("!H", frame[38:40])[0]]


def frame_with(frame, payload):
    ip = frame[14:16] + struct.pack("!H", 28 + len(payload)) + frame[18:24] + b"\0\0" + frame[26:34]
    ip = ip[:10] + struct.pack("!H", internet_checksum(ip)) + ip[12:]
    return frame[:14] + ip + frame[34:38] + struct.pack("!HH", 8 + len(payload), 0) + payload


def hops_of(tree):
    """(from, towards), of a job's packets."""
    links = ((RANKS, LEAVES), (LEAVES, AGGREGATOR)) if tree else ((RANKS, AGGREGATOR),)
    return [hop for one, other in links for hop in ((one, other), (other, one))]


class Attacker:
    """Relays frames as a bridge does, and puts forged ones in front of those of a job."""

    def __init__(self, seal, hops):
        self.seal = seal
        self.hosts = {}  # by socket
        for host, port in PORTS.items():
            each = netns.open_socket(MIDDLE, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            each.bind((port, 0))
            self.hosts[each] = host
        self.at = {}  # the socket behind which an Ethernet address is
        self.random = random.Random(1)
        self.forged = collections.Counter()
        self.attacked = collections.Counter()  # (from, towards)
        self.seen = []  # (towards, frame), of which some are sent again
        self.hops = hops
        self.enough = threading.Event()  # each hop has been attacked often: the job waits until its daemons have been asked
        self.asked = False
        self.running = True
        self.thread = threading.Thread(target=self.relay, daemon=True)
        self.thread.start()

    def stop(self):
        self.running = False
        self.thread.join()
        for each in self.hosts:
            each.close()

    def relay(self):
        while self.running:
            for ready in select.select(list(self.hosts), [], [], 0.1)[0]:
                frame, (_, _, kind, _, _) = ready.recvfrom(65536)
                if kind == socket.PACKET_OUTGOING:
                    continue
                self.at[frame[6:12]] = ready
                known = self.at.get(frame[:6])
                for out in [known] if known else [each for each in self.hosts if each is not ready]:
                    self.pass_on(frame, self.hosts[ready], out)

    def pass_on(self, frame, source, out):
        payload = datagram_of(frame)
        if payload is not None and self.is_of_a_job(payload):
            towards = self.hosts[out]
            self.attacked[source, towards] += 1
            for what, other in self.forgeries(towards, frame, payload):
                self.forged[what] += 1
                self.send(out, other)
            if not self.asked and min(self.attacked[hop] for hop in self.hops) > 100:
                self.enough.set()
                return
        self.send(out, frame if payload is None else frame_with(frame, payload))

    @staticmethod
    def is_of_a_job(payload):
        common, mask, types = FORMATS.get(payload[0], (0, 0, ()))
        return len(payload) >= common and payload[1] & mask in types

    @staticmethod
    def send(out, frame):
        try:
            out.send(mended(frame))
        except OSError:
            pass  # longer than the link takes: the network loses it

    def forgeries(self, towards, frame, payload):
        seal = self.seal
        changed = bytearray(payload)
        changed[self.random.randrange(len(changed))] ^= 1 << self.random.randrange(8)
        yield "changed", frame_with(frame, bytes(changed))
        yield "truncated", frame_with(frame, payload[:self.random.randrange(1, len(payload))])
        # As a rank without keys sends it: other values, and a valid checksum.
        bare = bytearray(payload[:len(payload) - seal])
        if bare[0] == SWITCHML:
            bare[1] = bare[1] & 15 | 1 << 4
        bare[-5 if bare[0] == ROCE else -1] ^= 1
        yield "with a checksum", frame_with(frame, with_checksum(bytes(bare)))
        if seal:
            tagged = bytearray(payload)
            tagged[-seal - 1] ^= 1
            tagged[8 - seal:] = self.random.randbytes(seal - 8)
            yield "with another seal", frame_with(frame, bytes(tagged))
        if self.seen:
            before, old = self.random.choice(self.seen)
            if before == towards:
                yield "again", old
        if len(self.seen) < 2000:
            self.seen.append((towards, frame_with(frame, payload)))


class Seals(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.certificate, cls.key = (os.path.join(cls.folder.name, name) for name in ("cert.pem", "key.pem"))
        names = ",".join(f"IP:{each}" for each in ADDRESSES.values())
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", f"subjectAltName={names}", "-keyout", cls.key, "-out", cls.certificate],
                       check=True, capture_output=True, timeout=60)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_job(self, protocol, security, *arguments, tree=False):
        """The ranks' exit codes and reports, how many packets each daemon did not believe, and the attacker."""
        inside = lambda host, *words: netns.command(host, cli.NETSUM, *words)
        at = lambda host, number: f"{ADDRESSES[host]}:{PORTS_OF_DATA[number]}"
        tls = ["--tls-cert", self.certificate, "--tls-key", self.key, "--tls-ca", self.certificate, "--packet-security", security]
        daemons = {(AGGREGATOR, at(AGGREGATOR, 0)): "switch"}
        where = [["--switch", at(AGGREGATOR, 0)]] * 2
        if tree:
            daemons |= {(LEAVES, at(LEAVES, number)): "switch" for number in (0, 1)}
            where = [["--spine", at(AGGREGATOR, 0), "--switch", at(LEAVES, number)] for number in (0, 0, 1)]
        if protocol == "atp":
            daemons[AGGREGATOR, at(AGGREGATOR, 1)] = "ps"
            where = [[*each, "--ps", at(AGGREGATOR, 1)] for each in where]
        attacker = Attacker(SEAL_BYTES[security], hops_of(tree))
        processes = [subprocess.Popen(inside(host, command, "--listen", address, *tls), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                      text=True, env=cli.environment()) for (host, address), command in daemons.items()]
        ranks = []
        try:
            for process in processes:
                self.assertIn("listening", process.stdout.readline())
            ranks = [subprocess.Popen(inside(RANKS, "bench", "all-reduce", "--json", "--protocol", protocol, *each, "--tls-ca",
                                             self.certificate, "--rank", rank, "--world-size", len(where), *FLAGS, "--connect-deadline", 30,
                                             *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cli.environment())
                     for rank, each in enumerate(where)]
            while not attacker.enough.wait(0.1) and any(rank.poll() is None for rank in ranks):
                pass
            unbelieved = self.unbelieved(daemons)
            attacker.asked = True
            outputs = [rank.communicate(timeout=60) for rank in ranks]
            return [rank.returncode for rank in ranks], outputs, unbelieved, attacker
        finally:
            for process in [*ranks, *processes]:
                process.kill()
                process.communicate()
            attacker.stop()

    def unbelieved(self, daemons):
        """By the address of each daemon: packets with a wrong seal."""
        counted_by = collections.Counter()
        for host, each in daemons:
            status = netns.run(host, cli.NETSUM, "status", "--switch", each, "--tls-ca", self.certificate, "--json", limit=60)
            report = json.loads(status.stdout) if status.returncode == 0 else {"counters": {}, "jobs": ()}
            # SwitchML counts them by job, the others for all.
            for counted in (report, *report["jobs"]):
                for name in ("dropped_seal", "dropped_roce_seal"):
                    counted_by[each] += counted["counters"].get(name, 0)
        return counted_by

    def assert_nothing_is_believed(self, codes, outputs, attacker):
        self.assertEqual({0}, set(codes), outputs)
        for out, _ in outputs:
            self.assertEqual(0, json.loads(out)["wrong"])
        for what in ("changed", "truncated", "with a checksum", "with another seal", "again"):
            self.assertGreater(attacker.forged[what], 100, attacker.forged)

    def test_nothing_forged_is_believed(self):
        for protocol, security in (("switchml", "encrypt"), ("atp", "encrypt"), ("netreduce", "encrypt"), ("netreduce", "tag")):
            with self.subTest(protocol=protocol, security=security):
                codes, outputs, unbelieved, attacker = self.run_job(protocol, security, "--require-keys", "--dtype", "int32")
                self.assert_nothing_is_believed(codes, outputs, attacker)
                self.assertGreater(unbelieved.total(), 0)

    def test_nor_on_any_hop_of_a_tree(self):
        codes, outputs, unbelieved, attacker = self.run_job("switchml", "tag", "--require-keys", "--dtype", "float32", tree=True)
        self.assert_nothing_is_believed(codes, outputs, attacker)
        for hop in hops_of(True):
            self.assertGreater(attacker.attacked[hop], 100, attacker.attacked)
        self.assertEqual(3, len([each for each in unbelieved.values() if each > 0]), unbelieved)
        without_keys = cli.bench("--workers", 3, *FLAGS, "--dtype", "float32", "--transport", "udp")["result_hash"]
        self.assertEqual({without_keys}, {json.loads(out)["result_hash"] for out, _ in outputs})

    def test_without_keys_it_would_be(self):
        for protocol in ("switchml", "netreduce"):
            with self.subTest(protocol=protocol):
                codes, outputs, _, attacker = self.run_job(protocol, "none", "--dtype", "int32", "--deadline", 3)
                self.assertGreater(attacker.forged["with a checksum"], 0)
                self.assertNotEqual([0, 0], codes, outputs)


if __name__ == "__main__":
    netns.skip_if_not_permitted()
    build()
    try:
        cli.main()
    finally:
        destroy()
