#!/usr/bin/python3
"""The NCCL plugin, called as NCCL calls it: every version's tables, ranks as processes, a real switch, results by an own oracle.

usage: nccl_plugin.py NETSUM_BINARY PLUGIN [unittest arguments]
"""
import array
import ctypes
import functools
import math
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import cli_support as cli
import nccl_support as nccl
from nccl_support import OPERATORS, TYPES, CollNet, Failed, Net, run

# What reduceSupport() must say yes to, and to nothing else: over SwitchML, and over protocols and chips that only add.
EVERY = {name: set(OPERATORS) for name in TYPES} | {"uint32": {"sum", "prod"}, "uint64": {"sum", "prod"}}
ADDED = {"uint32": {"sum"}} | {name: {"sum", "avg"} for name in ("int32", "float16", "float32", "bfloat16")}
BITS = {"int8": 8, "uint8": 8, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64}
FORMATS = {"int8": "b", "uint8": "B", "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q", "float32": "f", "float64": "d"}


def packed(type_name, numbers):
    """A buffer with these numbers, which the type must hold exactly."""
    if type_name == "float16":
        raw = struct.pack(f"<{len(numbers)}e", *numbers)
    elif type_name == "bfloat16":
        whole = struct.pack(f"<{len(numbers)}f", *numbers)
        assert not any(whole[0::4]) and not any(whole[1::4]), "not exact in bfloat16"
        raw = b"".join(whole[at + 2:at + 4] for at in range(0, len(whole), 4))
    else:
        raw = array.array(FORMATS[type_name], numbers).tobytes()
    return ctypes.create_string_buffer(raw, len(raw))


def wrapped(type_name, number):
    bits = BITS[type_name]
    number %= 1 << bits
    return number - (1 << bits) if type_name.startswith("int") and number >> (bits - 1) else number


@functools.lru_cache(None)
def contribution(type_name, operator, rank, size, elements, start=0):
    """Numbers whose reduction over all ranks the type holds exactly; integers wrap."""
    at = range(start, start + elements)
    if type_name in BITS:
        return [wrapped(type_name, (i * 2654435761 + rank * 40503 * 65537 + 12345) * (rank + 3)) for i in at]
    if operator == "prod":
        return [float((i + 3 * rank) % 5 - 2) for i in at]
    return [float(((i * 7 + rank * 3) % 9 - 4) * size) for i in at]


