#!/usr/bin/python3
"""The generated part of docs/performance.md, ratios and goals, and every run as tables beside the JSON of scripts/bench from which both
are made. What stands outside the page's marks is written by hand.

document.py --check JSON docs/performance.md    exit code 1 if the page or the tables are not what the JSON gives
"""
import os
import re
import sys

import processors
import results

BEGIN = "<!-- generated from performance.json by scripts/bench --document; what is between these marks is overwritten -->"
END = "<!-- end of what is generated -->"
SUITES = {"shaped": "Shaped links", "loss": "Losses", "repair": "ATP and NetReduce with losses", "collectives": "Every collective", "fsdp": "A reduce-scatter beside an all-gather",
          "scaling": "Two to sixteen workers", "sweep": "Sizes and rates", "loopback": "One machine, UDP", "shm": "One machine, shared memory",
          "latency": "Small messages", "seals": "Tags and encryption", "private": "Private sums", "micro": "Kernels and the switch's core", "growth": "Cost at the switch",
          "xdp": "The switch inside the kernel", "af-xdp": "Past the kernel's network", "dpdk": "DPDK's ports", "profile": "Where the time goes"}


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def seconds(value):
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def percent(share):
    return "–" if share is None else f"{100 * share:.0f} %"


def size(elements):
    return f"{elements * 4} B" if elements < 250 else f"{elements * 4 / 1000:g} kB" if elements < 250_000 else f"{elements * 4 / 1e6:g} MB"


