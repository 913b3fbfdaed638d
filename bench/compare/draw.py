"""Plots of what was measured, with the bounds of the links drawn in."""
import os

import results
from output import plot

# Of a full frame on a link: what TCP carries of a tensor, and what a packet of netsum's can at most, with its headers.
TCP_SHARE, INA_SHARE = 1448 / 1514, 1440 / 1514
STYLES = ("o-", "s--", "^-.", "v:", "d-", "x--", "+-.")


def bits(rate):
    unit = rate.lstrip("0123456789")
    return int(rate[:-len(unit)]) * {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[unit]


def in_network(elements, rate):
    """Seconds that the fullest link needs: |U| each way."""
    return elements * 32 / bits(rate) / INA_SHARE


def ring(elements, workers, rate):
    return 2 * (workers - 1) / workers * elements * 32 / bits(rate) / TCP_SHARE


def lines(runs, key):
    """By contender, sorted points of TAT."""
    found = {}
    for run in runs:
        found.setdefault(run["label"], []).append((key(run), run))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in sorted(found.items())}


def draw_lines(axes, runs, key, value):
    for style, (name, points) in zip(STYLES * 3, lines(runs, key).items()):
        axes.plot([at for at, _ in points], [value(run) for _, run in points], style, ms=4, label=name)


def tat(run):
    return run["tat_seconds"]


def ate(run):
    return run["elements"] / run["tat_seconds"] / 1e6


def both(figure, runs, key, label, bound_points, rate_of, scale="linear"):
    """TAT and ATE/s beside each other, with what in-network aggregation and a ring could at best."""
    left, right = figure.subplots(1, 2)
    for axes, value, name in ((left, tat, "TAT, s"), (right, ate, "million elements/s")):
        draw_lines(axes, runs, key, value)
        for style, title, of in (("k:", "bound, in the network", lambda n, e, r: in_network(e, r)), ("k-.", "bound, ring", lambda n, e, r: ring(e, n, r))):
            points = [(at, of(workers, elements, rate_of(workers, elements, at))) for at, workers, elements in bound_points]
            axes.plot([at for at, _ in points], [took if value is tat else elements / took / 1e6
                                                 for (_, took), (_, _, elements) in zip(points, bound_points)], style, label=title)
        axes.set(xlabel=label, ylabel=name, xscale=scale)
    left.legend(fontsize=7)


def labelled(runs, by=("who",)):
    return [dict(run, label=", ".join(str(run[key]) for key in by)) for run in runs]


def of_suite(found, suite):
    return [run for run in found["runs"].values() if run["suite"] == suite]


def scaling(found):
    runs = labelled(run for run in of_suite(found, "scaling") if run["group"] == "scaling")
    if not runs:
        return None
    rate, elements = runs[0]["rate"], runs[0]["elements"]
    points = sorted({(run["workers"], run["workers"], elements) for run in runs})
    return lambda _, figure: both(figure, runs, lambda run: run["workers"], f"workers (4 MB, links of {rate})", points, lambda *_: rate)


def sweep_size(found):
    runs = labelled(run for run in of_suite(found, "sweep") if run["rate"] == "200mbit")
    if not runs:
        return None
    points = sorted({(run["elements"] * 4e-6, run["workers"], run["elements"]) for run in runs})
    return lambda _, figure: both(figure, runs, lambda run: run["elements"] * 4e-6, "MB (4 workers, links of 200mbit)", points,
                                  lambda *_: "200mbit", "log")


def sweep_rate(found):
    runs = labelled(run for run in of_suite(found, "sweep") if run["elements"] == 1_000_000)
    if not runs:
        return None
    rates = {bits(run["rate"]) / 1e6: run["rate"] for run in runs}
    points = [(at, 4, 1_000_000) for at in sorted(rates)]
    return lambda _, figure: both(figure, runs, lambda run: bits(run["rate"]) / 1e6, "Mbit/s of each link (4 workers, 4 MB)", points,
                                  lambda workers, elements, at: rates[at])


