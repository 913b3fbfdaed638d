"""NETSUM_MODE and its friends: which way a group takes, that all ranks take it, and what it says."""

import os
import subprocess
import sys
import tempfile
import unittest

import torch_support
from torch_support import Switch, free_port, init, run


def case_sum(rank, size):
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert (tensor == size * (size + 1) / 2).all(), tensor
    dist.barrier()
    statistics = netsum.torch.statistics()
    dist.destroy_process_group()
    return statistics


def case_private(rank, size):
    """Sums by the switch, which cannot read them; what it could not compute, elsewhere."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.arange(1000).remainder(100).to(dtype) * (rank + 1)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.arange(1000).remainder(100).to(dtype) * (size * (size + 1) // 2)), tensor
    largest = torch.full((10,), float(rank))
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    assert (largest == size - 1).all(), largest
    given = torch.full((7,), float(rank + 5))
    dist.broadcast(given, src=size - 1)
    assert (given == size + 4).all(), given
    statistics = netsum.torch.statistics()
    dist.destroy_process_group()
    return statistics


def case_mostly_gloo(rank, size):
    """Most bytes are in a collective that the switch does not have; the counts, and what is said, and when."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    dist.all_reduce(torch.ones(1000))
    for _ in range(256):
        dist.all_to_all_single(torch.empty(2000), torch.ones(2000))
    print("done", file=sys.stderr, flush=True)
    dist.broadcast(torch.ones(10), src=0)
    collectives = netsum.torch.statistics()["collectives"]
    dist.destroy_process_group()
    return collectives


def case_refuses(rank, size):
    try:
        init()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("the group was built")


def log_lines(ranks):
    return [line for r in ranks for line in r.log.splitlines() if line.startswith("netsum")]


