#!/usr/bin/python3
"""The real binaries under attack: a proxy that does whatever a network can do, processes that are stopped and killed, and
strangers who send what they like. The sums stay right, the errors name who died, the strangers get nothing.

usage: chaos.py NETSUM HOSTILE_PROXY STRANGER [--seed S] [--rounds R] [unittest arguments]

Each test runs R rounds (1), with seeds S, S+1, ... A failure prints the seed of its round.
"""
import contextlib
import json
import random
import re
import select
import signal
import socket
import sys
import threading
import time
import traceback
import unittest
import urllib.request

import cli_support as cli

PROXY = STRANGER = COMMAND = None
SEED, ROUNDS = 1, 1
NOTICED_WITHIN = 10
MAGIC = b"netsum 2\r\n\r\n"


class Proxy(cli.Process):
    """Between workers and a switch. `address` stands for the switch's."""

    def __init__(self, switch, seed, intensity=1.0):
        super().__init__(switch.address, seed, intensity, program=PROXY)
        self.address = self.wait_line(self.out, "listening ").split()[1]

    def admitted(self, job):
        lines = [json.loads(line) for line in self.out if line.startswith('{"job"')]
        return [line for line in lines if line["job"] == job]

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
        self.start = lambda rank: cli.rank_process(address, rank, world_size, "--job", name, "--local-checksums", *flags)
        try:
            for rank in range(world_size):
                self.ranks.append(self.start(rank))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind=None, *_):
        for number, rank in enumerate(self.ranks):
            rank.__exit__()
            if kind is not None:
                print(f"rank {number}: {rank.process.returncode}, last words {rank.out[-1:]}, {rank.err}", file=sys.stderr)

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
    packet = rng.choice([64, 128, 256, 320, 512, 1024])
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
                try:
                    test(seed, random.Random(f"{self.id()} {seed}"))
                except BaseException:
                    traceback.print_exc()  # now: a long run may be read before its end
                    print(f"to run this round again: {COMMAND} --seed {seed} {self.id().removeprefix('__main__.')}",
                          file=sys.stderr, flush=True)
                    raise

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
        def free():
            status = switch.status()
            return status["slots_free"] == status["slots"]
        cli.until(free, 10, "all slots are free")


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
        shape = shape_of(rng, iterations=40)
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

    def test_killed(self):
        """At random: every survivor names the rank, within ten seconds."""
        self.rounds(self.killed)

    def killed(self, seed, rng):
        world_size = rng.choice([3, 4])
        with cli.Switch() as switch, Proxy(switch, seed, 0.5) as proxy, \
                Job(proxy.address, world_size, *self.FOREVER) as job:
            victim = rng.randrange(world_size)
            job.wait_iteration(rng.randrange(world_size), rng.randint(1, 5))
            job.ranks[victim].signal(signal.SIGKILL)
            self.check_noticed(job, [rank for rank in range(world_size) if rank != victim], rf"rank {victim}\b")
            self.check_all_free(switch)

    def test_stopped_for_too_long(self):
        """The others name the rank and start again without it; when it wakes it learns that it is dead, and disturbs nobody."""
        self.rounds(self.stopped_for_too_long)

    def stopped_for_too_long(self, seed, rng):
        shape = shape_of(rng, iterations=60)
        with cli.Switch("--heartbeat-timeout-ms", 3000) as switch, Proxy(switch, seed, 0.3) as proxy:
            truth = self.true_hashes(switch, 3, shape)
            with Job(proxy.address, 3, *self.FOREVER) as job:
                victim = rng.randrange(3)
                job.wait_iteration(rng.randrange(3), rng.randint(1, 5))
                job.ranks[victim].signal(signal.SIGSTOP)
                self.check_noticed(job, [rank for rank in range(3) if rank != victim], rf"rank {victim}\b")
                with Job(proxy.address, 3, *shape) as again:
                    again.wait_iteration(0, 1)
                    job.ranks[victim].signal(signal.SIGCONT)
                    self.check_noticed(job, [victim], rf"rank {victim}\b")
                    self.check_right(again.reports(60), truth)
            self.check_all_free(switch)

    def test_switch_killed(self):
        """Every rank says so; another switch at the same address serves the same job, and nothing of the former life gets in."""
        self.rounds(self.switch_killed)

    def switch_killed(self, seed, rng):
        shape = shape_of(rng, iterations=6)
        with cli.Switch() as switch, Proxy(switch, seed) as proxy:
            truth = self.true_hashes(switch, 3, shape)
            with Job(proxy.address, 3, *self.FOREVER) as job:
                job.wait_iteration(rng.randrange(3), rng.randint(1, 5))
                switch.signal(signal.SIGKILL)
                switch.wait(5)
                if rng.random() < 0.5:
                    self.check_noticed(job, range(3), "has not answered|no longer serves")
                with cli.Switch(listen=switch.address) as again:
                    self.check_noticed(job, range(3), "restarted|has not answered|no longer serves")
                    with Job(proxy.address, 3, *shape) as job_again:
                        self.check_right(job_again.reports(60), truth)
                    self.check_all_free(again)

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
                                                            "--local-checksums", "--connect-deadline", 30))
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


