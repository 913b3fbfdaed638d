"""What the commands print and draw."""
import sys


def table(rows, header):
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths)))


def say(text):
    print(f"  {text}", file=sys.stderr, flush=True)


def plot(draw, results, size, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    matplotlib.rcParams.update({"svg.hashsalt": "netsum", "svg.fonttype": "none", "axes.grid": True, "grid.alpha": 0.3, "font.size": 9})
    figure = pyplot.figure(figsize=size, layout="constrained")
    draw(results, figure)
    figure.savefig(path, metadata={"Date": None})
    print(f"\npicture: {path}", file=sys.stderr)
