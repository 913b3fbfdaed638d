"""What torch trains with beside plain DDP: each feature over the backend, against the same training without ranks, or over Gloo.

docs/pytorch.md's table of what takes the switch is `torch_parallel.py --table`.
"""

import atexit
import contextlib
import os
import runpy
import shutil
import signal
import sys
import tempfile
import unittest

import torch_support
from torch_support import TORCH, Switch, init, run, run_under_torchrun

STEPS = 4
RATE = 0.1


def network(features=16):
    import torch
    from torch import nn
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 8))


def loss_of(model, rank, step, features=16):
    """Of what this rank sees in this step."""
    import torch
    data = torch.Generator().manual_seed(1000 * step + rank)
    images, labels = torch.randn(4, features, generator=data), torch.randn(4, 8, generator=data)
    return torch.nn.functional.mse_loss(model(images), labels)


def flat(parameters):
    import torch
    return torch.cat([p.detach().reshape(-1).float() for p in parameters])


def optimizer_of(parameters):
    import torch
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def train(model, rank, steps=STEPS, optimizer=None, begin=0):
    optimizer = optimizer or optimizer_of(model.parameters())
    for step in range(begin, steps):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return optimizer


def alone(size, steps=STEPS, make_optimizer=optimizer_of):
    """The parameters that a training ends with which sees what all ranks see: what data-parallel training must end with."""
    model = network()
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        (sum(loss_of(model, rank, step) for rank in range(size)) / size).backward()
        optimizer.step()
    return flat(model.parameters())


def close(got, expected, tolerance=1e-5):
    import torch
    assert got.shape == expected.shape, (got.shape, expected.shape)
    assert torch.allclose(got.float(), expected.float(), atol=tolerance, rtol=tolerance), (got - expected).abs().max()


def took():
    """{collective: ["switch" if any call took it, and the reasons of those that did not]}, of all groups of this rank."""
    import torch.distributed as dist

    import netsum.torch
    paths = {}
    for group in list(dist.distributed_c10d._world.pg_map if TORCH >= (2, 0) else dist.distributed_c10d._pg_map):
        with contextlib.suppress(TypeError):  # Gloo's own
            for collective, counted in netsum.torch.statistics(group)["collectives"].items():
                paths.setdefault(collective, set()).update(["switch"] if counted["switch"]["calls"] else [], counted["gloo"])
    return {collective: sorted(seen) for collective, seen in sorted(paths.items())}


def with_hook(name, model, group):
    """Registers a hook. Returns whether the hook steps the optimizer."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import (DDPCommHookType, default_hooks, post_localSGD_hook,
                                                             register_ddp_comm_hook)

    def renamed(hook):  # torch without CUDA refuses some hooks by name, whatever the backend
        model.register_comm_hook(group, lambda held, bucket: hook(held, bucket))

    if name == "BF16_COMPRESS":
        renamed(default_hooks.bf16_compress_hook)
    elif name == "bf16_compress_wrapper":
        renamed(default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook))
    elif name == "fp16_compress_wrapper":
        model.register_comm_hook(group, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
    elif name == "post_localSGD":
        state = post_localSGD_hook.PostLocalSGDState(group, group, start_localSGD_iter=2)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    elif name == "optimizer_overlap":
        model._register_fused_optim(torch.optim.SGD, lr=RATE, momentum=0.9)
        return True
    else:
        register_ddp_comm_hook(DDPCommHookType[name], model, group)
    return False


def train_with_hook(name, group, rank):
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(network(), process_group=group)  # of one bucket: hooks issue operations in callbacks
    if with_hook(name, model, group):
        for step in range(STEPS):
            model.zero_grad()
            loss_of(model, rank, step).backward()
    else:
        train(model, rank)
    return flat(model.parameters())


def case_hooks(rank, size):
    """Each hook of DistributedDataParallel that torch ships."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, ddp_zero_hook, default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    init()
    gloo = dist.new_group(backend="gloo")
    world = dist.distributed_c10d._get_default_group()
    broken = {"QUANTIZE_PER_CHANNEL"}  # wants CUDA tensors; so does the next in 1.13, whose last fails to import under Python 3.11
    broken |= {"QUANTIZE_PER_TENSOR", "optimizer_overlap"} if TORCH < (2, 0) else set()
    names = {kind.name for kind in DDPCommHookType} | {"BF16_COMPRESS", "bf16_compress_wrapper", "fp16_compress_wrapper",
                                                       "post_localSGD", "optimizer_overlap"}
    for name in sorted(names - broken):
        ours = train_with_hook(name, world, rank)
        if name.upper().startswith("BF16"):  # which torch 1.13's Gloo refuses
            close(ours, alone(size), 2e-2)
        else:
            close(ours, train_with_hook(name, gloo, rank), 1e-3 if name.upper().startswith("FP16") else 1e-5)
    model = DistributedDataParallel(network())
    zero = ZeroRedundancyOptimizer(model.parameters(), optimizer_class(), overlap_with_ddp=True, lr=RATE)
    for make in (ddp_zero_hook.hook_with_zero_step, ddp_zero_hook.hook_with_zero_step_interleaved):
        refused_with("NCCL", lambda: make(default_hooks.allreduce_hook, model, zero))  # by torch, for any other backend
    return done()