class Garbage:
    """Throws bytes that are no calls at TCP ports until it is told to stop: noise, other protocols, halves of calls."""

    def __init__(self, seed, *addresses):
        self.random = random.Random(seed)
        self.addresses = [(address.rsplit(":", 1)[0], int(address.rsplit(":", 1)[1])) for address in addresses]
        self.stopping = threading.Event()
        self.connections = 0
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join(10)

    def frame(self, kind, payload, length=None):
        return (len(payload) if length is None else length).to_bytes(4, "little") + bytes([kind, 0, 0, 0]) + payload

    def bytes(self):
        noise = self.random.randbytes(self.random.randrange(2000))
        kind = self.random.randrange(1, 25)
        frame = self.frame(kind, noise[:1000])
        return self.random.choice([
            noise,
            b"",
            b"GET /metrics HTTP/1.1\r\nHost: " + b"h" * self.random.randrange(20_000),
            b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + noise,
            b"\x16\x03\x01" + noise,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise,
            MAGIC + noise,
            MAGIC + frame,
            MAGIC + frame[:self.random.randrange(200)],
            MAGIC + self.frame(kind, noise, self.random.randrange(1 << 32)),
            # What a caller may say first and next, but for the message; requests come behind both.
            MAGIC + self.frame(1, noise[:1000]) + self.frame(3, b"") + frame])

    def run(self):
        kept = []
        while not self.stopping.is_set():
            try:
                connection = socket.create_connection(self.random.choice(self.addresses), timeout=1)
                connection.sendall(self.bytes())
                kept.append(connection)  # half of them stay open for a while
                self.connections += 1
                if len(kept) > 50:
                    kept.pop(self.random.randrange(len(kept))).close()
            except OSError:
                pass  # it hung up on us
            self.stopping.wait(0.02 if cli.is_sanitized() else 0.002)
        for connection in kept:
            connection.close()


