"""Who competes: netsum's protocols, Gloo and Open MPI, each started as its users would, for one run at a place."""
import atexit
import dataclasses
import functools
import json
import os
import re
import secrets
import signal
import statistics
import subprocess
import tempfile
import threading

import machine
from network import NETSUM, ROOT
from draw import ring
from places import bits

PYTHON = "/usr/bin/python3"  # the one that has torch
GLOO = os.path.join(ROOT, "bench/peers/collectives_gloo.py")
MPI = os.path.join(ROOT, "build/release/bin/collectives_mpi")
ENTER_HOST = os.path.join(ROOT, "bench/compare/enter_host")
WITH_VECTORS = os.path.join(ROOT, "bench/vectors/with_vectors")
LIMIT = 240  # seconds that one process may take
OPEN = ("--anyone-may-join",)  # nobody else is in the testbed's networks
SLICE = 512_000  # bytes


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be done, whoever does it."""
    workers: int
    elements: tuple
    iterations: int = 1
    warmup: int = 1
    warmup_elements: int = 1 << 40  # of warm-up tensors at most: slow links need not carry all of them twice
    back_to_back: bool = False


@dataclasses.dataclass
class Result:
    """Of one tensor length."""
    tat: float  # seconds, the median
    p99: float
    wrong: int
    aggregator: str
    bytes_per_worker: float = None
    packets_per_worker: float = None
    repeated_per_worker: float = None  # of these packets
    cpu_per_worker: float = None  # seconds of processor time
    received_per_worker: float = None  # bytes


class Failed(Exception):
    pass


class Children:
    """Processes, each in a group of its own, none of which is left after a `with`. All are of this session: where the kernel groups
    what it schedules by sessions (autogroup), ranks on one machine would else take turns as strangers do, and only some contenders' would."""

    def __enter__(self):
        self.all = []
        return self

    def start(self, command, host=None, silent=False, **how):
        error = tempfile.TemporaryFile(mode="w+")
        prefix = ["ip", "netns", "exec", host.namespace] if host else []
        process = subprocess.Popen([*prefix, *map(str, command)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL if silent else subprocess.PIPE, stderr=error, text=True,
                                   process_group=0, **how)
        process.errors = error
        self.all.append(process)
        return process

    def finish(self, process):
        """What it printed. It must have succeeded."""
        try:
            out, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(process.args)}: no end after {LIMIT} s") from None
        if process.returncode != 0:
            raise Failed(f"{' '.join(process.args)}: exit code {process.returncode}\n{self.complaints()}")
        return out

    def complaints(self):
        """The last that each process said: who fails first knows why."""
        lines = []
        for process in self.all:
            process.errors.seek(0)
            lines += process.errors.read().strip().splitlines()[-2:]
        return "\n".join(lines)

    def daemon(self, command, host):
        """The address at which it listens, once it does."""
        process = self.start(command, host)
        line = process.stdout.readline()
        if not line.startswith("listening "):
            self.finish(process)
            raise Failed(f"{' '.join(process.args)} does not listen")
        return line.split()[1]

    def __exit__(self, *_):
        for process in self.all:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self.all:
            process.wait()
            if process.stdout:
                process.stdout.close()
            process.errors.close()


@functools.cache
def help_text():
    return subprocess.run([NETSUM, "bench", "all-reduce", "--help"], capture_output=True, text=True).stdout


@dataclasses.dataclass(frozen=True)
class Netsum:
    name: str
    protocol: str = "switchml"
    flags: tuple = ()
    shards: bool = False  # on shaped links: an aggregator on each worker's host, in place of one at the switch
    vectors: str = ""  # no wider ones than these: what a processor without them would do
    collective: str = "all-reduce"

    def missing(self):
        """A flag that this build does not know."""
        known = help_text()
        return next((flag for flag in self.flags if flag.startswith("--") and flag not in known), None)

    def run(self, place, task):
        return {elements: self.run_length(place, task, elements) for elements in task.elements}

    def run_length(self, place, task, elements):
        words = ["bench", self.collective, "--json", "--protocol", self.protocol, "--elements", elements, "--iterations", task.iterations,
                 "--warmup", task.warmup, *self.flags, *(["--back-to-back"] if task.back_to_back else [])]
        if task.warmup_elements < elements:
            words += ["--warmup-elements", task.warmup_elements]
        assert not (self.vectors and place.shaped), "on links the vectors make no difference"
        with Children() as children:
            if place.shaped:
                ranks = self.start_ranks(children, place, task, words)
            else:
                narrow = [WITH_VECTORS, self.vectors] if self.vectors else []
                ranks = [children.start([*narrow, NETSUM, *words, "--workers", task.workers])]
            report = json.loads(children.finish(ranks[0]))
            for process in ranks[1:]:
                children.finish(process)
        times = report["tat_seconds"]
        # Without addresses, which differ from run to run.
        aggregator = self.where(task) if place.shaped else re.sub(r" ?\(?127\.0\.0\.1:\d+\)?", "", report["placement"].split(",")[0])
        if not place.shaped:
            aggregator += ", on this host, no link"
        return Result(times["median"], times["p99"], report["wrong"], aggregator, report["wire_bytes_per_worker"]["sent"],
                      report["packets"]["sent"], report["packets"]["retransmitted"], report["cpu_seconds_per_worker"],
                      report["wire_bytes_per_worker"]["received"])

    def where(self, task):
        if self.shards:
            return f"{task.workers} equal shards, on the workers' hosts, behind the workers' ports"
        if self.protocol == "atp":
            return "at the switch, port unshaped; parameter server on a host of its own, port shaped like a worker's"
        return "at the switch, port unshaped"

    def start_ranks(self, children, place, task, words):
        hosts = place.hosts[:task.workers]
        if self.shards:
            switches = [children.daemon([NETSUM, "switch", *OPEN, "--listen", host.at(0, 4)], host) for host in hosts]
        else:
            switches = [children.daemon([NETSUM, "switch", *OPEN, "--listen", place.switch.at(0, 4)], place.switch)]
        where = ["--switch", ",".join(switches)]
        if self.protocol == "atp":
            server = place.hosts[-1]
            where += ["--ps", children.daemon([NETSUM, "ps", *OPEN, "--listen", server.at(0, 4)], server)]
        return [children.start([NETSUM, *words, *where, "--rank", rank, "--world-size", task.workers], host, silent=rank > 0)
                for rank, host in enumerate(hosts)]


