"""What frames cost past the kernel's network, in nanoseconds on a processor: of the bump by AF_XDP, by packet sockets and of a
bare loop, whose queues are full; and of the switch by AF_XDP and by sockets, in a job of three ranks.

The bump's and the loop's: the process is stopped, a burst is queued for it, and it goes on. So a round needs nothing of the sender,
and what others do on this machine costs no time that is counted.
"""
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import time

import ratios
from network import NETSUM, ROOT, enter

BIN = os.path.join(ROOT, "build/release/bin")
BURST = 2000  # frames; less than any queue
SIZES = (64, 1100)
HEADERS, ANSWER = 42, 74  # bytes of Ethernet, IPv4 and UDP headers, and of an answer to a probe
GOAL, BARE_GOAL = 1.35, 0.85
BOUND = "1.5 to 1.7: the bare loop"
RANKS = 3
PATIENCE = 10  # seconds, for what takes a fraction of one


def ip(*words):
    made = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    if made.returncode != 0:
        raise SystemExit(f"bench: ip {' '.join(map(str, words))}: {made.stderr.strip()}")
    return made.stdout


def inside(namespace, *words):
    return ["ip", "netns", "exec", namespace, *map(str, words)]


@contextlib.contextmanager
def in_namespace(namespace):
    home, there = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open("/run/netns/" + namespace, os.O_RDONLY)
    try:
        enter(there)
        yield
    finally:
        enter(home)
        os.close(home)
        os.close(there)


def packet_socket(namespace, protocol=0):
    with in_namespace(namespace):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
        made.bind(("eth0", protocol))
        return made


class Thread:
    """The one that moves the packets, and its time on a processor."""

    def __init__(self, process, name):
        folder, deadline = f"/proc/{process}/task", time.monotonic() + PATIENCE
        self.path = None
        while self.path is None:  # a thread takes its name a moment after it begins
            for task in os.listdir(folder):
                with open(f"{folder}/{task}/comm", encoding="ascii") as file:
                    if file.read().startswith(name):
                        self.path = f"{folder}/{task}/schedstat"
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: process {process} has no thread {name}")

    def nanoseconds(self):
        with open(self.path, encoding="ascii") as file:
            return int(file.read().split()[0])


