"""How all ranks of a group decide together, through the group's store, which way its all-reduces go.

Each round, every rank publishes a report; rank 0 reads all of them and publishes one verdict, which all follow. So no rank
can be on the switch while another is on Gloo, and an error that one rank has is raised on all, with its rank and reason.
"""

import ipaddress
import json
import os
import secrets
import socket
import sys
import time
from datetime import timedelta

import torch.distributed
from torch.distributed import PrefixStore
from torch.distributed.distributed_c10d import STORE_BASED_BARRIER_PREFIX

from . import _C, forks
from .restarts import host_identity, name_job

REACH_SECONDS = 5.0
_process = secrets.token_hex(8)  # of this process's words to later ones


class Agreement:
    def __init__(self, store, rank, size, timeout):
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout

    def round(self, name, report, judge):
        """Publishes `report`; returns what rank 0's judge(reports by rank) says."""
        self.store.set(f"{name}/{self.rank}", json.dumps(report))
        self.store.add(f"{name}/came/{self.rank}", 1)
        self.store.add(f"{name}/came", 1)
        if self.rank == 0:
            if self._reaches(f"{name}/came", self.size, self.timeout):
                verdict = judge([json.loads(self.store.get(f"{name}/{r}")) for r in range(self.size)])
            else:
                missing = [str(r) for r in range(self.size) if self.store.add(f"{name}/came/{r}", 0) == 0]
                verdict = {"error": f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(missing)} of {self.size} did not take part "
                                    f"in the setup of the group within {self.timeout.total_seconds():g} s"}
            self.store.set(f"{name}/verdict", json.dumps(verdict))
            self.store.add(f"{name}/decided", 1)
            if "error" in verdict:  # this process may end now, and the store with it: the others read first
                self._reaches(f"{name}/read", self.store.add(f"{name}/came", 0) - 1, timedelta(seconds=2))
        elif not self._reaches(f"{name}/decided", 1, 3 * self.timeout):
            # Rank 0 has the better error text, and may have waited twice: the store's host also waits for its clients.
            raise RuntimeError(f"netsum: rank 0 did not set up the group within {self.timeout.total_seconds():g} s")
        verdict = json.loads(self.store.get(f"{name}/verdict"))
        if self.rank != 0:
            self.store.add(f"{name}/read", 1)
        if "error" in verdict:
            raise RuntimeError(f"netsum: {verdict['error']}")
        return verdict

    def _reaches(self, counter, value, timeout):
        """Whether the store's counter reaches `value` in time. Asked, not waited for: a TCPStore's connection is unusable after
        a wait that timed out."""
        until, pause = time.monotonic() + timeout.total_seconds(), 0.002
        while self.store.add(counter, 0) < value:
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return True


def fresh(store, rank):
    """A part of the store that no earlier group of the same name has written to: a process may build its groups again."""
    return PrefixStore(f"netsum/{store.add(f'netsum/builds/{rank}', 1)}", store)


def _failures(reports):
    """Words for the ranks that reported an error; empty if none did."""
    failed = [(rank, r) for rank, r in enumerate(reports) if r.get("error")]
    if not failed:
        return ""
    # Do not name a rank that merely waited for another one.
    rank, report = next(((rank, r) for rank, r in failed if r.get("code") != "deadline"), failed[0])
    more = f" (and {len(failed) - 1} more of {len(reports)} ranks)" if len(failed) > 1 else ""
    return f"rank {rank} on {report['host']}: {report['error']}{more}"


def _plan(reports, most_ranks):
    """The first verdict: are the settings sound and equal, and is there anything to do for a switch?"""
    words = _failures(reports)
    if words:
        return {"error": words}
    first = reports[0]["settings"]
    for rank, report in enumerate(reports):
        for name, value in first.items():
            if report["settings"][name] != value:
                return {"error": f"ranks 0 and {rank} disagree about {name}: {value!r} and {report['settings'][name]!r}; "
                                 "set the NETSUM_* variables alike on all ranks"}
    size = len(reports)
    name, generation = name_job()
    verdict = {"path": "switch", "mode": first["NETSUM_MODE"], "job": f"{first['NETSUM_JOB'] or 'torch'}.{name}",
               "generation": generation, "token": secrets.token_hex(16), "job_key": secrets.token_hex(32)}
    if verdict["mode"] == "off":
        verdict.update(path="gloo", reason="NETSUM_MODE=off")
    elif size == 1:
        verdict.update(path="gloo", reason="a group of one rank has nothing to sum")
    elif size > most_ranks:
        verdict = _give_up(verdict["mode"], f"{size} ranks are more than the {most_ranks} of one job with {first['NETSUM_PROTOCOL']}") | {
            k: v for k, v in verdict.items() if k != "path"}
    else:
        hosts = [r["host_identity"] for r in reports]
        verdict["leaders"] = sorted({hosts.index(h) for h in hosts})
        verdict["one_host"] = len(verdict["leaders"]) == 1
    return verdict


