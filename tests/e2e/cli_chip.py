#!/usr/bin/python3
"""The chip profiles with real processes: the software switch's sums, with losses too, and what is refused before joining."""
import contextlib
import unittest

import cli_support as cli

FLAGS = ("--workers", 4, "--elements", 200_003, "--iterations", 3, "--transport", "udp", "--json")
CHIP = ("--profile", "chip", "--allow-fcs-only")


def report(*flags):
    return cli.bench(*FLAGS, *flags)


class Sums(unittest.TestCase):
    def assert_same(self, *flags):
        software, chip = report(*flags), report("--profile", "chip", *flags)
        self.assertEqual((software["wrong"], chip["wrong"]), (0, 0))
        self.assertEqual(software["result_hash"], chip["result_hash"])
        self.assertIn("chip profile", chip["placement"])

    def test_float32(self):
        self.assert_same()
        self.assert_same("--op", "avg")

    @cli.compares
    def test_int32(self):
        self.assert_same("--dtype", "int32")

    @cli.compares
    def test_halves_are_block_fixed_point(self):
        software = report("--dtype", "float16", "--wire", "float32")
        self.assertEqual(report("--dtype", "float16", "--profile", "chip")["result_hash"], software["result_hash"])

    def test_packets_of_64_elements_losses_and_shards(self):
        flags = ("--loss", 0.01, "--aggregators", 2, "--threads", 2)
        expected = report()["result_hash"]
        for more in ((), ("--packet-elements", 64)):
            chip = report("--profile", "chip", *flags, *more)
            self.assertEqual((chip["wrong"], chip["result_hash"]), (0, expected))

    def test_trees_of_chips_have_the_bits_of_one_software_switch(self):
        expected = report()["result_hash"]
        for racks, loss in (("2", 0), ("4,2", 0.01)):
            chips = report("--profile", "chip", "--racks", racks, "--loss", loss)
            self.assertEqual((chips["wrong"], chips["result_hash"]), (0, expected))
            self.assertIn("chip profile; each worker and each switch", chips["placement"])

    def test_few_floats(self):
        self.assertEqual(cli.bench("--workers", 4, "--elements", 3, "--iterations", 3, "--profile", "chip")["wrong"], 0)


class AtpSums(unittest.TestCase):
    def assert_same(self, *flags):
        atp = ("--protocol", "atp", "--workers", 4, "--elements", 50_003, "--iterations", 2, "--json")
        software, chip = cli.bench(*atp, *flags), cli.bench(*atp, "--profile", "chip", *flags)
        self.assertEqual((software["wrong"], chip["wrong"]), (0, 0))
        self.assertEqual(software["result_hash"], chip["result_hash"])
        self.assertIn("256 elements per packet, chip profile", chip["placement"])

    def test_integers(self):
        self.assert_same("--dtype", "int32", "--loss", 0.01)

    def test_floats_whose_sums_overflow(self):
        self.assert_same("--magnitude", 30)
        self.assert_same("--magnitude", 30, "--scaling", "dynamic", "--racks", 2)


