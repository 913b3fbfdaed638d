"""Real NCCL with netsum's plugin: two processes on one GPU, which NCCL takes for two nodes, since each has a NCCL_HOSTID of its own."""

import datetime
import json
import os
import re
import time
import unittest

import on_gpu
import torch_support
from on_gpu import IS_GPU
from torch_support import DEVICE, Switch, run

LIBRARIES = os.environ.get("NETSUM_LIBRARIES", "")
BACKEND = "nccl" if IS_GPU else "gloo"
SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 25 << 20, 256 << 20)[:None if IS_GPU else 3]  # bytes
FOUND = {}


def case_sums(rank, size):
    """float32, float16, bfloat16 of all sizes: right, and the same bits on all ranks; the time of each."""
    import torch
    import torch.distributed as dist
    dist.init_process_group(BACKEND)
    synchronize = on_gpu.cuda().synchronize
    wrong, seconds = [], {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16)[:None if IS_GPU else 1]:
        for size_bytes in SIZES:
            length = size_bytes // dtype.itemsize
            inputs = [torch.randn(length, generator=torch.Generator(DEVICE).manual_seed(r), device=DEVICE).to(dtype) for r in range(size)]
            exact = sum(t.double() for t in inputs)
            tensor = inputs[rank].clone()
            synchronize()
            began = time.monotonic()
            dist.all_reduce(tensor)
            synchronize()
            seconds[f"{dtype} {size_bytes}"] = time.monotonic() - began
            bound = exact.abs() * torch.finfo(dtype).eps + size * size * max(t.double().abs().max().item() for t in inputs) * 2.0 ** -29
            error = (tensor.double() - exact).abs()
            if not (error <= bound).all():
                wrong.append(f"{dtype} {size_bytes}: {(error - bound).max().item()}")
            del inputs, exact, bound, error
    dist.destroy_process_group()
    return {"wrong": wrong, "seconds": seconds}


def case_killed_switch(rank, size):
    """The switch goes away: NCCL ends the operation with an error, in its time."""
    import torch
    import torch.distributed as dist
    dist.init_process_group(BACKEND, timeout=datetime.timedelta(seconds=30))
    synchronize = on_gpu.cuda().synchronize
    tensor = torch.ones(1 << 20, device=DEVICE)
    dist.all_reduce(tensor)
    synchronize()
    print("ready", flush=True)
    began = time.monotonic()
    try:
        while time.monotonic() - began < 40:
            dist.all_reduce(tensor, async_op=True).wait()
            synchronize()
    except Exception as error:  # noqa: BLE001 - whatever torch makes of NCCL's error
        print(torch_support.RESULT + json.dumps({"seconds": time.monotonic() - began, "error": str(error)[:600]}), flush=True)
        os._exit(0)
    raise AssertionError("all-reduces went on for 40 s without a switch")


def environment_of(address, **more):
    return {"NCCL_NET_PLUGIN": f"{LIBRARIES}/libnccl-net-netsum.so", "NCCL_COLLNET_ENABLE": "1",
            "NETSUM_SWITCH": address, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,COLL,ENV,TUNING", "NCCL_SOCKET_IFNAME": "lo",
            "NETSUM_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", **more}


def lines_about(rank, pattern):
    """NCCL's own lines go to the standard output."""
    return [line for line in (rank.output + rank.log).splitlines() if re.search(pattern, line, re.I)]


class Nccl(unittest.TestCase):
    NODES = {rank: {"NCCL_HOSTID": f"node{rank}"} for rank in range(2)}

    def sums(self, **more):
        with Switch() as switch:
            ranks = run("sums", 2, seconds=90, environment=environment_of(switch.address, **more), of_rank=self.NODES)
        for rank in ranks:
            self.assertEqual(rank.result["wrong"], [])
        return ranks

    def test_collnet(self):
        ranks = self.sums(NCCL_ALGO="CollnetChain")
        FOUND["lines"] = lines_about(ranks[0], "netsum|collnet")[:80]
        FOUND["seconds"] = ranks[0].result["seconds"]
        self.assertTrue(not IS_GPU or lines_about(ranks[0], "netsum: CollNet of 2 ranks goes through the switch"), (ranks[0].output + ranks[0].log)[-3000:])

    def test_nccls_own_choice(self):
        ranks = self.sums()
        FOUND["own choice"] = lines_about(ranks[0], "Algo|collnet")[:40]
        FOUND["own choice seconds"] = ranks[0].result["seconds"]

    @unittest.skipUnless(IS_GPU, "Gloo knows of no switch")
    def test_switch_killed(self):
        with Switch() as switch:
            def on_line(_, line):
                if line == "ready":
                    switch.process.kill()
            ranks = run("killed_switch", 2, seconds=80, environment=environment_of(switch.address, NCCL_ALGO="CollnetChain"),
                        of_rank=self.NODES, on_line=on_line, expect_failure=(0, 1))
        FOUND["switch killed"] = [rank.result for rank in ranks]
        FOUND["switch killed log"] = lines_about(ranks[0], "WARN|netsum")[-15:]
        # torch either raises in the loop, or its watchdog ends the process.
        told = [rank.result or lines_about(rank, "NCCL error: remote process exited or there was a network error") for rank in ranks]
        self.assertTrue(any(told), ranks[0].log[-3000:])


def tearDownModule():
    on_gpu.save(FOUND)


if __name__ == "__main__":
    torch_support.main()
