#!/usr/bin/python3
"""examples/slurm on a Slurm of one machine (Debian's slurm-wlm): its controller, a node of four processors and munge, for the test alone.

slurm.py NETSUM_BINARY SOURCE PYTHONPATH   (PYTHONPATH: with netsum.torch, or empty: without it)
Skipped where Slurm is not installed, or who runs it is not root.
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

import cli_support as cli
import netns_support as netns

ARGUMENTS = list(sys.argv)
SOURCE, PYTHON = (sys.argv.pop(2), sys.argv.pop(2)) if len(sys.argv) > 3 else ("", "")

CONFIG = """
ClusterName=netsum
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={node}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=localhost CPUs=4 State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def free_port():
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return any_socket.getsockname()[1]


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="netsum-slurm.")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        os.chmod(cls.folder, 0o755)
        for name in ("state", "spool"):
            os.mkdir(os.path.join(cls.folder, name), 0o755)
        config = os.path.join(cls.folder, "slurm.conf")
        with open(config, "w") as file:
            file.write(CONFIG.format(folder=cls.folder, controller=free_port(), node=free_port()))
        # Nothing of the jobs is in control groups. Before 23.11 the plugin of version 1 is the one that begins without any.
        version = tuple(map(int, re.search(r"(\d+)\.(\d+)", subprocess.run(["slurmd", "-V"], capture_output=True, text=True).stdout).groups()))
        with open(os.path.join(cls.folder, "cgroup.conf"), "w") as file:
            file.write("CgroupPlugin=disabled\n" if version >= (23, 11) else f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={cls.folder}/cgroup\n")
        key = os.path.join(cls.folder, "key")
        with open(key, "wb") as file:
            file.write(os.urandom(128))
        os.chmod(key, 0o400)
        cls.environment = cli.environment({"SLURM_CONF": config, "PATH": f"{os.path.dirname(cli.NETSUM)}:/usr/bin:{os.environ['PATH']}"})
        cls.daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={cls.folder}/munge", f"--pid-file={cls.folder}/munge.pid",
                   f"--log-file={cls.folder}/munge.log", f"--seed-file={cls.folder}/munge.seed")
        cli.until(lambda: os.path.exists(f"{cls.folder}/munge"), 20, "munge")
        cls.daemon("slurmctld", "-D", "-f", config)
        cls.daemon("slurmd", "-D", "-f", config, "-N", "localhost")
        cli.until(lambda: "idle" in cls.said("sinfo", "-h", "-o", "%T"), 60, "an idle node")

    @classmethod
    def daemon(cls, *words):
        with open(os.path.join(cls.folder, words[0] + ".out"), "wb") as log:
            process = subprocess.Popen(words, env=cls.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

        def end():
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        cls.addClassCleanup(end)

    @classmethod
    def said(cls, *words):
        return subprocess.run(words, env=cls.environment, capture_output=True, text=True, timeout=60).stdout

    def job(self, *words, environment=None):
        """What a job that went well printed."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            made = subprocess.run(["sbatch", "--wait", "--time=2", f"--output={folder}/out", *words], env={**self.environment, **(environment or {})}, cwd=folder,
                                  capture_output=True, text=True, timeout=200)
            printed = ""
            if os.path.exists(f"{folder}/out"):
                with open(f"{folder}/out", encoding="utf-8") as file:
                    printed = file.read()
            self.assertEqual(made.returncode, 0, f"{made.stdout}{made.stderr}{printed}")
            self.assertEqual(os.listdir(folder), ["out"])
            return printed

    def test_bench_with_a_switch_of_its_own(self):
        printed = self.job(f"{SOURCE}/examples/slurm/bench.sbatch", "--elements", "10000", "--iterations", "2")
        self.assertRegex(printed, r"(?m)^all-reduce .* 4 workers, 2 iterations")
        self.assertRegex(printed, r"(?m)^wrong +0, all ranks have the same bits$")

    def test_a_failing_rank_fails_the_job(self):
        with self.assertRaisesRegex(AssertionError, "elements"):
            self.job(f"{SOURCE}/examples/slurm/bench.sbatch", "--elements", "none")

    @unittest.skipUnless(PYTHON, "built without PyTorch")
    def test_training(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py", dir=self.folder) as script:
            script.write("import torch, torch.distributed as dist, netsum.torch\n"
                         "dist.init_process_group('netsum')\n"
                         "tensor = torch.full((1000,), float(dist.get_rank() + 1))\n"
                         "dist.all_reduce(tensor)\n"
                         "assert tensor.eq(10).all()\n"
                         "if dist.get_rank() == 0: print('path', netsum.torch.statistics()['path'])\n"
                         "dist.destroy_process_group()\n")
            script.flush()
            printed = self.job(f"{SOURCE}/examples/slurm/train.sbatch", script.name, environment={"PYTHONPATH": PYTHON})
        self.assertRegex(printed, r"(?m)^path switch$")


if __name__ == "__main__":
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "srun", "munged") if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    if missing or os.geteuid() != 0:
        print("skipped: " + (f"not installed: {', '.join(missing)} (Debian: slurm-wlm munge)" if missing else "not root"))
        sys.exit(netns.SKIPPED)
    if not os.environ.get("NETSUM_TEST_INSIDE"):
        # A network of its own, with an address that is not the loopback device's: without one Slurm's daemons know no address at all. And a
        # first process that reaps orphans: Slurm waits for what is left of its tasks.
        script = ("ip link set lo up && ip link add slurm0 type veth peer name slurm1 && ip addr add 10.99.0.1/24 dev slurm0 && "
                  "ip link set slurm0 up && ip link set slurm1 up && { \"$@\"; exit $?; }")
        words = [*netns.alone("--pid", "--fork", "--kill-child", "--mount-proc"), "bash", "-c", script, "bash"]
        if subprocess.run([*words, "true"], capture_output=True).returncode != 0:
            print("skipped: no right to make namespaces")
            sys.exit(netns.SKIPPED)
        os.environ["NETSUM_TEST_INSIDE"] = "1"
        os.execvp(words[0], [*words, sys.executable, *ARGUMENTS])
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    cli.main()
