#!/usr/bin/python3
"""Past the kernel's network by DPDK (--data-path dpdk): the aggregator and each rank are processes with ports of their own, which
memif joins in memory. Their control channel is the kernel's. As root, and as nobody.

usage: dpdk.py NETSUM [unittest arguments]

Exit code 77: netsum was built without libdpdk.
"""
import itertools
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import cli_support as cli
import netns_support as netns

RANKS = 3
NETWORK = "10.94.0"
OWN = f"{NETWORK}.1"
FLAGS = ("--warmup", 0, "--json", "--connect-deadline", 30)
MANY = ("--elements", 1_000_003, "--iterations", 2)
FEW = ("--elements", 100_003, "--iterations", 2)
EAL = "--no-huge --no-shconf --no-pci --no-telemetry -m 64"
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all", "--inh-caps", "-all")
WIRES = itertools.count()


def flags(ports, address):
    return ("--data-path", "dpdk", "--dpdk-args", f"{EAL} {ports}", "--dpdk-address", f"{address}/24")


class Wires:
    """From the aggregator to each rank; their names are new each time."""

    def __init__(self, count=RANKS):
        self.names = [f"netsum-{os.getpid()}-{next(WIRES)}" for _ in range(count)]

    def at_aggregator(self):
        ports = " ".join(f"--vdev net_memif{i},role=server,id={i},socket={name}" for i, name in enumerate(self.names))
        return flags(ports, OWN)

    def at_rank(self, rank):
        return flags(f"--vdev net_memif0,role=client,id={rank},socket={self.names[rank]}", f"{NETWORK}.{10 + rank}")


class Running(cli.Process):
    """A running netsum, as somebody."""

    def __init__(self, who, *arguments, env=None):
        words = [*who, cli.NETSUM, *map(str, arguments)]
        super().__init__(*words[1:], program=words[0], env=env)


class Daemon(Running):
    def __init__(self, command, *arguments, who=(), env=None):
        super().__init__(who, command, "--listen", "127.0.0.1:0", *arguments, env=env)
        self.address = self.wait_line(self.out, "listening ").split()[1]


def rank_of(aggregator, wires, rank, *more, at="--switch", who=()):
    return Running(who, "bench", "all-reduce", at, aggregator.address, "--rank", rank, "--world-size", RANKS, *FLAGS, *wires.at_rank(rank), *more)


class Job(netns.Ranks):
    def __init__(self, aggregator, wires, *more, at="--switch", who=()):
        super().__init__(rank_of(aggregator, wires, rank, *more, at=at, who=who) for rank in range(RANKS))


def expected(*more):
    return cli.bench("--workers", RANKS, "--transport", "udp", "--warmup", 0, *more)["result_hash"]


class Sums(unittest.TestCase):
    def check(self, *job, switch=(), who=(), command="switch", at="--switch"):
        wires = Wires()
        with Daemon(command, *wires.at_aggregator(), *switch, who=who) as aggregator, Job(aggregator, wires, *job, at=at, who=who) as ranks:
            self.assertEqual(expected(*job), ranks.hash())
        return aggregator, ranks

    def test_those_of_sockets(self):
        aggregator, _ = self.check(*MANY)
        self.assertTrue(any(f"{OWN}/24: DPDK on net_memif0, net_memif1, net_memif2" in line for line in aggregator.err), aggregator.err)

    def test_with_losses(self):
        self.check(*MANY, "--loss", 0.01, switch=("--loss", 0.01))

    def test_as_nobody(self):
        self.check(*FEW, who=NOBODY)

    def test_more_lanes_than_queues(self):
        self.check(*FEW, "--threads", 2, switch=("--threads", 2))

    def test_the_chip_profile(self):
        self.check(*FEW, "--profile", "chip", switch=("--profile", "chip", "--allow-fcs-only"))

    def test_netreduce(self):
        self.check(*FEW, "--protocol", "netreduce")

    def test_atp_without_a_switch(self):
        self.check(*FEW, "--protocol", "atp", command="ps", at="--ps")

    def test_one_job_after_another(self):
        """Neighbours and queues are there already."""
        wires = Wires()
        wanted = expected(*FEW)
        with Daemon("switch", *wires.at_aggregator()) as aggregator:
            for _ in range(2):
                with Job(aggregator, wires, *FEW) as ranks:
                    self.assertEqual(wanted, ranks.hash())


