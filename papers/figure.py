"""A table or figure of a paper: how it is made again, shown and drawn."""
import dataclasses
from collections.abc import Callable


FAR = 0.15
NOISE = 0.02  # of simulations: who is so little ahead is not


@dataclasses.dataclass(frozen=True)
class Beside:
    """A number of the paper, and ours; of an Elsewhere ours is text for document.Measured. None that was fitted to the paper's."""
    what: str
    paper: float | str  # or a bound that its text gives: "< 1"
    ours: float | str
    even: float | None = None  # where neither side wins: 1 of a ratio, 0 of a gain

    def contradicts(self):
        """The other side wins, or the bound does not hold."""
        if isinstance(self.paper, str):
            sign, bound = self.paper.split()
            return self.ours > float(bound) * (1 + NOISE) if sign == "<" else self.ours < float(bound) * (1 - NOISE)
        return self.even is not None and (self.paper - self.even) * (self.ours - self.even) < 0 and self.off() > NOISE

    def off(self):
        return abs(self.ours / self.paper - 1)

    def far(self):
        return not isinstance(self.paper, str) and self.off() > FAR


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str  # "switchml-table1"
    item: str  # of the paper: "Table 1"
    title: str
    how: str  # "simulated, packets", "simulated, flows", "simulated, ns-3" (left out where that is not installed), "trained" or "computed"
    make: Callable  # of short: a Result; a short one has the same shape, less data
    paper: str = ""  # its numbers
    reason: str = ""  # where its parameters depart from the paper's, and why
    fitted: str = ""  # what of it was fitted to the paper's result, and so is no evidence for it
    picture: bool = False  # --document puts it into docs/images, too


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """One that another command makes, or nobody: a row of docs/reproduction.md alone."""
    item: str
    title: str
    how: str  # "measured", or "not here"; or of a Figure that shows the same
    ours: str = ""  # with what document.Measured fills in
    command: str = ""
    paper: str = ""
    reason: str = ""
    beside: tuple = ()
    explained: str = ""


@dataclasses.dataclass
class Result:
    header: list
    rows: list
    ours: str  # our numbers, as short as the paper's
    panels: list = dataclasses.field(default_factory=list)
    beside: list = dataclasses.field(default_factory=list)  # of Beside: what is far from the paper or contradicts it is listed
    explained: str = ""  # why, by an experiment of this figure; needed if there is such a one


def lines(series, marks=(), **labels):
    """A panel of lines, {label: [(x, y), ...]}, with the paper's points (label, x, y) as marks; `bare`: without a mark at each point."""
    return {"kind": "lines", "series": series, "marks": list(marks), **labels}


def bars(groups, series, marks=(), **labels):
    """A panel of bars, {label: a value for each group}; marks: (label, values), None where the paper says nothing."""
    return {"kind": "bars", "groups": list(groups), "series": series, "marks": list(marks), **labels}


def points(groups, series, **labels):
    """A panel of points, {label: a value for each group}, a row for each group, and a line at 1."""
    return {"kind": "points", "groups": list(groups), "series": series, "marks": [], **labels}


STYLES = ("o-", "s--", "^-.", "v:", "d-", "x--", "+-.")


def grid(result):
    """Rows and columns of panels."""
    rows = -(-len(result.panels) // 4)
    return rows, -(-len(result.panels) // rows)


def draw(result, figure):
    for panel, axes in zip(result.panels, figure.subplots(*grid(result), squeeze=False).flat):
        if panel["kind"] == "lines":
            for style, (label, points) in zip(STYLES * 3, panel["series"].items()):
                axes.plot([x for x, _ in points], [y for _, y in points], style[panel.get("bare", 0):], ms=3, lw=1.2, label=label)
            for label, x, y in panel["marks"]:
                axes.plot([x], [y], "k*", ms=9, label=label)
        elif panel["kind"] == "points":
            for style, (label, values) in zip(STYLES, panel["series"].items()):
                axes.plot(values, range(len(values)), style[0], ms=5, label=label)
            axes.axvline(1, color="k", lw=1)
            axes.invert_yaxis()
        else:
            width = 0.8 / len(panel["series"])
            for at, (label, values) in enumerate(panel["series"].items()):
                axes.bar([group + (at - (len(panel["series"]) - 1) / 2) * width for group in range(len(values))], values, width, label=label)
            for label, values in panel["marks"]:
                known = [(group, value) for group, value in enumerate(values) if value is not None]
                axes.plot([group for group, _ in known], [value for _, value in known], "k*", ms=7, label=label)
        axes.set(xlabel=panel.get("x", ""), ylabel=panel.get("y", ""), title=panel.get("title", ""), xscale=panel.get("xscale", "linear"),
                 yscale=panel.get("yscale", "linear"))
        # A scale puts its own ticks.
        if panel["kind"] == "bars":
            axes.set_xticks(range(len(panel["groups"])), panel["groups"], rotation=40, ha="right")
        if panel["kind"] == "points":
            axes.set_yticks(range(len(panel["groups"])), panel["groups"])
        elif panel.get("yscale", "linear") == "linear":
            axes.set(ylim=0)
        axes.legend(fontsize=7)
