#!/usr/bin/python3
"""NetReduce's comparison of all-reduces among machines of several GPUs (docs/parallel.md): prints tables, and plots into
build/reproduce.

netreduce-fig7   the communication times of Figure 7 by the model of Appendix A, over P, alpha and B_intra, with parallel rings
                 beside, and where its conditions (4) to (6) say that parallel NetReduce is faster; then flat ring, Tencent,
                 parallel rings and parallel NetReduce as processes in network namespaces around a switch, next to what the
                 model predicts from the latencies and bandwidths that are measured there.

The links are slow, so that they bound the all-reduces, and not this machine's CPUs. The aggregator is at the switch: its own port is
no link. Every sum of every run is checked. Measuring needs root; --model does without.
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess

from network import ROOT, Daemon, Process, Star
from output import plot, say, table

PATTERNS = {"fr": "flat ring", "ta": "Tencent", "pr": "parallel rings", "pn": "parallel NetReduce"}
MODEL = os.path.join(ROOT, "build/release/bin/time_model")

# Figure 7: n = 8, B_inter = 12.5 GB/s. It does not say what M is; §3.4 speaks of 100 MB.
GPUS_PER_MACHINE, INTER, BYTES = 8, 12.5e9, 100e6
INTRA = {"PCIe 3.0": 15.75e9, "25 GB/s": 25e9, "50 GB/s": 50e9, "NVLink": 100e9}
GPUS = [16, 32, 64, 128, 256, 512, 1024]
ALPHA = [1e-7, 1e-6, 1e-5, 1e-4]
# N x MsgLen, 131 kB, is far more than round trip times bandwidth here, and what a queue holds of both rings. Short messages: rings
# that share a link take turns by them.
WINDOW = ("--slots", 8, "--message-packets", 16)
USUAL = {"gpus": 32, "hop_seconds": 1e-5, "intra": 100e9}


def predict(requests):
    """Of each request: the stages, (4) to (6); by the model that the library has."""
    answer = subprocess.run([MODEL], input="".join(json.dumps(each) + "\n" for each in requests), capture_output=True, text=True)
    if answer.returncode != 0:
        raise SystemExit(answer.stderr)
    return [json.loads(line) for line in answer.stdout.splitlines()]


# ---- the model

def figure_7():
    points = []
    for intra, gpus, alpha, size, pattern in itertools.product(INTRA.values(), GPUS, ALPHA, (1e6, BYTES), PATTERNS):
        points.append({"pattern": pattern, "bytes": size, "gpus": gpus, "gpus_per_machine": GPUS_PER_MACHINE, "hop_seconds": alpha,
                       "intra": intra, "inter": INTER})
    return [dict(point, seconds=sum(answer["stages"].values()), **answer) for point, answer in zip(points, predict(points))]


def select(points, **values):
    return [point for point in points if all(point[key] == value for key, value in values.items())]


def times(points, **values):
    """Milliseconds by pattern, where there is one point of each."""
    return {point["pattern"]: 1e3 * point["seconds"] for point in select(points, **values)}


def show_model(points):
    rows = []
    for name, intra in INTRA.items():
        for gpus, alpha in itertools.product((32, 1024), (1e-6, 1e-4)):
            found = times(points, intra=intra, gpus=gpus, hop_seconds=alpha, bytes=BYTES)
            rows.append([name, gpus, f"{1e6 * alpha:g}", *(f"{found[pattern]:.1f}" for pattern in PATTERNS),
                         PATTERNS[min(found, key=found.get)]])
    print(f"Model (Appendix A): ms for {BYTES / 1e6:g} MB, n = {GPUS_PER_MACHINE}, B_inter = {INTER / 1e9:g} GB/s")
    table(rows, ["B_intra", "P", "alpha, us", *PATTERNS.values(), "fastest"])
    for size in (1e6, BYTES):
        each = select(points, bytes=size)
        settings = {(point["intra"], point["gpus"], point["hop_seconds"]) for point in each}
        wins = [min(found, key=found.get) for intra, gpus, alpha in settings
                for found in [times(each, intra=intra, gpus=gpus, hop_seconds=alpha)]]
        print(f"fastest of {len(settings)} settings with {size / 1e6:g} MB: "
              + ", ".join(f"{PATTERNS[pattern]} {wins.count(pattern)}" for pattern in PATTERNS if pattern in wins))
    for other, condition in (("ta", "P > 3n"), ("fr", "(6)")):
        each = select(points, pattern=other)
        faster = [point for point in each if point[f"over_{other}"] > 0]
        sure = [point for point in each if point[f"surely_over_{other}"]]
        assert all(point in faster for point in sure), "a sufficient condition that is none"
        print(f"parallel NetReduce is faster than {PATTERNS[other]} in {len(faster)} of {len(each)} settings of both sizes; "
              f"{condition} tells of {len(sure)}")
    print()


def plot_model(points, figure):
    above, below = figure.subfigures(2, 1)
    plot_times(points, above.subplots(1, 3, sharey=True))
    left, right = below.subplots(1, 2)
    plot_over_flat_ring(left)
    plot_over_tencent(right)


def line_of(key, values, **fixed):
    return predict([{"pattern": "pn", "gpus_per_machine": GPUS_PER_MACHINE, "inter": INTER, **fixed, key: value} for value in values])


def plot_over_flat_ring(axes):
    """Up to which size parallel NetReduce is faster: (5) is linear in it."""
    ratios = [1 + 0.01 * i for i in range(201)]
    for color, gpus in enumerate((16, 32, 128, 1024)):
        fixed = {"gpus": gpus, "hop_seconds": USUAL["hop_seconds"]}
        intra = [ratio * INTER for ratio in ratios]
        at_none, at_1 = (line_of("intra", intra, bytes=size, **fixed) for size in (0, 1e6))
        slopes = [(b["over_fr"] - a["over_fr"]) / 1e6 for a, b in zip(at_none, at_1)]
        bounded = [(ratio, a["over_fr"] / -slope / 1e6) for ratio, a, slope in zip(ratios, at_none, slopes) if slope < 0]
        axes.plot(*zip(*bounded), f"C{color}", label=f"P = {gpus}")
        # (6) says nothing of some settings in which the line of (5) has ended.
        axes.axvline(next(ratio for ratio, each in zip(ratios, at_1) if each["surely_over_fr"]), color=f"C{color}", ls=":")
    axes.set(xlabel="B_intra / B_inter", ylabel="M, MB", yscale="log", ylim=(0.1, 1e5),
             title="PN faster than FR: under the line (5), right of the dots (6); α = 10 µs")
    axes.legend(loc="upper left")


def plot_over_tencent(axes):
    gpus = [GPUS_PER_MACHINE * machines for machines in range(2, 33)]
    for color, (name, intra) in enumerate((("PCIe 3.0", INTRA["PCIe 3.0"]), ("NVLink", INTRA["NVLink"]))):
        for style, size in (("-", BYTES), ("--", 1e6)):
            line = line_of("gpus", gpus, bytes=size, hop_seconds=USUAL["hop_seconds"], intra=intra)
            axes.plot(gpus, [1e3 * each["over_ta"] for each in line], f"C{color}{style}", label=f"{name}, {size / 1e6:g} MB")
    axes.axvline(3 * GPUS_PER_MACHINE, color="k", ls=":")
    axes.set(xlabel="GPUs (P)", ylabel="T_ta − T_pn, ms", yscale="log",
             title="PN faster than TA: by (4); right of the dots whatever M and α")
    axes.legend()


def plot_times(points, panels):
    for axes, key, label, factor in zip(panels, ("intra", "gpus", "hop_seconds"), ("B_intra, GB/s", "GPUs (P)", "α, µs"),
                                        (1e-9, 1, 1e6)):
        for color, (pattern, name) in enumerate(PATTERNS.items()):
            fixed = {other: value for other, value in USUAL.items() if other != key}
            line = select(points, pattern=pattern, bytes=BYTES, **fixed)
            axes.plot([factor * point[key] for point in line], [1e3 * point["seconds"] for point in line], f"C{color}o-", ms=3, label=name)
            if key == "gpus":  # where the inside is slow
                line = select(points, pattern=pattern, bytes=BYTES, **dict(fixed, intra=INTRA["PCIe 3.0"]))
                axes.plot([point[key] for point in line], [1e3 * point["seconds"] for point in line], f"C{color}:")
        axes.set(xlabel=label, yscale="log")
        if key != "intra":
            axes.set(xscale="log")
    panels[0].set(ylabel=f"ms for {BYTES / 1e6:g} MB")
    panels[0].legend()
    panels[0].set(title="P = 32, α = 10 µs, NVLink inside, but one")
    panels[1].set(title="dotted: PCIe 3.0 inside")


# ---- measured

class Member(Process):
    """One GPU's process."""

    def report(self, patience):
        try:
            out, _ = self.process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"a process did not end: {self.complaint()}") from None
        if self.process.returncode != 0:
            raise SystemExit(f"a process failed: {self.complaint()}")
        report = json.loads(out)
        if report["wrong"] != 0:
            raise SystemExit(f"{report['wrong']} wrong elements")
        return report


