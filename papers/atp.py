#!/usr/bin/python3
"""ATP's figures with real processes on both sides of a bottleneck link: prints tables, and plots into build/reproduce.

atp-sharing      throughput of three jobs and where their sums are made, with 100 %, 66 %, 33 % and none of the slots that they
                 need, shared slot by slot and in fixed parts (Figure 13a); slots found by hash and by sequence number, for 1 to 8
                 jobs (Figure 14); whose the slots are while one job pauses (Figure 13c).
atp-racks        bytes that reach the parameter server from three racks, with a second level of aggregation and without (§5.2.2).
atp-congestion   a job beside a TCP flow (Figure 16), over IPv6 too, and alone where it finds half of its slots (Figure 15), with
                 and without congestion control. SwitchML, which has none, beside the TCP flow.
atp-fallbacks    what it costs that sums do not fit, and are made again from floats (§3.8): by the share of chunks of which that is so.

Switches and workers are at the left of the link and the parameter server at its right, unless said otherwise. The link is slow,
so that it is what bounds the jobs, and not this machine's CPUs. Every sum of every run is checked. Needs root.
"""
import argparse
import contextlib
import json
import math
import os
import random
import signal
import statistics
import sys
import threading
import time

from cluster import Cluster, Rank, Sampler, TcpFlow, Testbed
from network import Daemon
from output import plot, say, table
from ratios import interval

PACKET_ELEMENTS = {4: 353, 6: 348}  # fill 1500 bytes
LINK = {"rate": "100mbit", "delay": "5ms", "queue": "500kB", "mark": "125kB"}
ROUND_TRIP = 0.01  # of it, empty
ALONE = 3  # seconds that TCP has the link before the job begins, and after it


def full_link(mbit):
    """A link whose queue marks beyond an empty round trip, and drops beyond four."""
    kilobytes = round(mbit * ROUND_TRIP * 1000 / 8)
    return {"rate": f"{mbit}mbit", "delay": "5ms", "queue": f"{4 * kilobytes}kB", "mark": f"{kilobytes}kB"}


def chunks_of(elements, version=4):
    return math.ceil(elements / PACKET_ELEMENTS[version])


# ---- sharing a switch

def share(jobs, workers, window, percent, how, options, link=LINK):
    """Of each job: Mbit/s of tensor, and the share of its ranks' packets that reached the server inside a sum, while all ran; and
    how much of the link to the server was used."""
    slots = jobs * window * percent // 100
    server = {"dynamic": [], "static": ["--parts", jobs], "hash": ["--indexing", "hash"], "linear": ["--indexing", "linear"]}[how]
    with Testbed(**link) as bed, Cluster(bed.R0, [(bed.L0, slots)] if slots else [], *server,
                                         packet_elements=PACKET_ELEMENTS[4]) as cluster:
        names = [f"job{job}" for job in range(jobs)]
        for name in names:
            cluster.start(name, [(bed.L0, 0 if slots else None)] * workers, window=window, elements=options.elements,
                          iterations=options.iterations)
        with Sampler(0.05, cluster.server.jobs) as sampler:
            cluster.finish()
        check(bed)
        lines = bed.link()
    each = chunks_of(options.elements)  # the warm-up's are left out
    during = [(now, seen) for now, seen in sampler.samples
              if all(each <= seen.get(name, {}).get("chunks", 0) < each * (1 + options.iterations) for name in names)]
    if len(during) < 3:
        raise SystemExit(f"{jobs} jobs ran together for less than 0.1 s: more --iterations are needed")
    (begin, first), (end, last) = during[0], during[-1]
    lines = [line for line in lines if begin <= line["time"] <= end]
    used = (lines[-1]["bytes"] - lines[0]["bytes"]) * 8 / (lines[-1]["time"] - lines[0]["time"]) / float(link["rate"].removesuffix("mbit")) / 1e6
    result = []
    for name in names:
        chunks, single = (last[name][counter] - first[name][counter] for counter in ("chunks", "added_single"))
        result.append({"mbps": chunks * PACKET_ELEMENTS[4] * 32 / (end - begin) / 1e6,
                       "in_network": 1 - single / max(1, chunks * workers), "link": used})
    return result


def check(bed):
    """A run in which this machine was too slow for the link shows nothing."""
    for direction in ("left-to-right", "right-to-left"):
        if (overrun := bed.link(direction)[-1]["overrun"]) != 0:
            raise SystemExit(f"{overrun} packets never reached the bottleneck's queue: this machine is too slow, or too busy")


