#!/usr/bin/python3
"""ATP over real sockets: sums with slots and without, several jobs on one switch, switches that die, servers that die."""
import argparse
import json
import os
import signal
import tempfile
import unittest

import cli_support as cli

SMALL = ["--elements", 300_000, "--packet-elements", 353]
QUICK = [*SMALL, "--iterations", 3]


class Server(cli.ParameterServer):
    def counters(self):
        report = json.loads(cli.checked(cli.run("status", "--switch", self.address, "--json")).stdout)
        return [job["counters"] for job in report["jobs"]]


def rank(server, switch, number, world_size, *arguments):
    at = ["--switch", switch.address] if switch else []
    return cli.Process("bench", "all-reduce", "--rank-report", "--protocol", "atp", "--ps", server.address, *at, "--rank", number,
                       "--world-size", world_size, *arguments)


def ended_well(test, processes):
    for process in processes:
        with process:
            test.assertEqual(process.wait(120), 0, process.err)
            test.assertEqual(json.loads(process.out[-1])["wrong"], 0)


def kill_in_the_middle(ranks, victim):
    for process in ranks:
        process.wait_line(process.out, "iteration 3")
    with ranks[victim]:
        ranks[victim].signal(signal.SIGKILL)


class Bench(unittest.TestCase):
    def bench(self, *arguments):
        report = cli.bench("--protocol", "atp", *arguments)
        self.assertEqual(report["protocol"], "atp")
        self.assertEqual(report["wrong"], 0)
        self.assertTrue(report["bit_identical"])
        return report

    @cli.compares
    def test_sums_are_right_with_and_without_loss(self):
        hashes = set()
        for loss in (0, 0.001, 0.01):
            with self.subTest(loss=loss):
                report = self.bench("--workers", 4, "--elements", 500_000, "--iterations", 4, "--packet-elements", 353,
                                    "--loss", loss)
                self.assertLessEqual(report["max_error_over_bound"], 1)
                self.assertGreater(report["max_abs_error"], 0)
                if loss:
                    self.assertGreater(report["packets"]["dropped_up"] + report["packets"]["dropped_down"], 0)
                hashes.add(report["result_hash"])
        self.assertEqual(len(hashes), 1, "the same bits, whatever is lost")

    def test_sums_are_right_whatever_finds_a_slot(self):
        hashes = set()
        for slots, control in ((4096, "true"), (4096, "false"), (40, "true"), (40, "false"), (1, "true")):
            with self.subTest(slots=slots, control=control):
                hashes.add(self.bench("--workers", 3, "--elements", 300_000, "--iterations", 3, "--pool-slots", slots,
                                      "--congestion-control", control)["result_hash"])
        self.assertEqual(len(hashes), 1, "the same bits, wherever they were added")

    @cli.compares
    def test_dtypes_operations_and_lengths(self):
        for dtype in ("float32", "int32", "float16", "bfloat16"):
            for op in ("sum", "avg"):
                with self.subTest(dtype=dtype, op=op):
                    self.bench("--workers", 2, "--elements", 40_001, "--iterations", 2, "--dtype", dtype, "--op", op)
        for elements in (0, 1, 62, 63):
            with self.subTest(elements=elements):
                self.bench("--workers", 2, "--elements", elements, "--iterations", 2, "--packet-elements", 62)

    def test_loss_makes_the_window_small(self):
        windows = [self.bench("--workers", 2, *SMALL, "--iterations", 3, "--threads", 1, "--slots", 256, "--loss", loss)["window"]
                   for loss in (0, 0.05)]
        self.assertGreater(windows[0], windows[1])
        self.assertLess(windows[1], 128)

    def test_tensors_are_spread_over_parameter_servers(self):
        report = self.bench("--workers", 2, "--elements", 5_000_000, "--iterations", 1, "--parameter-servers", 3, "--threads", 1)
        self.assertIn("3 parameter servers", report["placement"])