class Wires:
    """A host at each of the wires of a middle one, where a program moves frames: from the first host, and to the last."""

    def __init__(self, name, wires, program, thread):
        self.prefix = f"bench{os.getpid()}-{name}"
        self.hosts = [f"{self.prefix}-{number}" for number in range(wires)]
        self.program, self.thread_name, self.stack = program, thread, contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for namespace in (self.prefix, *self.hosts):
                ip("netns", "add", namespace)
                stack.callback(ip, "netns", "del", namespace)
                ip("-n", namespace, "link", "set", "lo", "up")
            for number, host in enumerate(self.hosts):
                ip("-n", self.prefix, "link", "add", f"wire{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
                ip("-n", self.prefix, "link", "set", f"wire{number}", "addrgenmode", "none", "up")
                ip("-n", host, "link", "set", "eth0", "addrgenmode", "none", "up")
            self.wired()
            self.process = subprocess.Popen(inside(self.prefix, *self.program), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.callback(self.process.wait)
            stack.callback(self.process.kill)
            if not self.process.stdout.readline().startswith(("ready", "listening")):
                raise SystemExit(f"bench: {' '.join(self.program)}: {self.process.stderr.read().strip()}")
            self.thread = Thread(self.process.pid, self.thread_name)
            self.sockets = [stack.enter_context(packet_socket(host)) for host in self.hosts]
            self.begin()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def wired(self):
        pass

    def begin(self):
        addresses = [each.getsockname()[4] for each in self.sockets]
        self.head = addresses[-1] + addresses[0] + b"\x88\xb5"  # the ethertype for local experiments
        # The bump learns where the receiver is. Both ends of a veth are connected a while after they are up.
        back = addresses[0] + addresses[-1] + b"\x88\xb5" + bytes(50)
        before, deadline = self.arrived(0), time.monotonic() + PATIENCE
        while self.arrived(0) == before:
            self.sockets[-1].send(back)
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: {' '.join(self.program)}: no frame arrived")

    def received(self, number):
        return json.loads(ip("-n", self.hosts[number], "-s", "-j", "link", "show", "eth0"))[0]["stats64"]["rx"]

    def arrived(self, number):
        return self.received(number)["packets"]

    def frame(self, size):
        return self.head + bytes(size - len(self.head))

    def drop_answers(self):
        """As early as a host can: what it would do with them is not the work of who sends them, but would be done in its time."""
        table = 'table netdev bench { chain in { type filter hook ingress device "eth0" priority 0; ip protocol udp drop\n }\n }'
        subprocess.run(inside(self.hosts[0], "nft", "-f", "-"), input=table, text=True, check=True)

    def nanoseconds(self, size):
        """Of a frame."""
        frame, before = self.frame(size), self.arrived(-1)
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)
        try:
            for _ in range(BURST):
                self.sockets[0].send(frame)
            began = self.thread.nanoseconds()
        finally:
            os.kill(self.process.pid, signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE
        while self.arrived(-1) - before < BURST:
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: {' '.join(self.program)}: {self.arrived(-1) - before} of {BURST} frames arrived")
        return (self.thread.nanoseconds() - began) / BURST


class Answers(Wires):
    """A switch that answers probes of a rank, which were seen when one joined."""

    ADDRESS, HOST = "10.94.0.1", "10.94.0.2"

    def __init__(self, name, path):
        self.at = self.ADDRESS + ":7170"
        super().__init__(name, 1, [NETSUM, "switch", "--listen", self.at, "--anyone-may-join", "--pin", "--data-path", path], "netsum-switch")

    def wired(self):
        ip("-n", self.prefix, "address", "add", self.ADDRESS + "/24", "dev", "wire0")
        ip("-n", self.hosts[0], "address", "add", self.HOST + "/24", "dev", "eth0")

    def begin(self):
        any_protocol, probe = 3, 8  # ETH_P_ALL, and the type's byte of a packet (docs/protocol-switchml.md)
        with packet_socket(self.hosts[0], any_protocol) as wire:
            wire.settimeout(PATIENCE)
            join = inside(self.hosts[0], NETSUM, "bench", "all-reduce", "--switch", self.at, "--rank", 0, "--world-size", 1, "--elements", 1000)
            if subprocess.run(join, capture_output=True).returncode != 0:
                raise SystemExit("bench: a rank could not join")
            while True:
                seen = bytearray(wire.recv(1 << 16))
                if seen[12:14] == b"\x08\x00" and seen[23] == 17 and seen[36:38] == (7170).to_bytes(2, "big") and len(seen) < 1514 and seen[43] & 0x0f == probe:
                    break
        self.drop_answers()
        seen[40:42] = bytes(2)  # its UDP checksum was left to the device
        self.probe = bytes(seen)

    def arrived(self, number):
        """Answers: a train of them counts as one packet there."""
        counted = self.received(number)
        return (counted["bytes"] - HEADERS * counted["packets"]) // (ANSWER - HEADERS)

    def frame(self, size):
        return self.probe


def bump(name, kind):
    return Wires(name, 2, [NETSUM, "bump", "--pin", "--port", f"{kind}:wire0", "--port", f"{kind}:wire1"], "netsum-switch")


def bare(name):
    return Wires(name, 1, [os.path.join(BIN, "bare_loop"), "wire0"], "bare_loop")


class Network:
    """A switch, and hosts of ranks, behind a bridge."""

    def __init__(self):
        self.prefix = f"bench{os.getpid()}-job"
        self.switch, self.ranks = f"{self.prefix}-switch", [f"{self.prefix}-rank{rank}" for rank in range(RANKS)]

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for namespace in (self.prefix, self.switch, *self.ranks):
                ip("netns", "add", namespace)
                stack.callback(ip, "netns", "del", namespace)
            ip("-n", self.prefix, "link", "add", "bridge0", "type", "bridge")
            ip("-n", self.prefix, "link", "set", "bridge0", "up")
            for number, host in enumerate((self.switch, *self.ranks)):
                ip("-n", self.prefix, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", host)
                ip("-n", self.prefix, "link", "set", f"port{number}", "master", "bridge0", "up")
                ip("-n", host, "link", "set", "lo", "up")
                ip("-n", host, "link", "set", "eth0", "up")
                ip("-n", host, "address", "add", f"10.93.0.{number + 1}/24", "dev", "eth0")
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def nanoseconds(self, path, elements):
        """Of the switch for a packet that it receives, with what it sends; all hosts on that data path."""
        address = "10.93.0.1:7170"
        with subprocess.Popen(inside(self.switch, NETSUM, "switch", "--listen", address, "--anyone-may-join", "--pin", "--data-path", path),
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as switch:
            try:
                if not switch.stdout.readline().startswith("listening"):
                    raise SystemExit(f"bench: netsum switch --data-path {path} did not start")
                thread = Thread(switch.pid, "netsum-switch")
                received, began = self.received(address), thread.nanoseconds()
                ranks = [subprocess.Popen(inside(host, NETSUM, "bench", "all-reduce", "--switch", address, "--rank", rank, "--world-size", RANKS,
                                                 "--data-path", path, "--elements", elements, "--warmup", 0, "--iterations", 3, "--json"),
                                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                         for rank, host in enumerate(self.ranks)]
                reports = [json.loads(rank.communicate()[0] or '{"wrong": 1}') for rank in ranks]
                if any(report["wrong"] for report in reports):
                    raise SystemExit(f"bench: the job over --data-path {path} failed, or its sums are wrong")
                return (thread.nanoseconds() - began) / (self.received(address) - received)
            finally:
                switch.kill()

    def received(self, address):
        status = subprocess.run(inside(self.switch, NETSUM, "status", "--switch", address, "--json"), capture_output=True, text=True, check=True)
        counters = json.loads(status.stdout)["counters"]
        return counters["packets_received"]


def turns(entrants, size, count):
    """Of each its nanoseconds by round. The order alternates."""
    sides = {name: [] for name in entrants}
    for number in range(count):
        for name in sorted(entrants, reverse=number % 2 == 1):
            sides[name].append(entrants[name].nanoseconds(size))
    return sides


def rows(count, quick):
    """Rows, each with the medians of its sides."""
    if not os.path.exists(os.path.join(BIN, "bare_loop")):
        raise SystemExit("bench: this netsum was built without AF_XDP: it needs clang, libbpf and libxdp")
    made = {}

    def keep(name, what, sides, over, under, goal=None, then=""):
        made[name] = {"what": what, "ratio": ratios.summary(sides[over], sides[under]), "goal": goal, "at_least": True, "then": then,
                      "nanoseconds": {side: statistics.median(times) for side, times in sides.items()}}

    with bump("packet", "eth") as packet, bump("xdp", "xdp") as xdp, bare("bare") as loop:
        for size in SIZES:
            sides = turns({"sockets": packet, "AF_XDP": xdp, "a bare loop": loop}, size, count)
            about = f"the bump, frames of {size} bytes: frames/s by AF_XDP over those"
            keep(f"af-xdp-bump-{size}", f"{about} by packet sockets", sides, "sockets", "AF_XDP", GOAL, BOUND)
            keep(f"af-xdp-bump-{size}-bare", f"{about} of a bare loop there", sides, "a bare loop", "AF_XDP")
    with Answers("sockets", "sockets") as kernel, Answers("xdp", "xdp") as xdp, bare("bare") as loop:
        loop.head = loop.head[:12] + xdp.probe[12:]
        loop.drop_answers()
        size = len(xdp.probe)
        sides = turns({"sockets": kernel, "AF_XDP": xdp, "a bare loop": loop}, size, count)
        about = f"the switch, probes of {size} bytes and answers: packets/s by AF_XDP over those"
        keep("af-xdp-switch", f"{about} by sockets", sides, "sockets", "AF_XDP")
        keep("af-xdp-switch-bare", f"{about} of a bare loop there", sides, "a bare loop", "AF_XDP", BARE_GOAL)
    with Network() as network:
        sides = {path: [] for path in ("sockets", "AF_XDP")}
        for number in range(count):
            for path in sorted(sides, reverse=number % 2 == 1):
                sides[path].append(network.nanoseconds("xdp" if path == "AF_XDP" else path, 100_000 if quick else 1_000_000))
        keep("af-xdp-job", f"the switch in a job of {RANKS} ranks on veth: packets/s by AF_XDP over those by sockets, whose trains pass whole",
             sides, "sockets", "AF_XDP")
    return made
