#!/usr/bin/python3
"""The demo, with a small network and few steps: what it refuses, what its report says, and that its check of sums can fail.

usage: demo.py [unittest arguments], with NETSUM_BINARY and PYTHONPATH as for the tests of the PyTorch backend
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path[:0] = [os.path.join(ROOT, folder) for folder in ("bench/shared", "bench/demo", "examples")]
LIMIT = 120


def demo(*words):
    return subprocess.run([sys.executable, os.path.join(ROOT, "bench/demo/main.py"), *words], capture_output=True, text=True, timeout=LIMIT,
                          cwd=ROOT, stdin=subprocess.DEVNULL,
                          env=os.environ | {"PYTHONPATH": ":".join(os.path.join(ROOT, each) for each in ("bench/shared", "bench/demo"))})


class Refusals(unittest.TestCase):
    def test_one_line_and_status_2(self):
        for words, said in ((["--loss", "2"], "0.01, or 1%"), (["--protocol", "ring"], "--protocol"), (["--rate", "fast"], "a rate is like"),
                            (["--workers", "1"], "--workers"), (["--wire", "bfloat16", "--protocol", "atp"], "SwitchML's"),
                            (["--loss", "0.01", "--loopback"], "--loss needs links")):
            with self.subTest(words=words):
                done = demo(*words, "--check-arguments")
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))
                self.assertIn(said, done.stderr)


class Run(unittest.TestCase):
    def test_on_loopback(self):
        with tempfile.TemporaryDirectory(prefix="netsum-demo-") as folder:
            done = demo("--loopback", "--workers", "2", "--steps", "2", "--hidden", "100", "--output", folder)
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
            with open(os.path.join(folder, "result.json"), encoding="utf-8") as file:
                found = json.load(file)
            self.assertTrue(os.path.exists(os.path.join(folder, "accuracy.svg")))
        for said in ("All workers run on loopback (--loopback)", "Gloo's over netsum's", "On loopback no link is slow", "On your own"):
            self.assertIn(said, done.stdout)
        parameters = 785 * 100 + 101 * 90 + 91 * 10
        for name, each in found["trainings"].items():
            with self.subTest(name):
                self.assertEqual((each["steps"], each["parameters"], each["sums"], each["wrong"]), (2, parameters, 2 * parameters, 0))
                self.assertTrue(each["same_weights"])
                self.assertEqual(len(each["points"]), 2)
                self.assertGreater(each["bytes_per_worker"], 2 * parameters * 4)
        self.assertEqual(found["trainings"]["netsum"]["path"], "switch")
        self.assertAlmostEqual(*(found["trainings"][name]["points"][-1][1] for name in ("gloo", "netsum")), delta=0.02)


class Check(unittest.TestCase):
    def test_finds_what_is_not_the_mean(self):
        import torch
        from ddp_fashion_mnist import wrong_elements
        contributions = [[torch.randn(1000, generator=torch.Generator().manual_seed(rank))] for rank in range(4)]
        mean = sum(each[0] for each in contributions) / 4
        for wire, travels in (("float32", mean), ("bfloat16", mean.bfloat16().float()), ("float16", mean.half().float())):
            self.assertEqual(wrong_elements([travels], contributions, wire), 0)
        self.assertGreater(wrong_elements([mean.bfloat16().float()], contributions, "float32"), 500)
        for damage in (float("nan"), 1.0, -0.1):
            bad = mean.clone()
            bad[7] += damage
            self.assertEqual(wrong_elements([bad], contributions, "bfloat16"), 1)
        self.assertGreater(wrong_elements([mean - contributions[3][0] / 4], contributions, "bfloat16"), 900)  # one rank forgotten


class Report(unittest.TestCase):
    def found(self, **more):
        side = {"points": [(0.0, 0.1), (10.0, 0.7), (20.0, 0.76)], "seconds": 20.0, "steps": 10, "bytes_per_worker": 480e6, "idle": 0.4,
                "sums": 5, "wrong": 0, "same_weights": True}
        fast = side | {"points": [(0.0, 0.1), (5.0, 0.7), (12.0, 0.77)], "bytes_per_worker": 320e6}
        return {"workers": 4, "links": True, "rate": "150mbit", "loss": 0.0, "tcp": "cubic", "protocol": "switchml", "wire": "float32",
                "target": 0.75, "trainings": {"gloo": side, "netsum": fast}} | more

    def test_time_to_what_both_reached(self):
        import report
        self.assertAlmostEqual(report.speedup(self.found()), 20 / 12)
        self.assertAlmostEqual(report.speedup(self.found(target=0.9)), 20 / 12)  # neither reached it: Gloo's best
        self.assertAlmostEqual(report.speedup(self.found(target=0.7)), 2)

    def test_says_why(self):
        import report
        self.assertIn("48 MB a step", report.why(self.found()))
        self.assertIn("slows down at each loss", report.why(self.found(loss=0.01)))
        lost = self.found()
        lost["trainings"]["netsum"] = lost["trainings"]["gloo"] | {"idle": 0.01}
        self.assertIn("processors were only 1 % idle", report.why(lost))

    def test_a_wrong_sum_is_no_success(self):
        import report
        self.assertTrue(report.right(self.found()))
        for damage in ({"wrong": 1}, {"sums": 0}, {"same_weights": False}):
            found = self.found()
            found["trainings"]["netsum"] |= damage
            self.assertFalse(report.right(found))


if __name__ == "__main__":
    unittest.main(verbosity=2)
