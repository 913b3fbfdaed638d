#!/usr/bin/python3
"""`netsum bench all-reduce` over real sockets: sums, bytes, and the same bits whatever the circumstances."""
import os
import re
import subprocess
import unittest

import cli_support as cli

FIELDS = {"protocol", "workers", "elements", "dtype", "iterations", "loss", "placement", "tat_seconds", "ate_per_second",
          "algorithm_gbps", "wire_bytes_per_worker", "packets", "max_abs_error", "error_bound", "max_error_over_bound",
          "wrong"}


class Bench(unittest.TestCase):
    def test_report(self):
        report = cli.bench("--protocol", "switchml", "--workers", 4, "--elements", 1_000_000, "--iterations", 5)
        self.assertLessEqual(FIELDS, set(report))
        self.assertEqual(set(report["tat_seconds"]), {"min", "median", "p99", "max"})
        self.assertEqual(set(report["wire_bytes_per_worker"]), {"sent", "received"})
        self.assertEqual(set(report["packets"]), {"sent", "received", "retransmitted", "dropped_up", "dropped_down"})
        self.assertEqual((report["protocol"], report["workers"], report["elements"], report["dtype"], report["iterations"]),
                         ("switchml", 4, 1_000_000, "float32", 5))
        self.assertEqual(report["wrong"], 0)
        self.assertTrue(report["bit_identical"])
        self.assertTrue(report["placement"])
        self.assertLessEqual(report["max_error_over_bound"], 1)
        self.assertGreater(report["max_abs_error"], 0)  # else nothing was compared
        times = report["tat_seconds"]
        self.assertTrue(0 < times["min"] <= times["median"] <= times["p99"] <= times["max"])
        self.assertAlmostEqual(report["ate_per_second"], 1_000_000 / times["median"], delta=1)
        self.assertAlmostEqual(report["algorithm_gbps"], 1_000_000 * 32e-9 / times["median"], places=3)
        self.assertEqual((report["packets"]["dropped_up"], report["packets"]["dropped_down"]), (0, 0))
        self.assertGreater(report["window"], 0)
        self.assertGreater(report["busy_seconds_per_worker"], 0)
        self.assertTrue(0 < report["cpu_seconds_per_worker"] <= os.cpu_count() * times["max"])

    def test_windows_on_this_host_follow_from_the_cache(self):
        told = subprocess.run(["getconf", "LEVEL2_CACHE_SIZE"], capture_output=True, text=True, check=True).stdout.strip()
        two_datagrams = min(131_072, int(told if told.isdigit() and int(told) > 0 else 1 << 20) // 4)
        # As many packets, or bytes of longer ones with their headers, whatever the cache.
        for protocol, workers, most, packets, least in (("switchml", 2, 2 * two_datagrams, 4, 0), ("switchml", 5, two_datagrams, 2, 0),
                                                        ("atp", 2, two_datagrams, 16, 131_072)):
            with self.subTest(protocol=protocol, workers=workers):
                placement = cli.bench("--protocol", protocol, "--workers", workers, "--elements", 100_000, "--iterations", 1)["placement"]
                window = int(re.search(r"(?:lanes|window) of (\d+) (?:slots|chunks)", placement)[1])
                packet = int(re.search(r"(\d+) elements per packet", placement)[1]) * 4
                self.assertTrue(window >= packets or 0 < least <= window * (packet + 100), (window, packet))
                self.assertLessEqual(window * packet, max(most, packets * packet, 2 * least))
                self.assertGreater(window * packet, most / 2)

    @cli.compares
    def test_each_worker_sends_and_receives_the_tensor_once(self):
        report = cli.bench("--workers", 3, "--elements", 2_500_000, "--iterations", 3)
        packets = report["packets"]
        # A rank that a busy machine does not schedule for a while is repeated to: that is the machine's, not the protocol's.
        once = 1 - packets["retransmitted"] / packets["sent"]
        for way in ("sent", "received"):
            with self.subTest(way=way):
                self.assertGreater(report["wire_bytes_per_worker"][way], 10e6)
                self.assertLess(report["wire_bytes_per_worker"][way] * once, 11e6)
        self.assertLess(packets["retransmitted"], packets["sent"] / 2)

    def test_loss_costs_packets_and_never_a_sum(self):
        for loss in (0.001, 0.01):
            with self.subTest(loss=loss):
                report = cli.bench("--workers", 4, "--elements", 500_000, "--iterations", 5, "--packet-elements", 256,
                                   "--loss", loss, "--seed", 7)
                self.assertEqual(report["wrong"], 0)
                expected = report["packets"]["sent"] * loss  # of about 2000, and more where ranks are scheduled late
                for counter in ("dropped_up", "dropped_down"):
                    self.assertGreater(report["packets"][counter], 0.4 * expected)
                    self.assertLess(report["packets"][counter], 2 * expected)
                self.assertGreater(report["packets"]["retransmitted"], 0)

    @cli.compares
    def test_dtypes_operations_and_lengths(self):
        for dtype in ("float32", "int32", "float16", "bfloat16"):
            for op in ("sum", "avg"):
                with self.subTest(dtype=dtype, op=op):
                    report = cli.bench("--workers", 3, "--elements", 70_001, "--iterations", 2, "--dtype", dtype, "--op", op)
                    self.assertEqual(report["wrong"], 0)
        for dtype, wire in (("float32", "float16"), ("float32", "bfloat16"), ("float16", "float32"), ("bfloat16", "float32"),
                            ("float32", "int8"), ("bfloat16", "int8"), ("float32", "int4"), ("bfloat16", "int4")):
            with self.subTest(dtype=dtype, wire=wire):
                report = cli.bench("--workers", 3, "--elements", 70_001, "--iterations", 2, "--dtype", dtype, "--wire", wire)
                self.assertEqual(report["wrong"], 0)
        for elements in (0, 1, 255, 256, 257, 16_385):
            with self.subTest(elements=elements):
                report = cli.bench("--workers", 2, "--elements", elements, "--iterations", 3, "--warmup", 0)
                self.assertEqual(report["wrong"], 0)

    def test_tensors_from_allocate_have_the_same_sums(self):
        for transport in ("udp", "shm"):
            for flags in ((), ("--back-to-back",)):
                with self.subTest(transport=transport, flags=flags):
                    base = ["--workers", 3, "--elements", 300_001, "--iterations", 4, "--transport", transport, *flags]
                    plain, allocated = cli.bench(*base), cli.bench(*base, "--allocate")
                    self.assertEqual((plain["wrong"], allocated["wrong"]), (0, 0))
                    self.assertEqual(plain["result_hash"], allocated["result_hash"])
                    self.assertEqual((plain["allocate"], allocated["allocate"]), (False, True))
                    copied = allocated["bytes_copied"]
                    self.assertEqual(copied, 0)
                    self.assertEqual(plain["bytes_copied"] > 0, transport == "shm")

    def test_ranks_in_shared_memory_wait_as_they_are_told(self):
        for elements in (10, 300_001):
            hashes = set()
            for flags in ((), ("--spin",), ("--busy-poll", "false")):
                with self.subTest(elements=elements, flags=flags):
                    report = cli.bench("--workers", 3, "--elements", elements, "--iterations", 4, "--transport", "shm", *flags)
                    self.assertEqual(report["wrong"], 0)
                    hashes.add(report["result_hash"])
            self.assertEqual(len(hashes), 1)

    @cli.compares
    def test_16_bits_are_half_the_bytes(self):
        base = ["--workers", 2, "--elements", 1_000_000, "--iterations", 3, "--packet-elements", 1024]

        def sent(*flags):
            report = cli.bench(*base, *flags)
            self.assertEqual(report["wrong"], 0)
            packets = report["packets"]
            return report["wire_bytes_per_worker"]["sent"] * (1 - packets["retransmitted"] / packets["sent"])

        wide = sent()
        for flags in (("--dtype", "bfloat16"), ("--dtype", "float16"), ("--wire", "bfloat16"), ("--wire", "float16")):
            with self.subTest(flags=flags):
                self.assertLess(sent(*flags), 0.51 * wide)
        self.assertLess(sent("--wire", "int8"), 0.28 * wide)
        self.assertLess(sent("--wire", "int4"), 0.15 * wide)
        self.assertGreater(sent("--dtype", "bfloat16", "--wire", "float32"), 0.95 * wide)

    def test_rounding_to_nearest_is_no_chance(self):
        base = ("--workers", 2, "--elements", 70_001, "--iterations", 1)
        for wire in ("int8", "int4"):
            reports = [cli.bench(*base, "--wire", wire, "--warmup", 0, "--rounding", how) for how in ("nearest", "chance")]
            self.assertEqual([0, 0], [each["wrong"] for each in reports])
            self.assertLess(reports[0]["max_abs_error"], 0.85 * reports[1]["max_abs_error"])

    def test_a_job_has_as_many_lanes_as_either_end_has_threads(self):
        for ranks, switch, aggregators, lanes in ((4, 1, 1, 4), (1, 2, 1, 2), (3, 1, 2, 4), (1, 1, 3, 3), (12, 1, 1, 12)):
            with self.subTest(ranks=ranks, switch=switch, aggregators=aggregators):
                for protocol in ("switchml", "netreduce") if aggregators > 1 else ("switchml", "atp", "netreduce"):
                    result = cli.bench("--protocol", protocol, "--elements", 100_000, "--iterations", 2, "--threads", ranks,
                                       "--switch-threads", switch, *(("--aggregators", aggregators) if aggregators > 1 else ()))
                    self.assertEqual((result["lanes"], result["wrong"]), (lanes, 0), protocol)

    def test_ranks_with_few_threads_limit_the_others(self):
        with cli.Switch("--threads", 1, "--lanes", 4) as switch:
            ranks = [cli.rank_process(switch.address, rank, 3, "--job", "mixed", "--elements", 200_000, "--iterations", 1_000_000, "--threads", threads)
                     for rank, threads in enumerate((3, 2, 9))]
            with ranks[0], ranks[1], ranks[2]:
                ranks[0].wait_line(ranks[0].out, "iteration 2")
                self.assertEqual([job["lanes"] for job in switch.status()["jobs"]], [2])

    def test_same_bits_whatever_the_circumstances(self):
        base = ["--workers", 4, "--elements", 300_001, "--iterations", 3, "--seed", 11]
        variants = {
            "loss, one seed": ["--loss", 0.01, "--loss-seed", 1],
            "loss, another seed": ["--loss", 0.01, "--loss-seed", 2],
            "few slots": ["--slots", 4],
            "many slots": ["--slots", 64],
            "one thread": ["--threads", 1],
            "three threads": ["--threads", 3, "--switch-threads", 3],
            "three threads, and one of the switch": ["--threads", 3, "--switch-threads", 1],
            "one thread, and three of the switch": ["--threads", 1, "--switch-threads", 3],
            "64 elements a packet": ["--packet-elements", 64],
            "256 elements a packet": ["--packet-elements", 256],
            "320 elements a packet": ["--packet-elements", 320],
            "8192 elements a packet": ["--packet-elements", 8192],
            "two aggregators": ["--aggregators", 2],
            "three aggregators of two threads, with loss": ["--aggregators", 3, "--switch-threads", 2, "--loss", 0.01],
            "other warm-up": ["--warmup", 5],
            "short warm-up": ["--warmup-elements", 1000],
            "pinned": ["--pin"],
        }
        dtypes = ("float32", "int32", "float16", "bfloat16", "float32 as int8", "float32 as int4")
        # A sanitizer looks at each circumstance once; that bits do not depend on them is seen in the release build.
        stride = len(dtypes) if cli.is_sanitized() else 1
        for first, dtype in enumerate(dtypes):
            of_type = base + ["--dtype", dtype.split()[0], *(["--wire", dtype.split()[2]] if " as " in dtype else [])]
            expected = cli.bench(*of_type)["result_hash"]
            for name, flags in list(variants.items())[first % stride::stride]:
                if name == "other warm-up" and " as " in dtype:
                    continue  # how values are rounded follows from the call's number
                with self.subTest(dtype=dtype, name=name):
                    report = cli.bench(*of_type, *flags)
                    self.assertEqual(report["wrong"], 0)
                    self.assertEqual(report["result_hash"], expected)
        self.assertNotEqual(cli.bench(*base[:-1], 12)["result_hash"], cli.bench(*base)["result_hash"])

    def test_back_to_back_is_as_right_and_costs_no_barriers(self):
        flags = ["--workers", 3, "--elements", 1000, "--iterations", 50]
        together, apart = (cli.bench(*flags, *more) for more in (["--back-to-back"], []))
        self.assertEqual(together["wrong"], 0)
        self.assertEqual(together["result_hash"], apart["result_hash"])
        self.assertGreater(together["tat_seconds"]["min"], 0)
        self.assertLess(together["wire_bytes_per_worker"]["sent"], 2 * apart["wire_bytes_per_worker"]["sent"])

    def test_table(self):
        result = cli.checked(cli.run("bench", "all-reduce", "--workers", 2, "--elements", 1000))
        for word in ("TAT", "ATE/s", "placement", "bytes per worker"):
            self.assertIn(word, result.stdout)
        self.assertRegex(result.stdout, r"wrong +0,")

    def test_one_worker_mode_reports_on_every_rank(self):
        with cli.Switch() as switch:
            flags = ["--elements", 50_000, "--iterations", 4, "--json"]
            ranks = [cli.Process("bench", "all-reduce", "--switch", switch.address, "--job", "j", "--rank", rank,
                                 "--world-size", 3, *flags) for rank in range(3)]
            reports = []
            for rank in ranks:
                with rank:
                    self.assertEqual(rank.wait(30), 0, rank.err)
                    reports.append(rank.out)
            self.assertEqual(reports[0], reports[1])
            self.assertEqual(reports[0], reports[2])
            self.assertIn('  "workers": 3,', reports[0])


if __name__ == "__main__":
    cli.main()