def loss(found):
    runs = [dict(run, label=run["who"] + (f" on {run['tcp']}" if run["who"] == "Gloo" else ""))
            for run in of_suite(found, "loss") + of_suite(found, "repair") if run["loss"] == 0 or not run.get("lossy")]
    if not runs:
        return None

    def draw(_, figure):
        workers = sorted({run["workers"] for run in runs})
        for row, panels in zip(workers, figure.subplots(len(workers), 2, squeeze=False)):
            own = [run for run in runs if run["workers"] == row]
            own = [run for run in own if run["rate"] == own[0]["rate"]]
            base = {run["label"]: run["tat_seconds"] for run in own if run["loss"] == 0}
            draw_lines(panels[0], own, lambda run: max(run["loss"], 0.001), tat)
            panels[0].axhline(in_network(own[0]["elements"], own[0]["rate"]), color="k", ls=":", label="bound, in the network")
            panels[0].axhline(ring(own[0]["elements"], row, own[0]["rate"]), color="k", ls="-.", label="bound, ring")
            draw_lines(panels[1], [run for run in own if run["label"] in base], lambda run: max(run["loss"], 0.001),
                       lambda run: run["tat_seconds"] / base[run["label"]])
            panels[0].set(ylabel="TAT, s", title=f"N = {row}, {own[0]['rate']}")
            panels[1].set(ylabel="TAT / TAT without loss", title="inflation (SwitchML, Figure 6)", yscale="log")
            for axes in panels:
                axes.set(xlabel="% loss of each link, each way (leftmost: 0)", xscale="log")
            panels[0].legend(fontsize=7)
    return draw


def timeline(found):
    if not found["timeline"]:
        return None

    def draw(_, figure):
        each = found["timeline"]["lines"]
        names = list(dict.fromkeys(line["who"] for line in each))
        for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False)[0]):
            for line in each:
                if line["who"] == name:
                    axes.plot([at for at, _ in line["packets"]], [packets for _, packets in line["packets"]], lw=0.9, label=f"{line['loss']:g} %")
            axes.set(title=f"{name} (as in SwitchML's Figure 7)", xlabel="s", ylabel="packets sent in 10 ms", ylim=0)
            axes.legend()
    return draw


def latency(found):
    runs = labelled(of_suite(found, "latency"))
    if not runs:
        return None

    def draw(_, figure):
        workers = sorted({run["workers"] for run in runs})
        for count, axes in zip(workers, figure.subplots(1, len(workers), sharey=True, squeeze=False)[0]):
            draw_lines(axes, [run for run in runs if run["workers"] == count], lambda run: run["elements"] * 4,
                       lambda run: 1e6 * run["tat_seconds"])
            axes.set(title=f"N = {count}", xlabel="bytes", ylabel="µs (median)", xscale="log", yscale="log")
            axes.legend(fontsize=7)
    return draw


def growth(found):
    if not found["growth"]:
        return None

    def draw(_, figure):
        axes = figure.subplots()
        points = found["growth"]["points"]
        for style, jobs in zip(STYLES, sorted({point["jobs"] for point in points})):
            own = [point for point in points if point["jobs"] == jobs]
            axes.plot([point["workers"] for point in own], [point["nanoseconds"] for point in own], style, label=f"{jobs} job{'s' if jobs > 1 else ''}")
        axes.set(xlabel="workers", ylabel="ns per element of a contribution", xscale="log", ylim=0)
        axes.legend()
    return draw


PLOTS = {"scaling": (scaling, (9, 3.4)), "sweep-size": (sweep_size, (9, 3.4)), "sweep-rate": (sweep_rate, (9, 3.4)), "loss": (loss, (9, 6.4)),
         "loss-timeline": (timeline, (9, 3)), "latency": (latency, (9, 3.6)), "growth": (growth, (5, 3.2))}


def all_plots(found, folder):
    """Each of the processor measured last that has what it shows."""
    os.makedirs(folder, exist_ok=True)
    for name, (make, size) in PLOTS.items():
        for part in results.newest_first(found):
            if draw := make(part):
                plot(draw, part, size, os.path.join(folder, f"performance-{name}.svg"))
                break
