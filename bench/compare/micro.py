"""Rows from the micro benchmarks: one process measures both sides of a ratio, its repetitions in random order."""
import itertools
import json
import os
import statistics
import subprocess

import ratios
from contenders import WITH_VECTORS
from network import NETSUM, ROOT

BIN = os.path.join(ROOT, "build/release/bin")
PROGRAMS = ("switch_bench", "kernel_bench", "seal_bench", "growth_bench")
WORKERS, JOBS = (2, 4, 8, 16, 32, 64), (1, 2, 8)

# (row, what, program, benchmark whose time is divided by, that of, goal, then). Both sides do the same number of elements. Each row is
# measured with all of the processor's vectors, and with those that nearly all have.
ROWS = (
    ("micro-switch", "switch core, 256 elements a packet, n = 8: elements/s over plain a += b on the same bytes in L2", "switch_bench",
     "plain_add/64", "switch_core/64", 0.7, "0.85"),
    ("micro-switch-unchecked", "the switch core where packets need no checksum, on one host: elements/s over plain a += b", "switch_bench",
     "plain_add/64", "switch_core_unchecked/64", 0.7, "0.85"),
    ("micro-switch-checked", "the switch core: elements/s over plain a += b with each packet's CRC32C", "switch_bench",
     "checksum_and_add/64", "switch_core/64", None, ""),
    ("micro-quantize", "quantize with largest exponent and byte order: elements/s over float to int32 alone", "kernel_bench",
     "convert_alone", "quantize_with_largest_exponent", 0.7, ""),
    ("micro-tag", "a packet's tag and counter, 1072 bytes: packets/s over those with a CRC32C", "seal_bench",
     "checksum/1072", "tag/1072", None, ""),
    ("micro-mask", "1 KiB of values masked, as by a rank between two: packets/s over those with a CRC32C", "seal_bench",
     "checksum/1024", "mask/1024", None, ""),
    ("micro-unmask", "1 KiB of sums unmasked: packets/s over those with a CRC32C", "seal_bench", "checksum/1024", "unmask/1024", None, ""),
    ("micro-encrypt", "a packet encrypted with AES-128-GCM, 1072 bytes: packets/s over those with a CRC32C", "seal_bench",
     "checksum/1072", "encrypt/1072", None, ""),
)


VECTORS = (("", "", ""), ("-avx2", ", with AVX2 only", "AVX2"))


def repetitions(program, wanted, count, seconds, vectors=""):
    """CPU time of each repetition, by benchmark. vectors: no wider ones than these."""
    command = [*([WITH_VECTORS, vectors] if vectors else []), os.path.join(BIN, program), "--benchmark_format=json", f"--benchmark_repetitions={count}",
               "--benchmark_enable_random_interleaving=true", f"--benchmark_min_time={seconds}",
               f"--benchmark_filter=^({'|'.join(wanted)})$"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found = {}
    for each in report["benchmarks"]:
        if each.get("run_type") == "iteration":
            if each.get("error_occurred"):
                raise SystemExit(f"{program}: {each['error_message']}")
            found.setdefault(each["run_name"], []).append(each)
    return found


def rows(count, quick):
    seconds = 0.02 if quick else 0.1
    made = {}
    for program, (short, only, vectors) in itertools.product(PROGRAMS[:3], VECTORS):
        own = [row for row in ROWS if row[2] == program]
        names = sorted({name for row in own for name in row[3:5]})
        found = repetitions(program, names, count, seconds, vectors)
        for name, what, _, over, under, goal, then in own:
            times = [[each["cpu_time"] for each in found[side]] for side in (over, under)]
            made[name + short] = {"what": what + only, "ratio": ratios.summary(*times), "goal": goal, "at_least": True, "then": then}
    return made


def xdp(count, quick):
    """The switch inside the kernel with the rule of its slots, and without: rows."""
    if not os.path.exists(os.path.join(BIN, "xdp_bench")):
        raise SystemExit("bench: this netsum was built without XDP: it needs clang, libbpf and libxdp")
    found = repetitions("xdp_bench", ["with(out)?_rule/.*"], count, 0.02 if quick else 0.1)
    made = {}
    for elements in (64, 256):
        without, rule = [[1e9 / each["items_per_second"] for each in found[f"{side}_rule/{elements}/manual_time"]] for side in ("without", "with")]
        made[f"xdp-{elements}"] = {
            "what": f"XDP, contributions of {elements} elements: packets/s with the rule of a slot over those of the same program without it",
            "ratio": ratios.summary(without, rule), "goal": 0.9, "at_least": True, "then": "",
            "elements": elements, "nanoseconds": {"with the rule": statistics.median(rule), "without": statistics.median(without)}}
    return made


def simulated(workers, jobs):
    """Nanoseconds that the simulator takes for a packet, of all that it does: every host, the switch, the network and its checks."""
    seeds = max(2, 320 // (workers * jobs))
    command = [NETSUM, "simulate", "--json", "--faults", "none", "--threads", "1", "--workers", str(workers), "--jobs", str(jobs),
               "--seeds", f"1..{seeds}"]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return report["real_seconds"] / report["packets"] * 1e9


def growth(count, quick):
    """Cost at the switch, by workers and jobs: rows over 2 workers and one job, and the points of a plot."""
    found = repetitions("growth_bench", ["at_the_switch/.*"], count, 0.02 if quick else 0.05)
    def runs(workers, jobs):
        return found[f"at_the_switch/workers:{workers}/jobs:{jobs}/manual_time"]
    times = {(workers, jobs): [1e9 / each["items_per_second"] for each in runs(workers, jobs)] for workers in WORKERS for jobs in JOBS}
    made = {f"growth-{workers}-{jobs}": {
        "what": f"cost per element at the switch, {workers} workers and {jobs} job{'s' if jobs > 1 else ''}, over 2 workers and 1 job",
        "ratio": ratios.summary(times[workers, jobs], times[2, 1]), "goal": None, "at_least": False, "then": "flat"}
        for workers, jobs in ((64, 1), (2, 8), (64, 8))}
    points = [{"workers": workers, "jobs": jobs, "nanoseconds": sorted(times[workers, jobs])[len(times[workers, jobs]) // 2],
               "simulated_nanoseconds": simulated(workers, jobs),
               "bytes_per_slot": runs(workers, jobs)[0]["job_bytes"] / runs(workers, jobs)[0]["slots"]}
              for workers in WORKERS for jobs in JOBS]
    return made, points
