"""What the demo found: numbers beside each other, why they differ, and a picture.

    report.py RESULT.json...                        how much sooner, for each kind of demo: the median over its runs
    report.py RESULT.json... --picture OUT.svg      and one picture, of the first run of each kind (PYTHONPATH=bench/shared)
"""
import argparse
import json
import re
import statistics

BUSY = 0.1  # idle share of the machine below which the processors, not the links, decide


def seconds_to(points, accuracy):
    """When a training first was as good; None: it never was."""
    return next((seconds for seconds, seen in points if seen >= accuracy), None)


def common_target(found):
    """The wanted accuracy, or the best that both reached."""
    return min([found["target"], *(max(seen for _, seen in each["points"]) for each in found["trainings"].values())])


def speedup(found):
    target = common_target(found)
    gloo, netsum = (seconds_to(found["trainings"][name]["points"], target) for name in ("gloo", "netsum"))
    return gloo / netsum if netsum else 1.0


def right(found):
    return all(each["wrong"] == 0 and each["sums"] > 0 and each["same_weights"] for each in found["trainings"].values())


def why(found):
    """One line."""
    gloo, netsum = found["trainings"]["gloo"], found["trainings"]["netsum"]
    ratio, ring = speedup(found), 2 * (found["workers"] - 1) / found["workers"]
    megabytes = [each["bytes_per_worker"] / each["steps"] / 1e6 for each in (gloo, netsum)]
    if not found["links"]:
        return ("On loopback no link is slow: copies and processors decide, not bytes. What netsum saves on links is not visible here "
                f"(processors {100 * netsum['idle']:.0f} % idle).")
    sizes = f"a worker sends {megabytes[0]:.0f} MB a step in Gloo's ring and {megabytes[1]:.0f} MB to netsum's switch"
    if ratio < 1.1 and ring <= 1:
        return f"netsum does not win here: {sizes}; between two workers a ring sends each gradient once, as netsum does."
    if ratio < 1.1 and netsum["idle"] < BUSY:
        return (f"netsum does not win here: {sizes}, but the processors were only {100 * netsum['idle']:.0f} % idle. All workers, the "
                "switch and whatever else runs share them: fewer --workers, or a lower --rate, leave the links to decide.")
    if ratio < 1.1 and found["protocol"] != "switchml":
        return f"{found['protocol']} does not win here: {sizes}. SwitchML is the fastest of the three (docs/performance.md)."
    if ratio < 1.1:
        return (f"netsum does not win here: {sizes}, so the links did not decide: {100 * gloo['idle']:.0f} % of the "
                f"processors were idle over Gloo, {100 * netsum['idle']:.0f} % over netsum, which sent "
                f"{netsum['packets_again']} packets again. Did other work run?")
    reason = f"Why: {sizes}: 2(n-1)/n = {ring:.2f} times the gradients against once"
    if found["wire"] != "float32":
        reason += f", {found['wire']}"
    if found["loss"]:
        reason += f"; TCP ({found['tcp']}) slows down at each loss, netsum repeats the packet and keeps its rate"
    return reason + "."


def late(found, training):
    """Whether it repeated many packets that nobody lost."""
    return found["links"] and not found["loss"] and training["packets_again"] > 100 + training["packets_lost"]


def table(found):
    trainings, target = found["trainings"], common_target(found)
    gloo, netsum = trainings["gloo"], trainings["netsum"]

    def row(name, value, more=""):
        return f"  {name:<34}{value(gloo):>12}{value(netsum):>12}   {more}".rstrip()

    label = {True: "bytes sent per worker", False: "bytes over loopback, per worker"}[found["links"]]
    lines = [f"  {'':34}{'gloo':>12}{'netsum':>12}",
             row(f"seconds to {100 * target:.1f} % test accuracy", lambda each: f"{seconds_to(each['points'], target):.1f}",
                 f"Gloo's over netsum's: {speedup(found):.2f}"),
             row("seconds per step", lambda each: f"{each['seconds'] / each['steps']:.2f}"),
             row("test accuracy at the end", lambda each: f"{100 * each['points'][-1][1]:.1f} %"),
             row(label, lambda each: f"{each['bytes_per_worker'] / 1e6:.0f} MB"),
             row("packets that the links lost", lambda each: "-" if each["packets_lost"] is None else str(each["packets_lost"])),
             row("packets that workers sent again", lambda each: str(each["packets_again"]),
                 "nobody lost them: answers came late, from busy processors" if late(found, netsum) else ""),
             row("sums checked", lambda each: f"{each['sums'] / 1e6:.1f} M", "each on every worker, against its own sum of all gradients"),
             row("  wrong", lambda each: str(each["wrong"])),
             row("weights the same on all workers", lambda each: "yes" if each["same_weights"] else "NO"),
             row("processors idle", lambda each: f"{100 * each['idle']:.0f} %")]
    return lines


def conditions(found, short=False):
    rate = re.sub("([kmg])bit", lambda unit: f" {unit[1].replace('m', 'M').replace('g', 'G')}bit/s", found["rate"])
    where = f"links of {rate}, {100 * found['loss']:g} % loss" if found["links"] else "loopback"
    if short:
        return f"{where}, {found['wire']}"
    return f"{found['workers']} workers, {where}, TCP {found['tcp']}; netsum: {found['protocol']}, {found['wire']}"


def draw(results, path):
    from output import plot

    def panels(_, figure):
        for number, (axes, found) in enumerate(zip(figure.subplots(1, len(results), sharey=True, squeeze=False)[0], results)):
            for name, label, style in (("gloo", "Gloo", "o--"), ("netsum", "netsum", "o-")):
                points = found["trainings"][name]["points"]
                axes.plot([seconds for seconds, _ in points], [100 * seen for _, seen in points], style, ms=3, label=label)
            target = common_target(found)
            axes.axhline(100 * target, color="k", ls=":", lw=0.8)
            axes.set(xlabel="seconds of training", xlim=0, ylim=(50, 85))
            axes.set_title(f"{conditions(found, short=True)}\n{100 * target:.0f} %: {speedup(found):.2f} times as soon", fontsize=9)
            if number == 0:
                axes.set(ylabel="test accuracy, %")
                axes.legend(loc="lower right")
    plot(panels, results, (4 * len(results) if len(results) > 1 else 7, 3.4), path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", metavar="RESULT.json")
    parser.add_argument("--picture", metavar="OUT.svg")
    arguments = parser.parse_args()
    kinds = {}
    for path in arguments.results:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        kinds.setdefault(conditions(found), []).append(found)
    for kind, runs in kinds.items():
        ratios = [speedup(found) for found in runs]
        print(f"{kind}: Gloo's time to {100 * common_target(runs[0]):.0f} % over netsum's {statistics.median(ratios):.2f} "
              f"(median of {', '.join(f'{each:.2f}' for each in ratios)})" + ("" if all(map(right, runs)) else "; SUMS WERE WRONG"))
    if arguments.picture:
        draw([runs[0] for runs in kinds.values()], arguments.picture)


if __name__ == "__main__":
    main()
