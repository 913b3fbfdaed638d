"""The machine that a comparison runs on: what it is, and what else it did meanwhile."""
import glob
import os
import platform
import re
import resource
import subprocess
import threading
import time

TICK = os.sysconf("SC_CLK_TCK")
USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL = range(8)


def cpu():
    """Seconds of all CPUs together since the start, by kind (see above)."""
    with open("/proc/stat", encoding="ascii") as file:
        return [int(each) / TICK for each in file.readline().split()[1:9]]


def idle_share(before, after):
    spent = [b - a for a, b in zip(before, after)]
    return (spent[IDLE] + spent[IOWAIT]) / max(sum(spent), 1e-9)


class Others:
    """What share of the machine all but our own child processes used, for the length of a `with`. Interrupts do not count: they
    are mostly our packets'; what the hypervisor gave to others does."""

    lent = 0.0  # seconds of processes that are not waited for here

    def own(self):
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        mine = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime + mine.ru_utime + mine.ru_stime + Others.lent

    def __enter__(self):
        self.before = cpu(), self.own()
        return self

    def __exit__(self, *_):
        (before, own), after = self.before, cpu()
        spent = [b - a for a, b in zip(before, after)]
        busy = spent[USER] + spent[NICE] + spent[SYSTEM] + spent[STEAL]
        self.share = max(0.0, busy - (self.own() - own)) / max(sum(spent), 1e-9)


class Busy:
    """What share of the machine was idle while `count` (packets of a link, say) grew, for the length of a `with`."""
    INTERVAL = 0.05
    # Whether what is measured gets processors before all that has a low priority, whose time is then free as well.
    first = os.getpriority(os.PRIO_PROCESS, 0) <= -10

    def __init__(self, count, least):
        """least: what it must grow in a second to count as growing."""
        self.count, self.least = count, least
        self.done = threading.Event()
        self.spent, self.idle = 0.0, 0.0

    def run(self):
        last, ticks, at = self.count(), cpu(), time.monotonic()
        while not self.done.wait(self.INTERVAL):
            now, ticks_now, time_now = self.count(), cpu(), time.monotonic()
            if now - last >= self.least * (time_now - at):
                spent = [b - a for a, b in zip(ticks, ticks_now)]
                self.spent += sum(spent)
                self.idle += spent[IDLE] + spent[IOWAIT] + (spent[NICE] if self.first else 0)
            last, ticks, at = now, ticks_now, time_now

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    @property
    def share(self):
        return self.idle / self.spent if self.spent else None


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except OSError:
        return ""


def read(path):
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def processor(cpuinfo="/proc/cpuinfo", caches="/sys/devices/system/cpu/cpu0/cache"):
    """Model, family, vector extensions and caches of the first CPU; None: the system does not tell."""
    first = read(cpuinfo).split("\n\n")[0]
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    flags = fields.get("flags", fields.get("Features", "")).split()
    sizes = {}
    for folder in glob.glob(os.path.join(caches, "index*")):
        level, kind, size = (read(os.path.join(folder, name)).strip() for name in ("level", "type", "size"))
        sizes[f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")] = size
    return {"model": fields.get("model name", platform.machine()),
            "family": f"{fields['cpu family']} model {fields['model']}" if {"cpu family", "model"} <= fields.keys() else None,
            "vectors": sorted(flag for flag in flags if re.match("avx|vaes|vpclmulqdq|gfni|fma$|f16c|asimd|sve", flag)) or None,
            "caches": sizes or None}


def describe():
    """One line that says what this machine and the peers on it are."""
    memory = int(read("/proc/meminfo").split()[1]) * 1024
    torch = output("/usr/bin/python3", "-c", "import torch; print(torch.__version__)").split("+")[0]
    mpi = output("mpirun", "--version").splitlines()
    return (f"{os.cpu_count()} CPUs ({processor()['model']}), {memory / 2**30:.0f} GiB, Linux {platform.release()}; "
            f"Gloo of PyTorch {torch or '?'}, {mpi[0].replace('mpirun (', '').replace(')', '') if mpi else 'no Open MPI'}")
