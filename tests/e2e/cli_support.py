"""Runs the netsum binary for the tests of the command line. Every wait has a deadline; nothing sleeps for a fixed time.

usage of a test: cli_something.py NETSUM_BINARY [unittest arguments]
"""
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import unittest

NETSUM = None


def main():
    global NETSUM
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit("usage: " + sys.argv[0] + " NETSUM_BINARY [unittest arguments]")
    NETSUM = os.path.abspath(sys.argv.pop(1))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends a test ends its processes too
    unittest.main(module="__main__", verbosity=2)


def is_sanitized():
    return bool(os.environ.get("NETSUM_TEST_SANITIZED"))


def compares(test):
    """A test that compares reports of many runs. It says nothing more of a sanitized binary, which is slow: sanitizers see the code
    of these runs in the tests of the library and of the simulator, and the binary's in the other tests.
    """
    return unittest.skipIf(is_sanitized(), "compares reports of many runs: not with sanitizers")(test)


def environment(extra=None):
    """Nothing that a developer has set reaches the binary. Networks of tests have nobody else in them."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NETSUM_")}
    clean["NETSUM_ANYONE_MAY_JOIN"] = "true"
    clean.update(extra or {})
    return clean


def run(*arguments, limit=60, env=None, cwd=None):
    """A finished run: returncode, stdout, stderr."""
    return subprocess.run([NETSUM, *map(str, arguments)], capture_output=True, text=True, timeout=limit,
                          env=environment(env), cwd=cwd, stdin=subprocess.DEVNULL)


def until(condition, seconds, what):
    """The first true value of condition(), polled."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        select.select([], [], [], 0.02)


class Process:
    """A running netsum (or another program), whose lines are read as they come."""

    def __init__(self, *arguments, env=None, program=None):
        self.process = subprocess.Popen([program or NETSUM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=environment(env), stdin=subprocess.DEVNULL)
        self.pid = self.process.pid
        self.out, self.err = [], []
        self.readers = [threading.Thread(target=self._read, args=each, daemon=True)
                        for each in ((self.process.stdout, self.out), (self.process.stderr, self.err))]
        for reader in self.readers:
            reader.start()

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))

    def wait_line(self, lines, start, seconds=20):
        def found():
            if self.process.poll() is not None and not any(line.startswith(start) for line in lines):
                self.readers[1].join(1)
                raise AssertionError(f"ended with {self.process.returncode} before '{start}': {self.err}")
            return next((line for line in lines if line.startswith(start)), None)
        return until(found, seconds, f"a line '{start}'; stderr: {self.err}")

    def wait(self, seconds):
        code = self.process.wait(timeout=seconds)
        for reader in self.readers:
            reader.join(5)
        return code

    def signal(self, number):
        self.process.send_signal(number)

    def error_lines(self):
        """What it complained of, without the log."""
        return [line for line in self.err if line.startswith("netsum: ")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.wait(10)
        self.process.stdout.close()
        self.process.stderr.close()


class Switch(Process):
    """A running aggregator; `address` once it listens."""

    def __init__(self, *arguments, listen="127.0.0.1:0"):
        super().__init__("switch", "--listen", listen, *arguments)
        self.address = self.wait_line(self.out, "listening ").split()[1]

    def status(self):
        return json.loads(checked(run("status", "--switch", self.address, "--connect-deadline", 20, "--json")).stdout)


class ParameterServer(Process):
    """A running parameter server; `address` once it listens."""

    def __init__(self, *arguments, listen="127.0.0.1:0"):
        super().__init__("ps", "--listen", listen, *arguments)
        self.address = self.wait_line(self.out, "listening ").split()[1]


def checked(result):
    if result.returncode != 0:
        raise AssertionError(f"exit code {result.returncode}: {result.stdout}\n{result.stderr}")
    return result


def bench(*arguments, limit=60, collective="all-reduce"):
    """The report of a bench that succeeds."""
    return json.loads(checked(run("bench", collective, "--json", *arguments, limit=limit)).stdout)


def rank_process(address, rank, world_size, *arguments):
    """One worker against a switch; it prints `iteration I` lines."""
    return Process("bench", "all-reduce", "--rank-report", "--switch", address, "--rank", rank, "--world-size", world_size,
                   *arguments)


def ranks_in_tree(root, places, *flags):
    """One rank per entry of `places`: the switch that it is at, or the root of the tree."""
    return [rank_process(place.address, number, len(places), *flags, *([] if place is root else ["--spine", root.address]))
            for number, place in enumerate(places)]


def children_of(pid):
    """Pids and command lines of the children of a process."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline") as command:
                if int(stat.read().rsplit(")", 1)[1].split()[1]) == pid:
                    found[int(entry)] = command.read().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
