#!/usr/bin/python3
"""ATP's figures on one machine, with real processes: how jobs share a switch, and what a second level of aggregation saves.

atp-sharing   throughput of three jobs and where their sums were made, with 100 %, 66 %, 33 % and none of the slots that they
              need, shared slot by slot and in fixed parts (Figure 13a); what the others get while one job pauses (13c); slots
              found by hash and by sequence number, for 1 to 8 jobs (Figure 14).
atp-racks     bytes that reach the parameter server from three racks, with a second level of aggregation and without (§5.2.2).

All processes share this machine's CPUs, which bound every figure here: ratios mean something, rates do not.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PACKET_ELEMENTS = 353  # fills 1500 bytes
WINDOW = 64            # chunks of a job under way: the slots that it needs


class Process:
    def __init__(self, netsum, *arguments):
        self.log = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen([netsum, *map(str, arguments)], stdout=subprocess.PIPE, stderr=self.log, text=True)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def complaint(self):
        self.log.seek(0)
        return self.log.read()[-1000:]


class Daemon(Process):
    def __init__(self, netsum, *arguments):
        super().__init__(netsum, *arguments, "--listen", "127.0.0.1:0")
        line = self.process.stdout.readline()
        if not line.startswith("listening "):
            raise SystemExit(f"netsum {arguments[0]} did not start: {self.complaint()}")
        self.address = line.split()[1]
        self.netsum = netsum

    def jobs(self):
        """Counters of the jobs that run, by name."""
        shown = subprocess.run([self.netsum, "status", "--switch", self.address, "--json"], capture_output=True, text=True)
        if shown.returncode != 0:
            return {}
        return {job["job"]: job["counters"] for job in json.loads(shown.stdout)["jobs"] if job["counters"]}


class Cluster:
    """Switches, one parameter server and jobs, for the length of a `with`."""

    def __init__(self, netsum, slots, server=(), parents=(None,)):
        """slots 0: no switch. parents: of each switch, the index of the next one on the way to the server."""
        self.netsum, self.parents = netsum, parents
        self.switches = [Daemon(netsum, "switch", "--pool-slots", slots, "--pool-elements", PACKET_ELEMENTS)
                         for _ in parents] if slots else []
        self.server = None
        self.server_arguments = server
        self.ranks = {}

    def __enter__(self):
        pairs = [f"{child.address}={self.switches[parent].address}" for child, parent in zip(self.switches, self.parents)
                 if parent is not None]
        more = ["--switch-parent", ",".join(pairs)] if pairs else []
        self.server = Daemon(self.netsum, "ps", "--slots", 1 << 20, *self.server_arguments, *more)
        return self

    def __exit__(self, *_):
        for ranks in self.ranks.values():
            for rank in ranks:
                rank.stop()
        for daemon in [self.server, *self.switches]:
            if daemon:
                daemon.stop()

    def start(self, job, places, elements, iterations):
        """places: the switch of each rank, as its index."""
        self.ranks[job] = [
            Process(self.netsum, "bench", "all-reduce", "--protocol", "atp", "--rank-report", "--ps", self.server.address,
                    *(["--switch", self.switches[place].address] if self.switches else []), "--job", job, "--rank", rank,
                    "--world-size", len(places), "--elements", elements, "--iterations", iterations, "--warmup", 1, "--slots", WINDOW,
                    "--packet-elements", PACKET_ELEMENTS, "--deadline", 300, "--connect-deadline", 60)
            for rank, place in enumerate(places)]

    def finish(self):
        """Reports of all ranks by job. Meanwhile the server's counters are looked at, as long as the jobs are there."""
        counters = {}
        done = threading.Event()

        def look():
            while not done.is_set():
                for job, values in self.server.jobs().items():
                    counters[job] = values
                done.wait(0.1)

        looker = threading.Thread(target=look)
        looker.start()
        reports = {}
        try:
            for job, ranks in self.ranks.items():
                reports[job] = []
                for rank in ranks:
                    out = rank.process.stdout.read()
                    if rank.process.wait() != 0:
                        raise SystemExit(f"a rank of {job} failed: {rank.complaint()}")
                    report = json.loads(out.strip().splitlines()[-1])
                    if report["wrong"] != 0:
                        raise SystemExit(f"{report['wrong']} wrong elements in {job}")
                    reports[job].append(report)
        finally:
            done.set()
            looker.join()
        return reports, counters


