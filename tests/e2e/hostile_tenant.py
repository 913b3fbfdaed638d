#!/usr/bin/python3
"""A tenant who does all that one core can to harm another tenant's jobs: they have no error and no wrong element, and take at most
1.3 times as long as beside a process that is as busy and does not talk to netsum.

usage: hostile_tenant.py NETSUM HOSTILE_TENANT [--seconds S] [--limit RATIO] [--kinds KIND[,KIND...]] [unittest arguments]

S: how long it attacks (60). RATIO: in place of 1.3; 0: the times are printed, and not judged. KIND: of attack, all by default
(tests/e2e/hostile/tenant.cc). Two switches with a parameter server each: one pair is attacked, by a process that stands still while a job beside the busy process is measured at the other pair.
"""
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
import unittest

import cli_support as cli

TENANT = None
SECONDS, KINDS = 60, []
LIMIT = 1.3
FEWEST_JOBS = 7  # of each kind, however slow they are
LONGEST_JOB = 30

# The victim's jobs: over packets, in shared memory, and where a parameter server and a switch work together. Iterations of those
# whose times are judged, and flags.
JOBS = {"switchml": (400, []), "shm": (1000, ["--transport", "shm"]), "atp": (60, ["--protocol", "atp"])}


class Tenants:
    """Who they are: flags of the daemons, flags of the victim's ranks, and the hostile one's token."""

    def __init__(self, folder):
        def file(name, text):
            path = os.path.join(folder, name)
            with open(path, "w") as out:
                out.write(text + "\n")
            return path

        victim = "a secret of the victim's"
        self.hostile_token = "a secret of the hostile tenant's"
        tenants = file("tenants.toml", f"""
[[tenant]]
name = "victim"
token = "{victim}"
[[tenant]]
name = "hostile"
token = "{self.hostile_token}"
max_memory_bytes = {256 << 20}
max_jobs = 64
max_pending_joins = 256""")
        self.daemon = ["--tenants", tenants, "--daemon-token-file", file("daemons", "a secret of the daemons'")]
        self.victim = ["--token-file", file("victim", victim)]


