#!/usr/bin/python3
"""Jobs that start, end, die and recover at one switch and one parameter server, for as long as is asked: at the end both daemons have
the memory, threads and descriptors that they had after the first minute.

usage: soak.py NETSUM [MINUTES] [--seed S]          (scripts/soak builds first)

Of both daemons a table is printed, a line a minute: taken when all ranks have ended, since their connections are descriptors.
It fails if a daemon ends, if a job ends otherwise than it was to, and if at the end
  - threads or descriptors are more than after the first minute, or
  - the resident memory is more than MEMORY_BOUND above it, or
  - a slot is still somebody's.
"""
import collections
import json
import os
import random
import signal
import sys
import threading
import time
import traceback

import cli_support as cli

MEMORY_BOUND = 8 << 20
AT_A_TIME = 3  # jobs
SMALL = ["--elements", 50_000, "--warmup", 0]
LONGEST_JOB = 90
SETTLING = 60


class Soak:
    def __init__(self, seed):
        self.seed = seed
        self.switch = cli.Switch("--threads", 2)
        self.server = cli.ParameterServer("--threads", 2)
        self.daemons = {"switch": self.switch, "server": self.server}
        self.done = collections.Counter()
        self.complaints = []
        self.lock = threading.Lock()

    # ---- jobs: each takes a name and a random number generator

    def ranks(self, name, count, *flags, protocol="switchml"):
        servers = ["--ps", self.server.address] if protocol == "atp" else []
        return [lambda rank=rank: cli.rank_process(self.switch.address, rank, count, "--job", name, "--protocol", protocol, *servers,
                                                   *SMALL, *flags) for rank in range(count)]

    def ends(self, name, rng):
        """Starts and ends well."""
        protocol = rng.choice(["switchml", "atp", "netreduce", "shm"])
        flags = ["--iterations", rng.randint(1, 30)]
        if protocol == "shm":
            protocol, flags = "switchml", [*flags, "--transport", "shm"]
        processes = [start() for start in self.ranks(name, rng.randint(1, 4) if protocol != "netreduce" else 3, *flags, protocol=protocol)]
        self.expect(processes, [0] * len(processes))

    def dies(self, name, rng):
        """A rank is killed; the others say so and end."""
        protocol = rng.choice(["switchml", "atp", "netreduce", "shm"])
        flags = ["--iterations", 1_000_000]
        if protocol == "shm":
            protocol, flags = "switchml", [*flags, "--transport", "shm"]
        processes = [start() for start in self.ranks(name, 3, *flags, protocol=protocol)]
        try:
            processes[0].wait_line(processes[0].out, f"iteration {rng.randint(1, 5)}", LONGEST_JOB)
        finally:
            processes[1].signal(signal.SIGKILL)
        self.expect(processes, [1, -signal.SIGKILL, 1])

    def recovers(self, name, rng):
        """A rank is killed and started again; the job goes on and ends well."""
        protocol = rng.choice(["switchml", "atp"])
        starts = self.ranks(name, 2, "--iterations", 100, "--recovery", 60, protocol=protocol)
        processes = [start() for start in starts]
        try:
            processes[0].wait_line(processes[0].out, "iteration 3", LONGEST_JOB)
        finally:
            processes[1].signal(signal.SIGKILL)
        processes.append(starts[1]())
        self.expect(processes, [0, -signal.SIGKILL, 0])

    def stays_alone(self, name, rng):
        """A rank whose others never come."""
        start = self.ranks(name, 2, "--connect-deadline", 1, protocol=rng.choice(["switchml", "atp"]))[0]
        self.expect([start()], [None])

    def expect(self, processes, codes):
        """None: any but 0."""
        deadline = time.monotonic() + LONGEST_JOB
        try:
            for process, code in zip(processes, codes):
                got = process.wait(max(1, deadline - time.monotonic()))
                if got != code if code is not None else got == 0:
                    raise AssertionError(f"a rank ended with {got}, not {code}: {process.error_lines() or process.err}")
        finally:
            for process in processes:
                process.__exit__()

    def work(self, thread, round_number, until):
        rng = random.Random(f"{self.seed} {thread} {round_number}")
        number = 0
        while time.monotonic() < until:
            number += 1
            kind = rng.choices([self.ends, self.dies, self.recovers, self.stays_alone], [6, 1, 1, 1])[0]
            name = f"soak-{thread}-{round_number}-{number}"
            try:
                kind(name, rng)
                with self.lock:
                    self.done[kind.__name__] += 1
            except Exception:
                with self.lock:
                    self.complaints.append(f"{name} ({kind.__doc__}): {traceback.format_exc(limit=1)}")

    # ---- daemons

    @staticmethod
    def state(process):
        with open(f"/proc/{process.pid}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        names = []
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            try:
                with open(f"/proc/{process.pid}/task/{thread}/comm") as name:
                    names.append(name.read().strip())
            except FileNotFoundError:  # it has just ended
                pass
        return {"rss": int(fields["VmRSS"].split()[0]) << 10, "threads": len(names),
                "descriptors": len(os.listdir(f"/proc/{process.pid}/fd")), "names": sorted(names)}

    def settled(self, reference):
        """States of the daemons, once none has more threads or descriptors than in `reference`; or a minute later."""
        deadline = time.monotonic() + SETTLING
        while True:
            states = {name: self.state(process) for name, process in self.daemons.items()}
            if time.monotonic() > deadline or all(states[name][what] <= reference[name][what] for name in states
                                                  for what in ("threads", "descriptors")):
                return states
            cli.select.select([], [], [], 0.1)

    def settled_alone(self):
        """Likewise, without a reference: once nothing has become less for five seconds."""
        least, since = None, time.monotonic()
        while time.monotonic() < since + 5:
            states = {name: self.state(process) for name, process in self.daemons.items()}
            key = [(state["threads"], state["descriptors"]) for state in states.values()]
            if least is None or any(new < old for now, then in zip(key, least) for new, old in zip(now, then)):
                least, since = key, time.monotonic()
            cli.select.select([], [], [], 0.1)
        return states

    @staticmethod
    def is_free(process):
        """Whether the daemon has no job, and all of its slots."""
        result = cli.run("status", "--switch", process.address, "--json")
        if result.returncode != 0:
            return False
        status = json.loads(result.stdout)
        return status["jobs"] == [] and status["slots_free"] == status["slots"]

    def run(self, minutes):
        began = time.monotonic()
        end = began + 60 * minutes
        reference, states, round_number = None, None, 0
        print(f"{'s':>6} {'ended':>6} {'died':>5} {'back':>5} {'alone':>5} " +
              " ".join(f"{name + ' MB':>10} {'threads':>7} {'fds':>4}" for name in self.daemons), flush=True)
        while reference is None or time.monotonic() < end:
            round_number += 1
            until = time.monotonic() + 60
            threads = [threading.Thread(target=self.work, args=(each, round_number, until)) for each in range(AT_A_TIME)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            states = self.settled(reference) if reference else self.settled_alone()
            reference = reference or states
            print(f"{time.monotonic() - began:6.0f} {self.done['ends']:6} {self.done['dies']:5} {self.done['recovers']:5} "
                  f"{self.done['stays_alone']:5} " +
                  " ".join(f"{state['rss'] / 2**20:10.1f} {state['threads']:7} {state['descriptors']:4}" for state in states.values()),
                  flush=True)
            if self.complaints:
                break
        for name, state in states.items():
            for what in ("threads", "descriptors"):
                if state[what] > reference[name][what]:
                    self.complaints.append(f"the {name} has {state[what]} {what}, and had {reference[name][what]} after the first minute"
                                           f" ({state['names']})")
            if state["rss"] > reference[name]["rss"] + MEMORY_BOUND:
                self.complaints.append(f"the {name} has {state['rss'] >> 20} MB, and had {reference[name]['rss'] >> 20}")
        for name, process in self.daemons.items():
            try:  # a failed job is shown for 30 s
                cli.until(lambda: self.is_free(process), 60, f"no job, and all slots free, at the {name}")
            except AssertionError as error:
                self.complaints.append(str(error))
            process.signal(signal.SIGTERM)
            if process.wait(20) != 0:
                self.complaints.append(f"the {name} ended with {process.process.returncode}: {process.err[-3:]}")
        for complaint in self.complaints:
            print(complaint)
        print("failed" if self.complaints else f"the same after {sum(self.done.values())} jobs as after the first minute")
        return 1 if self.complaints else 0


def main():
    arguments = sys.argv[1:]
    seed = 1
    if "--seed" in arguments:
        seed = int(arguments.pop(arguments.index("--seed") + 1))
        arguments.remove("--seed")
    if not 1 <= len(arguments) <= 2:
        sys.exit(__doc__)
    cli.NETSUM = os.path.abspath(arguments[0])
    soak = Soak(seed)
    try:
        sys.exit(soak.run(float(arguments[1]) if len(arguments) == 2 else 30))
    finally:
        for daemon in soak.daemons.values():
            daemon.__exit__()


if __name__ == "__main__":
    main()
