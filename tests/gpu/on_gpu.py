"""What the stages call of torch.cuda; and in a rehearsal, on a machine without a GPU, something that takes the same calls."""

import contextlib
import json
import os

from torch_support import DEVICE

IS_GPU = DEVICE == "cuda"


class _Rehearsed:
    """torch.cuda, as if the host were a GPU whose streams are always done."""

    class Stream:
        def synchronize(self):
            pass

    class CUDAGraph:
        pass

    @staticmethod
    def stream(_):
        return contextlib.nullcontext()

    @staticmethod
    def graph(_):
        raise RuntimeError("a rehearsal has no graph")

    @staticmethod
    def synchronize():
        pass

    @staticmethod
    def out_of_memory():
        raise RuntimeError("a rehearsal does not run out of memory")


def cuda():
    if IS_GPU:
        import torch
        return torch.cuda
    return _Rehearsed


def pinned(shape):
    import torch
    return torch.empty(shape, pin_memory=IS_GPU, device="cpu")


def save(found):
    """The results of this stage, for run_stages.py."""
    if "NETSUM_STAGE_RESULT" in os.environ:
        with open(os.environ["NETSUM_STAGE_RESULT"], "w", encoding="utf-8") as file:
            json.dump(found, file)
