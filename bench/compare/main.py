#!/usr/bin/python3
"""Measures netsum beside Gloo and Open MPI, and says which goals are reached.

Runs take turns, so that what else the machine does meets all of them, and each is checked. A ratio is of the two sides' times in
the same round; shown are the median of the rounds' ratios and its 95 % bootstrap interval; a goal is reached if the whole interval
is. Suites may be measured at different times: --json FILE keeps what it has of the others. docs/benchmarks.md says more.
"""
import argparse
import datetime
import os
import signal
import sys
import time

import af_xdp
import document
import dpdk
import draw
import machine
import micro
import pairs
import places
import processors
import profiles
import ratios
import results
import suites
import timeline
from network import ROOT
from output import table

OTHER_SUITES = {"timeline": "packets of one worker every 10 ms, with and without losses", "micro": "kernels and the switch's core",
                "growth": "what a contribution costs at the switch, by workers and jobs",
                "xdp": "the switch inside the kernel, with the rule of its slots and without",
                "af-xdp": "frames past the kernel's network, by AF_XDP: the bump and the switch, beside sockets and a bare loop",
                "dpdk": "packets by DPDK over memif: a rank and its switch beside bare testpmds",
                "profile": "where processor time goes, sampled by perf"}
NAMES = [*suites.SUITES, *OTHER_SUITES]
ROOT_ONLY = {"shaped", "loss", "repair", "fsdp", "scaling", "sweep", "seals", "private", "timeline", "profile", "xdp", "af-xdp"}


def say(text):
    print(f"  {text}", file=sys.stderr, flush=True)


def show_list():
    for name in NAMES:
        about, groups = suites.SUITES.get(name, (OTHER_SUITES.get(name), list))
        print(f"{name}: {about}{' (needs root)' if name in ROOT_ONLY else ''}")
        rows = [(row.what, row.goal, row.at_least, row.then) for group in groups() for row in group.rows]
        if name == "micro":
            rows = [(row[1] + only, row[5], True, row[6]) for _, only, _ in micro.VECTORS for row in micro.ROWS]
        for what, goal, at_least, then in rows:
            aim = "for comparison" if goal is None else f"{'at least' if at_least else 'at most'} {goal:g}"
            print(f"    {what}: {aim}{f' (then {then})' if then else ''}")


def known(group):
    """The group without what this build cannot do yet."""
    entrants = []
    for entrant in group.entrants:
        if missing := entrant.who.missing():
            say(f"skipped: {entrant.name}: this netsum has no {missing}")
        else:
            entrants.append(entrant)
    have = {(entrant.name, elements) for entrant in entrants for elements in entrant.task.elements}
    rows = []
    for row in group.rows:
        if {row.over, row.under} <= have:
            rows.append(row)
        else:
            say(f"skipped: {row.what}")
    return entrants, rows


def command(args):
    """What to call to measure the same: without where results go."""
    words = ["--suite", ",".join(args.suite)] + (["--only", ",".join(args.only)] if args.only else [])
    words += ["--quick"] if args.quick else ["--pairs", str(args.pairs)] if args.pairs != ratios.ENOUGH else []
    return " ".join(["scripts/bench", *words, *(["--rate", args.rate] if args.rate else [])])