def optimizer_class():
    import torch
    return torch.optim.SGD


def refused_with(words, call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused with {words}")


def done():
    import torch.distributed as dist
    paths = took()
    dist.barrier()
    dist.destroy_process_group()
    return paths


def case_zero(rank, size):
    """ZeroRedundancyOptimizer over DDP, its state gathered and loaded again."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    init()

    def adam(parameters):
        return torch.optim.Adam(parameters, lr=0.01)

    model = DistributedDataParallel(network())
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, rank, optimizer=zero, steps=STEPS - 1)
    zero.consolidate_state_dict(to=0)
    state = [zero.state_dict() if rank == 0 else None]
    torch.distributed.broadcast_object_list(state)
    again = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    again.load_state_dict(state[0])
    train(model, rank, optimizer=again, begin=STEPS - 1)
    close(flat(model.parameters()), alone(size, make_optimizer=adam))
    return done()


def case_join(rank, size):
    """Join: ranks whose data ends earlier; DDP and ZeRO together. As over Gloo."""
    import torch.distributed as dist
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    init()
    found = []
    for group in (dist.distributed_c10d._get_default_group(), dist.new_group(backend="gloo")):
        model = DistributedDataParallel(network(), process_group=group)
        zero = ZeroRedundancyOptimizer(model.parameters(), optimizer_class(), process_group=group, lr=RATE)
        with Join([model, zero]):
            train(model, rank, optimizer=zero, steps=STEPS - rank)
        found.append(flat(model.parameters()))
    close(*found)
    return done()


def case_autograd(rank, size):
    """torch.distributed.nn: collectives that gradients flow through."""
    import torch
    import torch.distributed as dist
    import torch.distributed.nn
    init()
    mine = torch.full((3,), rank + 1.0, requires_grad=True)
    total = size * (size + 1) / 2
    summed = torch.distributed.nn.all_reduce(mine)
    summed.square().sum().backward()
    assert (summed == total).all() and (mine.grad == 2 * total * size).all(), mine.grad
    mine.grad = None
    everyone = torch.distributed.nn.all_gather(mine)
    (everyone[0] * (rank + 1)).sum().backward()
    assert (mine.grad == (total if rank == 0 else 0)).all(), mine.grad
    mine.grad = None
    shared = torch.distributed.nn.broadcast(mine, src=1)
    shared.sum().backward()
    assert (shared == 2).all() and (mine.grad == (size if rank == 1 else 0)).all(), mine.grad
    part = torch.empty(3)
    part = torch.distributed.nn.reduce_scatter(part, [mine * (r + 1) for r in range(size)])
    assert (part == total * (rank + 1)).all()
    assert dist.get_backend() == "netsum"
    return done()


def case_fsdp1(rank, size):
    """FullyShardedDataParallel, each way to shard within one group."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    init()
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        model = FullyShardedDataParallel(network(), sharding_strategy=strategy, device_id=torch.device("cpu"),
                                         auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}), use_orig_params=True)
        train(model, rank)
        with FullyShardedDataParallel.summon_full_params(model):
            close(flat(model.parameters()), alone(size))
    return done()


