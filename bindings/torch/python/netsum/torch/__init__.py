"""The torch.distributed backend "netsum": reductions, gathers and broadcasts through an aggregation switch, the rest over Gloo.

    import netsum.torch
    torch.distributed.init_process_group("netsum")

docs/pytorch.md tells what it does and which NETSUM_* variables there are.
"""

import atexit
import pickle
import sys

try:
    import torch
    import torch.distributed
except ImportError as error:
    raise ImportError(f"{error}; this Python is {sys.executable}: use the one that has torch (/usr/bin/python3 for Debian's)") from error

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    raise ImportError("netsum.torch needs a torch with distributed and Gloo; this is torch " + torch.__version__)

try:
    from . import _C  # noqa: E402
except ImportError as error:
    raise ImportError(f"netsum.torch's module does not load in this Python, {sys.executable} ({sys.version.split()[0]}) with torch "
                      f"{torch.__version__}; it belongs to the one that it was built for: {error}") from error

_version = ".".join(torch.__version__.split(".")[:2])
if _version != _C.torch_version:
    raise ImportError(f"netsum.torch was built for torch {_C.torch_version}, and this is {torch.__version__}: build it again, "
                      "with -DNETSUM_PYTHON naming this interpreter")

from . import agreement, flights, hooks  # noqa: E402

__all__ = ["Error", "admit", "behind", "bucket_hook", "empty", "finish", "flight_record", "hooks", "statistics", "write_flight_record"]

Error = _C.Error  # a RuntimeError with `code`, see docs/errors.md

def _make_gloo(store, rank, size, timeout):
    return torch.distributed.ProcessGroupGloo(store, rank, size, timeout=timeout)


def _create(store, rank, size, timeout, world_rank=None):
    return agreement.build(store, rank, size, timeout, _make_gloo, world_rank)


def _backends_of(group):
    """What `group` has for each kind of device, where torch (2.x) has one for each: a group may be cpu:gloo,cuda:netsum."""
    if isinstance(group, _C.ProcessGroup) or not hasattr(group, "_get_backend"):
        return [group]
    return [group._get_backend(device) for device in group._device_types]


def _backend_of(group, caller):
    if group is None:
        group = torch.distributed.distributed_c10d._get_default_group()
    backends = _backends_of(group)
    for backend in backends:
        while hasattr(backend, "wrapped_pg"):  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it again
            backend = backend.wrapped_pg
        if isinstance(backend, _C.ProcessGroup):
            return backend
    raise TypeError(f"{caller}() requires a process group with the backend netsum; this group has "
                    f"{', '.join(type(backend).__name__ for backend in backends)}")


def _is_captured(device):
    """Whether the current stream of that kind of device is being captured into a graph."""
    module = getattr(torch, device, None)
    return hasattr(module, "is_current_stream_capturing") and module.is_current_stream_capturing()


_C.set_capture_probe(_is_captured)


def empty(*size, dtype=None, group=None):
    """torch.empty(), in memory that the group's ranks share if they are on one host: all-reduces of it copy nothing in or out.

    All ranks call it, in the same order among the group's all-reduces. The memory is the tensor's, and outlives the group.
    """
    tensor = torch.empty(*size, dtype=dtype)
    _backend_of(group, "empty")._netsum_move_to_allocated(tensor)
    return tensor


def bucket_hook(group, bucket):
    """A communication hook of DistributedDataParallel that has its buckets in such memory, and averages them there.

        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        model.register_comm_hook(None, netsum.torch.bucket_hook)   # or the process group in place of None

    A bucket moves when it is first reduced; with gradient_as_bucket_view the gradients are views of it and move with it. Each
    parameter's gradient is a tensor of its own: it shares its exponents with no other parameter's.
    """
    buffer = bucket.buffer()
    _backend_of(group, "bucket_hook")._netsum_move_to_allocated(buffer)
    options = torch.distributed.AllreduceCoalescedOptions()
    options.reduceOp = torch.distributed.ReduceOp.AVG
    work = (group or torch.distributed.group.WORLD).allreduce_coalesced(bucket.gradients(), options)

    def averaged(done):
        done.value()  # raises its error
        return buffer
    return work.get_future().then(averaged)


