#!/usr/bin/python3
"""scripts/reproduce: every table and figure that it makes without measuring, with less data; and that a seed is a result.

usage: reproduce.py ROOT [unittest arguments]; build/release of ROOT is built
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = None
# Packets with losses, and formulas beside flows.
AGAIN = ("switchml-figure6", "atp-figure10", "netreduce-table7")


def reproduce(*arguments, limit=500):
    folders = ":".join(os.path.join(ROOT, "bench", folder) for folder in ("shared", "compare"))
    return subprocess.run(["/usr/bin/python3", "-B", os.path.join(ROOT, "papers/simulated.py"), *arguments], capture_output=True,
                          text=True, timeout=limit, env={**os.environ, "PYTHONPATH": folders}, stdin=subprocess.DEVNULL)


def content(folder, name):
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


class Reproduce(unittest.TestCase):
    def made(self, folder, *names):
        answer = reproduce(*names, "--simulated", "--short", "--output", folder)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return answer.stdout

    def test_all_of_them_and_some_again_to_the_digit(self):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            printed = self.made(first, "all")
            results = [name for name in os.listdir(first) if name.endswith(".json")]
            self.assertGreater(len(results), 20)
            for name in results:
                result = json.loads(content(first, name))
                self.assertIn(f"{result['name']}: ", printed)
                self.assertTrue(result["ours"])
                self.assertTrue(result["rows"])
                for row in result["rows"]:
                    self.assertEqual(len(row), len(result["header"]), name)
                if result["panels"]:
                    self.assertIn(b"<svg", content(first, f"{result['name']}.svg"))
            self.made(second, *AGAIN)
            for name in AGAIN:
                self.assertEqual(content(first, f"{name}.json"), content(second, f"{name}.json"))

    def test_unknown_names_and_shortened_documents_are_refused(self):
        answer = reproduce("switchml-figure99")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("no table, figure or paper 'switchml-figure99'", answer.stderr)
        self.assertEqual(reproduce("all", "--short", "--document").returncode, 2)


if __name__ == "__main__":
    ROOT = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
