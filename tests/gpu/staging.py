"""Staging: tensors of the GPU's memory through pinned host memory, beside copies by themselves (cudaMemcpyAsync, up and down together),
for several sizes and cuts; then whole all-reduces of two ranks, with the tensors on the GPU and on the host."""

import statistics
import time
import unittest

import on_gpu
import torch_support
from on_gpu import IS_GPU
from torch_support import Switch, init, run

FOUND = {}
SIZES_MB = (1, 25, 100) if IS_GPU else (1,)
ROUNDS = 10
CUTS = [(chunk << 10, buffers, lanes) for chunk in (256, 512, 1024, 2048, 4096) for buffers in (8, 16) for lanes in (1, 2)]


def copies_alone(torch, size):
    """Seconds of one copy out and one in, on streams of their own, at the same time."""
    device_out, device_in = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    host_out, host_in = (torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    out, into = torch.cuda.Stream(), torch.cuda.Stream()

    def once():
        began = time.perf_counter()
        for _ in range(ROUNDS):
            with torch.cuda.stream(out):
                host_out.copy_(device_out, non_blocking=True)
            with torch.cuda.stream(into):
                device_in.copy_(host_in, non_blocking=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / ROUNDS
    once()
    return statistics.median(once() for _ in range(5))


def case_passes(rank, size):
    import torch

    import staging_bench
    if IS_GPU:
        device = "cuda"
    else:
        import torch_devices
        torch_devices.DEVICE = device = "privateuseone"
        torch_devices.import_device()
    found = []
    for megabytes in SIZES_MB:
        length = megabytes * 1_000_000
        alone = copies_alone(torch, length) if IS_GPU else None
        tensor = torch.zeros(length // 4).to(device)
        for chunk, buffers, lanes in CUTS if IS_GPU else CUTS[:1]:
            passes = [staging_bench.seconds_of_a_pass(tensor, chunk, buffers, lanes, ROUNDS) for _ in range(6)]
            found.append({"MB": megabytes, "chunk": chunk, "buffers": buffers, "lanes": lanes, "seconds": statistics.median(passes[1:]),
                          "copies_alone": alone, "fraction": alone and alone / statistics.median(passes[1:])})
    return found


def case_all_reduces(rank, size):
    """Seconds of all-reduces at the GPU and at the host, interleaved."""
    import torch
    import torch.distributed as dist
    init()
    found = []
    for megabytes in SIZES_MB:
        tensors = {place: torch.ones(megabytes * 250_000, device=place) for place in (["cuda", "cpu"] if IS_GPU else ["cpu"])}
        seconds = {place: [] for place in tensors}
        for round_ in range(11):
            for place, tensor in tensors.items():
                tensor.fill_(1.0)
                dist.barrier()
                on_gpu.cuda().synchronize()
                began = time.perf_counter()
                dist.all_reduce(tensor)
                on_gpu.cuda().synchronize()
                if round_:
                    seconds[place].append(time.perf_counter() - began)
                assert (tensor == size).all()
        found.append({"MB": megabytes} | {place: statistics.median(times) for place, times in seconds.items()})
    return found


class Staging(unittest.TestCase):
    def test_passes(self):
        FOUND["passes"] = run("passes", 1, seconds=90)[0].result

    def test_all_reduces(self):
        with Switch() as switch:
            for name, variables in (("shared memory", {}), ("udp", {"NETSUM_SHARED_MEMORY": "off"})):
                environment = {"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address} | variables
                FOUND[f"all-reduces, {name}"] = run("all_reduces", 2, seconds=60, environment=environment)[0].result


def tearDownModule():
    on_gpu.save(FOUND)


if __name__ == "__main__":
    torch_support.main()
