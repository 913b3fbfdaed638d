#!/usr/bin/python3
"""Past the kernel's network (--data-path xdp, --port xdp:IFNAME): each rank and the aggregator are hosts of their own (network
namespaces) on one network, and a bump stands between two of them.

usage: netns_af_xdp.py NETSUM [unittest arguments]

Exit code 77: network namespaces or BPF programs are not permitted here.
"""
import contextlib
import ctypes
import fcntl
import os
import random
import signal
import socket
import struct
import sys
import unittest

import cli_support as cli
import netns_support as netns

RANKS = 3
PREFIX = f"afxdp{os.getpid()}"
NETWORK, SWITCH, SERVER, WIRE, FAR = (f"{PREFIX}-{name}" for name in ("network", "switch", "server", "wire", "far"))
HOSTS = [f"{PREFIX}-rank{rank}" for rank in range(RANKS)]
ADDRESSES = {SWITCH: "10.92.0.1", SERVER: "10.92.0.2", FAR: "10.92.0.100"} | {host: f"10.92.0.{10 + rank}" for rank, host in enumerate(HOSTS)}
AT = ADDRESSES[SWITCH] + ":7170"
SECOND = "10.92.0.101"  # of the switch's host too
QUEUES = 2
FLAGS = ("--warmup", 0, "--json", "--connect-deadline", 30)
MANY = ("--elements", 1_000_003, "--iterations", 2)
FEW = ("--elements", 100_003, "--iterations", 2)
XDP = ("--data-path", "xdp")


def build():
    netns.add(NETWORK, WIRE, *ADDRESSES)
    netns.bridge(NETWORK)
    for number, (host, address) in enumerate(ADDRESSES.items()):
        if host != FAR:
            netns.bridged(NETWORK, f"port{number}", host, more=("numrxqueues", QUEUES, "numtxqueues", QUEUES))
        else:  # behind a wire, for the bump
            netns.wire(WIRE, "wire0", NETWORK, "wire0", silent=True)
            netns.wire(WIRE, "wire1", host, silent=True)
            netns.ip("-n", NETWORK, "link", "set", "wire0", "master", "bridge0")
        netns.address(host, "eth0", address + "/24")
    netns.address(SWITCH, "eth0", SECOND + "/24")


def destroy():
    netns.remove(NETWORK, WIRE, *ADDRESSES)


def switch(*arguments):
    return netns.daemon(SWITCH, "switch", AT, *arguments)


def status():
    return netns.status(SWITCH, AT)


def programs(host, ports=("eth0",)):
    """The host's interfaces that have an XDP program."""
    return {link["ifname"] for link in netns.links(host) if "xdp" in link} & set(ports)


def kernels_datagrams(host):
    """UDP datagrams that the host's kernel has delivered."""
    lines = netns.run(host, "cat", "/proc/net/snmp").stdout.splitlines()
    names, values = (line.split() for line in lines if line.startswith("Udp:"))
    return int(values[names.index("InDatagrams")])


class Job(netns.Ranks):
    """Its ranks, each at its host. `path`: flags of each."""

    def __init__(self, *flags, at=("--switch", AT), path=(XDP,) * RANKS):
        super().__init__(netns.Inside(HOSTS[rank], "bench", "all-reduce", *at, "--rank", rank, "--world-size", RANKS, *FLAGS, *path[rank], *flags)
                         for rank in range(RANKS))


def hash_of(*flags, **more):
    with Job(*flags, **more) as job:
        return job.hash()


def expected(*flags):
    return cli.bench("--workers", RANKS, "--transport", "udp", "--warmup", 0, *flags)["result_hash"]


