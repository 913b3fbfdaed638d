"""The papers, and what each evaluation has: every numbered table and figure is to have a row in docs/reproduction.md."""
import os
import re

import atp_figures
import beyond
import netreduce_figures
import switchml_figures
from figure import Figure
from scenario import NS3

# name: title, tables and figures of its evaluation, appendices included, and ours.
PAPERS = {
    "switchml": ("SwitchML", "Tables 1, 2, 3, 4; Figures 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13", switchml_figures.FIGURES),
    "atp": ("ATP", "Table 1; Figures 3, 8, 9, 10, 11, 12, 13a, 13b, 13c, 14, 15, 16, 18, 19, 20", atp_figures.FIGURES),
    "netreduce": ("NetReduce", "Tables 1, 2, 5, 6, 7, 8, 9, 10; Figures 2, 7, 11, 12, 13, 14", netreduce_figures.FIGURES),
    "beyond": ("Beyond the papers", "", beyond.FIGURES),
}


def items(text):
    """{"Table 1", "Figure 13a", ...} of "Table 1; Figures 13a, 14"."""
    return {f"{kind} {number}" for kind, numbers in re.findall(r"(Table|Figure)s? (\w+(?:, \w+)*)", text) for number in numbers.split(", ")}


def runnable(paper):
    """What scripts/reproduce --simulated makes of it."""
    _, _, figures = PAPERS[paper]
    return [figure for figure in figures if isinstance(figure, Figure) and (figure.how != "simulated, ns-3" or os.access(NS3, os.X_OK))]


def without_row():
    """What a paper has and docs/reproduction.md would not."""
    return [f"{title}, {item}" for title, evaluated, figures in PAPERS.values()
            for item in sorted(items(evaluated) - set().union(*(items(figure.item) for figure in figures)))]
