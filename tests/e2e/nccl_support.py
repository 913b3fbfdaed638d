"""NCCL's side of its plugin interface, declared a second time, and ranks that play NCCL's calls.

Each rank of a case is a process, forked from the test, that loads the plugin's library. Ranks exchange values through the test, as
NCCL's do through its bootstrap network. Every wait has a deadline.
"""
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import time
import traceback

VERSIONS = range(8, 13)
SUCCESS, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 0, 2, 3, 4, 5, 6
TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
OPERATORS = ("sum", "prod", "max", "min", "avg")
HOST_MEMORY, CUDA_MEMORY = 1, 2
HANDLE_BYTES = 128
MOST_REQUESTS = 32
WARN, INFO = 2, 3

LIBRARY = None  # the plugin's path

P, I, Z, U64, I16 = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int16
LOGGER = ctypes.CFUNCTYPE(None, I, ctypes.c_ulong, ctypes.c_char_p, I, ctypes.c_char_p, ctypes.c_char_p)


def structure(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields)})


def properties_of(version):
    parts = structure("Parts", ("devices", I), ("device", I * (8 if version >= 12 else 4)))
    fields = [("name", ctypes.c_char_p), ("pci_path", ctypes.c_char_p), ("guid", U64), ("memory", I), ("global_registration", I)]
    fields += [("force_flush", I)] if version >= 9 else []
    fields += [("speed", I), ("port", I), ("latency", ctypes.c_float), ("most_connections", I), ("most_receives", I),
               ("offload_type", I), ("offload_version", I)]
    fields += [("parts", parts), ("most_bytes", Z), ("most_collective_bytes", Z)] if version >= 9 else []
    fields += [("most_merged_requests", I)] if version >= 11 else []
    fields += [("rail", I16), ("plane", I16)] if version >= 12 else []
    return structure("Properties", *fields)


def part_of(version):
    return structure("Part", ("registration", P), ("address", P), ("bytes", ctypes.c_uint32 if version == 8 else Z))


def function(*arguments):
    return ctypes.CFUNCTYPE(I, *arguments)


def table(name, members):
    return structure(name, ("name", ctypes.c_char_p), *members)


def net_table(version):
    context = [P] if version >= 11 else []
    event = [P] if version >= 10 else []
    size = I if version == 8 else Z
    init = {8: [LOGGER], 9: [LOGGER], 10: [LOGGER, P]}.get(version, [P, U64, P, LOGGER, P])
    config = [P] if version == 10 else []
    members = [("init", function(*init)), ("devices", function(P)), ("get_properties", function(I, P)),
               ("listen", function(*context, I, P, P)), ("connect", function(*context, I, *config, P, P, P)),
               ("accept", function(P, P, P)), ("register", function(P, P, Z, I, P)),
               ("register_dma_buf", function(P, P, Z, I, U64, I, P)), ("deregister", function(P, P)),
               ("isend", function(P, P, size, I, P, *event, P)), ("irecv", function(P, I, P, P, P, P, *event, P)),
               ("iflush", function(P, I, P, P, P, P)), ("test", function(P, P, P)), ("close_send", function(P)),
               ("close_receive", function(P)), ("close_listen", function(P)), ("device_registration", P), ("consumed", P)]
    members += [("make_virtual", function(P, P))] if version >= 9 else []
    members += [("finalize", function(P)), ("set_attributes", function(P, P))] if version >= 11 else []
    return table(f"Net{version}", members)


def coll_table(version):
    context = [P] if version >= 11 else []
    size = I if version == 8 else Z
    init = [P, U64, LOGGER] if version >= 11 else [LOGGER]
    members = [("init", function(*init)), ("devices", function(P)), ("get_properties", function(I, P)),
               ("listen", function(*context, I, P, P)), ("connect", function(P, I, I, P, P)), ("reduce_support", function(I, I, P)),
               ("register", function(P, P, Z, I, P)), ("register_dma_buf", function(P, P, Z, I, U64, I, P)),
               ("deregister", function(P, P)), ("iallreduce", function(P, P, P, size, I, I, P, P, P)),
               ("iallgather", function(P, P, I, P, Z, Z, Z, P, P)), ("ireducescatter", function(P, I, P, P, Z, Z, Z, I, I, P, P)),
               ("iflush", function(P, P, I, P, P)), ("test", function(P, P, P)), ("close_group", function(P)),
               ("close_listen", function(P))]
    members += [("make_virtual", P)] if version >= 9 else []
    members += [("finalize", function(P))] if version >= 11 else []
    return table(f"CollNet{version}", members)


