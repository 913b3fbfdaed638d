"""Clusters of real processes on both sides of a bottleneck link (papers/bottleneck/testbed), and what they count over time."""
import json
import os
import socket
import struct
import tempfile
import threading
import time

from network import Daemon, Network, Process

BUSY_TIME = 168  # in struct tcp_info; tcpi_rwnd_limited and tcpi_sndbuf_limited follow (linux/tcp.h)


class Rank(Process):
    """A rank of a benchmark; its lines are read as they come, with the time of each."""

    def __init__(self, host, *arguments, protocol="atp"):
        super().__init__(host, "bench", "all-reduce", "--protocol", protocol, "--rank-report", *arguments)
        self.lines = []
        self.on_line = lambda line: None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))
            self.on_line(line)

    def report(self):
        """What it measured, once it has ended. Everything must be right."""
        self.reader.join()
        if self.process.wait() != 0:
            raise SystemExit(f"a rank failed: {self.complaint()}")
        report = json.loads(self.lines[-1][1])
        if report["wrong"] != 0:
            raise SystemExit(f"{report['wrong']} wrong elements")
        return report


class Testbed(Network):
    """Hosts on the two sides of a bottleneck link: L0, L1, ... and R0, ..."""

    def __init__(self, rate, delay, queue="256kB", mark=None, left=1, right=1):
        self.statistics = tempfile.NamedTemporaryFile("r", suffix=".json")
        super().__init__("papers/bottleneck/testbed", r"[LR]\d+",
                         ["--rate", rate, "--delay", delay, "--queue", queue, "--left", left, "--right", right, "--interval", "500ms",
                          *(["--mark", mark] if mark else []), "--stats", self.statistics.name])

    def link(self, direction="left-to-right"):
        """The bottleneck's own statistics so far, two lines a second."""
        with open(self.statistics.name, encoding="utf-8") as lines:
            return [line for line in map(json.loads, filter(lambda text: text.endswith("\n"), lines))
                    if line.get("direction") == direction]


class Cluster:
    """Switches, one parameter server and jobs in a testbed, for the length of a `with`."""

    def __init__(self, server, switches, *more, parents=(), version=4, packet_elements):
        """server: a host. switches: (host, slots) each. more: arguments of the parameter server. parents: of each switch, the
        index of the next one on the way to the server, or None."""
        self.version, self.packet_elements = version, packet_elements
        self.switches, self.ranks, self.server = [], {}, None
        self.how = server, switches, parents, more

    def __enter__(self):
        server, switches, parents, more = self.how
        for host, slots in switches:
            self.switches.append(Daemon(host, self.version, "switch", "--pool-slots", slots, "--pool-elements",
                                        self.packet_elements))
        pairs = [f"{child.address}={self.switches[parent].address}" for child, parent in zip(self.switches, parents)
                 if parent is not None]
        self.server = Daemon(server, self.version, "ps", "--slots", 1 << 20, *more,
                             *(["--switch-parent", ",".join(pairs)] if pairs else []))
        return self

    def __exit__(self, *_):
        for process in [*(rank for ranks in self.ranks.values() for rank in ranks), self.server, *self.switches]:
            if process:
                process.kill()

    def start(self, job, places, *, window, elements, iterations, more=()):
        """places: of each rank its host, and the index of its switch or None."""
        self.ranks[job] = [
            Rank(host, "--ps", self.server.address, *(["--switch", self.switches[at].address] if at is not None else []),
                 "--job", job, "--rank", rank, "--world-size", len(places), "--elements", elements, "--iterations", iterations,
                 "--warmup", 1, "--slots", window, "--packet-elements", self.packet_elements, "--deadline", 300,
                 "--connect-deadline", 60, *more)
            for rank, (host, at) in enumerate(places)]

    def finish(self):
        """Reports of all ranks, by job."""
        return {job: [rank.report() for rank in ranks] for job, ranks in self.ranks.items()}


class Sampler:
    """What `look` returns, every so often, with the time of it, for the length of a `with`."""

    def __init__(self, interval, look):
        self.interval, self.look, self.samples = interval, look, []
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.done.is_set():
            begin = time.monotonic()
            seen = self.look()
            end = time.monotonic()
            self.samples.append(((begin + end) / 2, seen))
            self.done.wait(self.interval - (end - begin))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


class TcpFlow:
    """One TCP connection (cubic, ECN asked for) that always has more to send, for the length of a `with`."""

    def __init__(self, sender, receiver, version):
        family = socket.AF_INET6 if version == 6 else socket.AF_INET
        self.received = 0
        listener = receiver.inside(lambda: socket.create_server((receiver.addresses[version], 0), family=family))
        self.client = sender.inside(lambda: socket.socket(family, socket.SOCK_STREAM))
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        self.client.connect((receiver.addresses[version], listener.getsockname()[1]))
        self.server, _ = listener.accept()
        listener.close()
        self.threads = [threading.Thread(target=each, daemon=True) for each in (self.send, self.receive)]

    def held_up(self):
        """Seconds that it had data on its way, and how many of these it waited for its own process or for the receiver's: then these
        decide its rate, and not congestion."""
        busy, receiver, sender = struct.unpack_from("QQQ", self.client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232), BUSY_TIME)
        return busy / 1e6, (receiver + sender) / 1e6

    def send(self):
        block = bytes(1 << 16)
        try:
            while True:
                self.client.sendall(block)
        except OSError:
            pass  # shut down

    def receive(self):
        buffer = bytearray(1 << 18)
        while count := self.server.recv_into(buffer):
            self.received += count

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.client.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(5)
        self.client.close()
        self.server.close()