class Sums(unittest.TestCase):
    def test_those_of_sockets(self):
        wanted = expected(*MANY)
        with switch():
            self.assertEqual(wanted, hash_of(*MANY, path=((),) * RANKS))
        with switch(*XDP):
            self.assertEqual({"eth0"}, programs(SWITCH))
            before = [kernels_datagrams(host) for host in (SWITCH, *HOSTS)]
            self.assertEqual(wanted, hash_of(*MANY))
            # Probes come to the kernel's sockets, and two thousand chunks do not.
            delivered = [kernels_datagrams(host) - number for host, number in zip((SWITCH, *HOSTS), before)]
            self.assertLess(max(delivered), 1000, delivered)
        for host in (SWITCH, *HOSTS):
            self.assertEqual(set(), programs(host))

    def test_with_losses(self):
        wanted = expected(*MANY)
        with switch(*XDP, "--loss", 0.01):
            self.assertEqual(wanted, hash_of(*MANY, "--loss", 0.01))

    def test_beside_sockets(self):
        wanted = expected(*FEW)
        with switch(*XDP):
            self.assertEqual(wanted, hash_of(*FEW, path=((), XDP, ())))
        with switch():
            self.assertEqual(wanted, hash_of(*FEW))

    def test_more_lanes(self):
        """As many as queues, and more, which go through the kernel; frames come to any queue."""
        wanted = expected(*FEW)
        for threads in (2, 3):
            with switch(*XDP, "--threads", threads) as aggregator, Job(*FEW, "--threads", threads) as job:
                self.assertEqual(wanted, job.hash())
            self.assertEqual(threads - QUEUES, sum("are sent by kernel sockets" in line for line in job.ranks[0].err))
            self.assertEqual(threads - QUEUES, sum("goes through the kernel" in line for line in aggregator.err))

    def test_the_chip_profile(self):
        chip = ("--profile", "chip")
        wanted = expected(*FEW, *chip)
        with switch(*XDP, *chip, "--allow-fcs-only"):
            self.assertEqual(wanted, hash_of(*FEW, *chip))

    def test_netreduce(self):
        netreduce = ("--protocol", "netreduce")
        wanted = expected(*FEW, *netreduce)
        with switch(*XDP):
            self.assertEqual(wanted, hash_of(*FEW, *netreduce))

    def test_atp(self):
        atp = ("--protocol", "atp")
        wanted = expected(*FEW, *atp)
        server = ADDRESSES[SERVER] + ":7270"
        with switch(*XDP), netns.daemon(SERVER, "ps", server, *XDP):
            self.assertEqual(wanted, hash_of(*FEW, *atp, at=("--switch", AT, "--ps", server)))

    def test_answers_come_from_the_address_that_was_sent_to(self):
        wanted = expected(*FEW)
        with netns.daemon(SWITCH, "switch", "0.0.0.0:7170", *XDP, "--interface", "eth0"):
            for at in (AT, SECOND + ":7170"):
                self.assertEqual(wanted, hash_of(*FEW, at=("--switch", at)))

    def test_results_by_multicast(self):
        wanted = expected(*FEW)
        with switch(*XDP, "--multicast", "239.1.1.1:5000"):
            self.assertEqual(wanted, hash_of(*FEW))


class Ends(unittest.TestCase):
    def test_killed(self):
        with switch(*XDP) as aggregator, Job("--elements", 1000, "--iterations", 1_000_000, "--deadline", 3) as job:
            cli.until(lambda: all(programs(host) for host in (SWITCH, *HOSTS)), 20, "programs everywhere")
            rank = job.ranks[1]
            for child in cli.children_of(rank.pid) or [rank.pid]:
                os.kill(child, signal.SIGKILL)
            cli.until(lambda: not programs(HOSTS[1]), 10, "an interface without a program")
            for child in cli.children_of(aggregator.pid) or [aggregator.pid]:
                os.kill(child, signal.SIGKILL)
            cli.until(lambda: not programs(SWITCH), 10, "an interface without a program")
            self.assertNotIn(0, job.codes())
        for host in HOSTS:
            self.assertEqual(set(), programs(host))
        wanted = expected(*FEW)
        with switch(*XDP):  # at once
            self.assertEqual(wanted, hash_of(*FEW))


    def test_ranks_go_on_at_a_restarted_switch(self):
        """Their lanes end, and others take the queues."""
        flags = (*MANY[:2], "--iterations", 4, "--recovery", 60)
        wanted = expected("--elements", 1_000_003, "--iterations", 4)
        with switch(*XDP) as aggregator, Job(*flags) as job:
            cli.until(lambda: any(job["counters"].get("chunks", 0) > 100 for job in status()["jobs"]), 20, "chunks")
            for child in cli.children_of(aggregator.pid) or [aggregator.pid]:
                os.kill(child, signal.SIGKILL)
            aggregator.wait(10)
            with switch(*XDP):
                self.assertEqual(wanted, job.hash())
            self.assertTrue(any("AF_XDP on eth0" in line for line in job.ranks[0].err[-20:]), job.ranks[0].err)


