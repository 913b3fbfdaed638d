"""Runs the ranks of a process group as processes of their own, each under a hard time limit.

A test file defines functions `case_NAME(rank, size)` and calls main(). run("NAME", ranks) starts one process a rank, which
calls that function. Its return value, if any, comes back as JSON; what it raises fails the test. The ranks are forked from a server
that has imported torch, and nothing of netsum: to import torch takes longer than most cases.
"""

import datetime
import importlib.metadata
import inspect
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from fork_server import ForkServer

TORCH = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
NETSUM = os.environ.get("NETSUM_BINARY", "build/release/bin/netsum")
DEVICE = os.environ.get("NETSUM_TEST_DEVICE", "cpu")  # where tensors are that a test makes without saying where (torch 2.x)
KEPT = ("NETSUM_TEST_DEVICE", "NETSUM_LIBRARIES", "NETSUM_STAGE_LEADER")  # of the variables that ranks do not inherit otherwise
RESULT = "result: "
FORK_SERVER = None


def run_under_torchrun(case, ranks, seconds=120, environment=None, restarts=1, apart=False):
    """Runs case_`case` under torchrun, which starts all ranks again when one dies; returns their results, and the log. `apart`: each rank
    under a torchrun of its own, which starts this one again."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("NETSUM_") or k in KEPT}
    variables |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1", "NETSUM_BINARY": NETSUM}
    variables |= environment or {}
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        if TORCH >= (2, 0):  # what Debian's torchrun needs: docs/pytorch.md
            variables |= {"USE_LIBUV": "0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            needed = ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-endpoint", f"{directory}/store"]
        else:
            needed = ["--master_port", str(free_port()), "--redirects", "9:1", "--tee", "9:1"]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(1 if apart else ranks), "--max_restarts",
                   str(restarts), "--monitor_interval", "0.1", *needed]
        hosts = [["--nnodes", str(ranks), "--node_rank", str(rank)] for rank in range(ranks)] if apart else [[]]
        processes = [subprocess.Popen([*command, *host, os.path.abspath(sys.argv[0]), "--case", case], env=variables,
                                      stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True) for host in hosts]
        try:
            output = "".join(process.communicate(timeout=seconds)[0] for process in processes)
        finally:
            for process in processes:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        errors.seek(0)
        log = errors.read()
    if any(process.returncode != 0 for process in processes):
        raise AssertionError(f"{case}: torchrun ended with status {[each.returncode for each in processes]}\n{output}{log[-8000:]}")
    return [json.loads(line[len(RESULT):]) for line in output.splitlines() if line.startswith(RESULT)], log


class Rank:
    def __init__(self, process, rank, errors):
        self.process, self.rank, self.errors = process, rank, errors
        self.output, self.status, self.ended_log = "", None, None

    @property
    def result(self):
        for line in self.output.splitlines():
            if line.startswith(RESULT):
                return json.loads(line[len(RESULT):])
        return None

    @property
    def log(self):
        if self.ended_log is not None:
            return self.ended_log
        with open(self.errors, encoding="utf-8", errors="replace") as file:
            return file.read()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run(case, ranks, seconds=60, environment=None, of_rank=None, expect_failure=(), on_line=None):
    """Runs case_`case` as `ranks` processes and returns them as Rank objects.

    environment: variables for all; of_rank: {rank: variables}. Ranks outside `expect_failure` must end with status 0 within
    `seconds`. on_line(rank, line) sees each line of stdout as it comes.
    """
    with tempfile.TemporaryDirectory(prefix="netsum-torch-") as directory:
        return _run_in(directory, case, ranks, seconds, environment, of_rank, expect_failure, on_line)


def _run_in(directory, case, ranks, seconds, environment, of_rank, expect_failure, on_line):
    port = free_port()
    started = []
    for rank in range(ranks):
        variables = {k: v for k, v in os.environ.items() if not k.startswith("NETSUM_") or k in KEPT}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks),
                      "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1", "USE_LIBUV": "0"}
        variables |= environment or {}
        variables |= (of_rank or {}).get(rank, {})
        errors = os.path.join(directory, f"stderr.{rank}")
        with open(errors, "w", encoding="utf-8") as file:
            process = FORK_SERVER.start(case, variables, file)
        started.append(Rank(process, rank, errors))
    deadline = time.monotonic() + seconds
    _collect(started, deadline, on_line)
    for rank in started:
        rank.ended_log = rank.log
    complaints = []
    for rank in started:
        if rank.status is None:
            complaints.append(f"rank {rank.rank} was still running after {seconds} s")
        elif rank.status != 0 and rank.rank not in expect_failure:
            complaints.append(f"rank {rank.rank} ended with status {rank.status}")
    if complaints:
        logs = "\n".join(f"--- rank {r.rank}\n{r.output}{r.log[-4000:]}" for r in started)
        raise AssertionError(f"{case}: {'; '.join(complaints)}\n{logs}")
    return started


def _collect(ranks, deadline, on_line):
    """Reads all outputs until every process has ended or the deadline has passed; then kills what is left, with its children."""
    with selectors.DefaultSelector() as selector:
        unread = {rank.rank: "" for rank in ranks}
        for rank in ranks:
            os.set_blocking(rank.process.stdout.fileno(), False)
            selector.register(rank.process.stdout, selectors.EVENT_READ, rank)

        def read(wait):
            for key, _ in selector.select(wait):
                text = os.read(key.fd, 1 << 16).decode()
                if not text:
                    selector.unregister(key.fileobj)
                key.data.output += text
                *lines, unread[key.data.rank] = (unread[key.data.rank] + text).split("\n")
                for line in lines:
                    if on_line:
                        on_line(key.data, line)

        while time.monotonic() < deadline and any(r.status is None for r in ranks):
            read(0.05)
            for rank in ranks:
                if rank.status is None:
                    rank.status = rank.process.poll()
        read(0)  # a child that outlives its rank holds the pipe: what the rank wrote is there, the end is not
    for rank in ranks:
        try:  # the session: DataLoader workers of a killed rank too
            os.killpg(rank.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        rank.process.wait()
        rank.process.stdout.close()


def jobs_at(address):
    status = subprocess.run([NETSUM, "status", "--switch", address, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(status.stdout)["jobs"]


class Switch:
    """`netsum switch`, for the length of a `with`."""

    command = "switch"

    def __init__(self, *arguments, listen="127.0.0.1:0"):
        self.arguments, self.listen = arguments, listen

    def __enter__(self):
        self.process = subprocess.Popen([NETSUM, self.command, "--listen", self.listen, *self.arguments], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening "):
            raise AssertionError(f"netsum {self.command} said {line!r}")
        self.address = line.split()[1]
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()


class ParameterServer(Switch):
    """`netsum ps`, likewise."""

    command = "ps"


def tcp_store(rank, size, **more):
    """Of these ranks, without libuv, which Debian's torch 2.x is built without."""
    import torch.distributed as dist
    if TORCH >= (2, 0):
        more["use_libuv"] = False
    return dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0, datetime.timedelta(seconds=30), **more)


def init(backend="netsum", seconds=30, **more):
    import torch
    import torch.distributed as dist

    import netsum.torch  # noqa: F401

    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())
        torch.set_default_device(DEVICE)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds), **more)


def init_at_host(**more):
    """init(), for tests that say of each tensor where it is."""
    import torch
    init(**more)
    if DEVICE == "cuda":
        torch.set_default_device("cpu")


def _run_case(case):
    """One rank of a case."""
    function = vars(sys.modules["__main__"])[f"case_{case}"]
    assert list(inspect.signature(function).parameters) == ["rank", "size"]
    result = function(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    if result is not None:
        print(f"{RESULT}{json.dumps(result)}\n", end="", flush=True)  # one write: ranks may share a pipe


def main():
    """The entry of each test file: the tests, or one rank of a case."""
    global FORK_SERVER
    if len(sys.argv) == 3 and sys.argv[1] == "--case":  # under torchrun
        return _run_case(sys.argv[2])
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported; nothing may have threads before it forks
    FORK_SERVER = ForkServer(["torch.distributed"])
    if FORK_SERVER.task is not None:
        return _run_case(FORK_SERVER.task)
    unittest.main(verbosity=2)
