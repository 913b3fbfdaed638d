"""A short list of collectives under compute-sanitizer, which looks for accesses outside of the GPU's allocations, in all ranks."""

import pathlib
import shutil
import subprocess
import sys
import unittest

import on_gpu
from on_gpu import IS_GPU

E2E = pathlib.Path(__file__).resolve().parent.parent / "e2e"
FOUND = {}


class Sanitizer(unittest.TestCase):
    def test_memcheck(self):
        command = [sys.executable, str(E2E / "torch_devices.py"), "Devices.test_temporaries", "Devices.test_ddp"]
        tool = shutil.which("compute-sanitizer")
        if IS_GPU and tool:
            command = [tool, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "9", *command]
        elif IS_GPU:
            self.skipTest("no compute-sanitizer in PATH")
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, timeout=170)
        FOUND["memcheck"] = [line for line in ended.stdout.splitlines() if "=========" in line or " ... " in line][-40:]
        self.assertEqual(ended.returncode, 0, ended.stdout[-3000:])


def tearDownModule():
    on_gpu.save(FOUND)


if __name__ == "__main__":
    unittest.main(verbosity=2)
