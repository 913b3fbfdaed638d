#!/usr/bin/python3
"""Times netsum, Gloo and Open MPI in turn on this machine and prints times, bytes and ratios with intervals.

All implementations run once in every round, one after the other, so that what else the machine does meets all of them.
A ratio is the peer's median TAT over netsum's in the same round: above 1, netsum is faster. docs/benchmarks.md says more.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))

NETSUM = {  # name: flags
    "netsum": [],  # a thread of every process on each CPU
    "netsum, one thread": ["--threads", "1"],
}
MPI = {  # name: (slice bytes, mca parameters)
    "Open MPI": (0, []),
    "Open MPI, slices": (512_000, ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "6"]),
}
GLOO = "Gloo"


def run(command, limit):
    """Standard output of a command, which is killed with all its children if it takes longer than `limit` seconds."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        sys.exit(f"{command[0]}: no end after {limit} s")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{err.strip()[-2000:]}")
    return out


def run_netsum(args, flags, workers, elements):
    out = run([args.netsum, "bench", "all-reduce", "--json", "--workers", str(workers), "--elements", str(elements),
               "--iterations", str(args.iterations), "--warmup", str(args.warmup)] + flags, args.limit)
    report = json.loads(out)
    return {"tat": report["tat_seconds"]["median"], "wrong": report["wrong"], "placement": report["placement"].split(";")[0],
            "bytes": report["wire_bytes_per_worker"]["sent"]}


def run_peer(command, args):
    results = {}
    for line in run(command, args.limit).splitlines():
        if line.startswith("{"):
            report = json.loads(line)
            results[report["elements"]] = {"tat": statistics.median(report["tat_seconds"]), "wrong": report["wrong"],
                                           "placement": report["placement"], "bytes": report["bytes_per_worker"]}
    return results


def run_gloo(args, workers, lengths):
    return run_peer([args.python, os.path.join(HERE, "all_reduce_gloo.py"), "--workers", str(workers), "--iterations",
                     str(args.iterations), "--warmup", str(args.warmup)] + [str(each) for each in lengths], args)


def run_mpi(args, slice_bytes, parameters, workers, lengths):
    command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", str(workers), "--mca", "pml", "ob1", "--mca", "btl",
               "vader,self", "--mca", "mpi_yield_when_idle", "1"] + parameters
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    return run_peer(command + [args.mpi, str(args.iterations), str(args.warmup), str(slice_bytes)] +
                    [str(each) for each in lengths], args)


def one_round(args, workers, lengths, order):
    results = {}
    for name in order:
        if name in NETSUM:
            results[name] = {each: run_netsum(args, NETSUM[name], workers, each) for each in lengths}
        elif name in MPI:
            results[name] = run_mpi(args, *MPI[name], workers, lengths)
        else:
            results[name] = run_gloo(args, workers, lengths)
    return results


def interval(ratios, generator):
    """Median, and the 2.5 % and 97.5 % quantiles of medians of resampled rounds."""
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[50], medians[1949]


def summarize(rounds, workers, elements, names):
    generator = random.Random(1)
    rows = []
    for name in names:
        runs = [each[name][elements] for each in rounds]
        tat = statistics.median(each["tat"] for each in runs)
        row = {"implementation": name, "workers": workers, "elements": elements, "tat_seconds": tat,
               "ate_per_second": elements / tat, "wrong": sum(each["wrong"] for each in runs),
               "placement": runs[0]["placement"],
               "bytes_per_worker": None if runs[0]["bytes"] is None else statistics.median(each["bytes"] for each in runs),
               "tat_of_rounds": [each["tat"] for each in runs], "ratios": {}}
        for base in NETSUM:
            if base in names and name not in NETSUM:
                paired = [each[name][elements]["tat"] / each[base][elements]["tat"] for each in rounds]
                middle, low, high = interval(paired, generator)
                row["ratios"][base] = {"median": middle, "low": low, "high": high}
        rows.append(row)
    return rows


def print_table(rows, bases):
    print(f"\n{rows[0]['workers']} workers, {rows[0]['elements'] * 4 / 1e6:g} MB of float32")
    heads = "".join(f"  {'TAT / ' + base:>26}" for base in bases)
    print(f"  {'':24}{'TAT ms':>9}{'M elem/s':>10}{'MB/worker':>11}{'wrong':>7}{heads}  placement")
    for row in rows:
        sent = "-" if row["bytes_per_worker"] is None else f"{row['bytes_per_worker'] / 1e6:.2f}"
        ratios = ""
        for base in bases:
            ratio = row["ratios"].get(base)
            text = "" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
            ratios += f"  {text:>26}"
        print(f"  {row['implementation']:24}{row['tat_seconds'] * 1e3:9.2f}{row['ate_per_second'] / 1e6:10.1f}{sent:>11}"
              f"{row['wrong']:7}{ratios}  {row['placement']}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--netsum", required=True, help="the netsum binary")
    parser.add_argument("--mpi", required=True, help="the all_reduce_mpi binary")
    parser.add_argument("--python", default="/usr/bin/python3", help="the python that has torch")
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--mb", default="1,4,25,100", help="tensor sizes, 10^6 bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=5, help="timed all-reduces in a round")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--only", default="", help="comma-separated: netsum, gloo, mpi (default: all)")
    parser.add_argument("--limit", type=float, default=180, help="seconds that one process may take")
    parser.add_argument("--json", metavar="FILE", help="also write all results there (- for standard output, without tables)")
    parser.add_argument("--quick", action="store_true", help="3 rounds of 3 iterations, 1 and 25 MB: a minute or two")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.iterations, args.mb = 3, 3, "1,25"
    lengths = [int(float(each) * 1e6 / 4) for each in args.mb.split(",")]
    chosen = args.only.lower().split(",") if args.only else ["netsum", "gloo", "mpi"]
    names = [name for group, members in (("netsum", NETSUM), ("gloo", [GLOO]), ("mpi", MPI)) if group in chosen
             for name in members]
    bases = [name for name in names if name in NETSUM]
    all_rows = []
    for workers in [int(each) for each in args.workers.split(",")]:
        rounds = []
        for number in range(args.rounds):
            order = names[number % len(names):] + names[:number % len(names)]  # nobody always comes first
            rounds.append(one_round(args, workers, lengths, order))
            print(f"{workers} workers: round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        for elements in lengths:
            rows = summarize(rounds, workers, elements, names)
            all_rows += rows
            if args.json != "-":
                print_table(rows, bases)
    if args.json == "-":
        print(json.dumps(all_rows, indent=1))
    elif args.json:
        with open(args.json, "w") as out:
            json.dump(all_rows, out, indent=1)
    sys.exit(1 if any(row["wrong"] for row in all_rows) else 0)


main()
