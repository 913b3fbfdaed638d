#!/usr/bin/python3
"""The simulator against reality: all-reduces of four hosts behind the links of scripts/testbed, and the same ones simulated.

Rounds measure each protocol once, without losses and with; the order rotates. A ratio is of one round: simulated, with the round as its
seed, over measured. As root, on a machine that has little else to do: runs that had less than a tenth of it idle do not count. Other
work, a virtual machine's neighbours included, only adds to what is measured: so the fastest round has its ratio, too.
"""
import argparse
import json
import os
import random
import statistics

from contenders import Failed, Netsum, Task
from output import say, table
from places import Shaped
from ratios import interval
from scenario import run_all, time_of

WORKERS = 4
TRIES = 3  # of a run that was disturbed
# What measured ranks would choose from the path is given, so that both sides have the same.
SETTINGS = {"SwitchML": {"packet_elements": 320, "slots": 64}, "ATP": {"packet_elements": 320, "slots": 256},
            "NetReduce": {"packet_elements": 256, "slots": 8, "message_packets": 8}}
QUEUE = "150kB"  # of scripts/testbed's ports


def measured(name, elements):
    flags = [word for key, value in SETTINGS[name].items() for word in (f"--{key.replace('_', '-')}", str(value))]
    return Netsum(name, name.lower(), tuple(flags)), Task(WORKERS, (elements,), warmup_elements=elements // 6)


def simulated(name, rate, percent, elements, seed):
    """The parameter server has a host of its own, as there. The median of three: the first has timers to settle, as the measured warm-up."""
    network = {"kind": "star", "hosts": WORKERS + 1, "link": {"rate": rate, "buffer": QUEUE, "loss": percent / 100}}
    scenario = {"seed": seed, "protocol": name.lower(), "network": network,
                "job": [{"hosts": [f"h0..h{WORKERS - 1}"], "elements": elements, "iterations": 3, **SETTINGS[name]}]}
    if name == "ATP":
        scenario["aggregation"] = {"aggregators": [f"h{WORKERS}"], "switches": ["sw"], "pool_slots": 4 * SETTINGS[name]["slots"]}
    return scenario


def one(place, name, percent, elements, always):
    """Measured seconds; none if something else kept the machine busy, unless each run counts."""
    who, task = measured(name, elements)
    for _ in range(TRIES):
        place.set(percent, "cubic")
        with place.watch() as watched:
            result = who.run(place, task)[elements]
        if result.wrong:
            raise SystemExit(f"{name}: {result.wrong} wrong elements")
        if always or not place.disturbed(watched):
            return result.tat
        say(f"{name}, {percent:g} %: disturbed")
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("testbed",))
    parser.add_argument("--rate", default="50mbit", help="of each link: what two processors drive; four and more drive 200mbit")
    parser.add_argument("--losses", type=float, nargs="+", default=[0, 0.01], metavar="SHARE", help="of each link, each way (0.01 is 1 %%)")
    parser.add_argument("--elements", type=int, default=3_125_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of short tensors, on a busy machine too: whether it works")
    parser.add_argument("--output", default="build/reproduce", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.elements, options.rounds = 500_000, 1
    cases = [(name, 100 * loss) for name in SETTINGS for loss in options.losses]
    found = {case: [] for case in cases}
    with Shaped(WORKERS + 1, options.rate, tcp=("--tcp", "reno")) as place:
        for round_ in range(options.rounds):
            turn = round_ % len(cases)
            for name, percent in cases[turn:] + cases[:turn]:
                say(f"round {round_ + 1}: {name}, {percent:g} %")
                try:
                    seconds = one(place, name, percent, options.elements, options.quick)
                except Failed as failure:
                    raise SystemExit(f"reproduce testbed: {failure}") from None
                found[name, percent].append((round_ + 1, seconds))
    keys = [(name, percent, seed) for name, percent in cases for seed, _ in found[name, percent]]
    predicted = dict(zip(keys, map(time_of, run_all([simulated(name, options.rate, percent, options.elements, seed) for name, percent, seed in keys]))))
    rows, results = [], []
    for (name, percent), runs in found.items():
        pairs = [(seconds, predicted[name, percent, seed]) for seed, seconds in runs if seconds]
        ratio = interval([simulation / seconds for seconds, simulation in pairs], random.Random(1)) if pairs else None
        results.append({"protocol": name, "loss": percent, "rate": options.rate, "elements": options.elements, "pairs": pairs, "ratio": ratio})
        if not pairs:
            rows.append([name, f"{percent:g}%", "disturbed", "", "", "", ""])
            continue
        middle = [statistics.median(each) for each in zip(*pairs)]
        fastest, beside = min(pairs)
        rows.append([name, f"{percent:g}%", f"{middle[0]:.3f} s", f"{middle[1]:.3f} s", f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
                     "within 5 %" if abs(ratio["median"] - 1) <= 0.05 else "not within 5 %", f"{beside / fastest:.3f}"])
    table(rows, ["", "loss", "measured", "simulated", "ratio (95 %)", f"{options.rounds} rounds, links of {options.rate}", "of the fastest round"])
    os.makedirs(options.output, exist_ok=True)
    with open(os.path.join(options.output, "testbed.json"), "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
