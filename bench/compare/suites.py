"""What is measured: suites of groups that are run together, and the rows of each, with their goals.

A goal is what a row is to reach; `then` what is known to be possible beyond it.
"""
import dataclasses

from contenders import BARE_SOCKETS, BARE_SUMS, SLICE, Gloo, IdealRing, InTurn, LinkOf, Netsum, OpenMpi, Sealed, Task
from pairs import Entrant

MB = 250_000  # elements of float32

SWITCHML = Netsum("SwitchML")
BFLOAT16 = Netsum("SwitchML, bfloat16 on the wire", flags=("--wire", "bfloat16"))
INT8, INT4 = (Netsum(f"SwitchML, {wire} on the wire", flags=("--wire", wire)) for wire in ("int8", "int4"))
UNICAST = Netsum("SwitchML, results by unicast", flags=("--multicast", "off"))
AVX2 = Netsum("SwitchML, AVX2 only", vectors="AVX2")
ATP = Netsum("ATP", "atp")
ATP_FIXED = Netsum("ATP, window of 64 packets, no congestion control", "atp", flags=("--congestion-control", "false", "--slots", "64"))
NETREDUCE = Netsum("NetReduce", "netreduce")
NETREDUCE_LINK = LinkOf("NetReduce's packets on their link", NETREDUCE)
SHARDS = Netsum("SwitchML, shards on the workers' hosts", shards=True)
SHM = Netsum("SwitchML, shared memory", flags=("--transport", "shm"))
ALLOCATED = Netsum("SwitchML, shared memory, tensors from allocate", flags=("--transport", "shm", "--allocate"))
SEALS = [Sealed(f"SwitchML with TLS, packets: {security}", security=security) for security in ("none", "tag", "encrypt")]
PRIVATE = [SEALS[0], Sealed("SwitchML with TLS, private sums", private=True), SEALS[2]]
PRIVATE_AVX2 = [dataclasses.replace(each, name=f"{each.name}, AVX2 only", vectors="AVX2") for each in PRIVATE[:2]]
SEALS_AVX2 = [Sealed(f"{each.name}, AVX2 only", security=each.security, vectors="AVX2") for each in SEALS[:2]]
GLOO = Gloo()
MPI = OpenMpi()
MPI_RING = OpenMpi("Open MPI, ring", 4)
MPI_SLICES = OpenMpi("Open MPI, alg. 6 in slices of 512 kB", 6, SLICE)

RATES = ("200mbit", "150mbit", "100mbit", "50mbit", "20mbit")
# What iperf3 is to leave of the machine at a group's rate: less, and runs are discarded in place of compared. It sends one way at a
# time, an all-reduce both, and losses cost more.
IDLE, IDLE_FOR_LOSSES = 0.6, 0.7
SELDOM = 10  # rounds between two runs of what no goal names


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    what: str
    over: tuple  # (entrant, elements) whose time is divided by that of
    under: tuple
    goal: float = None  # None: no goal, for comparison
    at_least: bool = True
    then: str = ""


@dataclasses.dataclass(frozen=True)
class Group:
    """Entrants that take turns at one place."""
    id: str
    entrants: tuple
    rows: tuple
    hosts: int = 0  # behind shaped links; 0: all on this machine
    rate: str = ""  # of the links; "": the highest at which this machine is exact
    idle: float = IDLE  # share of the machine that pairs of hosts are to leave at that rate
    share: float = 1.0  # of the pairs that are asked for: less for what only a plot shows


def flags_and_goals(workers):
    """Goals of the issue's table for 4 and 8 workers."""
    return {4: (1.45, "1.58", 2.8, 2.8, "3.3", 1.45, "1.6"), 8: (1.65, "1.83", 3.2, 3.5, "4.1", 1.75, "1.96")}[workers]