class Failed(Exception):
    def __init__(self, call, result):
        super().__init__(f"{call}: result {result}")
        self.result = result


class Half:
    """One half of the plugin, in one version. NCCL gives both halves one logger, which keeps the lines here."""

    lines = []
    logger = LOGGER(lambda level, _, place, line, form, text: Half.lines.append((level, text.decode())))

    def __init__(self, symbol, version, layout):
        self.version = version
        self.table = layout.in_dll(ctypes.CDLL(LIBRARY), f"{symbol}_v{version}")
        self.context = ctypes.c_void_p(1)  # init() writes it
        self.properties_type = properties_of(version)

    @staticmethod
    def warnings():
        return [text for level, text in Half.lines if level == WARN]

    def call(self, name, *arguments):
        result = getattr(self.table, name)(*arguments)
        if result != SUCCESS:
            raise Failed(name, result)

    def made(self, name, *arguments):
        """What a call writes through its last argument: an address, or None."""
        out = ctypes.c_void_p(1)
        self.call(name, *arguments, ctypes.byref(out))
        return out.value

    def of_context(self):
        return [self.context] if self.version >= 11 else []

    def devices(self):
        count = I(-1)
        self.call("devices", ctypes.byref(count))
        return count.value

    def properties(self, device=0):
        found = self.properties_type()
        self.call("get_properties", device, ctypes.byref(found))
        return found

    def listen(self, device=0):
        """(handle, listener); nothing may be written behind the handle."""
        handle = ctypes.create_string_buffer(b"\xa5" * (HANDLE_BYTES + 64), HANDLE_BYTES + 64)
        listener = self.made("listen", *self.of_context(), device, handle)
        assert handle.raw[HANDLE_BYTES:] == b"\xa5" * 64
        return handle.raw[:HANDLE_BYTES], listener

    def register(self, owner, memory=HOST_MEMORY):
        buffer = ctypes.create_string_buffer(64)
        registration = self.made("register", owner, buffer, 64, memory)
        self.call("deregister", owner, registration)

    def test(self, request):
        """None: under way; else the bytes."""
        done, size = I(-1), I(-1)
        self.call("test", request, ctypes.byref(done), ctypes.byref(size))
        assert done.value in (0, 1)
        return size.value if done.value else None

    def end(self, *requests, seconds=30):
        """The bytes of each, in the order given, each tested until it has ended before the next."""
        deadline, sizes = time.monotonic() + seconds, []
        for request in requests:
            while (size := self.test(request)) is None:
                assert time.monotonic() < deadline, "not in time"
            sizes.append(size)
        return sizes

    def finalize(self):
        if self.version >= 11:
            self.call("finalize", self.context)


class CollNet(Half):
    def __init__(self, version=12):
        super().__init__("ncclCollNetPlugin", version, coll_table(version))
        self.part_type = part_of(version)

    def init(self):
        more = [ctypes.byref(self.context), 7] if self.version >= 11 else []
        self.call("init", *more, self.logger)

    def connect(self, handles, rank, listener):
        copies = [ctypes.create_string_buffer(handle, HANDLE_BYTES) for handle in handles]
        addresses = (P * len(handles))(*map(ctypes.addressof, copies))
        return self.made("connect", addresses, len(handles), rank, listener)

    def group(self, rank, members=None):
        """Plays what NCCL does to build a group of all ranks, or of some: (group, this rank in it), or None."""
        members = members or range(rank.size)
        handle, listener = self.listen()
        handles = rank.gather(handle)
        if rank.number not in members:
            self.call("close_listen", listener)
            return None
        group = self.connect([handles[member] for member in members], members.index(rank.number), listener)
        self.call("close_listen", listener)
        return group

    def supports(self, type_number, operator):
        supported = I(-1)
        self.call("reduce_support", type_number, operator, ctypes.byref(supported))
        return supported.value

    def all_reduce(self, group, values, out, elements, type_name, operator="sum"):
        return self.made("iallreduce", group, values, out, elements, TYPES.index(type_name), OPERATORS.index(operator), None, None)

    def parts(self, *buffers):
        return (self.part_type * len(buffers))(*[(None, ctypes.addressof(each), ctypes.sizeof(each)) for each in buffers])

    def all_gather(self, group, values, outs, per_rank, offset, size):
        return self.made("iallgather", group, values, len(outs), self.parts(*outs), per_rank, offset, size, None)

    def reduce_scatter(self, group, ins, out, per_rank, offset, size, type_name, operator="sum"):
        return self.made("ireducescatter", group, len(ins), self.parts(*ins), out, per_rank, offset, size, TYPES.index(type_name),
                         OPERATORS.index(operator), None)