def gbps(ranks, elements):
    """Of a job: the tensor's bits per time of its slowest rank, median over iterations."""
    times = [max(times) for times in zip(*(rank["nanoseconds"] for rank in ranks))]
    return elements * 32 / statistics.median(times)


def in_network(counters, workers):
    """The share of all ranks' packets that reached the server inside a sum."""
    single = counters["added_single"]
    return 1 - single / max(1, counters["chunks"] * workers)


def share(options, jobs, workers, percent, how):
    """Throughput and share summed in the network, by job."""
    slots = jobs * WINDOW * percent // 100
    server = {"dynamic": [], "static": ["--parts", jobs], "linear": ["--indexing", "linear"]}[how]
    if how == "static" and slots == 0:
        return None  # nobody could run
    with Cluster(options.netsum, slots, server) as cluster:
        for job in range(jobs):
            cluster.start(f"job{job}", [0] * workers, options.elements, options.iterations)
        reports, counters = cluster.finish()
    return [{"gbps": gbps(reports[name], options.elements), "in_network": in_network(counters[name], workers)}
            for name in sorted(reports)]


def jain(values):
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values))


def median_of(runs):
    """Of repeated runs of one setting: medians by job."""
    return [{key: statistics.median(run[job][key] for run in runs) for key in runs[0][job]} for job in range(len(runs[0]))]


def table(rows, header):
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths)))


