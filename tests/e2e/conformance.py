#!/usr/bin/python3
"""conformance/run: netsum's daemons and worker pass every schedule; the published rules fail where the pages say; the judge, which has
another reader of the same formats, agrees with what the schedules expect.

usage: conformance.py NETSUM_BINARY CONFORMANCE_SETUP [unittest arguments]
"""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import cli_support as cli

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KIT, PUBLISHED = ROOT / "conformance/run", f"{sys.executable} {ROOT}/conformance/published.py"
SETUP = None
RING = "id=0,ranks=2,packets=2,window=2,mtu=256,dtype=int32,layout=netsum,order=arrival"
# Two interfaces of hosts, whose other ends are the bump's.
BETWEEN_INTERFACES = """set -e
for i in 0 1; do ip link add h$i type veth peer name b$i; ip link set h$i addrgenmode none up; ip link set b$i addrgenmode none up; done
exec 3< <(exec "$1" bump --port eth:b0 --port eth:b1 --ring "$2" --hosts 10.77.0.1,10.77.0.2); bump=$!
read -r ready <&3
"$3" "$4" --ethernet h0,h1 --patience 10 && code=0 || code=$?
kill $bump
exit $code"""


def kit(*arguments, code=0):
    """What it prints."""
    result = subprocess.run([sys.executable, KIT, *map(str, arguments)], capture_output=True, text=True, timeout=100, env=cli.environment())
    if result.returncode != code:
        raise AssertionError(f"exit code {result.returncode}: {result.stdout}\n{result.stderr}")
    return result.stdout


class Ours(unittest.TestCase):
    def test_the_daemon(self):
        with cli.Switch() as switch:
            printed = kit("--setup", f"{SETUP} {switch.address}", "--role", "switch", "--patience", 10)
        self.assertRegex(printed, r"\n(\d+) of \1 schedules passed\n$")
        for protocol in ("switchml", "atp", "netreduce"):
            self.assertIn(f"\n{protocol}-", "\n" + printed)

    def test_the_bump_in_the_wire(self):
        with tempfile.TemporaryDirectory() as folder:
            ends = [(f"{folder}/host{rank}", f"{folder}/bump{rank}") for rank in range(2)]
            ports = [word for host, bump in ends for word in ("--port", f"qemu:{bump},{host}")]
            with cli.Process("bump", *ports, "--ring", RING, "--hosts", "10.77.0.1,10.77.0.2") as bump:
                bump.wait_line(bump.out, "ready")
                printed = kit("--ethernet", ",".join(":".join(end) for end in ends), "--patience", 10)
        self.assertRegex(printed, r"\n(\d+) of \1 schedules passed\n$")

    def test_the_bump_between_interfaces(self):
        if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode != 0:
            self.skipTest("network namespaces are not permitted here")
        result = subprocess.run(["unshare", "-n", "bash", "-c", BETWEEN_INTERFACES, "bash", cli.NETSUM, RING, sys.executable, str(KIT)],
                                capture_output=True, text=True, timeout=60, env=cli.environment())
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("3 of 3 schedules passed", result.stdout)

    def test_the_worker(self):
        self.assertRegex(kit("--setup", SETUP, "--role", "worker", "--patience", 10), r"\n(\d+) of \1 schedules passed\n$")


class Published(unittest.TestCase):
    def test_algorithm_3_counts_late_copies_twice(self):
        for rules in (PUBLISHED, PUBLISHED + " --compare-chunks"):
            printed = kit("--setup", rules, "switchml-switch-late-copies", code=1)
            self.assertIn("FAILED at step 7 of 9: 0 gets a packet 'result', and must get nothing: chunk 1", printed)
            self.assertIn("values [20, 20, 20, 20]", printed)
            self.assertIn("docs/protocol-switchml.md:", printed)
            self.assertIn("passed", kit("--setup", rules, "switchml-switch-sums", "switchml-switch-two-slots"))
        self.assertIn("FAILED at step 8 of 14", kit("--setup", PUBLISHED, "switchml-switch-old-copies", code=1))

    def test_an_accelerator_with_an_entry_a_connection_leaves_a_host_that_goes_back_without_its_sum(self):
        printed = kit("--setup", PUBLISHED, "--protocol", "netreduce", "--patience", 0.5, code=1)
        self.assertRegex(printed, r"going-back: FAILED at step \d+ of \d+: 0 gets nothing, and must get message 0, packet 1")
        self.assertRegex(printed, r"lost-result: FAILED at step \d+ of \d+: 1 gets nothing, and must get message 0, packet 0")
        self.assertIn("netreduce-accelerator-sums: passed", printed)


# Nobody is at its address.
SILENT = f"""{sys.executable} -c 'import sys; sys.stdin.readline(); print("{{\\"address\\": \\"127.0.0.1\\", \\"port\\": 9}}", flush=True); sys.stdin.read()'"""


class Schedules(unittest.TestCase):
    def test_who_says_nothing_passes_none(self):
        number = len(list((ROOT / "conformance/schedules").glob("*.json")))
        self.assertEqual(len(kit("--list").splitlines()), number)
        self.assertIn(f"\n0 of {number} schedules passed\n", kit("--setup", SILENT, "--patience", 0.1, "--quiet", 0.01, code=1))

    def test_the_judge_finds_what_they_expect_right(self):
        with tempfile.TemporaryDirectory() as folder:
            kit("--pcap", folder, "--role", "switch")
            files = sorted(os.listdir(folder))
            first = {name: pathlib.Path(folder, name).read_bytes() for name in files}
            kit("--pcap", folder, "--role", "switch")
            self.assertEqual(first, {name: pathlib.Path(folder, name).read_bytes() for name in files})
            if importlib.util.find_spec("numpy") is None:
                self.skipTest("the judge needs python3-numpy")
            for name in files:
                with self.subTest(name=name):
                    hostile = ["--hostile"] if "strangers" in name else []
                    result = subprocess.run([sys.executable, ROOT / "judge/judge", *hostile, os.path.join(folder, name)], capture_output=True,
                                            text=True, timeout=60)
                    self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    SETUP = os.path.abspath(sys.argv.pop(2))
    cli.main()
