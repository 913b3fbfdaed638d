#!/usr/bin/python3
"""How scripts/bench makes ratios, verdicts and tables of runs: with contenders that only say what they took.

usage: bench_compare_test.py ROOT [unittest arguments]
"""
import collections
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else sys.exit(__doc__)
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(ROOT, "bench", folder) for folder in ("compare", "shared")]

import document  # noqa: E402
import draw  # noqa: E402
import machine  # noqa: E402
import pairs  # noqa: E402
import places  # noqa: E402
import processors  # noqa: E402
import profiles  # noqa: E402
import ratios  # noqa: E402
import results  # noqa: E402
import suites  # noqa: E402
from contenders import Failed, Result, Task  # noqa: E402


class Fake:
    """Takes the given times, one after the other; None fails."""

    def __init__(self, name, times, wrong=0):
        self.name, self.times, self.wrong, self.place_states = name, list(times), wrong, []

    def run(self, place, task):
        self.place_states.append(place.state)
        took = self.times.pop(0)
        if took is None:
            raise Failed("as it should")
        return {elements: Result(took * elements, took, self.wrong, "nowhere") for elements in task.elements}


class FakePlace:
    """Busy in the runs whose numbers are given."""
    name = "nowhere"

    def __init__(self, busy=()):
        self.busy, self.runs, self.state = busy, 0, None

    def set(self, loss, tcp, lossy):
        self.state = loss, tcp, lossy

    def watch(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.runs += 1

    def disturbed(self, _):
        return self.runs - 1 in self.busy

    def idle(self, _):
        return self.runs / 10


def race(entrants, count, place=None, keep_all=False):
    return pairs.race(place or FakePlace(), entrants, count, keep_all, lambda text: None)


class Race(unittest.TestCase):
    TASK = Task(2, (10, 100))

    def test_a_ratio_is_of_the_same_round(self):
        # The machine is ten times slower in every other round: no ratio shows it.
        one, other = (Fake(name, [base, 10 * base] * 10) for name, base in (("one", 2), ("other", 1)))
        runs = race([pairs.Entrant("one", one, self.TASK), pairs.Entrant("other", other, self.TASK)], 20)
        self.assertEqual(runs.ratio(("one", 10), ("other", 10)), {"median": 2, "low": 2, "high": 2, "pairs": 20})
        self.assertEqual(runs.ratio(("one", 100), ("other", 10))["median"], 20)

    def test_disturbed_runs_are_discarded_counted_and_made_up_for(self):
        one, other = Fake("one", [3] * 9), Fake("other", [1] * 9)
        entrants = [pairs.Entrant("one", one, self.TASK), pairs.Entrant("other", other, self.TASK)]
        runs = race(entrants, 4, FakePlace(busy={0, 2, 3}))
        self.assertEqual(runs.discarded, {"one": 2, "other": 1})
        self.assertEqual(runs.ratio(("one", 10), ("other", 10))["pairs"], 4)
        self.assertEqual(len(runs.tat["one", 10]), 6)
        self.assertEqual(race([pairs.Entrant("one", Fake("one", [3] * 9), self.TASK)], 4, FakePlace(busy={0}), keep_all=True).discarded,
                         {"one": 0})

    def test_a_machine_that_is_never_idle_ends_it(self):
        runs = race([pairs.Entrant("one", Fake("one", [3] * 8), self.TASK)], 4, FakePlace(busy=set(range(99))))
        self.assertEqual((runs.discarded, runs.ratio(("one", 10), ("one", 10)), dict(runs.export())), ({"one": 8}, None, {}))

    def test_who_fails_is_left_out_in_the_end(self):
        bad, good = Fake("bad", [1, None, None, None]), Fake("good", [1] * 9)
        runs = race([pairs.Entrant("bad", bad, self.TASK), pairs.Entrant("good", good, self.TASK)], 6)
        self.assertEqual((runs.failed, bad.times, len(good.times)), ({"bad": 3, "good": 0}, [], 3))
        self.assertEqual(runs.ratio(("bad", 10), ("good", 10))["pairs"], 1)

    def test_who_comes_seldom_and_in_which_state(self):
        always, seldom = Fake("always", [1] * 9), Fake("seldom", [1] * 9)
        entrants = [pairs.Entrant("always", always, self.TASK, loss=1, lossy="H0"), pairs.Entrant("seldom", seldom, self.TASK, tcp="bbr", every=3)]
        race(entrants, 6)
        self.assertEqual((always.place_states, seldom.place_states), ([(1, "cubic", "H0")] * 6, [(0, "bbr", None)] * 2))

    def test_wrong_elements_are_counted(self):
        self.assertEqual(race([pairs.Entrant("one", Fake("one", [1] * 2, wrong=5), self.TASK)], 2).wrong, 20)

    def test_how_idle_the_machine_was_is_the_median_run(self):
        runs = race([pairs.Entrant("one", Fake("one", [1] * 3), self.TASK)], 3)
        self.assertEqual(dict(runs.export())["one", 10]["idle"], 0.2)


class Profiles(unittest.TestCase):
    # As perf script -F comm,ip,sym prints samples: the innermost function first.
    TEXT = """netsum-worker0
        ffffffff81 _copy_to_iter
        ffffffff82 udp_recvmsg
            55d0 netsum::transport::TrainReceiver::receive

netsum-switch1
            55d1 netsum::kernels::N_AVX3::AddInt32
            55d2 netsum::switchml::Switch::on_contribution

swapper
        ffffffff83 _raw_spin_unlock_irqrestore
        ffffffff84 htb_dequeue
        ffffffff85 handle_softirqs
"""

    def test_a_sample_is_of_the_innermost_layer_that_is_known(self):
        samples = list(profiles.parsed(self.TEXT.splitlines(keepends=True)))
        self.assertEqual([(thread, kernel) for thread, _, kernel in samples], [("netsum-worker0", True), ("netsum-switch1", False), ("swapper", True)])
        layers = {True: profiles.KERNEL_LAYERS, False: profiles.OUR_LAYERS}
        self.assertEqual([profiles.layer_of(chain, layers[kernel]) for _, chain, kernel in samples],
                         ["copies between us and the kernel", "vector kernels", "links: queues, losses, switching"])
        self.assertEqual(profiles.layer_of(["mas_walk"], profiles.KERNEL_LAYERS), "the rest of the kernel")

    def test_shares_are_of_all(self):
        self.assertEqual(profiles.shares(collections.Counter(a=1, b=3)), [["b", 0.75], ["a", 0.25]])
        with self.assertRaisesRegex(SystemExit, "perf recorded nothing"):
            profiles.shares(collections.Counter())


class Ratios(unittest.TestCase):
    def test_the_interval_holds_the_median_and_narrows(self):
        few, many = (ratios.summary([1 + i % 7 for i in range(count)], [1] * count) for count in (21, 2100))
        for each in (few, many):
            self.assertEqual(each["median"], 4)
            self.assertLessEqual(each["low"], 4)
            self.assertGreaterEqual(each["high"], 4)
        self.assertLess(many["high"] - many["low"], few["high"] - few["low"])
        self.assertIsNone(ratios.summary([1, None], [None, 1]))

    def test_a_goal_is_reached_by_the_whole_interval_or_not(self):
        def of(low, high, pairs_of=20):
            return {"median": (low + high) / 2, "low": low, "high": high, "pairs": pairs_of}
        for ratio, at_least, says in ((of(1.5, 1.6), True, "reached"), (of(1.4, 1.6), True, "not shown"), (of(1.3, 1.4), True, "not reached"),
                                      (of(1.51, 1.6), False, "not reached"), (of(1.4, 1.5), False, "reached"),
                                      (of(1.5, 1.6, 19), True, "open (19 pairs)"), (None, True, "not measured")):
            with self.subTest(ratio=ratio, at_least=at_least):
                self.assertEqual(ratios.verdict(ratio, 1.5, at_least), says)


class Suites(unittest.TestCase):
    def test_every_row_is_of_what_its_group_runs_and_has_a_name_of_its_own(self):
        names = []
        self.assertLessEqual(suites.SUITES.keys(), document.SUITES.keys(), "no title in docs/performance.md")
        for _, groups in suites.SUITES.values():
            for group in groups():
                runs = {(entrant.name, elements) for entrant in group.entrants for elements in entrant.task.elements}
                for row in group.rows:
                    self.assertLessEqual({row.over, row.under}, runs, row.id)
                    names.append(row.id)
                for entrant in group.entrants:
                    self.assertTrue(group.hosts == 0 or entrant.task.workers < group.hosts, "a host more, for parameter servers")
                self.assertTrue(any(entrant.every == 1 for entrant in group.entrants))
                for row in group.rows:
                    seldom = [entrant.every for entrant in group.entrants if entrant.name in (row.over[0], row.under[0])]
                    self.assertTrue(row.goal is None or max(seldom) == 1, f"{row.id} has a goal, and too few pairs")
        self.assertEqual(len(names), len(set(names)))


ZEN3 = {"model": "AMD EPYC", "family": "25 model 1", "vectors": ["avx2", "vpclmulqdq"], "caches": {"L2": "512K", "L1d": "32K"}}
UNKNOWN = {"model": "AMD EPYC", "family": None, "vectors": None, "caches": None}


def example(processor=ZEN3):
    facts = {"suite": "shaped", "group": "shaped-4", "machine": "2 CPUs", "command": "scripts/bench", "date": "2026-01-01", "quick": False,
             "on": "links", "rate": "200mbit", "discarded": 1, "failed": 0, "aggregator": "at the switch"}
    row = dict(facts, what="Gloo over SwitchML, N = 4, 25 MB", goal=1.45, at_least=True, then="1.58", over="Gloo 6250000", under="SwitchML 6250000",
               ratio=ratio(0.5))
    run = dict(facts, entrant="SwitchML", who="SwitchML", workers=4, elements=6250000, loss=0, tcp="cubic", tat_seconds=1.1, p99_seconds=1.2,
               runs=20, bytes_per_worker=None, wrong=0)
    return results.merge(results.read(None), processor, {"rows": {"shaped-4": row}, "runs": {"a": run}})


def ratio(median):
    return {"median": median, "low": median - 0.1, "high": median + 0.1, "pairs": 20}


def part(found):
    """What was measured on the first processor."""
    return next(iter(found["processors"].values()))


class Document(unittest.TestCase):
    def test_says_what_was_missed_and_who_was_faster(self):
        text = document.summary(example(), [])
        for word in ("**not reached**; **the peer wins** | 1 |", "0.5 (0.4 to 0.6)", "≥ 1.45", "- Place 1: links; aggregator: at the switch\n",
                     "## Where a peer is faster\n\n- [Shaped links](#shaped-links)\n  - Gloo over SwitchML: 0.5 (0.4 to 0.6) at N = 4, 25 MB\n",
                     "## Goals that are not reached\n\n- [Shaped links](#shaped-links)\n"
                     "  - Gloo over SwitchML: goal ≥ 1.45, measured 0.5 (0.4 to 0.6) at N = 4, 25 MB\n", "- Processor A: AMD EPYC (family 25 model 1; AVX2 and VPCLMULQDQ; L1d 32K, L2 512K)\n"
                     "  - Measured on 2026-01-01, 2 CPUs\n"):
            self.assertIn(word, text)
        nothing = document.summary(results.read(None), [])
        self.assertIn("In no row of what was measured.", nothing)
        self.assertIn("None of those measured.", nothing)

    def test_tables_have_every_run_and_the_commands_of_each_machine_once(self):
        text = document.tables(example())
        for word in (", L2 512K), 2026-01-01, 2 CPUs:\n\n- `scripts/bench` (shaped)\n\n", "## Shaped links", "All of shaped-4: links", "1.1 s", "25 MB"):
            self.assertIn(word, text)
        self.assertEqual(text.count("2 CPUs"), 1)

    def test_rows_that_differ_in_size_alone_share_a_line(self):
        self.assertEqual(document.by_size([("A over B, N = 2", "1"), ("C", "2"), ("A over B, N = 4, 4 B", "3"), ("D", ""), ("E, N = 8", "")]),
                         ["A over B: 1 at N = 2; 3 at N = 4, 4 B", "C: 2", "D", "E: at N = 8"])

    def test_rows_without_a_pair_or_a_goal_are_named_below_the_table(self):
        found = example()
        rows = part(found)["rows"]
        rows["none"] = dict(rows["shaped-4"], what="Open MPI over SwitchML, N = 8", goal=None, ratio=None)
        rows["open"] = dict(rows["shaped-4"], what="unmeasured goal", ratio=None)
        text = document.summary(found, [])
        self.assertIn("Measured, but without a pair that counts:\n\n- Open MPI over SwitchML: at N = 8\n", text)
        self.assertIn("| unmeasured goal | no pair | 0 |", text)

    def test_parts_of_a_benchmark_and_layers_of_all_reduces_are_tables(self):
        facts = dict(part(example())["runs"]["a"], suite="profile")
        core = {"what": "core", "nanoseconds": 80, "layers": [["addition", 0.75], ["headers", 0.25]]}
        whole = {"what": "loopback", "tat_seconds": 0.02, "packet_seconds": 2e-6, "idle": None, "layers": [["UDP and IP", 1]]}
        text = document.tables(results.merge(example(), ZEN3, {"rows": {}, "runs": {}, "profiles": dict(facts, cases={"c": core, "w": whole})}))
        for line in ("| core | 80 | addition 60, headers 20 |", "| UDP and IP | 100 % |", "| processor time of a packet of a rank | 2 µs |"):
            self.assertIn(line, text)

    def test_replaces_only_what_is_between_its_marks(self):
        with tempfile.TemporaryDirectory() as folder:
            numbers, page, beside = (os.path.join(folder, name) for name in ("results.json", "performance.md", "results-tables.md"))
            with open(page, "w", encoding="utf-8") as file:
                file.write(f"before\n{document.BEGIN}\nold\n{document.END}\nby hand\n")
            self.assertEqual(list(document.pages(example(), numbers, page)), [page, beside])
            document.update(example(), numbers, page)
            texts = {path: document.read(path) for path in (page, beside)}
            self.assertRegex(texts[page], re.compile(r"\Abefore\n.*Gloo over SwitchML.*\nby hand\n\Z", re.S))
            self.assertNotIn("old\n", texts[page])
            self.assertIn("All of shaped-4", texts[beside])
            self.assertEqual(document.pages(example(), numbers, page), texts)

    def test_check_finds_a_page_or_tables_that_is_not_what_the_numbers_give(self):
        with tempfile.TemporaryDirectory() as folder:
            numbers, *paths = (os.path.join(folder, name) for name in ("results.json", "performance.md", "results-tables.md"))
            results.write(numbers, example())
            with open(paths[0], "w", encoding="utf-8") as file:
                file.write(f"{document.BEGIN}\n{document.END}\n")

            def check():
                tool = os.path.join(ROOT, "bench/compare/document.py")
                return subprocess.run([sys.executable, "-B", tool, "--check", numbers, paths[0]], capture_output=True, text=True, check=False)
            self.assertEqual(check().returncode, 1)  # there are no tables yet
            document.update(example(), numbers, paths[0])
            self.assertEqual((check().returncode, check().stdout), (0, "ok\n"))
            for path in paths:
                document.update(example(), numbers, paths[0])
                with open(path, "r+", encoding="utf-8") as file:
                    text = file.read()
                    file.seek(0)
                    file.write(text.replace("SwitchML", "SwitchMl"))
                self.assertEqual(check().returncode, 1)
                self.assertIn(path + " is not what", check().stderr)

    def test_results_are_merged_by_row(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "results.json")
            results.write(path, example())
            other = {"rows": {"shaped-8": {"suite": "shaped"}, "shaped-4": {"suite": "new"}}, "runs": {}}
            found = results.merge(results.read(path), ZEN3, other)
            merged = part(found)
            self.assertEqual((merged["rows"]["shaped-4"]["suite"], set(merged["rows"]), set(merged["runs"])),
                             ("new", {"shaped-4", "shaped-8"}, {"a"}))
            self.assertEqual(results.merge(found, UNKNOWN, other)["processors"][results.name_of(ZEN3)], merged)
            self.assertEqual(os.listdir(folder), ["results.json"])


class Processors(unittest.TestCase):
    def both(self, first, second, **newer):
        """Two processors' rows: Zen 3 is A."""
        one, two = example(ZEN3), example(UNKNOWN)
        part(one)["rows"]["shaped-4"]["ratio"] = first and ratio(first)
        part(two)["rows"]["shaped-4"].update(newer, ratio=second and ratio(second))
        return {"processors": {**two["processors"], **one["processors"]}}

    def row(self, *ratios_of, **newer):
        return processors.rows(self.both(*ratios_of, **newer))[0]

    def test_a_goal_is_reached_if_it_is_on_every_processor(self):
        for pair, says, missed in (((1.6, 1.7), "reached", False), ((1.6, 1.2), "reached on A; not reached on B", True),
                                   ((1.5, 1.6), "not shown on A; reached on B", True), ((1.2, 1.1), "not reached", True),
                                   ((None, 1.6), "not measured on A; reached on B", False)):
            with self.subTest(pair=pair):
                row = self.row(*pair)
                self.assertEqual((row.verdict(), row.missed()), (says, missed))
        self.assertIn("| **reached on A; not reached on B** |", document.summary(self.both(1.6, 1.2), []))

    def test_a_row_that_one_processor_lacks_is_not_reached_on_every_one(self):
        found = self.both(1.6, 1.7)
        found["processors"][results.name_of(UNKNOWN)]["rows"] = {}
        row = processors.rows(found)[0]
        self.assertEqual((row.verdict(), row.ratio()), ("reached on A", "1.6 (1.5 to 1.7) on A"))

    def test_the_range_is_from_the_smallest_to_the_largest(self):
        row = self.row(1.6, 1.2)
        self.assertEqual(row.ratio(), "1.2 (1.1 to 1.3) on B to 1.6 (1.5 to 1.7) on A")
        self.assertEqual((self.row(0.5, 1.2).peer_wins(), self.row(0.5, 0.6).peer_wins(), row.peer_wins()), ("the peer wins on A", "the peer wins", ""))

    def test_the_goal_is_the_newest(self):
        self.assertEqual(self.row(1.4, 1.4, goal=1.2, date="2026-02-01").verdict(), "reached")
        self.assertEqual(self.row(1.4, 1.4, goal=1.2, date="2025-12-31").goal_text(), "≥ 1.45")

    def test_tables_keep_processors_apart(self):
        text = document.tables(self.both(1.6, 1.2))
        for word in ("Processor A, AMD EPYC (family 25", "Processor B, AMD EPYC (family, vector extensions, caches not recorded), 2026",
                     "### Shaped links: processor A", "### Shaped links: processor B"):
            self.assertEqual(text.count(word), 1, word)

    def test_what_the_system_tells_of_a_processor(self):
        with tempfile.TemporaryDirectory() as folder:
            for index, (level, kind, size) in enumerate((("1", "Data", "32K"), ("1", "Instruction", "64K"), ("2", "Unified", "512K"))):
                os.mkdir(os.path.join(folder, f"index{index}"))
                for name, text in (("level", level), ("type", kind), ("size", size)):
                    with open(os.path.join(folder, f"index{index}", name), "w", encoding="ascii") as file:
                        file.write(text + "\n")
            cpuinfo = os.path.join(folder, "cpuinfo")
            one = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx avx2 vpclmulqdq ht\n"
            with open(cpuinfo, "w", encoding="ascii") as file:
                file.write(one + "\n" + one.replace("EPYC", "Other"))
            told = machine.processor(cpuinfo, folder)
            self.assertEqual(told, {"model": "AMD EPYC", "family": "25 model 1", "vectors": ["avx", "avx2", "vpclmulqdq"],
                                    "caches": {"L1d": "32K", "L1i": "64K", "L2": "512K"}})
            with open(cpuinfo, "w", encoding="ascii") as file:
                file.write("processor\t: 0\n")
            self.assertEqual([value for name, value in machine.processor(cpuinfo, folder + "/none").items() if name != "model"], [None] * 3)


class Rates(unittest.TestCase):
    def test_the_least_idle_of_a_check_counts(self):
        text = "".join(f"H{i} -> H0   99.00 Mbit/s of TCP, ratio to the link 0.9990, {idle} % of the machine idle\n" for i, idle in ((1, 62), (2, 48), (3, 70)))
        self.assertEqual((places.least_idle(text), places.least_idle("")), (0.48, 0))


class Bounds(unittest.TestCase):
    def test_a_ring_of_two_is_as_good_as_the_network_and_of_many_not(self):
        # figures of a quiet machine: 25 MB over 200 Mbit/s in the network 1.05 s, a ring of four 1.57 s
        self.assertAlmostEqual(draw.in_network(6_250_000, "200mbit"), 1.05, delta=0.02)
        self.assertAlmostEqual(draw.ring(6_250_000, 4, "200mbit"), 1.57, delta=0.02)
        self.assertLess(draw.ring(6_250_000, 2, "200mbit"), draw.in_network(6_250_000, "200mbit"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