def jain(values):
    return sum(values) ** 2 / (len(values) * sum(v * v for v in values))


def mean_rate(run):
    return statistics.mean(job["mbps"] for job in run)


def median_of(runs):
    """Of repeated runs of one setting: medians by job, and of Jain's index."""
    each = [{key: statistics.median(run[job][key] for run in runs) for key in runs[0][job]} for job in range(len(runs[0]))]
    return {"each": each, "jain": statistics.median(jain([job["mbps"] for job in run]) for run in runs),
            "mbps": statistics.median(sum(job["mbps"] for job in run) for run in runs),
            "in_network": statistics.median(statistics.mean(job["in_network"] for job in run) for run in runs),
            "link": statistics.median(run[0]["link"] for run in runs)}


def interleaved(settings, repeats, run):
    """What `run` measures in each setting, in turn: what else the machine does meets all of them."""
    runs = {setting: [] for setting in settings}
    for repeat in range(repeats):
        for setting in settings:
            say(f"repeat {repeat + 1} of {repeats}: {', '.join(map(str, setting))}")
            runs[setting].append(run(*setting))
    return runs


def with_interval(values):
    it = interval(values, random.Random(1))
    return f"{it['median']:.2f} ({it['low']:.2f} to {it['high']:.2f})"


def percentage(share):
    return f"{100 * share:.0f} %"


def too_few_slots(workers, window, percents, options, link=LINK):
    """Three jobs at a switch with so many per cent of the slots that they need, shared slot by slot and in fixed parts."""
    settings = [(percent, how) for percent in percents for how in ("dynamic", "static") if percent or how == "dynamic"]
    runs = interleaved(settings, options.repeats, lambda percent, how: share(3, workers, window, percent, how, options, link))
    slots = {setting: median_of(each) for setting, each in runs.items()}
    print(f"\nThree jobs of {workers} workers, a link of {link['rate']}; Mbit/s of each, and where its workers' packets were added up (Figure 13a)")
    table([[percentage(percent / 100), how, *(f"{job['mbps']:.1f}" for job in it["each"]), f"{it['jain']:.3f}",
            percentage(it["in_network"]), percentage(1 - it["in_network"]), percentage(it["link"])]
           for (percent, how), it in slots.items()],
          ["slots", "sharing", "job 0", "job 1", "job 2", "Jain", "at the switch", "at the server", "of the link"])
    for percent in percents:
        if percent:
            ratios = [mean_rate(one) / mean_rate(other) for one, other in zip(runs[percent, "dynamic"], runs[percent, "static"])]
            print(f"{percent} % of the slots: a job's Mbit/s, dynamic over static: {with_interval(ratios)}")
    return [{"percent": percent, "how": how, **it} for (percent, how), it in slots.items()]