class Net(Half):
    def __init__(self, version=12):
        super().__init__("ncclNetPlugin", version, net_table(version))

    def init(self, traffic_class=None):
        config = None if traffic_class is None else ctypes.byref(I(traffic_class))
        before = [ctypes.byref(self.context), 7, config] if self.version >= 11 else []
        after = [None] if self.version >= 10 else []
        self.call("init", *before, self.logger, *after)

    def connect(self, handle, device=0):
        """Once; `handle` is a buffer that stays the same between calls."""
        config = [None] if self.version == 10 else []
        return self.connection("connect", *self.of_context(), device, *config, handle)

    def accept(self, listener):
        return self.connection("accept", listener)

    def connection(self, name, *arguments):
        out, offload = ctypes.c_void_p(1), ctypes.c_void_p(0)  # the last argument is of networks that work without the host
        self.call(name, *arguments, ctypes.byref(out), ctypes.byref(offload))
        assert offload.value is None
        return out.value

    def pair(self, rank, to, accept_from, seconds=30):
        """A sender to the rank `to` and a receiver from the rank that connects here: (sender, receiver)."""
        handle, listener = self.listen()
        handles = rank.gather(handle)
        copy = ctypes.create_string_buffer(handles[to], HANDLE_BYTES) if to is not None else None
        sender = receiver = None
        deadline = time.monotonic() + seconds
        while (copy and not sender) or (accept_from is not None and not receiver):
            assert time.monotonic() < deadline, "not connected in time"
            if copy and not sender:
                sender = self.connect(copy)
            if accept_from is not None and not receiver:
                receiver = self.accept(listener)
        self.call("close_listen", listener)
        return sender, receiver

    def send(self, sender, data, size, tag=0):
        event = [None] if self.version >= 10 else []
        return self.made("isend", sender, data, size, tag, None, *event)

    def receive(self, receiver, room, size, tag=0, count=1):
        size_type = I if self.version == 8 else Z
        event = [None] if self.version >= 10 else []
        return self.made("irecv", receiver, count, (P * 1)(ctypes.addressof(room)), (size_type * 1)(size), (I * 1)(tag),
                         (P * 1)(None), *event)


class Rank:
    """What a case's function is given."""

    def __init__(self, number, size, pipe):
        self.number, self.size, self.pipe = number, size, pipe

    def gather(self, value=None):
        """The values of all ranks that live."""
        self.pipe.send(("value", value))
        return self.pipe.recv()


def _be_rank(case, number, size, pipe, environment):
    for name in list(os.environ):
        if name.startswith(("NETSUM_", "NCCL_")):
            del os.environ[name]
    os.environ.update(environment)
    try:
        pipe.send(("result", case(Rank(number, size, pipe))))
    except BaseException:  # the test shows it
        pipe.send(("error", traceback.format_exc()))
    os._exit(0)  # as killed: nothing that Python or the library does at exit matters here


def run(case, size, environment=None, of_rank=None, seconds=60):
    """What case(Rank) returns at each rank; None for one that died. Fails if a rank raises, or has not ended after `seconds`."""
    context = multiprocessing.get_context("fork")
    common = {"NETSUM_SOCKET_IFNAME": "=lo", "NETSUM_LOG": "info"} | (environment or {})
    pipes, processes = [], []
    for number in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_be_rank, args=(case, number, size, theirs, common | (of_rank or {}).get(number, {})))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    results, errors, values = [None] * size, [], {}
    living, deadline = dict(zip(pipes, range(size))), time.monotonic() + seconds
    while living and not errors and time.monotonic() < deadline:
        for pipe in multiprocessing.connection.wait(list(living), timeout=0.2):
            try:
                kind, content = pipe.recv()
            except EOFError:
                del living[pipe]
                continue
            if kind == "value":
                values[pipe] = content
            elif kind == "result":
                results[living[pipe]] = content
            else:
                errors.append(f"rank {living[pipe]}: {content}")
        if values and all(pipe in values for pipe in living):
            everything = [values.get(pipe) for pipe in pipes]
            values = {}
            for pipe in living:
                pipe.send(everything)
    if living and not errors:
        errors.append(f"ranks {sorted(living.values())} had not ended after {seconds} s")
    for process in processes:
        process.kill()
        process.join()
    if errors:
        raise AssertionError("\n".join(errors))
    return results