def admit(state, group=None):
    """With NETSUM_SURVIVORS: lets new processes of ranks that died in, if some wait. All ranks in the group call it, between two steps.

    None if nobody came in. Otherwise what `state()` returned on a rank that was there before, on all ranks. In a new process
    init_process_group() returns when the others call admit(), and its own first call gets the state. state() is called only where it
    is needed, and what it returns is pickled.
    """
    backend = _backend_of(group, "admit")
    newcomers = backend._netsum_admit()
    if not newcomers:
        return None

    def broadcast(tensor, root):
        options = torch.distributed.BroadcastOptions()
        options.rootRank = root
        backend.broadcast([tensor], options).wait()

    for giver in [rank for rank in statistics(group)["members"] if rank not in newcomers]:
        pickled = pickle.dumps(state()) if giver == backend.rank() else b""
        length = torch.tensor([len(pickled)])
        broadcast(length, giver)
        data = torch.frombuffer(bytearray(pickled), dtype=torch.uint8) if pickled else torch.empty(length.item(), dtype=torch.uint8)
        broadcast(data, giver)
        backend.allreduce([torch.zeros(1)], torch.distributed.AllreduceOptions()).wait()
        if giver in statistics(group)["members"]:  # else another rank's bytes may have come in place of its own
            return pickle.loads(data.numpy().tobytes())
    raise RuntimeError("netsum: no rank is left that was there before the new processes: start all ranks from a checkpoint")


def behind(group=None):
    """With NETSUM_STRAGGLER_SECONDS: how many of this rank's next calls the others have ended without it. These return at once."""
    return _backend_of(group, "behind")._netsum_behind()


def finish(group=None):
    """A barrier that waits for all ranks, late ones too. All ranks call it; before destroy_process_group(), so that ranks which leave do
    not take along what a late one has yet to get."""
    backend = _backend_of(group, "finish")
    torch.distributed.barrier(group)  # behind all calls before it
    backend._netsum_wait_for_all()


def statistics(group=None):
    """What `group` (default: the world) did so far, as a dict.

    path ("switch" or "gloo"), reason, mode, job, switches, placement; members (the ranks in the latest reduction's result: all, but
    with NETSUM_SURVIVORS); collectives (by name: calls and bytes by the switch, and
    over Gloo by the reason why), switch_operations, switch_tensor_bytes, gloo_operations (by name); seconds_in_all_reduce (at
    least one was under way); wire_bytes_sent, wire_bytes_received,
    packets_sent, packets_received, packets_retransmitted (this rank and the switch, headers included; Gloo's are not known),
    busy_seconds (a thread had packets in hand), slots, packet_elements; values_underflowed of values_examined (what a block's
    exponent made 0, in a sample); shared_memory (there are no packets) and bytes_copied there, from and to tensors.
    """
    return _backend_of(group, "statistics")._netsum_statistics()


flight_record = flights.record
write_flight_record = flights.write

# A program that ends without destroy_process_group() has not died: its ranks leave. Threads that still run callbacks end while
# the interpreter is there for them.
atexit.register(_C.leave_all)
atexit.register(flights.write_if_wanted)  # before
flights.watch()

if int(_version.split(".")[0]) >= 2:
    # torch makes a new backend the default of devices that have none: init_process_group() without a name shall not change.
    _defaults = torch.distributed.Backend.default_device_backend_map
    _before = dict(_defaults)
    torch.distributed.Backend.register_backend("netsum", _create, devices=["cpu", "cuda", "xpu", "privateuseone"])
    _defaults.clear()
    _defaults.update(_before)
else:
    torch.distributed.Backend.register_backend("netsum", _create)


def register():
    """What a torch calls that finds the backend by its entry point, without an import: the import, which comes first, has registered it."""
