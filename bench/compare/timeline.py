"""How many packets one worker sends in every 10 ms of an all-reduce, with and without losses (SwitchML, Figure 7)."""
import os
import threading
import time

from contenders import Task
from suites import GLOO, MB, SWITCHML

INTERVAL = 0.01
LOSSES = (0, 0.01, 1)


class Counter:
    """Packets that a host sends, sampled, for the length of a `with`."""

    def __init__(self, host):
        self.file = host.inside(lambda: os.open("/proc/thread-self/net/dev", os.O_RDONLY))
        self.done = threading.Event()
        self.samples = []

    def packets(self):
        os.lseek(self.file, 0, os.SEEK_SET)
        line = next(line for line in os.read(self.file, 1 << 14).decode().splitlines() if line.lstrip().startswith("eth0:"))
        return int(line.partition(":")[2].split()[9])

    def run(self):
        begin, number = time.monotonic(), 0
        while not self.done.is_set():
            self.samples.append((time.monotonic() - begin, self.packets()))
            number += 1
            self.done.wait(max(0, begin + number * INTERVAL - time.monotonic()))

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        os.close(self.file)

    def busiest(self):
        """[seconds, packets per 10 ms] of the longest stretch without a pause: the timed all-reduce, which nothing precedes."""
        rates = [(t0, (b - a) * INTERVAL / (t1 - t0)) for (t0, a), (t1, b) in zip(self.samples, self.samples[1:])]
        stretches, current, quiet = [], [], 0
        for at, rate in rates:
            quiet = 0 if rate > 1 else quiet + 1
            if quiet > 30:  # 300 ms: TCP may wait so long for a time-out
                current = []
            else:
                current.append([at, rate])
                stretches.append(current)
        best = max(stretches, key=lambda stretch: sum(rate for _, rate in stretch), default=[])
        while best and best[-1][1] <= 1:
            best = best[:-1]
        while best and best[0][1] <= 1:
            best = best[1:]
        return [[round(at - best[0][0], 4), round(rate, 1)] for at, rate in best]


def measure(place, say):
    task = Task(4, (25 * MB,), iterations=1, warmup=0)
    lines = []
    for who in (SWITCHML, GLOO):
        for loss in LOSSES:
            say(f"packets over time: {who.name}, {loss} % loss")
            place.set(loss, "cubic")
            with Counter(place.hosts[0]) as counter:
                result = who.run(place, task)[25 * MB]
            lines.append({"who": who.name, "loss": loss, "workers": 4, "tat_seconds": result.tat, "wrong": result.wrong,
                          "packets": counter.busiest()})
    return lines