@functools.cache
def certificate_for(address):
    """PEM files of a certificate and its key, until the process ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    files = [os.path.join(folder.name, name) for name in ("cert.pem", "key.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=netsum", "-addext",
                    f"subjectAltName=IP:{address}", "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


@functools.cache
def job_key_file():
    """A secret of ranks, until the process ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = os.path.join(folder.name, "key")
    with open(path, "w") as file:
        file.write(secrets.token_hex(32))
    return path


@dataclasses.dataclass(frozen=True)
class Sealed(Netsum):
    """SwitchML through a daemon with TLS, whatever its packets have. On one host they have seals because its ranks are told to
    distrust the loopback device."""
    security: str = "none"
    private: bool = False  # aggregators add values that they cannot read

    @property
    def protection(self):
        return "private sums" if self.private else {"none": "checksums", "tag": "tags", "encrypt": "encryption"}[self.security]

    def run_length(self, place, task, elements):
        where, hosts, address = (place.switch, place.hosts[:task.workers], place.switch.addresses[4]) if place.shaped else \
            (None, [None] * task.workers, "127.0.0.1")
        certificate, key = certificate_for(address)
        narrow = [WITH_VECTORS, self.vectors] if self.vectors else []
        private = ["--private", "--job-key-file", job_key_file()] if self.private else []
        with Children() as children:
            switch = children.daemon([*narrow, NETSUM, "switch", *OPEN, "--listen", f"{address}:0", "--tls-cert", certificate, "--tls-key",
                                      key, "--packet-security", self.security], where)
            ranks = [children.start([*narrow, NETSUM, "bench", "all-reduce", "--json", "--elements", elements, "--iterations", task.iterations,
                                     "--warmup", task.warmup, "--switch", switch, "--tls-ca", certificate, "--rank", rank, "--world-size",
                                     task.workers, *private, *([] if place.shaped else ["--local-checksums"])], host, silent=rank > 0)
                     for rank, host in enumerate(hosts)]
            report = json.loads(children.finish(ranks[0]))
            for process in ranks[1:]:
                children.finish(process)
        times = report["tat_seconds"]
        return Result(times["median"], times["p99"], report["wrong"], self.where(task) if place.shaped else "on this host, no link",
                      report["wire_bytes_per_worker"]["sent"], report["packets"]["sent"], report["packets"]["retransmitted"])


@dataclasses.dataclass(frozen=True)
class LinkOf:
    """The least that a contender's packets take: what a worker sends, but for repeats, or receives, at the rate of its link."""
    name: str
    who: Netsum
    down: bool = False

    def missing(self):
        return self.who.missing()

    def run(self, place, task):
        results = self.who.run(place, task)
        for each in results.values():
            new = 1 - each.repeated_per_worker / each.packets_per_worker
            carried = each.received_per_worker if self.down else each.bytes_per_worker * new
            each.tat = each.p99 = carried * 8 / bits(place.rate)
        return results


@dataclasses.dataclass(frozen=True)
class IdealRing:
    """The least that a reduce-scatter and an all-gather of a ring take, one after the other or not: 2 (n - 1) / n of the tensor each way,
    in full TCP segments, at the rate of the link."""
    name: str

    def missing(self):
        return None

    def run(self, place, task):
        return {elements: Result(time, time, 0, "none: computed")
                for elements in task.elements
                for time in (ring(elements, task.workers, place.rate),)}