class Machines:
    """Machines of GPUs around a switch with an aggregator, for the length of a `with`."""

    def __init__(self, hosts, rate, queue):
        self.bed, self.hosts, self.switch, self.runs = Star(hosts, rate, queue), hosts, None, 0

    def __enter__(self):
        self.bed.__enter__()
        try:
            self.switch = Daemon(self.bed.SW, 4, "switch", "--slots", 1 << 16)
        except BaseException:
            self.bed.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.switch.kill()
        self.bed.__exit__()

    def all_reduce(self, pattern, machines, gpus, elements, iterations):
        """Seconds of the stages and of the whole, of the median iteration."""
        self.runs += 1
        hosts = [getattr(self.bed, f"H{machine}") for machine in range(machines)]
        where = ["--switch", self.switch.address, *WINDOW] if pattern == "pn" else \
            ["--peers", ",".join(host.at(7300 + gpu, 4) for host in hosts for gpu in range(gpus))]
        members = [Member(hosts[machine], "bench", "parallel", "--pattern", pattern, "--machines", machines, "--gpus", gpus,
                          "--machine", machine, "--gpu", gpu, "--job", f"reproduce-{os.getpid()}-{self.runs}", "--elements", elements,
                          "--iterations", iterations, "--warmup", 1, "--connect-deadline", 30, "--deadline", 120, *where)
                   for machine in range(machines) for gpu in range(gpus)]
        try:
            reports = [member.report(60 + 30 * iterations) for member in members]
        finally:
            for member in members:
                member.kill()
        if any(report["hashes"] != reports[0]["hashes"] for report in reports):
            raise SystemExit("the ranks' results differ")
        def slowest(key, some):
            return statistics.median(map(max, zip(*(report[key] for report in some)))) / 1e9
        stages = {stage: slowest(stage, [report for report in reports if report["rank"] % gpus == 0])
                  for stage in ("before", "across", "after")}
        return dict(stages, seconds=slowest("nanoseconds", reports))