def mend_fully_shard():
    """torch 2.6's fully_shard fails on CPUs, whatever the backend: it calls methods of streams that CPUs' do not have, and its copies
    out of an all-gather count as changes of what the backward pass needs. What 2.7 does instead."""
    import torch
    if TORCH >= (2, 7):
        return
    torch.cpu.Stream.record_event = lambda stream, event=None: event or torch.cpu.Event()
    torch.cpu.Stream.wait_event = lambda *_: None
    copy = torch.split_with_sizes_copy

    def uncounted(*arguments, out, **more):
        with contextlib.ExitStack() as stack:
            for tensor in out:
                stack.enter_context(torch.autograd._unsafe_preserve_version_counter(tensor))
            return copy(*arguments, out=out, **more)

    torch.split_with_sizes_copy = uncounted


def sharded(mesh, **more):
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **more)
    return fully_shard(model, mesh=mesh, **more)


def whole(model):
    import torch
    return torch.cat([p.full_tensor().detach().reshape(-1).float() for p in model.parameters()])


def case_fsdp2(rank, size):
    """fully_shard; in bfloat16; and with a factor, which is a premultiplied sum."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy
    mend_fully_shard()
    init()
    mesh = init_device_mesh("cpu", (size,))
    model = sharded(mesh)
    train(model, rank)
    close(whole(model), alone(size))
    halves = sharded(mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16, torch.float32))
    train(halves, rank)
    close(whole(halves), alone(size), 2e-2)
    scaled = sharded(mesh)
    for module in scaled.modules():
        if hasattr(module, "set_reduce_scatter_divide_factor"):
            module.set_reduce_scatter_divide_factor(size)
    train(scaled, rank)
    close(whole(scaled), alone(size))
    return done()


def case_fsdp2_few_bits(rank, size):
    """What the reduce-scatters of a step lose is given back in the next: the parameters end nearer to those of exact sums. The switch's own
    rounding is given back by nobody, and with 8 bits the larger part."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    import netsum.torch
    mend_fully_shard()
    init()

    def plain(parameters):
        return torch.optim.SGD(parameters, lr=RATE)
    mesh, exact, errors = init_device_mesh("cpu", (size,)), alone(size, 60, plain), []
    for given_back in (False, True):
        model = sharded(mesh)
        if given_back:
            netsum.torch.hooks.give_back(model)
        train(model, rank, 60, plain(model.parameters()))
        errors.append((whole(model) - exact).norm().item())
    assert 0 < errors[1] < errors[0] / {"int8": 1.1, "int4": 2}[os.environ["NETSUM_WIRE"]], errors
    return errors


def case_hsdp(rank, size):
    """Shards within a host, sums between hosts: fully_shard on a mesh of two dimensions, and FSDP1's HYBRID_SHARD."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    mend_fully_shard()
    init()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(mesh)
    train(model, rank)
    close(whole(model), alone(size))
    former = FullyShardedDataParallel(network(), sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh,
                                      device_id=torch.device("cpu"), use_orig_params=True)
    train(former, rank)
    with FullyShardedDataParallel.summon_full_params(former):
        close(flat(former.parameters()), alone(size))
    return done()


def case_hsdp_example(rank, size):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples")
    sys.path.insert(0, folder)
    sys.argv = ["hsdp_fashion_mnist.py", "--ranks-per-host", "2", "--steps", "6", "--hidden", "64", "--batch", "64"]
    runpy.run_path(f"{folder}/hsdp_fashion_mnist.py", run_name="__main__")


def case_first_script(rank, size):
    """What docs/start.md has."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(f"{folder}/../../docs/start.md", encoding="utf-8") as file:
        script = file.read().split("cat >train.py <<'END'\n")[1].split("\nEND\n")[0]
    exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})  # pylint: disable=exec-used