def pause(options):
    """Completed sums of three jobs at a switch with a third of the slots, every 100 ms, while the last job stops for a while."""
    samples, workers = [], 2
    with Cluster(options.netsum, 3 * WINDOW // 3) as cluster:
        for job in range(3):
            cluster.start(f"job{job}", [0] * workers, options.elements, 1_000_000)
        switch, begin, stopped = cluster.switches[0], time.monotonic(), []
        while (now := time.monotonic() - begin) < 9:
            sample = {job: c["completed"] for job, c in switch.jobs().items()}
            if len(sample) == 3:
                samples.append((now, sample))
            if not stopped and now > 4:
                stopped = [now]
                for rank in cluster.ranks["job2"]:
                    rank.process.send_signal(signal.SIGSTOP)
            if len(stopped) == 1 and now > 6:
                stopped.append(now)
                for rank in cluster.ranks["job2"]:
                    rank.process.send_signal(signal.SIGCONT)
            time.sleep(0.1)
    rates = [(b[0], {job: (b[1][job] - a[1][job]) / (b[0] - a[0]) for job in b[1]}) for a, b in zip(samples, samples[1:])]
    return rates, stopped


def sharing(options):
    results = {"slots": {}, "indexing": {}}
    settings = [(percent, how) for percent in (100, 66, 33, 0) for how in ("dynamic", "static")]
    runs = {setting: [] for setting in settings}
    for repeat in range(options.repeats):  # interleaved: what else the machine does meets all of them
        for setting in settings:
            print(f"  repeat {repeat + 1}: {setting[0]} % of the slots, {setting[1]}", file=sys.stderr)
            if (result := share(options, 3, 4, *setting)) is not None:
                runs[setting].append(result)
    rows = []
    for (percent, how), each in runs.items():
        if not each:
            rows.append([f"{percent} %", how, "-", "-", "-", "-", "-"])
            continue
        jobs = median_of(each)
        results["slots"][f"{percent} {how}"] = jobs
        rates = [job["gbps"] for job in jobs]
        inside = statistics.mean(job["in_network"] for job in jobs)
        rows.append([f"{percent} %", how, *(f"{rate:.2f}" for rate in rates), f"{jain(rates):.3f}", f"{100 * inside:.0f} %"])
    print(f"three jobs of 4 workers, {options.elements} elements; Gbit/s of each (Figure 13a)")
    table(rows, ["slots", "sharing", "job 0", "job 1", "job 2", "Jain", "in network"])

    rows = []
    for jobs in (1, 2, 4, 8):
        each = {how: [] for how in ("dynamic", "linear", "static")}
        for repeat in range(options.repeats):
            for how in each:
                print(f"  repeat {repeat + 1}: {jobs} jobs, {how}", file=sys.stderr)
                each[how].append(share(options, jobs, 2, 100, how))
        row = [jobs]
        for how, them in each.items():
            result = median_of(them)
            results["indexing"][f"{jobs} {how}"] = result
            row += [f"{sum(job['gbps'] for job in result):.2f}", f"{100 * statistics.mean(job['in_network'] for job in result):.0f} %"]
        rows.append(row)
    print("\njobs of 2 workers with all the slots that they need; Gbit/s of all together, and share summed in the network (Figure 14)")
    table(rows, ["jobs", "hash", "", "linear", "", "static", ""])

    rates, stopped = pause(options)
    results["pause"] = {"rates": rates, "stopped": stopped}
    before = [r for t, r in rates if 1 < t < stopped[0]]
    during = [r for t, r in rates if stopped[0] + 0.3 < t < stopped[1]]
    print("\nsums completed at the switch per second, while job 2 runs and while it pauses (Figure 13c)")
    table([[job, *(f"{statistics.median(r[job] for r in part):.0f}" for part in (before, during))] for job in ("job0", "job1", "job2")],
          ["", "runs", "pauses"])
    return results


def racks(options):
    """Two ranks in each of three racks; the third's switch is the parameter server's own."""
    rows, results = [], {}
    for name, parents in (("two levels", [2, 2, None]), ("racks only", [None, None, None])):
        with Cluster(options.netsum, 4096, parents=parents) as cluster:
            cluster.start("job", [0, 0, 1, 1, 2, 2], options.elements, options.iterations)
            reports, counters = cluster.finish()
        c = counters["job"]
        results[name] = {"bytes_per_chunk": c["bytes"] / c["chunks"], "gbps": gbps(reports["job"], options.elements)}
        rows.append([name, f"{c['bytes'] / c['chunks']:.0f}", f"{100 * c['added_complete'] / c['chunks']:.1f} %",
                     f"{results[name]['gbps']:.2f}"])
    print(f"six workers in three racks, {options.elements} elements (§5.2.2)")
    table(rows, ["aggregation", "bytes at the server per chunk", "chunks that came whole", "Gbit/s"])
    ratio = results["racks only"]["bytes_per_chunk"] / results["two levels"]["bytes_per_chunk"]
    print(f"racks only / two levels: {ratio:.2f} (the paper: 3)")
    results["ratio"] = ratio
    return results


def plot(results, folder):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4))
    for how, mark in (("dynamic", "o-"), ("static", "s--")):
        points = [(int(key.split()[0]), statistics.mean(job["gbps"] for job in jobs))
                  for key, jobs in results["slots"].items() if key.endswith(how)]
        left.plot(*zip(*points), mark, label=how)
    left.set(title="three jobs (Figure 13a)", xlabel="% of the slots that they need", ylabel="Gbit/s of a job", ylim=0)
    left.legend()
    for how, mark in (("dynamic", "o-"), ("linear", "^:"), ("static", "s--")):
        points = [(int(key.split()[0]), 100 * statistics.mean(job["in_network"] for job in jobs))
                  for key, jobs in results["indexing"].items() if key.endswith(how)]
        middle.plot(*zip(*points), mark, label="hash" if how == "dynamic" else how)
    middle.set(title="slots found (Figure 14)", xlabel="jobs", ylabel="% summed in the network", ylim=(0, 105))
    middle.legend()
    for job in ("job0", "job1", "job2"):
        right.plot([t for t, _ in results["pause"]["rates"]], [r[job] for _, r in results["pause"]["rates"]], label=job)
    for at in results["pause"]["stopped"]:
        right.axvline(at, color="grey", linewidth=0.5)
    right.set(title="job 2 pauses (Figure 13c)", xlabel="s", ylabel="sums per second at the switch", ylim=0)
    right.legend()
    figure.tight_layout()
    figure.savefig(os.path.join(folder, "atp-sharing.png"))
    print(f"\n{os.path.join(folder, 'atp-sharing.png')}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--netsum", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--output", required=True, help=argparse.SUPPRESS)
    parser.add_argument("what", choices=("atp-sharing", "atp-racks"))
    parser.add_argument("--elements", type=int, default=400_000, help="of each tensor")
    parser.add_argument("--iterations", type=int, default=12, help="all-reduces of each job")
    parser.add_argument("--repeats", type=int, default=3, help="of each setting, interleaved")
    parser.add_argument("--quick", action="store_true", help="a few iterations, once")
    options = parser.parse_args()
    if options.quick:
        options.elements, options.iterations, options.repeats = 100_000, 4, 1
    os.makedirs(options.output, exist_ok=True)
    results = sharing(options) if options.what == "atp-sharing" else racks(options)
    with open(os.path.join(options.output, options.what + ".json"), "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
    if options.what == "atp-sharing":
        plot(results, options.output)


if __name__ == "__main__":
    main()
