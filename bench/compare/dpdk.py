"""What a core moves past the kernel's network by DPDK: a rank and its switch at the two ends of a memif, each on a core of its own, and
bare testpmds there, which send every frame back. Frames are as long, and packets are counted.
"""
import contextlib
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time

import ratios
from network import NETSUM, ROOT

PLUGIN = os.path.join(ROOT, "build/release/lib/libnetsum_dpdk.so")
EAL = "--no-huge --no-shconf --no-pci --no-telemetry -m 64".split()
ELEMENTS, ITERATIONS = 256, 5  # of a packet: 1 KiB of values; timed calls of a run
FRAME = 1098  # bytes of such a frame
WINDOW = 128  # packets under way
GOAL = 0.6
PATIENCE = 60  # seconds, for what takes one
WIRES = itertools.count()


def end_of(wire, role):
    return ["--vdev", f"net_memif0,role={role},socket={wire}"]


def on_core(core, *words):
    return ["taskset", "-c", str(core), *map(str, words)]


class Testpmd:
    """Sends each frame back, as long as it runs. Both of its threads are on one core: the other one sleeps."""

    def __init__(self, stack, core, wire, role):
        self.words = on_core(core, "stdbuf", "-oL", "dpdk-testpmd", f"--lcores=(0,1)@{core}", *EAL, *end_of(wire, role), "--", "--interactive", "--forward-mode=io",
                             "--port-topology=loop", "--total-num-mbufs=8192", f"--txpkts={FRAME}")
        # Its prompt comes without a newline: a file has it at once.
        self.log = stack.enter_context(tempfile.NamedTemporaryFile(mode="w+"))
        self.process = subprocess.Popen(self.words, stdin=subprocess.PIPE, stdout=self.log, stderr=subprocess.STDOUT, text=True)
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)
        self.answers("")

    def answers(self, command):
        """What it says until its next prompt."""
        with open(self.log.name, encoding="utf-8") as log:
            log.seek(0, os.SEEK_END if command else os.SEEK_SET)
            if command:
                self.process.stdin.write(command + "\n")
                self.process.stdin.flush()
            said, deadline = "", time.monotonic() + PATIENCE
            while not said.endswith("testpmd> "):
                said += log.read()
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"bench: {' '.join(self.words)}: {said[-500:]}")
                time.sleep(0.001)
            return said

    def received(self):
        return int(re.search(r"RX-packets: (\d+)", self.answers("show port stats 0"))[1])


def testpmd(packets):
    """Packets/s that come back to one of two of them."""
    wire = f"netsum-bench-{os.getpid()}-{next(WIRES)}"
    with contextlib.ExitStack() as stack:
        far = Testpmd(stack, 0, wire, "server")
        near = Testpmd(stack, 1, wire, "client")
        deadline = time.monotonic() + PATIENCE
        while "Link status: up" not in near.answers("show port info 0"):
            if time.monotonic() > deadline:
                raise SystemExit("bench: the memif between two testpmds has no link")
        far.answers("start")
        near.answers(f"start tx_first {WINDOW // 32}")
        first, began = near.received(), time.monotonic()
        while True:
            time.sleep(0.02)  # its prompt is on the same core
            last, now = near.received(), time.monotonic()
            if last - first >= packets:
                return (last - first) / (now - began)
            if now > deadline:
                raise SystemExit(f"bench: {last - first} of {packets} packets came back to testpmd")


def netsum(packets, profile):
    """The report of a rank. The switch sums each packet, and as many come back."""
    wire = f"netsum-bench-{os.getpid()}-{next(WIRES)}"

    def path(role, address):
        return ["--data-path", "dpdk", "--dpdk-args", " ".join(EAL + end_of(wire, role)), "--dpdk-address", f"{address}/24"]

    with subprocess.Popen(on_core(0, NETSUM, "switch", "--listen", "127.0.0.1:0", "--anyone-may-join", "--profile", profile,
                                  *(["--allow-fcs-only"] if profile == "chip" else []), *path("server", "10.94.0.1")),
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as switch:
        try:
            line = switch.stdout.readline().split()
            if line[:1] != ["listening"]:
                raise SystemExit("bench: netsum switch --data-path dpdk did not start")
            rank = subprocess.run(on_core(1, NETSUM, "bench", "all-reduce", "--switch", line[1], "--rank", 0, "--world-size", 1, *path("client", "10.94.0.2"),
                                          "--elements", packets // ITERATIONS * ELEMENTS, "--iterations", ITERATIONS, "--packet-elements", ELEMENTS,
                                          "--slots", WINDOW, "--profile", profile, "--json"), capture_output=True, text=True, timeout=PATIENCE)
        finally:
            switch.kill()
    if rank.returncode != 0:
        raise SystemExit(f"bench: the job over DPDK failed: {rank.stderr.strip()}")
    report = json.loads(rank.stdout)
    if report["wrong"]:
        raise SystemExit("bench: a job over DPDK had wrong sums")
    return report


def packets_per_second(report):
    return report["packets"]["sent"] / report["tat_seconds"]["median"]


def rows(count, quick):
    if not os.path.exists(PLUGIN):
        raise SystemExit("bench: this netsum was built without libdpdk: scripts/setup --dpdk, and scripts/build release")
    if shutil.which("dpdk-testpmd") is None:
        raise SystemExit("bench: there is no dpdk-testpmd: scripts/setup --dpdk")
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("bench: a rank and a switch that poll need a core each")
    packets = 100_000 if quick else 500_000
    profiles = ("software", "chip")
    sides = {name: [] for name in (*profiles, "testpmd")}
    for number in range(count):
        for name in sorted(sides, reverse=number % 2 == 1):
            rate = testpmd(packets) if name == "testpmd" else packets_per_second(netsum(packets, name))
            sides[name].append(1e9 / rate)
    return {f"dpdk-{profile}": {"what": f"a rank and a switch by DPDK over memif, {profile} profile, frames of {FRAME} bytes: packets/s on each core "
                                "over those of testpmd there",
                                "ratio": ratios.summary(sides["testpmd"], sides[profile]), "goal": GOAL, "at_least": True, "then": "",
                                "nanoseconds": {side: statistics.median(sides[side]) for side in (profile, "testpmd")}} for profile in profiles}
