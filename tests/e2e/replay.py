#!/usr/bin/python3
"""scripts/replay: flight records become a scenario that the simulator runs. torch_training.py has those of a real training."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import unittest

NETSUM = sys.argv.pop(1)
REPLAY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/replay")
MS = 1_000_000


def record(calls):
    """Of (elements, type, called, done), in milliseconds."""
    entries = [{"profiling_name": "nccl:all_reduce", "input_sizes": [[elements // 10, 10]], "input_dtypes": [dtype], "state": "completed",
                "time_created_ns": int(called * MS), "time_discovered_completed_ns": int(done * MS)} for elements, dtype, called, done in calls]
    return {"version": "2.4", "entries": entries + [{**entries[0], "profiling_name": "nccl:broadcast"}, {**entries[0], "state": "started"}]}


def training(slower=1, dtype="Float"):
    """A first step with other buckets; five steps that compute for 20 ms, call 300, for 5 ms, 100, for 5 ms, 300; a look at the accuracy."""
    calls, now = [(400, dtype, 0, 1), (300, dtype, 5, 6)], 6
    for _ in range(5):
        for elements, computing in ((300, 20), (100, 5), (300, 5)):
            now += computing * slower
            calls.append((elements, dtype, now, now + 1))
        now += 10
        calls[-1] = (*calls[-1][:3], now)
    return calls + [(10, "Double", now + 50, now + 51)]


class Replay(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def replay(self, *records, options=()):
        paths = []
        for rank, each in enumerate(records):
            paths.append(f"{self.folder.name}/rank_{rank}")
            with open(paths[-1], "wb") as file:
                file.write(each if isinstance(each, bytes) else pickle.dumps(record(each), protocol=2))
        return subprocess.run([REPLAY, *paths, "--output", f"{self.folder.name}/r.toml", *options], capture_output=True, text=True)

    def simulated(self):
        printed = subprocess.run([NETSUM, "simulate", "--scenario", f"{self.folder.name}/r.toml", "--json"], capture_output=True, text=True, check=True).stdout
        return json.loads(printed)["jobs"][0]

    def test_steps_begin_where_a_rank_computed_for_longest(self):
        done = self.replay(training(), training(slower=2), options=("--rate", "1gbit"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("2 ranks, 4 steps, 3 all-reduces per step; recorded step time 55.00 ms, 45.00 ms of it computing between all-reduces", done.stdout)
        job = self.simulated()
        self.assertEqual([bucket["elements"] for bucket in job["buckets"]], [300, 100, 300])
        with open(f"{self.folder.name}/r.passes.csv", encoding="utf-8") as file:
            self.assertEqual(file.read(), "0.6667,1.333\n" * 4)
        self.assertEqual([round(seconds, 3) for seconds in job["iterations"]], [0.060] * 4)  # the slower rank's; sums take less than 1 ms

    def test_what_a_type_is_on_the_wire(self):
        self.assertEqual(self.replay(training(dtype="BFloat16"), training(dtype="BFloat16")).returncode, 0)
        with open(f"{self.folder.name}/r.toml", encoding="utf-8") as file:
            self.assertIn('wire = "bfloat16"', file.read())
        self.assertIn("a step sums Long", self.replay(training(dtype="Long")).stderr)

    def test_what_is_refused(self):
        self.assertIn("its 2 all-reduces show no pattern that repeats three times", self.replay(training()[:2]).stderr)
        self.assertIn("the steps in", self.replay(training(), training()[1:2] * 9).stderr)
        self.assertIn("is no flight record", self.replay(b"nothing").stderr)
        self.assertIn("flight records contain numbers", self.replay(pickle.dumps(os.system)).stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