def calibrate(machines, options):
    """Latency and bandwidth of each network, from two lengths: a ring of two and NetReduce of two, a GPU each; a machine of two."""
    few, many = 2, options.elements
    found = {}
    for name, (pattern, hosts, gpus, hops) in {"ring": ("pr", 2, 1, 2), "netreduce": ("pn", 2, 1, 1), "inside": ("pr", 1, 2, 2)}.items():
        say(f"latency and bandwidth: {name}")
        short, long = [], []
        for _ in range(options.repeats):
            short.append(machines.all_reduce(pattern, hosts, gpus, few, 20)["seconds"])
            long.append(machines.all_reduce(pattern, hosts, gpus, many, options.iterations)["seconds"])
        # All three take `hops` alpha + M / B.
        short, long = statistics.median(short), statistics.median(long)
        found[name] = {"hop_seconds": short / hops, "bytes_per_second": 4 * many / (long - short)}
    return found


def expected(pattern, machines, gpus, elements, found):
    """The model has one alpha: each stage takes that of its own network."""
    across = found["netreduce" if pattern == "pn" else "ring"]
    shape = {"pattern": pattern, "bytes": 4 * elements, "gpus": machines * gpus, "gpus_per_machine": gpus,
             "intra": found["inside"]["bytes_per_second"], "inter": across["bytes_per_second"]}
    outside, inside = predict([dict(shape, hop_seconds=across["hop_seconds"]),
                               dict(shape, hop_seconds=found["inside"]["hop_seconds"])])
    inside, outside = inside["stages"], outside["stages"]
    return inside["before"] + outside["across"] + inside["after"]


