#!/usr/bin/python3
"""The switch inside the kernel (--data-plane xdp): each rank is a host of its own (a network namespace) behind a port of its switch's,
and another network has an aggregator in software, where a job may go too.

usage: netns_xdp.py NETSUM [unittest arguments | --measure]

Exit code 77: network namespaces or BPF programs are not permitted here.
"""
import contextlib
import ctypes
import os
import random
import signal
import socket
import statistics
import struct
import sys
import unittest

import cli_support as cli
import netns_support as netns

RANKS = 3
PREFIX = f"xdp{os.getpid()}"
SWITCH, OTHER = PREFIX + "-switch", PREFIX + "-other"
HOSTS = [f"{PREFIX}-rank{rank}" for rank in range(RANKS)]
PORTS = [f"port{rank}" for rank in range(RANKS)]
SHARED = "shared"  # of the switch, too: on a network with the software aggregator, and all ranks
XDP, SOFTWARE = "10.90.0.1:7170", "10.91.0.1:7170"
CHIP = ("--profile", "chip", "--allow-fcs-only")
FLAGS = ("--warmup", 0, "--json", "--connect-deadline", 30)
TWICE = ("--iterations", 2)
MANY = ("--elements", 1_000_003)
DATA = 0xc1  # the first byte of the profile's packets


def build():
    netns.add(SWITCH, OTHER, *HOSTS)
    netns.address(SWITCH, "lo", "10.90.0.1/32")
    netns.bridge(OTHER)
    netns.address(OTHER, "bridge0", "10.91.0.1/24")
    for rank in range(RANKS):
        connect(rank)
    for number, (host, name) in enumerate(((SWITCH, SHARED), *((host, "eth1") for host in HOSTS))):
        netns.bridged(OTHER, f"bridged{number}", host, name)
        netns.address(host, name, f"10.91.0.{100 + number}/24")
    netns.poll_for_frames(OTHER, "bridged0")
    # The ranks' sockets of a tree have one address, that towards their switch: the aggregator answers by way of it.
    netns.ip("-n", OTHER, "route", "add", "10.90.0.0/24", "via", "10.91.0.100")
    cli.checked(netns.run(SWITCH, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"))


def connect(rank):
    """A wire from a port of the switch's to the rank's host."""
    host, port = HOSTS[rank], PORTS[rank]
    netns.wire(SWITCH, port, host)
    netns.poll_for_frames(host, "eth0")
    netns.address(host, "eth0", f"10.90.0.{2 + rank}/24")
    netns.ip("-n", SWITCH, "route", "add", f"10.90.0.{2 + rank}/32", "dev", port, "src", "10.90.0.1")


def destroy():
    netns.remove(SWITCH, OTHER, *HOSTS)


class Switch(netns.Inside):
    def __init__(self, host, address, *arguments):
        self.host, self.address = host, address
        super().__init__(host, "switch", "--listen", address, "--allow-fcs-only", *arguments)
        self.wait_line(self.out, "listening ")

    def status(self):
        return netns.status(self.host, self.address)


def in_kernel(*arguments, interfaces=(*PORTS, SHARED)):
    return Switch(SWITCH, XDP, "--data-plane", "xdp", "--interface", ",".join(interfaces), *arguments)


def in_software():
    return Switch(OTHER, SOFTWARE, "--profile", "chip")


def programs():
    """The switch's interfaces that have an XDP program."""
    return {link["ifname"] for link in netns.links(SWITCH) if "xdp" in link}


def maps_of(process):
    """The numbers of the maps that it holds."""
    found, folder = set(), f"/proc/{process}/fdinfo"
    for descriptor in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, descriptor), encoding="ascii") as file:
            found.update(int(line.split()[1]) for line in file if line.startswith("map_id:"))
    return found


