#!/usr/bin/python3
"""Aggregators on the workers' hosts, behind real links: what the ranks, some near and some far, think that the links take.

usage: cli_shards.py NETSUM TESTBED [unittest arguments]

Ranks and aggregators run inside scripts/testbed, whose command is this file again (`cli_shards.py inside NETSUM PROTOCOL AGGREGATORS`).
Exit code 77: network namespaces are not permitted here.
"""
import contextlib
import json
import os
import subprocess
import sys
import unittest

import cli_support as cli
import netns_support as netns

NETSUM = TESTBED = None
LIMIT = 60  # seconds
HOSTS = 3


def inside(netsum, protocol, aggregators):
    """The report of an all-reduce over so many aggregators, each on the host of a rank."""
    hosts = [f"H{i}" for i in range(HOSTS)]
    cli.NETSUM = netsum
    start = lambda host, *words: netns.Inside(os.environ[host], *words)
    with contextlib.ExitStack() as stack:
        switches = [stack.enter_context(start(host, "switch", "--listen", os.environ[host + "_IP4"] + ":0")) for host in hosts[:aggregators]]
        addresses = [switch.wait_line(switch.out, "listening ", LIMIT).split()[1] for switch in switches]
        words = ["bench", "all-reduce", "--json", "--switch", ",".join(addresses), "--protocol", protocol, "--elements", 500_000, "--warmup", 1,
                 "--iterations", 2, "--world-size", HOSTS]
        if protocol == "atp":
            server = stack.enter_context(start(hosts[0], "ps", "--listen", os.environ[hosts[0] + "_IP4"] + ":0"))
            words += ["--ps", server.wait_line(server.out, "listening ", LIMIT).split()[1]]
        ranks = [stack.enter_context(start(host, *words, "--rank", rank)) for rank, host in enumerate(hosts)]
        for rank in ranks:
            if rank.wait(LIMIT) != 0:
                raise SystemExit("\n".join(rank.err))
        return json.loads("\n".join(ranks[0].out))


class Shards(unittest.TestCase):
    def run_inside(self, protocol, aggregators):
        command = [TESTBED, "--rate", "50mbit", "--hosts", HOSTS, "--", "/usr/bin/python3", os.path.abspath(__file__), "inside", NETSUM,
                   protocol, aggregators]
        result = cli.checked(subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=2 * LIMIT, env=cli.environment()))
        report = json.loads(result.stdout)
        self.assertEqual(report["wrong"], 0)
        return report

    def test_ranks_near_and_far_agree_on_packets(self):
        """One rank reaches the aggregator over its loopback device, which takes packets of 60 KB."""
        for protocol in ("switchml", "atp", "netreduce"):
            with self.subTest(protocol=protocol):
                self.run_inside(protocol, 1)

    def test_the_windows_of_all_lanes_fit_the_links(self):
        """Each rank has one aggregator over its loopback device, which takes far more at once than a link."""
        packets = self.run_inside("switchml", HOSTS)["packets"]
        self.assertGreater(packets["sent"], 500_000 // 320 * 0.9)
        self.assertLess(packets["retransmitted"], 0.1 * packets["sent"])


def main():
    global NETSUM, TESTBED
    if len(sys.argv) == 5 and sys.argv[1] == "inside":
        print(json.dumps(inside(*sys.argv[2:4], int(sys.argv[4]))))
        return
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    NETSUM, TESTBED = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    netns.skip_if_not_permitted(lambda: os.close(os.open("/sys/module/sch_htb/parameters/htb_hysteresis", os.O_RDONLY)))
    unittest.main(module="__main__", verbosity=2)


if __name__ == "__main__":
    main()
