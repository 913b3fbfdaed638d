"""libnetsum-mpi.so in front of an MPI, as programs meet it: calls through the switch give what MPI gives.

usage: mpi_calls.py NETSUM_BINARY openmpi|mpich LIBRARY PROGRAMS [unittest arguments]
LIBRARY: libnetsum-mpi.so for this MPI. PROGRAMS: the folder of mpi_operations, mpi_requests, and Fortran's by_include and by_module.
"""

import os
import re
import signal
import sys
import unittest

import cli_support
from cli_support import Process, Switch, until

MPI = LIBRARY = PROGRAMS = None
LIMIT = 120  # seconds
# Open MPI's long messages travel only while their sender is inside MPI.
SENDERS_HELP = ["--mca", "btl_vader_single_copy_mechanism", "none"]


def command(ranks, program, *arguments, library=None, **settings):
    """mpirun of a program of this test."""
    variables = {f"NETSUM_{name.upper()}": str(value) for name, value in settings.items()}
    variables.setdefault("NETSUM_MPI_REPORT", "1")
    variables.setdefault("NETSUM_MPI_JOIN_CALLS", "1")
    if program != "mpi_operations":
        variables.setdefault("NETSUM_MPI_MIN_BYTES", "0")  # calls in the background are short in these tests
    variables["LD_PRELOAD"] = library or LIBRARY
    program = os.path.join(PROGRAMS, program)
    if MPI == "openmpi":
        options = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
        return ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle",
                "1", *SENDERS_HELP, "-n", ranks, *options, program, *arguments]
    options = [word for name, value in variables.items() for word in ("-genv", name, value)]
    return ["mpiexec.mpich", "-n", ranks, *options, program, *arguments]


class Report:
    """Calls by path, as rank 0 printed them at the end."""

    def __init__(self, lines):
        self.by_path = {}
        for line in lines:
            if found := re.match(r"netsum: +(\d+) +[\d.]+ \w+  (?:MPI \((.*)\)|(the switch)): (.*)$", line):
                calls = {name: int(count) for count, name in (part.split() for part in found[4].split(", "))}
                self.by_path[found[2] or found[3]] = calls

    def switch(self, collective="MPI_Allreduce"):
        return self.by_path.get("the switch", {}).get(collective, 0)

    def mpi(self, reason, collective="MPI_Allreduce"):
        return next((calls.get(collective, 0) for text, calls in self.by_path.items() if reason in text), 0)