def finding_slots(window, options):
    hows = ("dynamic", "hash", "linear", "static")
    runs = interleaved([(jobs, how) for jobs in (1, 2, 4, 8) for how in hows], options.repeats,
                       lambda jobs, how: share(jobs, 2, window // 2, 100, how, options))
    indexing = {setting: median_of(each) for setting, each in runs.items()}
    print("\nJobs of 2 workers with all the slots that they need; Mbit/s of all, and added up at the switch (Figure 14)")
    table([[jobs, *(text for how in hows for text in (f"{indexing[jobs, how]['mbps']:.1f}",
                                                      percentage(indexing[jobs, how]["in_network"])))]
           for jobs in (1, 2, 4, 8)],
          ["jobs", "hash", "", "no rehash", "", "linear", "", "static", ""])
    return [{"jobs": jobs, "how": how, **it} for (jobs, how), it in indexing.items()]


WINDOW = 16
SHARED = {"slots": lambda options: too_few_slots(4, WINDOW, (100, 66, 33, 0), options),
          "full link": lambda options: too_few_slots(2, WINDOW, (100, 66, 33), options, full_link(58)),  # three windows a round trip
          "fuller link": lambda options: too_few_slots(2, WINDOW, (66,), options, full_link(46)),
          "indexing": lambda options: finding_slots(WINDOW, options),
          "pause": lambda options: pause(WINDOW, options)}


def sharing(options):
    return {name: run(options) for name, run in SHARED.items() if options.only in (None, name)}


class Pauses:
    """Stops a job's ranks between two all-reduces, each after the same one, lets them go on after a while, and so on."""
    length, between = 0.6, 1.0

    def __init__(self, ranks):
        self.ranks, self.times = ranks, []  # (stopped, went on)
        self.reached, self.target, self.stopped = [0] * len(ranks), math.inf, threading.Semaphore(0)
        for at, rank in enumerate(ranks):
            rank.on_line = lambda line, at=at: self.on_line(at, line)

    def on_line(self, at, line):
        if line.startswith("iteration "):
            self.reached[at] = int(line.split()[1])
            if self.reached[at] == self.target:
                self.ranks[at].process.send_signal(signal.SIGSTOP)
                self.stopped.release()

    def run(self):
        while True:
            time.sleep(self.between)
            self.target = max(self.reached) + 2  # which nobody has begun: one that goes on would wait for the others within it
            if not all(self.stopped.acquire(timeout=5) for _ in self.ranks):
                return  # they have ended
            stopped = time.monotonic()
            time.sleep(self.length)
            for rank in self.ranks:
                rank.process.send_signal(signal.SIGCONT)
            self.times.append((stopped, time.monotonic()))


def pause(window, options):
    """Three jobs at a switch with a third of the slots, of which the last stops now and then: slots and sums at the switch around
    such a stop, means over all of them."""
    names, workers, step = ["job0", "job1", "job2"], 2, 0.01
    with Testbed(**LINK) as bed, Cluster(bed.R0, [(bed.L0, window)], packet_elements=PACKET_ELEMENTS[4]) as cluster:
        for name in names:
            cluster.start(name, [(bed.L0, 0)] * workers, window=window, elements=options.elements // 2,
                          iterations=12 * options.iterations)
        pauses = Pauses(cluster.ranks["job2"])
        with Sampler(step, cluster.switches[0].jobs) as sampler:
            conductor = threading.Thread(target=pauses.run)
            conductor.start()
            cluster.finish()
            conductor.join()
        check(bed)
    samples = [(now, seen) for now, seen in sampler.samples if all(name in seen for name in names)]
    bins = {}
    for stopped, _ in pauses.times:
        for (earlier, before), (now, seen) in zip(samples, samples[1:]):
            if -0.3 <= now - stopped < 1.2:
                bins.setdefault(math.floor((now - stopped) / step), []).append(
                    [seen[name]["slots_in_use"] for name in names] +
                    [(seen[name]["completed"] - before[name]["completed"]) / (now - earlier) for name in names])
    rows = [[step * (each + 0.5), *map(statistics.mean, zip(*bins[each]))] for each in sorted(bins)]

    def mean(column, low, high):
        return statistics.mean(row[column] for row in rows if low < row[0] < high)

    print(f"\nA third of the slots ({window}), before job 2 pauses and while it does; "
          f"means of {len(pauses.times)} pauses (Figure 13c)")
    table([[name, *(f"{mean(1 + job, low, high):.1f}" for low, high in ((-0.3, 0), (0.1, pauses.length))),
            *(f"{mean(4 + job, low, high):.0f}" for low, high in ((-0.3, 0), (0.1, pauses.length)))]
           for job, name in enumerate(names)], ["", "slots before", "while", "sums/s before", "while"])
    before, later = (mean(1, *part) + mean(2, *part) for part in ((-0.3, 0), (0.1, pauses.length)))
    gained = next(row[0] for row in smooth(rows) if row[0] > 0 and row[1] + row[2] >= before + 0.9 * (later - before))
    print(f"jobs 0 and 1 have nine tenths of the slots that they gain {1000 * gained:.0f} ms after it stopped (means of 30 ms); "
          f"a round trip is {1000 * ROUND_TRIP:.0f} ms")
    return {"rows": rows, "length": pauses.length, "pauses": len(pauses.times), "gained": gained}


def smooth(rows):
    """Means of three in a row."""
    return [list(map(statistics.mean, zip(*three))) for three in zip(rows, rows[1:], rows[2:])]


def plot_sharing(results, figure):
    left, middle, right = figure.subplots(1, 3)
    for how, mark in (("dynamic", "o-"), ("static", "s--")):
        left.plot(*zip(*((it["percent"], it["mbps"] / 3) for it in results["slots"] if it["how"] == how)), mark, label=how)
    left.set(title="Three jobs (Figure 13a)", xlabel="% of the slots that they need", ylabel="Mbit/s of a job", ylim=0)
    for how, mark, name in (("dynamic", "o-", "hash"), ("hash", "v-.", "hash, no rehash"), ("linear", "^:", "linear"),
                            ("static", "s--", "static")):
        middle.plot(*zip(*((it["jobs"], 100 * it["in_network"]) for it in results["indexing"] if it["how"] == how)), mark,
                    label=name)
    middle.set(title="Finding slots (Figure 14)", xlabel="jobs", ylabel="% added up at the switch", ylim=(0, 105))
    paused = results["pause"]
    rows = smooth(paused["rows"])
    for job in range(3):
        right.plot([row[0] for row in rows], [row[1 + job] for row in rows], label=f"job {job}")
    right.axvspan(0, paused["length"], color="grey", alpha=0.15)
    right.set(title="Job 2 pauses (Figure 13c)", xlabel="s", ylabel="slots in use (of 16)", ylim=0)
    for axes in (left, middle, right):
        axes.legend()


# ---- two levels

def racks(options):
    """Two ranks in each of three racks; the third's switch is the parameter server's own."""
    results = {}
    for _ in range(options.repeats):
        for name, parents in (("two levels", [2, 2, None]), ("racks only", [None, None, None])):
            say(name)
            with Testbed("20mbit", "5ms", mark="24kB", left=3) as bed:
                hosts = (bed.L0, bed.L1, bed.L2)
                with Cluster(bed.R0, [(host, 1024) for host in hosts], parents=parents,
                             packet_elements=PACKET_ELEMENTS[4]) as cluster:
                    cluster.start("job", [(host, at) for at, host in enumerate(hosts) for _ in range(2)], window=16,
                                  elements=options.elements, iterations=options.iterations)
                    with Sampler(0.05, cluster.server.jobs) as sampler:
                        reports = cluster.finish()["job"]
                check(bed)
                c = [seen["job"] for _, seen in sampler.samples if "job" in seen][-1]
                sent, again = (sum(report[key] for report in reports) for key in ("packets_sent", "packets_retransmitted"))
                seconds = statistics.median(map(max, zip(*(report["nanoseconds"] for report in reports)))) / 1e9
                results.setdefault(name, []).append(
                    {"bytes_per_chunk": c["bytes"] / c["chunks"], "repeated": again / sent,
                     "whole": c["added_complete"] / c["chunks"], "mbps": options.elements * 32 / seconds / 1e6})
    rows, both = [], {}
    for name, runs in results.items():
        both[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        rows.append([name, f"{both[name]['bytes_per_chunk']:.0f}", percentage(both[name]["whole"]),
                     f"{100 * both[name]['repeated']:.1f} %", f"{both[name]['mbps']:.1f}"])
    print("Six workers in three racks, the link to the server 20 Mbit/s (§5.2.2)")
    table(rows, ["aggregation", "bytes at the server per chunk", "chunks that came whole", "packets sent again", "Mbit/s"])
    ratios = [one["bytes_per_chunk"] / two["bytes_per_chunk"] for one, two in zip(results["racks only"], results["two levels"])]
    print(f"bytes, racks only / two levels: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); paper: 3")
    return {"medians": both, "ratios": ratios}


# ---- congestion

def congested(version, control, tcp, options):
    """Over time: Mbit/s of a job's tensors and of a TCP flow, and the losses and marks of the link that they share.

    With TCP: one of three workers is at the other side of the link. Without: all four are, at a switch with half of the slots."""
    elements, window = 100_000, 256
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(Testbed("50mbit", "1ms", queue="128kB", mark="32kB", left=2, right=2))
        at = bed.R0 if tcp else bed.L0
        cluster = stack.enter_context(Cluster(bed.R0, [(at, 4096 if tcp else window // 2)], version=version,
                                              packet_elements=PACKET_ELEMENTS[version]))
        begin = time.monotonic()
        flow = stack.enter_context(TcpFlow(bed.L1, bed.R1, version)) if tcp else None
        sampler = stack.enter_context(
            Sampler(0.5, lambda: (cluster.server.jobs().get("job", {}).get("chunks"), flow.received if flow else 0)))
        time.sleep(ALONE if tcp else 0)
        started = time.monotonic() - begin
        places = [(bed.L0, 0), (bed.R0, 0), (bed.R0, 0)] if tcp else [(bed.L0, 0)] * 4
        cluster.start("job", places, window=window, elements=elements, iterations=8 * options.iterations,
                      more=["--congestion-control", control])
        reports = cluster.finish()["job"]
        ended = time.monotonic() - begin
        time.sleep(ALONE if tcp else 0)
        if flow:
            busy, held_up = flow.held_up()
            if held_up > 0.02 * busy:
                raise SystemExit(f"TCP waited for processes during {held_up:.1f} of {busy:.1f} s: this machine is too slow, or too busy")
    check(bed)
    return series(sampler.samples, bed.link(), begin, started, ended, reports, version)


def series(samples, link, begin, started, ended, reports, version):
    result = {"started": started, "ended": ended, "goodput": [], "link": []}
    for (t0, (chunks0, bytes0)), (t1, (chunks1, bytes1)) in zip(samples, samples[1:]):
        chunks = (chunks1 - chunks0 if chunks0 is not None else chunks1) if chunks1 is not None else 0
        result["goodput"].append([(t0 + t1) / 2 - begin, chunks * PACKET_ELEMENTS[version] * 32 / (t1 - t0) / 1e6,
                                  (bytes1 - bytes0) * 8 / (t1 - t0) / 1e6])
    for a, b in zip(link, link[1:]):
        if b["time"] > a["time"]:
            result["link"].append([(a["time"] + b["time"]) / 2 - begin,
                                   *((b[key] - a[key]) / (b["time"] - a["time"]) for key in ("dropped", "marked"))])
    during = [row for row in result["goodput"] if started + 1 < row[0] < ended - 0.5]
    sent, again = (sum(report[key] for report in reports) for key in ("packets_sent", "packets_retransmitted"))
    inside = [line for line in link if started < line["time"] - begin < ended]
    result["medians"] = {"job": statistics.median(row[1] for row in during), "tcp": statistics.median(row[2] for row in during),
                         "seconds": ended - started, "repeated": again / sent,
                         "dropped": inside[-1]["dropped"] - inside[0]["dropped"],
                         "marked": inside[-1]["marked"] - inside[0]["marked"]}
    return result


def switchml_beside_tcp(slots, options):
    """Medians as those of `series`. One of three workers is at the other side of the link; `slots` is its window, or None: measured."""
    elements = 100_000
    with contextlib.ExitStack() as stack:
        bed = stack.enter_context(Testbed("50mbit", "1ms", queue="128kB", mark="32kB", left=2, right=2))
        switch = Daemon(bed.R0, 4, "switch")
        stack.callback(switch.kill)
        flow = stack.enter_context(TcpFlow(bed.L1, bed.R1, 4))
        time.sleep(ALONE)
        begin = time.monotonic()
        with Sampler(0.5, lambda: flow.received) as sampler:
            ranks = [Rank(host, "--switch", switch.address, "--job", "job", "--rank", rank, "--world-size", 3, "--elements", elements, "--iterations",
                          8 * options.iterations, "--warmup", 1, "--deadline", 300, *(["--slots", slots] if slots else []), protocol="switchml")
                     for rank, host in enumerate((bed.L0, bed.R0, bed.R0))]
            for rank in ranks:
                stack.callback(rank.kill)
            reports = [rank.report() for rank in ranks]
        check(bed)
        inside = [line for line in bed.link() if begin < line["time"]]
    during = sampler.samples[2:-1]
    tcp = statistics.median((after - before) * 8e-6 / (t1 - t0) for (t0, before), (t1, after) in zip(during, during[1:]))
    seconds = statistics.median(map(max, zip(*(report["nanoseconds"] for report in reports)))) / 1e9
    sent, again = (sum(report[key] for report in reports) for key in ("packets_sent", "packets_retransmitted"))
    return {"medians": {"job": elements * 32e-6 / seconds, "tcp": tcp, "seconds": time.monotonic() - begin, "repeated": again / sent,
                        "dropped": inside[-1]["dropped"] - inside[0]["dropped"], "marked": inside[-1]["marked"] - inside[0]["marked"]}}


def fallbacks(options):
    """Inputs are 2^b times as large. Of each b the share of chunks that fell back, and the time over that of the fewest."""
    runs = {}
    for bits in (0, 4, 5, 6, 8, 12):
        say(f"2^{bits} times as large")
        with Testbed(**LINK) as bed, Cluster(bed.R0, [(bed.L0, 4096)], packet_elements=PACKET_ELEMENTS[4]) as cluster:
            cluster.start("job", [(bed.L0, 0)] * 4, window=64, elements=options.elements, iterations=options.iterations, more=["--magnitude", bits])
            with Sampler(0.05, cluster.server.jobs) as sampler:
                reports = cluster.finish()["job"]
            check(bed)
        last = [seen["job"] for _, seen in sampler.samples if "job" in seen][-1]
        seconds = statistics.median(map(max, zip(*(report["nanoseconds"] for report in reports)))) / 1e9
        runs[bits] = {"share": last["fallbacks"] / last["chunks"], "seconds": seconds}
    least = runs[0]["seconds"]
    print("Chunks whose sum is made again from floats, and the median time of an all-reduce (§3.8)")
    table([[f"2^{bits}", percentage(run["share"]), f"{1000 * run['seconds']:.0f} ms", f"{run['seconds'] / least:.2f}"] for bits, run in runs.items()],
          ["inputs times", "fell back", "time", "over the first"])
    return runs


SWITCHML = {"SwitchML beside TCP": None, "SwitchML beside TCP, 64 slots": 64}
CONGESTED = {"beside TCP": (4, "on", True), "beside TCP, no control": (4, "off", True), "beside TCP, IPv6": (6, "on", True),
             "half the slots": (4, "on", False), "half the slots, no control": (4, "off", False)}


def share_of(medians):
    return medians["job"] / (medians["job"] + medians["tcp"])


def congestion(options):
    settings = {name: how for name, how in {**CONGESTED, **SWITCHML}.items() if options.only in (None, name)}
    runs = {name: [] for name in settings}
    for repeat in range(options.repeats):
        for name, how in settings.items():
            say(f"repeat {repeat + 1} of {options.repeats}: {name}")
            runs[name].append(switchml_beside_tcp(how, options) if name in SWITCHML else congested(*how, options))
    rows = []
    for name, how in settings.items():
        tcp = name in SWITCHML or how[2]
        m = {key: statistics.median(run["medians"][key] for run in runs[name]) for key in runs[name][0]["medians"]}
        shares = with_interval([share_of(run["medians"]) for run in runs[name]]) if tcp else "-"
        rows.append([name, f"{m['job']:.1f}", f"{m['tcp']:.1f}" if tcp else "-",
                     shares, f"{m['seconds']:.1f}", f"{m['dropped']:.0f}", f"{m['marked']:.0f}", percentage(m["repeated"])])
    print(f"A link of 50 Mbit/s; medians over time while the job runs, and losses of the whole run: medians of {options.repeats} runs, "
          "and 95 % intervals of the median (Figures 15, 16)")
    table(rows, ["", "job, Mbit/s", "TCP, Mbit/s", "job's share", "s until it is done", "dropped", "marked", "packets sent again"])
    return runs


def plot_congestion(results, figure):
    results = {name: runs for name, runs in results.items() if name in CONGESTED}
    axes = figure.subplots(2, len(results), sharey="row", squeeze=False, height_ratios=(2, 1))
    for (name, (it, *_)), (top, bottom) in zip(results.items(), zip(*axes)):
        times, *columns = zip(*it["goodput"])
        top.plot(times, columns[0], label="ATP")
        if it["medians"]["tcp"]:
            top.plot(times, columns[1], label="TCP cubic")
        top.set(title=name)
        times, dropped, marked = zip(*it["link"])
        bottom.plot(times, dropped, color="C3", label="dropped")
        bottom.plot(times, marked, color="C2", label="marked")
        bottom.set(xlabel="s")
    axes[0][0].set(ylabel="Mbit/s of tensors, of TCP", ylim=0)
    axes[1][0].set(ylabel="packets per second", ylim=0)
    for row in axes:
        row[0].legend()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="build/reproduce", help=argparse.SUPPRESS)
    parser.add_argument("what", choices=("atp-sharing", "atp-racks", "atp-congestion", "atp-fallbacks"))
    parser.add_argument("--elements", type=int, default=50_000, help="of each tensor")
    parser.add_argument("--iterations", type=int, default=12, help="all-reduces of each job")
    parser.add_argument("--repeats", type=int, default=3, help="of each setting, interleaved")
    parser.add_argument("--only", choices=[*SHARED, *CONGESTED, *SWITCHML], help="one part of atp-sharing, or one setting of atp-congestion; no picture")
    parser.add_argument("--quick", action="store_true", help="once, and fewer all-reduces")
    options = parser.parse_args()
    if options.quick:
        options.iterations, options.repeats = 6, 1
    os.makedirs(options.output, exist_ok=True)
    results = {"atp-sharing": sharing, "atp-racks": racks, "atp-congestion": congestion, "atp-fallbacks": fallbacks}[options.what](options)
    path = os.path.join(options.output, options.what)
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)
    if options.only:
        return
    if options.what == "atp-sharing":
        plot(plot_sharing, results, (12, 3.4), path + ".svg")
    elif options.what == "atp-congestion":
        plot(plot_congestion, results, (13, 4.2), path + ".svg")


if __name__ == "__main__":
    main()