def shaped(workers):
    elements = 25 * MB
    task = Task(workers, (elements,), warmup_elements=4 * MB)
    goal, then, goal_16, *_ = flags_and_goals(workers)
    at = f"N = {workers}, 25 MB"
    rows = [Row(f"shaped-{workers}", f"Gloo's TAT over SwitchML's, {at}", ("Gloo", elements), ("SwitchML", elements), goal,
                then=f"{then}, the bound"),
            Row(f"shaped-{workers}-bfloat16", f"Gloo's TAT over SwitchML's with bfloat16 on the wire, {at}", ("Gloo", elements), (BFLOAT16.name, elements),
                goal_16)]
    others = (ATP, NETREDUCE, MPI, MPI_RING, MPI_SLICES)
    rows += [Row(f"shaped-{workers}-{short}", f"TAT of Gloo over {who.name}, {at}", ("Gloo", elements), (who.name, elements))
             for short, who in (("atp", ATP), ("netreduce", NETREDUCE))]
    rows += [Row(f"shaped-{workers}-{short}", f"TAT of {who.name} over SwitchML, {at}", (who.name, elements), ("SwitchML", elements))
             for short, who in (("mpi", MPI), ("mpi-ring", MPI_RING), ("mpi-slices", MPI_SLICES))]
    entrants = [Entrant(who.name, who, task) for who in (SWITCHML, GLOO, BFLOAT16)]
    entrants += [Entrant(who.name, who, task, every=SELDOM) for who in others]
    return Group(f"shaped-{workers}", tuple(entrants), tuple(rows), hosts=workers + 1, rate="200mbit" if workers < 8 else "")


def few_bits(workers):
    elements = 25 * MB
    task = Task(workers, (elements,), warmup_elements=4 * MB)
    goal, most = {4: (5.5, "6.2"), 8: (6.4, "7.2")}[workers]
    rows = tuple(Row(f"shaped-{workers}-{wire}", f"Gloo's TAT over SwitchML's with {wire} on the wire, N = {workers}, 25 MB", ("Gloo", elements), (who.name, elements), *more)
                 for wire, who, more in (("int8", INT8, (goal, True, most)), ("int4", INT4, ())))
    return Group(f"few-bits-{workers}", tuple(Entrant(who.name, who, task) for who in (GLOO, INT8, INT4)), rows, hosts=workers + 1,
                 rate="200mbit" if workers < 8 else "100mbit")


def shards(workers):
    """Aggregators on the workers' hosts. All run on this machine's processors, at slower links so that some of those are left."""
    elements = 12 * MB
    task = Task(workers, (elements,), warmup_elements=2 * MB)
    row = Row(f"shaped-{workers}-shards", f"TAT of Gloo over {SHARDS.name}, N = {workers}, 12 MB", ("Gloo", elements), (SHARDS.name, elements),
              then="1: a ring's bytes")
    return Group(f"shards-{workers}", tuple(Entrant(who.name, who, task) for who in (SHARDS, GLOO)), (row,), hosts=workers + 1,
                 rate="100mbit" if workers < 8 else "50mbit", share=0.25)


def loss(workers):
    elements = 25 * MB
    task = Task(workers, (elements,), warmup_elements=4 * MB)
    *_, goal_cubic, then_cubic, goal_bbr, then_bbr = flags_and_goals(workers)
    at = f"N = {workers}, 25 MB"
    entrants, rows = [], []
    # With 8 workers, what 4 do not show: the rest would take as long again.
    all_losses = workers == 4
    for percent in (0, 0.01, 0.1, 1) if all_losses else (0, 1):
        entrants.append(Entrant(f"SwitchML, {percent} %", SWITCHML, task, loss=percent))
    for tcp in ("cubic", "bbr"):
        entrants.append(Entrant(f"Gloo, {tcp}, 1 %", GLOO, task, loss=1, tcp=tcp))
        entrants += [Entrant(f"Gloo, {tcp}, {percent} %", GLOO, task, loss=percent, tcp=tcp, every=SELDOM)
                     for percent in ((0, 0.01, 0.1) if all_losses else (0,))]
    own = "SwitchML, 1 %", elements
    rows.append(Row(f"loss-{workers}-cubic", f"Gloo's TAT over SwitchML's, 1 % loss, Gloo on cubic, {at}", ("Gloo, cubic, 1 %", elements),
                    own, goal_cubic, then=then_cubic))
    rows.append(Row(f"loss-{workers}-bbr", f"Gloo's TAT over SwitchML's, 1 % loss, Gloo on bbr, {at}", ("Gloo, bbr, 1 %", elements), own,
                    goal_bbr, then=then_bbr))
    for percent, most in ((0.01, 1.02), (0.1, 1.03), (1, 1.10)) if all_losses else ((1, 1.10),):
        rows.append(Row(f"loss-{workers}-inflation-{percent}", f"SwitchML's TAT at {percent} % loss over its TAT at 0, {at}",
                        (f"SwitchML, {percent} %", elements), ("SwitchML, 0 %", elements), most, at_least=False))
    for who in ("Gloo, cubic", "Gloo, bbr"):
        rows.append(Row(f"loss-{workers}-inflation-{who.lower().replace(', ', '-')}", f"{who}: TAT at 1 % loss over its TAT at 0, {at}",
                        (f"{who}, 1 %", elements), (f"{who}, 0 %", elements)))
    return Group(f"loss-{workers}", tuple(entrants), tuple(rows), hosts=workers + 1, rate="200mbit" if workers < 8 else "", idle=IDLE_FOR_LOSSES)


