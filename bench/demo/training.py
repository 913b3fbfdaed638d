"""One training: its daemons, a process a worker, what they say while they run, and what the place counted meanwhile."""
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time

from network import NETSUM, ROOT

TRAIN = os.path.join(ROOT, "examples/ddp_fashion_mnist.py")
PYTHON = "/usr/bin/python3"  # Debian's torch belongs to Debian's own interpreter
START_SECONDS = 300  # until all workers have met; eight of them import torch on two processors
LEAVE_SECONDS = 20
WITH_US = ["setpriv", "--pdeathsig", "KILL"]  # whatever ends the demo ends them


class Failed(Exception):
    pass


def ticks():
    """Idle and all time of the machine."""
    with open("/proc/stat", encoding="ascii") as file:
        spent = [int(each) for each in file.readline().split()[1:9]]
    return spent[3] + spent[4], sum(spent)


class Process:
    def __init__(self, name, command, environment):
        self.name, self.last = name, ""
        self.errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen([*WITH_US, *command], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, start_new_session=True)

    def complaint(self):
        self.errors.seek(0)
        lines = [line for line in self.errors.read().splitlines() if line.strip()]
        return f"{self.name} ended with status {self.process.poll()}: {lines[-1].strip() if lines else 'it said nothing'}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(LEAVE_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            pipe.close()

    def answer(self):
        with contextlib.suppress(BrokenPipeError):  # it has ended, and complaint() says why
            self.process.stdin.write("\n")
            self.process.stdin.flush()


def daemon(place, host, command):
    """A running `netsum COMMAND` and where it listens."""
    words = [NETSUM, command, "--listen", place.address(host) + ":0", "--anyone-may-join"]  # nobody else is in these networks
    process = Process(f"netsum {command}", [*place.command(host), *words], clean_environment())
    said = queue.Queue()
    threading.Thread(target=lambda: said.put(process.process.stdout.readline()), daemon=True).start()
    try:
        line = said.get(timeout=60)
    except queue.Empty:
        line = ""
    if not line.startswith("listening "):
        process.process.kill()
        process.process.wait()
        raise Failed(process.complaint())
    return process, line.split()[1]


