"""Ranks and aggregators of a job with survivors, as processes: on this machine's loopback device, or each in a network namespace."""
import os
import queue
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../shared"))
from network import ROOT  # noqa: E402

PATIENCE = 60


def add_options(parser):
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--elements", type=int, default=100_000, help="of each sum, int32 (%(default)s)")
    parser.add_argument("--protocols", nargs="+", default=["switchml", "atp", "netreduce"])
    parser.add_argument("--build", default=os.path.join(ROOT, "build/release"))


class Rank:
    """A process of a rank, and what it says: the members of its results, and when there were others."""

    def __init__(self, command):
        self.said = queue.Queue()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            members, at = line.split()
            self.said.put((int(members), int(at)))

    def until(self, members, after=0):
        """When its first result of these members, in a life that has begun by then, came."""
        while True:
            try:
                said, at = self.said.get(timeout=PATIENCE)
            except queue.Empty:
                self.process.kill()
                raise SystemExit(f"no result of ranks {members:b}: {self.process.stderr.read()}") from None
            if said == members and at > after:
                return at

    def end(self):
        self.process.kill()
        self.process.communicate()


class Daemon:
    def __init__(self, command, says_address=True):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().split()[1] if says_address else None

    def end(self):
        self.process.kill()
        self.process.communicate()


class Bed:
    """Where ranks and aggregator run."""

    def __init__(self, arguments, star):
        self.arguments, self.star = arguments, star

    def command(self, host, name, *words):
        inside = ["ip", "netns", "exec", getattr(self.star, host).namespace] if self.star else []
        return [*inside, os.path.join(self.arguments.build, "bin", name), *words]

    def daemon(self, protocol, host="SW", listen=None):
        listen = listen or (getattr(self.star, host).at(0, 4) if self.star else "127.0.0.1:0")
        return Daemon(self.command(host, "netsum", "ps" if protocol == "atp" else "switch", "--anyone-may-join", "--listen", listen))

    def rank(self, number, daemons, protocol, switch="-"):
        addresses = [daemon.address for daemon in daemons]
        standby = addresses.pop() if self.arguments.standby else "-"
        return Rank(self.command(f"H{number}", "elastic_rank", ",".join(addresses), standby, switch, protocol, str(number),
                                 str(self.arguments.ranks), str(self.arguments.elements)))

    def link(self, number, state):
        getattr(self.star, f"H{number}").run("ip", "link", "set", "eth0", state)


class PcclBed(Bed):
    """The same over PCCL, in whose build folder there is pccl_rank.cc's program: its master, at its own port, and its ranks."""

    def daemon(self, *_):
        daemon = Daemon([os.path.join(self.arguments.pccl, "ccoip_master/ccoip_master")], says_address=False)
        while os.system("ss -Hltn sport = :48148 | grep -q .") != 0:
            time.sleep(0.01)
        return daemon

    def rank(self, number, *_):
        command = [os.path.join(self.arguments.pccl, "pccl_rank"), str(number), str(self.arguments.elements)]
        return Rank(["env", "PCCL_LOG_LEVEL=FATAL", *command])
