"""How many packets one worker sends in every 10 ms of an all-reduce, with and without losses (SwitchML, Figure 7)."""
import bisect
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

    def busiest(self, seconds):
        """[seconds, packets] of every 10 ms of the time in which most were sent: that of the all-reduce, not of joining and leaving.

        Samples come late on a busy machine: between two of them packets are taken to be evenly spread."""
        steps = round(seconds / INTERVAL) + 1
        grid = [self.at(number * INTERVAL) for number in range(int(self.samples[-1][0] / INTERVAL) + steps + 1)]
        first = max(range(len(grid) - steps), key=lambda start: grid[start + steps] - grid[start])
        return [[round(number * INTERVAL, 2), round(grid[first + number + 1] - grid[first + number], 1)] for number in range(steps)]

    def at(self, when):
        """Packets sent until then."""
        after = bisect.bisect_right(self.samples, (when, float("inf")))
        if after in (0, len(self.samples)):
            return self.samples[min(after, len(self.samples) - 1)][1]
        (t0, a), (t1, b) = self.samples[after - 1:after + 1]
        return a + (b - a) * (when - t0) / (t1 - t0)


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
                          "packets": counter.busiest(result.tat)})
    return lines
