#!/usr/bin/python3
"""scripts/site builds the site: strict, no dead link, nothing asked of another server. site.py SOURCE; skipped without mkdocs, Doxygen or emscripten."""
import os
import shutil
import subprocess
import sys
import unittest

SOURCE = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ""


class Site(unittest.TestCase):
    def test_builds(self):
        built = subprocess.run(["scripts/site"], cwd=SOURCE, capture_output=True, text=True, timeout=240)
        self.assertEqual(built.returncode, 0, built.stdout + built.stderr)
        self.assertEqual(built.stdout.split("\n")[-2], "build/site/html/index.html", built.stdout)
        pages = os.path.join(SOURCE, "build/site/html")
        for page, words in (("index.html", "inside the network"), ("start.html", "scripts/setup"), ("reference/commands.html", "netsum-bench-all-reduce"),
                            ("reference/metrics.html", "netsum_slots_free"), ("reference/environment.html", "NETSUM_SWITCH"),
                            ("reference/options.html", "token-file"), ("playground/index.html", "Algorithm 3 as published"), ("api/classnetsum_1_1Communicator.html", "all_reduce")):
            with open(os.path.join(pages, page), encoding="utf-8") as file:
                self.assertIn(words, file.read(), page)


if __name__ == "__main__":
    missing = [name for name in ("mkdocs", "doxygen", "em++") if not shutil.which(name)]
    if missing or not os.path.isdir("/usr/share/mkdocs/themes/material"):
        print("skipped: no " + " and no ".join(missing or ["mkdocs-material"]))
        sys.exit(77)
    unittest.main()
