#!/usr/bin/python3
"""Tables and figures of the papers by the simulator and by formulas (docs/reproduction.md): prints tables, and writes plots and JSON into
build/reproduce. The JSON is the same, to the digit, on every run.

NAME is a table or figure (switchml-table1), a paper (switchml, atp, netreduce), beyond, or all; several are possible.
"""
import argparse
import dataclasses
import json
import os
import shutil
import time

import document
from figure import draw, grid
from network import ROOT
from output import plot, say, table
from papers import PAPERS, runnable


def chosen(names):
    of_papers = {paper: runnable(paper) for paper in PAPERS}
    everything = [figure for figures in of_papers.values() for figure in figures]
    known = {figure.name: [figure] for figure in everything} | of_papers | {"all": everything}
    for name in names:
        if name not in known:
            raise SystemExit(f"reproduce: no table, figure or paper '{name}': it is one of {', '.join(known)}")
    return list(dict.fromkeys(figure for name in names for figure in known[name]))


def make(figure, options):
    """What papers/reproduction.json has of it."""
    began = time.monotonic()
    result = figure.make(options.short)
    seconds = time.monotonic() - began
    print(f"{figure.name}: {figure.title} ({figure.how}; {seconds:.0f} s)\n")
    table(result.rows, result.header)
    texts = {"paper": figure.paper, "ours": result.ours, "because": figure.reason, "fitted": figure.fitted, "differs": result.explained}
    print("\n" + "\n".join(f"  {name + ':':9}{text}" for name, text in texts.items() if text) + "\n")
    path = os.path.join(options.output, figure.name)
    with open(path + ".json", "w", encoding="utf-8") as file:
        json.dump({"name": figure.name, "how": figure.how, "short": options.short, **dataclasses.asdict(result)}, file, indent=1)
        file.write("\n")
    if result.panels and not options.no_plots:
        rows, columns = grid(result)
        plot(draw, result, (4.5 * columns, 3.4 * rows), path + ".svg")
        if figure.picture and options.document:
            shutil.copy(path + ".svg", os.path.join(ROOT, "docs/images"))
    return {"ours": result.ours, "header": result.header, "rows": result.rows, "beside": [dataclasses.asdict(each) for each in result.beside],
            "explained": result.explained, "seconds": round(seconds, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--simulated", action="store_true", help="with a paper or all: nothing that is measured (the default without root)")
    parser.add_argument("--short", action="store_true", help="less data: whether all of it works, in seconds")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument("--document", action="store_true", help="put the rows into docs/reproduction.md, too")
    parser.add_argument("--output", default="build/reproduce", metavar="FOLDER")
    options = parser.parse_args()
    if options.short and options.document:
        parser.error("--document needs full runs: without --short")
    os.makedirs(options.output, exist_ok=True)
    made = {figure.name: make(figure, options) for figure in chosen(options.names)}
    if options.document:
        document.update(made)
    say(f"{len(made)} in {sum(each['seconds'] for each in made.values()):.0f} s")


if __name__ == "__main__":
    main()
