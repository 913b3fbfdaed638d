"""Ranks that die, hang or differ, and a switch that dies: every other rank gets an error in time that says which and why."""

import datetime
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import torch_support
from torch_support import TORCH, ParameterServer, Switch, init, jobs_at, run, run_under_torchrun, tcp_store

NOTICED_WITHIN = 5.0


def die_with_children_alive():
    """Ends this process by SIGKILL while two children live on that inherited everything: a DataLoader worker and a plain fork."""
    import os
    import signal

    import torch
    from torch.utils.data import DataLoader

    iterator = iter(DataLoader(torch.arange(10_000), batch_size=1, num_workers=1))
    next(iterator)
    if os.fork() == 0:
        time.sleep(100)  # ended by the test
        os._exit(0)
    print(f"dies {time.time()}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def until_error(call):
    """Calls again and again; (when it failed, its words)."""
    until = time.time() + 40
    while time.time() < until:
        try:
            call()
        except RuntimeError as error:
            return time.time(), str(error)
    raise AssertionError("no error came")


def reduce_until_error(victim, rank):
    import torch
    import torch.distributed as dist
    init(seconds=60)
    for _ in range(5):
        dist.all_reduce(torch.ones(10_000))
    if rank == victim:
        die_with_children_alive()
    return until_error(lambda: dist.all_reduce(torch.ones(10_000)))


def case_interrupted(rank, size):
    """A signal's handler runs while its process waits for a rank that does not come."""
    import signal

    import torch
    import torch.distributed as dist
    init()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        work = dist.all_reduce(torch.ones(100), async_op=True)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            work.wait()
            raise AssertionError("the wait ended")
        except KeyboardInterrupt:
            assert not work.is_completed()
        store.set("interrupted", "")
    store.wait(["interrupted"])


def case_last_rank_dies(rank, size):
    return reduce_until_error(size - 1, rank)


def case_first_rank_dies(rank, size):
    return reduce_until_error(0, rank)


def case_rank_dies_before_barrier(rank, size):
    import torch
    import torch.distributed as dist
    init(seconds=60)
    dist.all_reduce(torch.ones(10))
    dist.barrier()
    if rank == 1:
        die_with_children_alive()
    return until_error(dist.barrier)


def case_absent(rank, size):
    """Rank 1 does not come to an all-reduce: the group's time-out ends it on the others."""
    import torch
    import torch.distributed as dist
    init(seconds=5)
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        time.sleep(10)
        return None
    started = time.time()
    ended, words = until_error(lambda: dist.all_reduce(torch.ones(1000)))
    again, more = until_error(lambda: dist.all_reduce(torch.ones(1000)))
    assert again - ended < 1
    return ended - started, words, more


def case_recorded(rank, size):
    """The same, and all ranks write what they did: also the one that waits for nothing."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init(seconds=3)
    dist.broadcast(torch.ones(7), 0)
    dist.all_reduce(torch.ones(2, 5))
    prefix = os.environ["NETSUM_FLIGHT_RECORD"]
    if rank != 1:
        until_error(lambda: dist.all_reduce(torch.ones(1000)))
    until = time.time() + 40
    while not os.path.exists(f"{prefix}{rank}") and time.time() < until:
        time.sleep(0.05)
    return netsum.torch.statistics()["job"]


def case_terminated(rank, size):
    """torchrun ends the others by SIGTERM when one rank has died."""
    import signal

    import torch
    import torch.distributed as dist
    init()
    dist.all_reduce(torch.ones(10))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)  # a handler runs between two instructions of Python
    until_error(lambda: dist.all_reduce(torch.ones(10)))


def case_dies_in_backward(rank, size):
    """An error that PyTorch raises in backward() is netsum's own, with its attributes."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
    until = time.time() + 40
    while time.time() < until:
        try:
            model(torch.ones(3, 100)).sum().backward()
        except netsum.torch.Error as error:
            assert isinstance(error, getattr(dist, "DistBackendError", RuntimeError)), type(error).__mro__
            return error.code, error.ranks, str(error)
        if rank == 1:
            os.kill(os.getpid(), 9)
    raise AssertionError("no error came")


def case_survives(rank, size):
    """DDP goes on without the first rank, whose buffers it took before, in the same processes."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init(seconds=60)
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(100, 10), torch.nn.BatchNorm1d(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        if step == 6 and rank == 0:
            os.kill(os.getpid(), 9)
        optimizer.zero_grad()
        model(torch.randn(4, 100)).square().mean().backward()
        optimizer.step()
    ones = torch.ones(3)
    dist.all_reduce(ones)
    parameters = torch.cat([each.detach().flatten() for each in model.parameters()])
    return ones.tolist(), netsum.torch.statistics()["members"], parameters.tolist()


def case_late(rank, size):
    """Rank 2 is late for some steps, follows, and gives what it has computed to a later one."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init(seconds=60)
    store = dist.distributed_c10d._get_default_store()
    module = torch.nn.Linear(100, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    model = torch.nn.parallel.DistributedDataParallel(module)
    state = netsum.torch.hooks.Late()
    model.register_comm_hook(state, netsum.torch.hooks.late)
    optimizer = torch.optim.SGD(module.parameters(), lr=1)
    computed, applied, members, last = torch.zeros(100), torch.zeros(100), [], 9
    for step in range(last + 3):
        if step == last:
            netsum.torch.finish()
        optimizer.zero_grad()
        gradient = torch.arange(100.0) * (rank + 1) + step if step < last else torch.zeros(100)
        if not state.follows():
            computed += gradient
        if rank == 2 and step in (1, 5):
            store.wait([f"ended {step + 1}"])
        model(gradient).backward()
        members.append(netsum.torch.statistics()["members"])
        applied += (module.weight.grad[0] * len(members[-1])).round()
        optimizer.step()
        if rank == 0:
            store.set(f"ended {step}", "")
    netsum.torch.finish()
    work = netsum.torch._backend_of(None, "late").allreduce([torch.ones(600_000)]) if rank != 2 else None
    if rank == 0:
        work.wait()
        store.set("summed", "")
    elif rank == 2:
        store.wait(["summed"])
        work = netsum.torch._backend_of(None, "late").allreduce([torch.ones(600_000)])
        work.wait()
        assert work._netsum_left_out() == [(0, 1 << 19), (1 << 19, 600_000)], work._netsum_left_out()
    netsum.torch.finish()
    assert not state.kept and netsum.torch.behind() == 0
    dist.destroy_process_group()
    return computed.tolist(), applied.tolist(), module.weight[0].tolist(), members


def case_comes_back(rank, size):
    """Rank 0, which dies once, is started again by a launcher: this process, or torchrun."""
    under_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if rank == 0 and not under_torchrun and "LAUNCHED" not in os.environ:
        while (ended := subprocess.run([sys.executable, sys.argv[0], "--case", "comes_back"],
                                       env=os.environ | {"LAUNCHED": "1"}, check=False)).returncode == -signal.SIGKILL:
            pass
        assert ended.returncode == 0
        return None  # the rank has printed its result
    import torch
    import torch.distributed as dist

    import netsum.torch
    died = os.environ["DIED"]
    begins_anew = rank == 0 and os.path.exists(died)
    if under_torchrun:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"  # torch 1.x has another part of the store for each start
        init(seconds=60)
    else:
        init(seconds=60, store=dist.FileStore(os.environ["STORE"], size), rank=rank, world_size=size)
    torch.manual_seed(2 if begins_anew else 1)
    module = torch.nn.Linear(100, 10)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    step, came, model = 0, None, None
    while came is None or step < came + 4:
        state = netsum.torch.admit(lambda: (module.state_dict(), optimizer.state_dict(), step))
        if state is not None:
            module.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
            came = step = state[2]
        if state is not None or model is None:
            model = torch.nn.parallel.DistributedDataParallel(module)
        if rank == 0 and step == 3 and not begins_anew:
            with open(died, "w", encoding="utf-8"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.randn(4, 100, generator=torch.Generator().manual_seed(10 * step + rank))).square().mean().backward()
        optimizer.step()
        step += 1
        dist.barrier()
    members = netsum.torch.statistics()["members"]
    dist.destroy_process_group()
    return came > 2, members, [module.weight.sum().item(), optimizer.state[module.weight]["momentum_buffer"].sum().item()]


def case_impatient(rank, size):
    """wait(timeout) gives up earlier than the group; the operation itself goes on."""
    import torch
    import torch.distributed as dist
    init(seconds=30)
    store = dist.distributed_c10d._get_default_store()
    tensor = torch.ones(10)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        started = time.time()
        try:
            work.wait(datetime.timedelta(seconds=1))
            raise AssertionError("waited for nobody")
        except RuntimeError as error:
            assert "1000 ms" in str(error) and "10 " in str(error), error
        assert 0.9 < time.time() - started < 3
        store.set("go", "on")
        work.wait()
    else:
        store.wait(["go"], datetime.timedelta(seconds=20))
        dist.all_reduce(tensor)
    assert (tensor == size).all()
    dist.destroy_process_group()


def case_aborted(rank, size):
    """Rank 0 aborts the group while it waits: its own call ends, then those of the others, and there are no more."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init(seconds=30)
    store = dist.distributed_c10d._get_default_store()
    texts = []

    def note_error(call):
        try:
            call()
        except RuntimeError as error:
            texts.append((getattr(error, "code", None), str(error)))
    if rank == 0:
        pending = dist.all_reduce(torch.ones(10), async_op=True)
        netsum.torch._backend_of(None, "abort").abort()
        store.set("aborted", "yes")
        note_error(pending.wait)
        note_error(lambda: dist.all_reduce(torch.ones(10)))
        note_error(dist.barrier)
    else:
        store.wait(["aborted"], datetime.timedelta(seconds=20))
        for _ in range(2):  # rank 0's part of the first may have come
            note_error(lambda: dist.all_reduce(torch.ones(10)))
    dist.destroy_process_group()
    return texts


def case_differ(rank, size):
    import torch
    import torch.distributed as dist
    init(seconds=20)
    return until_error(lambda: dist.all_reduce(torch.ones(10 + rank)))[1]


def case_codes(rank, size):
    """The code of an error, and a deadline that ends the wait of a future's callback."""
    import torch
    import torch.distributed as dist

    import netsum.torch
    init(seconds=5)
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["chained"], datetime.timedelta(seconds=20))
        dist.all_reduce(torch.ones(1))
        time.sleep(8)
        return None

    def code_of_error(_):
        try:
            dist.all_reduce(torch.ones(10))
        except netsum.torch.Error as error:
            return error.code, error.ranks
        return "no error came"

    chained = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(code_of_error)
    store.set("chained", "yes")
    return chained.wait()


def case_switch_dies(rank, size):
    import torch
    import torch.distributed as dist
    init(seconds=60)
    for _ in range(5):
        dist.all_reduce(torch.ones(10_000))
    print("ready", flush=True)
    return until_error(lambda: dist.all_reduce(torch.ones(10_000)))


def case_switch_comes_back(rank, size):
    import torch
    import torch.distributed as dist

    import netsum.torch
    init(seconds=60)
    dist.all_reduce(torch.ones(10_000))
    print("ready", flush=True)
    done = torch.zeros(1, dtype=torch.int32)
    while done.item() < size:
        tensor = torch.full((10_000,), float(rank + 1))
        dist.all_reduce(tensor)
        assert (tensor == 3).all(), tensor
        done.fill_(os.path.exists(os.environ["BACK"]))
        dist.all_reduce(done)
    path = netsum.torch.statistics()["path"]
    dist.destroy_process_group()
    return path


def case_goes_on_from_a_checkpoint(rank, size):
    """A model for each kind of group, trained in turns. Rank 1 is killed in the middle; all start again where they were."""
    import signal

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import netsum.torch
    steps, deadly, file = 6, 3, os.environ["CHECKPOINT"]
    kinds = json.loads(os.environ["KINDS"])
    init()
    groups = []
    for settings in kinds:
        for name in [name for name in os.environ if name.startswith("NETSUM_")]:
            del os.environ[name]
        os.environ.update(settings, NETSUM_MODE="force")
        groups.append(dist.new_group(backend="netsum", timeout=datetime.timedelta(seconds=30)))

    def beginning():
        torch.manual_seed(7)
        models = [DistributedDataParallel(nn.Linear(50, 20), process_group=group) for group in groups]
        return models, [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]

    def train(models, optimizers, step):
        data = torch.Generator().manual_seed(100 * step + rank)
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            model(torch.randn(4, 50, generator=data)).square().mean().backward()
            optimizer.step()

    former = [job["failure"] for address in json.loads(os.environ["DAEMONS"]) for job in jobs_at(address) if job["failure"]]
    models, optimizers = beginning()
    first = 0
    if os.path.exists(file):
        saved = torch.load(file)
        first = saved["step"]
        for part, state in zip(models + optimizers, saved["parts"]):
            part.load_state_dict(state)
    for step in range(first, steps):
        train(models, optimizers, step)
        if rank == 0:
            torch.save({"step": step + 1, "parts": [part.state_dict() for part in models + optimizers]}, file + ".new")
            os.rename(file + ".new", file)
        dist.barrier()
        if rank == 1 and step == deadly and first == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    whole, its_optimizers = beginning()  # without a death
    for step in range(steps):
        train(whole, its_optimizers, step)
    same = [all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters())) for one, other in zip(models, whole)]
    paths = [netsum.torch.statistics(group)["path"] for group in groups]
    dist.destroy_process_group()
    # The new start ends a job, or, where processes take longer to start than a daemon to notice a closed connection, the death.
    ended = [bool(re.search(r"was started again|rank [01] of job .* died", each)) for each in former]
    return {"first": first, "same": same, "paths": paths, "former": ended}


