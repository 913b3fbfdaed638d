#!/usr/bin/python3
"""What conversions cost (SwitchML §6.3, Figure 11): all-reduces of int32, which is converted nowhere, of float32, scaled to int32 and back, and of
float32 whose packets hold float16. Real ranks over this machine's loopback, where processors are what bounds them; rounds take turns, and a
ratio is of the fastest calls, to which other work adds the least.
"""
import argparse
import json
import os
import subprocess

from network import ROOT
from output import say, table

NETSUM = os.path.join(ROOT, "build/release/bin/netsum")
TYPES = {"int32": ("--dtype", "int32"), "float32": (), "float32, float16 in packets": ("--wire", "float16"), "float16": ("--dtype", "float16")}


def fastest(flags, options):
    command = [NETSUM, "bench", "all-reduce", "--workers", options.workers, "--elements", options.elements, "--iterations", options.iterations, "--json", *flags]
    report = json.loads(subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    if report["wrong"] != 0:
        raise SystemExit(f"{report['wrong']} wrong elements")
    return report["tat_seconds"]["min"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("switchml-types",))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--elements", type=int, default=6_250_000)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of short tensors")
    parser.add_argument("--output", default="build/reproduce", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.elements, options.rounds = 100_000, 1
    seconds = {name: [] for name in TYPES}
    for turn in range(options.rounds):
        for name in [*TYPES][turn % len(TYPES):] + [*TYPES][:turn % len(TYPES)]:
            say(f"round {turn + 1}: {name}")
            seconds[name].append(fastest(TYPES[name], options))
    least = {name: min(each) for name, each in seconds.items()}
    table([[name, f"{1e3 * value:.1f} ms", f"{value / least['int32']:.2f}"] for name, value in least.items()], ["elements", "fastest", "over int32"])
    os.makedirs(options.output, exist_ok=True)
    with open(os.path.join(options.output, "switchml-types.json"), "w", encoding="utf-8") as file:
        json.dump(seconds, file, indent=1)


if __name__ == "__main__":
    main()