def case_device_mesh(rank, size):
    """Groups of each dimension, and of two in one."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    init()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    for name, mates in (("outer", [rank, (rank + 2) % 4]), ("inner", [rank, rank ^ 1])):
        tensor = torch.full((100,), float(rank))
        dist.all_reduce(tensor, group=mesh.get_group(name))
        assert (tensor == sum(mates)).all(), (name, tensor)
    tensor = torch.full((100,), float(rank))
    dist.all_reduce(tensor, group=mesh["outer", "inner"]._flatten().get_group())
    assert (tensor == 6).all()
    return done()


def case_dtensor(rank, size):
    """DTensor: every change of placement, uneven shards too, and an operation on sharded operands."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    init()
    mesh = init_device_mesh("cpu", (size,))
    for rows in (8, 7):
        full = torch.arange(rows * 6.0).reshape(rows, 6)
        for before in (Shard(0), Shard(1), Replicate()):
            tensor = distribute_tensor(full, mesh, [before])
            for after in (Shard(0), Shard(1), Replicate()):
                assert torch.equal(tensor.redistribute(mesh, [after]).full_tensor(), full), (rows, before, after)
        for kind, expected in (("sum", full * size * (size + 1) / 2), ("avg", full * (size + 1) / 2), ("max", full * size),
                               ("min", full)):
            parts = DTensor.from_local(full * (rank + 1), mesh, [Partial(kind)])
            for after in (Shard(0), Replicate()):
                assert torch.equal(parts.redistribute(mesh, [after]).full_tensor(), expected), (rows, kind, after)
    left, right = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.ones(6, 4)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    close(product.full_tensor(), left @ right)
    return done()


def case_tensor_parallel(rank, size):
    """Layers whose weights are sharded by columns and rows, sequence parallel, and a loss on sharded classes."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                                   parallelize_module)
    init()
    mesh = init_device_mesh("cpu", (size,))
    model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model, 0)  # all ranks see the same data
    close(torch.cat([(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().reshape(-1) for p in model.parameters()]), alone(1))

    torch.manual_seed(7)
    plain = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 10))
    data, labels = torch.randn(4, 16), torch.tensor([1, 9, 0, 5])
    expected = nn.functional.cross_entropy(plain(data), labels)
    plan = {"0": SequenceParallel(sequence_dim=0), "1": ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(-1),
                                                                        use_local_output=False)}
    model = parallelize_module(plain, mesh, plan)
    with loss_parallel():
        loss = nn.functional.cross_entropy(model(data.chunk(size)[rank]), labels)
        loss.backward()
    close(loss.full_tensor().detach(), expected.detach())
    assert Replicate() in loss.placements
    return done()


def case_checkpoint(rank, size):
    """torch.distributed.checkpoint: saved by all ranks, also asynchronously, and loaded into other shards."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    mend_fully_shard()
    init()
    shared = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(shared)
    model = sharded(init_device_mesh("cpu", (size,)))
    optimizer = train(model, rank, steps=2)
    for name, save in (("now", dcp.save), ("later", lambda state, **more: dcp.async_save(state, **more).result())):
        values, state = get_state_dict(model, optimizer)
        save({"model": values, "optimizer": state}, checkpoint_id=os.path.join(shared[0], name))
        dist.barrier()
        other = sharded(init_device_mesh("cpu", (1, size), mesh_dim_names=("replicate", "shard")))
        its = optimizer_of(other.parameters())
        values, state = get_state_dict(other, its)
        dcp.load({"model": values, "optimizer": state}, checkpoint_id=os.path.join(shared[0], name))
        set_state_dict(other, its, model_state_dict=values, optim_state_dict=state)
        train(other, rank, optimizer=its, begin=2)
        close(whole(other), alone(size))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(shared[0])
    return done()