class Refusals(unittest.TestCase):
    def assert_refused(self, text, *arguments, code=2):
        result = cli.run(*arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        errors = [line for line in result.stderr.splitlines() if line.startswith("netsum:")]
        self.assertEqual(len(errors), 1, result.stderr)
        self.assertIn(text, errors[0])

    def test_the_operator_must_allow_what_ethernet_checks_alone(self):
        self.assert_refused("--allow-fcs-only", "switch", "--profile", "chip")
        self.assert_refused("--allow-fcs-only requires --profile chip", "switch", "--allow-fcs-only")
        self.assert_refused("239.1.1.1", "switch", *CHIP, "--multicast", "239.1.1.1:5000")
        self.assert_refused("require the software profile", "switch", *CHIP, "--require-keys")
        self.assert_refused("require the software profile", "switch", *CHIP, "--packet-security", "tag")
        self.assert_refused("software or chip", "switch", "--profile", "tofino")

    def test_a_parameter_server_too(self):
        self.assert_refused("--allow-fcs-only", "ps", "--rules", "chip")
        self.assert_refused("--allow-fcs-only requires --rules chip", "ps", "--allow-fcs-only")
        self.assert_refused("no packet keys", "ps", "--rules", "chip", "--allow-fcs-only", "--packet-security", "tag")

    def test_a_p4_switch(self):
        bmv2 = ("switch", "--allow-fcs-only", "--data-plane", "bmv2")
        self.assert_refused("--target", *bmv2)
        self.assert_refused("supports the chip profile only", *bmv2, "--target", "127.0.0.1:9", "--profile", "software")
        self.assert_refused("--target requires --data-plane bmv2", "switch", *CHIP, "--target", "127.0.0.1:9")
        self.assert_refused("requires the address that ranks send to", *bmv2, "--listen", "0.0.0.0:0", "--target", "127.0.0.1:9")
        result = cli.run(*bmv2, "--target", "127.0.0.1:9")
        if "requires the bmv2 plugin" not in result.stderr:
            self.assert_refused("the P4 switch at 127.0.0.1:9 does not answer", *bmv2, "--target", "127.0.0.1:9", code=3)

    def test_ranks_are_refused_before_they_join(self):
        with cli.Switch(*CHIP) as switch:
            rank = ("bench", "all-reduce", "--switch", switch.address, "--rank", 0, "--elements", 100)
            for text, *flags in (("64 or 256 elements, not of 320", "--world-size", 2, "--packet-elements", 320),
                                 ("not as float16", "--world-size", 2, "--wire", "float16")):
                self.assert_refused(text, *rank, *flags, code=3)
            self.assertEqual(switch.status()["jobs"], [])

    def test_a_tree_of_both_profiles(self):
        with cli.Switch(*CHIP) as chip, cli.Switch() as software:
            for root, leaf in ((chip, software), (software, chip)):
                self.assert_refused("same --profile", "bench", "all-reduce", "--spine", root.address, "--switch", leaf.address,
                                    "--rank", 0, "--world-size", 2, "--elements", 100, code=3)

    def test_more_ranks_than_bits_need_racks(self):
        many = ("--workers", 32, "--elements", 64, "--iterations", 1, "--profile", "chip", "--transport", "udp", "--connect-deadline", 60)
        refused = cli.run("bench", "all-reduce", *many)
        self.assertEqual(refused.returncode, 3, refused.stderr)
        self.assertIn("32 ranks and switches are directly below the aggregator, a chip for at most 31", refused.stderr)
        self.assertEqual(cli.bench(*many, "--racks", 2)["wrong"], 0)

    def test_aggregators_of_both_profiles(self):
        with cli.Switch(*CHIP) as chip, cli.Switch() as software:
            self.assert_refused("same --profile", "bench", "all-reduce", "--switch", f"{chip.address},{software.address}",
                                "--rank", 0, "--world-size", 2, "--elements", 100, code=3)


class Mismatch(unittest.TestCase):
    def test_an_echo_that_differs_names_both_ranks(self):
        with cli.Switch(*CHIP) as switch, contextlib.ExitStack() as stack:
            ranks = [stack.enter_context(cli.rank_process(switch.address, rank, 2, "--elements", 1000 + rank, "--warmup", 0))
                     for rank in range(2)]
            codes = [rank.wait(60) for rank in ranks]
            self.assertNotIn(0, codes)
            errors = [line for rank in ranks for line in rank.error_lines()]
            self.assertTrue(any("ranks 0 and 1 issued different calls" in line or "ranks 1 and 0 issued different calls" in line
                                for line in errors), errors)
            # The last one of a round sees its own echo: it learns that the other one has left.
            self.assertFalse(any("did not end within" in line for line in errors), errors)


if __name__ == "__main__":
    cli.main()
