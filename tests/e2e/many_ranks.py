#!/usr/bin/python3
"""Many ranks on few processors, each a process: they join and finish, nobody is taken for dead who lives, and who dies is named soon.

usage: many_ranks.py NETSUM [unittest arguments]
"""
import json
import re
import signal
import sys
import time
import unittest

import cli_support as cli

NAMED_WITHIN = 4  # seconds from a rank's death, whatever the machine does
UNENDING = ("--elements", 10_000, "--iterations", 1_000_000)


class ManyRanks(unittest.TestCase):
    def ranks(self, switch, count):
        ranks = [cli.rank_process(switch.address, rank, count, *UNENDING, "--connect-deadline", 60) for rank in range(count)]
        ranks[0].wait_line(ranks[0].out, "iteration 3", 120)
        return ranks

    def test_they_join_and_finish(self):
        for protocol in ("switchml", "atp", "netreduce"):
            for count in (16, 64, 128, 256):
                with self.subTest(protocol=protocol, ranks=count):
                    began = time.monotonic()
                    done = cli.run("bench", "all-reduce", "--json", "--protocol", protocol, "--workers", count, "--elements", 10_000,
                                   "--iterations", 5, "--connect-deadline", 60, limit=120)
                    result = json.loads(cli.checked(done).stdout)
                    self.assertEqual(result["wrong"], 0)
                    print(f"{protocol}, {count} ranks: {time.monotonic() - began:.1f} s in all, "
                          f"TAT {1000 * result['tat_seconds']['median']:.1f} ms", file=sys.stderr)

    def test_a_killed_rank_is_named_soon(self):
        with cli.Switch() as switch:
            ranks = self.ranks(switch, 128)
            try:
                ranks[77].signal(signal.SIGKILL)
                killed = time.monotonic()
                for rank in ranks[:77] + ranks[78:]:
                    self.assertEqual(rank.wait(30), 1)
                    self.assertRegex(rank.error_lines()[-1], r"rank 77 of job 'bench' died")
                took = time.monotonic() - killed
            finally:
                for rank in ranks:
                    rank.__exit__()
        print(f"all 127 others ended {took:.1f} s after it", file=sys.stderr)
        self.assertLess(took, NAMED_WITHIN)

    def test_processes_that_are_stopped_for_ten_seconds_live(self):
        with cli.Switch() as switch:
            ranks = self.ranks(switch, 4)
            try:
                for stopped in (ranks[2], switch):
                    stopped.signal(signal.SIGSTOP)
                    time.sleep(10)  # the time is what is tested
                    stopped.signal(signal.SIGCONT)
                    number = int(re.search(r"iteration (\d+)", ranks[0].out[-1]).group(1))
                    ranks[0].wait_line(ranks[0].out, f"iteration {number + 5}", 30)
                self.assertEqual([rank.process.poll() for rank in ranks], [None] * 4)
            finally:
                for rank in ranks:
                    rank.__exit__()


if __name__ == "__main__":
    cli.main()