class Modes(unittest.TestCase):
    def absent(self):
        return f"127.0.0.1:{free_port()}"

    def test_off_is_gloo(self):
        ranks = run("sum", 2, environment={"NETSUM_MODE": "off", "NETSUM_SWITCH": self.absent()})
        for rank in ranks:
            self.assertEqual("gloo", rank.result["path"])
            self.assertEqual("NETSUM_MODE=off", rank.result["reason"])
            self.assertEqual({"all_reduce": 1, "barrier": 1}, rank.result["gloo_operations"])
            self.assertEqual(0, rank.result["wire_bytes_sent"])
        self.assertEqual(1, len(log_lines(ranks)), log_lines(ranks))

    def test_probe_and_force_take_a_switch_that_is_there(self):
        for mode, memory in (("probe", "off"), ("force", "off"), ("force", "required")):
            with self.subTest(mode=mode, memory=memory), Switch() as switch:
                ranks = run("sum", 2, environment={"NETSUM_MODE": mode, "NETSUM_SWITCH": switch.address, "NETSUM_JOB": "named",
                                                   "NETSUM_SHARED_MEMORY": memory})
                for rank in ranks:
                    self.assertEqual("switch", rank.result["path"])
                    self.assertEqual(1, rank.result["switch_operations"])
                    if memory == "off":
                        self.assertGreater(rank.result["wire_bytes_sent"], 4000)
                    else:
                        self.assertEqual(rank.result["wire_bytes_sent"], 0)
                    self.assertGreater(rank.result["seconds_in_all_reduce"], 0)
                    self.assertTrue(rank.result["job"].startswith("named."), rank.result["job"])
                (line,) = log_lines(ranks)
                self.assertIn(switch.address, line)

    def test_probe_without_a_switch_is_gloo_on_all_ranks_with_the_reason(self):
        address = self.absent()
        ranks = run("sum", 2, environment={"NETSUM_SWITCH": address})
        for rank in ranks:
            self.assertEqual("gloo", rank.result["path"])
        (line,) = log_lines(ranks)
        self.assertIn(address, line)
        self.assertIn("Connection refused", line)

    def test_force_without_a_switch_is_an_error_that_names_rank_and_reason(self):
        address = self.absent()
        for rank in run("refuses", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": address}):
            for word in ("NETSUM_MODE=force", "rank 0", address, "Connection refused"):
                self.assertIn(word, rank.result)

    def test_one_rank_that_is_refused_decides_for_all(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("right", "wrong"):
                with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                    file.write(name)
            right, wrong = ({"NETSUM_TOKEN_FILE": os.path.join(directory, name)} for name in ("right", "wrong"))
            with Switch("--token-file", right["NETSUM_TOKEN_FILE"]) as switch:
                common = {"NETSUM_SWITCH": switch.address, "NETSUM_CONNECT_SECONDS": "5"}
                ranks = run("sum", 2, environment=common | right)
                self.assertEqual(["switch"] * 2, [r.result["path"] for r in ranks])
                ranks = run("sum", 2, environment=common, of_rank={0: right, 1: wrong})
                self.assertEqual(["gloo"] * 2, [r.result["path"] for r in ranks])
                self.assertIn("rank 1", ranks[0].result["reason"])
                self.assertIn("token", ranks[0].result["reason"])
                for rank in run("refuses", 2, environment=common | {"NETSUM_MODE": "force"}, of_rank={0: right, 1: wrong}):
                    self.assertIn("rank 1", rank.result)

    def test_private_sums_have_a_key_that_rank_0_draws_or_a_file(self):
        with tempfile.TemporaryDirectory() as directory, Switch() as switch:
            files = [os.path.join(directory, name) for name in ("one", "other")]
            for name in files:
                with open(name, "w", encoding="utf-8") as file:
                    file.write(f"{name}, which nobody guesses")
            private = {"NETSUM_PRIVATE": "1", "NETSUM_SWITCH": switch.address, "NETSUM_MODE": "force", "NETSUM_CONNECT_SECONDS": "5"}
            for more in ({}, {"NETSUM_JOB_KEY_FILE": files[0], "NETSUM_FIXED_SCALE": "12"}):
                ranks = run("private", 3, environment=private | more)
                for rank in ranks:
                    self.assertEqual("switch", rank.result["path"])
                    self.assertEqual(3, rank.result["collectives"]["all_reduce"]["switch"]["calls"], rank.result)
                    self.assertEqual({"all_reduce": 1}, rank.result["gloo_operations"])
            for rank in run("refuses", 2, environment=private, of_rank={r: {"NETSUM_JOB_KEY_FILE": files[r]} for r in (0, 1)}):
                self.assertIn("a job key with the fingerprint", rank.result)

    def test_without_an_address_the_lowest_rank_runs_a_shard(self):
        ranks = run("sum", 3)
        for rank in ranks:
            self.assertEqual("switch", rank.result["path"])
            self.assertEqual(ranks[0].result["switches"], rank.result["switches"])
        (line,) = log_lines(ranks)
        self.assertIn("NETSUM_SWITCH is not set", line)
        self.assertIn("inside rank 0", line)

    def test_shards_have_tls_where_they_have_a_certificate(self):
        with tempfile.TemporaryDirectory() as folder:
            def file(name):
                return os.path.join(folder, name)
            for name in ("own", "other"):
                subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                                "subjectAltName=IP:127.0.0.1", "-keyout", file(name + ".key"), "-out", file(name)], check=True,
                               capture_output=True, timeout=60)
            common = {"NETSUM_MODE": "force", "NETSUM_TLS_CERT": file("own"), "NETSUM_TLS_KEY": file("own.key"), "NETSUM_CONNECT_SECONDS": "5"}
            for rank in run("sum", 2, environment=common | {"NETSUM_TLS_CA": file("own"), "NETSUM_REQUIRE_KEYS": "1"}):
                self.assertEqual("switch", rank.result["path"])
            for rank in run("refuses", 2, environment=common, of_rank={0: {"NETSUM_TLS_CA": file("own")}, 1: {"NETSUM_TLS_CA": file("other")}}):
                self.assertIn("rank 1", rank.result)

    def test_several_aggregators_share_a_job(self):
        with Switch() as one, Switch() as two:
            ranks = run("sum", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": f"{one.address},{two.address}"})
            self.assertEqual("switch", ranks[0].result["path"])

    def test_a_bad_value_on_one_rank_is_an_error_on_all(self):
        for name, value in (("NETSUM_MODE", "maybe"), ("NETSUM_THREADS", "0"), ("NETSUM_SWITCH", "host"),
                            ("NETSUM_TOKEN_FILE", "/nowhere"), ("NETSUM_PS", "127.0.0.1:1")):
            with self.subTest(name=name):
                for rank in run("refuses", 2, of_rank={1: {name: value}}):
                    self.assertIn("rank 1", rank.result)
                    self.assertIn(name, rank.result)

    def test_the_rdma_device_is_looked_for(self):
        with Switch() as switch:
            for rank in run("refuses", 2, environment={"NETSUM_MODE": "force", "NETSUM_PROTOCOL": "netreduce",
                                                       "NETSUM_SWITCH": switch.address, "NETSUM_VERBS": "nothing",
                                                       "NETSUM_VERBS_PORT": "2", "NETSUM_VERBS_GID_INDEX": "3"}):
                self.assertIn("no RDMA device 'nothing' on this host", rank.result)

    def test_ranks_that_disagree_are_told_about_what(self):
        for rank in run("refuses", 2, of_rank={1: {"NETSUM_MODE": "off"}}):
            self.assertIn("ranks 0 and 1 disagree about NETSUM_MODE: 'probe' and 'off'", rank.result)

    def test_calls_that_do_not_take_the_switch_are_counted_and_said(self):
        with Switch() as switch:
            settings = {"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "NETSUM_SHARED_MEMORY": "off"}
            ranks = run("mostly_gloo", 2, environment=settings)
            for rank in ranks:
                self.assertEqual({
                    "all_reduce": {"switch": {"calls": 1, "bytes": 4000}, "gloo": {}},
                    "all_to_all_single": {"switch": {"calls": 0, "bytes": 0},
                                          "gloo": {"no all_to_all_single in the network": {"calls": 256, "bytes": 2048000}}},
                    "broadcast": {"switch": {"calls": 1, "bytes": 40}, "gloo": {}}}, rank.result)
            (warning,) = [line for line in log_lines(ranks) if "went over Gloo instead of the switch" in line]
            self.assertIn("99 % of the bytes", warning)
            self.assertIn("all_to_all_single (no all_to_all_single in the network)", warning)
            self.assertLess(ranks[0].log.index(warning), ranks[0].log.index("done"))
            self.assertEqual([], log_lines(run("mostly_gloo", 2, environment=settings | {"NETSUM_LOG": "off"})))

    def test_logging(self):
        self.assertEqual([], log_lines(run("sum", 2, environment={"NETSUM_LOG": "off"})))
        debug = run("sum", 2, environment={"NETSUM_LOG": "debug"})
        for rank in debug:
            self.assertTrue(any(line.startswith(f"netsum[{rank.rank}]: ") for line in log_lines([rank])), rank.log)


if __name__ == "__main__":
    torch_support.main()