def _give_up(mode, reason):
    if mode == "force":
        return {"error": f"NETSUM_MODE=force, but {reason}"}
    return {"path": "gloo", "reason": reason}


def _listening_host(settings, one_host):
    """The address under which this host's shard is reached."""
    if settings.address:
        return settings.address
    if one_host:
        return "127.0.0.1"
    for target in (os.environ.get("MASTER_ADDR", ""), socket.gethostname()):
        try:
            ways = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, kind, protocol, _, address in ways:
            try:  # the address that the routes to the master start from; no packet is sent
                with socket.socket(family, kind, protocol) as probe:
                    probe.connect(address)
                    own = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
            except OSError:
                continue
            if not own.is_loopback and not own.is_link_local:
                return str(own)
    raise RuntimeError("found no address under which other hosts reach this one: set NETSUM_ADDRESS")


def _start_shard(settings, plan, prefix):
    """This host's aggregator, inside this process, for one group."""
    host = _listening_host(settings, plan["one_host"])
    listen = f"[{host}]:0" if ":" in host else f"{host}:0"
    return _C.start_shard(settings=settings, listen=listen, token=plan["token"], log_prefix=prefix)


def _reach(addresses, seconds):
    """An error in words, or None: does every aggregator's control port answer?"""
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
        except OSError as error:
            return f"cannot reach the aggregator {address}: {error.strerror or error}"
    return None


def _forget_barriers(group_store):
    """torch 1.x ends init_process_group with a barrier that counts in the store and never resets the count: a second one in the
    same store (torchrun's) waits for a number that is already exceeded. All ranks are on their way to that barrier when rank 0
    calls this, so nobody's count is lost."""
    store = group_store.underlying_store
    number = 1
    try:
        while store.add(key := f"{STORE_BASED_BARRIER_PREFIX}:{number}", 0) > 0:  # delete_key() of a file's store is always True
            store.delete_key(key)
            number += 1
    except RuntimeError:  # a store that cannot delete
        return


def _make_room_in_barrier(group_store):
    """The former process of this rank is counted in torch 1.x's barrier at the end of init_process_group, and that count must be met
    exactly."""
    group_store.underlying_store.add(f"{STORE_BASED_BARRIER_PREFIX}:{torch.distributed.distributed_c10d._group_count}", -1)


def build(store, rank, size, timeout, make_gloo, world_rank=None):
    """Decides, and returns the process group. `world_rank`: what errors call this rank, if it is not torch.distributed that knows."""
    before = forks.network_sockets()
    world_store = None if torch.distributed.is_initialized() else store
    hostname = socket.gethostname()

    if world_rank is None:
        world_rank = torch.distributed.get_rank() if world_store is None else rank
    settings, report = _C.Settings(), {"host": hostname, "world_rank": world_rank}
    try:
        settings = _C.read_settings()
        report.update(settings=settings.common_to_all_ranks(), host_identity=host_identity())
    except (_C.Error, OSError) as error:
        report["error"] = str(error)
    if settings.survivors and (group := _come_in(store, rank, size, timeout, settings, world_store)):
        forks.keep_from_children(before, store)
        return group
    kept, store = store, fresh(store, rank)
    agreement = Agreement(store, rank, size, timeout)

    def judge(reports):
        if world_store is not None:
            _forget_barriers(world_store)
        return _plan(reports, settings.most_ranks) | {"world_ranks": [r["world_rank"] for r in reports]}

    plan = agreement.round("plan", report, judge)
    debug_prefix = f"netsum[{rank}]: " if settings.log == "debug" else ""
    prefix = "netsum: " if settings.log == "info" and rank == 0 else debug_prefix

    connection = shard = None
    verdict, addresses = plan, []
    if plan["path"] == "switch":
        verdict, addresses, connection, shard = _join(agreement, plan, settings, hostname, debug_prefix)

    gloo = make_gloo(PrefixStore("gloo", store), rank, size, timeout)
    path, reason = verdict["path"], verdict.get("reason", "")
    group = _C.StagedProcessGroup(gloo=gloo, connection=connection, shard=shard, store=PrefixStore("end", store), path=path,
                            reason=reason, job=plan["job"] if path == "switch" else "", mode=plan["mode"],
                            switches=",".join(addresses) if path == "switch" else "",
                            shards=len(plan["leaders"]) if path == "switch" and not (settings.above or settings.switches) else 0,
                            world_ranks=plan["world_ranks"], survivors=settings.survivors > 0, timeout=timeout, log_prefix=prefix)
    forks.keep_from_children(before, store)
    if path == "switch" and settings.survivors:
        _leave_word(kept, rank, {**plan, "addresses": addresses, "reason": reason})

    if path == "switch":
        line = f"all-reduce of {size} ranks goes through the switch: {reason} (job {plan['job']})"
    else:
        line = f"all-reduce of {size} ranks goes over Gloo: {reason}"
    if prefix:
        print(f"{prefix}{line}", file=sys.stderr, flush=True)
    return group


