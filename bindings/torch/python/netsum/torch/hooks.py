"""What gives to the next step what a step has lost, in few bits or of a late rank: for DistributedDataParallel, and for sharded models."""
import weakref

import torch

from . import _C


class Feedback:
    """What this rank's gradients have lost by rounding, which the next step adds. The state of one model's `int8` or `int4`."""

    def __init__(self, group=None):
        self.group, self.lost = group, {}


def int8(state, bucket):
    """Averages gradients with NETSUM_WIRE=int8, and gives back what was rounded.

        model.register_comm_hook(netsum.torch.hooks.Feedback(), netsum.torch.hooks.int8)

    A bucket, and what it lost in the last step, are rounded to nearest in the blocks in which they then travel, so that the wire rounds
    them no more; what that loses stays for the next step. A bucket that DDP has made anew begins without. float32 and bfloat16, on CPUs.
    """
    return _averaged(state, bucket, _C.WireFormat.int8)


def int4(state, bucket):
    """As `int8`, with NETSUM_WIRE=int4."""
    return _averaged(state, bucket, _C.WireFormat.int4)


class Late:
    """Gradients that came too late for their step (NETSUM_STRAGGLER_SECONDS). The state of one model's `late`."""

    def __init__(self, group=None):
        self.group, self.kept, self.following = group, {}, False

    def follows(self):
        """Begins a step. Whether this rank shall catch up in it: what its backward pass computes is not used, so a sample will do."""
        from . import behind  # the package, which imports this module
        self.following = bool(self.kept) or behind(self.group) > 0
        return self.following


def late(state, bucket):
    """Averages gradients over the ranks that are in time, and gives those of this rank, if it is late, to the next step that takes them.

        state = netsum.torch.hooks.Late()
        model.register_comm_hook(state, netsum.torch.hooks.late)
        for batch in batches:
            loss(model(batch[:1] if state.follows() else batch)).backward()
            ...

    A rank that was late follows through the steps that the others have ended, and one more, which takes the gradient that it has kept.
    On CPUs.
    """
    from . import _backend_of
    gradients, parameters = bucket.buffer(), bucket.parameters()
    lengths = [parameter.numel() for parameter in parameters]
    if state.following:
        gradients.zero_()
    for parameter, part in zip(parameters, gradients.split(lengths)):
        if (kept := state.kept.pop(parameter, None)) is not None:
            part.add_(kept)
    given = gradients.clone()
    options = torch.distributed.AllreduceOptions()
    options.reduceOp = torch.distributed.ReduceOp.AVG
    work = _backend_of(state.group, "late").allreduce([gradients], options)

    def averaged(done):
        done.value()  # raises its error
        if left_out := work._netsum_left_out():
            lost = torch.zeros_like(given)
            for first, last in left_out:
                lost[first:last] = given[first:last]
            state.kept.update(zip(parameters, lost.split(lengths)))
        return gradients
    return work.get_future().then(averaged)


def give_back(model, group=None):
    """Has each reduce-scatter of `group` (default: the world) get back what its values lost by rounding in the model's last step.

        model = fully_shard(model)
        netsum.torch.hooks.give_back(model)

    Values of float32 and bfloat16, of sums and averages, with what the reduce-scatter at the same place of the last step lost, are
    rounded to nearest in the blocks in which they then travel. A step begins with the model's forward pass; a call that is not as long
    as that of the last step begins without. Without NETSUM_WIRE=int8 or int4 nothing is rounded, and this does nothing. All that is kept
    is as long as what a step's reduce-scatters send: a model's gradients, not a shard of them.
    """
    from . import _backend_of  # the package, which imports this module
    group = group or torch.distributed.group.WORLD
    backend = _backend_of(group, "give_back")
    wire = _C.WireFormat.__members__.get(_C.read_settings().common_to_all_ranks()["NETSUM_WIRE"])
    if wire is None:
        return
    backend._netsum_give_back(wire)
    group = weakref.ref(group)  # a model may outlive it

    def begin(*_):
        if (alive := group()) is not None:
            _backend_of(alive, "give_back")._netsum_begin_step()
    model.register_forward_pre_hook(begin)


def _averaged(state, bucket, wire):
    gradients = bucket.buffer()
    lost = state.lost.get(bucket.index())
    if lost is None or lost.numel() != gradients.numel():
        lost = state.lost[bucket.index()] = torch.zeros_like(gradients)
    gradients.add_(lost)
    sent = torch.empty_like(gradients)
    _C.round_as(wire, gradients, sent)
    torch.sub(gradients, sent, out=lost)
    lost.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    options = torch.distributed.AllreduceOptions()
    options.reduceOp = torch.distributed.ReduceOp.AVG
    work = (state.group or torch.distributed.group.WORLD).allreduce([sent], options)

    def averaged(done):
        done.value()  # raises its error
        return sent
    return work.get_future().then(averaged)
