#!/usr/bin/python3
"""`netsum bump`: a bump in the wire between recorded hosts (at sockets as QEMU has them) and between
living ones (network namespaces on veth pairs with the offloads that they have by default).

usage: cli_bump.py NETSUM_BINARY RECORDINGS [unittest arguments]     (RECORDINGS: tests/data/roce)

Exit code 77: network namespaces are not permitted here, and the rest passed.
"""
import hashlib
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import threading
import unittest

import cli_support as cli
import netns_bump as wire
import netns_support as netns
import scapy_support as scapy

RECORDINGS = None
LIMIT = 20  # seconds, for what takes a fraction of one
WORKERS = 3
RING = f"id=0,ranks={WORKERS},packets=8,window=4,mtu=1024,dtype=int32,layout=nrtv,order=arrival"
HOSTS = "10.0.0.1,10.0.0.2,10.0.0.3"
BROADCAST = b"\xff" * 6
ACKNOWLEDGE = 0x11


def frames_of(name):
    """The frames of a capture, as (time in ns, frame)."""
    with open(os.path.join(RECORDINGS, name + ".pcap"), "rb") as file:
        data = file.read()
    unit = {0xa1b23c4d: 1, 0xa1b2c3d4: 1000}[struct.unpack_from("<I", data)[0]]
    frames, at = [], 24
    while at < len(data):
        seconds, fraction, length, _ = struct.unpack_from("<IIII", data, at)
        frames.append((seconds * 10**9 + fraction * unit, data[at + 16:at + 16 + length]))
        at += 16 + length
    return frames


def source(frame):
    """Of a recorded worker, from its address 10.0.0.N."""
    return frame[29] - 1


def is_gradient(frame):
    return frame[12:14] == b"\x08\x00" and frame[42] != ACKNOWLEDGE


def hello(frame):
    """A broadcast by the sender of `frame`, as ARP's."""
    return BROADCAST + frame[6:12] + b"\x08\x06" + bytes(46)


