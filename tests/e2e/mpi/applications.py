"""Applications of Debian's, unmodified, over Open MPI: with libnetsum-mpi.so preloaded they print what they print without it.

usage: applications.py NETSUM_BINARY LIBRARY [unittest arguments]     a case alone: Applications.test_lammps

Each runs without netsum, with ranks in shared memory, and through a `netsum switch` by packets. What is not a result (times, rates,
dates) is left out of the comparison. Prints what netsum counted.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import cli_support  # noqa: E402
from cli_support import Switch  # noqa: E402

LIBRARY = None
LIMIT = 300  # seconds
SCALAPACK = "/usr/lib/x86_64-linux-gnu/scalapack/openmpi-tests"
GROMACS = "/usr/share/gromacs/top"

LAMMPS = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 6 0 6 0 6
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nvt temp 1.5 1.5 0.5
thermo 10
run 100
"""

WATER = f"""
#include "{GROMACS}/oplsaa.ff/forcefield.itp"
#include "{GROMACS}/oplsaa.ff/spc.itp"
[ system ]
water
[ molecules ]
SOL 216
"""
STEPS = """
integrator = md
nsteps = 50
nstlog = 10
nstenergy = 10
nstcalcenergy = 10
coulombtype = PME
rcoulomb = 0.9
rvdw = 0.9
rlist = 0.9
constraints = h-bonds
tcoupl = v-rescale
tc-grps = System
tau-t = 0.5
ref-t = 300
ld-seed = 1
gen-vel = yes
gen-seed = 1
"""

MPI4PY = """
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
rng = np.random.default_rng(rank)
lines = []
for dtype in "bhilBHILfd":
    for op in (MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD):
        for count in (1, 7, 100, 10_000):
            values = rng.integers(1, 4, count).astype(dtype)
            total = np.empty_like(values)
            world.Allreduce(values, total, op)
            at_root = np.zeros_like(values)
            world.Reduce(values, at_root, op, root=size - 1)
            assert rank != size - 1 or (at_root == total).all()
            lines.append((rank, dtype, op == MPI.SUM, count, total.tolist()[:4], float(total.astype("d").sum())))
values = np.arange(1000.0) * (rank == 1)
world.Bcast(values, root=1)
assert values[-1] == 999
lines.append((rank, world.allreduce(rank), world.allreduce((rank, rank), MPI.MAXLOC), world.bcast({"a": [rank]}, root=0)))
half = world.Split(rank % 2, -rank)
lines.append((rank, half.allreduce(rank), half.allgather(rank)))
half.Free()
world.Barrier()
for line in sum(world.gather(lines) or [], []):
    print(*line)
"""


class Application:
    """A program in a folder of its own; `results` takes what is a result out of what it printed."""

    def __init__(self, ranks, arguments, results, files=None, prepare=(), output=None):
        self.ranks, self.arguments, self.results = ranks, arguments, results
        self.files, self.prepare, self.output = files or {}, prepare, output

    def run(self, **settings):
        """(results, what netsum reported)"""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in self.files.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            for command in self.prepare:
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=LIMIT)
            options = []
            if settings:
                variables = {"NETSUM_MPI_REPORT": "1", "NETSUM_MPI_MIN_BYTES": "0", "NETSUM_MPI_JOIN_CALLS": "1", "LD_PRELOAD": LIBRARY} | settings
                options = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
            command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca",
                       "mpi_yield_when_idle", "1", "-x", "OMP_NUM_THREADS=1", "-n", str(self.ranks), *options, *self.arguments]
            ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL,
                                   env=cli_support.environment())
            if ended.returncode != 0:
                raise AssertionError(f"{' '.join(command)}: exit code {ended.returncode}\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}")
            text = ended.stdout
            if self.output:
                with open(os.path.join(folder, self.output), encoding="utf-8") as file:
                    text = file.read()
            report = [line for line in ended.stderr.splitlines() if line.startswith("netsum: ")]
            return self.results(text), report


