#!/usr/bin/python3
"""Every collective with every operation on every type, over sockets, over a tree, in shared memory, without loss and with 1 %: the
benchmark's oracle finds no wrong element, and the bits are the same everywhere, but that bfloat16 and fewer bits have others in trees. Too long for every run: ctest -C thorough -R every_cell

    every_cell.py NETSUM [--collective NAME] [--elements E ...] [--dtype TYPE ...]
"""
import argparse
import json
import subprocess
import sys

import cli_support as cli

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
ARITHMETIC = ("sum", "avg", "min", "max", "prod")
OPERATIONS = {**{dtype: ARITHMETIC for dtype in FLOATS},
              **{dtype: (*ARITHMETIC, "band", "bor", "bxor") for dtype in INTEGERS},
              "bool": ("sum", "min", "max", "prod", "band", "bor", "bxor")}
COMBINING = ("all-reduce", "reduce", "reduce-scatter")
SHORT = ("--packet-elements", 64)  # so that a hundred packets are there to be lost
WAYS = {"sockets": (), "loss": (*SHORT, "--loss", 0.01), "tree": ("--racks", 2),
        "tree with loss": (*SHORT, "--racks", 2, "--loss", 0.01), "another tree": ("--racks", 3), "shared memory": ("--transport", "shm")}


PRIVATE = {"private": ("--private",), "private tree with loss": (*SHORT, "--private", "--racks", 2, "--loss", 0.01)}


def ways(collective, dtype, op, wire):
    if wire != "native":
        return {way: flags for way, flags in WAYS.items() if way != "shared memory"}
    if collective in COMBINING and (op not in ("sum", "avg") or dtype in ("bool", "float64")):
        return WAYS
    return WAYS | PRIVATE


def report(collective, *words):
    result = cli.run("bench", collective, "--json", "--workers", 3, "--iterations", 2, "--warmup", 0, "--seed", 5, *words, limit=120)
    if result.returncode != 0:
        return {"failed": (result.stderr or result.stdout).strip().splitlines()[-1]}
    return json.loads(result.stdout)


def cells(collective, dtype):
    """Operations, and formats of their values in packets."""
    for op in OPERATIONS[dtype] if collective in COMBINING else (None,):
        yield op, "native"
        if dtype in ("float32", "bfloat16") and op in ("sum", "avg"):
            yield from ((op, "int8"), (op, "int4"))


def kind_of(way, dtype, op, wire):
    if op not in ("sum", "avg"):
        return ""
    if way in PRIVATE and dtype in ("float16", "bfloat16"):  # their sums have the bits of wider packets
        return "wide"
    return "exact" if "tree" in way and way not in PRIVATE and (wire != "native" or dtype == "bfloat16") else ""


def check(collective, dtype, op, wire, elements):
    """What is wrong with the cell, a line each."""
    words = ("--dtype", dtype, "--elements", elements, *(("--op", op) if op else ()), *(("--wire", wire) if wire != "native" else ()))
    expected, wrong = {}, []  # by what gives the same bits
    for way, flags in ways(collective, dtype, op, wire).items():
        found = report(collective, *words, *flags)
        if "failed" in found:
            wrong.append(f"{way}: {found['failed']}")
            continue
        kind = kind_of(way, dtype, op, wire)
        if kind == "wide" and kind not in expected:
            expected[kind] = report(collective, *words, "--wire", "float32")["result_hash"]
        expected.setdefault(kind, found["result_hash"])
        if found["wrong"] != 0:
            wrong.append(f"{way}: {found['wrong']} wrong elements")
        if found["result_hash"] != expected[kind]:
            wrong.append(f"{way}: {found['result_hash']}, not {expected[kind]}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("netsum")
    parser.add_argument("--collective", nargs="+", default=[*COMBINING, "all-gather", "broadcast"])
    parser.add_argument("--elements", nargs="+", type=int, default=[3 * 3335], help="a multiple of 3 ranks for reduce-scatter")
    parser.add_argument("--dtype", nargs="+", default=list(OPERATIONS), choices=OPERATIONS)
    options = parser.parse_args()
    cli.NETSUM = options.netsum
    bad = count = 0
    for collective in options.collective:
        for dtype in options.dtype:
            line = []
            for op, wire in cells(collective, dtype):
                wrong = [each for elements in options.elements for each in check(collective, dtype, op, wire, elements)]
                count, bad = count + 1, bad + bool(wrong)
                name = f"{op or 'bytes'}{'' if wire == 'native' else ' as ' + wire}"
                line.append(f"{name} {'BAD' if wrong else 'ok'}")
                for each in wrong:
                    print(f"{collective} {dtype} {name}: {each}", file=sys.stderr)
            print(f"{collective:15} {dtype:9} {'  '.join(line)}", flush=True)
    print(f"{count} cells, {bad} bad; each over {', '.join(WAYS)}")
    return bad != 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.TimeoutExpired as late:
        sys.exit(f"every_cell: not within {late.timeout} s: {' '.join(late.cmd)}")
