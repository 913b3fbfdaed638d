#!/usr/bin/python3
"""The real binaries under attack: a proxy that does whatever a network can do, processes that are stopped and killed, and
strangers who send what they like. The sums stay right, the errors name who died, the strangers get nothing.

usage: chaos.py NETSUM HOSTILE_PROXY STRANGER [--seed S] [--rounds R] [unittest arguments]

Each test runs R rounds (1), with seeds S, S+1, ... A failure prints the seed of its round.
"""
import contextlib
import json
import random
import select
import signal
import sys
import time
import unittest

import cli_support as cli

PROXY = STRANGER = None
SEED, ROUNDS = 1, 1
NOTICED_WITHIN = 10


class Proxy(cli.Process):
    """Between workers and a switch. `address` stands for the switch's."""

    def __init__(self, switch, seed, intensity=1.0):
        super().__init__(switch.address, seed, intensity, program=PROXY)
        self.address = self.wait_line(self.out, "listening ").split()[1]

    def admitted(self, job):
        return [each for each in map(json.loads, [line for line in self.out if line.startswith('{"job"')]) if each["job"] == job]

    def stop(self):
        """What it did, by way and kind."""
        self.signal(signal.SIGTERM)
        if self.wait(10) != 0:
            raise AssertionError(f"the proxy failed: {self.err}")
        return json.loads(self.out[-1])


class Job:
    """The ranks of one job. Every rank prints `iteration I` lines, and its own report at the end."""

    def __init__(self, address, world_size, *flags, name="job"):
        self.ranks = []
        self.start = lambda rank: cli.rank_process(address, rank, world_size, "--job", name, *flags)
        try:
            for rank in range(world_size):
                self.ranks.append(self.start(rank))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.__exit__()

    def reports(self, seconds):
        """Of all ranks, once all have ended well."""
        deadline = time.monotonic() + seconds
        for number, rank in enumerate(self.ranks):
            code = rank.wait(max(0.1, deadline - time.monotonic()))
            if code != 0:
                raise AssertionError(f"rank {number} ended with {code}: {rank.err}")
        return [json.loads(rank.out[-1]) for rank in self.ranks]

    def wait_iteration(self, number, iteration):
        self.ranks[number].wait_line(self.ranks[number].out, f"iteration {iteration}", 30)

    def progress(self, number):
        return sum(line.startswith("iteration ") for line in self.ranks[number].out)


def shape_of(rng, *, iterations):
    """Flags of a job: any type, length, packet and window. A few thousand packets a rank."""
    packet = rng.choice([64, 128, 256, 512, 1024])
    chunks = rng.randint(150, 250)
    return ["--dtype", rng.choice(["float32", "int32", "float16", "bfloat16"]), "--op", rng.choice(["sum", "avg"]),
            "--packet-elements", packet, "--elements", packet * chunks - rng.randint(0, 2 * packet), "--warmup", 0,
            "--slots", rng.choice([8, 32, 64]), "--iterations", iterations, "--seed", rng.randint(1, 1 << 40),
            "--threads", rng.choice([1, 2])]


class Chaos(unittest.TestCase):
    def rounds(self, test):
        for seed in range(SEED, SEED + ROUNDS):
            print(f"{self.id()}: seed {seed}", file=sys.stderr, flush=True)
            with self.subTest(seed=seed):
                test(seed, random.Random(f"{self.id()} {seed}"))

    def true_hashes(self, switch, world_size, flags):
        """Of each iteration's result, from the same job without a proxy."""
        with Job(switch.address, world_size, *flags, name="truth") as job:
            return self.check_right(job.reports(60))

    def check_right(self, reports, expected=None):
        """No wrong element on any rank, and the same bits on all."""
        for report in reports:
            self.assertEqual(report["wrong"], 0)
            self.assertEqual(report["hashes"], expected or reports[0]["hashes"])
        return reports[0]["hashes"]

    def check_noticed(self, job, ranks, pattern, within=NOTICED_WITHIN):
        deadline = time.monotonic() + within
        for number in ranks:
            rank = job.ranks[number]
            self.assertEqual(rank.wait(max(0.1, deadline - time.monotonic())), 1, rank.err)
            self.assertEqual(len(rank.error_lines()), 1, rank.err)
            self.assertRegex(rank.error_lines()[0], pattern)

    def check_all_free(self, switch):
        cli.until(lambda: (lambda status: status["slots_free"] == status["slots"])(switch.status()), 10, "all slots are free")


