#!/usr/bin/python3
"""Names in the binary and in the documents: every flag of a command, every variable that is read, and every metric of a daemon is in the
documents; and what these call a variable, a metric or a flag of netsum exists.
"""
import itertools
import os
import re
import socket
import sys
import tempfile
import unittest
import urllib.request

import cli_support as cli

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "etc"))
sys.dont_write_bytecode = True
import manual  # noqa: E402

# What daemons have that this test cannot start: with TLS; a bump whose rings have threads, or whose hosts have RDMA hardware.
ELSEWHERE = {"certificate_expiry_timestamp_seconds", "dropped_ring_queue_full", "ring_queue_marked"}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def documents():
    names = ["README.md", "CONTRIBUTING.md"] + sorted("docs/" + name for name in os.listdir(os.path.join(ROOT, "docs")) if name.endswith(".md"))
    return {name: read(name) for name in names}


def sources(*folders):
    for folder in folders:
        for place, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in names:
                if name.endswith((".cc", ".h", ".py", ".txt", ".cmake")) or "." not in name:
                    try:
                        yield read(place, name)
                    except UnicodeDecodeError:
                        pass


def braces(text):
    """a_{b,c} is a_b and a_c."""
    parts = re.split(r"\{([^{}]*)\}", text)
    return {"".join(each) for each in itertools.product(*([part] if i % 2 == 0 else part.split(",") for i, part in enumerate(parts)))}


def bare(metric):
    """As `netsum status --json` calls it."""
    name = re.sub(r"^netsum_(job_)?", "", metric)
    name = re.sub(r"^port\d+_", "portN_", name)
    return re.sub(r"_total$", "", name)


def counters(text):
    """The names in the first cells of tables: (those that stand there, all that may be meant), of which `_b` after `a_x` may be a_b."""
    written, meant = set(), set()
    for line in text.split("\n"):
        if not line.startswith("| ") or "`" not in line:
            continue
        last = ""
        for token in re.findall(r"`([a-zA-Z_0-9{},*]+)`", line.split(" | ")[0]):
            for name in braces(token):
                if name.startswith("_"):
                    meant |= {bare(last[:at] + name) for at in [found.start() for found in re.finditer("_", last)] + [len(last)]}
                elif not name.endswith("*"):
                    written.add(name)
                    last = name
                meant.add(bare(name))
    return written, meant


def is_meant(name, meant):
    return name in meant or any(each.endswith("*") and name.startswith(each[:-1]) for each in meant)


def flags_of(text):
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