class Changes(unittest.TestCase):
    """Of the network, in the middle of a job."""

    def interface(self):
        return status()["interfaces"][0]

    def chunks(self):
        return sum(job["counters"].get("chunks", 0) for job in status()["jobs"])

    def test_an_interface_is_made_again(self):
        with switch(*XDP) as aggregator, Job("--elements", 1000, "--iterations", 1_000_000, "--deadline", 10) as job:
            cli.until(lambda: any(each["counters"].get("chunks", 0) > 100 for each in status()["jobs"]), 20, "chunks")
            self.assertEqual({"name": "eth0", "attached": True, "state": "AF_XDP, the kernel copies"}, self.interface())
            station = netns.links(SWITCH, "eth0")[0]["address"]
            netns.ip("-n", SWITCH, "link", "del", "eth0")
            netns.bridged(NETWORK, "port0", SWITCH, more=("numrxqueues", QUEUES, "numtxqueues", QUEUES))
            netns.ip("-n", SWITCH, "link", "set", "eth0", "address", station)
            netns.address(SWITCH, "eth0", ADDRESSES[SWITCH] + "/24", SECOND + "/24")
            cli.until(lambda: programs(SWITCH), 10, "a program at the new interface")
            cli.until(lambda: self.interface()["attached"], 10, "the interface in the status")
            before = kernels_datagrams(SWITCH)
            done = self.chunks()
            cli.until(lambda: self.chunks() > done + 1000, 20, "a job that goes on")
            self.assertLess(kernels_datagrams(SWITCH) - before, 1000)
        self.assertTrue(any("interface eth0: AF_XDP" in line for line in aggregator.err), aggregator.err)

    def test_an_mtu_longer_than_a_page(self):
        """Long packets go through the kernel, and short ones past it."""
        wanted = expected(*FEW)
        for namespace, device in [(NETWORK, f"port{number}") for number, host in enumerate(ADDRESSES) if host != FAR] + \
                [(host, "eth0") for host in ADDRESSES if host != FAR]:
            netns.ip("-n", namespace, "link", "set", device, "mtu", 9000)
            self.addCleanup(netns.ip, "-n", namespace, "link", "set", device, "mtu", 1500)
        with switch(*XDP):
            self.assertEqual(wanted, hash_of(*FEW))
            self.assertEqual(wanted, hash_of(*FEW, "--packet-elements", 256))


    def test_a_job_whose_packets_the_host_forwards(self):
        """To an aggregator at the same UDP port."""
        wanted = expected(*FEW)
        cli.checked(netns.run(SWITCH, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.eth0.send_redirects=0"))
        for host in HOSTS:
            netns.ip("-n", host, "route", "add", ADDRESSES[SERVER], "via", ADDRESSES[SWITCH])
            self.addCleanup(netns.ip, "-n", host, "route", "del", ADDRESSES[SERVER])
        with netns.daemon(SWITCH, "switch", "0.0.0.0:7170", *XDP, "--interface", "eth0"), \
             netns.daemon(SERVER, "switch", ADDRESSES[SERVER] + ":7170"):
            self.assertEqual(wanted, hash_of(*FEW, at=("--switch", ADDRESSES[SERVER] + ":7170"), path=((),) * RANKS))
            self.assertEqual(wanted, hash_of(*FEW))

    def test_an_address_that_the_host_gets_later(self):
        later, flags = "10.92.0.102", ("--elements", 1000, "--iterations", 1_000_000)
        with netns.daemon(SWITCH, "switch", "0.0.0.0:7170", *XDP, "--interface", "eth0"):
            netns.address(SWITCH, "eth0", later + "/24")
            self.addCleanup(netns.ip, "-n", SWITCH, "addr", "del", later + "/24", "dev", "eth0")
            with Job(*flags, at=("--switch", later + ":7170")):
                def past_the_kernel():
                    before, chunks = kernels_datagrams(SWITCH), self.chunks()
                    cli.until(lambda: self.chunks() > chunks + 1000, 20, "a job that goes on")
                    return kernels_datagrams(SWITCH) - before < 100
                cli.until(past_the_kernel, 10, "a job past the kernel")


class Strangers(unittest.TestCase):
    def test_change_nothing(self):
        """Datagrams to the lane's port and frames of all kinds, while a job runs."""
        flags = ("--elements", 20_011, "--iterations", 100)
        wanted = expected(*flags)
        rng = random.Random(1)
        with switch(*XDP), Job(*flags) as job, netns.open_socket(SERVER, socket.AF_PACKET, socket.SOCK_RAW) as wire:
            wire.bind(("eth0", 0))
            to = bytes.fromhex(netns.links(SWITCH, "eth0")[0]["address"].replace(":", ""))
            own = wire.getsockname()[4]
            while any(rank.process.poll() is None for rank in job.ranks):
                for _ in range(50):
                    data = rng.randbytes(rng.randrange(1, 1400))
                    ip = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(data), 0, 0, 64, 17, 0, socket.inet_aton("10.92.0.2"),
                                               socket.inet_aton("10.92.0.1")))
                    udp = bytearray(struct.pack("!HHHH", 4000, 7170, 8 + len(data), 0))
                    if rng.random() < 0.3:
                        part = rng.choice((ip, udp))
                        part[rng.randrange(len(part))] = rng.randrange(256)
                    total = sum(struct.unpack("!10H", ip))
                    total = (total & 0xffff) + (total >> 16)
                    struct.pack_into("!H", ip, 10, ~((total & 0xffff) + (total >> 16)) & 0xffff)
                    frame = to + own + b"\x08\x00" + ip + udp + data
                    with contextlib.suppress(OSError):
                        wire.send(frame[:rng.randrange(15, len(frame))] if rng.random() < 0.1 else frame)
            self.assertEqual(wanted, job.hash())


