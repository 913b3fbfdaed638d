#!/usr/bin/env python3
"""The last release beside today's netsum: a job of both works, or is refused in words that name both; nothing hangs or sums wrongly.

usage: versions.py NETSUM ROOT [--revision REVISION | --other NETSUM] [unittest arguments]

The other netsum is that of the newest tag v*, or of REVISION: built in build/versions, once. Exit status 77 if there is no tag.
"""
import argparse
import itertools
import os
import pathlib
import re
import subprocess
import sys

import cli_support as cli

OTHER = None
QUICK = ("--elements", 10000, "--iterations", 3, "--connect-deadline", 10, "--deadline", 10, "--json")
VERSION = r"netsum \S+ \(layouts [0-9a-f]{16}\)"
REFUSAL = re.compile(rf"(?s).*the daemon runs {VERSION}, the caller {VERSION}: install the same version at both ends")


def build(root, revision):
    """The netsum of a revision of this repository."""
    folder = root / "build" / "versions" / revision
    binary = folder / "build" / "release" / "bin" / "netsum"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "-C", root, "archive", revision], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive.stdout)
        subprocess.run([folder / "scripts" / "build", "release", "netsum"], check=True)
    return binary


def newest_tag(root):
    tags = subprocess.run(["git", "-C", root, "tag", "--list", "v*", "--sort=-version:refname"], check=True, capture_output=True, text=True)
    return next(iter(tags.stdout.split()), None)


def other(*arguments):
    return cli.Process(*arguments, program=OTHER)


class Mixtures(cli.unittest.TestCase):
    def join(self, daemon, ranks, *flags):
        """How two ranks, each of its own netsum, end at a daemon; both have the same right sum, or one reason not to work together."""
        started = [make("bench", "all-reduce", "--switch", daemon, "--rank", number, "--world-size", 2, *QUICK, *flags)
                   for number, make in enumerate(ranks)]
        try:
            codes = [rank.wait(60) for rank in started]
            errors = ["\n".join(rank.err) for rank in started]
            if codes == [0, 0]:
                return "works"
            for code, text in zip(codes, errors):
                self.assertIn(code, (1, 3), text)
            self.assertTrue(any(REFUSAL.match(text) for text in errors), errors)
            return "refused"
        finally:
            for rank in started:
                rank.__exit__()

    def check(self, *flags):
        ends = {"today's": cli.Process, "the other's": other}
        found = {}
        for daemon, one, two in itertools.product(ends, repeat=3):
            with ends[daemon]("switch", "--listen", "127.0.0.1:0") as process:
                address = process.wait_line(process.out, "listening ").split()[1]
                found[daemon, one, two] = self.join(address, (ends[one], ends[two]), *flags)
        self.assertEqual({"works"}, {result for parts, result in found.items() if len(set(parts)) == 1}, found)
        mixed = {result for parts, result in found.items() if len(set(parts)) > 1}
        self.assertEqual(1, len(mixed), found)  # the layouts are the same, or not
        print("mixtures:", *mixed, file=sys.stderr)

    def test_switchml(self):
        self.check()

    def test_netreduce(self):
        self.check("--protocol", "netreduce")

    def test_shared_memory(self):
        self.check("--transport", "shm")

    def test_status_of_the_others_daemon(self):
        with other("switch", "--listen", "127.0.0.1:0") as daemon:
            address = daemon.wait_line(daemon.out, "listening ").split()[1]
            status = cli.run("status", "--switch", address)
            self.assertTrue(status.returncode == 0 or REFUSAL.match(status.stderr), status.stderr)


def main():
    global OTHER
    parser = argparse.ArgumentParser()
    parser.add_argument("netsum")
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--revision")
    parser.add_argument("--other", type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    revision = arguments.revision or newest_tag(arguments.root)
    if not arguments.other and not revision:
        print("skipped: no tag v* (name a --revision)")
        sys.exit(77)
    OTHER = os.path.abspath(arguments.other or build(arguments.root.resolve(), revision))
    sys.argv = [sys.argv[0], arguments.netsum, *rest]
    cli.main()


if __name__ == "__main__":
    main()
