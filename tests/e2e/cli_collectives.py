#!/usr/bin/python3
"""Every collective, operation and type through the command line: docs/collectives.md's tables, and the same bits everywhere."""
import contextlib
import json
import os
import unittest

import cli_support as cli
import netns_support as netns

USUAL = {"workers": 4, "elements": 10_003, "iterations": 1, "warmup": 1, "seed": 21, "protocol": "switchml"}
# Each type, and each way through the switch.
CELLS = [("int64", "max"), ("int32", "bxor"), ("int16", "prod"), ("uint8", "min"), ("bool", "sum"), ("float64", "sum"),
         ("float32", "prod"), ("float16", "max"), ("bfloat16", "min"), ("int8", "avg")]


def flags_of(**settings):
    return [word for name, value in {**USUAL, **settings}.items() for word in ("--" + name.replace("_", "-"), value)]


def bench(collective, **settings):
    report = cli.bench(*flags_of(**settings), collective=collective)
    assert report["collective"] == collective
    return report


class Hosts:
    """A switch and hosts with an interface each, for the length of a `with`."""

    def __init__(self, count):
        self.switch, *self.hosts = (f"collectives{os.getpid()}-{number}" for number in range(count + 1))

    def __enter__(self):
        netns.add(self.switch, *self.hosts)
        netns.bridge(self.switch)
        netns.address(self.switch, "bridge0", "10.91.0.1/24")
        for number, host in enumerate(self.hosts):
            netns.bridged(self.switch, f"port{number}", host)
            netns.address(host, "eth0", f"10.91.0.{number + 2}/24")
        return self

    @staticmethod
    def received(host):
        return netns.links(host, "eth0")[0]["stats64"]["rx"]["bytes"]

    def __exit__(self, *_):
        netns.remove(self.switch, *self.hosts)


class Collectives(unittest.TestCase):
    def check(self, expected, **settings):
        report = bench(expected["collective"], **settings)
        with self.subTest(collective=expected["collective"], settings=settings):
            self.assertEqual(0, report["wrong"])
            self.assertEqual(expected["result_hash"], report["result_hash"])

    def test_fsdps_pair_has_the_same_bits_over_sockets_and_trees_and_with_losses(self):
        expected = bench("fsdp", elements=100_000)
        for way in ({}, {"racks": 2}, {"loss": 0.01}):
            self.check(expected, elements=100_000, **way)

    @cli.compares
    def test_every_operation_has_the_same_bits_over_sockets_and_trees_and_in_shared_memory(self):
        for number, (dtype, op) in enumerate(CELLS):
            of = {"dtype": dtype, "op": op}
            expected = bench("all-reduce", **of)
            self.assertEqual(0, expected["wrong"], of)
            if number % 2 == 0:
                self.check(expected, **of, loss=0.01, racks=2)
            if number % 2 == 1 or dtype == "int64":
                self.check(expected, **of, transport="shm")

    def test_every_collective_has_the_same_result_everywhere(self):
        for collective in ("reduce-scatter", "all-gather", "reduce", "broadcast"):
            expected = bench(collective)
            self.assertEqual(0, expected["wrong"], collective)
            self.check(expected, loss=0.01, packet_elements=320, aggregators=2)
            self.check(expected, racks="4,2")
            self.check(expected, transport="shm")
        for protocol in ("atp", "netreduce"):
            for collective in ("reduce-scatter", "all-gather", "reduce"):
                self.assertEqual(0, bench(collective, protocol=protocol)["wrong"], (protocol, collective))

    @cli.compares
    def test_a_rank_receives_what_it_takes(self):
        elements, packet = 1_000_000, 1024
        size = 4 * elements
        header = 110  # of a packet, or of an acknowledgement: one or the other for each chunk
        share = {"reduce-scatter": 1 / 4, "all-gather": 3 / 4, "reduce": 1 / 4, "broadcast": 3 / 4}
        for collective, part in share.items():
            report = bench(collective, elements=elements, packet_elements=packet, multicast="off")  # a group gets them all
            received = report["wire_bytes_per_worker"]["received"]
            repeats = report["packets"]["retransmitted"]  # of a busy machine; each may be answered once more
            with self.subTest(collective=collective):
                self.assertLess(received, part * size + (elements / packet + 2) * header + repeats * (4 * packet + header))
                self.assertGreater(received, part * size)

    @cli.compares
    def test_the_interfaces_count_what_a_rank_receives(self):
        if netns.refusal():
            self.skipTest(f"network namespaces are not permitted here: {netns.refusal()}")
        elements, packet, ranks = 1_000_000, 320, 4
        with Hosts(ranks) as hosts, contextlib.ExitStack() as running:
            switch = running.enter_context(netns.Inside(hosts.switch, "switch", "--listen", "10.91.0.1:7170"))
            switch.wait_line(switch.out, "listening ")
            words = ("bench", "reduce-scatter", "--json", "--switch", "10.91.0.1:7170", "--world-size", ranks, "--elements", elements,
                     "--packet-elements", packet, "--iterations", 4, "--warmup", 0)
            all_ranks = [running.enter_context(netns.Inside(host, *words, "--rank", rank)) for rank, host in enumerate(hosts.hosts)]
            for process in all_ranks:
                self.assertEqual(0, process.wait(60), process.err)
            report = json.loads("\n".join(all_ranks[0].out))
            self.assertEqual(0, report["wrong"])
            size, chunks = 4 * elements, elements / packet + ranks
            repeats = report["packets"]["retransmitted"] + 400  # others' too, probes, and what joining takes
            for host in hosts.hosts:
                received = hosts.received(host) / 4
                self.assertGreater(received, size / ranks)
                self.assertLess(received, size / ranks + chunks * 100 + repeats * (4 * packet + 100) / 4)

    def test_what_there_is_not_is_refused_in_one_line(self):
        refused = {
            "max of float32 is not possible with ATP": {"protocol": "atp", "op": "max"},
            "sum of int64 is not possible with NetReduce": {"protocol": "netreduce", "dtype": "int64"},
            "max of int32 is not possible with SwitchML at a chip": {"profile": "chip", "op": "max", "dtype": "int32"},
        }
        for text, settings in refused.items():
            result = cli.run("bench", "all-reduce", *flags_of(**settings))
            self.assertEqual(2, result.returncode, result.stderr)
            self.assertIn(text, result.stderr)
        result = cli.run("bench", "all-reduce", "--op", "band")
        self.assertEqual(2, result.returncode)
        self.assertIn("--op band is not defined on --dtype float32", result.stderr)


if __name__ == "__main__":
    cli.main()