def clean_environment():
    """Nothing that somebody has set helps or hinders one of the two."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("NETSUM_", "GLOO_", "OMP_"))}


def daemons(place, arguments, stack):
    """Starts what netsum needs; the environment that tells the workers."""
    process, switch = daemon(place, "SW", "switch")
    stack.enter_context(process)
    told = {"NETSUM_SWITCH": switch, "NETSUM_PROTOCOL": arguments.protocol, "NETSUM_MODE": "force", "NETSUM_SHARED_MEMORY": "off",
            "NETSUM_LOG": "off"}
    if arguments.wire != "float32":
        told["NETSUM_WIRE"] = arguments.wire
    if arguments.protocol == "atp":
        process, told["NETSUM_PS"] = daemon(place, f"H{arguments.workers}", "ps")
        stack.enter_context(process)
    return told


def workers(backend, place, arguments, told):
    words = [PYTHON, TRAIN, "--json", "--wait", "--backend", backend, "--steps", arguments.steps, "--batch", arguments.batch,
             "--hidden", arguments.hidden, "--evaluate-every", arguments.every]
    if backend == "gloo" and arguments.wire == "float16":
        words.append("--fp16-hook")
    port = place.free_port()
    for rank in range(arguments.workers):
        environment = clean_environment() | told | {
            "MASTER_ADDR": place.address("H0"), "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(arguments.workers),
            "USE_LIBUV": "0",  # Debian's torch 2.x is built without
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": place.device, "PYTHONPATH": os.path.join(ROOT, "build/release/python"),
            "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        yield Process(f"{backend}'s worker {rank}", [*place.command(f"H{rank}"), *map(str, words)], environment)


class Training:
    """What was found, once run() has returned."""

    def __init__(self, backend):
        self.backend, self.points = backend, []  # (seconds of training, test accuracy)
        self.seconds, self.step, self.parameters = 0.0, 0, 0
        self.sums = self.wrong = 0
        self.weights, self.statistics = {}, {}
        self.before = self.after = self.ticks_before = self.ticks_after = None

    def run(self, place, arguments, patience, show):
        """show(self) after each step. patience: the longest time in seconds between two lines of a worker."""
        self.place = place
        with contextlib.ExitStack() as stack:
            told = daemons(place, arguments, stack) if self.backend == "netsum" else {}
            running = [stack.enter_context(each) for each in workers(self.backend, place, arguments, told)]
            said = queue.Queue()
            for rank, each in enumerate(running):
                threading.Thread(target=self.listen, args=(each, rank, said), daemon=True).start()
            ended, deadline = 0, time.monotonic() + START_SECONDS
            while ended < len(running):
                try:
                    rank, line = said.get(timeout=max(0, deadline - time.monotonic()))
                except queue.Empty:
                    raise Failed(f"{self.backend}: its workers fell silent after step {self.step}; is the machine overloaded? "
                                 "Fewer --workers may help") from None
                if line is None:
                    ended += 1
                    if running[rank].process.wait(LEAVE_SECONDS) != 0:
                        raise Failed(running[rank].complaint())
                    continue
                deadline = time.monotonic() + patience
                try:
                    found = json.loads(line)
                except ValueError:
                    continue  # not of the report
                self.take(rank, found)
                if rank == 0 and found["kind"] == "begin":
                    running[rank].answer()  # the counters have been read
                if rank == 0:
                    show(self)
        if len(self.weights) != arguments.workers or not self.after:
            raise Failed(f"{self.backend}: the training ended early; examples/ddp_fashion_mnist.py tells more when it runs by itself")

    @staticmethod
    def listen(process, rank, said):
        try:
            for line in process.process.stdout:
                said.put((rank, line))
        except ValueError:  # closed: the demo is ending
            pass
        said.put((rank, None))

    def take(self, rank, found):
        kind = found["kind"]
        if kind == "check":
            self.sums += found["elements"]
            self.wrong += found["wrong"]
        elif kind == "end":
            self.weights[rank] = found["weights"]
            self.statistics[rank] = found.get("statistics", {})
        if rank != 0:
            return
        if kind == "begin":
            self.before, self.ticks_before = self.place.counters(), ticks()
            self.parameters = found["parameters"]
            self.points.append((0.0, found["accuracy"]))
        elif kind == "step":
            self.step, self.seconds = found["step"], found["seconds"]
            if found["accuracy"] is not None:
                self.points.append((found["seconds"], found["accuracy"]))
        elif kind == "end":
            self.after, self.ticks_after = self.place.counters(), ticks()

    def result(self):
        idle, spent = (b - a for a, b in zip(self.ticks_before, self.ticks_after))
        sent = [b - a for a, b in zip(self.before["bytes"], self.after["bytes"])]
        again = self.after["again"] - self.before["again"]
        again += sum(each.get("packets_retransmitted", 0) for each in self.statistics.values())
        return {"backend": self.backend, "points": self.points, "seconds": self.seconds, "steps": self.step, "parameters": self.parameters,
                "bytes_per_worker": sum(sent) / len(sent), "packets_again": again,
                "packets_lost": None if self.after["lost"] is None else self.after["lost"] - self.before["lost"],
                "sums": self.sums, "wrong": self.wrong, "same_weights": len(set(self.weights.values())) == 1,
                "idle": idle / spent if spent else 0.0, "path": self.statistics[0].get("path")}


def missing():
    """What has to be there first, as a complaint; None: all is."""
    for path in (NETSUM, os.path.join(ROOT, "build/release/python/netsum")):
        if not os.path.exists(path):
            return f"{os.path.relpath(path)} is missing: run scripts/demo, or scripts/build release netsum netsum_torch_python"
    return None


def fail(text):
    print(f"demo: {text}", file=sys.stderr)
    sys.exit(1)