def numbers_after(header, until):
    """The lines between one that matches `header`, and one that matches `until`."""
    def results(text):
        found = re.findall(rf"^{header}.*?^{until}", text, re.M | re.S)
        return "\n".join(found)
    return results


def without_times(line):
    """Times and rates have a point, and differ from run to run."""
    return " ".join("#" if re.fullmatch(r"-?\d+\.\d+", word) else word for word in line.split())


def scalapack_results(text):
    """What was solved, and whether it passed."""
    return "\n".join(without_times(line) for line in text.splitlines() if re.search(r"PASSED|FAILED|tests|Finished", line))


def hpcc_results(text):
    """HPL's residuals, and every verdict."""
    kept = set()
    for line in text.splitlines():
        if line.startswith("||Ax-b||"):
            kept.add(line)
        elif re.search(r"PASSED|FAILED|[Ff]ound \d+ errors|^Success=|Failure", line):
            kept.add(without_times(line))
    return "\n".join(sorted(kept))


class Applications(unittest.TestCase):
    def compare(self, application):
        expected, _ = application.run()
        self.assertTrue(expected.strip(), "no results in what it printed")
        self.assertNotIn("FAILED", expected)
        got, report = application.run(NETSUM_MODE="force")
        print("\n".join(report), file=sys.stderr)
        self.assertEqual(expected, got)
        self.assertTrue(any("the switch: " in line for line in report), "nothing took the switch")
        with Switch() as switch:
            got, _ = application.run(NETSUM_MODE="force", NETSUM_SWITCH=switch.address, NETSUM_SHARED_MEMORY="off")
        self.assertEqual(expected, got)

    def test_lammps(self):
        self.compare(Application(2, ["lmp", "-in", "in.melt", "-log", "none"], numbers_after("Step Temp", "Loop time"),
                                 {"in.melt": LAMMPS}))

    def test_gromacs(self):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            if "rdtscp" not in file.read():
                self.skipTest("Debian's GROMACS needs a processor with rdtscp")
        make = ["gmx", "grompp", "-f", "steps.mdp", "-c", f"{GROMACS}/spc216.gro", "-p", "water.top", "-o", "water.tpr",
                "-maxwarn", "5"]
        self.compare(Application(2, ["gmx_mpi", "mdrun", "-s", "water.tpr", "-reprod", "-notunepme", "-ntomp", "1", "-dlb", "no",
                                     "-g", "water.log"],
                                 numbers_after("   Energies", "\n"), {"water.top": WATER, "steps.mdp": STEPS}, [make],
                                 output="water.log"))

    def test_hpcc(self):
        with open("/usr/share/doc/hpcc/examples/_hpccinf.txt", encoding="utf-8") as file:
            settings = re.sub(r"^1000( +Ns)", r"300\1", file.read(), flags=re.M)
        settings = re.sub(r"^2( +Ps)", r"1\1", settings, flags=re.M)
        self.compare(Application(2, ["hpcc"], hpcc_results, {"hpccinf.txt": settings}, output="hpccoutf.txt"))

    def test_scalapack(self):
        for program in ("xdlu", "xslu", "xcqr", "xzinv"):
            name = program[2:].upper() + ".dat"
            with open(os.path.join(SCALAPACK, name), encoding="utf-8") as file:
                settings = file.read()
            for what, value in (("number of process grids", "2"), ("number of problems sizes", "2"), ("values of P", "1 2"),
                                ("values of Q", "2 1")):
                settings = re.sub(rf"^\d[\d ]*\s+({what})", rf"{value} \1", settings, flags=re.M)
            with self.subTest(program):
                self.compare(Application(2, [os.path.join(SCALAPACK, program)], scalapack_results, {name: settings}))

    def test_mpi4py(self):
        self.compare(Application(3, ["/usr/bin/python3", "program.py"], str, {"program.py": MPI4PY}))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    LIBRARY = os.path.abspath(sys.argv.pop(2))
    cli_support.main()