def anchor(title):
    """The name that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def grouped(pairs):
    """{key: [value, ...]} of (key, value), in the order in which the keys come."""
    groups = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def measured_on(part):
    """Of one processor: each machine and day once, with its commands and what they measured."""
    sources = {}
    for each in results.measurements(part):
        sources.setdefault((each["date"], each["machine"], each["quick"], each["command"]), set()).add(each["suite"])
    machines = grouped(((date, machine, quick), f"`{command}` ({', '.join(sorted(suites))})")
                       for (date, machine, quick, command), suites in sorted(sources.items()))
    return {f"{date}, {machine}" + ("; a quick run, which shows only that it works" if quick else ""): commands
            for (date, machine, quick), commands in machines.items()}


def goals(found, suite):
    """The rows of a suite that have a goal or a ratio, and below them where each was measured, which its last column names."""
    of_suite = processors.rows(found, suite)
    shown = [row for row in of_suite if row.goal is not None or any(each["ratio"] for each in row.each.values())]
    unpaired = [row.what for row in of_suite if row not in shown]
    cells, places = [], {}
    for row in sorted(shown, key=lambda row: row.goal is None):
        says = row.verdict()
        failed = sum(each["failed"] for each in row.each.values())
        more = [f"**{failed} runs failed**" if failed else "", f"**{row.peer_wins()}**" if row.peer_wins() else ""]
        marks = [places.setdefault(each["on"] + (f"; aggregator: {each['aggregator']}" if each["aggregator"] else ""), len(places) + 1)
                 for each in row.each.values()]
        cells.append([row.what, row.ratio(), row.counts(lambda each: each["ratio"]["pairs"] if each["ratio"] else 0),
                      row.counts(lambda each: each["discarded"]), row.goal_text(), row.then or "–",
                      "; ".join(filter(None, [f"**{says}**" if "not reached" in says else says, *more])) or "–",
                      ", ".join(map(str, dict.fromkeys(marks)))])
    lines = []
    if cells:
        lines = table(["what", "median (95 %)", "pairs", "runs discarded", "goal", "possible", "", "place"], cells) + [""]
        lines += [f"- Place {mark}: {place}" for place, mark in places.items()] + [""]
    if unpaired:
        lines += ["Measured, but without a pair that counts:", "", *(f"- {line}" for line in by_size((what, "") for what in unpaired)), ""]
    return lines


def by_size(rows):
    """One line for all (what, text) that differ in workers and length alone: "TAT ...: 0.5 at N = 2, 4 MB; 0.6 at N = 4, 4 MB"."""
    lines = []
    for head, each in grouped((what.partition(", N = ")[0], (what.partition(", N = ")[2], text)) for what, text in rows).items():
        told = "; ".join(" ".join(filter(None, (text, size_of and f"at N = {size_of}"))) for size_of, text in each)
        lines.append(f"{head}: {told}" if told else head)
    return lines


def runs(part, suite):
    of_suite = {}
    for key, run in sorted(part["runs"].items()):
        if run["suite"] == suite:
            of_suite.setdefault(run["group"], []).append(run)
    lines = []
    for group, each in of_suite.items():
        each.sort(key=lambda run: (run["elements"], run["workers"], run["loss"], run["tat_seconds"]))
        lines += [f"<details><summary>All of {group}: {each[0]['on']}</summary>", ""]
        lines += table(["", "N", "tensor", "loss", "TAT", "p99 of a run", "M elements/s", "idle", "runs", "discarded", "aggregator"],
                       [[run["entrant"], run["workers"], size(run["elements"]), f"{run['loss']:g} %", seconds(run["tat_seconds"]),
                         seconds(run["p99_seconds"]), f"{run['elements'] / run['tat_seconds'] / 1e6:.3g}", percent(run.get("idle")), run["runs"], run["discarded"],
                         run["aggregator"]] for run in each])
        lines += ["", "</details>", ""]
    return lines


def growth(part):
    if not part["growth"]:
        return []
    points = {(point["workers"], point["jobs"]): point for point in part["growth"]["points"]}
    jobs = sorted({jobs for _, jobs in points})
    lines = ["The columns are nanoseconds per element of a contribution at the switch, over the in-memory network; bytes of a job's memory per "
             "slot of 256 elements; and microseconds per packet in the simulator, for whole clusters and with all its checks:", ""]
    names = [f"{each} job{'s' if each > 1 else ''}" for each in jobs]
    return lines + table(["workers", *names, "bytes per slot", *(f"simulator, {name}" for name in names)],
                         [[workers, *(f"{points[workers, each]['nanoseconds']:.3g}" for each in jobs),
                           f"{points[workers, jobs[0]]['bytes_per_slot']:.0f}",
                           *(f"{points[workers, each]['simulated_nanoseconds'] / 1e3:.3g}" for each in jobs)]
                          for workers in sorted({workers for workers, _ in points})]) + [""]


def profiles(part):
    """A table of parts of a benchmark's nanoseconds, and one of the layers of whole all-reduces."""
    if not part["profiles"]:
        return []
    cases = part["profiles"]["cases"].values()
    lines = ["Samples of processor time (`perf record`, cpu-clock). Nanoseconds of each benchmark in one core's cache, and their parts:", ""]
    lines += table(["what", "ns", "of these"],
                   [[case["what"], f"{case['nanoseconds']:.3g}", ", ".join(f"{name} {case['nanoseconds'] * share:.2g}" for name, share in case["layers"])]
                    for case in cases if "nanoseconds" in case])
    wholes = [case for case in cases if "nanoseconds" not in case]
    names = sorted({name for case in wholes for name, _ in case["layers"]}, key=lambda name: -sum(dict(case["layers"]).get(name, 0) for case in wholes))
    lines += ["", "Shares of the processor time of netsum's threads, and of the kernel for them and their links, in whole all-reduces:", ""]
    lines += table(["", *(case["what"] for case in wholes)],
                   [[name, *(percent(dict(case["layers"]).get(name, 0)) for case in wholes)] for name in names]
                   + [["TAT", *(seconds(case["tat_seconds"]) for case in wholes)],
                      ["processor time of a packet of a rank", *(seconds(case["packet_seconds"]) if case["packet_seconds"] else "–" for case in wholes)],
                      ["the machine was idle for", *(percent(case["idle"]) for case in wholes)]])
    return lines + [""]


def inside_kernel(part):
    rows = sorted((row for row in part["rows"].values() if row["suite"] == "xdp"), key=lambda row: row["elements"])
    if not rows:
        return []
    lines = ["Nanoseconds of the program for a contribution of one of four members, medians; a quarter of them leaves as a result, of which "
             "neither copying nor sending is in them, nor is receiving:", ""]
    return lines + table(["elements", *rows[0]["nanoseconds"]],
                         [[row["elements"], *(f"{each:.0f}" for each in row["nanoseconds"].values())] for row in rows]) + [""]


def nanoseconds(rows):
    """Of what was measured, by what it was: of each side its median."""
    return {row["what"].partition(":")[0]: row["nanoseconds"] for row in rows}


def past_kernel(part):
    rows = [row for row in part["rows"].values() if row["suite"] == "af-xdp"]
    if not rows:
        return []
    lines = ["Nanoseconds on a processor of the thread that moves the frames, for each, medians:", ""]
    sides = ["sockets", "AF_XDP", "a bare loop"]
    return lines + table(["", *sides], [[about, *(f"{times[side]:.0f}" if side in times else "–" for side in sides)]
                                        for about, times in nanoseconds(rows).items()]) + [""]


