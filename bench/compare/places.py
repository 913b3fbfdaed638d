"""Where processes run: all on this machine's loopback, or each rank in a host of its own behind a shaped link (scripts/testbed)."""
import os
import re
import subprocess

import machine
from network import ROOT, Star

TESTBED = os.path.join(ROOT, "scripts/testbed")
LEAST_IDLE = 0.10  # of the machine, or a run on shaped links counts for nothing
CHANCES = 3
MOST_BY_OTHERS = 0.10  # of the machine, where the ranks are to use all of it


class Loopback:
    """All processes side by side. An all-reduce uses all CPUs: what must be idle is the machine's other work."""
    shaped = False
    name = "this machine, nothing shaped"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def watch(self):
        return machine.Others()

    def disturbed(self, watched):
        return watched.share > MOST_BY_OTHERS

    def idle(self, _):
        return None  # all-reduces use the whole machine

    def set(self, loss, tcp, lossy=None):
        assert loss == 0, "no links, no losses"


class Shaped:
    """`hosts` hosts around a switch, for the length of a `with`."""
    shaped = True

    def __init__(self, hosts, rate, tcp=("--tcp", "cubic,bbr")):
        self.count, self.rate = hosts, rate
        self.bed = Star(hosts, rate, None, tcp)
        self.state = 0, "cubic", None
        self.name = f"shaped links of {rate}, MTU 1500"

    def __enter__(self):
        self.bed.__enter__()
        self.hosts = [getattr(self.bed, f"H{i}") for i in range(self.count)]
        self.switch = self.bed.SW
        # Of the namespace in which it was opened, whoever reads it.
        self.counters = self.switch.inside(lambda: os.open("/proc/thread-self/net/dev", os.O_RDONLY))
        return self

    def __exit__(self, *_):
        os.close(self.counters)
        self.bed.__exit__()

    def set(self, loss, tcp, lossy=None):
        """From now on: percent that each link loses each way, or of what the host `lossy` sends, and the hosts' congestion control."""
        if (loss, lossy) != (self.state[0], self.state[2]):
            if self.state[0] != 0:
                self.lose(0)
            if loss != 0:
                self.lose(loss, *([lossy] if lossy else []))
        if tcp != self.state[1]:
            for host in self.hosts:
                host.run("sh", "-c", f"echo {tcp} >/proc/sys/net/ipv4/tcp_congestion_control")
        self.state = loss, tcp, lossy

    def lose(self, percent, *hosts):
        subprocess.run([TESTBED, "loss", f"{percent}%", *hosts], check=True, env={**os.environ, **self.bed.environment})

    def sent(self):
        """Bytes that the first host's link has carried, both ways."""
        os.lseek(self.counters, 0, os.SEEK_SET)
        line = next(line for line in os.read(self.counters, 1 << 14).decode().splitlines() if line.lstrip().startswith("port0:"))
        numbers = line.partition(":")[2].split()
        return int(numbers[0]) + int(numbers[8])

    def watch(self):
        return machine.Busy(self.sent, bits(self.rate) / 8 / 20)

    def disturbed(self, watched):
        return watched.share is not None and watched.share < LEAST_IDLE

    def idle(self, watched):
        return watched.share


def bits(rate):
    unit = rate.lstrip("0123456789")
    return int(rate[:-len(unit)]) * {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[unit]


def highest_rate(hosts, rates, idle):
    """The first of `rates` that exact() holds of, with that share of the machine idle; the last if none. What else the machine does may
    keep links from being exact, and nothing can make them so: each rate has several chances."""
    for rate in rates[:-1]:
        for _ in range(CHANCES):
            print(f"  {hosts} hosts: are links of {rate} exact?", flush=True)
            if exact(hosts, rate, idle):
                return rate
    return rates[-1]


def exact(hosts, rate, idle):
    """Whether pairs of hosts reach 99 % of each link at once, and leave that share of the machine idle."""
    check = subprocess.run([TESTBED, "--rate", rate, "--hosts", str(hosts), "--check"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    print(check.stdout, end="", flush=True)
    return check.returncode == 0 and least_idle(check.stdout) >= idle


def least_idle(report):
    """The smallest share of the machine that scripts/testbed --check says was idle."""
    return min((int(percent) / 100 for percent in re.findall(r"(\d+) % of the machine idle", report)), default=0)
