"""Communication hooks of DistributedDataParallel for gradients of few bits."""
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