class Session:
    """One call of the program: what it measured so far."""

    def __init__(self, args):
        self.args, self.rates = args, {}
        self.about = {"machine": machine.describe(), "command": command(args),
                      "date": datetime.date.today().isoformat(), "quick": args.quick}
        self.processor = machine.processor()
        self.found = results.read(args.json)
        self.wrong = 0
        self.failed = []  # who failed until it took part no more

    def keep(self, rows, runs, **more):
        self.found = results.merge(self.found, self.processor, {"rows": rows, "runs": runs, **more})
        if self.args.json:
            results.write(self.args.json, self.found)

    def rate_for(self, hosts, idle):
        if self.args.rate:
            return self.args.rate
        if (hosts, idle) not in self.rates:
            self.rates[hosts, idle] = "200mbit" if self.args.quick else places.highest_rate(hosts, suites.RATES, idle)
        return self.rates[hosts, idle]

    def measure(self, suite, group):
        entrants, rows = known(group)
        if not entrants:
            return
        count = max(2, round(self.args.pairs * group.share))
        rate = group.rate or (self.rate_for(group.hosts, group.idle) if group.hosts else "")
        place = places.Shaped(group.hosts, rate) if group.hosts else places.Loopback()
        say(f"{group.id}: {len(entrants)} entrants, {place.name}")
        began = time.monotonic()
        with place:
            runs = pairs.race(place, entrants, count, self.args.quick, lambda text: say(f"{group.id}: {text}"))
        say(f"{group.id}: {time.monotonic() - began:.0f} s")
        self.wrong += runs.wrong
        self.failed += [f"{group.id}: {name}" for name, count in runs.failed.items() if count >= pairs.MOST_FAILURES]
        facts = dict(self.about, suite=suite, group=group.id, on=place.name, rate=rate)
        exported = dict(runs.export())
        kept = {f"{group.id}: {name}, {elements}": dict(facts, entrant=name, wrong=runs.wrong, **each)
                for (name, elements), each in exported.items()}
        made = {}
        for row in rows:
            made[row.id] = dict(facts, what=row.what, goal=row.goal, at_least=row.at_least, then=row.then,
                                ratio=runs.ratio(row.over, row.under), over=" ".join(map(str, row.over)),
                                under=" ".join(map(str, row.under)), aggregator=exported[row.under]["aggregator"] if row.under in exported else "",
                                **{count: sum(getattr(runs, count)[name] for name in {row.over[0], row.under[0]})
                                   for count in ("discarded", "failed")})
        self.keep(made, kept)
        self.show_runs(kept)
        self.show(made)

    def show_runs(self, runs):
        table([[run["entrant"], run["workers"], document.size(run["elements"]), f"{1e3 * run['tat_seconds']:.3f}",
                f"{run['elements'] / run['tat_seconds'] / 1e6:.2f}", run["runs"], run["discarded"], run["failed"],
                run["aggregator"]]
               for run in runs.values()], ["", "N", "tensor", "TAT ms", "M elements/s", "runs", "discarded", "failed",
                "aggregator"])
        print()

    def show(self, rows):
        if not rows:
            return
        table([[row.what, row.ratio(), row.goal_text(), row.verdict()] for row in (processors.Row({"": row}, [""]) for row in rows.values())],
              ["", "median (95 %)", "goal", ""])
        print(flush=True)

    def run(self, suite):
        facts = dict(self.about, suite=suite, group=suite, on="one core, in memory", rate="", aggregator="", discarded=0, failed=0, over="", under="")
        count = 3 if self.args.quick else max(self.args.pairs, ratios.ENOUGH)
        if suite == "micro":
            rows = {name: dict(facts, **row) for name, row in micro.rows(count, self.args.quick).items()}
            self.keep(rows, {})
            self.show(rows)
        elif suite == "xdp":
            rows = {name: {**facts, "on": "one processor, in its kernel", **row} for name, row in micro.xdp(count, self.args.quick).items()}
            self.keep(rows, {})
            self.show(rows)
            for row in rows.values():
                print(f"{row['elements']} elements: {', '.join(f'{side} {time:.0f} ns' for side, time in row['nanoseconds'].items())}", flush=True)
        elif suite == "af-xdp":
            rows = {name: {**facts, "on": "veth pairs", **row} for name, row in af_xdp.rows(count, self.args.quick).items()}
            self.keep(rows, {})
            self.show(rows)
            for about, times in document.nanoseconds(rows.values()).items():
                print(f"{about}: {', '.join(f'{side} {time:.0f} ns' for side, time in times.items())}", flush=True)
        elif suite == "dpdk":
            rows = {name: {**facts, "on": "memif, two cores", **row} for name, row in dpdk.rows(count, self.args.quick).items()}
            self.keep(rows, {})
            self.show(rows)
            for row in rows.values():
                print(", ".join(f"{side} {1e3 / time:.2f} million packets/s" for side, time in row["nanoseconds"].items()), flush=True)
        elif suite == "growth":
            rows, points = micro.growth(count, self.args.quick)
            rows = {name: dict(facts, **row) for name, row in rows.items()}
            self.keep(rows, {}, growth=dict(facts, points=points))
            self.show(rows)
        elif suite == "timeline":
            with places.Shaped(5, "200mbit") as place:
                lines = timeline.measure(place, say)
                self.wrong += sum(line["wrong"] for line in lines)
                self.keep({}, {}, timeline=dict(facts, on=place.name, lines=lines))
        elif suite == "profile":
            cases = profiles.measure(lambda: self.rate_for(9, suites.IDLE_FOR_LOSSES), self.args.quick, say, self.args.only)
            self.wrong += sum(case.get("wrong", 0) for case in cases.values())
            for case in cases.values():
                print(f"{case['what']}: {', '.join(f'{name} {share:.0%}' for name, share in case['layers'])}", flush=True)
            self.keep({}, {}, profiles=dict(facts, on="this machine", cases=cases))
        else:
            for group in suites.SUITES[suite][1]():
                if not self.args.only or group.id in self.args.only:
                    self.measure(suite, group)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=lambda text: text.split(","), default=[], metavar="NAME,...", help=f"of {', '.join(NAMES)}, or all")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="GROUP,...",
                        help="of the suites' groups these alone, by the names that progress shows (shaped-4, ...); of profiles, by those in "
                        "bench/compare/profiles.py (core, loopback-atp-4, ...)")
    parser.add_argument("--list", action="store_true", help="what there is to measure, and the goals")
    parser.add_argument("--pairs", type=int, default=ratios.ENOUGH, metavar="N", help="rounds that must count; fewer than 20 show nothing")
    parser.add_argument("--quick", action="store_true", help="two rounds of each, also on a busy machine: shows that it works, and nothing else")
    parser.add_argument("--rate", default="", help="of the links with 8 workers and more, in place of the highest that iperf3 finds exact")
    parser.add_argument("--json", metavar="FILE", help="keep results there, beside those of other suites")
    parser.add_argument("--plots", metavar="FOLDER", help="draw all that is in --json there")
    parser.add_argument("--document", action="store_true", help="write all that is in --json into docs/performance.md, and as tables beside FILE")
    args = parser.parse_args()
    if args.list:
        show_list()
        return 0
    chosen = NAMES if args.suite == ["all"] else args.suite
    for name in chosen:
        if name not in NAMES:
            parser.error(f"no suite {name}: {', '.join(NAMES)}, or all")
    if not chosen and not (args.plots or args.document):
        parser.error("--suite NAME,... (see --list), or --plots or --document of what there is")
    if (args.plots or args.document) and not args.json:
        parser.error("--plots and --document need --json")
    if ROOT_ONLY & set(chosen) and os.geteuid() != 0:
        parser.error("network namespaces need root")
    if args.quick:
        args.pairs = 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends this ends its processes too
    session = Session(args)
    for name in NAMES:
        if name in chosen:
            session.run(name)
    if args.plots:
        draw.all_plots(session.found, args.plots)
    if args.document:
        document.update(session.found, args.json, os.path.join(ROOT, "docs/performance.md"))
    if session.wrong:
        print(f"{session.wrong} wrong elements", file=sys.stderr)
    if session.failed:
        print(f"failed: {', '.join(session.failed)}", file=sys.stderr)
    return 1 if session.wrong or session.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("bench: interrupted; what was measured until then is kept")
