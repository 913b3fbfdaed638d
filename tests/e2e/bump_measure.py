#!/usr/bin/python3
"""The benchmark of a bump in the wire: frames arrive through both of what it compares, and nothing of it stays behind.

usage: bump_measure.py MEASURE BINARIES [unittest arguments]

Exit code 77: network namespaces are not permitted here.
"""
import os
import subprocess
import sys
import unittest

import netns_support as netns

LIMIT = 60  # seconds, for what takes two


class Measure(unittest.TestCase):
    def measure(self, binaries):
        process = subprocess.Popen([MEASURE, "--rounds", "1", "--seconds", "0.01", "--bytes", "64", "--binaries", binaries],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=LIMIT)
        left = [name for name in os.listdir("/run/netns") if name.startswith(f"measure{process.pid}-")]
        self.assertEqual(left, [])
        return process.returncode, out, err

    def test_frames_arrive_both_ways(self):
        code, out, err = self.measure(BINARIES)
        self.assertEqual(code, 0, err)
        header, row = out.splitlines()
        size, bump, bridge = (int(cell.replace(",", "")) for cell in row.split()[:3])
        self.assertEqual(size, 64)
        self.assertGreater(bump, 0)
        self.assertGreater(bridge, 0)
        self.assertIn("open (1 pairs)", row)

    def test_without_a_bump_it_fails(self):
        self.assertNotEqual(self.measure("/nowhere")[0], 0)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    MEASURE, BINARIES = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    netns.skip_if_not_permitted()
    unittest.main(verbosity=2)
