"""A table or figure of a paper: how it is made again, shown and drawn."""
import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str  # "switchml-table1"
    item: str  # of the paper: "Table 1"
    title: str
    how: str  # "simulated, packets", "simulated, flows" or "computed"
    make: Callable  # of short: a Result; a short one has the same shape, less data
    paper: str = ""  # its numbers
    reason: str = ""  # for differences


@dataclasses.dataclass
class Result:
    header: list
    rows: list
    ours: str  # our numbers, as short as the paper's
    panels: list = dataclasses.field(default_factory=list)


def lines(series, marks=(), **labels):
    """A panel of lines, {label: [(x, y), ...]}, with the paper's points (label, x, y) as marks."""
    return {"kind": "lines", "series": series, "marks": list(marks), **labels}


def bars(groups, series, marks=(), **labels):
    """A panel of bars, {label: a value for each group}; marks: (label, values), None where the paper says nothing."""
    return {"kind": "bars", "groups": list(groups), "series": series, "marks": list(marks), **labels}


STYLES = ("o-", "s--", "^-.", "v:", "d-", "x--", "+-.")


def draw(result, figure):
    for panel, axes in zip(result.panels, figure.subplots(1, len(result.panels), squeeze=False)[0]):
        if panel["kind"] == "lines":
            for style, (label, points) in zip(STYLES * 3, panel["series"].items()):
                axes.plot([x for x, _ in points], [y for _, y in points], style, ms=3, lw=1.2, label=label)
            for label, x, y in panel["marks"]:
                axes.plot([x], [y], "k*", ms=9, label=label)
        else:
            width = 0.8 / len(panel["series"])
            for at, (label, values) in enumerate(panel["series"].items()):
                axes.bar([group + (at - (len(panel["series"]) - 1) / 2) * width for group in range(len(values))], values, width, label=label)
            for label, values in panel["marks"]:
                known = [(group, value) for group, value in enumerate(values) if value is not None]
                axes.plot([group for group, _ in known], [value for _, value in known], "k*", ms=7, label=label)
            axes.set_xticks(range(len(panel["groups"])), panel["groups"], rotation=40, ha="right")
        axes.set(xlabel=panel.get("x", ""), ylabel=panel.get("y", ""), title=panel.get("title", ""), xscale=panel.get("xscale", "linear"),
                 yscale=panel.get("yscale", "linear"))
        if panel.get("yscale", "linear") == "linear":
            axes.set(ylim=0)
        axes.legend(fontsize=7)
