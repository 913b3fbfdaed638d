"""Where processor time goes, sampled by perf (cpu-clock, 1 kHz, with call chains), as shares of layers.

A sample belongs to the layer of its innermost function that any layer knows. Left out is what a benchmark does besides: joining,
filling inputs, checking sums.
"""
import collections
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

import places
from contenders import Task
from micro import BIN
from suites import ALLOCATED, ATP, MB, NETREDUCE, SEALS, SHM, SWITCHML

FREQUENCY = 997  # a prime: not in step with timers

# Of whole all-reduces: (name, functions). What a function calls that no layer knows is its own.
OUR_LAYERS = (
    ("vector kernels", r"netsum::kernels::|__mem(move|cpy|set)"),
    ("seals", r"netsum::seal::|[Hh]ighway[Hh]ash|aesni|aes_gcm|gcm_|EVP_|CRYPTO_"),
    ("checksums", r"crc32|Crc(32)?\b|wire::(switchml|atp)::(seal|parse_common)|wire::roce::(icrc|write_checksums)"),
    ("protocol", r"netsum::(switchml|atp|netreduce|roce|stream|wire|shared)\b"),
    ("threads and sockets, our side", r""),
)
KERNEL_LAYERS = (
    ("copies between us and the kernel", r"^_?_?copy_(to|from)_(iter|user)|^skb_copy_datagram|check_(object|heap|stack)|^__virt_addr_valid"),
    ("sleeping and waking", r"finish_task_switch|^_*schedule(_hrtimeout|$)|sched_yield|wake_up|futex|sys_p?poll|(sock|udp|datagram)_poll|poll_(select|freewait)"
     r"|hrtimer_(start|cancel)|ttwu|^(en|de)queue_task"),
    ("links: queues, losses, switching", r"^htb_|qdisc|^veth|^nft_|^nf_|^br_|^net_[rt]x_action|dev_hard_start|dev_queue_xmit|netif_|napi|process_backlog"),
    ("UDP and IP", r"udp|^_*ip_|skb|sock|inet|fib_|neigh|(send|recv)m?msg|loopback"),
    ("into the kernel and back", r"syscall|entry_|exit_to_user|x64_sys_call"),
    ("the rest of the kernel", r""),
)
IDLE = r"safe_halt|cpu_idle|do_idle|intel_idle|acpi_idle"
CORE = (
    ("addition", r"AddInt32|add_int32|__mem(move|cpy)"),
    ("checksum", r"crc32|Crc\b|wire::switchml::seal"),
    ("reading and writing headers", r"netsum::wire::"),
    ("noticing losses", r"tell_losses|Overtaken|may_tell"),
    ("exponents", r"Switch::accumulate"),
    ("identity, bitmap, result", r"netsum::switchml::|__memcmp|NullSink"),
    ("the benchmark's loop", r""),
)
QUANTIZE = (
    ("largest exponent", r"LargestExponent|scan_block"),
    ("quantizing", r"[Qq]uantize_?[Ff]inite|kernels::quantize"),
    ("the benchmark's loop", r""),
)
OUR_THREADS = r"^netsum-(worker|switch|shared)"


@dataclasses.dataclass(frozen=True)
class Micro:
    """One benchmark of a program: nanoseconds per item."""
    id: str
    what: str
    program: str
    benchmark: str
    layers: tuple
    harness: str  # a function whose callees are not timed
    items: float  # of the benchmark's in one of ours


MICRO = (
    Micro("core", "switch core, a contribution of 256 elements, n = 8", "switch_bench", "switch_core/64", CORE, r"set_round", 1),
    Micro("core-unchecked", "the same without checksums", "switch_bench", "switch_core_unchecked/64", CORE, r"set_round", 1),
    Micro("quantize", "quantizing 256 elements", "kernel_bench", "quantize_with_largest_exponent", QUANTIZE, r"^$", 256),
)


@dataclasses.dataclass(frozen=True)
class Whole:
    """All-reduces of one contender."""
    id: str
    what: str
    who: object
    task: Task
    loss: float = 0


def on_loopback():
    for who, short in ((SWITCHML, ""), (ATP, "-atp"), (NETREDUCE, "-netreduce")):
        for workers in (2, 4):
            yield Whole(f"loopback{short}-{workers}", f"{who.name}, UDP on one machine, N = {workers}, 25 MB", who,
                        Task(workers, (25 * MB,), iterations=30))
    for who, short, name in ((SHM, "shm", "shared memory"), (ALLOCATED, "shm-allocate", "shared memory, tensors from allocate")):
        yield Whole(short, f"{name}, N = 4, 100 MB", who, Task(4, (100 * MB,), iterations=20))


