"""What the commands print and draw."""
import re
import sys


def table(rows, header):
    widths = [max(len(str(row[i])) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths)))


def say(text):
    print(f"  {text}", file=sys.stderr, flush=True)


def shortened(svg):
    """Of matplotlib's: an element on a line, without what says nothing, and with hundredths of a point."""
    for what, less in ((r"<metadata>.*?</metadata>\s*", ""), (r' transform="rotate\(-0 [^"]*"', ""), (r"'DejaVu Sans', 'Bitstream[^;\"]*sans-serif", "'DejaVu Sans', sans-serif")):
        svg = re.sub(what, less, svg, flags=re.S)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", " ".join(tag[0].split())), svg)
    return re.sub(r"\s*\n\s*(?=</?(g|defs|clipPath)\b)", "", svg)


def plot(draw, results, size, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    matplotlib.rcParams.update({"svg.hashsalt": "netsum", "svg.fonttype": "none", "axes.grid": True, "grid.alpha": 0.3, "font.size": 9})
    figure = pyplot.figure(figsize=size, layout="constrained")
    draw(results, figure)
    figure.savefig(path, metadata={"Date": None})
    if path.endswith(".svg"):
        with open(path, "r+", encoding="utf-8") as file:
            short = shortened(file.read())
            file.seek(0)
            file.write(short)
            file.truncate()
    print(f"\npicture: {path}", file=sys.stderr)
