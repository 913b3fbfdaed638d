#!/usr/bin/python3
"""Trains the same network over Gloo and over netsum, behind links that relate to compute as in practice, and shows both curves.

Each worker is a host (a network namespace) behind a link; netsum's switch stands where the links meet. It needs root, or the right to
make user namespaces; otherwise all run on loopback, and the demo says so. Both trainings have the same links, network, seed and
order of images, and run one after the other.
"""
import argparse
import json
import os
import re
import shlex
import signal
import sys
import time

import report
import screen
import training
import where

FOLDER = "build/demo"
COMPUTE = 0.5  # seconds that a step takes beside its all-reduce; a guess, for announcements


def a_rate(text):
    if not re.fullmatch(r"[1-9][0-9]*[kmg]bit", text):
        raise argparse.ArgumentTypeError(f"a rate is like 150mbit, not '{text}'")
    return text


def between(least, most, kind):
    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {least} to {most}")
        return value
    return parse


def a_loss(text):
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 0.2:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share from 0 to 0.2 (0.01, or 1%)")
    return value


class Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"demo: {message} (see scripts/demo --help)", file=sys.stderr)
        sys.exit(2)


def parse(words):
    parser = Parser(prog="scripts/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
                    epilog=("examples:\n  scripts/demo                      Gloo and netsum, 4 workers, links of 150 Mbit/s\n"
                            "  scripts/demo --loss 0.01          each link loses one packet of a hundred, each way\n"
                            "  scripts/demo --wire bfloat16      netsum sends gradients as bfloat16; PyTorch's Gloo cannot: float32\n"
                            "  scripts/demo --wire int8          in 8 bits; Gloo: float32; int4: in 4 up and 8 down\n"
                            "  scripts/demo --wire float16       both send float16: Gloo by DDP's fp16_compress_hook\n"
                            f"\nResults: result.json and accuracy.svg in {FOLDER}. Exit code 1: something failed, or a sum was wrong."))
    parser.add_argument("--protocol", choices=("switchml", "atp", "netreduce"), default="switchml", help="netsum's (%(default)s)")
    parser.add_argument("--workers", type=between(2, 32, int), default=4, metavar="N", help="(%(default)s)")
    parser.add_argument("--loss", type=a_loss, default=0.0, metavar="SHARE",
                        help="of packets (0.01, or 1%%), on each link, each way (%(default)g)")
    parser.add_argument("--wire", choices=("float32", "bfloat16", "float16", "int8", "int4"), default="float32", help="how gradients travel (%(default)s)")
    parser.add_argument("--rate", type=a_rate, help="of each link, each way (150mbit; 100mbit for more than 4 workers)")
    parser.add_argument("--tcp", choices=("cubic", "bbr", "reno"), default="cubic",
                        help="TCP's congestion control (%(default)s, Linux's default)")
    parser.add_argument("--steps", type=between(2, 1000, int), default=20, help="of each training (%(default)s)")
    parser.add_argument("--target", type=between(0.2, 0.95, float), default=0.75, metavar="SHARE",
                        help="test accuracy whose time is compared (%(default)s)")
    parser.add_argument("--hidden", type=between(10, 8192, int), default=2560, metavar="WIDTH",
                        help="of the layers (%(default)s: 7.9 million parameters)")
    parser.add_argument("--loopback", action="store_true", help="no links, even where they are permitted")
    parser.add_argument("--output", default=FOLDER, metavar="FOLDER", help="for results (%(default)s)")
    parser.add_argument("--check-arguments", action="store_true", help=argparse.SUPPRESS)  # and nothing else
    parser.add_argument(where.UNSHARED, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.wire != "float32" and arguments.protocol != "switchml":
        parser.error(f"--wire {arguments.wire} is SwitchML's: leave out --protocol {arguments.protocol}")
    if arguments.loss and arguments.loopback:
        parser.error("--loss needs links: leave out --loopback")
    arguments.rate = arguments.rate or ("150mbit" if arguments.workers <= 4 else "100mbit")
    arguments.batch = -(-128 // arguments.workers) * arguments.workers
    arguments.every = 2
    return arguments


def bits_per_second(rate):
    return int(rate[:-4]) * {"k": 1e3, "m": 1e6, "g": 1e9}[rate[-4]]


def expected_seconds(arguments, backend, links):
    """Of a training, by arithmetic: bytes over the link's rate, losses cost what they cost here and in docs/performance.md."""
    if not links:
        return arguments.steps * (0.5 + 0.2 * arguments.workers)
    parameters = arguments.hidden * (784 + 0.9 * arguments.hidden)
    once = parameters * 32 / bits_per_second(arguments.rate) / 0.95
    n = arguments.workers
    times = 2 * (n - 1) / n * (2.2 if arguments.loss >= 0.005 else 1) if backend == "gloo" else 1.05
    if backend == "netsum" and arguments.loss >= 0.005:
        times *= {"switchml": 1, "atp": 2.7, "netreduce": 6}[arguments.protocol]
    less = {"float32": 1, "float16": 2, "bfloat16": 2, "int8": 3.9, "int4": 3.9}[arguments.wire if backend == "netsum" or arguments.wire == "float16" else "float32"]
    return arguments.steps * (COMPUTE * max(1, n / 4) + times * once / less)


def own_machines(arguments):
    """The three commands."""
    protocol = "" if arguments.protocol == "switchml" else f" NETSUM_PROTOCOL={arguments.protocol}"
    wire = f" NETSUM_WIRE={arguments.wire}" if arguments.wire != "float32" else ""
    server = " NETSUM_PS=SERVER:7270" if arguments.protocol == "atp" else ""
    run = (f"MASTER_ADDR=WORKER0 MASTER_PORT=29500 WORLD_SIZE={arguments.workers} RANK=RANK USE_LIBUV=0 \\\n     "
           " PYTHONPATH=build/release/python /usr/bin/python3 examples/ddp_fashion_mnist.py"
           + (f" --batch {arguments.batch}" if arguments.batch != 128 else ""))
    lines = ["On your own machines (SWITCH, WORKER0: their addresses; RANK: 0 on WORKER0, then 1, 2, ...):",
             "  1. at the switch; copy the file token to every worker",
             "     openssl rand -hex 16 >token; build/release/bin/netsum switch --listen 0.0.0.0:7170 --token-file token"]
    if server:
        lines.append("     and at SERVER: build/release/bin/netsum ps --listen 0.0.0.0:7270 --token-file token")
    return [*lines, "  2. on each worker",
            f"     NETSUM_SWITCH=SWITCH:7170{server} NETSUM_TOKEN_FILE=token{protocol}{wire} {run}",
            "  3. on each worker, over Gloo", f"     {run} --backend gloo" + (" --fp16-hook" if arguments.wire == "float16" else "")]


def say(text=""):
    print(text, flush=True)


def minutes(seconds):
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"


def run(arguments, words):
    place, refused = where.make(arguments, words)
    if refused and arguments.loss:
        training.fail(f"--loss needs links, and network namespaces are not permitted here ({refused}): run it where they are, "
                      "or leave out --loss")
    if refused:
        say(f"All workers run on loopback ({refused}): what netsum saves on links will not be visible.")
    found = {"workers": arguments.workers, "links": place.links, "rate": arguments.rate, "loss": arguments.loss, "tcp": place.tcp,
             "protocol": arguments.protocol, "wire": arguments.wire, "target": arguments.target, "trainings": {}}
    say(f"{report.conditions(found)}; {arguments.steps} steps of {arguments.batch} images; accuracy over seconds of training:")
    if arguments.wire in ("bfloat16", "int8", "int4"):
        say(f"  PyTorch's Gloo does not sum {arguments.wire}: over Gloo gradients stay float32. --wire float16 halves both.")
    expected = {name: expected_seconds(arguments, name, place.links) for name in ("gloo", "netsum")}
    drawn = screen.Screen(arguments.steps, arguments.target, max(expected.values()))
    with place:
        for name in ("gloo", "netsum"):
            say(f"== training over {name}: about {minutes(1.15 * expected[name] + 20)}")
            began = time.monotonic()
            one = training.Training(name)
            drawn.begin(one)
            one.run(place, arguments, 120 + 20 * expected[name] / arguments.steps, drawn.show)
            found["trainings"][name] = one.result()
            say(f"== training over {name}: took {minutes(time.monotonic() - began)}, {minutes(one.seconds)} of them in training steps")
    return found


def written(arguments):
    """The files of results."""
    return [os.path.join(arguments.output, name) for name in ("result.json", "accuracy.svg")]


def main():
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"  # where ip, tc and nft are
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    arguments = parse(sys.argv[1:])
    if arguments.check_arguments:
        return 0
    complaint = training.missing()
    if complaint:
        training.fail(complaint)
    try:
        os.makedirs(arguments.output, exist_ok=True)
        if not all(os.access(path, os.W_OK) for path in (arguments.output, *written(arguments)) if os.path.exists(path)):
            training.fail(f"cannot write into {arguments.output}: somebody else's? --output names another folder")
        found = run(arguments, sys.argv[1:])
    except (training.Failed, OSError) as error:
        training.fail(error)
    except KeyboardInterrupt:
        print("\ndemo: stopped", file=sys.stderr)
        return 130
    result, picture = written(arguments)
    with open(result, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")
    say()
    for line in [*report.table(found), "", "  " + report.why(found), ""]:
        say(line)
    report.draw([found], picture)
    say(f"all numbers: {shlex.quote(result)}\n")
    for line in own_machines(arguments):
        say(line)
    if not report.right(found):
        print("\ndemo: a sum was wrong, or workers ended with different weights: see the table", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
