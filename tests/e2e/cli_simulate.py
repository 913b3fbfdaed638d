#!/usr/bin/python3
"""netsum simulate: its flags, its JSON, its traces, and that a seed is a run."""
import csv
import io
import json
import os
import statistics
import struct
import tempfile
import unittest
import xml.etree.ElementTree

import cli_support as cli

KEYS = {"protocol", "faults_profile", "workers", "jobs", "seeds", "first_seed", "real_seconds", "virtual_seconds",
        "virtual_over_real", "packets", "operations", "errors", "live_faults", "faults", "rare_events", "median_seed", "failed",
        "trace_hash"}


def simulate(*arguments):
    return json.loads(cli.checked(cli.run("simulate", "--json", *arguments)).stdout)


class Simulate(unittest.TestCase):
    def test_json(self):
        report = simulate("--workers", "2..16", "--faults", "chaos", "--seeds", "1..40")
        self.assertEqual(set(report), KEYS)
        self.assertEqual(report["seeds"], 40)
        self.assertEqual(report["failed"], [])
        self.assertGreater(report["packets"], 10_000)
        self.assertGreater(report["virtual_seconds"], 40)
        self.assertGreater(report["faults"]["loss"], 100)
        self.assertGreater(report["rare_events"]["switch_repeats_answered"], 100)
        self.assertGreaterEqual(report["median_seed"]["operations"], 3)

    def test_a_seed_is_a_run_whatever_the_threads(self):
        one = simulate("--seeds", "5..24", "--threads", "1")
        two = simulate("--seeds", "5..24", "--threads", "2")
        other = simulate("--seeds", "6..25", "--threads", "2")
        self.assertEqual(one["trace_hash"], two["trace_hash"])
        self.assertNotEqual(one["trace_hash"], other["trace_hash"])
        for key in ("packets", "faults", "rare_events"):
            self.assertEqual(one[key], two[key])

    def test_limits_take_away(self):
        report = simulate("--seeds", "1..20", "--limit", "workers=2,operations=1,jobs=1,without=loss+burst")
        self.assertEqual(report["faults"]["loss"], 0)
        self.assertEqual(report["faults"]["burst"], 0)
        self.assertGreater(report["faults"]["duplicate"], 0)
        self.assertLessEqual(report["operations"], 20 * 2)

    def test_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "seed7")
            report = simulate("--faults", "lossy", "--seeds", "7", "--trace", prefix)
            with open(prefix + ".txt", encoding="utf-8") as file:
                text = file.read()
            self.assertIn("seed 7, lossy", text)
            self.assertIn("LOST (loss)", text)
            self.assertIn("everything held", text)
            times = self.read_pcap(prefix + ".pcap")
        self.assertEqual(times, sorted(times))
        self.assertEqual(len(times), report["packets"])

    def read_pcap(self, path):
        """When each packet was sent."""
        with open(path, "rb") as file:
            data = file.read()
        magic, major, minor, _, _, _, link = struct.unpack_from("<IHHIIII", data)
        self.assertEqual((magic, major, minor, link), (0xA1B23C4D, 2, 4, 101))
        place, times = 24, []
        while place < len(data):
            seconds, nanoseconds, kept, length = struct.unpack_from("<IIII", data, place)
            self.assertEqual(kept, length)
            times.append(seconds + nanoseconds / 1e9)
            place += 16 + kept
        return times

    def test_what_is_too_rare_fails(self):
        result = cli.run("simulate", "--seeds", "1..5", "--least", "1000000")
        self.assertEqual(result.returncode, 1)
        self.assertIn("'crash' came up only", result.stderr)

    def test_bad_usage(self):
        for words in (["--protocol", "x"], ["--faults", "rain"], ["--workers", "0"], ["--workers", "3..2"],
                      ["--workers", "5000"], ["--jobs", "x"], ["--seeds", "1.."], ["--seeds", "-1"], ["--seeds", "1..999999999999"],
                      ["--limit", "rain=1"], ["--limit", "workers"], ["--limit", "without=rain"],
                      ["--seeds", "1..2", "--trace", "x"], ["--seeds", "1", "--trace", "/nonexistent/x"]):
            with self.subTest(words=words):
                result = cli.run("simulate", *words)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertRegex(result.stderr, r"\Anetsum: [^\n]+\n\Z")

    # They were ignored, without a word.
    def test_a_scenario_takes_no_flags_of_seeds(self):
        scenario = ["--scenario", os.path.join(os.path.dirname(__file__), "../../examples/scenarios/star.toml")]
        for words in (["--protocol", "atp"], ["--trace", "x"], ["--workers", "2"], ["--jobs", "1"],
                      ["--faults", "none"], ["--limit", "jobs=1"], ["--least", "1"], ["--first-failure"], ["--no-shrink"]):
            with self.subTest(words=words):
                result = cli.run("simulate", *scenario, *words)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stderr, f"netsum: {words[0]} does not apply to --scenario: its FILE has its own `protocol` and `seed`\n")
        for flag in ("--threads", "--output"):
            result = cli.run("simulate", *scenario, flag, "2")
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"{flag} does not apply to one run", result.stderr)
        result = cli.run("simulate", "--seeds", "1", "--level", "flow")
        self.assertEqual((result.returncode, result.stderr), (2, "netsum: --level requires --scenario FILE\n"))

    def scenario(self, text):
        path = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "scenario.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_what_a_level_cannot_do_is_told_with_its_place(self):
        path = self.scenario('''[network]
hosts = 2
link = { rate = "1gbit", buffer = "40kB" }
[[job]]
elements = 1000
[output]
series = "job.job0.colour"
''')
        for level, place in (("packet", "line 7: `output.series` has no counter of ranks 'colour'"),
                             ("flow", "line 1: `network` has a buffer of 40000 bytes at h0.up")):
            result = cli.run("simulate", "--scenario", path, "--level", level)
            self.assertEqual(result.returncode, 2)
            self.assertRegex(result.stderr, rf"\Anetsum: {path}, {place}[^\n]*\n\Z")

    SWEPT = '''ties = "random"
network = { hosts = 3, link = { rate = "1gbit", loss = 0.01 } }
job = [{ elements = 20_000, iterations = 3 }]
'''

    def sweep(self, path, *words):
        result = cli.run("simulate", "--scenario", path, "--output", path + "-out", *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        files = {}
        for end in (".jsonl", ".csv", "-summary.csv", ".svg"):
            with open(path + "-out" + end, encoding="utf-8") as file:
                files[end] = file.read()
        return files, result

    def test_a_sweep_runs_all_values_and_seeds(self):
        words = ("--set", "job.slots=8,32", "--set", "network.link.rate=1gbit,10gbit", "--seeds", "3..7", "--json")
        path = self.scenario(self.SWEPT)
        files, result = self.sweep(path, *words, "--threads", "2")
        rows = list(csv.DictReader(io.StringIO(files[".csv"])))
        self.assertEqual([(row["job.slots"], row["network.link.rate"], row["seed"]) for row in rows],
                         [(slots, rate, str(seed)) for slots in ("8", "32") for rate in ("1gbit", "10gbit") for seed in range(3, 8)])
        for row in rows:  # each as the scenario by itself
            if row["seed"] != "5":
                continue
            text = self.SWEPT.replace("1gbit", row["network.link.rate"]).replace("iterations", f"slots = {row['job.slots']}, iterations")
            job = simulate("--scenario", self.scenario("seed = 5\n" + text))["jobs"][0]
            self.assertAlmostEqual(float(row["tat_ms"]), job["tat_seconds"]["median"] * 1e3, 9)
        points = json.loads(result.stdout)
        self.assertEqual(len(points), 4)
        times = sorted(float(row["tat_ms"]) for row in rows[:5])
        tat = points[0]["tat_ms"]
        mean, deviation = statistics.mean(times), statistics.stdev(times)
        self.assertAlmostEqual(tat["median"], times[2], 9)
        self.assertAlmostEqual(tat["p5"], times[0], 9)
        self.assertAlmostEqual(tat["p95"], times[4], 9)
        self.assertAlmostEqual(tat["mean_high"] - mean, 2.776 * deviation / 5 ** 0.5, 6)  # Student's t, 4 degrees of freedom
        self.assertEqual(len(files["-summary.csv"].splitlines()), 1 + 4)
        self.assertEqual(xml.etree.ElementTree.fromstring(files[".svg"]).tag, "{http://www.w3.org/2000/svg}svg")

    def test_a_sweep_goes_on_where_it_was_cut_off(self):
        path = self.scenario(self.SWEPT + '[sweep]\n"job[0].slots" = [8, 16]\nseeds = "1..4"\n')
        whole, _ = self.sweep(path)
        lines = whole[".jsonl"].splitlines(keepends=True)
        self.assertEqual(len(lines), 8)
        marked = [line.replace('"lost":', '"lost":1000') for line in lines[:3]]
        with open(path + "-out.jsonl", "w", encoding="utf-8") as file:
            file.write("".join(marked) + lines[3][:20])
        resumed, result = self.sweep(path)
        self.assertIn("3 of 8 runs are in", result.stderr)
        self.assertEqual(sorted(resumed[".jsonl"].splitlines(keepends=True)), sorted(marked + lines[3:]), "three were not run again")
        with open(path, "a", encoding="utf-8") as file:
            file.write("# another one\n")
        result = cli.run("simulate", "--scenario", path, "--output", path + "-out")
        self.assertEqual(result.returncode, 2)
        self.assertIn("holds runs of another scenario", result.stderr)

    def test_a_sweep_says_what_is_wrong(self):
        path = self.scenario('network = { hosts = 2 }\njob = [{ elements = 1000 }]\n')
        for words, why in ((["job.slots=3"], "are not a power of two up to 4096; this is with job.slots=3"), (["job.sluts=1"], "did you mean `slots`"),
                           (["job[1].slots=8"], "there is no 'job[1]'"), (["slots"], "--set is KEY=A,B,C"), (["job.slots="], "has no value")):
            result = cli.run("simulate", "--scenario", path, "--output", path, "--set", *words)
            self.assertEqual(result.returncode, 2)
            self.assertIn(why, result.stderr)
        for sweep, why in (('seeds = "10..1"', 'line 4: `sweep.seeds` is like "1..10", and not'), ('"job.slots" = []', "line 4: `sweep.job.slots` is a list"),
                           ('"job.slots" = [64, 3]', "line 4: `job[0].slots` is wrong: 3 slots"), ('"job.sluts" = [3]', "line 4: `job[0].sluts` is an unknown key")):
            path = self.scenario(f"network = {{ hosts = 2 }}\njob = [{{ elements = 1000 }}]\n[sweep]\n{sweep}\n")
            result = cli.run("simulate", "--scenario", path, "--output", path)
            self.assertEqual(result.returncode, 2)
            self.assertIn(why, result.stderr)
        path = self.scenario('network = { hosts = 2, link = { rate = "1gbit" } }\njob = [{ elements = 1000 }]\n')
        self.assertIn("all seeds are alike", self.sweep(path, "--seeds", "1..2")[1].stderr)

    def test_trees_of_more_ranks_than_a_papers_switch_has_bits(self):
        """More than 1,024, beside losses: each result is compared with its sum."""
        for protocol in ("atp", "netreduce"):
            path = self.scenario(f'''protocol = "{protocol}"
                                     network = {{ kind = "tree", fan_out = [33, 34], link = {{ rate = "10gbit", delay = "1us", loss = 0.0005 }} }}
                                     aggregation = {{ switches = "all" }}
                                     job = [{{ elements = 4000, slots = {64 if protocol == "atp" else 4} }}]''')
            job = simulate("--scenario", path)["jobs"][0]
            self.assertEqual((job["ranks"], job["tat_seconds"]["count"]), (1122, 1))
            self.assertGreater(job["retransmissions"], 0)

    def test_what_nothing_would_come_of(self):
        for top, job, why in (("", 'start = "2s", stop = "1s"', "line 2: `job[0].stop` must be later than start"),
                              ("", 'trace = "none.csv"', "line 2: `job[0].trace` is wrong: cannot read"),
                              ("", "", "line 1: `network.link` has a buffer of 100 bytes at h0, and packets of job 'job0' have 1024"),
                              ('end = "0s"\n', "", "line 1: `end` must be longer than 0")):
            link = "" if top or job else ', link = { buffer = "100B" }'
            path = self.scenario(f"{top}network = {{ hosts = 2{link} }}\njob = [{{ elements = 1000{', ' if job else ''}{job} }}]\n")
            result = cli.run("simulate", "--scenario", path)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn(why, result.stderr)

    def test_times_of_each_rank(self):
        path = self.scenario('''network = { hosts = 3, link = { rate = "1gbit" } }
                                job = [{ elements = 5000, iterations = 4, straggler = [{ hosts = "h2", late = "1ms" }] }]''')
        job = simulate("--scenario", path, "--times", path + ".csv")["jobs"][0]
        with open(path + ".csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(sorted((int(row["operation"]), int(row["rank"])) for row in rows), [(i, k) for i in range(4) for k in range(3)])
        tat = []
        for operation in range(4):
            of = [row for row in rows if row["operation"] == str(operation)]
            tat.append(max(float(row["result_seconds"]) for row in of) - min(float(row["called_seconds"]) for row in of))
            called = {row["rank"]: float(row["called_seconds"]) for row in of}
            self.assertAlmostEqual(called["2"] - called["0"], 1e-3, 5)
        self.assertAlmostEqual(statistics.median(tat), job["tat_seconds"]["median"], 8)

    def test_packets_and_series_go_into_files(self):
        path = self.scenario('''network = { hosts = 3, link = { rate = "1gbit" } }
                                job = [{ elements = 50_000, iterations = 3 }]
                                output = { series = ["link.*.queue", "job.job0.bytes"], bin = "100us" }''')
        report = simulate("--scenario", path, "--series", path + ".csv", "--pcap", path + ".pcap")
        self.assertEqual(len(self.read_pcap(path + ".pcap")), report["packets"])
        with open(path + ".csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        links = {f"link.h{i}.{way}.queue" for i in range(3) for way in ("up", "down")}
        self.assertEqual(set(rows[0]), {"seconds", "job.job0.bytes"} | links)
        self.assertEqual([float(row["seconds"]) for row in rows[:3]], [1e-4, 2e-4, 3e-4])
        self.assertGreater(max(float(row["link.h0.up.queue"]) for row in rows), 1000)
        self.assertIn(sum(float(row["job.job0.bytes"]) for row in rows), (400_000, 600_000))  # the last may end behind the last bin
        bare = self.scenario('network = { hosts = 2 }\njob = [{ elements = 1000 }]\n')
        for words, why in ((("--series", path + ".csv"), "requires the key series in [output]"), (("--pcap", path, "--level", "flow"), "requires --level packet")):
            result = cli.run("simulate", "--scenario", bare, *words)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn(why, result.stderr)

    def test_jobs_arrive_at_random_and_compute_as_a_trace_says(self):
        text = '''seed = 5
                  network = { hosts = 2, link = { rate = "10gbit" } }
                  [[job]]
                  name = "j"
                  copies = 4
                  arrivals = "10ms"
                  iterations = 4
                  trace = "factors.csv"
                  bucket = [{ elements = 100, backward = "1ms" }]'''
        bad = cli.run("simulate", "--scenario", self.scenario(text.replace("factors.csv", self.scenario("# factors\n1,5x\n"))))
        self.assertEqual((bad.returncode, bad.stderr.count("\n")), (2, 1), bad.stderr)
        self.assertIn("line 2 has '5x': each cell must be a number", bad.stderr)
        text = text.replace("factors.csv", self.scenario("# ranks 0 and 1\n1,1\n1,5\n"))
        jobs = simulate("--scenario", self.scenario(text))["jobs"]
        self.assertEqual([job["name"] for job in jobs], [f"j-{i}" for i in range(4)])
        gaps = [later["first"] - job["first"] for job, later in zip(jobs, jobs[1:])]
        self.assertTrue(all(gap > 0 for gap in gaps) and len(set(gaps)) == 3, gaps)
        for job in jobs:
            for i, seconds in enumerate(job["iterations"]):
                self.assertAlmostEqual(seconds, (1e-3, 5e-3)[i % 2], delta=1e-4)
        again = simulate("--scenario", self.scenario(text))["jobs"]
        self.assertEqual([job["first"] for job in jobs], [job["first"] for job in again])
        other = simulate("--scenario", self.scenario(text.replace("seed = 5", "seed = 6")))["jobs"]
        self.assertNotEqual([job["first"] for job in jobs], [job["first"] for job in other])

    def test_each_job_may_have_a_protocol_of_its_own(self):
        def tat(*jobs):
            path = self.scenario('network = { hosts = 9, link = { rate = "1gbit" } }\n' + "".join(f"[[job]]\n{job}" for job in jobs))
            report = simulate("--scenario", path)
            return [(job["protocol"], job["tat_seconds"]["median"]) for job in report["jobs"]]
        protocols = "switchml", "atp", "netreduce"
        apart = [f'protocol = "{each}"\nhosts = "h{3 * i}..h{3 * i + 2}"\nelements = 50_000\n' for i, each in enumerate(protocols)]
        alone = [tat(job)[0] for job in apart]
        self.assertEqual([each for each, _ in alone], list(protocols))
        self.assertEqual(tat(*apart), alone, "they share no link but the aggregators' own, which has no bound")
        shared = tat(*(job.replace(f"h{3 * i}..h{3 * i + 2}", "h0..h2") for i, job in enumerate(apart)))
        for (_, together), (protocol, seconds) in zip(shared, alone):
            self.assertGreater(together, 1.5 * seconds, protocol)

    def test_the_median_of_two_is_their_mean(self):
        job = simulate("--scenario", self.scenario('''network = { hosts = 2, link = { rate = "1gbit" } }
                                                   job = [{ bucket = [{ elements = 1000 }, { elements = 9000 }] }]'''))["jobs"][0]
        self.assertEqual(job["tat_seconds"]["count"], 2)
        self.assertAlmostEqual(job["tat_seconds"]["median"], job["tat_seconds"]["mean"], 9)


if __name__ == "__main__":
    cli.main()