def maps():
    """The numbers of all maps in the kernel, other programs' included."""
    found, attributes = set(), ctypes.create_string_buffer(16)
    syscall, get_next_number = {"x86_64": 321, "aarch64": 280}[os.uname().machine], 12  # bpf(BPF_MAP_GET_NEXT_ID), from a number to the next one
    while ctypes.CDLL(None).syscall(syscall, get_next_number, attributes, len(attributes)) == 0:
        number = struct.unpack_from("I", attributes, 4)[0]
        found.add(number)
        struct.pack_into("II", attributes, 0, number, 0)
    return found


@contextlib.contextmanager
def losses(million, device="eth0"):
    """So many of a million datagrams do not leave the ranks' hosts."""
    table = f"""table netdev loss {{ chain out {{ type filter hook egress device "{device}" priority 0; policy accept;
        ip protocol udp numgen random mod 1000000 < {million} drop
        }}
        }}"""
    for host in HOSTS:
        cli.checked(netns.run(host, "nft", "-f", "-", given=table))
    try:
        yield
    finally:
        for host in HOSTS:
            cli.checked(netns.run(host, "nft", "delete", "table", "netdev", "loss"))


class Job(netns.Ranks):
    """Its ranks, each at its host."""

    def __init__(self, *flags, ranks=RANKS, switch=XDP, hosts=HOSTS):
        super().__init__(netns.Inside(hosts[rank], "bench", "all-reduce", "--switch", switch, "--rank", rank, "--world-size", ranks, *FLAGS, *flags)
                         for rank in range(ranks))


def hash_of(*flags, **more):
    with Job(*flags, *TWICE, **more) as job:
        return job.hash()