def measure(options):
    shapes = [(2, 2), (4, 2)]
    lengths = [options.elements] if options.quick else [options.elements, options.elements // 16, 256]
    runs = {}
    with Machines(max(machines for machines, _ in shapes), options.rate, options.queue) as machines:
        found = calibrate(machines, options)
        for _ in range(options.repeats):
            for (hosts, gpus), elements, pattern in itertools.product(shapes, lengths, PATTERNS):
                say(f"{hosts} machines of {gpus}, {elements} elements: {PATTERNS[pattern]}")
                iterations = options.iterations if elements == options.elements else 4 * options.iterations
                runs.setdefault((hosts, gpus, elements, pattern), []).append(
                    machines.all_reduce(pattern, hosts, gpus, elements, iterations))
    results = [{"machines": hosts, "gpus": gpus, "elements": elements, "pattern": pattern,
                "median": {key: statistics.median(run[key] for run in each) for key in each[0]},
                "least": min(run["seconds"] for run in each), "most": max(run["seconds"] for run in each),
                "model": expected(pattern, hosts, gpus, elements, found)}
               for (hosts, gpus, elements, pattern), each in runs.items()]
    return {"rate": options.rate, "calibration": found, "results": results}


def show_measured(measured):
    print(f"Links of {measured['rate']}")
    table([[name, f"{1e6 * each['hop_seconds']:.0f}", f"{each['bytes_per_second'] / 1e6:.2f}"]
           for name, each in measured["calibration"].items()], ["network", "alpha, us", "B, MB/s"])
    print()
    rows = []
    for each in measured["results"]:
        m = each["median"]
        rows.append([f"{each['machines']} x {each['gpus']}", f"{4e-3 * each['elements']:.0f}", PATTERNS[each["pattern"]],
                     f"{1e3 * m['seconds']:.2f}", f"{1e3 * each['least']:.2f} to {1e3 * each['most']:.2f}", f"{1e3 * each['model']:.2f}",
                     f"{m['seconds'] / each['model']:.2f}", *(f"{1e3 * m[stage]:.2f}" for stage in ("before", "across", "after"))])
    table(rows, ["machines x GPUs", "kB", "pattern", "ms", "range", "model, ms", "ratio", "before", "across", "after"])


def plot_measured(measured, figure):
    keys = sorted({(each["machines"], each["gpus"], each["elements"]) for each in measured["results"]},
                  key=lambda key: (-key[2], key[0]))
    rows = len({key[2] for key in keys})
    for axes, key in zip(figure.subplots(rows, len(keys) // rows, squeeze=False).flat, keys):
        some = {each["pattern"]: each for each in measured["results"] if (each["machines"], each["gpus"], each["elements"]) == key}
        for at, pattern in enumerate(PATTERNS):
            each, middle = some[pattern], 1e3 * some[pattern]["median"]["seconds"]
            axes.bar(at - 0.2, middle, 0.4, color=f"C{at}",
                     yerr=[[middle - 1e3 * each["least"]], [1e3 * each["most"] - middle]], error_kw={"lw": 0.8})
            axes.bar(at + 0.2, 1e3 * each["model"], 0.4, color=f"C{at}", alpha=0.35)
        axes.set(xticks=range(len(PATTERNS)), title=f"{key[0]} machines of {key[1]}, {4e-3 * key[2]:.0f} kB", ylabel="ms")
        axes.set_xticklabels([pattern.upper() for pattern in PATTERNS])
    figure.suptitle(f"measured (full) and predicted (pale), links of {measured['rate']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="build/reproduce", help=argparse.SUPPRESS)
    parser.add_argument("what", choices=("netreduce-fig7",))
    parser.add_argument("--model", action="store_true", help="the model alone: measures nothing, and needs no root")
    parser.add_argument("--rate", default="100mbit", help="of each machine's link")
    parser.add_argument("--queue", type=int, default=500_000, metavar="BYTES", help="of each end of a link")
    parser.add_argument("--elements", type=int, default=1 << 20, help="of the longest tensor")
    parser.add_argument("--iterations", type=int, default=5, help="all-reduces of a run; four times as many of short tensors")
    parser.add_argument("--repeats", type=int, default=5, help="of each setting, interleaved")
    parser.add_argument("--quick", action="store_true", help="once, and the longest tensor alone")
    options = parser.parse_args()
    if options.quick:
        options.iterations, options.repeats = 3, 1
    os.makedirs(options.output, exist_ok=True)
    path = os.path.join(options.output, options.what)
    points = figure_7()
    show_model(points)
    plot(plot_model, points, (11, 7), path + ".svg")
    results = {"model": points}
    if not options.model:
        results["measured"] = measure(options)
        show_measured(results["measured"])
        plot(plot_measured, results["measured"], (8, 2.2 + 2.2 * (1 if options.quick else 3)), path + "-measured.svg")
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