def repairs(id, workers, rate, *whats):
    """TAT with losses over that without: `whats` are contenders, the most that it may be at each loss, and the only host whose
    packets are lost. Rates leave some of this machine idle."""
    elements = 25 * MB
    task = Task(workers, (elements,), warmup_elements=4 * MB)
    entrants, rows = [], []
    for who, goals, lossy in whats:
        for percent in (0, *goals):
            entrants.append(Entrant(f"{who.name}, {percent} %", who, task, loss=percent, lossy=lossy))
        on = " of what one worker sends" if lossy else ""
        rows += [Row(f"{id}{'-one' if lossy else ''}-{percent}", f"{who.name}: TAT at {percent} % loss{on} over its TAT at 0, "
                     f"N = {workers}, 25 MB, {rate}", (f"{who.name}, {percent} %", elements), (f"{who.name}, 0 %", elements), most, at_least=False)
                 for percent, most in goals.items()]
    return Group(id, tuple(entrants), tuple(rows), hosts=workers + 1, rate=rate)


def slow():
    """A link that a measured window fills, and a larger one overfills."""
    elements = 1 * MB
    task = Task(2, (elements,))
    row = Row("slow-netreduce", "NetReduce's TAT over the time that a worker's packets take on its link, N = 2, 1 MB, 20mbit",
              (NETREDUCE.name, elements), (NETREDUCE_LINK.name, elements), 1.08, at_least=False)
    return Group("slow", (Entrant(NETREDUCE.name, NETREDUCE, task), Entrant(NETREDUCE_LINK.name, NETREDUCE_LINK, task)), (row,), hosts=3, rate="20mbit")


def scaling():
    """ATE/s at N over ATE/s at 2: all N on the same testbed, in turn."""
    elements, counts = 4 * MB, (2, 4, 8, 16)
    entrants, rows = [], []
    for workers in counts:
        task = Task(workers, (elements,), warmup_elements=4 * MB)
        entrants.append(Entrant(f"SwitchML, N = {workers}", SWITCHML, task))
        entrants += [Entrant(f"{who.name}, N = {workers}", who, task, every=SELDOM) for who in (ATP, NETREDUCE, GLOO)]
    for workers in counts[1:]:
        rows.append(Row(f"scaling-{workers}", f"SwitchML's ATE/s at N = {workers} over ATE/s at 2, 4 MB", ("SwitchML, N = 2", elements),
                        (f"SwitchML, N = {workers}", elements), 0.97, then="1, flat"))
    return Group("scaling", tuple(entrants), tuple(rows), hosts=max(counts) + 1)


def scaling_busily():
    """The same where links are as fast as iperf3 can be, however little it leaves of this machine, which is all workers and the switch."""
    elements, counts, where = 4 * MB, (2, 4, 8, 16), "faster links"
    entrants = [Entrant(f"SwitchML, N = {workers}, {where}", SWITCHML, Task(workers, (elements,), warmup_elements=4 * MB)) for workers in counts]
    rows = [Row(f"scaling-busily-{workers}", f"SwitchML's ATE/s at N = {workers} over ATE/s at 2, 4 MB, {where}",
                (entrants[0].name, elements), (f"SwitchML, N = {workers}, {where}", elements), then="1, flat") for workers in counts[1:]]
    return Group("scaling-busily", tuple(entrants), tuple(rows), hosts=max(counts) + 1, idle=0, share=0.5)