class Guest:
    """What QEMU is to a port: a socket of datagrams, each a frame."""

    def __init__(self, folder, number):
        self.switch, self.own = (os.path.join(folder, f"{name}{number}") for name in ("wire", "guest"))
        self.port = f"qemu:{self.switch},{self.own}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.own)
        self.frames = []
        self.thread = threading.Thread(target=self.receive, daemon=True)
        self.thread.start()

    def receive(self):
        while frame := self.socket.recv(65536):
            self.frames.append(frame)

    def send(self, frame):
        self.socket.sendto(frame, self.switch)

    def close(self):
        """The thread first: else it might still read the descriptor's next socket, which is another guest's."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.socket.close()


class Bump(netns.Inside):
    def __init__(self, ports, *arguments, namespace=None):
        words = [word for port in ports for word in ("--port", port)]
        self.namespace = namespace
        super().__init__(namespace, "bump", "--listen", "127.0.0.1:0", *words, *arguments)
        self.address = self.wait_line(self.out, "listening ").split()[1]

    def status(self):
        return netns.status(self.namespace, self.address)

    def received(self):
        return self.status()["counters"]["packets_received"]


class RecordedHosts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.state = os.path.join(folder.name, "state")
        self.guests = [Guest(folder.name, number) for number in range(WORKERS)]
        for guest in self.guests:
            self.addCleanup(guest.close)

    def start(self, *arguments):
        bump = Bump([guest.port for guest in self.guests], "--state", self.state, *arguments)
        self.addCleanup(lambda: bump.__exit__())
        return bump

    def introduce(self, firsts):
        """Afterwards the bridge knows where everybody is."""
        for guest in self.guests:
            guest.frames.clear()
        for guest, frame in zip(self.guests, firsts):
            guest.send(hello(frame))
        cli.until(lambda: all(len(guest.frames) == WORKERS - 1 for guest in self.guests), LIMIT, "broadcasts reach everybody")
        for guest in self.guests:
            guest.frames.clear()

    def test_a_ring_is_summed_and_what_it_was_is_remembered(self):
        sent, expected = [], [[] for _ in range(WORKERS)]
        for link in range(WORKERS):
            for time, frame in frames_of(f"ring3_sum.link{link}"):
                if source(frame) == link:
                    sent.append((time, link, frame))
                else:
                    expected[link].append(frame)
        sent.sort()
        firsts = [next(frame for _, link, frame in sent if link == worker) for worker in range(WORKERS)]

        bump = self.start("--ring", RING, "--hosts", HOSTS)
        self.introduce(firsts)
        for _, link, frame in sent:
            self.guests[link].send(frame)
        cli.until(lambda: all(len(guest.frames) >= len(frames) for guest, frames in zip(self.guests, expected)), LIMIT,
                  "as many frames as were recorded")
        for guest, frames in zip(self.guests, expected):
            self.assertEqual(sorted(guest.frames), sorted(frames))
            self.assertTrue(all(scapy.icrc_is_right(scapy.roce(frame)) for frame in guest.frames))
        status = bump.status()
        ring = status["jobs"][0]
        self.assertEqual((ring["job"], ring["state"], ring["joined"]), ("ring 0", "running", [0, 1, 2]))
        self.assertEqual(ring["counters"]["sums"], 64)
        self.assertEqual(ring["counters"]["contributions"], 192)
        self.assertEqual(status["counters"]["frames_flooded"], WORKERS)
        self.assertEqual({name: count for counters in (status["counters"], ring["counters"])
                          for name, count in counters.items() if "dropped" in name and count != 0}, {})
        with open(self.state) as file:
            known = sorted(line.split() for line in file if not line.startswith("#"))
        self.assertEqual([words[:2] for words in known],
                         [["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.3"], ["10.0.0.3", "10.0.0.1"]])

        bump.signal(signal.SIGKILL)
        bump.wait(LIMIT)
        bump = self.start("--ring", RING, "--hosts", HOSTS)
        self.assertTrue(any("3 gradient connections were restored" in line for line in bump.err), bump.err)
        self.assertEqual(len(known), WORKERS)
        self.introduce(firsts)
        late = [(link, frame) for _, link, frame in sent if frame[42] in (0x07, 0x09)]  # MIDDLE and LAST
        for link, frame in late:
            self.guests[link].send(frame)
        cli.until(lambda: bump.received() == WORKERS + len(late), LIMIT, "all are received")
        self.assertEqual([frame for guest in self.guests for frame in guest.frames], [])
        self.assertEqual(bump.status()["counters"]["dropped_roce_known"], len(late))
        bump.signal(signal.SIGTERM)
        self.assertEqual(bump.wait(LIMIT), 0)
        self.assertIn(f"{WORKERS + len(late)} frames received, {WORKERS * (WORKERS - 1)} sent, 0 packets summed, "
                      f"{len(late)} frames dropped", bump.err[-1])

    def test_a_ring_that_does_not_fit_its_hosts_is_not_summed_and_says_why(self):
        frames = sorted((time, link, frame) for link in range(WORKERS) for time, frame in frames_of(f"ring3_sum.link{link}")
                        if source(frame) == link)
        firsts = [next(frame for _, link, frame in frames if link == worker) for worker in range(WORKERS)]
        # The first packets of gradients, and no more: what follows them is told by nothing.
        begins = [(link, frame) for _, link, frame in frames if is_gradient(frame) and frame[42] == 0x06]
        for changes, hosts, said in (({"ranks": 2}, HOSTS, "the --ring of this id has fewer ranks"),
                                     ({"id": 1}, HOSTS, "their header names ring 0, and no --ring has this id"),
                                     ({"layout": "netsum"}, HOSTS, "their header has the magic of a layout that no --ring has"),
                                     ({}, "10.0.0.1,10.0.0.2", "--hosts does not name both"),
                                     ({"window": 1}, HOSTS, "more messages in flight than window=1")):
            with self.subTest(changes=changes, hosts=hosts):
                fields = dict(field.split("=") for field in RING.split(",")) | changes
                words = ",".join(f"{key}={value}" for key, value in fields.items())
                bump = self.start("--ring", words, "--hosts", hosts)
                self.introduce(firsts)
                for link, frame in begins:
                    self.guests[link].send(frame)
                cli.until(lambda: bump.received() == WORKERS + len(begins), LIMIT, "all are received")
                cli.until(lambda: any(said in line for line in bump.err), LIMIT, said)
                if "window" not in changes:
                    self.assertEqual([frame for guest in self.guests for frame in guest.frames], [])
                table = cli.checked(cli.run("status", "--switch", bump.address)).stdout
                self.assertRegex(table, "dropped_early=" if "window" in changes else "dropped_roce_unmatched=")
                bump.signal(signal.SIGTERM)
                self.assertEqual(bump.wait(LIMIT), 0)
                os.unlink(self.state)

    def test_a_stall_says_who_is_missing(self):
        frames = sorted((time, link, frame) for link in range(WORKERS) for time, frame in frames_of(f"ring3_sum.link{link}")
                        if source(frame) == link)
        firsts = [next(frame for _, link, frame in frames if link == worker) for worker in range(WORKERS)]
        bump = self.start("--ring", RING, "--hosts", HOSTS)
        self.introduce(firsts)
        for _, link, frame in frames:
            if link != 2:
                self.guests[link].send(frame)
        cli.until(lambda: any("ring 0 stalls: packet 0 of message 0 waits for ranks 2 (not connected)" in line
                              for line in bump.err), LIMIT, "the stall is said")
        for rank in range(2):
            self.assertTrue(any(f"ring 0: rank {rank} sends from 10.0.0.{rank + 1}" in line for line in bump.err), bump.err)

    def test_what_are_no_gradients_leaves_as_it_came(self):
        bump = self.start("--ring", RING, "--hosts", HOSTS)
        exchanges = {name: [frame for _, frame in frames_of(name)]
                     for name in ("rc_write", "rc_write_imm_wrap", "rc_write_imm_pad", "rc_send_imm", "rc_read", "uc_write_imm")}
        ends = [next(frame for frame in exchanges["rc_write"] if source(frame) == end) for end in range(2)]
        self.introduce(ends + [bytes(6) + bytes([0x52, 0x54, 0, 0, 0, 3])])
        for name, frames in exchanges.items():
            for guest in self.guests:
                guest.frames.clear()
            for frame in frames:
                self.guests[source(frame)].send(frame)
            expected = [[frame for frame in frames if source(frame) != end] for end in range(2)] + [[]]
            cli.until(lambda: sum(len(guest.frames) for guest in self.guests) >= len(frames), LIMIT, "as many as were sent")
            self.assertEqual([guest.frames for guest in self.guests], expected, name)
        status = bump.status()
        self.assertEqual(status["jobs"][0]["counters"]["packets"], 0)
        self.assertEqual(status["counters"]["roce_passed"], sum(map(len, exchanges.values())))

    def test_a_state_that_cannot_be_kept_is_an_error(self):
        with open(self.state, "w") as file:
            file.write("# a line for readers\n10.0.0.1 10.0.0.2 17\nnonsense\n")
        folder = os.path.join(os.path.dirname(self.state), "folder")
        os.mkdir(folder)
        for path, code, words in ((self.state, 2, "line 3"), ("/dev/null/state", 1, "Not a directory"), (folder, 1, "directory")):
            with self.subTest(path=path):
                result = cli.run("bump", "--state", path, "--ring", "ranks=2", "--hosts", HOSTS,
                                 *[word for guest in self.guests for word in ("--port", guest.port)])
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertRegex(result.stderr, r"(?m)^netsum: [^\n]*" + words)

    def test_bad_usage_is_one_line_and_2(self):
        two = ["--port", self.guests[0].port, "--port", self.guests[1].port, "--hosts", HOSTS]
        for words, said in (([], "two ports"),
                            (two[:2], "two ports"),
                            (two[:2] * 2, "twice"),
                            ([*two[:4], "--ring", "ranks=2"], "--ring requires --hosts"),
                            ([*two[:4], "--hosts", "10.0.0.1,somebody"], "'somebody' in --hosts"),
                            ([*two, "--ring", "ranks=2,mtu=1000"], "MTU 1000 is not a path MTU"),
                            (["--port", "nothing:x", *two], "'nothing:x' is not a port"),
                            (["--port", "qemu:x", *two], "'qemu:x' is not a port"),
                            ([*two, "--ring", "ranks=2,layout=x"], "unknown layout 'x'"),
                            ([*two, "--ring", "id=0"], "ranks=N"),
                            ([*two, "--ring", "ranks=2", "--ring", "ranks=3"], "give each its own id="),
                            ([*two, "--threads", 2], "can be served by one thread only"),
                            ([*two, "--threads", 0], "--threads"),
                            (["--one-arm"], "requires a port at the switch"),
                            ([*two[:2], "--one-arm"], "needs an Ethernet interface"),
                            ([*two, "--racks"], "--racks requires --listen"),
                            ([*two, "--switch-parent", "a:1=b:2"], "needs --racks"),
                            ([*two, "--daemon-token-file", "x"], "needs --racks"),
                            ([*two, "--loss", 0.1], "unknown flag '--loss'"),
                            ([*two, "--listen", "nonsense"], "nonsense")):
            with self.subTest(words=words):
                result = cli.run("bump", *words)
                self.assertIn(result.returncode, (2, 1) if "nonsense" in words else (2,), result.stderr)
                lines = [line for line in result.stderr.splitlines() if line.startswith("netsum: ")]
                self.assertEqual(len(lines), 1, result.stderr)
                self.assertIn(said, lines[0])
        for words in (["--protocol", "bogus"], two, ["--ring", "ranks=2"], ["--hosts", HOSTS]):
            self.assertEqual(cli.run("switch", *words).returncode, 2)

    def test_settings_may_be_lists(self):
        with open(self.state, "w") as file:
            file.write('[bump]\nport = ["qemu:./a,./b", "eth:c"]\nring = ["ranks=2,id=1", "ranks=3"]\n')
        printed = '\nport = ["qemu:./a,./b", "eth:c"]  # '
        for words, env in ((["--config", self.state], {}), ([], {"NETSUM_PORT": "qemu:./a,./b eth:c"}),
                           (["--port", "qemu:./a,./b", "--port", "eth:c"], {})):
            self.assertIn(printed, cli.checked(cli.run("bump", "--print-config", *words, env=env)).stdout)

    def test_others_cannot_join(self):
        bump = self.start()
        result = cli.run("bench", "all-reduce", "--switch", bump.address, "--rank", 0, "--world-size", 1, "--elements", 256)
        self.assertEqual(result.returncode, 3, result.stderr)
        result = cli.run("bench", "all-reduce", "--switch", bump.address, "--rank", 0, "--world-size", 1, "--elements", 256,
                         "--protocol", "netreduce")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("a bump in the wire: only ranks with RDMA hardware (verbs) join", result.stderr)
        self.assertEqual(bump.status()["jobs"], [])

    def test_rdma_hardware_that_is_not_there(self):
        bump = self.start()
        one = ["bench", "all-reduce", "--protocol", "netreduce", "--verbs", "nothing", "--elements", 256]
        joins = ["--switch", bump.address, "--rank", 0, "--world-size", 1]
        for words, code, said in ((one, 2, "needs --switch"),
                                  (one + joins, 2, "no RDMA device 'nothing' on this host"),
                                  (one + joins + ["--loss", 0.1], 2, "losses cannot be injected"),
                                  (one + joins + ["--verbs-retries", 8], 2, "--verbs-retries"),
                                  (one + joins + ["--verbs-gid-index", "x"], 2, "--verbs-gid-index is first or a number"),
                                  (["bench", "all-reduce", "--verbs-port", 2], 2, "--verbs-port needs --verbs DEVICE")):
            with self.subTest(words=words):
                result = cli.run(*words)
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn(said, result.stderr)


class Cable(unittest.TestCase):
    """To living hosts it is to be a cable."""

    def setUp(self):
        self.bump = Bump([f"eth:{port}" for port in wire.PORTS.values()], "--ring", RING, "--hosts", HOSTS, namespace=wire.MIDDLE)
        self.addCleanup(lambda: self.bump.__exit__())

    def expect_no_loss(self):
        counters = self.bump.status()["counters"]
        self.assertEqual({name: count for name, count in counters.items() if "dropped" in name and count != 0}, {})
        self.assertEqual(counters["port0_frames_received"], counters["port1_frames_sent"])
        self.assertEqual(counters["port1_frames_received"], counters["port0_frames_sent"])
        return counters

    def test_ping(self):
        for version in wire.FAMILIES:
            for length in (0, 56, 1400, 60_000):  # the last in fragments
                with self.subTest(version=version, length=length):
                    self.assertTrue(wire.echo(version, length))
        self.expect_no_loss()

    def test_tcp(self):
        data = random.Random(2).randbytes(10_000_000)
        for tags, (_, network) in wire.DEVICES.items():
            for version in wire.FAMILIES:
                with self.subTest(tags=tags, version=version):
                    self.assertEqual(wire.tcp(data, wire.LEFT, wire.RIGHT, version, network), hashlib.sha256(data).digest())
        counters = self.bump.status()["counters"]  # the hosts' offloads were on, or this showed nothing
        self.assertGreater(counters["wire_bytes_received"] / counters["packets_received"], 1600)

    def test_udp(self):
        datagrams = [random.Random(length).randbytes(length) for length in [1, 17, 1472, 1473, 9000, 65507] * 5]
        with wire.open_socket(wire.RIGHT, "IPv4", socket.SOCK_DGRAM) as there, \
             wire.open_socket(wire.LEFT, "IPv4", socket.SOCK_DGRAM) as here:
            there.setsockopt(socket.SOL_SOCKET, wire.SO_RCVBUFFORCE, 16 << 20)
            there.bind((wire.address(wire.RIGHT, "IPv4"), 0))
            here.connect(there.getsockname())
            for datagram in datagrams:
                here.send(datagram)
            self.assertEqual([there.recv(65536) for _ in datagrams], datagrams)
        self.expect_no_loss()

    def test_foreign_roce_is_left_alone(self):
        hosts = []
        for host in (wire.LEFT, wire.RIGHT):
            opened = wire.open_socket(host, "IPv4", socket.SOCK_DGRAM)  # in the host's namespace, where AF_PACKET goes next
            opened.close()
            made = netns.open_socket(host, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            made.bind(("eth0", 3))
            made.settimeout(LIMIT)
            self.addCleanup(made.close)
            hosts.append(made)
        for name in ("rc_write", "rc_write_imm_wrap", "rc_read", "rc_send_rnr", "uc_write"):
            frames = [frame for _, frame in frames_of(name)]
            for frame in frames:
                sender = source(frame)
                hosts[sender].send(frame)
                while True:  # a packet socket sees what its own host says, and what it sends
                    arrived, details = hosts[1 - sender].recvfrom(65536)
                    if arrived[6:12] == frame[6:12] and details[2] != socket.PACKET_OUTGOING:
                        break
                self.assertEqual(arrived, frame, name)
        counters = self.expect_no_loss()
        self.assertGreater(counters["roce_passed"], 0)

    def test_down_is_said(self):
        with netns.Inside(wire.MIDDLE, "bump", "--port", "eth:wire0", "--port", "eth:nowhere") as process:
            self.assertEqual(process.wait(LIMIT), 2)
            self.assertEqual(process.error_lines(), ["netsum: port eth:nowhere: no such interface here (ip link shows those "
                                                     "of this network namespace)"])


def main():
    global RECORDINGS
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    cli.NETSUM, RECORDINGS = os.path.abspath(sys.argv.pop(1)), os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends a test ends its processes too
    refusal = netns.refusal()
    if refusal:
        global Cable
        del Cable
    try:
        if not refusal:
            wire.build()
        passed = unittest.main(module="__main__", verbosity=2, exit=False).result.wasSuccessful()
    finally:
        if not refusal:
            wire.take_down()
    if refusal:
        print(f"skipped: network namespaces are not permitted here: {refusal}", file=sys.stderr)
    sys.exit(1 if not passed else netns.SKIPPED if refusal else 0)


if __name__ == "__main__":
    main()
