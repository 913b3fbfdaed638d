#!/usr/bin/python3
"""The benchmark of a bump in the wire: frames arrive through all that it compares, and the packets of a ring as they should;
and nothing of it stays behind. Rings are summed with the hosts' own addresses, on veth pairs, by one thread
and by two, and by a bump with one arm.

usage: bump_measure.py MEASURE BINARIES [unittest arguments]

Exit code 77: network namespaces are not permitted here.
"""
import importlib.util
import os
import subprocess
import sys
import unittest

import netns_support as netns

LIMIT = 60  # seconds, for what takes two


class Measure(unittest.TestCase):
    def measure(self, binaries, *words):
        process = subprocess.Popen([MEASURE, "--rounds", "1", "--seconds", "0.01", "--binaries", binaries, *words],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=LIMIT)
        left = [name for name in os.listdir("/run/netns") if name.startswith(f"measure{process.pid}-")]
        self.assertEqual(left, [])
        return process.returncode, out, err

    def test_frames_arrive_both_ways(self):
        code, out, err = self.measure(BINARIES, "--bytes", "64", "--hosts", "")
        self.assertEqual(code, 0, err)
        header, *rows = out.splitlines()
        self.assertEqual([row.split("/s")[0].strip() for row in rows], ["64 bytes, frames", "TCP, MB"])
        for row in rows:
            bump, bridge = (int(cell.replace(",", "")) for cell in row.split("/s")[1].split()[:2])
            self.assertGreater(bump, 0)
            self.assertGreater(bridge, 0)
            self.assertIn("open (1 pairs)", row)

    def test_rings_are_summed_and_forwarded(self):
        for words in (["--threads", "1"], ["--threads", "2"], ["--one-arm"], ["--one-arm", "2"]):
            with self.subTest(words=words):
                code, out, err = self.measure(BINARIES, "--no-tcp", "--bytes", "", "--hosts", "2,4", *words)
                self.assertEqual(code, 0, err)
                rows = [line.split() for line in out.splitlines()[1:]]
                self.assertEqual([row[0] for row in rows], ["2", "4"])
                for row in rows:
                    self.assertTrue(all(int(cell.replace(",", "")) > 0 for cell in row[1:4]), row)

    def test_a_training_through_the_bump_has_the_losses_of_tunnels(self):
        train = os.path.join(os.path.dirname(MEASURE), "train")
        if importlib.util.find_spec("torch") is None or not os.path.exists(os.path.join(BINARIES, "../papers/librank_sums.so")):
            self.skipTest("needs PyTorch, and build/release with rank_sums")
        made = subprocess.run([train, "--steps", "3", "--model", "transformer", "--binaries", BINARIES], capture_output=True, text=True, timeout=LIMIT)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("the same to the bit", made.stdout)

    def test_what_is_not_summed_is_seen(self):
        """The generator's own check: packets that pass a bridge are no sums."""
        script = "\n".join([f"import importlib.machinery, importlib.util, sys; sys.argv[0] = {MEASURE!r}",
                            f"loader = importlib.machinery.SourceFileLoader('measure', {MEASURE!r})",
                            "m = importlib.util.module_from_spec(importlib.util.spec_from_loader('measure', loader))",
                            f"loader.exec_module(m); m.BINARIES = {BINARIES!r}",
                            "m.build()",
                            "try: print(m.measured(m.bridge(), m.ring, 2, 0.01, 'sums'))",
                            "finally: m.take_down()"])
        made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("it is not a sum of all", made.stderr)

    def test_without_a_bump_it_fails(self):
        self.assertNotEqual(self.measure("/nowhere", "--bytes", "64", "--hosts", "")[0], 0)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    MEASURE, BINARIES = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    netns.skip_if_not_permitted()
    unittest.main(verbosity=2)