class Daemons:
    """A switch, and a parameter server with it."""

    def __init__(self, tenants):
        self.switch = cli.Switch(*tenants.daemon)
        self.server = cli.ParameterServer(*tenants.daemon)
        self.flags = tenants.victim

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.__exit__()
        self.switch.__exit__()

    def job(self, kind):
        """Seconds that the job takes, and what went wrong."""
        iterations, flags = JOBS[kind]
        flags = ["--elements", 250_000, "--iterations", iterations if LIMIT else iterations // 10, *flags]
        if kind == "atp":
            flags += ["--ps", self.server.address]
        began = time.monotonic()
        ranks = [cli.rank_process(self.switch.address, rank, 2, "--job", kind, *flags, *self.flags) for rank in range(2)]
        errors = []
        with ranks[0], ranks[1]:
            for number, rank in enumerate(ranks):
                try:
                    code = rank.wait(LONGEST_JOB)
                except Exception as error:
                    errors.append(f"{kind}, rank {number}: {error}")
                    continue
                if code != 0:
                    errors.append(f"{kind}, rank {number} ended with {code}: {rank.error_lines() or rank.err}")
                elif json.loads(rank.out[-1])["wrong"] != 0:
                    errors.append(f"{kind}, rank {number}: wrong elements")
            return time.monotonic() - began, errors


class Other(cli.Process):
    """The hostile tenant, or (without daemons) a process that is as busy. It stands still but for the time inside `with`."""

    def __init__(self, daemons, token, kinds=()):
        addresses = [daemons.switch.address, daemons.server.address] if daemons else []
        super().__init__(",".join(addresses), token, ",".join(JOBS), *kinds, program=TENANT)
        self.wait_line(self.out, "attacking")
        self.seconds = 0
        self.signal(signal.SIGSTOP)

    def beside(self, work, as_busy_as=None):
        """Runs while work() does; with `as_busy_as`, for the same part of the time as that one has."""
        self.signal(signal.SIGCONT)
        began, done = time.monotonic(), threading.Event()

        def pace():
            while not done.wait(0.01):
                seconds = self.seconds + time.monotonic() - began
                ahead = self.busy_for() > seconds * as_busy_as.busy_for() / as_busy_as.seconds
                self.signal(signal.SIGSTOP if ahead else signal.SIGCONT)

        pacer = threading.Thread(target=pace) if as_busy_as else None
        try:
            if pacer:
                pacer.start()
            return work()
        finally:
            done.set()
            if pacer:
                pacer.join()
            self.seconds += time.monotonic() - began
            self.signal(signal.SIGSTOP)

    def busy_for(self):
        """Seconds on a CPU."""
        if self.process.poll() is not None:
            raise AssertionError(f"ended with status {self.process.returncode}: {self.err}")
        with open(f"/proc/{self.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if self.wait(30) != 0:
            raise AssertionError(f"the hostile tenant failed: {self.err}")
        return json.loads(self.out[-1])


class HostileTenant(unittest.TestCase):
    def test_another_tenants_jobs_do_not_notice(self):
        with tempfile.TemporaryDirectory() as folder:
            tenants = Tenants(folder)
            with Daemons(tenants) as attacked, Daemons(tenants) as quiet, \
                    Other(attacked, tenants.hostile_token, KINDS) as hostile, Other(None, "-") as busy:
                seconds = {where: {kind: [] for kind in JOBS} for where in ("attacked", "quiet")}
                errors = []
                while hostile.seconds < SECONDS or len(seconds["quiet"]["atp"]) < (FEWEST_JOBS if LIMIT else 1):
                    for kind in JOBS:
                        pair = [("attacked", attacked, hostile, None), ("quiet", quiet, busy, hostile)]
                        for where, daemons, other, as_busy_as in pair[::-1] if len(seconds["quiet"][kind]) % 2 else pair:
                            took, failed = other.beside(lambda: daemons.job(kind), as_busy_as)
                            if not failed:
                                seconds[where][kind].append(took)
                            errors += [f"{where}: {each}" for each in failed]
                    if hostile.seconds > 3 * SECONDS:
                        break  # what fails takes its time
                busy_for = [(each.busy_for(), each.seconds) for each in (hostile, busy)]
                deaths = [each.pid for each in (attacked.switch, attacked.server) if each.process.poll() is not None]
                counts = hostile.stop()
                busy.stop()
        print(json.dumps(counts), file=sys.stderr)
        for name, (own, ran) in zip(("hostile tenant", "busy process"), busy_for):
            print(f"{name}: {own:.1f} s of CPU in {ran:.1f} s", file=sys.stderr)
        slow = []
        for kind in JOBS:
            of = {where: statistics.median(seconds[where][kind]) if seconds[where][kind] else float("nan") for where in seconds}
            ratio = of["attacked"] / of["quiet"]
            line = (f"{kind}: {of['attacked']:.2f} s attacked ({len(seconds['attacked'][kind])} jobs), "
                    f"{of['quiet']:.2f} s not ({len(seconds['quiet'][kind])}), {ratio:.2f} times")
            print(line, file=sys.stderr)
            if LIMIT and not ratio <= LIMIT:
                slow.append(line)
        self.assertEqual(deaths, [], "a daemon died")
        self.assertEqual(errors, [], "\n" + "\n".join(errors[:20]))
        self.assertEqual(counts.get("reflected", 0), 0, "packets went to somebody who had not asked for any")
        self.assertEqual(counts.get("others_seen", 0), 0, "the hostile tenant saw the victim's jobs")
        self.assertEqual(slow, [], f"more than {LIMIT} times as long")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    TENANT = os.path.abspath(sys.argv.pop(2))
    while len(sys.argv) > 3 and sys.argv[2] in ("--seconds", "--kinds", "--limit"):
        flag, value = sys.argv.pop(2), sys.argv.pop(2)
        if flag == "--seconds":
            SECONDS = float(value)
        elif flag == "--limit":
            LIMIT = float(value)
        else:
            KINDS = value.split(",")
    cli.main()