class Names(unittest.TestCase):
    maxDiff = None

    def test_that_tables_are_understood(self):
        self.assertEqual(braces("netsum_a_{b,c}_total"), {"netsum_a_b_total", "netsum_a_c_total"})
        written, meant = counters("| `netsum_job_{a,b}_total`, `x_one_y`, `_two`, `all_*` | `no` |\ntext `not_this`")
        self.assertEqual(written, {"netsum_job_a_total", "netsum_job_b_total", "x_one_y"})
        self.assertTrue(all(is_meant(name, meant) for name in ("a", "b", "x_one_two", "x_two", "all_of_it")))
        self.assertFalse(is_meant("no", meant) or is_meant("x_one", meant))
        self.assertEqual(flags_of("a --b-c=1, `--d`"), {"--b-c", "--d"})

    def test_flags(self):
        flags = {flag for page in manual.pages(cli.NETSUM) for flag, *_ in page.flags}
        self.assertGreater(len(flags), 100)
        named = {name: flags_of(text) for name, text in documents().items()}
        self.assertEqual(flags - set().union(*named.values()), set(), "in no document")
        # In a command line of netsum's, up to a comment or another command, every flag is netsum's.
        wrong = []
        for name, text in documents().items():
            for command in re.findall(r"(?:^|[\s/`])netsum (?:switch|ps|bump|status|top|explain|end|drain|doctor|bench|simulate) ([^`#|;&\n]*)",
                                      text.replace("\\\n", " ")):
                wrong += [f"{name}: {flag}" for flag in flags_of(command) - flags]
        self.assertEqual(wrong, [])

    def test_variables(self):
        read_here = {name for text in sources("src", "bindings", "apps") for name in re.findall(r'"(NETSUM_[A-Z0-9_]+)"', text)}
        self.assertGreater(len(read_here), 25)
        of_flags = {"NETSUM_" + flag[2:].replace("-", "_").upper() for page in manual.pages(cli.NETSUM) for flag, *_ in page.flags}
        text = "\n".join(documents().values())
        named = set(re.findall(r"NETSUM_[A-Z0-9_]*[A-Z0-9]", text))
        self.assertEqual({name for name in read_here if name not in text and name not in of_flags}, set(), "in no document")
        known = {name for text in sources("src", "bindings", "apps", "tests", "cmake", "include", "scripts") for name in re.findall(r"NETSUM_[A-Z0-9_]+", text)}
        known |= set(re.findall(r"NETSUM_[A-Z0-9_]+", read("CMakeLists.txt") + read("CMakePresets.json") + read("setup.py")))
        known |= of_flags
        prefixes = tuple(name for name in known if name.endswith("_"))
        self.assertEqual({name for name in named if name not in known and not name.startswith(prefixes)}, set(), "nobody reads it")

    def test_metrics(self):
        served = set()

        with tempfile.TemporaryDirectory() as folder, socket.socket() as one, socket.socket() as two, socket.socket() as three:
            pages = []
            for each in (one, two, three):
                each.bind(("127.0.0.1", 0))
                pages.append(f"127.0.0.1:{each.getsockname()[1]}")
                each.close()
            ring = "id=0,ranks=4,racks=2:2"
            ports = [flag for i in range(2) for flag in ("--port", f"qemu:{folder}/{i}.a,{folder}/{i}.b")]
            # A small pool: a job of ATP begins without a switch that takes half a second to make its memory.
            with cli.Switch("--metrics", pages[0], "--pool-slots", 64) as switch, cli.ParameterServer("--metrics", pages[1]) as server, \
                    cli.Process("bump", "--racks", "--listen", "127.0.0.1:0", "--state", folder + "/rings", "--ring", ring, "--rack", 0,
                                "--root", "127.0.0.1:9", "--hosts", "10.1.0.1,10.1.0.2,10.1.0.3,10.1.0.4", *ports, "--metrics", pages[2]) as bump:
                bump.wait_line(bump.out, "listening ")
                ranks = []
                try:
                    for protocol in ("switchml", "netreduce", "atp"):
                        more = ["--ps", server.address] if protocol == "atp" else []
                        ranks += [cli.rank_process(switch.address, rank, 2, "--protocol", protocol, "--job", protocol, "--elements", 1000,
                                                   "--iterations", 1000000, *more) for rank in range(2)]
                    for rank in ranks:
                        rank.wait_line(rank.out, "iteration")
                    for page in pages:
                        with urllib.request.urlopen(f"http://{page}/metrics", timeout=10) as answer:
                            text = answer.read().decode()
                        served |= set(re.findall(r"^(netsum_[a-z_0-9]+)", text, re.M))
                        for kind, name in re.findall(r"^# TYPE (?=.* (\w+)$)(\S+)", text, re.M):
                            self.assertEqual(kind == "counter", name.endswith("_total"), name)
                            self.assertNotIn("_total_total", name)
                finally:
                    for rank in ranks:
                        rank.__exit__()
        self.assertGreater(len(served), 130)
        watch, bump = counters(read("docs/operate-watch.md")), counters(read("docs/operate-bump.md").split("\n## Counters\n")[1].split("\n## ")[0])
        self.assertEqual({name for name in served if not is_meant(bare(name), watch[1] | bump[1])}, set(), "in no document")
        named = {name for name in watch[0] if name.startswith("netsum_")}
        self.assertEqual({name for name in named if name not in served and bare(name) not in ELSEWHERE}, set(), "no daemon has it")
        self.assertEqual({name for name in bump[0] if name not in {bare(each) for each in served} | ELSEWHERE and not name.startswith("--")}, set(),
                         "no bump has it")


if __name__ == "__main__":
    cli.main()
