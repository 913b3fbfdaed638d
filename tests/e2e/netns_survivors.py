#!/usr/bin/python3
"""Ranks, aggregators and links that end, each a host of its own, with real processes: the others have the next right sum, every result is
checked, and nothing stays behind. bench/elastic/measure does the same 500 times, for its times.

usage: netns_survivors.py MEASURE BINARIES [unittest arguments]

Exit code 77: network namespaces are not permitted here.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import netns_support as netns

KILLS = {"switchml": 8, "atp": 6, "netreduce": 6}
LIMIT = 120  # seconds, for what takes six at most


class Survivors(unittest.TestCase):
    def test_the_others_have_the_next_right_sum(self):
        for protocol, kills in KILLS.items():
            with self.subTest(protocol=protocol), tempfile.TemporaryDirectory() as folder:
                times = os.path.join(folder, "times")
                process = subprocess.Popen([MEASURE, "--build", BUILD, "--protocols", protocol, "--victims", "mixed", "--aggregators", "2",
                                            "--links", "1gbit", "--kills", str(kills), "--times", times],
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                out, err = process.communicate(timeout=LIMIT)
                self.assertEqual(process.returncode, 0, out + err)
                self.assertIn(f"{kills} kills, each result right", out)
                with open(times, encoding="utf-8") as file:
                    what = [each["what"] for each in json.load(file)]
                self.assertEqual(len(what), 2 * kills)
                self.assertLessEqual({"rank's SIGKILL", "rank's link down", "new rank's start", "new aggregator's start"}, set(what))


if __name__ == "__main__":
    MEASURE, BUILD = sys.argv[1], os.path.dirname(sys.argv[2])
    del sys.argv[1:3]
    netns.skip_if_not_permitted()
    unittest.main()