class Refusals(unittest.TestCase):
    def assert_refused(self, text, *arguments, code=1, host=SWITCH, prefix=()):
        result = netns.run(host, *prefix, cli.NETSUM, *arguments, limit=30)
        errors = [line for line in result.stderr.splitlines() if line.startswith("netsum:")]
        self.assertEqual((code, 1), (result.returncode, len(errors)), result.stderr)
        self.assertIn(text, errors[0])

    def test_one_line_says_why(self):
        start = ("switch", "--listen", AT, *XDP)
        nobody = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--reuid", "65534", "--clear-groups")
        self.assert_refused("sockets, xdp or dpdk", "switch", "--listen", AT, "--data-path", "rdma", code=2)
        self.assert_refused("no interface 'eth9'", *start, "--interface", "eth9", code=2)
        self.assert_refused("is not Ethernet", *start, "--interface", "lo", code=2)
        self.assert_refused("--interface", "switch", "--listen", "0.0.0.0:7170", *XDP, code=2)
        self.assert_refused("listen at an IPv4 address", "switch", "--listen", "[::1]:7170", *XDP, code=2)
        self.assert_refused("--data-plane xdp requires --data-path sockets", *start, "--data-plane", "xdp", "--interface", "eth0",
                            "--allow-fcs-only", code=2)
        self.assert_refused("requires CAP_", *start, prefix=nobody)
        with switch(*XDP):
            self.assert_refused("has an XDP program already", "switch", "--listen", ADDRESSES[SWITCH] + ":7180", *XDP)
            rank = ("bench", "all-reduce", "--switch", AT, "--rank", 0, "--world-size", 2, *XDP, "--elements", 100)
            self.assert_refused("requires CAP_", *rank, host=HOSTS[0], prefix=nobody, code=3)
        self.assert_refused("needs --switch", "bench", "all-reduce", *XDP, code=2)