class Scaling(unittest.TestCase):
    """Four ranks with values up to 2^13: times 10^8 none of their packets fits int32 (ATP §B.3)."""
    WINDOW = 16
    LARGE = ["--elements", 300_000, "--packet-elements", 353, "--magnitude", 14, "--iterations", 1_000_000, "--slots", WINDOW]
    CHUNKS = -(-300_000 // 353)

    def fallbacks(self, scaling):
        """Of chunks that the server had to ask for as floats, the part; after some all-reduces."""
        with cli.Switch() as switch, Server("--scaling", scaling) as server:
            ranks = [rank(server, switch, number, 4, *self.LARGE, "--scaling", scaling) for number in range(4)]
            try:
                for process in ranks:
                    process.wait_line(process.out, "iteration 3", 60)
                counters = server.counters()[0]
            finally:
                for process in ranks:
                    process.__exit__()
        self.assertGreater(counters["chunks"], self.CHUNKS)
        return counters["fallbacks"] / counters["chunks"]

    def test_only_the_first_window_falls_back(self):
        self.assertGreater(self.fallbacks("fixed"), 0.9)
        dynamic = self.fallbacks("dynamic")
        self.assertGreater(dynamic, 0)
        self.assertLess(dynamic, 2 * self.WINDOW / self.CHUNKS)

    @cli.compares
    def test_sums_are_right_and_do_not_depend_on_time(self):
        for dtype, op in (("float32", "sum"), ("float32", "avg"), ("bfloat16", "sum")):
            hashes = set()
            for slots, loss in ((4096, 0), (4096, 0.01), (3, 0.001)):
                with self.subTest(dtype=dtype, op=op, slots=slots, loss=loss):
                    report = cli.bench("--protocol", "atp", "--scaling", "dynamic", "--magnitude", 14, "--workers", 4, *QUICK,
                                       "--slots", self.WINDOW, "--dtype", dtype, "--op", op, "--pool-slots", slots, "--loss", loss)
                    self.assertEqual(report["wrong"], 0)
                    self.assertTrue(report["bit_identical"])
                    hashes.add(report["result_hash"])
            self.assertEqual(len(hashes), 1, "the same bits, whatever is lost and wherever it was added")

    @cli.compares
    def test_bits_depend_neither_on_packets_nor_on_windows(self):
        for scaling in ("fixed", "dynamic"):
            hashes = set()
            for length, slots in ((64, 256), (353, 16), (2219, 64)):
                report = cli.bench("--protocol", "atp", "--scaling", scaling, "--magnitude", 14, "--workers", 4,
                                   "--elements", 40_000, "--iterations", 3, "--packet-elements", length, "--slots", slots)
                self.assertEqual(report["wrong"], 0)
                hashes.add(report["result_hash"])
            self.assertEqual(len(hashes), 1, scaling)

    def test_small_values_are_as_with_the_fixed_scale(self):
        hashes = {cli.bench("--protocol", "atp", "--scaling", scaling, "--workers", 2, *QUICK)["result_hash"]
                  for scaling in ("fixed", "dynamic")}
        self.assertEqual(len(hashes), 1)


class Sharing(unittest.TestCase):
    def test_jobs_share_a_switch_whose_slots_do_not_suffice(self):
        with cli.Switch("--pool-slots", 32) as switch, Server() as server:
            ranks = [rank(server, switch, number, 2, "--job", f"job{job}", *QUICK) for job in range(3) for number in range(2)]
            ended_well(self, ranks)
            cli.until(lambda: switch.status()["counters"]["pool_slots_in_use"] == 0, 10, "no slot is lost")

    def test_ranks_without_a_switch_are_summed_at_the_server(self):
        with Server() as server:
            ended_well(self, [rank(server, None, number, 3, *QUICK) for number in range(3)])

    def test_racks_in_one_command(self):
        one = cli.bench("--protocol", "atp", "--workers", 4, *QUICK)
        for racks in ("2", "4,2", "3,1"):
            report = cli.bench("--protocol", "atp", "--workers", 4, "--parameter-servers", 2, "--racks", racks, "--loss", 0.001, *QUICK)
            self.assertEqual((report["wrong"], report["result_hash"]), (0, one["result_hash"]), racks)

    def test_two_racks_and_a_second_level(self):
        with cli.Switch() as top, cli.Switch() as left, cli.Switch() as right:
            parents = f"{left.address}={top.address},{right.address}={top.address}"
            with Server("--switch-parent", parents) as server:
                ranks = [rank(server, left if number < 2 else right, number, 4, *SMALL, "--iterations", 20) for number in range(4)]
                for process in ranks:
                    process.wait_line(process.out, "iteration 5")
                jobs = top.status()["jobs"]
                ended_well(self, ranks)
            self.assertEqual([job["world_size"] for job in jobs], [4])
            self.assertGreater(jobs[0]["counters"]["completed"], 0)


    def test_parts_of_two_servers_do_not_overlap(self):
        with cli.Switch("--pool-slots", 64) as switch, Server("--parts", 2, "--own-parts", 1) as first:
            with Server("--parts", 2, "--first-part", 1) as second, Server("--parts", 2) as careless:
                long = [*SMALL, "--iterations", 1_000_000]
                ranks = [rank(server, switch, 0, 1, "--job", name, *long) for server, name in ((first, "a"), (second, "b"))]
                try:
                    for process in ranks:
                        process.wait_line(process.out, "iteration 3")
                    cli.until(lambda: len(switch.status()["jobs"]) == 2, 10, "both have a part")
                    ended_well(self, [rank(careless, switch, 0, 1, "--job", "c", *QUICK)])
                    self.assertTrue(any("overlap with 0 to 31 of job 'a'" in line for line in careless.err), careless.err)
                finally:
                    for process in ranks:
                        process.__exit__()


class Failures(unittest.TestCase):
    def test_a_switch_that_is_reachable_only_later_takes_part(self):
        with cli.Switch() as any_port:
            address = any_port.address
        with cli.Switch() as leaf, Server("--switch-parent", f"{leaf.address}={address}") as server:
            ranks = [rank(server, leaf, number, 2, *SMALL, "--iterations", 1_000_000) for number in range(2)]
            try:
                for process in ranks:
                    process.wait_line(process.out, "iteration 3")  # past both
                with cli.Switch(listen=address) as top:
                    cli.until(lambda: any(job["counters"]["completed"] > 0 for job in top.status()["jobs"]), 10, "the top sums")
            finally:
                for process in ranks:
                    process.__exit__()

    def test_a_switch_takes_jobs_from_daemons_with_its_token_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            def token(name, text):
                path = os.path.join(folder, name)
                with open(path, "w") as file:
                    file.write(text + "\n")
                return ["--daemon-token-file", path]

            right, wrong = token("right", "of the daemons"), token("wrong", "of others")
            for of_server, aggregates in ((right, True), (wrong, False), ([], False)):
                with self.subTest(server=of_server), cli.Switch(*right) as switch, Server(*of_server) as server:
                    ranks = [rank(server, switch, number, 2, *SMALL, "--iterations", 1_000_000) for number in range(2)]
                    try:
                        for process in ranks:
                            process.wait_line(process.out, "iteration 3")  # whoever adds them
                        if aggregates:
                            cli.until(lambda: any(job["counters"]["completed"] > 0 for job in switch.status()["jobs"]), 10, "a sum")
                        else:
                            why = f"switch {switch.address} does not take part in job 'bench': "
                            cli.until(lambda: any(why in line and "--daemon-token-file" in line for line in server.err), 10, why)
                            self.assertEqual(switch.status()["jobs"], [])
                    finally:
                        for process in ranks:
                            process.__exit__()

    def test_a_switch_that_dies_costs_nothing_but_time(self):
        with cli.Switch() as switch, Server() as server:
            ranks = [rank(server, switch, number, 2, *SMALL, "--iterations", 20) for number in range(2)]
            for process in ranks:
                process.wait_line(process.out, "iteration 3")
            switch.signal(signal.SIGKILL)
            ended_well(self, ranks)

    def test_ranks_are_told_that_their_switch_is_lost_and_that_it_is_back(self):
        with cli.Switch() as any_port:
            address = any_port.address
        with tempfile.TemporaryDirectory() as state, Server() as server:
            first = cli.Switch("--state", state, listen=address)
            with first:
                ranks = [rank(server, first, number, 2, *SMALL, "--iterations", 1_000_000) for number in range(2)]
                for process in ranks:
                    process.wait_line(process.out, "iteration 3")

            def said(words):
                log = ranks[0].err  # the others' are silent
                cli.until(lambda: any(words in line and f"(said by aggregator {server.address})" in line for line in log), 40, f"'{words}' in {log}")
            with ranks[0], ranks[1]:
                said(f"warning: switch {address} does not take part in job 'bench': aggregator {address}")
                seen = len(ranks[0].out)
                cli.until(lambda: len(ranks[0].out) > seen + 2, 40, "the job goes on")
                with cli.Switch("--state", state, listen=address):
                    said("all switches take part in job 'bench' again")
                cli.until(lambda: any(f"switch {address} takes part in job 'bench' again" in line for line in server.err), 20, "the server's line")

    def test_a_switch_that_comes_back_takes_part_again(self):
        with cli.Switch() as any_port:
            address = any_port.address
        # Data at the same port, then as now, and the same secret, by which it knows the ranks.
        with tempfile.TemporaryDirectory() as state, cli.Switch("--state", state, listen=address) as first, Server() as server:
            ranks = [rank(server, first, number, 2, *SMALL, "--iterations", 1_000_000) for number in range(2)]
            try:
                for process in ranks:
                    process.wait_line(process.out, "iteration 3")
                first.signal(signal.SIGKILL)
                first.wait(10)
                with cli.Switch("--state", state, listen=address) as second:
                    cli.until(lambda: any(job["counters"]["completed"] > 0 for job in second.status()["jobs"]), 40,
                              "the switch sums again")
            finally:
                for process in ranks:
                    process.__exit__()

    def test_by_the_papers_rules_losses_cost_no_sum(self):
        with cli.Switch("--pool-slots", 32, "--loss", "0.02") as switch, Server("--rules", "paper") as server:
            ranks = [rank(server, switch, number, 3, *SMALL, "--iterations", 5) for number in range(3)]
            ended_well(self, ranks)
            self.assertGreater(sum(json.loads(process.out[-1])["packets_retransmitted"] for process in ranks), 0)

    def test_a_killed_rank_is_named(self):
        with cli.Switch() as switch, Server() as server:
            ranks = [rank(server, switch, number, 3, *SMALL, "--iterations", 1_000_000) for number in range(3)]
            kill_in_the_middle(ranks, 1)
            for survivor in (ranks[0], ranks[2]):
                with survivor:
                    self.assertEqual(survivor.wait(15), 1)
                    self.assertRegex(survivor.error_lines()[0], r"rank 1\b")

    def test_a_killed_server_is_named(self):
        with cli.Switch() as switch, Server() as server:
            ranks = [rank(server, switch, number, 2, *SMALL, "--iterations", 1_000_000) for number in range(2)]
            for process in ranks:
                process.wait_line(process.out, "iteration 3")
            server.signal(signal.SIGKILL)
            for process in ranks:
                with process:
                    self.assertEqual(process.wait(15), 1)
                    self.assertIn(server.address, process.error_lines()[0])

    def test_ranks_that_call_differently_are_both_named(self):
        with cli.Switch() as switch, Server() as server:
            ranks = [rank(server, switch, number, 2, "--elements", 1000 + number, "--iterations", 1) for number in range(2)]
            for process in ranks:
                with process:
                    self.assertEqual(process.wait(30), 1)
            self.assertTrue(any("ranks 0 and 1" in line or "ranks 1 and 0" in line for process in ranks for line in process.error_lines()),
                            [process.err for process in ranks])

    def test_bad_usage(self):
        with cli.Switch("--pool-elements", 2048) as switch, Server() as server:
            for words, code in ((["--switch", "127.0.0.1:1"], 2),  # no --ps
                                (["--ps", server.address, "--switch", server.address, "--rank", 0, "--world-size", 1], 2),
                                (["--ps", switch.address, "--rank", 0, "--world-size", 1], 3),
                                (["--ps", server.address, "--switch", switch.address, "--rank", 0, "--world-size", 1,
                                  "--packet-elements", 9000], 3),
                                (["--packet-elements", 20_000], 2),
                                (["--scaling", "x"], 2),
                                (["--magnitude", 1, "--dtype", "float16"], 2)):
                with self.subTest(words=words):
                    result = cli.run("bench", "all-reduce", "--protocol", "atp", "--connect-deadline", 5, *words)
                    self.assertEqual(result.returncode, code, result.stderr)
                    self.assertRegex(result.stderr.splitlines()[-1], r"\Anetsum: ")
        for words in (["--switch-parent", "a"], ["--indexing", "x"], ["--overflow", "x"], ["--scaling", "x"], ["--rules", "x"]):
            with self.subTest(words=words):
                self.assertEqual(cli.run("ps", *words).returncode, 2)


class Recovery(unittest.TestCase):
    """A.3: the job goes on with the operation that it was in."""

    LONG = [*SMALL, "--iterations", 80, "--recovery", 30]

    def ended_alike(self, processes):
        ended_well(self, processes)
        hashes = [json.loads(process.out[-1])["hashes"] for process in processes]
        self.assertGreater(len(hashes[0]), 0)
        for other in hashes[1:]:
            both = min(len(hashes[0]), len(other))
            self.assertEqual(hashes[0][-both:], other[-both:])

    def test_a_killed_rank_starts_again_in_another_rack(self):
        with cli.Switch() as top, cli.Switch() as left, cli.Switch() as right:
            with Server("--switch-parent", f"{left.address}={top.address},{right.address}={top.address}") as server:
                ranks = [rank(server, left if number < 2 else right, number, 4, *self.LONG) for number in range(4)]
                kill_in_the_middle(ranks, 1)
                ranks[1] = rank(server, right, 1, 4, *self.LONG)
                self.ended_alike(ranks)
                self.assertGreater(json.loads(ranks[1].out[-1])["first_iteration"], 0)

    def test_survivors_go_on_without_a_killed_rank(self):
        with cli.Switch() as top, cli.Switch() as left, cli.Switch() as right:
            with Server("--switch-parent", f"{left.address}={top.address},{right.address}={top.address}") as server:
                ranks = [rank(server, left if number < 2 else right, number, 4, *self.LONG, "--survivors", 2) for number in range(4)]
                kill_in_the_middle(ranks, 2)
                self.ended_alike([ranks[0], ranks[1], ranks[3]])

    def test_the_tensors_of_a_dead_server_move_to_another(self):
        with cli.Switch() as switch, Server() as doomed, Server() as server:
            both = argparse.Namespace(address=f"{doomed.address},{server.address}")
            ranks = [rank(both, switch, number, 3, *self.LONG) for number in range(3)]
            for process in ranks:
                process.wait_line(process.out, "iteration 5")
            doomed.signal(signal.SIGKILL)
            self.ended_alike(ranks)

    def test_a_server_that_is_started_again_goes_on(self):
        with Server() as first:
            ranks = [rank(first, None, number, 2, *self.LONG) for number in range(2)]
            for process in ranks:
                process.wait_line(process.out, "iteration 5")
            first.signal(signal.SIGKILL)
            first.wait(10)
            with Server(listen=first.address):
                self.ended_alike(ranks)

    def test_without_a_successor_it_ends_in_words(self):
        with cli.Switch() as switch, Server() as server:
            ranks = [rank(server, switch, number, 3, *SMALL, "--iterations", 1_000_000, "--recovery", 2) for number in range(3)]
            kill_in_the_middle(ranks, 1)
            for survivor in (ranks[0], ranks[2]):
                with survivor:
                    self.assertEqual(survivor.wait(20), 1)
                    self.assertRegex(survivor.error_lines()[-1], r"rank 1\b.*within 2\.0 s: .*ranks .*1\b.* of 3 have not joined")

    def test_a_second_process_of_a_living_rank_is_refused(self):
        with Server() as server:
            ranks = [rank(server, None, number, 2, *SMALL, "--iterations", 1_000_000, "--recovery", 10) for number in range(2)]
            try:
                for process in ranks:
                    process.wait_line(process.out, "iteration 3")
                with rank(server, None, 1, 2, *SMALL, "--iterations", 1_000_000, "--recovery", 10) as twin:
                    self.assertEqual(twin.wait(20), 3)
                    self.assertIn("rank 1 of job 'bench' is alive", twin.error_lines()[-1])
                for process in ranks:
                    self.assertIsNone(process.process.poll())
            finally:
                for process in ranks:
                    process.__exit__()


if __name__ == "__main__":
    cli.main()