class Network(Chaos):
    def test_every_fault_at_once(self):
        """A job, then the same job again beside another one, so that packets of an earlier life and of another job exist."""
        self.rounds(self.every_fault)

    def every_fault(self, seed, rng):
        threads = rng.choice([1, 2])
        one, other = (3, shape_of(rng, iterations=4)), (rng.choice([2, 4]), shape_of(rng, iterations=6))
        with cli.Switch("--threads", threads, "--heartbeat-timeout-ms", 6000) as switch, Proxy(switch, seed) as proxy:
            truth, other_truth = self.true_hashes(switch, *one), self.true_hashes(switch, *other)
            with Job(proxy.address, one[0], *one[1], name="one") as job:
                self.check_right(job.reports(60), truth)
            with Job(proxy.address, one[0], *one[1], name="one") as job, \
                    Job(proxy.address, other[0], *other[1], name="other") as beside:
                self.check_right(job.reports(60), truth)
                self.check_right(beside.reports(60), other_truth)
            self.check_all_free(switch)
            counters = switch.status()["counters"]
            done = proxy.stop()
            print(json.dumps(done), file=sys.stderr)
            for way in ("up", "down", "control"):
                for kind, count in done[way].items():
                    self.assertGreater(count, 0, f"{way} {kind}: the test did not test it")
            # `length` is of types that only workers take; the drops of a job go with it.
            for name in ("dropped_malformed_truncated", "dropped_malformed_version", "dropped_malformed_type",
                         "dropped_malformed_checksum", "dropped_malformed_field", "dropped_unexpected_type",
                         "dropped_unknown_job", "unknown_job_replies"):
                self.assertGreater(counters[name], 0, name)


class Processes(Chaos):
    FOREVER = ["--elements", 100_000, "--iterations", 1_000_000, "--packet-elements", 256]

    def test_stopped_for_a_while(self):
        """Stragglers: whoever is stopped for less than the patience of the others costs time, and nothing else."""
        self.rounds(self.stopped_for_a_while)

    def stopped_for_a_while(self, seed, rng):
        world_size = rng.choice([3, 4])
        shape = shape_of(rng, iterations=12)
        with cli.Switch("--heartbeat-timeout-ms", 20_000) as switch, Proxy(switch, seed, 0.3) as proxy:
            truth = self.true_hashes(switch, world_size, shape)
            with Job(proxy.address, world_size, *shape) as job:
                job.wait_iteration(0, 1)
                victim = rng.randrange(world_size)
                job.ranks[victim].signal(signal.SIGSTOP)

                def stalled():
                    return any(stall["missing"] == [victim] for each in switch.status()["jobs"] for stall in each["stalled"])
                cli.until(stalled, 15, f"the switch waits for rank {victim} alone")
                job.ranks[victim].signal(signal.SIGCONT)
                self.check_right(job.reports(60), truth)

    def test_stopped_switch(self):
        """A switch that pauses for less than three seconds, in the middle of a job."""
        self.rounds(self.stopped_switch)

    def stopped_switch(self, _, rng):
        shape = shape_of(rng, iterations=300)
        with cli.Switch() as switch:
            truth = self.true_hashes(switch, 3, shape)
            with Job(switch.address, 3, *shape) as job:
                job.wait_iteration(0, 3)
                switch.signal(signal.SIGSTOP)
                select.select([], [], [], rng.uniform(0.1, 1))  # how long it pauses is the fault, not a wait for something
                switch.signal(signal.SIGCONT)
                self.check_right(job.reports(60), truth)

    def test_stopped_for_too_long_or_killed(self):
        """At random: every survivor names the rank, within ten seconds; a stopped one learns it when it goes on."""
        self.rounds(lambda seed, rng: [self.dead(seed, rng, number) for number in (signal.SIGKILL, signal.SIGSTOP)])

    def dead(self, seed, rng, number):
        world_size = rng.choice([3, 4])
        with cli.Switch() as switch, Proxy(switch, seed, 0.5) as proxy, \
                Job(proxy.address, world_size, *self.FOREVER) as job:
            victim = rng.randrange(world_size)
            job.wait_iteration(rng.randrange(world_size), rng.randint(1, 5))
            job.ranks[victim].signal(number)
            self.check_noticed(job, [rank for rank in range(world_size) if rank != victim], rf"rank {victim}\b")
            job.ranks[victim].signal(signal.SIGCONT)
            if number == signal.SIGSTOP:
                self.check_noticed(job, [victim], rf"rank {victim}\b")
            self.check_all_free(switch)

    def test_killed_while_joining(self):
        """A rank that dies while the others are still to come can be started again, and the job is right."""
        self.rounds(self.killed_while_joining)

    def killed_while_joining(self, seed, rng):
        shape = shape_of(rng, iterations=3)
        with cli.Switch() as switch, Proxy(switch, seed, 0.3) as proxy, contextlib.ExitStack() as stack:
            truth = self.true_hashes(switch, 3, shape)

            def joined():
                return [rank for job in switch.status()["jobs"] if job["job"] == "late" for rank in job["joined"]]

            def start(rank):
                return stack.enter_context(cli.rank_process(proxy.address, rank, 3, "--job", "late", *shape,
                                                            "--connect-deadline", 30))
            ranks = [start(0), start(1)]
            cli.until(lambda: joined() == [0, 1], 10, "two of three ranks have joined")
            victim = rng.randrange(2)
            ranks[victim].signal(signal.SIGKILL)
            cli.until(lambda: joined() == [1 - victim], 10, "the killed rank is forgotten")
            ranks[victim] = start(victim)
            ranks.append(start(2))
            for rank in ranks:
                self.assertEqual(rank.wait(60), 0, rank.err)
            self.check_right([json.loads(rank.out[-1]) for rank in ranks], truth)


def take_option(name, value):
    if name not in sys.argv:
        return value
    at = sys.argv.index(name)
    value = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
    return value


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    PROXY, STRANGER = sys.argv.pop(2), sys.argv.pop(2)
    SEED, ROUNDS = take_option("--seed", SEED), take_option("--rounds", ROUNDS)
    cli.main()