def sealed():
    for who in SEALS:
        yield Whole(f"seals-{who.security}", f"{who.name}, on one machine, N = 2, 16 MB", who, Task(2, (16 * MB,), iterations=60))


def on_links(rate):
    task = Task(8, (25 * MB,), iterations=2, warmup_elements=MB)
    for loss in (0, 1):
        yield Whole(f"links-8-{loss}", f"links of {rate}, N = 8, 25 MB, {loss} % loss", SWITCHML, task, loss)


class Recording:
    """What all processors do, for the length of a `with`."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.file = os.path.join(self.folder.name, "perf.data")
        self.process = subprocess.Popen([*record(self.file), "-a"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def __exit__(self, *_):
        self.stop()
        self.folder.cleanup()


def record(file):
    return ["perf", "record", "--quiet", "-g", "-e", "cpu-clock", "-F", str(FREQUENCY), "-o", file]


def samples(file):
    """Of a recording: see parsed()."""
    script = subprocess.Popen(["perf", "script", "-i", file, "-F", "comm,ip,sym"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    yield from parsed(script.stdout)
    script.wait()


def parsed(lines):
    """(thread, functions from the innermost out, whether the innermost is the kernel's) of each sample in what perf script prints: a
    line with the thread, one with address and name of each function, and an empty one."""
    thread, chain, kernel = None, [], False
    for line in [*lines, ""]:
        if not line.strip():
            if thread is not None and chain:
                yield thread, chain, kernel
            thread, chain = None, []
        elif thread is None:
            thread = line.strip()
        else:
            address, _, function = line.strip().partition(" ")
            kernel = address.startswith("ffff") if not chain else kernel
            chain.append(function)


def layer_of(chain, layers):
    for function in chain:
        for name, pattern in layers:
            if pattern and re.search(pattern, function):
                return name
    return layers[-1][0]


def shares(counts):
    """[layer, share of all] of those that there are, the largest first."""
    total = sum(counts.values())
    if total == 0:
        raise SystemExit("bench: perf recorded nothing: may this user (kernel.perf_event_paranoid), and is there a cpu-clock event (perf list)?")
    return [[name, count / total] for name, count in counts.most_common()]


def micro_profile(each, quick):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "perf.data")
        command = [os.path.join(BIN, each.program), "--benchmark_format=json", f"--benchmark_filter=^{each.benchmark}$",
                   f"--benchmark_min_time={0.2 if quick else 3}"]
        out = subprocess.run([*record(file), "--", *command], capture_output=True, text=True, check=True).stdout
        report = json.loads(out[out.index("{"):])["benchmarks"][0]
        counts = collections.Counter()
        for _, chain, kernel in samples(file):
            if not kernel and not any(re.search(each.harness, function) for function in chain):
                counts[layer_of(chain[:1], each.layers)] += 1
    return {"what": each.what, "nanoseconds": 1e9 * each.items / report["items_per_second"], "layers": shares(counts)}


def whole_profile(each, place, quick):
    task = dataclasses.replace(each.task, iterations=2, elements=(4 * MB,)) if quick else each.task
    place.set(each.loss, "cubic")
    with Recording() as recording:
        with place.watch() as watched:
            result = each.who.run(place, task)[task.elements[0]]
        recording.stop()
        counts = collections.Counter()
        for thread, chain, kernel in samples(recording.file):
            ours = re.search(OUR_THREADS, thread) or (kernel and any("softirq" in function for function in chain))
            if ours and not re.search(IDLE, chain[0]):
                counts[layer_of(chain, KERNEL_LAYERS if kernel else OUR_LAYERS)] += 1
    packets = (result.packets_per_worker or 0) * task.workers * task.iterations
    warmup = min(task.warmup_elements, task.elements[0]) * task.warmup / task.elements[0] / task.iterations
    return {"what": each.what, "tat_seconds": result.tat, "wrong": result.wrong, "layers": shares(counts), "idle": place.idle(watched),
            "packet_seconds": sum(counts.values()) / FREQUENCY / (packets * (1 + warmup)) if packets else None}


def measure(rate, quick, say, only=()):
    """By name, of each (or of those in `only`): its layers and their shares. rate(): of the links."""
    if shutil.which("perf") is None:
        raise SystemExit("bench: profiles need perf (Debian: linux-perf)")
    def chosen(cases):
        for each in cases:
            if not only or each.id in only:
                say(f"profile: {each.what}")
                yield each
    made = {each.id: micro_profile(each, quick) for each in chosen(MICRO)}
    with places.Loopback() as place:
        made |= {each.id: whole_profile(each, place, quick) for each in chosen([*on_loopback(), *sealed()])}
    if only and not any(name.startswith("links") for name in only):
        return made
    links = rate()
    with places.Shaped(9, links) as place:
        return made | {each.id: whole_profile(each, place, quick) for each in chosen(on_links(links))}