def case_elastic(rank, size):
    """DDP and fully_shard with torch.distributed.checkpoint, under torchrun. Rank 1 is killed; all start again where they were."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel
    mend_fully_shard()
    init()
    folder = os.environ["CHECKPOINTS"]
    models = {"ddp": DistributedDataParallel(network()), "fsdp": sharded(init_device_mesh("cpu", (size,)))}
    optimizers = {name: optimizer_of(model.parameters()) for name, model in models.items()}

    def state():
        return {name: dict(zip(("model", "optimizer"), get_state_dict(models[name], optimizers[name]))) for name in models}

    begin = max((step for step in range(STEPS) if os.path.exists(f"{folder}/{step}/.metadata")), default=0)
    if begin > 0:
        saved = state()
        dcp.load(saved, checkpoint_id=f"{folder}/{begin}")
        for name in models:
            set_state_dict(models[name], optimizers[name], model_state_dict=saved[name]["model"], optim_state_dict=saved[name]["optimizer"])
    for step in range(begin, STEPS):
        for name in models:
            train(models[name], rank, optimizer=optimizers[name], begin=step, steps=step + 1)
        dcp.save(state(), checkpoint_id=f"{folder}/{step + 1}")
        if rank == 1 and step == 1 and begin == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    close(flat(models["ddp"].parameters()), alone(size))
    close(whole(models["fsdp"]), alone(size))
    return [begin, done()["all_reduce"]]


def case_compile(rank, size):
    """torch.compile of a DDP model, and of a function with collectives in it, which are then functional ones."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    init(seconds=120)
    model = torch.compile(DistributedDataParallel(network()), backend="aot_eager")
    train(model, rank)
    close(flat(model.parameters()), alone(size))

    def double_sum(tensor):
        dist.all_reduce(tensor)
        return tensor * 2

    for backend in ("aot_eager", "inductor"):
        compiled = torch.compile(double_sum, fullgraph=True, backend=backend)
        assert (compiled(torch.full((100,), rank + 1.0)) == size * (size + 1)).all(), backend
    return done()