class Sums(unittest.TestCase):
    def expected(self, *flags):
        return cli.bench("--workers", RANKS, "--profile", "chip", "--transport", "udp", *TWICE, "--warmup", 0, *flags)["result_hash"]

    def test_those_of_the_software_chip(self):
        expected = self.expected(*MANY)
        with in_kernel() as switch:
            self.assertEqual(set(PORTS) | {SHARED}, programs())
            self.assertEqual(expected, hash_of(*MANY))
            with losses(10_000):
                self.assertEqual(expected, hash_of(*MANY, "--loss", 0.01))
            self.assertEqual([], switch.status()["jobs"])
            self.assertGreater(switch.status()["counters"]["packets_received"], 2 * 2 * RANKS * (1_000_003 // 256))  # of jobs that have ended

    def test_other_types_lanes_and_lengths(self):
        with in_kernel("--threads", 2):
            for flags in (("--dtype", "int32"), ("--packet-elements", 64, "--elements", 20_011), ("--op", "avg")):
                self.assertEqual(self.expected("--threads", 2, *flags), hash_of("--threads", 2, *flags))

    def test_sharded_over_kernel_and_software(self):
        flags = ("--elements", 200_003)
        expected = self.expected(*flags)
        with in_kernel(), in_software():
            self.assertEqual(expected, hash_of(*flags, switch=f"{XDP},{SOFTWARE}"))
            self.assertEqual(expected, hash_of(*flags, "--loss", 0.01, switch=f"{SOFTWARE},{XDP}"))

    def test_a_leaf_below_software(self):
        flags = ("--elements", 200_003)
        expected = self.expected(*flags)
        with in_kernel(), in_software():
            self.assertEqual(expected, hash_of(*flags, "--spine", SOFTWARE))
            with losses(10_000):
                self.assertEqual(expected, hash_of(*flags, "--spine", SOFTWARE, "--loss", 0.01))

    def test_a_group_behind_one_interface(self):
        expected = self.expected("--elements", 200_003)
        address = "10.91.0.100:7170"
        with Switch(SWITCH, address, "--data-plane", "xdp", "--interface", SHARED, "--multicast", "239.1.1.1:5000"):
            self.assertEqual(expected, hash_of("--elements", 200_003, switch=address))

    def test_reports_what_it_counts(self):
        with in_kernel() as switch, Job("--elements", 1000, "--iterations", 100_000) as job:
            def counted():
                jobs = switch.status()["jobs"]
                return jobs and jobs[0]["counters"].get("chunks", 0) > 100 and jobs[0]
            counters = cli.until(counted, 20, "chunks counted")["counters"]
            self.assertGreaterEqual(counters["contributions"], 3 * counters["chunks"] - 3)
            job.ranks[1].signal(signal.SIGSTOP)
            for rank in cli.children_of(job.ranks[1].pid):
                os.kill(rank, signal.SIGSTOP)
            stalled = cli.until(lambda: any(job["stalled"] for job in switch.status()["jobs"]) and switch.status()["jobs"][0]["stalled"],
                                20, "a chunk that waits")
            self.assertEqual([1], stalled[0]["missing"])


def chunks(switch):
    jobs = switch.status()["jobs"]
    return jobs[0]["counters"].get("chunks", 0) if jobs else 0


@contextlib.contextmanager
def running(switch):
    """A job in the kernel, which goes on meanwhile and afterwards."""
    with Job("--elements", 1000, "--iterations", 100_000) as job:
        cli.until(lambda: chunks(switch) > 100, 20, "a job that runs")
        yield job
        before = chunks(switch)
        cli.until(lambda: chunks(switch) > before + 1000, 20, "a job that goes on")


@contextlib.contextmanager
def routed():
    """The ranks' way to the other network is by their switch's host."""
    for rank, host in enumerate(HOSTS):
        netns.ip("-n", host, "route", "add", "10.91.0.1/32", "via", "10.90.0.1", "src", f"10.90.0.{2 + rank}")
    try:
        yield
    finally:
        for host in HOSTS:
            netns.ip("-n", host, "route", "del", "10.91.0.1/32")


class Changes(unittest.TestCase):
    """Of the network, in the middle of a job."""

    def station(self, host, device, station):
        """Gives a device another Ethernet address for the rest of the test, which it announces as a fail-over does."""
        cli.checked(netns.run(host, "sysctl", "-q", "-w", f"net.ipv4.conf.{device}.arp_notify=1"))
        before = netns.links(host, device)[0]["address"]
        netns.ip("-n", host, "link", "set", device, "address", station)
        for each in (SWITCH, *HOSTS):  # after that
            self.addCleanup(netns.ip, "-n", each, "neigh", "flush", "all")
        self.addCleanup(netns.ip, "-n", host, "link", "set", device, "address", before)

    def test_a_rank_has_another_ethernet_address(self):
        with in_kernel() as switch, running(switch):
            self.station(HOSTS[1], "eth0", "02:00:00:00:00:77")

    def test_the_switch_has_another_ethernet_address(self):
        with in_kernel() as switch, running(switch):
            self.station(SWITCH, PORTS[1], "02:00:00:00:00:78")
            netns.ip("-n", HOSTS[1], "neigh", "flush", "dev", "eth0")  # it sends there from now on

    def test_an_address_that_the_host_gets_later(self):
        """Packets of no job are counted where they are taken."""
        packet = bytearray(48 + 256)
        packet[0:2] = DATA, 1
        with Switch(SWITCH, "0.0.0.0:7170", "--data-plane", "xdp", "--interface", ",".join(PORTS)) as switch, \
             netns.open_socket(HOSTS[0], socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            switch.address = XDP
            netns.address(SWITCH, "lo", "10.90.0.9/32")
            self.addCleanup(netns.ip, "-n", SWITCH, "addr", "del", "10.90.0.9/32", "dev", "lo")

            def counted():
                stranger.sendto(packet, ("10.90.0.9", 7170))
                return switch.status()["counters"]["dropped_unknown_job"]
            cli.until(counted, 5, "a packet to the address")


    def interface(self, switch, name):
        return next(each for each in switch.status()["interfaces"] if each["name"] == name)

    def test_an_interface_is_made_again(self):
        with in_kernel() as switch, running(switch):
            self.assertEqual({"name": PORTS[1], "attached": True, "state": "XDP in the driver"}, self.interface(switch, PORTS[1]))
            netns.ip("-n", SWITCH, "link", "del", PORTS[1])
            cli.until(lambda: not self.interface(switch, PORTS[1])["attached"], 5, "an interface that was removed")
            connect(1)
            netns.ip("-n", HOSTS[1], "route", "replace", "10.90.0.1/32", "dev", "eth0")
            cli.until(lambda: self.interface(switch, PORTS[1])["attached"], 5, "an interface that is there again")
        said = [line for line in switch.err if f"interface {PORTS[1]}:" in line]
        self.assertEqual(["XDP in the driver", "it was removed", "XDP in the driver"],
                         [words for line in said for words in ("XDP in the driver", "it was removed") if words in line], said)

    def test_an_interface_is_down_for_a_while(self):
        with in_kernel() as switch, running(switch):
            netns.ip("-n", SWITCH, "link", "set", PORTS[1], "down")
            state = cli.until(lambda: not (now := self.interface(switch, PORTS[1]))["attached"] and now, 5, "an interface that is down")
            self.assertIn("is down", state["state"])
            netns.ip("-n", SWITCH, "link", "set", PORTS[1], "up")
            netns.ip("-n", SWITCH, "route", "add", "10.90.0.3/32", "dev", PORTS[1], "src", "10.90.0.1")

    def test_a_longer_mtu(self):
        """Frames of other traffic have fragments then."""
        with in_kernel() as switch, running(switch):
            for namespace, device in ((SWITCH, PORTS[1]), (HOSTS[1], "eth0")):
                netns.ip("-n", namespace, "link", "set", device, "mtu", 9000)
                self.addCleanup(netns.ip, "-n", namespace, "link", "set", device, "mtu", 1500)
            self.assertTrue(netns.sends_whole(HOSTS[1], (SWITCH, "10.90.0.1"), 8900))
        with in_kernel() as switch, running(switch):
            self.assertTrue(netns.sends_whole(HOSTS[1], (SWITCH, "10.90.0.1"), 8900))


class Bridged(unittest.TestCase):
    """The ranks are on one network, and the switch's host has their ports in a bridge of its own."""
    ADDRESS = "10.93.0.1:7170"
    FLAGS = ("--elements", 200_003)

    @classmethod
    def setUpClass(cls):
        netns.bridge(SWITCH)
        netns.address(SWITCH, "bridge0", "10.93.0.1/24")
        for rank, host in enumerate(HOSTS):
            netns.bridged(SWITCH, f"member{rank}", host, "eth2")
            netns.poll_for_frames(host, "eth2")
            netns.address(host, "eth2", f"10.93.0.{2 + rank}/24")
        cls.expected = cli.bench("--workers", RANKS, "--profile", "chip", "--transport", "udp", *TWICE, "--warmup", 0, *cls.FLAGS)["result_hash"]

    @classmethod
    def tearDownClass(cls):
        for rank in range(RANKS):
            netns.ip("-n", SWITCH, "link", "del", f"member{rank}")
        netns.ip("-n", SWITCH, "link", "del", "bridge0")

    def switch(self, interfaces, *arguments):
        return Switch(SWITCH, self.ADDRESS, "--data-plane", "xdp", "--interface", interfaces, *arguments)

    def refusal(self, switch):
        with switch, Job("--elements", 100, switch=self.ADDRESS) as job:
            self.assertNotIn(0, job.codes())
            return " ".join(job.ranks[0].error_lines())

    def test_at_the_ports(self):
        with self.switch("member0,member1,member2"):
            self.assertEqual(self.expected, hash_of(*self.FLAGS, switch=self.ADDRESS))
            with losses(10_000, "eth2"):
                self.assertEqual(self.expected, hash_of(*self.FLAGS, switch=self.ADDRESS))

    def test_the_ports_are_named_where_they_must_be(self):
        ports = "member0,member1,member2"
        self.assertIn(f"which --interface does not name; its ports are {ports}: name them", self.refusal(self.switch(PORTS[0])))
        self.assertIn(f"its ports are {ports}: name them", self.refusal(self.switch("bridge0")))

    def test_a_rank_that_hears_nothing_from_a_driver(self):
        netns.poll_for_frames(HOSTS[1], "eth2", False)
        self.addCleanup(netns.poll_for_frames, HOSTS[1], "eth2")
        self.assertIn("results cannot leave by member1", self.refusal(self.switch("member0,member1,member2")))

    def test_packets_that_the_kernel_merged(self):
        """A bridge has no driver: the program runs in generic mode, where the ranks' packets were never cut."""
        with self.switch("bridge0", "--multicast", "239.1.1.2:5000") as switch:
            cli.until(lambda: switch.status()["interfaces"], 5, "the interface")
            self.assertIn("generic mode", switch.status()["interfaces"][0]["state"])
            with Job("--elements", 1_000_003, "--deadline", 30, switch=self.ADDRESS) as job:
                self.assertNotIn(0, job.codes(20))
                for rank in job.ranks:
                    self.assertIn("the kernel of the switch's host merges the job's packets before the XDP program", " ".join(rank.error_lines()))
            for host in HOSTS:
                netns.cut_before_sending(host, "eth2")
            self.assertEqual(self.expected, hash_of(*self.FLAGS, switch=self.ADDRESS))

    def test_a_vlan(self):
        """A part of the ranks' network, at a port and at its own interface."""
        for namespace, device, address in ((SWITCH, "member0", "10.94.0.1/24"), *((host, "eth2", f"10.94.0.{2 + rank}/24") for rank, host in enumerate(HOSTS[:1]))):
            try:
                netns.ip("-n", namespace, "link", "add", "link", device, "name", "tagged", "type", "vlan", "id", 5)
            except OSError as error:
                self.skipTest(f"this kernel has no VLANs: {error}")
            self.addCleanup(netns.ip, "-n", namespace, "link", "del", "tagged")
            netns.ip("-n", namespace, "link", "set", "tagged", "up")
            netns.address(namespace, "tagged", address)
        address = "10.94.0.1:7170"
        wanted = cli.bench("--workers", 1, "--profile", "chip", "--transport", "udp", *TWICE, "--warmup", 0, "--elements", 20_011)["result_hash"]
        with Switch(SWITCH, address, "--data-plane", "xdp", "--interface", "member0") as switch:
            cli.until(lambda: any("frames of VLAN tagged go to the kernel: for ranks there name it in --interface, too" in line for line in switch.err), 5, "a line")
            with Job("--elements", 100, switch=address, ranks=1) as job:
                self.assertNotIn(0, job.codes())
        with Switch(SWITCH, address, "--data-plane", "xdp", "--interface", "tagged"):
            self.assertEqual(wanted, hash_of("--elements", 20_011, switch=address, ranks=1))


class Neighbourhood(unittest.TestCase):
    """At the same UDP port are others."""
    FLAGS = ("--elements", 20_011, "--deadline", 3)

    def expected(self):
        return cli.bench("--workers", RANKS, "--profile", "chip", "--transport", "udp", *TWICE, "--warmup", 0, *self.FLAGS)["result_hash"]

    def test_a_job_whose_packets_the_host_forwards(self):
        with in_kernel() as switch, in_software(), routed(), running(switch):
            self.assertEqual(self.expected(), hash_of(*self.FLAGS, switch=SOFTWARE))
            self.assertEqual(0, switch.status()["counters"]["dropped_unknown_job"])

    def test_other_traffic_by_the_same_ports(self):
        data = random.Random(5).randbytes(10_000_000)
        host, switch_host = (HOSTS[0], "10.90.0.2"), (SWITCH, "10.90.0.1")
        with in_kernel() as switch, running(switch):
            netns.carry(data, host, switch_host)
            netns.carry(data, switch_host, host)
            for size in (1, 300, 1072, 1400):
                self.assertTrue(netns.sends_whole(HOSTS[0], switch_host, size))

    def test_a_daemon_at_another_address_of_the_host(self):
        address = "10.91.0.100:7170"
        with in_kernel() as switch, Switch(SWITCH, address, "--profile", "chip"), running(switch):
            self.assertEqual(self.expected(), hash_of(*self.FLAGS, switch=address))
            self.assertEqual(0, switch.status()["counters"]["dropped_unknown_job"])


class Hostile(unittest.TestCase):
    def test_strangers_change_nothing(self):
        flags = ("--elements", 20_011, "--iterations", 100)
        expected = cli.bench("--workers", RANKS, "--profile", "chip", "--transport", "udp", "--warmup", 0, *flags)["result_hash"]
        rng = random.Random(1)
        with in_kernel() as switch, Job(*flags) as job:
            jobs = cli.until(lambda: switch.status()["jobs"], 20, "a job")
            epoch = int(jobs[0]["job_epoch"], 0) if isinstance(jobs[0]["job_epoch"], str) else jobs[0]["job_epoch"]
            with netns.open_socket(HOSTS[0], socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.connect(("10.90.0.1", 7170))
                stranger.setblocking(False)
                while any(rank.process.poll() is None for rank in job.ranks):
                    for _ in range(50):
                        packet = bytearray(rng.randbytes(rng.choice((48 + 256, 48 + 1024, rng.randrange(1, 1400)))))
                        packet[0:8] = (DATA, rng.randrange(1, 3), rng.randrange(RANKS + 1), rng.randrange(2), 0, rng.randrange(8), 0, 0)
                        if len(packet) >= 24 and rng.random() < 0.8:
                            packet[8:16] = epoch.to_bytes(8, "little")
                            packet[20:24] = bytes(4)
                        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                            stranger.send(packet)
                    with self.assertRaises((BlockingIOError, ConnectionRefusedError)):
                        stranger.recv(2048)
                counters = switch.status()["counters"]
            self.assertEqual(expected, job.hash())
            self.assertGreater(counters["dropped_unknown_job"], 0)

    def test_what_a_rank_sent_comes_again(self):
        """Once or several times, soon or late, and in another order: frames as they left its host."""
        flags = ("--elements", 20_011, "--iterations", 100)
        expected = cli.bench("--workers", RANKS, "--profile", "chip", "--transport", "udp", "--warmup", 0, *flags)["result_hash"]
        rng, kept, again = random.Random(2), [], 0
        any_protocol = 3  # ETH_P_ALL: of the others a socket sees arriving frames alone
        with in_kernel(), netns.open_socket(HOSTS[0], socket.AF_PACKET, socket.SOCK_RAW, socket.htons(any_protocol)) as wire:
            wire.bind(("eth0", any_protocol))
            wire.settimeout(0.01)
            with Job(*flags) as job:
                while any(rank.process.poll() is None for rank in job.ranks):
                    with contextlib.suppress(TimeoutError):
                        frame, (_, _, kind, *_) = wire.recvfrom(2048)
                        if kind != socket.PACKET_OUTGOING or frame[42:43] != bytes([DATA]):
                            continue
                        kept.append(frame)
                        if len(kept) > 200:
                            del kept[rng.randrange(len(kept))]
                        if rng.random() < 0.2:
                            wire.send(rng.choice(kept[-3:] if rng.random() < 0.5 else kept))
                            again += 1
                self.assertEqual(expected, job.hash())
        self.assertGreater(again, 100)


class Lifetime(unittest.TestCase):
    def maps_of(self, switch):
        held = maps_of(switch.pid)
        self.assertTrue(held and held <= maps(), held)
        return held

    def assert_clean(self, held):
        cli.until(lambda: not programs() and not maps() & held, 20, "no program on an interface, and no map")

    def test_ends_clean(self):
        with in_kernel() as switch:
            held = self.maps_of(switch)
            switch.signal(signal.SIGTERM)
            self.assertEqual(0, switch.wait(20))
        self.assert_clean(held)

    def test_killed_and_started_again(self):
        with in_kernel() as switch, Job("--elements", 1000, "--iterations", 100_000, "--deadline", 5) as job:
            held = self.maps_of(switch)
            cli.until(lambda: any(each["counters"].get("chunks") for each in switch.status()["jobs"]), 20, "a job that runs")
            switch.signal(signal.SIGKILL)
            switch.wait(10)
            self.assert_clean(held)
            with in_kernel():
                self.assertNotIn(0, job.codes())
                self.assertEqual([1] * RANKS, [len(rank.error_lines()) for rank in job.ranks])
                hash_of("--elements", 1000)


class Refusals(unittest.TestCase):
    def assert_refused(self, text, *arguments, code=1, address=XDP, prefix=()):
        result = netns.run(SWITCH, *prefix, cli.NETSUM, "switch", "--listen", address, "--allow-fcs-only", *arguments)
        errors = [line for line in result.stderr.splitlines() if line.startswith("netsum:")]
        self.assertEqual((code, 1), (result.returncode, len(errors)), result.stderr)
        self.assertIn(text, errors[0])

    def test_one_line_says_why(self):
        xdp = ("--data-plane", "xdp")
        self.assert_refused("no interface 'eth9'", *xdp, "--interface", "port0,eth9", code=2)
        self.assert_refused("named twice", *xdp, "--interface", "port0,port0", code=2)
        self.assert_refused("--interface", *xdp, code=2)
        self.assert_refused("supports the chip profile only", *xdp, "--profile", "software", "--interface", "port0", code=2)
        self.assert_refused("sockets, xdp or bmv2", "--data-plane", "dpdk", code=2)
        self.assert_refused("CAP_BPF", *xdp, "--interface", "port0", prefix=("setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--reuid", "65534", "--clear-groups"))
        with in_kernel():
            self.assert_refused("has an XDP program already", *xdp, "--interface", "port0", address="10.90.0.1:7180")

    def test_a_job_that_it_cannot_serve(self):
        with Switch(SWITCH, "10.91.0.100:7170", "--data-plane", "xdp", "--interface", SHARED), \
             Job("--elements", 100, switch="10.91.0.100:7170") as job:
            self.assertNotIn(0, job.codes())
            self.assertIn("3 ranks or switches of the job are reached through shared", " ".join(job.ranks[0].error_lines()))


def skip_without_bpf(netsum):
    """Where the kernel takes the program, only the interface is wrong."""
    error = netns.run(SWITCH, netsum, "switch", "--listen", XDP, "--allow-fcs-only", "--data-plane", "xdp", "--interface", "none").stderr
    if "no interface 'none'" not in error:
        print(f"skipped: needs CAP_BPF: {error}", file=sys.stderr)
        sys.exit(netns.SKIPPED)


def measure():
    """Gbit/s of TCP between a rank's host and the switch's, by a port where a switch waits for jobs: the median of rounds."""
    data, rounds = bytes(200_000_000), 7
    ends = ((HOSTS[0], "10.90.0.2"), (SWITCH, "10.90.0.1"))
    planes = {"no program": None, "XDP": ("--profile", "chip", "--allow-fcs-only", "--data-plane", "xdp", "--interface", PORTS[0]),
              "AF_XDP": ("--data-path", "xdp", "--interface", PORTS[0])}
    rates = {}
    for _ in range(rounds):
        for mtu in (1500, 9000):
            for namespace, device in ((SWITCH, PORTS[0]), (HOSTS[0], "eth0")):
                netns.ip("-n", namespace, "link", "set", device, "mtu", mtu)
            for plane, flags in planes.items():
                with netns.daemon(SWITCH, "switch", XDP, *flags) if flags else contextlib.nullcontext():
                    for way, (source, sink) in (("to the switch", ends), ("from the switch", ends[::-1])):
                        rates.setdefault((mtu, plane, way), []).append(len(data) * 8e-9 / netns.carry(data, source, sink))
    for (mtu, plane, way), each in rates.items():
        print(f"MTU {mtu}, {plane}, {way}: {statistics.median(each):.1f} Gbit/s")


if __name__ == "__main__":
    netns.skip_if_not_permitted()
    try:
        build()
        if "--measure" in sys.argv:
            cli.NETSUM = sys.argv[1]
            measure()
            sys.exit()
        if len(sys.argv) > 1:
            skip_without_bpf(sys.argv[1])
        cli.main()
    finally:
        destroy()