MORE_TABLES = {"growth": growth, "profile": profiles, "xdp": inside_kernel, "af-xdp": past_kernel}


def listed(rows, text):
    """A list of the suites, each with a line for each kind of row."""
    lines = []
    for suite, title in SUITES.items():
        of_suite = [(row.what, text(row)) for row in rows if row.suite == suite]
        if of_suite:
            lines += [f"- [{title}](#{anchor(title)})", *(f"  - {line}" for line in by_size(of_suite))]
    return lines


def wins(found):
    rows = processors.rows(found)
    faster = listed([row for row in rows if row.peer_wins()], lambda row: row.ratio())
    missed = listed([row for row in rows if row.missed()], lambda row: f"goal {row.goal_text()}, measured {row.ratio()}")
    return ["## Where a peer is faster", "", *(faster or ["In no row of what was measured."]), "",
            "## Goals that are not reached", "", *(missed or ["None of those measured."]), ""]


def summary(found, plots):
    """Of performance.md. plots: names of the files in docs/images that there are."""
    lines = ["Each row is a ratio of two times or rates: the median over interleaved rounds of the ratio within a round, with its 95 % bootstrap",
             "interval. Where a peer's time is over netsum's, netsum is faster above 1. A goal is reached if the whole interval reaches it, with at",
             "least 20 pairs, on every processor seen. Of several processors the smallest and the largest ratio are shown. Where a row says *on A*,",
             "it was not measured on the others, or differs there. Plots are of the processor that was measured last. Runs on a machine that was",
             "too busy are discarded. Tensors are float32. [benchmarks.md](benchmarks.md#scriptsbench) says how all of it is measured;",
             "[performance-tables.md](../bench/results/performance-tables.md) has every run and the commands.", ""]
    parts = processors.lettered(found)
    for letter, name in processors.names(found).items():
        lines += [f"- Processor {letter}: {name}", *(f"  - Measured on {machine}" for machine in measured_on(parts[letter]))]
    lines += ["", *wins(found)]
    for suite, title in SUITES.items():
        rows = goals(found, suite)
        pictures = [f"![{title}](images/{name})\n" for name in plots if name.startswith(f"performance-{suite}")]
        if rows or pictures:
            lines += [f"## {title}", "", *rows, *pictures]
    return "\n".join(lines).rstrip() + "\n"


def tables(found):
    """All of performance-tables.md."""
    lines = ["# How fast it is: every run", "", "The runs behind the ratios of [performance.md](../../docs/performance.md), made from the JSON beside it by "
             "`scripts/bench --document`.", "", "*Idle* is the share of the machine that was idle while the first host's link was busy. *TAT* is the tensor aggregation time.", ""]
    parts, names = processors.lettered(found), processors.names(found)
    for letter, part in parts.items():
        for machine, commands in measured_on(part).items():
            lines += [f"Processor {letter}, {names[letter]}, {machine}:", "", *(f"- {command}" for command in commands), ""]
    for suite, title in SUITES.items():
        of_suite = []
        for letter, part in parts.items():
            own = MORE_TABLES.get(suite, lambda _: [])(part) + runs(part, suite)
            if own:
                of_suite += [*([f"### {title}: processor {letter}", ""] if len(parts) > 1 else []), *own]
        if of_suite:
            lines += [f"## {title}", "", *of_suite]
    return "\n".join(lines).rstrip() + "\n"


def pictures_beside(path):
    folder = os.path.join(os.path.dirname(path), "images")
    return sorted(name for name in os.listdir(folder) if name.startswith("performance-")) if os.path.isdir(folder) else []


def replaced(text, generated):
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{generated}\n{END}{after}"


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def pages(found, numbers, path):
    """What each document is to be: {path: text}. numbers, path: of the JSON and of performance.md."""
    return {path: replaced(read(path), summary(found, pictures_beside(path))), re.sub(r"(\.json)?$", "-tables.md", numbers, count=1): tables(found)}


def update(found, numbers, path):
    for page, text in pages(found, numbers, path).items():
        with open(page, "w", encoding="utf-8") as file:
            file.write(text)


def main():
    if len(sys.argv) != 4 or sys.argv[1] != "--check":
        raise SystemExit(__doc__)
    wrong = [page for page, text in pages(results.read(sys.argv[2]), *sys.argv[2:]).items() if not os.path.exists(page) or read(page) != text]
    for page in wrong:
        print(f"{page} is not what {sys.argv[2]} gives: scripts/bench --json {sys.argv[2]} --document", file=sys.stderr)
    if wrong:
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
