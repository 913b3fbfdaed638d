#!/usr/bin/python3
"""netsum inside of other programs: several copies in one process, children of fork(), static objects, exit() under way.

usage: embedding.py NETSUM EMBEDDED PART [LIBRARY...] [unittest arguments]

EMBEDDED: tests/e2e/embedded.cc. PART: embedded_part.cc. LIBRARY: netsum's libraries for other programs (libnetsum-mpi.so, libnccl-net-netsum.so), each with a
copy of netsum in it; with netsum.torch in PYTHONPATH, one more.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

import cli_support as cli

EMBEDDED, PART, LIBRARIES = None, None, []
TOKEN = "a secret of sixteen characters or more"
COPIES = """
import ctypes, sys
for library in sys.argv[2:]:
    ctypes.CDLL(library)
import datetime, os, torch, torch.distributed as dist, netsum.torch
os.environ["NETSUM_SWITCH"] = sys.argv[1]
store = dist.HashStore()
dist.init_process_group("netsum", store=store, rank=0, world_size=1, timeout=datetime.timedelta(seconds=30))
tensor = torch.ones(1000)
dist.all_reduce(tensor)
assert tensor.sum() == 1000
dist.destroy_process_group()
print("summed")
"""


class Embedding(unittest.TestCase):
    def program(self, how, times=1):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(TOKEN)
            file.flush()
            with cli.Switch("--token-file", file.name) as switch:
                for _ in range(times):
                    done = subprocess.run([EMBEDDED, how, switch.address, TOKEN, PART], capture_output=True, text=True, timeout=60)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_communicator_with_static_storage(self):
        self.program("static", 5)

    @unittest.skipIf(cli.is_sanitized(), "a thread may hold the lock of the sanitizer's allocator when the process forks")
    def test_children_have_work_of_their_own_and_the_parent_goes_on(self):
        self.program("fork")

    def test_exit_from_another_thread(self):
        self.program("exit", 5)

    def test_an_exception_while_work_is_under_way(self):
        self.program("throw")

    def test_communicators_share_threads(self):
        for how in ("many", "many-shared"):
            with self.subTest(how):
                self.program(how)

    def test_a_part_is_unloaded(self):
        self.program("unload")

    def test_a_part_needs_few_libraries_and_shows_the_public_interface_alone(self):
        needed = re.findall(r"NEEDED.*\[(.*?)\.so", subprocess.run(["readelf", "-d", PART], capture_output=True, text=True, check=True).stdout)
        allowed = {"libssl", "libcrypto", "libhwy", "libstdc++", "libm", "libgcc_s", "libresolv", "libc", "ld-linux-x86-64"}
        self.assertEqual({name for name in needed if not name.startswith(("libasan", "libubsan", "libtsan"))} - allowed, set())
        shown = subprocess.run(["nm", "-DC", "--defined-only", PART], capture_output=True, text=True, check=True).stdout
        public = ("Aggregator", "Communicator", "Error", "ParameterServer", "TensorMemory", "Work", "default_heartbeat_timeout_ms", "protocol_named",
                  "round_as", "to_string")
        ours = re.findall(r"^\S+ [TBDRu] netsum::(\w+)", shown, re.MULTILINE)
        self.assertIn("Communicator", ours)
        self.assertEqual(set(ours) - set(public), set())

    def test_several_copies_in_one_process(self):
        if not LIBRARIES or "PYTHONPATH" not in os.environ:
            self.skipTest("netsum.torch or the libraries are not built")
        with cli.Switch() as switch:
            for preload in ("", LIBRARIES[0]):
                with self.subTest(preload=preload):
                    done = subprocess.run([sys.executable, "-c", COPIES, switch.address, *LIBRARIES], capture_output=True, text=True,
                                          timeout=100, env=os.environ | ({"LD_PRELOAD": preload} if preload else {}))
                    self.assertEqual((done.returncode, done.stdout), (0, "summed\n"), done.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    EMBEDDED, PART = os.path.abspath(sys.argv.pop(2)), os.path.abspath(sys.argv.pop(2))
    while len(sys.argv) > 2 and sys.argv[2].endswith(".so"):
        LIBRARIES.append(os.path.abspath(sys.argv.pop(2)))
    cli.main()