def _leave_word(store, rank, job):
    """For a new process of this rank: the job, where it may come in."""
    store.set(f"netsum/job/{rank}", json.dumps({**job, "process": _process}))
    store.add(f"netsum/jobs/{rank}", 1)


def _come_in(store, rank, size, timeout, settings, world_store):
    """The group of a process that the others let in, in place of one of the same rank that has died. None: there was none, or all ranks
    begin anew. It has no Gloo, whose connections are made by all ranks together."""
    if store.add(f"netsum/jobs/{rank}", 0) == 0:
        return None
    job = json.loads(store.get(f"netsum/job/{rank}"))
    if job["process"] == _process:
        return None
    prefix = f"netsum[{rank}]: " if settings.log == "debug" else ""
    connection = _C.connect(settings=settings, shards=[], token=job["token"], job_key=job["job_key"], job=job["job"],
                            generation=job["generation"], rank=rank, world_size=size, connect_deadline=timeout,
                            operation_deadline=timeout, log_prefix=prefix)
    if not connection.newcomers:
        operations = connection.next_operation
        connection.close()
        if operations == 0:
            return None
        raise RuntimeError(f"netsum: job {job['job']} has fewer ranks left than NETSUM_SURVIVORS={settings.survivors}, in the middle of a step "
                           f"(operation {operations}): start all ranks again from a checkpoint")
    _leave_word(store, rank, job)
    if world_store is not None:
        _make_room_in_barrier(world_store)
    return _C.StagedProcessGroup(gloo=None, connection=connection, shard=None, store=PrefixStore("end", store), path="switch",
                                 reason=job["reason"], job=job["job"], mode=job["mode"], switches=",".join(job["addresses"]),
                                 shards=0, world_ranks=job["world_ranks"], survivors=True, timeout=timeout, log_prefix=prefix)


def _join(agreement, plan, settings, hostname, prefix):
    """The rounds between a sound plan and a joined job: (verdict, addresses, connection, shard)."""
    mode, rank, size = plan["mode"], agreement.rank, agreement.size
    seconds = min(settings.connect_seconds, agreement.timeout.total_seconds())

    def judge(success):
        return lambda reports: _give_up(mode, words) if (words := _failures(reports)) else success(reports)

    own_switch = settings.switches if settings.above else []
    shard, addresses = None, settings.above or settings.switches
    if not addresses:
        report = {"host": hostname}
        if rank in plan["leaders"]:
            try:
                shard = _start_shard(settings, plan, prefix)
                report["address"] = shard.address()
            except RuntimeError as error:
                report["error"] = f"cannot run an aggregator: {error}"
        verdict = agreement.round("shards", report, judge(lambda reports: {
            "path": "switch", "addresses": [r["address"] for r in reports if "address" in r]}))
        if verdict["path"] != "switch":
            return verdict, [], None, None
        addresses = verdict["addresses"]

    report = {"host": hostname, "error": _reach(addresses + own_switch, min(seconds, REACH_SECONDS))}
    verdict = agreement.round("reach", report, judge(lambda _: {"path": "switch"}))
    if verdict["path"] != "switch":
        return verdict, [], None, None

    connection, report = None, {"host": hostname}
    try:
        connection = _C.connect(settings=settings, shards=[] if settings.above or settings.switches else addresses,
                                token=plan["token"], job_key=plan["job_key"], job=plan["job"], generation=plan["generation"], rank=rank,
                                world_size=size, connect_deadline=timedelta(seconds=seconds),
                                operation_deadline=agreement.timeout, log_prefix=prefix)
    except RuntimeError as error:
        report.update(error=str(error), code=getattr(error, "code", ""))
    protocol = settings.common_to_all_ranks()["NETSUM_PROTOCOL"]
    if settings.above and protocol == "atp":
        why = f"ATP with parameter servers {', '.join(addresses)}, NETSUM_MODE={mode}"
    elif settings.above:
        why = f"{protocol} below {', '.join(addresses)}, NETSUM_MODE={mode}"
    elif settings.switches:
        why = f"at {', '.join(addresses)}, NETSUM_MODE={mode}"
    else:
        where = ", ".join(f"{a} inside rank {r}" for a, r in zip(addresses, plan["leaders"]))
        why = f"NETSUM_SWITCH is not set, so each host runs an aggregator shard in its lowest rank ({where}), NETSUM_MODE={mode}"
    try:
        verdict = agreement.round("join", report, judge(lambda _: {"path": "switch", "reason": why}))
    except RuntimeError:
        if connection is not None:
            connection.close()
        raise
    if verdict["path"] != "switch":
        if connection is not None:
            connection.close()
        return verdict, [], None, None
    return verdict, addresses, connection, shard
