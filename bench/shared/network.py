"""Processes in the network namespaces of a testbed, which stands as long as a `with`: around a switch (scripts/testbed)."""
import ctypes
import os
import re
import subprocess
import tempfile
import urllib.request

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
NETSUM = os.path.join(ROOT, "build/release/bin/netsum")
CLONE_NEWNET = 0x40000000  # what Python does not name
METRIC = re.compile(r'^netsum_job_(\w+?)(?:_total)?\{job="(\w+)"\} (\S+)', re.M)


def enter(namespace):
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


class Host:
    """A network namespace of a testbed."""

    def __init__(self, environment, name):
        self.namespace = environment[name]
        self.addresses = {4: environment[name + "_IP4"], 6: environment.get(name + "_IP6")}

    def at(self, port, version):
        return f"[{self.addresses[6]}]:{port}" if version == 6 else f"{self.addresses[4]}:{port}"

    def run(self, *command):
        """Runs a command in the namespace, which must succeed."""
        subprocess.run(["ip", "netns", "exec", self.namespace, *command], check=True)

    def inside(self, call):
        """What `call` returns, called by this thread in the namespace: the sockets that it makes stay there."""
        home, there = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open("/run/netns/" + self.namespace, os.O_RDONLY)
        try:
            enter(there)
            try:
                return call()
            finally:
                enter(home)
        finally:
            os.close(home)
            os.close(there)


class Process:
    def __init__(self, host, *arguments):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(["ip", "netns", "exec", host.namespace, NETSUM, *map(str, arguments)],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)

    def kill(self):
        """Whatever it does: who ends well takes leave of its jobs, for seconds."""
        self.process.kill()
        self.process.wait()

    def complaint(self):
        self.log.seek(0)
        return self.log.read()[-1000:]


class Daemon(Process):
    metrics_ports = iter(range(9100, 65536))

    def __init__(self, host, version, *arguments):
        self.host, self.metrics = host, host.at(next(self.metrics_ports), 4)
        super().__init__(host, *arguments, "--listen", host.at(0, version), "--metrics", self.metrics,
                         "--anyone-may-join")  # nobody else is in these networks
        line = self.process.stdout.readline()
        if not line.startswith("listening "):
            raise SystemExit(f"netsum {arguments[0]} did not start: {self.complaint()}")
        self.address = line.split()[1]

    def jobs(self):
        """Counters of the jobs that run, by name."""
        def scrape():
            with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=5) as page:
                return page.read().decode()
        jobs = {}
        for counter, job, value in METRIC.findall(self.host.inside(scrape)):
            jobs.setdefault(job, {})[counter] = float(value)
        return jobs


class Network:
    """Hosts between links, for the length of a `with`; each is an attribute by its name."""

    def __init__(self, script, names, arguments):
        self.script, self.names, self.arguments = script, names, arguments

    def __enter__(self):
        if os.geteuid() != 0:
            raise SystemExit("network namespaces need root")
        self.log = tempfile.TemporaryFile(mode="w+")
        # Its command ends with this process, whatever ends that: then standard input is closed.
        self.process = subprocess.Popen([os.path.join(ROOT, self.script), *map(str, self.arguments), "--", "sh", "-c",
                                         "env; echo ready; exec cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.environment = environment = {}
        for line in self.process.stdout:
            if line == "ready\n":
                break
            name, _, value = line.rstrip("\n").partition("=")
            environment[name] = value
        else:
            self.log.seek(0)
            raise SystemExit(f"the testbed did not start: {self.log.read()[-1000:]}")
        for name in environment:
            if re.fullmatch(self.names, name):
                setattr(self, name, Host(environment, name))
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Star(Network):
    """Hosts around a switch, each behind a link of its own: H0, H1, ..., and SW, which is at the switch."""

    def __init__(self, hosts, rate, queue, more=()):
        super().__init__("scripts/testbed", r"H\d+|SW",
                         ["--hosts", hosts, "--rate", rate, *(["--queue", queue] if queue else []), *more])