def sizes(rate):
    """For the plots over size and rate: few rounds."""
    lengths = (MB // 4, MB, 4 * MB, 16 * MB) if rate == "200mbit" else (4 * MB,)
    task = Task(4, lengths, warmup_elements=4 * MB)
    return Group(f"sweep-{rate}", tuple(Entrant(who.name, who, task) for who in (SWITCHML, ATP, NETREDUCE, GLOO, MPI_RING)), (), hosts=5,
                 rate=rate, share=0.15)


def loopback(workers):
    lengths = 25 * MB, 100 * MB
    task = Task(workers, lengths, iterations=3)
    then = {2: "1.9", 4: "2.0 (prototype without loss recovery: 1.5-2.1)"}[workers]
    ours = [(SWITCHML, "", "SwitchML's", 1.3, then), (ATP, "-atp", "ATP's", {2: 0.9, 4: 1.1}[workers], ""),
            (NETREDUCE, "-netreduce", "NetReduce's", {2: 0.75, 4: 0.9}[workers], "")]
    if workers == 4:
        ours.append((AVX2, "-avx2", "SwitchML's with AVX2 only", 1.3, ""))
    entrants = [Entrant(who.name, who, task) for who in (*(each[0] for each in ours), GLOO)]
    entrants += [Entrant(who.name, who, task, every=SELDOM) for who in ((UNICAST, MPI) if workers > 2 else (MPI,))]
    rows = [Row(f"loopback-{workers}-{elements // MB}{short}", f"Gloo's TAT over {whose}, N = {workers}, {elements // MB} MB",
                ("Gloo", elements), (who.name, elements), goal, then=possible) for who, short, whose, goal, possible in ours for elements in lengths]
    if workers > 2:
        rows += [Row(f"loopback-{workers}-{elements // MB}-unicast", f"TAT of {UNICAST.name}, over SwitchML's, N = {workers}, {elements // MB} MB",
                     (UNICAST.name, elements), ("SwitchML", elements)) for elements in lengths]
    return Group(f"loopback-{workers}", tuple(entrants), tuple(rows))


def shared_memory(workers):
    lengths = 25 * MB, 100 * MB
    goals = {(2, 25): (1.0, "1.4"), (2, 100): (1.1, "1.4"), (4, 25): (1.3, "1.8"), (4, 100): (1.3, "1.7")}
    allocated = {2: (2.0, "2.9"), 4: (3.5, "5.7")}[workers]
    entrants = [Entrant(who.name, who, Task(workers, lengths, iterations=5)) for who in (SHM, MPI_SLICES)]
    entrants.append(Entrant(ALLOCATED.name, ALLOCATED, Task(workers, lengths[1:], iterations=5)))
    entrants.append(Entrant(BARE_SUMS.name, BARE_SUMS, Task(workers, lengths[1:], iterations=3), every=2))
    entrants += [Entrant(who.name, who, Task(workers, lengths, iterations=5), every=SELDOM) for who in (MPI, SWITCHML)]
    peer = MPI_SLICES.name
    rows = [Row(f"shm-{workers}-{elements // MB}", f"TAT of {peer} over netsum's, N = {workers}, {elements // MB} MB",
                (peer, elements), (SHM.name, elements), goals[workers, elements // MB][0], then=goals[workers, elements // MB][1])
            for elements in lengths]
    rows.append(Row(f"shm-{workers}-100-allocate", f"TAT of {peer} over netsum's, tensors from allocate, N = {workers}, 100 MB", (peer, lengths[1]),
                    (ALLOCATED.name, lengths[1]), allocated[0], then=allocated[1]))
    rows.append(Row(f"shm-{workers}-100-bound", f"TAT of netsum, tensors from allocate, over that of {BARE_SUMS.name}, N = {workers}, 100 MB",
                    (ALLOCATED.name, lengths[1]), (BARE_SUMS.name, lengths[1]), then="1: one process that waits for nobody"))
    rows += [Row(f"shm-{workers}-{elements // MB}-udp", f"TAT of {peer} over netsum's by UDP, N = {workers}, {elements // MB} MB",
                 (peer, elements), (SWITCHML.name, elements)) for elements in lengths]
    return Group(f"shm-{workers}", tuple(entrants), tuple(rows))


def latency(workers):
    """8 bytes, which have goals, and what is around them."""
    few = Task(workers, (2,), iterations=300, warmup=20, back_to_back=True)
    goal, then = {2: (5.0, "8"), 4: (15.0, "30")}[workers]
    rows = [Row(f"latency-{workers}", f"Gloo's latency over netsum's by UDP, 8 bytes, N = {workers}", ("Gloo", 2), ("SwitchML", 2), goal,
                then=then),
            Row(f"latency-{workers}-shm", f"Open MPI's latency over netsum's, shared memory, 8 bytes, N = {workers}", ("Open MPI", 2),
                (SHM.name, 2), 1.0 if workers == 4 else None, then="3" if workers == 4 else ""),
            Row(f"latency-{workers}-bare", f"latency of {BARE_SOCKETS.name}, through a process that adds, over netsum's by UDP, 8 bytes, N = {workers}",
                (BARE_SOCKETS.name, 2), ("SwitchML", 2), then="1, but for threads that do not sleep")]
    return Group(f"latency-{workers}", tuple(Entrant(who.name, who, few) for who in (SWITCHML, SHM, GLOO, MPI, BARE_SOCKETS)), tuple(rows))


def latency_sizes(workers):
    lengths = 1, 16, 256, 1024, 4096, 16384
    task = Task(workers, lengths, iterations=100, warmup=20, back_to_back=True)
    return Group(f"latency-sizes-{workers}", tuple(Entrant(who.name, who, task) for who in (SWITCHML, SHM, ATP, NETREDUCE, GLOO, MPI)), (),
                 share=0.15)


def collective(name, peer_calls=None):
    """Over links, where bytes count. docs/collectives.md says where a ring moves as few. `peer_calls`: what Gloo's users call where it
    does not have the collective."""
    task = Task(4, (25 * MB,), warmup_elements=MB)
    theirs = peer_calls or name
    ours, peer = Netsum(f"SwitchML, {name}", collective=name), Gloo(f"Gloo, {theirs}", collective=theirs)
    row = Row(f"{name}-4", f"TAT of {peer.name} over that of {ours.name}, N = 4, 25 MB", (peer.name, 25 * MB), (ours.name, 25 * MB))
    return Group(f"collective-{name}", tuple(Entrant(who.name, who, task) for who in (ours, peer)), (row,), hosts=5, rate="200mbit")


def collective_here(name):
    """In shared memory, beside Open MPI, whose runs over links between one machine's hosts do not count."""
    task = Task(4, (25 * MB,), iterations=5)
    ours = Netsum(f"SwitchML, shared memory, {name}", flags=SHM.flags, collective=name)
    peer = OpenMpi(f"Open MPI, {name}", collective=name)
    row = Row(f"{name}-4-shm", f"TAT of {peer.name} over that of {ours.name}, N = 4, 25 MB", (peer.name, 25 * MB), (ours.name, 25 * MB))
    return Group(f"collective-{name}-shm", tuple(Entrant(who.name, who, task) for who in (ours, peer)), (row,))


def fsdp(workers, goal, bound):
    """A reduce-scatter beside an all-gather, each of 25 MB: what FSDP has in flight in its backward pass. `goal`: over a ring."""
    task = Task(workers, (25 * MB,), warmup_elements=MB)
    ours, ring = Netsum("SwitchML, reduce-scatter beside all-gather", collective="fsdp"), IdealRing("an ideal ring")
    gloo = InTurn("Gloo, all-reduce, then all-gather", (Gloo(), Gloo(collective="all-gather")))  # it has no reduce-scatter
    # Its rings. They do not sleep, so that no idle processor shows that links bound them: an ideal ring's time beside theirs does.
    mpi = InTurn("Open MPI, reduce-scatter, then all-gather, rings",
                 (OpenMpi(algorithm=3, collective="reduce-scatter-v"), OpenMpi(algorithm=4, collective="all-gather")))
    rows = tuple(Row(f"fsdp-{workers}-{id}", f"time of {peer.name} over that of {ours.name}, N = {workers}, 25 MB each", (peer.name, 25 * MB),
                     (ours.name, 25 * MB), *limits) for id, peer, *limits in (("ring", ring, goal, True, bound), ("mpi", mpi, goal, True, bound), ("gloo", gloo)))
    rows += (Row(f"fsdp-{workers}-mpi-bound", f"time of {mpi.name} over that of {ring.name}, N = {workers}, 25 MB each", (mpi.name, 25 * MB),
                 (ring.name, 25 * MB), then="1"),)
    links = tuple(LinkOf(f"what a worker {does} in them, at the rate of its link", ours, down=does == "receives") for does in ("sends", "receives"))
    rows += tuple(Row(f"fsdp-{workers}-{'down' if link.down else 'up'}", f"time of {link.name}, over that of {ours.name}, N = {workers}, 25 MB each",
                      (link.name, 25 * MB), (ours.name, 25 * MB), 0.9, then="1") for link in links)
    return Group(f"fsdp-{workers}", tuple(Entrant(who.name, who, task) for who in (ours, ring, mpi, gloo, *links)), rows, hosts=workers + 1,
                 rate="200mbit" if workers == 4 else "100mbit")


def seals(at, place, contenders, elements, goal=None, hosts=0, suite="seals"):
    """What protects packets or their values costs, beside checksums. The goal is the first one's."""
    task = Task(2, elements, iterations=5)
    none, *others = contenders
    rows = [Row(f"{suite}-{at}-{'private' if each.private else each.security}-{length // MB}",
                f"TAT with {each.protection} over that with checksums, {place}, N = 2, {length // MB} MB",
                (each.name, length), (none.name, length), goal if each is others[0] else None, at_least=False)
            for length in elements for each in others]
    return Group(f"{suite}-{at}", tuple(Entrant(who.name, who, task) for who in contenders), tuple(rows), hosts=hosts, rate="200mbit" if hosts else "")


SUITES = {
    "shaped": ("25 MB over shaped links, without loss", lambda: [shaped(4), shaped(8), few_bits(4), few_bits(8), shards(4), shards(8)]),
    "loss": ("the same with losses", lambda: [loss(4), loss(8)]),
    "repair": ("ATP and NetReduce with losses, and on a slow link",
               lambda: [repairs("repair-4-atp", 4, "200mbit", (ATP, {1: 1.25}, None), (ATP_FIXED, {0.01: 1.02, 0.1: 1.03, 1: 1.1}, "H0")),
                        repairs("repair-8-atp", 8, "100mbit", (ATP, {1: 1.3}, None)),
                        repairs("repair-4-netreduce", 4, "100mbit", (NETREDUCE, {1: 1.25}, None)),
                        repairs("repair-8-netreduce", 8, "50mbit", (NETREDUCE, {1: 1.4}, None)), slow()]),
    "collectives": ("every collective over shaped links, and in shared memory",
                    lambda: [collective("reduce-scatter", "all-reduce"), *map(collective, ("all-gather", "reduce", "broadcast")),
                             *map(collective_here, ("reduce-scatter", "all-gather", "reduce", "broadcast"))]),
    "fsdp": ("a reduce-scatter beside an all-gather over shaped links", lambda: [fsdp(4, 1.4, "1.5"), fsdp(8, 1.65, "1.75")]),
    "scaling": ("2 to 16 workers over shaped links", lambda: [scaling(), scaling_busily()]),
    "sweep": ("plots over size and rate", lambda: [sizes(rate) for rate in ("200mbit", "100mbit", "50mbit")]),
    "loopback": ("UDP on one machine beside Gloo", lambda: [loopback(2), loopback(4)]),
    "shm": ("shared memory on one machine beside Open MPI", lambda: [shared_memory(2), shared_memory(4)]),
    "seals": ("tags and encryption of packets, beside checksums",
              lambda: [seals("loopback", "one machine", SEALS, (4 * MB, 16 * MB), 1.10), seals("avx2", "one machine, AVX2 only", SEALS_AVX2, (16 * MB,)),
                       seals("links", "links of 200 Mbit/s", SEALS, (4 * MB,), 1.02, hosts=3)]),
    "private": ("sums that aggregators cannot read, beside checksums and encryption",
                lambda: [seals("loopback", "one machine", PRIVATE, (4 * MB, 16 * MB), 1.25, suite="private"),
                         seals("avx2", "one machine, AVX2 only", PRIVATE_AVX2, (16 * MB,), suite="private"),
                         seals("links", "links of 200 Mbit/s", PRIVATE, (4 * MB,), 1.01, hosts=3, suite="private")]),
    "latency": ("4 bytes to 64 KB on one machine", lambda: [latency(2), latency(4), latency_sizes(2), latency_sizes(4)]),
}
