"""What this rank's groups did last through the switch, in the format of PyTorch's flight recorder, which its tools read."""

import functools
import os
import pickle
import signal
import threading
import warnings

import torch.distributed

from . import _C

VERSION = "2.4"  # of the format
_writing = threading.RLock()  # a signal may come while its own thread writes


def _global_ranks():
    """By job: the ranks of the groups that torch knows."""
    from . import _backend_of

    c10d = torch.distributed.distributed_c10d
    known = c10d._world.pg_group_ranks if hasattr(c10d, "_world") else c10d._pg_group_ranks
    ranks = {}
    for group, members in known.items():
        try:
            job = _backend_of(group, "flight_record")._netsum_statistics()["job"]
        except (TypeError, RuntimeError):
            continue  # another backend's
        ranks[job] = sorted(members)
    return ranks


def record():
    """A dict: `version`, `pg_config`, `pg_status`, `entries`, as torch's _dump_nccl_trace() has them."""
    ranks = _global_ranks()
    config, status, entries = {}, {}, []
    for number, (job, size, flights) in enumerate(_C.flights()):
        config[job] = {"name": job, "desc": "netsum", "ranks": str(ranks.get(job, list(range(size))))}
        done = [flight["number"] for flight in flights if flight["completed_ns"]]
        status[job] = {"last_enqueued_collective": flights[-1]["number"] if flights else -1, "last_started_collective": flights[-1]["number"] if flights else -1,
                       "last_completed_collective": done[-1] if done else -1}
        for flight in flights:
            entries.append({
                "record_id": 0, "pg_id": number, "process_group": (job, "netsum"), "collective_seq_id": flight["number"], "p2p_seq_id": 0,
                "op_id": flight["number"], "profiling_name": "nccl:" + flight["name"],  # the one prefix that the tools take
                "time_created_ns": flight["created_ns"], "time_discovered_started_ns": flight["created_ns"],
                "time_discovered_completed_ns": flight["completed_ns"] or None,
                "duration_ms": (flight["completed_ns"] - flight["created_ns"]) / 1e6 if flight["completed_ns"] else None,
                "input_sizes": flight["input_sizes"], "input_dtypes": flight["input_dtypes"], "output_sizes": flight["output_sizes"],
                "output_dtypes": flight["output_dtypes"], "state": "completed" if flight["completed_ns"] else "started",
                "retired": bool(flight["completed_ns"]) or bool(flight["error"]), "timeout_ms": flight["timeout_ms"] or 0, "is_p2p": False, "frames": [],
                "netsum_error": flight["error"]})
    entries.sort(key=lambda entry: entry["time_created_ns"])
    for number, entry in enumerate(entries):
        entry["record_id"] = number
    return {"version": VERSION, "pg_config": config, "pg_status": status, "entries": entries}


def write(prefix):
    """Writes record() to the file PREFIX followed by this process' rank, and returns its name."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else int(os.environ.get("RANK", 0))
    path = f"{prefix}{rank}"
    with open(path + ".part", "wb") as file:
        pickle.dump(record(), file, protocol=2)
    os.replace(path + ".part", path)
    return path


def write_if_wanted():
    """To NETSUM_FLIGHT_RECORD, if that is set and this rank has used a switch."""
    prefix = os.environ.get("NETSUM_FLIGHT_RECORD")
    if not prefix or not _C.flights():
        return
    try:
        with _writing:
            write(prefix)
    except OSError as error:
        warnings.warn(f"netsum: the flight record was not written: {error}. Set NETSUM_FLIGHT_RECORD to a path prefix in a writable directory")


def _write_and_end(number, frame):
    write_if_wanted()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _writing_first(destroy):
    @functools.wraps(destroy)
    def destroy_process_group(*arguments, **named):
        write_if_wanted()
        return destroy(*arguments, **named)
    return destroy_process_group


def watch():
    """Has the record written when a group fails, on all of its ranks; before a group is destroyed, which is then forgotten; and at SIGTERM, with
    which torchrun ends the others when one rank has died. A program's own handler stays."""
    _C.set_failure_hook(write_if_wanted)
    if os.environ.get("NETSUM_FLIGHT_RECORD"):
        torch.distributed.destroy_process_group = _writing_first(torch.distributed.destroy_process_group)
    main = threading.current_thread() is threading.main_thread()
    if main and os.environ.get("NETSUM_FLIGHT_RECORD") and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _write_and_end)
