#!/usr/bin/python3
"""A table and a plot of trainings that ddp_fashion_mnist.py has measured: compare_trainings.py A.json B.json --plot OUT.png"""

import argparse
import json

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

COLUMNS = ("backend", "test accuracy", "seconds per step", "seconds in all-reduce", "bytes on the wire per worker")


def rows(runs):
    for run in runs:
        yield (run["backend"], f"{100 * run['test_accuracy']:.2f} %", f"{run['seconds_per_step']:.3f}",
               f"{run['seconds_in_all_reduce']:.1f}", f"{run['wire_bytes_sent_per_worker'] / 1e6:.0f} MB")


def print_table(runs):
    lines = [COLUMNS, *rows(runs)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    for number, line in enumerate(lines):
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(line, widths))).rstrip())
        if number == 0:
            print("  ".join("─" * width for width in widths))
    first = runs[0]
    print(f"\n{first['workers']} workers, {first['steps']} steps of {first['images_per_step']} images, "
          f"{first['parameters']} parameters. Seconds in all-reduce: rank 0, whole training, from the first\nbucket's start to "
          "the last one's end (DDP's own stopwatch), the backward pass that overlaps included. Bytes: sent by one\nworker "
          "(mean), as the kernel (TCP) and netsum (UDP) count them, headers and DDP's broadcasts included.")
    if first.get("statistics"):
        print(f"netsum: {first['statistics']['placement']}")


def smooth(values, share=0.1):
    mean, result = values[0], []
    for value in values:
        mean += share * (value - mean)
        result.append(mean)
    return result


def plot(runs, path):
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8))
    for run, style in zip(runs, ("-", "--", ":", "-.")):
        left.plot(range(1, len(run["loss"]) + 1), smooth(run["loss"]), style, label=run["backend"])
        right.plot(*zip(*[(step, 100 * accuracy) for step, accuracy in run["accuracy"]]), style + "o", markersize=4,
                   label=run["backend"])
    left.set(xlabel="step", ylabel="training loss (smoothed)", ylim=(0, None))
    right.set(xlabel="step", ylabel="test accuracy, %")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"Fashion-MNIST, DistributedDataParallel, {runs[0]['workers']} workers")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN.json")
    parser.add_argument("--plot", help="write loss and accuracy over steps to this PNG file")
    arguments = parser.parse_args()
    runs = []
    for path in arguments.runs:
        with open(path, encoding="utf-8") as file:
            runs.append(json.load(file))
    print()
    print_table(runs)
    if arguments.plot:
        plot(runs, arguments.plot)
        print(f"\nLoss and accuracy over steps: {arguments.plot}")


if __name__ == "__main__":
    main()