class Ends(unittest.TestCase):
    def test_killed(self):
        """Nothing of a switch is left that keeps the next one from its wires."""
        wires = Wires()
        with Daemon("switch", *wires.at_aggregator()) as aggregator, \
             Job(aggregator, wires, "--elements", 1000, "--iterations", 1_000_000, "--deadline", 3) as ranks:
            cli.until(lambda: any(job["counters"].get("chunks", 0) > 100 for job in status(aggregator)["jobs"]), 20, "chunks")
            aggregator.signal(signal.SIGKILL)
            self.assertNotIn(0, ranks.codes())
        wanted = expected(*FEW)
        with Daemon("switch", *wires.at_aggregator()) as aggregator, Job(aggregator, wires, *FEW) as ranks:
            self.assertEqual(wanted, ranks.hash())


class Recoveries(unittest.TestCase):
    JOB = ("--elements", 100_003, "--iterations", 100)

    def setUp(self):
        """A job in the middle of its work."""
        self.wires, self.job, self.wanted = Wires(), (*self.JOB, "--recovery", 60), expected(*self.JOB)
        self.aggregator = self.enterContext(Daemon("switch", *self.wires.at_aggregator()))
        self.ranks = self.enterContext(Job(self.aggregator, self.wires, *self.job))
        cli.until(lambda: any(each["counters"].get("chunks", 0) > 1000 for each in status(self.aggregator)["jobs"]), 20, "chunks")

    def kill(self, process):
        process.signal(signal.SIGKILL)
        process.wait(20)

    def test_a_restarted_rank_has_the_wire_of_the_killed_one(self):
        with self.ranks.ranks[1] as victim:
            self.kill(victim)
        self.ranks.ranks[1] = rank_of(self.aggregator, self.wires, 1, *self.job)
        self.assertEqual(self.wanted, self.ranks.hash())

    def test_a_restarted_switch_has_the_wires_of_the_killed_one(self):
        self.kill(self.aggregator)
        with Running((), "switch", "--listen", self.aggregator.address, *self.wires.at_aggregator()):
            self.assertEqual(self.wanted, self.ranks.hash())


def status(aggregator):
    return cli.json.loads(cli.checked(cli.run("status", "--switch", aggregator.address, "--json")).stdout)


def checksum(words):
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    total = (total & 0xffff) + (total >> 16)
    return ~((total & 0xffff) + (total >> 16)) & 0xffff


CARD = bytes.fromhex("020000000909")


def question(about):
    return b"\xff" * 6 + CARD + b"\x08\x06" + struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 1, CARD, socket.inet_aton(f"{NETWORK}.9"), bytes(6),
                                                          socket.inet_aton(about))


def datagram(to, port, data):
    ip = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(data), 0, 0, 64, 17, 0, socket.inet_aton(f"{NETWORK}.9"), socket.inet_aton(to)))
    struct.pack_into("!H", ip, 10, checksum(ip))
    return b"\xff" * 6 + CARD + b"\x08\x00" + ip + struct.pack("!HHHH", 4000, port, 8 + len(data), 0) + data


def write_pcap(path, frames):
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)


def read_pcap(path):
    with open(path, "rb") as file:
        data, frames = file.read()[24:], []
    while data:
        length = struct.unpack("<IIII", data[:16])[2]
        frames.append(data[16:16 + length])
        data = data[16 + length:]
    return frames


class Strangers(unittest.TestCase):
    def test_are_answered_or_dropped(self):
        """A recording is what a port receives."""
        rng = random.Random(1)
        port, good = 7170 + os.getpid() % 10000, 500
        frames = [question(OWN), question(f"{NETWORK}.2")]
        for _ in range(good):
            frames.append(datagram(OWN, port, rng.randbytes(rng.randrange(1, 1400))))
            other = bytearray(datagram(rng.choice((OWN, f"{NETWORK}.2")), rng.randrange(1, 7000), rng.randbytes(rng.randrange(1, 100))))
            other[rng.randrange(len(other))] = rng.randrange(256)
            frames.append(bytes(other[:rng.randrange(15, len(other))]))
        with tempfile.TemporaryDirectory() as folder:
            write_pcap(f"{folder}/in.pcap", frames)
            ports = f"--vdev net_pcap0,rx_pcap={folder}/in.pcap,tx_pcap={folder}/out.pcap"
            with Running((), "switch", "--listen", f"127.0.0.1:{port}", *flags(ports, OWN)) as aggregator:
                aggregator.address = aggregator.wait_line(aggregator.out, "listening ").split()[1]
                cli.until(lambda: status(aggregator)["counters"]["packets_received"] >= good, 20, "the recording's datagrams")
                self.assertEqual(good, status(aggregator)["counters"]["packets_received"])
                aggregator.signal(signal.SIGTERM)
                self.assertEqual(0, aggregator.wait(20), aggregator.err)
            answers = [frame for frame in read_pcap(f"{folder}/out.pcap") if frame[12:14] == b"\x08\x06"]
        self.assertEqual(1, len(answers))
        self.assertEqual((CARD, b"\x00\x02", socket.inet_aton(OWN)), (answers[0][:6], answers[0][20:22], answers[0][28:32]))