def case_never_comes(rank, size):
    """Rank 1 never builds the group: the others say who is missing, within the time-out."""
    if rank == 1:
        time.sleep(12)
        return None
    try:  # torch 2.x's own store waits for all ranks, and does not say which is missing
        init(seconds=5, store=tcp_store(rank, size, wait_for_workers=False), rank=rank, world_size=size)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("the group was built")


class Failures(unittest.TestCase):
    def check_noticed(self, ranks, victim, words, within=NOTICED_WITHIN):
        died = next(float(line.split()[1]) for line in ranks[victim].output.splitlines() if line.startswith("dies "))
        for rank in ranks:
            if rank.rank != victim:
                when, text = rank.result
                self.assertLess(when - died, within, text)
                for word in words:
                    self.assertIn(word, text)

    def test_a_killed_rank_is_named_though_its_children_live(self):
        with Switch() as switch:
            ranks = run("last_rank_dies", 3, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address},
                        expect_failure=(2,))
            self.check_noticed(ranks, 2, ["rank 2"])

    def test_a_killed_rank_is_named_by_a_shard(self):
        # The host of the shard hears of it first and may end before another rank's next heartbeat on a busy machine: that
        # rank then names the shard that went away, and learns it later.
        ranks = run("last_rank_dies", 3, expect_failure=(2,))
        self.check_noticed(ranks, 2, [], within=2 * NOTICED_WITHIN)
        self.assertIn("rank 2", ranks[0].result[1])

    def test_a_killed_rank_takes_its_shard_along(self):
        self.check_noticed(run("first_rank_dies", 3, expect_failure=(0,)), 0, ["aggregator 127.0.0.1:"])

    def test_a_killed_rank_ends_what_gloo_does(self):
        for environment in ({}, {"NETSUM_MODE": "off"}):
            self.check_noticed(run("rank_dies_before_barrier", 3, environment=environment, expect_failure=(1,)), 1, [])

    def test_the_groups_time_out_is_kept_and_names_who_is_missing(self):
        with Switch() as switch:
            for rank in run("absent", 3, environment={"NETSUM_SWITCH": switch.address, "NETSUM_MODE": "force"}):
                if rank.rank != 1:
                    seconds, words, more = rank.result
                    self.assertTrue(4.5 < seconds < 9, rank.result)
                    self.assertIn("rank 1", words)
                    self.assertIn("failed earlier", more)

    def test_flight_records_say_who_did_not_come(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = run("recorded", 3, environment={"NETSUM_FLIGHT_RECORD": f"{folder}/rank_"})
            records = []
            for rank in range(3):
                with open(f"{folder}/rank_{rank}", "rb") as file:
                    records.append(pickle.load(file))
        job = ranks[0].result
        for rank, record in enumerate(records):
            self.assertEqual(record["version"], "2.4")
            self.assertEqual(record["pg_config"], {job: {"name": job, "desc": "netsum", "ranks": "[0, 1, 2]"}})
            flights = [(each["collective_seq_id"], each["profiling_name"], each["input_sizes"], each["input_dtypes"], each["state"]) for each in record["entries"]]
            came = [(0, "nccl:broadcast", [[7]], ["Float"], "completed"), (1, "nccl:all_reduce", [[2, 5]], ["Float"], "completed")]
            self.assertEqual(flights[:2], came)
            self.assertEqual(record["pg_status"][job]["last_completed_collective"], 1)
            for each in record["entries"][:2]:
                self.assertLess(each["time_created_ns"], each["time_discovered_completed_ns"])
                self.assertEqual(each["process_group"], (job, "netsum"))
            if rank == 1:
                self.assertEqual(len(flights), 2)
            else:
                self.assertEqual(flights[2], (2, "nccl:all_reduce", [[1000]], ["Float"], "started"))
                self.assertIn("rank 1", record["entries"][2]["netsum_error"])

    def test_flight_records_are_written_at_sigterm(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = run("terminated", 2, environment={"NETSUM_FLIGHT_RECORD": f"{folder}/rank_"}, expect_failure=(1,))
            self.assertEqual(ranks[1].status, -15)
            with open(f"{folder}/rank_1", "rb") as file:
                self.assertEqual([each["state"] for each in pickle.load(file)["entries"]], ["completed"])

    def test_an_error_in_backward_has_its_code(self):
        with Switch() as switch:
            ranks = run("dies_in_backward", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address}, expect_failure=(1,))
        code, dead, words = ranks[0].result
        self.assertEqual((code, dead), ("worker_lost", [1]))
        self.assertIn("rank 1", words)

    def test_training_goes_on_without_the_first_rank(self):
        with Switch() as switch:
            ranks = run("survives", 3, expect_failure=(0,), environment={
                "NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "NETSUM_RECOVERY": "60", "NETSUM_SURVIVORS": "2"})
        ones, members, parameters = ranks[1].result
        self.assertEqual((ones, members), ([2, 2, 2], [1, 2]))
        self.assertEqual(ranks[2].result, ranks[1].result)
        self.assertTrue(all(abs(each) < 1e9 for each in parameters))

    def test_a_late_rank_follows_and_its_gradients_are_not_lost(self):
        with Switch() as switch:
            results = [rank.result for rank in run("late", 3, environment={
                "NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "NETSUM_RECOVERY": "60", "NETSUM_SURVIVORS": "2",
                "NETSUM_STRAGGLER_SECONDS": "0.3"})]
        computed, applied, weights, members = zip(*results)
        self.assertEqual([applied[0], weights[0], members[0]] * 2, [applied[1], weights[1], members[1], applied[2], weights[2], members[2]])
        self.assertEqual(applied[0], [sum(each) for each in zip(*computed)])
        for step in (1, 2, 5, 6):
            self.assertEqual(members[0][step], [0, 1])

    def test_a_new_process_is_let_in_and_gets_the_state(self):
        with Switch() as switch, tempfile.TemporaryDirectory() as folder:
            results = [rank.result for rank in run("comes_back", 3, seconds=120, environment={
                "NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "NETSUM_RECOVERY": "60", "NETSUM_SURVIVORS": "2",
                "STORE": os.path.join(folder, "store"), "DIED": os.path.join(folder, "died")})]
        self.assertEqual(results[0][:2], [True, [0, 1, 2]])
        self.assertEqual(results, [results[0]] * 3)

    @unittest.skipIf(TORCH >= (2, 0), "Debian 13's torchrun serves no store: it lacks libuv")
    def test_torchrun_starts_one_rank_again(self):
        with Switch() as switch, tempfile.TemporaryDirectory() as folder:
            results, log = run_under_torchrun("comes_back", 2, apart=True, environment={
                "NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "NETSUM_RECOVERY": "60", "NETSUM_SURVIVORS": "1",
                "DIED": os.path.join(folder, "died")})
        self.assertEqual(results[0][:2], [True, [0, 1]], log)
        self.assertEqual(results, [results[0]] * 2)

    def test_a_wait_is_interrupted(self):
        with Switch() as switch:
            run("interrupted", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address})

    def test_wait_with_a_time_out(self):
        run("impatient", 2)
        run("impatient", 2, environment={"NETSUM_MODE": "off"})

    def test_a_rank_aborts_its_group(self):
        with Switch() as switch:
            first, *others = (r.result for r in run("aborted", 3, seconds=20, environment={"NETSUM_SWITCH": switch.address}))
        after = [None, "netsum: rank 0 aborted this process group: build another"]
        self.assertEqual((first[0][0], first[1:]), ("closed", [after, after]))
        self.assertIn("the process group was aborted", first[0][1])
        for texts in others:
            code, text = texts[-1]
            self.assertEqual(code, "worker_lost")
            self.assertIn("rank 0", text)
            self.assertIn("the process group was aborted", text)

    def test_ranks_that_differ_are_both_named(self):
        for rank in run("differ", 2):
            self.assertRegex(rank.result, "ranks (0 and 1|1 and 0) issued different calls")

    def test_errors_have_codes(self):
        self.assertEqual(["deadline", [1]], run("codes", 2)[0].result)

    def test_a_killed_switch_is_named(self):
        with Switch() as switch:
            ready, killed = [], []

            def kill_when_all_are_ready(rank, line):
                if line == "ready":
                    ready.append(rank.rank)
                    if len(ready) == 2:
                        killed.append(time.time())
                        switch.process.kill()

            for rank in run("switch_dies", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address},
                            on_line=kill_when_all_are_ready):
                when, words = rank.result
                self.assertLess(when - killed[0], NOTICED_WITHIN)
                self.assertIn(f"aggregator {switch.address}", words)

    def test_a_switch_that_comes_back_ends_nothing(self):
        with tempfile.TemporaryDirectory() as directory, Switch() as former:
            back, ready, later = os.path.join(directory, "back"), [], []

            def replace_when_all_are_ready(rank, line):
                if line == "ready":
                    ready.append(rank.rank)
                    if len(ready) == 2:
                        former.process.kill()
                        former.process.wait()
                        later.append(Switch(listen=former.address))
                        later[0].__enter__()
                        with open(back, "w", encoding="utf-8"):
                            pass

            try:
                for rank in run("switch_comes_back", 2, on_line=replace_when_all_are_ready, environment={
                        "NETSUM_MODE": "force", "NETSUM_SWITCH": former.address, "NETSUM_RECOVERY": "60", "BACK": back}):
                    self.assertEqual("switch", rank.result)
            finally:
                for switch in later:
                    switch.__exit__()

    def test_torchrun_starts_all_ranks_again_at_once(self):
        patient = ("--heartbeat-timeout-ms", "600000")
        with tempfile.TemporaryDirectory() as directory, Switch(*patient) as switch, ParameterServer(*patient) as server:
            kinds = [{"NETSUM_SWITCH": switch.address, "NETSUM_SHARED_MEMORY": "off"},
                     {"NETSUM_PROTOCOL": "atp", "NETSUM_PS": server.address, "NETSUM_SWITCH": switch.address},
                     {"NETSUM_PROTOCOL": "netreduce", "NETSUM_SWITCH": switch.address},
                     {}]  # a shard
            results, log = run_under_torchrun("goes_on_from_a_checkpoint", 2, environment={
                "NETSUM_MODE": "off", "CHECKPOINT": os.path.join(directory, "checkpoint"), "KINDS": json.dumps(kinds),
                "DAEMONS": json.dumps([switch.address, server.address])})
            self.assertEqual([{"first": 4, "same": [True] * 4, "paths": ["switch"] * 4, "former": [True] * 3}] * 2, results, log)

    def test_a_rank_that_never_comes_is_named(self):
        ranks = run("never_comes", 3)
        for rank in (ranks[0], ranks[2]):
            self.assertIn("rank 1 of 3 did not take part", rank.result)


if __name__ == "__main__":
    torch_support.main()