def without_offloads(host):
    """Its checksums and trains are its own: a port by AF_XDP finishes neither."""
    ethtool, checksums, trains, segments = 0x8946, 0x17, 0x1f, 0x24  # SIOCETHTOOL; ETHTOOL_STXCSUM, STSO, SGSO
    with netns.open_socket(host, socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for what in (trains, segments, checksums):
            off = ctypes.create_string_buffer(struct.pack("II", what, 0))
            fcntl.ioctl(any_socket, ethtool, struct.pack("16sP16x", b"eth0", ctypes.addressof(off)))


class Bump(unittest.TestCase):
    def test_hosts_whose_frames_are_longer_than_its_ports(self):
        """Since an operator raised the MTU: with a lower one a veth drops such frames by itself."""
        with netns.Inside(WIRE, "bump", "--port", "xdp:wire0", "--port", "xdp:wire1") as bump:
            bump.wait_line(bump.out, "ready")
            for namespace, device in ((WIRE, "wire1"), (FAR, "eth0")):
                netns.ip("-n", namespace, "link", "set", device, "mtu", 3000)
                self.addCleanup(netns.ip, "-n", namespace, "link", "set", device, "mtu", 1500)
            netns.sends_whole(FAR, (SWITCH, ADDRESSES[SWITCH]), 2500)
            line = cli.until(lambda: next((line for line in bump.err if "drops frames that are too long" in line), None), 10, "a warning")
            self.assertIn("one has 2542 bytes, and the MTU was 1500", line)
            netns.sends_whole(FAR, (SWITCH, ADDRESSES[SWITCH]), 2500)
        self.assertEqual(1, sum("too long" in line for line in bump.err), bump.err)

    def test_is_a_cable(self):
        for host in (HOSTS[0], FAR):
            without_offloads(host)
        data = random.Random(3).randbytes(3_000_000)
        with netns.Inside(WIRE, "bump", "--port", "xdp:wire0", "--port", "xdp:wire1") as bump, \
             netns.open_socket(FAR, socket.AF_INET, socket.SOCK_STREAM) as listener, \
             netns.open_socket(HOSTS[0], socket.AF_INET, socket.SOCK_STREAM) as client:
            bump.wait_line(bump.out, "ready")
            self.assertEqual({"wire0", "wire1"}, programs(WIRE, ("wire0", "wire1")))
            listener.bind((ADDRESSES[FAR], 0))
            listener.listen()
            client.settimeout(20)
            client.connect(listener.getsockname())
            server, _ = listener.accept()
            with server:
                server.settimeout(20)
                received = bytearray()
                for at in range(0, len(data), 50_000):
                    client.sendall(data[at:at + 50_000])
                    while len(received) < at + 50_000:
                        received += server.recv(1 << 20)
            self.assertEqual(data, bytes(received))
            for child in cli.children_of(bump.pid) or [bump.pid]:
                os.kill(child, signal.SIGKILL)
            cli.until(lambda: not programs(WIRE, ("wire0", "wire1")), 10, "interfaces without programs")


def skip_without_bpf(netsum):
    """Where the kernel takes a program and a socket, only the second port is wrong."""
    error = netns.run(WIRE, netsum, "bump", "--port", "xdp:wire0", "--port", "xdp:none").stderr
    if "no interface 'none'" not in error:
        print(f"skipped: needs CAP_BPF: {error}", file=sys.stderr)
        sys.exit(netns.SKIPPED)


if __name__ == "__main__":
    netns.skip_if_not_permitted()
    try:
        build()
        if len(sys.argv) > 1:
            skip_without_bpf(sys.argv[1])
        cli.main()
    finally:
        destroy()
