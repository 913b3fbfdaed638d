#!/usr/bin/python3
"""Every command of docs/start.md, as somebody runs them who reads the page: start.py SOURCE [--all].

Blocks marked `sh minutes` (setup, build, demo) run with --all alone; what those marked `sh packages` do, tests/debian/packages does. Everything else
is one shell, in a folder of its own beside which the repository's files seem to be.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""
BLOCK = re.compile(r"^```(sh[^\n]*)\n(.*?)^```$", re.M | re.S)


def blocks():
    with open(os.path.join(SOURCE, "docs/start.md"), encoding="utf-8") as file:
        return BLOCK.findall(file.read())


class Start(unittest.TestCase):
    def test_every_command(self):
        wanted = ("sh", "sh minutes") if "--all" in OPTIONS else ("sh",)
        found = blocks()
        self.assertGreater(sum(kind == "sh" for kind, _ in found), 4)
        self.assertEqual({kind for kind, _ in found}, {"sh", "sh minutes", "sh packages"})
        script = "\n".join(text for kind, text in found if kind in wanted)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("scripts", "build", "examples"):
                os.symlink(os.path.join(SOURCE, name), os.path.join(folder, name))
            environment = {name: value for name, value in os.environ.items() if not name.startswith("NETSUM_") and name != "PYTHONPATH"}
            environment["PATH"] = "/usr/bin:" + environment["PATH"]  # torch belongs to Debian's own python3
            with open(os.path.join(folder, "log"), "w+", encoding="utf-8") as log:
                shell = subprocess.Popen(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, stdout=log, stderr=log,
                                         start_new_session=True)
                try:
                    status = shell.wait(timeout=3600 if "--all" in OPTIONS else 240)
                finally:
                    try:
                        os.killpg(shell.pid, signal.SIGKILL)  # an aggregator that a failed shell left
                    except ProcessLookupError:
                        pass
                log.seek(0)
                said = log.read()
        self.assertEqual(status, 0, said)
        self.assertEqual(len(re.findall(r"^loss \S+ switch$", said, re.M)), 2, said)  # both trainings took the switch
        self.assertEqual(len(re.findall(r"^wrong +0, all ranks have the same bits$", said, re.M)), 4, said)


if __name__ == "__main__":
    OPTIONS = sys.argv[2:]
    unittest.main(argv=sys.argv[:1])