class Strangers(Chaos):
    a_second = 1000 if cli.is_sanitized() else 5000  # more, and a sanitizer's daemon has no time for calls

    def test_stranger(self):
        """Forged and malformed datagrams, calls and connections, thousands a second, from one who knows the job's epochs."""
        self.rounds(self.stranger)

    def stranger(self, seed, rng):
        iterations, world_size, victim = 300, 3, 1
        shape = shape_of(rng, iterations=iterations)
        metrics = free_address()
        # The job has both lanes: at others its packets are those of an unknown job.
        with cli.Switch("--threads", 2, "--lanes", 2, "--metrics", metrics, "--heartbeat-timeout-ms", 20_000) as switch, \
                Proxy(switch, seed, 0) as proxy:
            truth = self.true_hashes(switch, world_size, shape)
            with Job(proxy.address, world_size, *shape) as job:
                admitted = cli.until(lambda: len(proxy.admitted("job")) == world_size and proxy.admitted("job"), 20, "a job")

                # A stopped rank holds the job back, however slow this process is, while something else is to happen.
                def advance(until_iteration):
                    job.ranks[victim].signal(signal.SIGCONT)
                    cli.until(lambda: job.progress(0) >= until_iteration, 60, f"iteration {until_iteration}")
                    job.ranks[victim].signal(signal.SIGSTOP)

                job.ranks[victim].signal(signal.SIGSTOP)
                ranks = sorted(admitted, key=lambda each: each["rank"])
                knowledge = {"control": switch.address, "job": "job", "job_epoch": ranks[0]["job_epoch"],
                             "rank_epochs": [rank["rank_epoch"] for rank in ranks],
                             "packet_elements": ranks[0]["packet_elements"], "slots": ranks[0]["slots"],
                             "workers": [address for rank in ranks for address in rank["worker"]],
                             "believed": [rank["to_switch"][0] for rank in ranks]}
                with cli.Process(seed, self.a_second, json.dumps(knowledge), program=STRANGER) as stranger, \
                        Garbage(seed, switch.address, metrics) as garbage:
                    stranger.wait_line(stranger.out, "storming")
                    first = job.progress(0)
                    self.assertLess(first, iterations / 2, "the storm came too late")
                    advance(first + iterations // 8)
                    halfway = switch.status()
                    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as reply:
                        text = reply.read().decode()
                    advance(first + iterations // 4)
                    stranger.signal(signal.SIGTERM)
                    self.assertEqual(stranger.wait(10), 0, stranger.err)
                    self.assertLess(job.progress(0), iterations, "the storm outlasted the job, whose epoch is then unknown")
                    job.ranks[victim].signal(signal.SIGCONT)
                    self.check_right(job.reports(60), truth)
                told = json.loads(stranger.out[-1])
                print(json.dumps(told), garbage.connections, "connections", file=sys.stderr)
            self.check_counted(told, halfway, text)
            self.check_said(switch)
            self.check_entitled(told, switch.status()["counters"])
            self.check_all_free(switch)
            self.assertGreater(garbage.connections, 20)
            with Job(switch.address, world_size, *shape) as job:  # as if nothing had been
                self.check_right(job.reports(60), truth)

    def check_counted(self, told, halfway, text):
        """Every kind of datagram was sent, and every reason to drop one was counted and is in the metrics."""
        for kind in ("noise", "noise_with_head", "truncated", "oversized", "checksum", "unknown_job", "rank_epoch", "source",
                     "rank", "type", "probe_short", "probe", "worker_noise", "worker_unknown_job", "worker_mismatch",
                     "worker_result"):
            self.assertGreater(told["sent"].get(kind, 0), 0, kind)
        job = next(job for job in halfway["jobs"] if job["job"] == "job")
        self.assertEqual(job["state"], "running")
        reasons = ["dropped_malformed_" + each for each in ("truncated", "version", "type", "checksum", "field")]
        for name in reasons + ["dropped_unexpected_type", "dropped_unknown_job", "unknown_job_replies", "probes"]:
            self.assertGreater(halfway["counters"][name], 0, name)
            self.assertRegex(text, rf"(?m)^netsum_{name}_total [1-9]")
        for name in ("dropped_rank", "dropped_rank_epoch", "dropped_source"):
            self.assertGreater(job["counters"][name], 0, name)
            self.assertTrue(re.search(rf'(?m)^netsum_job_{name}_total{{job="job"}} [1-9]', text), name)
        self.assertEqual(job["counters"]["dropped_mismatch"], 0)  # no forgery came as far as a slot

    def check_said(self, switch):
        """The log says why packets were dropped, and where one came from, once and not for each."""
        for reason in ("dropped_rank", "dropped_rank_epoch", "dropped_source"):
            lines = [line for line in switch.err if "packets were dropped, since" in line and f"({reason})" in line]
            self.assertIn(len(lines), (1, 2), (reason, switch.err[-50:]))
            self.assertRegex(lines[0], r"; one came from 127\.0\.0\.[12]:\d+$")

    def check_entitled(self, told, counters):
        self.assertEqual(told["not_entitled"], 0, told["examples"])
        self.assertEqual(told["control"]["believed"], 0)
        for calls in ("heartbeats", "leaves", "joins"):
            self.assertGreater(told["control"][calls], 0)
        self.assertGreater(told["probe_replies"], 0)
        self.assertGreater(told["unknown_job_replies"], 0)
        self.assertLess(told["received_bytes"], told["sent_bytes"] / 10)
        # 64 in 10 ms on each of two lanes, and bursts that ask for more.
        self.assertLess(told["unknown_job_replies"], 2 * 64 * (told["seconds"] * 100 + 2))
        self.assertLess(counters["unknown_job_replies"], counters["dropped_unknown_job"])
        self.assertLessEqual(told["unknown_job_replies"], counters["unknown_job_replies"])


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


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
    COMMAND = " ".join(sys.argv[:4])
    PROXY, STRANGER = sys.argv.pop(2), sys.argv.pop(2)
    SEED, ROUNDS = take_option("--seed", SEED), take_option("--rounds", ROUNDS)
    cli.main()