def parse(out, aggregator):
    """What a peer printed: an object per tensor length."""
    results = {}
    for line in out.splitlines():
        if line.startswith("{"):
            report = json.loads(line)
            times = sorted(report["tat_seconds"])
            p99 = times[max(0, -(-99 * len(times) // 100) - 1)]
            results[report["elements"]] = Result(statistics.median(times), p99, report["wrong"], aggregator, report["bytes_per_worker"])
    return results


class GlooServer:
    """A process that has imported PyTorch, and forks the ranks of each run: the import takes longer than many a run."""
    running = None

    def __init__(self):
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen([PYTHON, GLOO, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, process_group=0)
        self.answer([])  # the import

    def run(self, words):
        self.process.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        self.process.stdin.flush()
        return self.answer(words)

    def answer(self, words):
        """What it prints until it is done."""
        impatience = threading.Timer(LIMIT, self.kill)
        impatience.start()
        try:
            out = ""
            for line in self.process.stdout:
                if line.startswith("end "):
                    _, status, seconds = line.split()
                    machine.Others.lent += float(seconds)
                    if status == "0":
                        return out
                    break
                out += line
        except BaseException:
            self.kill()
            raise
        finally:
            impatience.cancel()
        self.errors.seek(0)
        complaint = self.errors.read().strip()[-1000:]
        self.kill()
        raise Failed(f"Gloo {' '.join(map(str, words))}: {complaint or 'no end'}")

    def kill(self):
        """It and its ranks. The next run has another."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        GlooServer.running = None

    @classmethod
    def ask(cls, words):
        if cls.running is None:
            cls.running = cls()
            atexit.register(cls.running.kill)
        return cls.running.run(words)


@dataclasses.dataclass(frozen=True)
class Gloo:
    name: str = "Gloo"
    collective: str = "all-reduce"

    def missing(self):
        return None

    def run(self, place, task):
        hosts = []
        if place.shaped:
            hosts = ["--hosts", ",".join(f"{host.namespace}={host.addresses[4]}" for host in place.hosts[:task.workers])]
        return parse(GlooServer.ask(["--workers", task.workers, "--iterations", task.iterations, "--warmup", task.warmup,
                                     "--warmup-elements", task.warmup_elements, "--collective", self.collective, *hosts,
                                     *(["--back-to-back"] if task.back_to_back else []), *task.elements]), "none: ring, TCP")


OF_TUNED = {"all-reduce": "allreduce", "reduce-scatter-v": "reduce_scatter", "all-gather": "allgather"}


@dataclasses.dataclass(frozen=True)
class OpenMpi:
    name: str = "Open MPI"
    algorithm: int = 0  # of coll_tuned for this collective; 0: as it decides
    slice: int = 0  # bytes; 0: one call
    collective: str = "all-reduce"
    spins = True  # while it waits: no processor is idle, whatever bounds it

    def missing(self):
        return None

    def run(self, place, task):
        command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", task.workers, "--mca", "pml", "ob1", "--mca",
                   "mpi_yield_when_idle", "1"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        if self.algorithm:
            command += ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", f"coll_tuned_{OF_TUNED[self.collective]}_algorithm", self.algorithm]
        environment, first, aggregator = dict(os.environ), None, "none: shared memory"
        if place.shaped:
            hosts = place.hosts[:task.workers]
            first, aggregator = hosts[0], "none: TCP"
            command = [ENTER_HOST, first.addresses[4], *command]
            command += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0",
                        "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", ENTER_HOST,
                        "--host", ",".join(host.addresses[4] + ":1" for host in hosts)]
            environment["ENTER_HOST_PREFIX"] = first.namespace[:-1]
        else:
            command += ["--mca", "btl", "vader,self"]
        with Children() as children:
            process = children.start([*command, MPI, self.collective, task.iterations, task.warmup, task.warmup_elements, self.slice,
                                      int(task.back_to_back), *task.elements], env=environment)
            return parse(children.finish(process), aggregator)


@dataclasses.dataclass(frozen=True)
class InTurn:
    """Contenders, one after the other in each round: their times together."""
    name: str
    all: tuple

    @property
    def spins(self):
        return any(getattr(each, "spins", False) for each in self.all)

    def missing(self):
        return None

    def run(self, place, task):
        runs = [each.run(place, task) for each in self.all]
        return {elements: dataclasses.replace(runs[0][elements], tat=sum(run[elements].tat for run in runs),
                                              p99=sum(run[elements].p99 for run in runs), wrong=sum(run[elements].wrong for run in runs))
                for elements in task.elements}


@dataclasses.dataclass(frozen=True)
class Bare:
    """A program of bench/peers that does the least that there is to do, on one host: no all-reduce that could be used."""
    name: str
    program: str
    aggregator: str
    back_to_back: bool

    def missing(self):
        return None

    def run(self, place, task):
        assert not place.shaped and task.back_to_back == self.back_to_back, "one host, and calls as the program makes them"
        results = {}
        for elements in task.elements:
            with Children() as children:
                process = children.start([self.program, task.workers, task.iterations, task.warmup, elements])
                results |= parse(children.finish(process), self.aggregator)
        return results


BARE_SOCKETS = Bare("bare sockets", os.path.join(ROOT, "build/release/bin/bare_udp"), "a process that adds, on this host", back_to_back=True)
BARE_SUMS = Bare("bare sums", os.path.join(ROOT, "build/release/bin/bare_sum"), "none: one process, a thread per processor", back_to_back=False)
