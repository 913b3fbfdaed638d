#!/usr/bin/python3
"""Times all-reduce over PyTorch's Gloo on this machine's loopback, and checks every element of every sum.

One process forks one rank per worker. Prints one JSON object per tensor length: the times of the slowest rank.
"""
import argparse
import json
import os
import socket
import sys
import time
import traceback

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

PATTERN = 1000  # inputs are small integers, so that float32 sums are exact in any order


def loopback_bytes():
    """What this machine has sent over loopback, which one sender cannot tell apart: the machine should be quiet."""
    with open("/proc/self/net/dev") as table:
        for line in table:
            name, _, numbers = line.partition(":")
            if name.strip() == "lo":
                return int(numbers.split()[8])
    return 0


def run_rank(rank, port, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.workers)
    for elements in args.elements:
        pattern = torch.arange(elements, dtype=torch.float32).remainder_(PATTERN)
        expected = pattern * args.workers + args.workers * (args.workers - 1) / 2
        tensor = torch.empty_like(pattern)
        # One timing per iteration in a slot of its own; the maximum over ranks is taken once, at the end.
        times = torch.zeros(args.iterations, dtype=torch.float64)
        totals = torch.zeros(1, dtype=torch.float64)  # wrong elements
        sent = 0
        for i in range(args.warmup + args.iterations):
            torch.add(pattern, rank, out=tensor)
            bytes_before = loopback_bytes()  # before the barrier: nobody has begun
            dist.barrier()
            begin = time.monotonic()
            dist.all_reduce(tensor)
            took = time.monotonic() - begin
            dist.barrier()
            if i >= args.warmup:
                times[i - args.warmup] = took
                sent += loopback_bytes() - bytes_before
            totals[0] += int((tensor != expected).sum())
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        dist.all_reduce(totals)
        if rank == 0:
            print(json.dumps({
                "workers": args.workers, "elements": elements, "tat_seconds": times.tolist(), "wrong": int(totals[0]),
                "placement": "ring over loopback TCP",
                "bytes_per_worker": sent / args.iterations / args.workers}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("elements", type=int, nargs="+")
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(args.workers):
        pid = os.fork()
        if pid == 0:
            try:
                run_rank(rank, port, args)
            except BaseException:  # a rank must not fall through into the parent's code
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        ranks[pid] = rank
    failed = False
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if status != 0 and not failed:
            failed = True
            print(f"rank {rank} failed with status {status}", file=sys.stderr)
            for other in ranks:
                os.kill(other, 15)
    sys.exit(1 if failed else 0)


main()
