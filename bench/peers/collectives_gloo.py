#!/usr/bin/python3
"""Times a collective over PyTorch's Gloo, and checks every element of every result.

One process forks one rank per worker: on this machine's loopback, or each in a network namespace of its own (--hosts). Prints one
JSON object per tensor length: times of the slowest rank, or, back to back, the mean of the ranks' (see docs/benchmarks.md).

With --serve alone it does so again and again, without importing PyTorch each time: a JSON list of arguments a line of standard input,
and after each, and once before, a line "end STATUS CPU_SECONDS".
"""
import argparse
import ctypes
import json
import os
import resource
import socket
import sys
import time
import traceback

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

PATTERN = 1000  # inputs are small integers, so that float32 sums are exact in any order
PORT = 29500  # of the rendezvous, where it has a network for itself
CLONE_NEWNET = 0x40000000  # what Python does not name


def enter(namespace):
    with open("/run/netns/" + namespace, encoding="ascii") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter " + namespace)


def sent_bytes(device):
    """What this device has sent. Loopback's senders cannot be told apart: the machine should be quiet."""
    with open("/proc/self/net/dev", encoding="ascii") as table:
        for line in table:
            name, _, numbers = line.partition(":")
            if name.strip() == device:
                return int(numbers.split()[8])
    return 0


class Measurement:
    """Calls of one length. A tensor's elements are those of all parts; the root is the last rank."""

    def __init__(self, rank, elements, args):
        self.rank, self.args, self.elements = rank, args, elements
        gathers = args.collective == "all-gather"
        self.root = args.workers - 1
        self.part = -(-elements // args.workers) if gathers else elements
        self.pattern = torch.arange(self.part, dtype=torch.float32).remainder_(PATTERN)
        self.parts = [torch.zeros_like(self.pattern) for _ in range(args.workers)] if gathers else []
        total = self.pattern * args.workers + args.workers * (args.workers - 1) / 2
        self.expected = {"all-reduce": total, "reduce": total if rank == self.root else None,
                         "broadcast": self.pattern + self.root, "all-gather": self.pattern + rank}[args.collective]
        self.times = torch.zeros(args.iterations, dtype=torch.float64)  # of this rank
        self.sent = self.wrong = 0
        self.device = "eth0" if args.hosts else "lo"

    def fill(self, tensor):
        return torch.add(self.pattern[:len(tensor)], self.rank, out=tensor)

    def call(self, tensor):
        match self.args.collective:
            case "all-reduce":
                dist.all_reduce(tensor)
            case "reduce":
                dist.reduce(tensor, self.root)
            case "broadcast":
                dist.broadcast(tensor, self.root)
            case "all-gather":
                dist.all_gather([part[:len(tensor)] for part in self.parts], tensor)

    def time(self, tensor, iteration):
        begin = time.monotonic()
        self.call(tensor)
        self.times[iteration] = time.monotonic() - begin

    def check(self, tensor):
        if self.expected is not None:
            self.wrong += int((tensor != self.expected).sum())
        self.wrong += sum(int((part != self.pattern + rank).sum()) for rank, part in enumerate(self.parts))

    def warm_up(self):
        length = min(self.part, self.args.warmup_elements)
        tensor = torch.empty(length)
        for _ in range(self.args.warmup):
            self.call(self.fill(tensor))

    def one_by_one(self):
        tensor = torch.empty_like(self.pattern)
        for i in range(self.args.iterations):
            self.fill(tensor)
            before = sent_bytes(self.device)  # before the barrier: nobody has begun
            dist.barrier()
            self.time(tensor, i)
            dist.barrier()  # nobody checks on a processor that others still need
            self.sent += sent_bytes(self.device) - before
            self.check(tensor)
        dist.all_reduce(self.times, op=dist.ReduceOp.MAX)

    def back_to_back(self):
        tensors = [self.fill(torch.empty_like(self.pattern)) for _ in range(self.args.iterations)]
        dist.barrier()
        before = sent_bytes(self.device)
        for i, tensor in enumerate(tensors):
            self.time(tensor, i)
        self.sent = sent_bytes(self.device) - before
        for tensor in tensors:
            self.check(tensor)
        dist.all_reduce(self.times)
        self.times /= self.args.workers

    def report(self):
        totals = torch.tensor([self.wrong, self.sent], dtype=torch.float64)
        dist.all_reduce(totals)
        # Each rank has counted all of loopback.
        share = self.args.iterations * self.args.workers * (1 if self.args.hosts else self.args.workers)
        if self.rank == 0:
            print(json.dumps({"workers": self.args.workers, "elements": self.elements, "tat_seconds": self.times.tolist(),
                              "wrong": int(totals[0]), "bytes_per_worker": float(totals[1]) / share}), flush=True)


def run_rank(rank, args):
    torch.set_num_threads(1)
    namespace, _, address = args.hosts[rank].partition("=") if args.hosts else (None, None, "127.0.0.1")
    if namespace:
        enter(namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0" if namespace else "lo"
    first = args.hosts[0].partition("=")[2] if args.hosts else address
    dist.init_process_group("gloo", init_method=f"tcp://{first}:{args.port}", rank=rank, world_size=args.workers)
    for elements in args.elements:
        measurement = Measurement(rank, elements, args)
        measurement.warm_up()
        if args.back_to_back:
            measurement.back_to_back()
        else:
            measurement.one_by_one()
        measurement.report()
    dist.barrier()
    dist.destroy_process_group()


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--warmup-elements", type=int, default=1 << 40, metavar="E", help="at most; shorter saves time on slow links")
    parser.add_argument("--back-to-back", action="store_true", help="no barriers between calls")
    parser.add_argument("--collective", default="all-reduce", choices=["all-reduce", "reduce", "broadcast", "all-gather"],
                        help="Gloo has no reduce-scatter")
    parser.add_argument("--hosts", type=lambda text: text.split(","), metavar="NAMESPACE=ADDRESS,...", help="one for each rank")
    parser.add_argument("elements", type=int, nargs="+")
    args = parser.parse_args(words)
    args.port = PORT
    if not args.hosts:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            args.port = free.getsockname()[1]
    return args


def run(args):
    """The exit code, once all ranks have ended."""
    ranks = {}
    for rank in range(args.workers):
        pid = os.fork()
        if pid == 0:
            try:
                run_rank(rank, args)
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
    return 1 if failed else 0


def serve():
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(f"end 0 {own.ru_utime + own.ru_stime}", flush=True)
    for line in sys.stdin:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = run(parse(json.loads(line)))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"end {status} {after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime}", flush=True)


if sys.argv[1:] == ["--serve"]:
    serve()
else:
    sys.exit(run(parse(sys.argv[1:])))