class Calls(unittest.TestCase):
    def run_program(self, program, *arguments, ranks=2, **settings):
        """Must succeed; what rank 0 reported."""
        first, *rest = command(ranks, program, *arguments, **settings)
        with Process(*rest, program=first) as process:
            self.assertEqual(process.wait(LIMIT), 0, "\n".join(process.out + process.err))
            return Report(process.err)

    def test_every_operation_on_every_type(self):
        report = self.run_program("mpi_operations", "operations")
        for collective in ("MPI_Allreduce", "MPI_Reduce", "MPI_Reduce_scatter", "MPI_Reduce_scatter_block"):
            self.assertGreater(report.switch(collective), 200)

    def test_over_packets(self):
        with Switch() as switch:
            self.run_program("mpi_operations", "operations", switch=switch.address, shared_memory="off", mode="force",
                             mpi_float32="all")
            until(lambda: not switch.status()["jobs"], 10, "the end of the job")

    def test_what_goes_to_mpi(self):
        report = self.run_program("mpi_operations", "others", mpi_float32="off")
        self.assertEqual(report.mpi("datatype that"), 1)
        self.assertEqual(report.mpi("operation that"), 1)
        self.assertGreater(report.mpi("NETSUM_MPI_FLOAT32"), 0)

    def test_moves_and_least_bytes(self):
        report = self.run_program("mpi_operations", "moves", mpi_min_bytes=100)
        self.assertEqual(report.mpi("fewer bytes", "MPI_Barrier"), 1)
        self.assertGreater(report.mpi("fewer bytes", "MPI_Bcast"), 0)
        self.assertGreater(report.switch("MPI_Bcast"), 0)
        with Switch() as switch:
            report = self.run_program("mpi_operations", "moves", switch=switch.address, shared_memory="off", mode="force")
            self.assertGreater(report.switch("MPI_Allgather"), 0)

    def test_communicators(self):
        with Switch() as switch:
            report = self.run_program("mpi_operations", "communicators", switch=switch.address)
            self.assertEqual(report.mpi("intercommunicator"), 1)
            self.assertEqual(report.mpi("one rank"), 34 + 1)  # of every second turn, and MPI_COMM_SELF
            self.assertGreater(report.mpi("could not be joined"), 0)
            self.assertGreater(report.switch(), 34)
            until(lambda: not switch.status()["jobs"], 10, "the end of all jobs")

    def test_threads(self):
        report = self.run_program("mpi_operations", "threads")
        self.assertEqual(report.switch(), 4 * 50)

    def test_a_communicators_first_calls(self):
        report = self.run_program("mpi_operations", "threads", mpi_join_calls=20)
        self.assertEqual((report.mpi("not joined a job yet"), report.switch()), (4 * 19, 4 * 31))
        report = self.run_program("mpi_operations", "threads", mpi_join_calls=1000)  # 0.24 MB are too few as well
        self.assertEqual((report.mpi("not joined a job yet"), report.switch()), (4 * 50, 0))

    def test_calls_in_the_background(self):
        report = self.run_program("mpi_requests", "ways", ranks=3)
        for collective in ("allreduce", "reduce", "bcast", "barrier", "reduce_scatter", "reduce_scatter_block"):
            self.assertGreaterEqual(report.switch(f"MPI_I{collective}"), 54)
        self.assertEqual(report.mpi("no better", "MPI_Iallgather"), 54)
        with Switch() as switch:
            report = self.run_program("mpi_requests", "ways", switch=switch.address, shared_memory="off", mode="force")
            self.assertEqual(report.switch("MPI_Iallgather"), 54)

    def test_short_calls_in_the_background(self):
        report = self.run_program("mpi_requests", "messages", mpi_min_bytes="")
        self.assertEqual(report.mpi("fewer bytes", "MPI_Iallreduce"), 10)
        self.assertEqual(report.switch("MPI_Barrier"), 1)

    def test_persistent_calls(self):
        if MPI == "openmpi":
            self.skipTest("Open MPI 4.1 has none")
        with Switch() as switch:
            report = self.run_program("mpi_requests", "persistent", switch=switch.address, shared_memory="off", mode="force")
        self.assertEqual(report.switch("MPI_Allreduce_init"), 60)
        for collective in ("Reduce", "Bcast", "Barrier", "Reduce_scatter", "Reduce_scatter_block", "Allgather"):
            self.assertEqual(report.switch(f"MPI_{collective}_init"), 30)

    def test_a_start_waits_for_nobody(self):
        report = self.run_program("mpi_requests", "messages", ranks=3)
        self.assertEqual(report.mpi("not joined a job yet", "MPI_Iallreduce"), 5)
        self.assertEqual(report.switch("MPI_Iallreduce"), 5)
        with Switch() as switch:
            self.run_program("mpi_requests", "messages", switch=switch.address, shared_memory="off", mode="force")

    def test_ends_out_of_order(self):
        self.assertEqual(self.run_program("mpi_requests", "order", ranks=3).switch("MPI_Iallreduce"), 2)

    def test_freed_in_the_background(self):
        with Switch() as switch:
            for shared_memory in ("required", "off"):
                report = self.run_program("mpi_requests", "freed", switch=switch.address, shared_memory=shared_memory)
                self.assertEqual(report.switch("MPI_Iallreduce"), 4)
            until(lambda: not switch.status()["jobs"], 10, "the end of all jobs")

    def test_threads_in_the_background(self):
        self.assertEqual(self.run_program("mpi_requests", "threads").switch("MPI_Iallreduce"), 4 * 100)

    def test_device_memory(self):
        """Ranks decide together before a communicator joins; later the host's memory is between."""
        with Switch() as switch:
            report = self.run_program("mpi_requests", "device", ranks=3, switch=switch.address, shared_memory="off")
        self.assertEqual((report.switch(), report.switch("MPI_Iallreduce"), report.switch("MPI_Allgather")), (3, 1, 1))
        report = self.run_program("mpi_requests", "device-first")
        self.assertEqual(report.mpi("could not be joined"), 2)
        report = self.run_program("mpi_requests", "device-first", mode="force")
        self.assertEqual(report.switch(), 2)

    def test_messages_make_progress(self):
        self.run_program("mpi_operations", "progress")
        with Switch() as switch:
            self.run_program("mpi_operations", "progress", switch=switch.address, shared_memory="off", mode="force")

    def test_fortran(self):
        for program, calls in (("mpi_by_include", 2), ("mpi_by_module", 3)):
            report = self.run_program(program)
            self.assertGreaterEqual(report.switch(), calls, program)
            self.assertEqual(report.switch("MPI_Bcast"), 1, program)
            self.assertEqual(report.switch("MPI_Barrier"), 1, program)
            self.assertEqual(report.switch("MPI_Iallreduce"), 4, program)
            self.assertEqual(report.switch("MPI_Ibarrier"), 1, program)

    def test_dead_switch_is_an_error(self):
        for program, call in (("mpi_operations", "MPI_Allreduce"), ("mpi_requests", "MPI_Iallreduce")):
            with self.subTest(program):
                self.lose_switch(program, call)

    def lose_switch(self, program, call):
        with Switch() as switch:
            first, *rest = command(2, program, "until-error", switch=switch.address, shared_memory="off", mode="force")
            with Process(*rest, program=first) as process:
                process.wait_line(process.out, "summed")
                switch.signal(signal.SIGKILL)
                self.assertEqual(process.wait(LIMIT), 0, "\n".join(process.out + process.err))
                self.assertEqual(process.out.count("error"), 2)
                said = [line for line in process.err if call in line and switch.address in line]
                self.assertTrue(said, process.err)

    def test_no_switch(self):
        """probe: MPI, and it says why. force: an error, by MPI's own error handler."""
        nobody = "127.0.0.1:9"
        report = self.run_program("mpi_operations", "progress", switch=nobody, connect_seconds=0.2)
        self.assertEqual(report.mpi("could not be joined"), 3)
        first, *rest = command(2, "mpi_operations", "progress", switch=nobody, connect_seconds=0.2, mode="force")
        with Process(*rest, program=first) as process:
            self.assertNotEqual(process.wait(LIMIT), 0)
            self.assertTrue([line for line in process.err if "NETSUM_MODE=force" in line and nobody in line], process.err)

    def test_preloaded_for_another_mpi(self):
        other = LIBRARY.replace(f"/{MPI}/", "/mpich/" if MPI == "openmpi" else "/openmpi/")
        if not os.path.exists(other):
            self.skipTest("only one MPI is installed")
        first, *rest = command(2, "mpi_operations", "progress", library=other)
        with Process(*rest, program=first) as process:
            self.assertNotEqual(process.wait(LIMIT), 0)
            self.assertTrue([line for line in process.err if "was built for" in line], process.err)

    def test_bad_settings(self):
        first, *rest = command(2, "mpi_operations", "moves", mpi_min_bytes="few")
        with Process(*rest, program=first) as process:
            self.assertNotEqual(process.wait(LIMIT), 0)
            self.assertTrue([line for line in process.err if "NETSUM_MPI_MIN_BYTES='few'" in line], process.err)


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    LIBRARY, PROGRAMS = map(os.path.abspath, (sys.argv.pop(3), sys.argv.pop(3)))
    MPI = sys.argv.pop(2)
    cli_support.main()