def case_functional(rank, size):
    """Functional collectives, also those of lists and those with gradients."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol
    init()
    world = dist.distributed_c10d._get_default_group()
    total = size * (size + 1) / 2
    mine = torch.full((4, 3), rank + 1.0)
    everyone = torch.cat([torch.full((4, 3), r + 1.0) for r in range(size)])
    for op, expected in (("sum", total), ("avg", total / size), ("max", size), ("min", 1), ("product", size)):  # 2! = 2
        assert (funcol.all_reduce(mine, op, world) == expected).all(), op
    assert (funcol.broadcast(mine, 1, world) == 2).all()
    assert torch.equal(torch.as_tensor(funcol.all_gather_tensor(mine, 0, world)), everyone)
    assert torch.equal(torch.as_tensor(funcol.all_gather_tensor(mine, 1, world)), torch.cat(everyone.chunk(size), 1))
    for op, expected in (("sum", total), ("avg", total / size), ("max", size)):
        assert (funcol.reduce_scatter_tensor(mine, op, 0, world) == expected).all(), op
    assert all((t == total).all() for t in funcol.all_reduce_coalesced([mine, mine[:1]], "sum", world))
    gathered = funcol.all_gather_into_tensor_coalesced([mine, mine.int()], world)
    assert torch.equal(torch.as_tensor(gathered[0]), everyone) and torch.equal(torch.as_tensor(gathered[1]), everyone.int())
    for op, expected in (("sum", total), ("avg", total / size), ("max", size)):
        scattered = funcol.reduce_scatter_tensor_coalesced([mine, mine[:2]], op, [0, 0], world)
        assert all((t == expected).all() for t in scattered), op
    exchanged = funcol.all_to_all_single(mine, None, None, world)
    assert torch.equal(torch.as_tensor(exchanged), torch.cat([torch.full((4 // size, 3), r + 1.0) for r in range(size)]))
    leaf = mine.clone().requires_grad_()
    (funcol.all_gather_tensor_autograd(leaf, 0, world) * (rank + 1)).sum().backward()
    assert (leaf.grad == total).all()
    return done()


def case_coalesced(rank, size):
    """The coalescing manager; futures of results; NCCL's premultiplied sums, in all calls that reduce; split_group."""
    import torch
    import torch.distributed as dist
    init()
    total = size * (size + 1) / 2
    premultiplied = dist._make_nccl_premul_sum(0.5)
    ones = torch.full((4,), rank + 1.0)
    for op, factor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, 1 / size), (premultiplied, 0.5)):
        tensor = ones.clone()
        dist.all_reduce(tensor, op=op)
        assert (tensor == total * factor).all(), (op, tensor)
        tensor = ones.clone()
        dist.reduce(tensor, dst=1, op=op)
        assert (tensor == total * factor).all() or rank != 1, (op, tensor)
        part = torch.empty(2)
        dist.reduce_scatter(part, list(torch.full((2 * size,), rank + 1.0).chunk(size)), op=op)
        assert (part == total * factor).all(), (op, part)
    refused_with("Int", lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), op=premultiplied))
    if TORCH < (2, 0):
        return done()

    for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / size), (dist.ReduceOp.MAX, size),
                         (premultiplied, total / 2)):
        part, whole_parts = torch.empty(2), [torch.full((2 * size,), rank + 1.0) for _ in range(3)]
        dist.reduce_scatter_tensor(part, whole_parts[0], op=op)
        assert (part == expected).all(), (op, part)
        outputs = [torch.empty(2) for _ in whole_parts]
        with dist._coalescing_manager():
            for output, tensor in zip(outputs, whole_parts):
                dist.reduce_scatter_tensor(output, tensor, op=op)
        assert all((output == expected).all() for output in outputs), (op, outputs)
    gathered = [torch.empty(4 * size) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output in gathered:
            dist.all_gather_into_tensor(output, ones)
    manager.wait()
    assert all(torch.equal(output, torch.cat([torch.full((4,), r + 1.0) for r in range(size)])) for output in gathered)
    summed = [ones.clone() for _ in range(3)]
    with dist._coalescing_manager():
        for tensor in summed:
            dist.all_reduce(tensor)
    assert all((tensor == total).all() for tensor in summed)

    from torch._C._distributed_c10d import WorkResult
    for work in (dist.all_reduce(ones, async_op=True), dist.broadcast(ones, 0, async_op=True), dist.barrier(async_op=True),
                 dist.all_gather_into_tensor(gathered[0], ones, async_op=True)):
        assert WorkResult(work.get_future_result().wait()) == WorkResult.SUCCESS
        work.wait()
    refused_with("device", lambda: dist.split_group(split_ranks=[[0], [1]]))  # by torch 2.6, for any backend but NCCL
    return done()


def case_debug_detail(rank, size):
    """TORCH_DISTRIBUTED_DEBUG=DETAIL has torch 2.x wrap the backend, to compare the ranks' calls."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import netsum.torch
    dist.set_debug_level_from_env()  # which torch looked at before this process was forked
    init()
    tensor = netsum.torch.empty(100).fill_(rank + 1)
    dist.all_reduce(tensor)
    assert (tensor == size * (size + 1) / 2).all()
    assert netsum.torch.statistics()["collectives"]["all_reduce"]["switch"]["calls"] == 1
    model = DistributedDataParallel(network())
    train(model, rank)
    close(flat(model.parameters()), alone(size))
    return done()


def needs(version, what):
    return unittest.skipIf(TORCH < version, f"torch {'.'.join(map(str, TORCH))} has no {what}")


class Parallel(unittest.TestCase):
    """Each over a switch. `all_by_switch`: the collectives that take it in all calls."""

    def over_switch(self, case, *all_by_switch, ranks=2, **environment):
        with Switch() as switch:
            started = run(case, ranks, seconds=120, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address,
                                                                 "NETSUM_LOG": "off", **environment})
        paths = started[0].result
        for collective in all_by_switch:
            self.assertEqual(["switch"], paths.get(collective), paths)
        if TABLE:
            taken = [f"`{collective}`" for collective, seen in paths.items() if "switch" in seen]
            others = {collective: [why for why in seen if why not in ("switch", f"no {collective} in the network")]
                      for collective, seen in paths.items() if seen != ["switch"]}
            kept = [f"`{collective}`" + (f" ({', '.join(reasons)})" if reasons else "") for collective, reasons in others.items()]
            ROWS.append(f"| {self.shortDescription()} | {', '.join(taken)} | {', '.join(kept)} |")

    def test_hooks(self):
        """DDP with each of its communication hooks"""
        self.over_switch("hooks", "all_reduce", "broadcast")

    def test_join(self):
        """`Join`, of DDP and ZeRO"""
        self.over_switch("join", "broadcast")

    def test_zero_redundancy_optimizer(self):
        """`ZeroRedundancyOptimizer`"""
        self.over_switch("zero", "all_reduce", "broadcast")

    @needs((2, 0), "FullyShardedDataParallel that Python 3.11 can import")
    def test_fsdp1(self):
        """FSDP1 (`FullyShardedDataParallel`)"""
        self.over_switch("fsdp1", "all_reduce", "reduce_scatter_tensor")

    @needs((2, 6), "fully_shard")
    def test_fsdp2(self):
        """FSDP2 (`fully_shard`), also in bfloat16"""
        self.over_switch("fsdp2", "reduce_scatter_tensor")

    @needs((2, 6), "fully_shard")
    def test_fsdp2_few_bits(self):
        for wire in ("int8", "int4"):
            with Switch() as switch:
                run("fsdp2_few_bits", 2, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "NETSUM_WIRE": wire})

    @needs((2, 6), "fully_shard")
    def test_hsdp(self):
        """HSDP, by FSDP1 and FSDP2"""
        self.over_switch("hsdp", "all_reduce", "reduce_scatter_tensor", ranks=4)

    @needs((2, 6), "fully_shard")
    def test_hsdp_example(self):
        with Switch() as switch:
            first = run("hsdp_example", 4, environment={"NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address})[0].output
        losses = [float(line.split()[-1]) for line in first.splitlines() if line.startswith("step")]
        self.assertLess(losses[-1], losses[0])
        self.assertRegex(first, r"between_hosts: {'all_reduce': {'switch': {'calls': [1-9]\d*, 'bytes': \d+}, 'gloo': {}}")

    def test_first_script(self):
        first = run("first_script", 2, environment={"NETSUM_MODE": "force"})[0]
        self.assertRegex(first.output, r"(?m)^loss \d\.\d+ switch$")
        self.assertIn("inside rank 0", first.log)

    @needs((2, 2), "DeviceMesh")
    def test_device_mesh(self):
        """`DeviceMesh`, its groups"""
        self.over_switch("device_mesh", "all_reduce", ranks=4)

    @needs((2, 5), "torch.distributed.tensor")
    def test_dtensor(self):
        """DTensor, all changes of placement"""
        self.over_switch("dtensor", "broadcast")

    @needs((2, 5), "torch.distributed.tensor")
    def test_tensor_parallel(self):
        """Tensor and sequence parallel, loss parallel"""
        self.over_switch("tensor_parallel", "reduce_scatter_tensor")

    @needs((2, 6), "fully_shard, which the checkpoint is of")
    def test_distributed_checkpoint(self):
        """`torch.distributed.checkpoint` of FSDP2, also asynchronous"""
        self.over_switch("checkpoint", "reduce_scatter_tensor")

    @needs((2, 6), "fully_shard, which the checkpoint is of")
    def test_a_killed_rank_and_a_distributed_checkpoint(self):
        with Switch() as switch, tempfile.TemporaryDirectory() as directory:
            results, log = run_under_torchrun("elastic", 2, environment={
                "NETSUM_MODE": "force", "NETSUM_SWITCH": switch.address, "CHECKPOINTS": directory})
            self.assertEqual([[2, ["switch"]]] * 2, results, log)

    @needs((2, 0), "torch.compile")
    def test_compile(self):
        """`torch.compile` of DDP, and of a function with an `all_reduce`"""
        self.over_switch("compile", "all_reduce", "broadcast")

    @needs((2, 0), "functional collectives")
    def test_functional_collectives(self):
        """Functional collectives, each operation"""
        self.over_switch("functional", "all_reduce_coalesced", "broadcast")

    def test_collectives_with_gradients(self):
        """`torch.distributed.nn`"""
        self.over_switch("autograd", "all_reduce", "broadcast", "reduce_scatter")

    def test_coalesced(self):
        """The coalescing manager, and PREMUL_SUM"""
        self.over_switch("coalesced", "all_reduce", "reduce_scatter")

    def test_debug_detail(self):
        """DDP under `TORCH_DISTRIBUTED_DEBUG=DETAIL`"""
        self.over_switch("debug_detail", "all_reduce", TORCH_DISTRIBUTED_DEBUG="DETAIL")


TABLE, ROWS = "--table" in sys.argv, []
if __name__ == "__main__":
    if TABLE:
        sys.argv.remove("--table")
        atexit.register(lambda: print("| feature | by the switch | over Gloo |\n|---|---|---|", *ROWS, sep="\n") if ROWS else None)
    torch_support.main()