class Kernels(unittest.TestCase):
    """The ranks have sockets: their kernel's ARP, IP and UDP at the other end of a cable."""

    def test_may_be_at_the_other_end(self):
        error = netns.refusal()
        if error:
            self.skipTest(f"network namespaces are not permitted here: {error}")
        name = f"dpdk{os.getpid()}"
        try:
            netns.add(name)
            netns.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            netns.ip("link", "set", name, "addrgenmode", "none", "up")
            netns.ip("-n", name, "link", "set", "eth0", "up")
            netns.address(name, "eth0", f"{NETWORK}.2/24")
            netns.ip("-n", name, "route", "add", "default", "via", f"{NETWORK}.3")
            netns.sum_before_sending(name, "eth0")
            self.check(name)
        finally:
            netns.remove(name)
            subprocess.run(["ip", "link", "del", name], capture_output=True)

    def check(self, name):
        # The control channel: by another cable.
        netns.ip("link", "add", name + "c", "type", "veth", "peer", "name", "eth1", "netns", name)
        try:
            netns.ip("addr", "add", "10.95.0.1/24", "dev", name + "c")
            netns.ip("link", "set", name + "c", "up")
            netns.address(name, "eth1", "10.95.0.2/24")
            netns.ip("-n", name, "link", "set", "eth1", "up")
            with Running((), "switch", "--listen", "10.95.0.1:7170", *flags(f"--vdev net_af_packet0,iface={name}", OWN)) as aggregator:
                aggregator.wait_line(aggregator.out, "listening ")
                with netns.Ranks(netns.Inside(name, "bench", "all-reduce", "--switch", "10.95.0.1:7170", "--rank", rank,
                                         "--world-size", RANKS, *FLAGS, *FEW) for rank in range(RANKS)) as ranks:
                    self.assertEqual(expected(*FEW), ranks.hash())
        finally:
            subprocess.run(["ip", "link", "del", name + "c"], capture_output=True)


class Refusals(unittest.TestCase):
    def assert_refused(self, text, *arguments, code=1, env=None, who=()):
        words = [*who, cli.NETSUM, *map(str, arguments)]
        result = subprocess.run(words, capture_output=True, text=True, timeout=30, env=cli.environment(env), check=False)
        errors = [line for line in result.stderr.splitlines() if line.startswith("netsum:")]
        self.assertEqual((code, 1), (result.returncode, len(errors)), result.stderr)
        self.assertIn(text, errors[0])

    def test_one_line_says_why(self):
        listen = ("switch", "--listen", "127.0.0.1:0")
        wires = Wires()
        start = (*listen, *wires.at_aggregator())
        self.assert_refused("/nowhere does not exist", *start, env={"NETSUM_DPDK_PLUGIN": "/nowhere"})
        self.assert_refused("cannot load the DPDK plugin", *start, env={"NETSUM_DPDK_PLUGIN": os.path.abspath(__file__)})
        self.assert_refused("requires --dpdk-address", *listen, "--data-path", "dpdk", code=2)
        self.assert_refused("require --data-path dpdk", *listen, "--dpdk-address", f"{OWN}/24", code=2)
        self.assert_refused("ADDRESS/BITS", *listen, "--data-path", "dpdk", "--dpdk-address", OWN, code=2)
        self.assert_refused("no port was found", *listen, *flags("", OWN))
        self.assert_refused("EAL initialization failed", *listen, *flags("--vdev net_nothing0", OWN))
        self.assert_refused("--multicast does not work with --data-path dpdk", *start, "--multicast", "239.1.1.1:5000", code=2)
        self.assert_refused("--data-plane xdp requires --data-path sockets", *start, "--data-plane", "xdp", "--interface", "eth0", "--allow-fcs-only", code=2)
        huge = ("--data-path", "dpdk", "--dpdk-args", "--no-shconf --no-pci", "--dpdk-address", f"{OWN}/24")
        self.assert_refused("EAL initialization failed", *listen, *huge, who=NOBODY)

    def test_a_rank_without_an_aggregator(self):
        wires = Wires()
        with Daemon("switch", *wires.at_aggregator()) as aggregator:
            rank = ("bench", "all-reduce", "--switch", aggregator.address, "--rank", 0, "--world-size", 2, "--elements", 100)
            self.assert_refused("net_memif0", *rank, *Wires().at_rank(0), code=3)


def skip_without_plugin():
    if not os.path.exists(os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "../lib/libnetsum_dpdk.so")):
        print("skipped: netsum was built without libdpdk", file=sys.stderr)
        sys.exit(netns.SKIPPED)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        skip_without_plugin()
    cli.main()
