#!/usr/bin/python3
"""The measurement of a kernel's TCP: it sees segments that are whole, and segments that are not; and nothing of it stays behind.

usage: tcp_boundaries.py BOUNDARIES [unittest arguments]

Exit code 77: network namespaces are not permitted here.
"""
import json
import os
import subprocess
import sys
import unittest

import netns_support as netns

LIMIT = 60  # seconds, for what takes one
PACKETS = 60


class Boundaries(unittest.TestCase):
    def measure(self, condition):
        process = subprocess.Popen([BOUNDARIES, "--json", "--packets", str(PACKETS), "--connections", "1", "--only", condition],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=LIMIT)
        left = [name for name in os.listdir("/run/netns") if name.startswith(f"boundaries{process.pid}-")]
        self.assertEqual(left, [])
        self.assertEqual(process.returncode, 0, err)
        return json.loads(out)

    def test_undisturbed_packets_are_segments(self):
        found = self.measure("packets as long as segments")
        self.assertEqual((found["packets"], found["not_whole"]), (PACKETS, 0))
        self.assertGreaterEqual(found["segments"], PACKETS)

    def test_a_shorter_path_cuts_them(self):
        found = self.measure("falls to 1300")
        self.assertGreater(found["packets_hit"], 0)
        self.assertGreater(found["not_whole"], 0)


if __name__ == "__main__":
    BOUNDARIES = sys.argv.pop(1)
    netns.skip_if_not_permitted()
    unittest.main()
