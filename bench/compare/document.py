#!/usr/bin/python3
"""The generated part of docs/performance.md, from the JSON of scripts/bench. What stands outside its marks is written by hand.

document.py --check JSON DOCUMENT    exit code 1 if the document is not what the JSON gives
"""
import os
import sys

import ratios
import results

BEGIN = "<!-- generated from performance.json by scripts/bench --document; what is between these marks is overwritten -->"
END = "<!-- end of what is generated -->"
SUITES = {"shaped": "Shaped links", "loss": "Losses", "scaling": "Two to sixteen workers", "sweep": "Sizes and rates",
          "loopback": "One machine, UDP", "shm": "One machine, shared memory", "latency": "Small messages",
          "micro": "Kernels and the switch's core", "growth": "Cost at the switch", "profile": "Where the time goes"}


def ratio_text(ratio):
    if ratio is None:
        return "no pair"
    return f"{ratio['median']:.3g} ({ratio['low']:.3g} to {ratio['high']:.3g})"


def goal_text(row):
    if row["goal"] is None:
        return "–"
    return f"{'≥' if row['at_least'] else '≤'} {row['goal']:g}"


def verdict_text(row):
    if row["quick"]:
        return "quick: shows nothing"
    return "" if row["goal"] is None else ratios.verdict(row["ratio"], row["goal"], row["at_least"])


def peer_wins(row):
    """Whether a peer's time over ours is surely below 1."""
    peers = ("Gloo", "Open MPI")
    return (row["ratio"] and not row["quick"] and row["over"].startswith(peers) and not row["under"].startswith(peers)
            and row["ratio"]["high"] < 1)


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


def measured_on(found):
    """Machines and commands, each once, with what they measured."""
    sources = {}
    for each in (*found["rows"].values(), *found["runs"].values(), *filter(None, (found["timeline"], found["growth"], found["profiles"]))):
        sources.setdefault((each["machine"], each["date"], each["command"], each["quick"]), set()).add(each["suite"])
    lines = []
    for (machine, date, command, quick), suites in sorted(sources.items()):
        lines.append(f"- {date}, {machine}: `{command}` ({', '.join(sorted(suites))})"
                     + ("; a quick run, which shows only that it works" if quick else ""))
    return lines


def goals(found, suite):
    rows = [row for _, row in sorted(found["rows"].items()) if row["suite"] == suite]
    if not rows:
        return []
    cells = []
    for row in sorted(rows, key=lambda row: row["goal"] is None):
        says = verdict_text(row)
        if row["failed"]:
            says = (says + "; " if says else "") + f"**{row['failed']} runs failed**"
        if peer_wins(row):
            says = (says + "; " if says else "") + "**the peer wins**"
        cells.append([row["what"], ratio_text(row["ratio"]), row["ratio"]["pairs"] if row["ratio"] else 0, row["discarded"], goal_text(row),
                      row["then"] or "–", f"**{says}**" if says == "not reached" else says or "–", row["on"], row["aggregator"] or "–"])
    return table(["what", "median (95 %)", "pairs", "runs discarded", "goal", "possible", "", "on", "aggregator"], cells) + [""]


def runs(found, suite):
    of_suite = {}
    for key, run in sorted(found["runs"].items()):
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


def growth(found):
    if not found["growth"]:
        return []
    points = {(point["workers"], point["jobs"]): point for point in found["growth"]["points"]}
    jobs = sorted({jobs for _, jobs in points})
    lines = ["Nanoseconds per element of a contribution at the switch, over the in-memory network; bytes of a job's memory per slot of "
             "256 elements; and microseconds that the simulator takes for a packet, of whole clusters and with all its checks:", ""]
    names = [f"{each} job{'s' if each > 1 else ''}" for each in jobs]
    return lines + table(["workers", *names, "bytes per slot", *(f"simulator, {name}" for name in names)],
                         [[workers, *(f"{points[workers, each]['nanoseconds']:.3g}" for each in jobs),
                           f"{points[workers, jobs[0]]['bytes_per_slot']:.0f}",
                           *(f"{points[workers, each]['simulated_nanoseconds'] / 1e3:.3g}" for each in jobs)]
                          for workers in sorted({workers for workers, _ in points})]) + [""]


def profiles(found):
    """A table of parts of a benchmark's nanoseconds, and one of the layers of whole all-reduces."""
    if not found["profiles"]:
        return []
    cases = found["profiles"]["cases"].values()
    lines = ["Samples of processor time (`perf record`, cpu-clock). Nanoseconds of what is measured in one core's cache, and where they go:", ""]
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


def wins(found):
    rows = [row for _, row in sorted(found["rows"].items()) if peer_wins(row)]
    missed = [row for _, row in sorted(found["rows"].items()) if verdict_text(row) in ("not reached", "not shown")]
    lines = ["**Where a peer is faster:** " + ("; ".join(f"{row['what']}: {ratio_text(row['ratio'])}" for row in rows) or
                                               "in no row of what was measured") + ".", ""]
    lines += ["**Goals that are not reached:** " + ("; ".join(f"{row['what']}: {ratio_text(row['ratio'])}, goal {goal_text(row)}"
                                                             for row in missed) or "none of those measured") + ".", ""]
    return lines


def generated(found, plots):
    """plots: names of the files in docs/images that there are."""
    lines = ["Medians over interleaved rounds of ratios within a round, with 95 % bootstrap intervals. A goal is reached if the whole "
             "interval is, of at least 20 pairs; runs during which less than 10 % of the machine was idle are discarded. Tensors are "
             "float32. *Idle* is the share of the machine that was, while the first host's link was busy. [benchmarks.md](benchmarks.md#scriptsbench) says how all of it is measured.", "", *measured_on(found), ""]
    lines += wins(found)
    for suite, title in SUITES.items():
        part = goals(found, suite) + (growth(found) if suite == "growth" else profiles(found) if suite == "profile" else []) + runs(found, suite)
        pictures = [f"![{title}](images/{name})\n" for name in plots if name.startswith(f"performance-{suite}")]
        if part or pictures:
            lines += [f"## {title}", "", *part, *pictures]
    return "\n".join(lines).rstrip() + "\n"


def pictures_beside(path):
    folder = os.path.join(os.path.dirname(path), "images")
    return sorted(name for name in os.listdir(folder) if name.startswith("performance-")) if os.path.isdir(folder) else []


def replaced(text, found, plots):
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{generated(found, plots)}\n{END}{after}"


def update(found, path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(replaced(text, found, pictures_beside(path)))


def main():
    if len(sys.argv) != 4 or sys.argv[1] != "--check":
        raise SystemExit(__doc__)
    with open(sys.argv[3], encoding="utf-8") as file:
        text = file.read()
    if replaced(text, results.read(sys.argv[2]), pictures_beside(sys.argv[3])) != text:
        print(f"{sys.argv[3]} is not what {sys.argv[2]} gives: scripts/bench --json {sys.argv[2]} --document", file=sys.stderr)
        return 1
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