@functools.lru_cache(None)
def expected(type_name, operator, size, elements, start=0):
    columns = zip(*(contribution(type_name, operator, rank, size, elements, start) for rank in range(size)))
    reduce = {"sum": sum, "avg": sum, "prod": math.prod, "max": max, "min": min}[operator]
    results = [reduce(column) for column in columns]
    if type_name not in BITS:
        return [value / size for value in results] if operator == "avg" else results
    results = [wrapped(type_name, value) for value in results]
    return [(abs(value) // size) * (-1 if value < 0 else 1) for value in results] if operator == "avg" else results


def sum_once(coll, group, rank, size, elements=1000, type_name="float32", operator="sum", in_place=False, start=0):
    """One all-reduce, whose result is checked."""
    values = packed(type_name, contribution(type_name, operator, rank, size, elements, start))
    kept = values.raw
    out = values if in_place else ctypes.create_string_buffer(len(values))
    request = coll.all_reduce(group, values, out, elements, type_name, operator)
    assert coll.end(request) == [len(values)]
    assert out.raw == packed(type_name, expected(type_name, operator, size, elements, start)).raw, (type_name, operator)
    if not in_place:
        assert values.raw == kept, "the contribution has changed"


def joined(rank, version=12):
    """(CollNet, a group of all ranks)."""
    coll = CollNet(version)
    coll.init()
    return coll, coll.group(rank)


def refused(call, *arguments):
    """The result of a call that must fail."""
    try:
        call(*arguments)
    except Failed as failed:
        return failed.result
    raise AssertionError(f"{call.__name__} did not fail")


def failed_test(half, request, seconds):
    """The result of a request that must fail. It may be a function that makes the request, and may fail there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            request = request() if callable(request) else request
            assert half.test(request) is None, "it succeeded"
        except Failed as failed:
            return failed.result
        select.select([], [], [], 0.005)
    raise AssertionError(f"not within {seconds} s")


def windows(per_rank, size):
    """(offset, bytes): all, a block, the inside of one, and pieces that begin and end inside blocks; in words of 4 bytes."""
    whole = per_rank * size
    piece = per_rank * 2 // 3 // 4 * 4
    return [(0, whole), (per_rank, per_rank), (4, per_rank - 8)] + [
        (offset, min(piece, whole - offset)) for offset in range(0, whole, piece)]


def check_gather(coll, group, rank, size, per_rank, offset, length, cut=None):
    blocks = [bytes((r * 31 + i * 7) % 251 for i in range(per_rank)) for r in range(size)]
    begin, end = max(offset, per_rank * rank), min(offset + length, per_rank * (rank + 1))
    own = ctypes.create_string_buffer(blocks[rank][begin - per_rank * rank:][:max(end - begin, 0)])
    outs = [ctypes.create_string_buffer(each) for each in ([length] if cut is None else [cut, length - cut])]
    request = coll.all_gather(group, own, outs, per_rank, offset, length)
    assert coll.end(request) == [length]
    assert b"".join(out.raw for out in outs) == b"".join(blocks)[offset:offset + length], (offset, length)


def check_scatter(coll, group, rank, size, per_rank, offset, length, cut=None):
    elements, first = length // 4, offset // 4
    values = packed("int32", contribution("int32", "sum", rank, size, elements, first)).raw
    ins = [ctypes.create_string_buffer(part, len(part)) for part in ([values] if cut is None else [values[:cut], values[cut:]])]
    begin, end = max(offset, per_rank * rank), min(offset + length, per_rank * (rank + 1))
    mine = max(end - begin, 0)
    out = ctypes.create_string_buffer(b"\x5a" * (mine + 8), mine + 8)
    request = coll.reduce_scatter(group, ins, out, per_rank, offset, length, "int32")
    assert coll.end(request) == [mine]
    right = packed("int32", expected("int32", "sum", size, mine // 4, begin // 4)).raw[:mine] if mine else b""
    assert out.raw == right + b"\x5a" * 8, (offset, length)
    assert b"".join(each.raw for each in ins) == values, "the contribution has changed"


def check_support(coll, right):
    found = {}
    for number, type_name in enumerate(TYPES):
        found[type_name] = {name for index, name in enumerate(OPERATORS) if coll.supports(number, index)}
    assert {name: operators for name, operators in found.items() if operators} == right, found
    assert coll.supports(10, 0) == 0 and coll.supports(7, 5) == 0  # an 8-bit float; an operator that a user made


def case_versions(rank):
    for version in nccl.VERSIONS:
        net, coll = Net(version), CollNet(version)
        for half in (net, coll):
            assert half.table.name == b"netsum"
            half.init()
            assert half.devices() == 1
            found = half.properties()
            assert (found.name, found.memory, found.most_receives, found.offload_type) == (b"lo", nccl.HOST_MEMORY, 1, 0)
            assert found.speed > 0 and found.most_connections > 0
            if version >= 9:
                assert (found.parts.devices, found.parts.device[0], bool(half.table.make_virtual)) == (1, 0, False)
                assert 0 < found.most_bytes < 1 << 31 and 0 < found.most_collective_bytes < 1 << 31  # an int counts them
            if version >= 11:
                assert found.most_merged_requests == 1 and half.context.value is None
            if version >= 12:
                assert (found.rail, found.plane) == (-1, -1)
            assert refused(half.properties, 1) == nccl.INVALID_ARGUMENT
        group = coll.group(rank)
        coll.register(group)
        assert refused(coll.register, group, nccl.CUDA_MEMORY) == nccl.INVALID_ARGUMENT
        assert coll.made("iflush", group, None, 0, None) is None
        check_support(coll, EVERY)
        sum_once(coll, group, rank.number, rank.size)
        check_gather(coll, group, rank.number, rank.size, 36, 12, 70)
        check_scatter(coll, group, rank.number, rank.size, 36, 12, 72)
        coll.call("close_group", group)
        for half in (net, coll):
            half.finalize()
    return coll.lines


def case_operations(rank):
    coll, group = joined(rank)
    reductions = ADDED if "ONLY_ADDS" in os.environ else EVERY
    check_support(coll, reductions)
    for type_name, operators in reductions.items():
        for operator in sorted(operators):
            sum_once(coll, group, rank.number, rank.size, 333, type_name, operator, in_place=operator == "avg")
    for elements in (1, 0, 40_000):
        sum_once(coll, group, rank.number, rank.size, elements)
    for per_rank in (36, 2000):
        for offset, length in windows(per_rank, rank.size):
            check_gather(coll, group, rank.number, rank.size, per_rank, offset, length)
            check_scatter(coll, group, rank.number, rank.size, per_rank, offset, length)
    check_gather(coll, group, rank.number, rank.size, 1001, 3, 2500, cut=700)
    check_scatter(coll, group, rank.number, rank.size, 1000, 4, 2500, cut=704)
    coll.call("close_group", group)
    return coll.warnings()


def case_requests(rank):
    """As many requests as there may be, one more, and ends in another order than they began."""
    coll, group = joined(rank)
    calls = []
    for number in range(nccl.MOST_REQUESTS):
        values = packed("int32", contribution("int32", "sum", rank.number, rank.size, 300 + number, number))
        out = ctypes.create_string_buffer(len(values))
        calls.append((number, values, out, coll.all_reduce(group, values, out, 300 + number, "int32")))
        assert calls[-1][3] is not None
    spare = ctypes.create_string_buffer(b"\x11" * 64, 64)
    assert coll.all_reduce(group, spare, spare, 16, "int32") is None
    assert coll.all_gather(group, spare, [spare], 32, 0, 64) is None
    assert coll.reduce_scatter(group, [spare], spare, 32, 0, 64, "int32") is None
    # Each rank looks in an order of its own.
    order = sorted(calls, key=lambda call: (call[0] * (7 + 2 * rank.number)) % nccl.MOST_REQUESTS)
    assert len({(call[0] * (7 + 2 * rank.number)) % nccl.MOST_REQUESTS for call in calls}) == nccl.MOST_REQUESTS
    for number, values, out, request in order:
        assert coll.end(request) == [len(values)]
        assert out.raw == packed("int32", expected("int32", "sum", rank.size, 300 + number, number)).raw, number
    assert spare.raw == b"\x11" * 64, "a call that was not taken has changed its memory"
    assert refused(coll.test, calls[0][3]) == nccl.INVALID_ARGUMENT  # it has ended
    sum_once(coll, group, rank.number, rank.size)
    coll.call("close_group", group)
    return coll.lines


def case_groups(rank):
    """Several groups at once, of all ranks and of some, with calls in turns."""
    coll = CollNet()
    coll.init()
    sets = [(0, 1, 2), (2, 0), (0, 1, 2), (1, 2)]
    groups = [(members, coll.group(rank, members)) for members in sets]
    under_way = []
    for turn in range(3):
        for number, (members, group) in enumerate(groups):
            if group:
                place, elements = members.index(rank.number), 100 + turn
                values = packed("float32", contribution("float32", "sum", place, len(members), elements, number))
                out = ctypes.create_string_buffer(len(values))
                request = coll.all_reduce(group, values, out, elements, "float32")
                under_way.append((members, number, elements, values, out, request))
    for members, number, elements, _, out, request in reversed(under_way):
        coll.end(request)
        assert out.raw == packed("float32", expected("float32", "sum", len(members), elements, number)).raw, members
    for _, group in groups:
        if group:
            coll.call("close_group", group)
    return coll.warnings()


def case_no_group(rank):
    """The result of a connect() that must fail, and the half's lines."""
    coll, net = CollNet(), Net()
    coll.init()
    net.init()
    result = refused(coll.group, rank)
    try:
        net.call("close_listen", net.listen()[1])
        sockets = nccl.SUCCESS
    except Failed as failed:
        sockets = failed.result
    return result, sockets, coll.warnings()


def case_dead_rank(rank):
    coll, group = joined(rank)
    sum_once(coll, group, rank.number, rank.size)
    rank.gather()
    if rank.number == 2:
        os._exit(1)
    values = ctypes.create_string_buffer(4000)
    requests = [coll.all_reduce(group, values, values, 1000, "int32") for _ in range(2)]
    results = [failed_test(coll, request, 20) for request in requests]
    results.append(refused(coll.all_reduce, group, values, values, 1000, "int32"))
    coll.call("close_group", group)
    return results, coll.warnings()


def case_dead_switch(rank):
    coll, group = joined(rank)
    sum_once(coll, group, rank.number, rank.size)
    rank.gather()
    if rank.number == 0:
        os.kill(int(os.environ["SWITCH_PID"]), signal.SIGKILL)
    rank.gather()
    values = ctypes.create_string_buffer(4000)
    result = failed_test(coll, lambda: coll.all_reduce(group, values, values, 1000, "int32"), 20)
    coll.call("close_group", group)
    return result, coll.warnings()


def case_wrong_calls(rank):
    coll, group = joined(rank)
    values = ctypes.create_string_buffer(4000)
    results = [refused(coll.all_reduce, group, values, values, 10, "uint32", "max"),
               refused(coll.all_gather, group, values, [values], 1000, 0, 3999),  # parts of another length
               refused(coll.all_gather, group, values, [values], 1000, 4000, 4000),  # behind the end
               refused(coll.reduce_scatter, group, [values], values, 2002, 0, 4000, "float32")]  # cuts a float
    rank.gather()
    sum_once(coll, group, rank.number, rank.size)  # nobody was disturbed
    request = coll.all_reduce(group, values, values, 100 + rank.number, "int32")
    results.append(failed_test(coll, request, 20))
    coll.call("close_group", group)
    return results, coll.warnings()


def case_closed_with_calls_under_way(rank):
    coll, group = joined(rank)
    values = ctypes.create_string_buffer(4000)
    if rank.number == 0:
        requests = [coll.all_reduce(group, values, values, 1000, "int32") for _ in range(3)]
        assert coll.test(requests[0]) is None  # the other rank has not called
        coll.call("close_group", group)
    rank.gather()
    if rank.number == 1:  # what the other has sent already may still be summed, but nothing behind it
        last = [coll.all_reduce(group, values, values, 1000, "int32") for _ in range(4)][-1]
        assert failed_test(coll, last, 20) == nccl.REMOTE_ERROR
        coll.call("close_group", group)


def bytes_of(seed, size):
    pattern = bytes((seed * 37 + i * 11) % 256 for i in range(997))
    return (pattern * (size // len(pattern) + 1))[:size]


def case_messages(rank):
    """A ring of connections; messages of all sizes, with tags, in orders of one's own."""
    following = (rank.number + 1) % rank.size
    before = (rank.number - 1) % rank.size
    for version in nccl.VERSIONS:
        net = Net(version)
        net.init()
        sender, receiver = net.pair(rank, following, before)
        for connection in (sender, receiver):
            net.register(connection)
            assert refused(net.register, connection, nccl.CUDA_MEMORY) == nccl.INVALID_ARGUMENT
        sizes = [0, 1, 15, 16, 4096, 100_000, 3_000_000 if version == 12 else 10_000, 0, 7]
        sent = [ctypes.create_string_buffer(bytes_of(rank.number + number, size), max(size, 1)) for number, size in enumerate(sizes)]
        rooms = [ctypes.create_string_buffer(b"\xee" * (size + 100), size + 100) for size in sizes]
        sends = [net.send(sender, each, size, tag=number % 3) for number, (each, size) in enumerate(zip(sent, sizes))]
        # Posted by tag: all of tag 2, then 1, then 0. Each message finds the receive of its tag.
        posted = sorted(range(len(sizes)), key=lambda number: (-(number % 3), number))
        receives = {number: net.receive(receiver, rooms[number], sizes[number] + 100, tag=number % 3) for number in posted}
        under_way = dict(receives) | {("sent", number): request for number, request in enumerate(sends)}
        deadline = time.monotonic() + 20
        while under_way:
            assert time.monotonic() < deadline, under_way
            for key in list(under_way):
                size = net.test(under_way[key])
                if size is not None:
                    del under_way[key]
                    assert size == sizes[key[1] if isinstance(key, tuple) else key], key
        for number, size in enumerate(sizes):
            assert rooms[number].raw == bytes_of(before + number, size) + b"\xee" * 100, (version, number)
        rank.gather()
        room = ctypes.create_string_buffer(1)
        waiting = [net.receive(receiver, room, 1) for _ in range(nccl.MOST_REQUESTS)]
        assert all(waiting) and len(set(waiting)) == nccl.MOST_REQUESTS
        assert net.receive(receiver, room, 1) is None  # try again
        assert net.made("iflush", receiver, 1, None, None, None) is None
        for _ in waiting:
            net.end(net.send(sender, room, 1))
        net.end(*waiting)
        rank.gather()
        net.call("close_send", sender)
        net.call("close_receive", receiver)
        net.finalize()
    return net.warnings()


def sockets():
    """This process's TCP sockets, by what has gone over each: the descriptor's number, and the bytes in both directions."""
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(number)) as each:
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                found[number] = sum(struct.unpack_from("=QQ", info, 120))  # tcpi_bytes_acked, tcpi_bytes_received
        except OSError:  # something else than TCP, or os.listdir()'s own
            pass
    return found


def case_stripes(rank):
    """Messages of many lengths at once, of which the long ones go over several sockets: the bytes of each of these sockets."""
    net = Net()
    net.init()
    before = set(sockets())
    sender, receiver = net.pair(rank, 1 - rank.number, 1 - rank.number)
    of_stripes = set(sockets()) - before
    sizes = [0, 1, 4095, 8191, 8192, 8193, 12289, 99_991, 1 << 20, 3 << 20, 0, 1]
    sizes += [(number * 7919) % 40_000 for number in range(nccl.MOST_REQUESTS - len(sizes))]
    sent = [ctypes.create_string_buffer(bytes_of(rank.number + number, size), max(size, 1)) for number, size in enumerate(sizes)]
    rooms = [ctypes.create_string_buffer(b"\xee" * (size + 10), size + 10) for size in sizes]
    for _ in range(2):
        sends = [net.send(sender, each, size) for each, size in zip(sent, sizes)]
        receives = [net.receive(receiver, room, size + 10) for room, size in zip(rooms, sizes)]
        assert net.send(sender, sent[1], 1) is None and net.receive(receiver, rooms[1], 1) is None  # too many
        under_way = dict(enumerate(sends + receives))
        deadline = time.monotonic() + 20
        while under_way:  # as NCCL does, all in turn
            assert time.monotonic() < deadline, under_way
            for key, request in list(under_way.items()):
                size = net.test(request)
                if size is not None:
                    del under_way[key]
                    assert size == sizes[key % len(sizes)], key
        for number, (room, size) in enumerate(zip(rooms, sizes)):
            assert room.raw == bytes_of(1 - rank.number + number, size) + b"\xee" * 10, (number, size)
            ctypes.memset(room, 0xee, size)
    # Some to nobody: closing lets go of their memory.
    assert net.send(sender, sent[9], sizes[9]) and net.receive(receiver, rooms[9], sizes[9])
    rank.gather()
    moved = [size for number, size in sockets().items() if number in of_stripes]
    net.call("close_send", sender)
    net.call("close_receive", receiver)
    return moved, net.warnings()


def case_peer_dies_within_stripes(rank):
    """Rank 1 dies with a message under way in each direction, longer than what the kernel holds."""
    net = Net()
    net.init()
    sender, receiver = net.pair(rank, 1 - rank.number, 1 - rank.number)
    size = 64 << 20
    data, room = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    send = net.send(sender, data, size)
    if rank.number == 1:
        rank.gather()  # both have begun
        os.kill(os.getpid(), signal.SIGKILL)
    receive = net.receive(receiver, room, size)
    rank.gather()
    results = [failed_test(net, request, 20) for request in (receive, send)]
    results += [refused(net.send, sender, data, 1), refused(net.receive, receiver, data, 1)]  # it stays so
    net.call("close_send", sender)
    net.call("close_receive", receiver)
    return results, net.warnings()


def case_closed_behind_stripes(rank):
    """A sender whose message has left closes: the message arrives, and what was expected behind it fails."""
    net = Net()
    net.init()
    sender, receiver = net.pair(rank, 1 if rank.number == 0 else None, 0 if rank.number == 1 else None)
    size = 300_000
    if rank.number == 0:
        data = ctypes.create_string_buffer(bytes_of(5, size), size)
        net.end(net.send(sender, data, size))
        net.call("close_send", sender)
        rank.gather()
        return None
    rank.gather()
    room = ctypes.create_string_buffer(size)
    rest = ctypes.create_string_buffer(1)
    first = net.receive(receiver, room, size)
    try:
        second = net.receive(receiver, rest, 1)
    except Failed:  # the first is there already
        second = functools.partial(net.receive, receiver, rest, 1)
    assert net.end(first) == [size]
    assert room.raw == bytes_of(5, size)
    return failed_test(net, second, 20), net.warnings()


def case_init(rank):
    net = Net(int(os.environ.get("VERSION", "12")))
    result = nccl.SUCCESS
    try:
        net.init()
    except Failed as failed:
        result = failed.result
    return result, net.lines


def built(folder, *versions):
    """fake_net.c as a library, with tables of these versions."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_net.c")
    name = "-".join(map(str, versions))
    objects = [os.path.join(folder, f"{name}-{version}.o") for version in versions]
    for version, file in zip(versions, objects):
        subprocess.run(["cc", "-c", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-DVERSION={version}", f"-Dfake_calls=fake_calls_{version}",
                        "-o", file, source], check=True)
    library = os.path.join(folder, f"libnccl-net-fake{name}.so")
    subprocess.run(["cc", "-shared", "-o", library, *objects], check=True)
    return library


def named(folder, name, *versions):
    """A library that has no more than the names of these versions' tables."""
    file = os.path.join(folder, name)
    code = "".join(f"int ncclNetPlugin_v{version};" for version in versions) or "int nothing;"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", file], input=code.encode(), check=True)
    return file


def play(net, offload, event):
    """Every call of a network, each with arguments of its own."""
    handle = ctypes.create_string_buffer(nccl.HANDLE_BYTES)
    out, context = ctypes.c_void_p(), net.of_context()
    listener = net.made("listen", *context, 1, handle)
    net.call("connect", *context, 2, *([ctypes.byref(ctypes.c_int(55))] if net.version == 10 else []), handle, ctypes.byref(out), offload)
    sender = out.value
    net.call("accept", listener, ctypes.byref(out), offload)
    receiver = out.value
    data = [ctypes.create_string_buffer(text, 20) for text in (b"first", b"second")]
    registration = net.made("register", sender, data[0], 20, nccl.CUDA_MEMORY)
    net.made("register_dma_buf", receiver, data[0], 21, 4, 7, 13)
    events = [event] if net.version >= 10 else []
    net.made("isend", sender, data[0], 19, 1001, registration, *events)
    request = ctypes.c_void_p(1)  # a receive that NCCL need not be told of
    size = ctypes.c_int if net.version == 8 else ctypes.c_size_t
    events = [(nccl.P * 2)(event, None)] if net.version >= 10 else []
    net.call("irecv", receiver, 2, (nccl.P * 2)(*map(ctypes.addressof, data)), (size * 2)(17, 18), (ctypes.c_int * 2)(1002, 1003),
             (nccl.P * 2)(registration, None), *events, ctypes.byref(request))
    assert net.test(request.value) == 42
    net.made("iflush", receiver, 2, None, None, None)
    net.call("deregister", sender, registration)
    net.call("close_send", sender)
    net.call("close_receive", receiver)
    assert refused(net.call, "close_listen", listener) == nccl.REMOTE_ERROR  # its own result
    if net.version >= 9 and net.table.make_virtual:
        device, parts = ctypes.c_int(-1), (ctypes.c_int * 9)(2, 0, 2)
        net.call("make_virtual", ctypes.byref(device), parts)
        assert device.value == 3
    if net.version >= 11 and net.table.set_attributes:
        net.call("set_attributes", net.context, None)
    net.finalize()


def calls_of(library, version):
    """What its table of this version was told."""
    calls = ctypes.CDLL(library)[f"fake_calls_{version}"]
    calls.restype = ctypes.c_char_p
    return calls().decode().splitlines()


def expected_calls(version, theirs):
    """What a plugin of version `theirs` is told where NCCL speaks `version`."""
    event = "event 99"
    init = {8: "init 1", 9: "init 1", 10: "init 1"}.get(theirs, "init 7 55 1")
    context = ["context 1"] if theirs >= 11 else []
    wanted = "wanted 0" if theirs == 8 and version > 8 else "wanted 1"
    calls = [init, "devices", "getProperties 1"] + context + ["listen 1"] + (["config 55"] if theirs == 10 else []) + context
    calls += ["connect 2 fake handle 1", "accept 1 1", "regMr 1 20 2", "regMrDmaBuf 21 4 7 13", "isend 1 first 19 1001 1"]
    calls += [event] if theirs >= 10 else []
    calls += ["irecv 1 2", "first 17 1002 1", "second 18 1003 0"] + ([event] if theirs >= 10 else []) + [wanted]
    calls += ["test 1", "iflush 1 2", "deregMr 1 1", "closeSend 1", "closeRecv 1", "closeListen 1"]
    calls += ["makeVDevice 2 2"] if theirs >= 9 and version >= 9 else []
    return calls + (["setNetAttr 1", "finalize 1"] if theirs >= 11 else [])


def case_other_plugin(rank):
    """What the plugin was told, the properties of a device of the network and of CollNet, and the log."""
    library, version, theirs = os.environ["NETSUM_NCCL_NET"], int(os.environ["VERSION"]), int(os.environ["THEIRS"])
    net, coll = Net(version), CollNet(version)
    net.init(traffic_class=55)
    assert net.devices() == 3
    properties = net.properties(1)
    play(net, ctypes.byref(ctypes.c_void_p()), 99)
    calls = calls_of(library, theirs)
    coll.init()
    assert coll.devices() == 3
    _, listener = coll.listen(2)
    coll.call("close_listen", listener)
    assert refused(coll.listen, 3) == nccl.INVALID_ARGUMENT
    values = [{name: getattr(each, name) for name, _ in each._fields_ if name != "parts"} for each in (properties, coll.properties(1))]
    for each, of in zip(values, (properties, coll.properties(1))):
        each["parts"] = list(of.parts.device)[:of.parts.devices] if version >= 9 else None
    return calls, values, net.lines


def case_force(rank):
    """CollNet cannot be built: then the other plugin's network refuses as well."""
    net, coll = Net(), CollNet()
    net.init()
    coll.init()
    handle, listener = coll.listen()
    assert refused(coll.connect, [handle], 0, listener) == nccl.SYSTEM_ERROR
    results = [refused(net.listen), refused(net.connect, ctypes.create_string_buffer(nccl.HANDLE_BYTES)), refused(net.accept, None),
               refused(net.send, None, None, 1), refused(net.receive, None, ctypes.create_string_buffer(1), 1)]
    return results, net.warnings(), calls_of(os.environ["NETSUM_NCCL_NET"], 12)


def case_bad_messages(rank):
    net = Net()
    net.init()
    handle, listener = net.listen()
    # Strangers: one says nothing, one says something wrong, one leaves. None of them becomes a receiver, nor is in the way.
    port = struct.unpack_from("<H", handle, 40)[0]
    # More than the listener looks at, again and again: it would wait for them until after the deadline.
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    strangers[1].sendall(bytes(16))
    strangers.pop().close()
    for _ in range(300):
        assert net.accept(listener) is None
    handles = rank.gather(handle)
    other = ctypes.create_string_buffer(handles[1 - rank.number], nccl.HANDLE_BYTES)
    sender = receiver = None
    deadline = time.monotonic() + 20
    while not (sender and receiver):
        assert time.monotonic() < deadline
        sender = sender or net.connect(other)
        receiver = receiver or net.accept(listener)
    for each in strangers:
        each.close()
    results = [refused(net.receive, receiver, other, 1, 0, 2)]  # two receives in a call
    room = ctypes.create_string_buffer(100)
    net.end(net.send(sender, room, 100))
    results.append(failed_test(net, lambda: net.receive(receiver, room, 99), 10))
    results.append(refused(net.receive, receiver, room, 99))  # it stays so
    net.call("close_receive", receiver)
    receiver = sender = None
    other = ctypes.create_string_buffer(handles[1 - rank.number], nccl.HANDLE_BYTES)
    while not (sender and receiver):
        assert time.monotonic() < deadline
        sender = sender or net.connect(other)
        receiver = receiver or net.accept(listener)
    rank.gather()
    if rank.number == 0:
        net.call("close_send", sender)
        net.call("close_listen", listener)
    rank.gather()
    if rank.number == 1:
        results.append(failed_test(net, lambda: net.receive(receiver, room, 100), 10))  # the peer has gone
        gone = ctypes.create_string_buffer(handles[0], nccl.HANDLE_BYTES)
        results.append(refused(lambda: [net.connect(gone) for _ in range(1000)]))  # nobody listens
        assert refused(net.connect, ctypes.create_string_buffer(nccl.HANDLE_BYTES)) == nccl.INVALID_ARGUMENT
    return results, net.warnings()


def case_waits_end(rank):
    """Under NETSUM_OPERATION_SECONDS=0.2."""
    net = Net()
    net.init()
    handle, listener = net.listen()
    other = ctypes.create_string_buffer(rank.gather(handle)[1 - rank.number], nccl.HANDLE_BYTES)
    while not net.connect(other):
        pass
    rank.gather()
    receiver = net.accept(listener)  # at its first call, however busy the machine is
    assert receiver
    room = ctypes.create_string_buffer(8)
    results = [failed_test(net, net.receive(receiver, room, 8), 10)]
    _, listener = net.listen()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            assert net.accept(listener) is None
        except Failed as failed:
            results.append(failed.result)
            break
    rank.gather()
    return results, net.warnings()


def case_devices(rank):
    net = Net()
    try:
        net.init()
    except Failed as failed:
        return failed.result, net.warnings()
    return [net.properties(number).name.decode() for number in range(net.devices())], net.warnings()


def case_collnet_devices(rank):
    coll, net = CollNet(), Net()
    try:
        coll.init()
        net.init()
        return coll.devices(), coll.lines
    except Failed as failed:
        return failed.result, coll.lines


def case_ipv6(rank):
    net = Net()
    net.init()
    handle, listener = net.listen()
    assert handle[24:40] == socket.inet_pton(socket.AF_INET6, "::1")
    net.call("close_listen", listener)
    sender, receiver = net.pair(rank, 1 - rank.number, 1 - rank.number)
    text = ctypes.create_string_buffer(b"over IPv6")
    room = ctypes.create_string_buffer(20)
    request = net.receive(receiver, room, 20)
    net.end(net.send(sender, text, 9), request)
    return room.value.decode()


class Library(unittest.TestCase):
    def test_it_shows_its_tables_and_nothing_else(self):
        symbols = subprocess.run(["nm", "-D", "--defined-only", nccl.LIBRARY], check=True, capture_output=True, text=True).stdout
        wanted = {f"{kind}Plugin_v{version}" for kind in ("ncclNet", "ncclCollNet") for version in nccl.VERSIONS}
        self.assertEqual(wanted, {line.split()[2] for line in symbols.splitlines()})

    def test_devices(self):
        names = sorted(name for _, name in socket.if_nameindex())
        self.assertIn("lo", names)
        for choice, own in (("=lo", "NETSUM_SOCKET_IFNAME"), ("l", "NETSUM_SOCKET_IFNAME"), ("=nothing,lo", "NCCL_SOCKET_IFNAME")):
            (found, warnings), = run(case_devices, 1, {"NETSUM_SOCKET_IFNAME": "", own: choice})
            self.assertEqual((["lo"] if choice != "l" else [n for n in names if n.startswith("l")], []), (found, warnings))
        for choice in ("^" + ",".join(names), "=l"):
            (found, warnings), = run(case_devices, 1, {"NETSUM_SOCKET_IFNAME": choice, "NCCL_SOCKET_IFNAME": "=lo"})
            self.assertEqual(nccl.INVALID_ARGUMENT, found)
            self.assertRegex(warnings[0], "NETSUM_SOCKET_IFNAME='.*lo")


class Collectives(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.switch = cli.Switch()
        cls.addClassCleanup(cls.switch.__exit__)
        cls.here = {"NETSUM_SWITCH": cls.switch.address}

    def test_every_version_sums_gathers_and_scatters(self):
        lines = run(case_versions, 3, self.here)
        told = [text for level, text in lines[0] if level == nccl.INFO]
        self.assertEqual(len(nccl.VERSIONS), len(told), told)
        self.assertRegex(told[0], f"CollNet of 3 ranks goes through the switch: .*{re.escape(self.switch.address)}.*job nccl\\.")
        self.assertFalse([text for level, text in lines[1] if level == nccl.INFO])

    def test_every_operation_over_every_protocol(self):
        added = {"ONLY_ADDS": "1"}
        with cli.ParameterServer() as server, cli.Switch("--profile", "chip", "--allow-fcs-only") as chip:
            for environment in ({}, {"NETSUM_SHARED_MEMORY": "off"}, added | {"NETSUM_PROTOCOL": "netreduce"},
                                added | {"NETSUM_PROTOCOL": "atp", "NETSUM_PS": server.address},
                                added | {"NETSUM_SWITCH": chip.address}):
                for warnings in run(case_operations, 3, self.here | environment):
                    self.assertEqual([], warnings, environment)

    def test_requests_over_packets(self):
        run(case_requests, 2, self.here | {"NETSUM_SHARED_MEMORY": "off", "NETSUM_LOG": "debug", "NETSUM_JOB": "night"})

    def test_several_groups(self):
        for warnings in run(case_groups, 3, self.here):
            self.assertEqual([], warnings)

    def test_a_dead_rank_is_named(self):
        *living, dead = run(case_dead_rank, 3, self.here)
        self.assertIsNone(dead)
        for results, warnings in living:
            self.assertEqual([nccl.REMOTE_ERROR] * 3, results)
            self.assertEqual(1, len(warnings), warnings)
            self.assertIn("rank 2", warnings[0])

    def test_a_dead_switch_is_named(self):
        with cli.Switch() as switch:
            environment = {"NETSUM_SWITCH": switch.address, "SWITCH_PID": str(switch.pid), "NETSUM_SHARED_MEMORY": "off"}
            for result, warnings in run(case_dead_switch, 2, environment):
                self.assertEqual(nccl.REMOTE_ERROR, result)
                self.assertIn(switch.address, warnings[0])

    def test_calls_that_are_wrong_or_differ(self):
        for results, warnings in run(case_wrong_calls, 2, self.here):
            self.assertEqual([nccl.INVALID_ARGUMENT] * 4 + [nccl.INVALID_USAGE], results)
            self.assertEqual(5, len(warnings), warnings)
            self.assertIn("data type 3 by its operator 2", warnings[0])
            self.assertRegex(warnings[4], "ranks . and . issued different calls")

    def test_closing_ends_what_is_under_way(self):
        run(case_closed_with_calls_under_way, 2, self.here)

    def test_settings_that_differ_are_named(self):
        for result, _, warnings in run(case_no_group, 3, self.here, of_rank={1: {"NETSUM_WIRE": "float16"}}):
            self.assertEqual(nccl.INVALID_ARGUMENT, result)
            self.assertRegex(warnings[0], "rank 0 on .* and rank 1 on .* disagree about NETSUM_WIRE")

    def test_without_a_switch_nccl_may_go_on_unless_it_must_not(self):
        with socket.socket() as taken:  # nobody listens here
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            absent = {"NETSUM_SWITCH": address, "NETSUM_CONNECT_SECONDS": "300"}  # which nobody waits for
            for result, sockets, warnings in run(case_no_group, 2, absent):
                self.assertEqual((nccl.SYSTEM_ERROR, nccl.SUCCESS), (result, sockets))
                self.assertEqual(1, len(warnings))
                self.assertIn(address, warnings[0])
            for result, sockets, warnings in run(case_no_group, 2, absent | {"NETSUM_MODE": "force"}):
                self.assertEqual((nccl.SYSTEM_ERROR, nccl.SYSTEM_ERROR), (result, sockets))
                self.assertRegex(warnings[1], f"NETSUM_MODE=force, but .*{address}")

    def test_where_collnet_is_not_offered(self):
        for environment, words in (({}, "NETSUM_SWITCH is not set"), (self.here | {"NETSUM_MODE": "off"}, "NETSUM_MODE=off")):
            (devices, lines), = run(case_collnet_devices, 1, environment)
            self.assertEqual((0, [(nccl.INFO, "netsum: no CollNet: " + words)]), (devices, lines))
        for environment, words in (({"NETSUM_SWITCH": "nonsense"}, "NETSUM_SWITCH: 'nonsense' is not HOST:PORT"),
                                   ({"NETSUM_MODE": "force"}, "NETSUM_MODE=force needs NETSUM_SWITCH")):
            (result, lines), = run(case_collnet_devices, 1, environment)
            self.assertEqual(nccl.INVALID_ARGUMENT, result)
            self.assertRegex(lines[0][1], words)


class Sockets(unittest.TestCase):
    def test_messages_of_every_version(self):
        for warnings in run(case_messages, 3):
            self.assertEqual(2 * len(nccl.VERSIONS), len(warnings), warnings)  # of the memory that was refused

    def test_messages_that_do_not_fit_and_peers_that_have_gone(self):
        first, second = run(case_bad_messages, 2)
        self.assertEqual([nccl.INVALID_ARGUMENT, nccl.INVALID_USAGE, nccl.INVALID_USAGE], first[0])
        self.assertEqual(first[0] + [nccl.REMOTE_ERROR, nccl.SYSTEM_ERROR], second[0])

    def test_long_messages_go_over_several_sockets(self):
        stripes = {"NETSUM_NCCL_STRIPE_BYTES": "4096"}
        for threads, per_thread in ((0, 3), (1, 1), (1, 2), (2, 3), (5, 1)):
            environment = stripes | {"NETSUM_NCCL_THREADS": str(threads), "NETSUM_NCCL_SOCKETS_PER_THREAD": str(per_thread)}
            for moved, warnings in run(case_stripes, 2, environment):
                self.assertEqual([], warnings)
                self.assertEqual(2 * (threads * per_thread + 1), len(moved), moved)  # of a sender, and of a receiver
                if threads * per_thread > 1:
                    self.assertGreater(min(moved), 50_000, moved)  # none is idle
        # The receiver says how many sockets there are, whatever the sender's settings.
        for moved, _ in run(case_stripes, 2, stripes | {"NETSUM_NCCL_THREADS": "2"}, {1: {"NETSUM_NCCL_THREADS": "0"}}):
            self.assertEqual(1 + 5, len(moved), moved)
        by_default = 4 if len(os.sched_getaffinity(0)) >= 8 else 0
        for moved, _ in run(case_stripes, 2, stripes):
            self.assertEqual(2 * (by_default + 1), len(moved), moved)

    def test_a_peer_that_dies_within_stripes(self):
        (results, warnings), dead = run(case_peer_dies_within_stripes, 2, {"NETSUM_NCCL_THREADS": "2"})
        self.assertIsNone(dead)
        self.assertEqual([nccl.REMOTE_ERROR] * 4, results)
        self.assertEqual(2, len(warnings), warnings)
        for warning in warnings:
            self.assertRegex(warning, "TCP with 127.0.0.1.*1 messages in flight: (the peer closed|Connection reset|Broken pipe)")

    def test_a_peer_that_closes_behind_stripes(self):
        _, (result, warnings) = run(case_closed_behind_stripes, 2, {"NETSUM_NCCL_THREADS": "2", "NETSUM_NCCL_STRIPE_BYTES": "1024"})
        self.assertEqual(nccl.REMOTE_ERROR, result)
        self.assertRegex(warnings[0], "the peer closed the connection")

    def test_settings_that_cannot_be(self):
        for name, value, words in (("THREADS", "17", "must be between 0 and 16"), ("SOCKETS_PER_THREAD", "0", "must be between 1 and 64"),
                                   ("SOCKETS_PER_THREAD", "33", "must be at most 64"), ("STRIPE_BYTES", "much", "must be a number")):
            (result, lines), = run(case_init, 1, {"NETSUM_NCCL_THREADS": "2"} | {"NETSUM_NCCL_" + name: value})
            self.assertEqual(nccl.INVALID_ARGUMENT, result)
            self.assertRegex(lines[0][1], f"NETSUM_NCCL_{name}.*{words}")

    def test_every_wait_ends(self):
        for results, warnings in run(case_waits_end, 2, {"NETSUM_OPERATION_SECONDS": "0.2"}):
            self.assertEqual([nccl.REMOTE_ERROR] * 2, results)
            self.assertRegex(warnings[0], "TCP with 127.0.0.1.*nothing was transferred")
            self.assertRegex(warnings[1], "no rank connected")

    def test_ipv6(self):
        if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):
            self.skipTest("no IPv6 here")
        self.assertEqual(["over IPv6"] * 2, run(case_ipv6, 2, {"NCCL_SOCKET_FAMILY": "AF_INET6"}))


@unittest.skipUnless(shutil.which("cc"), "no C compiler here")
class OtherPlugins(unittest.TestCase):
    """NETSUM_NCCL_NET"""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.libraries = {version: built(cls.folder, version) for version in nccl.VERSIONS}

    def init(self, net, version=12, **more):
        """(result, warning)"""
        (result, lines), = run(case_init, 1, {"NETSUM_NCCL_NET": net, "VERSION": str(version)} | more)
        warnings = [text for level, text in lines if level == nccl.WARN]
        self.assertLessEqual(len(warnings), 1, warnings)
        self.assertNotIn("\n", "".join(warnings))
        return result, "".join(warnings)

    def test_every_call_is_handed_on(self):
        for theirs, library in self.libraries.items():
            for version in range(theirs, 13):
                environment = {"NETSUM_NCCL_NET": library, "VERSION": str(version), "THEIRS": str(theirs), "NETSUM_SWITCH": "127.0.0.1:1"}
                with self.subTest(nccl=version, plugin=theirs):
                    (calls, (net, coll), lines), = run(case_other_plugin, 1, environment)
                    self.assertEqual(expected_calls(version, theirs), calls)
                    self.check_properties(version, theirs, net, coll)
                    words = f"netsum: messages go through {library} (fake), version {theirs} of NCCL's network interface"
                    self.assertIn((nccl.INFO, words), lines)

    def test_the_version_is_that_of_nccl_or_the_newest_before_it(self):
        library = built(self.folder, 8, 10)
        for version, theirs in ((8, 8), (9, 8), (10, 10), (11, 10)):
            (_, lines), = run(case_init, 1, {"NETSUM_NCCL_NET": library, "VERSION": str(version)})
            self.assertRegex(lines[-1][1], f"version {theirs} of NCCL's network interface$")

    def check_properties(self, version, theirs, net, coll):
        wanted = {"name": b"fake", "pci_path": b"/sys/fake", "guid": 77, "memory": 3, "global_registration": 1, "speed": 400000, "port": 5,
                  "latency": 1.5, "most_connections": 99, "most_receives": 4, "offload_type": 0, "offload_version": 6, "parts": None}
        if version >= 9:
            wanted |= {"force_flush": 1, "parts": [1, 2], "most_bytes": 1 << 33, "most_collective_bytes": 12345} if theirs >= 9 else {
                "force_flush": 0, "parts": [1], "most_bytes": 1 << 30, "most_collective_bytes": 512 << 20}
        if version >= 11:
            wanted["most_merged_requests"] = 8 if theirs >= 11 else 1
        if version >= 12:
            wanted |= {"rail": 3, "plane": 4} if theirs >= 12 else {"rail": -1, "plane": -1}
        self.assertEqual(wanted, net)
        # CollNet's device is that one in all that says which it is, and netsum's own in all that it can do.
        own = {"memory": nccl.HOST_MEMORY, "global_registration": 0, "force_flush": 0, "most_receives": 1, "offload_version": 0,
               "most_collective_bytes": 512 << 20, "most_merged_requests": 1}
        self.assertEqual(wanted | {name: value for name, value in own.items() if name in wanted}, coll)

    def test_a_library_is_found_by_its_name(self):
        for name in ("fake10", "libnccl-net-fake10.so"):
            code = f"import nccl_plugin as p; print(p.run(p.case_init, 1, {{'NETSUM_NCCL_NET': {name!r}}}))"
            code = f"import nccl_support; nccl_support.LIBRARY = {nccl.LIBRARY!r}; " + code
            process = subprocess.run([sys.executable, "-c", code], env=os.environ | {"LD_LIBRARY_PATH": self.folder}, capture_output=True,
                                     text=True, timeout=30, cwd=os.path.dirname(os.path.abspath(__file__)))
            self.assertIn("libnccl-net-fake10.so (fake), version 10", process.stdout, process.stderr)

    def test_versions_that_do_not_fit(self):
        old, nothing = named(self.folder, "old.so", 6, 7), named(self.folder, "nothing.so")
        newer = named(self.folder, "newer.so", 12, 13)
        for library, version, words in ((old, 12, "has version 7, 6 of NCCL's network interface, and this NCCL asks for 12"),
                                        (self.libraries[10], 9, "has version 10 of .* asks for 9, for which 8 to 9 would do"),
                                        (newer, 11, "has version 13, 12 of .* asks for 11"), (newer, 8, ".* asks for 8$"),
                                        (nothing, 12, "has no ncclNetPlugin_vN")):
            result, warning = self.init(library, version)
            self.assertEqual(nccl.INVALID_ARGUMENT, result)
            self.assertRegex(warning, f"netsum: init: {re.escape(library)} {words}")

    def test_what_cannot_be_loaded(self):
        for name, words in (("ib", "NETSUM_NCCL_NET=ib: a plugin cannot call the InfiniBand network .*name a library"),
                            ("IB", "NETSUM_NCCL_NET=IB: a plugin cannot"),
                            ("absent", "NETSUM_NCCL_NET=absent: cannot load .*libnccl-net-absent.so"),
                            ("/absent/libnccl-net.so", "cannot load the network plugin: /absent/libnccl-net.so: cannot open"),
                            (nccl.LIBRARY, "is this plugin itself")):
            result, warning = self.init(name)
            self.assertEqual(nccl.INVALID_ARGUMENT, result)
            self.assertRegex(warning, words)
        for name in ("socket", "Socket", ""):
            self.assertEqual((nccl.SUCCESS, ""), self.init(name))

    def test_its_error_is_its_own(self):
        for version in (8, 12):
            self.assertEqual((nccl.SYSTEM_ERROR, ""), self.init(self.libraries[version], FAKE_INIT_FAILS="1"))

    def test_force_refuses_it_too(self):
        environment = {"NETSUM_NCCL_NET": self.libraries[12], "NETSUM_SWITCH": "127.0.0.1:1", "NETSUM_MODE": "force"}
        (results, warnings, calls), = run(case_force, 1, environment)
        self.assertEqual([nccl.SYSTEM_ERROR] * 5, results)
        self.assertRegex(warnings[-1], "NETSUM_MODE=force, but .*127.0.0.1:1")
        self.assertIn("init 7 -2 1", calls)
        self.assertFalse([call for call in calls if call.split()[0] in ("listen", "connect", "accept", "isend", "irecv")], calls)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        nccl.LIBRARY = os.path.abspath(sys.argv.pop(2))
    cli.main()
