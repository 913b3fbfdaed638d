"""The switch over threads, all-reduces beside Gloo, and the defaults beside a sweep, on all cores of the machine.

    cores.py threads | peers | defaults
"""

import json
import os
import statistics
import subprocess
import sys
import time
import unittest

import on_gpu
import torch_support
from on_gpu import IS_GPU
from torch_support import NETSUM, run

FOUND = {}
CPUS = len(os.sched_getaffinity(0))
ROUNDS = 20 if IS_GPU else 1
ELEMENTS = 25_000_000 if IS_GPU else 100_000


def bench(*arguments, elements=ELEMENTS, iterations=5):
    command = [NETSUM, "bench", "all-reduce", "--json", "--elements", str(elements), "--iterations", str(iterations), "--warmup", "1",
               *map(str, arguments)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    if ended.returncode != 0:
        return {"error": ended.stderr[-300:]}
    told = json.loads(ended.stdout)
    assert told["wrong"] == 0, told
    return {"seconds": told["tat_seconds"]["median"], "packets": told["packets"]["sent"], "ate_per_second": told["ate_per_second"]}


def medians(trials, rounds, budget):
    """The median time of each trial over interleaved rounds, as many as `budget` seconds allow."""
    seconds, errors, began = {name: [] for name in trials}, {}, time.monotonic()
    for _ in range(rounds):
        for name, trial in trials.items():
            told = trial()
            if "error" in told:
                errors[name] = told["error"]
            else:
                seconds[name].append(told["seconds"])
        if time.monotonic() - began > budget:
            break
    return {name: {"median": statistics.median(times), "rounds": len(times), "least": min(times)} for name, times in seconds.items() if times} | (
        {"errors": errors} if errors else {})


def case_gloo(rank, size):
    """Gloo's all-reduce of these ranks: seconds of each call, the slowest rank's."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = []
    for _ in range(4):
        tensor = torch.ones(int(os.environ["ELEMENTS"]))
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        slowest = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        found.append(slowest.item())
    return found[1:]


def gloo(workers, elements):
    ranks = run("gloo", workers, seconds=100, environment={"ELEMENTS": str(elements)})
    return {"seconds": statistics.median(ranks[0].result)}


class Threads(unittest.TestCase):
    """How the switch scales over its threads: packets per second, as many workers as keep it busy."""

    def test_threads(self):
        workers = max(2, CPUS // 2)
        for transport in ("udp", "shm"):
            trials = {str(threads): lambda threads=threads, transport=transport: bench(
                "--workers", workers, "--switch-threads", threads, "--threads", threads, "--transport", transport)
                for threads in (1, 2, 4, 8) if threads <= CPUS}
            FOUND[transport] = medians(trials, ROUNDS, 40)


class Peers(unittest.TestCase):
    def test_peers(self):
        for workers in (2, 4, 8, 16) if IS_GPU else (2,):
            for elements in (ELEMENTS // 4, ELEMENTS):
                trials = {
                    "switchml": lambda w=workers, e=elements: bench("--workers", w, elements=e),
                    "atp": lambda w=workers, e=elements: bench("--workers", w, "--protocol", "atp", elements=e),
                    "netreduce": lambda w=workers, e=elements: bench("--workers", w, "--protocol", "netreduce", elements=e),
                    "shared memory": lambda w=workers, e=elements: bench("--workers", w, "--transport", "shm", elements=e),
                    "gloo": lambda w=workers, e=elements: gloo(w, e),
                }
                key = f"{workers} workers, {elements * 4} bytes"
                FOUND[key] = medians(trials, ROUNDS, 20)
                for name in trials:
                    if name in FOUND[key] and "gloo" in FOUND[key]:
                        FOUND[key][name]["gloo_over_it"] = FOUND[key]["gloo"]["median"] / FOUND[key][name]["median"]


class Defaults(unittest.TestCase):
    """What netsum chooses by itself, beside the best of a sweep."""

    def test_defaults(self):
        for workers in (2, 8) if IS_GPU else (2,):
            trials = {"chosen": lambda w=workers: bench("--workers", w)}
            for threads in (1, 2, 4, 8):
                for slots in (0, 64, 256):
                    if threads * workers <= 2 * CPUS and (IS_GPU or slots == 64 and threads == 1):
                        trials[f"threads {threads}, slots {slots}"] = lambda w=workers, t=threads, s=slots: bench(
                            "--workers", w, "--threads", t, "--slots", s, "--switch-slots", 262144)
            told = medians(trials, ROUNDS, 50)
            best = min(each["median"] for name, each in told.items() if name != "errors")
            FOUND[f"{workers} workers"] = told | {"chosen_over_best": told["chosen"]["median"] / best}


def tearDownModule():
    FOUND["cpus"] = CPUS
    on_gpu.save(FOUND)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in ("threads", "peers", "defaults"):
        sys.argv[1] = sys.argv[1].title()
    torch_support.main()
