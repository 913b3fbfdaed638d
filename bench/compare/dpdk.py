"""What a core moves past the kernel's network by DPDK: a rank and its switch at the two ends of a memif, each on a core of its own, and
bare testpmds there, which send every frame back. Frames are as long, and packets are counted. Both ends poll, so the slower one is what
packets per second show; each by itself is what it needs for a packet while it has some (`busy_nanoseconds`). A bare loop by AF_XDP on a
veth is beside them. What two cores take to hand a frame over depends on where they are: so a switch is measured with both ends in one
thread, too.
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

import af_xdp
import micro
import ratios
from network import NETSUM, ROOT

PLUGIN = os.path.join(ROOT, "build/release/lib/libnetsum_dpdk.so")
EAL = "--no-huge --no-shconf --no-pci --no-telemetry -m 64".split()
ELEMENTS, ITERATIONS = 256, 5  # of a packet: 1 KiB of values; timed calls of a run
RANKS = (1, 4, 16)  # of a switch that sends results as copies, or as attached buffers
FRAME = 1098  # bytes of such a frame
WINDOW = 128  # packets under way
GOALS = {"rank": 0.4, "switch": 0.55}  # testpmd's nanoseconds over theirs
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
    """Nanoseconds of a packet: from one to the next, the rank's, and the switch's. The switch sums each packet, and as many come back."""
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
            status = subprocess.run([NETSUM, "status", "--switch", line[1], "--json"], capture_output=True, text=True, timeout=PATIENCE)
        finally:
            switch.kill()
    if rank.returncode != 0:
        raise SystemExit(f"bench: the job over DPDK failed: {rank.stderr.strip()}")
    if status.returncode != 0:
        raise SystemExit(f"bench: the switch over DPDK does not answer: {status.stderr.strip()}")
    report, counters = json.loads(rank.stdout), json.loads(status.stdout)["counters"]
    if report["wrong"]:
        raise SystemExit("bench: a job over DPDK had wrong sums")
    sent = report["packets"]["sent"]
    return {"both": 1e9 * report["tat_seconds"]["median"] / sent, "the rank": 1e9 * report["busy_seconds_per_worker"] / sent,
            "the switch": counters["busy_nanoseconds"] / counters["packets_received"]}


def results(count, quick):
    """Of a sum to all ranks: copies of it, and frames to which the slot is attached."""
    pairs = {ranks: (f"attached/{ranks}", f"copied/{ranks}") for ranks in RANKS}
    found = micro.repetitions("dpdk_results_bench", [name for pair in pairs.values() for name in pair], count, 0.02 if quick else 0.1)
    made = {}
    for ranks, names in pairs.items():
        attached, copied = ([each["cpu_time"] / ranks for each in found[name]] for name in names)
        made[f"dpdk-results-{ranks}"] = row(f"1 KiB of sums to {ranks} rank{'s' if ranks > 1 else ''}, to a port that throws frames away: frames/s of copies over "
                                            "those of headers to which the slot is attached", {"attached": attached, "copies": copied}, "attached", "copies")
    return made


def turns(count, quick):
    """Of a switch, its ranks in the same thread."""
    sides = {}
    for _ in range(count):
        run = subprocess.run([os.path.join(ROOT, "build/release/bin/dpdk_switch_bench"), "200" if quick else "2000"], capture_output=True, text=True, timeout=PATIENCE)
        if run.returncode != 0:
            raise SystemExit(f"bench: dpdk_switch_bench failed: {run.stderr.strip()}")
        for line in run.stdout.splitlines():
            found = json.loads(line)
            for side in ("switch", "bare"):
                sides.setdefault((found["ranks"], found["burst"], found["checked"]), {}).setdefault(side, []).append(found[side])
    return {f"dpdk-turn-{ranks}-{burst}{'' if checked else '-unchecked'}":
            row(f"a switch, {ranks} rank{'s' if ranks > 1 else ''} of the same thread behind a memif, bursts of {burst} packets with{'' if checked else 'out'} checksums: packets/s "
                "over those of a bare loop there", each, "bare", "switch") for (ranks, burst, checked), each in sides.items()}


def row(what, sides, over, under, goal=None):
    return {"what": what, "ratio": ratios.summary(sides[over], sides[under]), "goal": goal, "at_least": True, "then": "",
            "nanoseconds": {side: statistics.median(sides[side]) for side in (under, over)}}


def rows(count, quick):
    if not os.path.exists(PLUGIN):
        raise SystemExit("bench: this netsum was built without libdpdk: scripts/setup --dpdk, and scripts/build release")
    if shutil.which("dpdk-testpmd") is None:
        raise SystemExit("bench: there is no dpdk-testpmd: scripts/setup --dpdk")
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("bench: a rank and a switch that poll need a core each")
    packets = 100_000 if quick else 500_000
    profiles = ("software", "chip")
    sides = {"testpmd": [], "a bare loop by AF_XDP": []}
    with af_xdp.bare("bare") as loop:
        for number in range(count):
            for name in sorted((*profiles, *sides), reverse=number % 2 == 1):
                if name == "testpmd":
                    sides[name].append(1e9 / testpmd(packets))
                elif name in profiles:
                    for side, time_of in netsum(packets, name).items():
                        sides.setdefault(f"{side}, {name}", []).append(time_of)
                else:
                    sides[name].append(loop.nanoseconds(FRAME))
    made = {}
    for profile in profiles:
        about = f"by DPDK over memif, {profile} profile, frames of {FRAME} bytes: packets/s on"
        made[f"dpdk-{profile}"] = row(f"a rank and a switch {about} each core over those of testpmd there", sides, "testpmd", f"both, {profile}")
        for side in ("rank", "switch"):
            mine = f"the {side}, {profile}"
            made[f"dpdk-{profile}-{side}"] = row(f"the {side} alone {about} a core that always has some over those of testpmd", sides, "testpmd", mine, GOALS[side])
            made[f"dpdk-{profile}-{side}-xdp"] = row(f"the {side} alone {about} such a core over those of a bare loop by AF_XDP on a veth", sides,
                                                     "a bare loop by AF_XDP", mine)
    return {**made, **turns(count, quick), **results(count, quick)}
