"""Judges packets of SwitchML's chip profile by docs/protocol-switchml-chip.md."""
import struct
from collections import namedtuple

import numpy

from capture import endpoint_text
from pace import Repeats
from verdict import Verdicts

PAGE, OTHER, NUMBERS = "docs/protocol-switchml-chip.md", "docs/protocol-switchml.md", "docs/numerics.md"
RULES = {
    "malformed": (PAGE, "A datagram of another length, or with a field out of its range, is malformed"),
    "address": (PAGE, "0 … 30: the sender's bit at its switch"),
    "repeat": (OTHER, "A retransmission is byte-identical"),
    "flip": (OTHER, "The version flips with every round of a"),
    "round": (PAGE, "rounds, exponent-only ones included, as all ranks see the same largest exponents"),
    "next-round": (PAGE, "A worker sends round r + 1 of a version only after a result of the other version's round"),
    "look-ahead-follows": (PAGE, "counts if the largest exponent is below 256"),
    "exponents": (PAGE, "the exponent-only round of this chunk, whose payload is 0"),
    "limit": (NUMBERS, "**No overflow.** |q| ≤ limit"),
    "back-off": (PAGE, "each rank repeats each slot that waits, and time-outs double up to 250 ms"),
    "complete": (PAGE, "If now all bits are set, the packet has a second pass"),
    "newer": (PAGE, "a round opens only once the one before it in this version was harvested"),
    "result-to": (PAGE, "the result goes to all members"),
    "identity": (PAGE, "after which the packet is a result with what the registers of exponents and sums hold"),
    "sum": (PAGE, "exponents and values are added, or stored if no member's bit was set"),
    "exponent": (PAGE, "In a result the largest of all ranks'"),
    "echo": (PAGE, "sums and results have those of the contribution that came last"),
    "up": (PAGE, "leaves upstream as a contribution with this chip's bit"),
    "up-again": (PAGE, "takes the sum upstream again if it is the first member's (bit 0)"),
    "down": (PAGE, "exponents and values are stored in place of the sum"),
    "turned": (PAGE, "the header alone of a contribution whose job"),
}

CONTRIBUTION, RESULT, TURNED = 1, 2, 3
HEADER = struct.Struct(">BBBBHH8sIHHQIIIHH")
FLOATS, UNKNOWN, NONE_AHEAD = 256, 256, 0xffff  # exponents below the first are of floats

Packet = namedtuple("Packet", "source target format type member version slot rank job round exponent second operation chunk signature "
                              "ahead_chunk ahead_operation kind payload")


def echo_of(p):
    return p.rank, p.operation, p.chunk, p.signature, p.ahead_chunk, p.ahead_operation, p.kind


def named(p):
    return f"round {p.round} of slot {p.slot} version {p.version}"


class Round:
    def __init__(self, number):
        self.number, self.given, self.echoes = number, {}, set()  # of each member: (exponent, payload)
        self.result, self.served, self.up, self.closed = None, set(), None, False  # (exponent, payload), each

    def total(self):
        values = [numpy.frombuffer(payload, ">i4").astype(numpy.uint32) for _, payload in self.given.values()]
        return max(exponent for exponent, _ in self.given.values()), sum(values[1:], values[0]).astype(">u4").tobytes()


class Chip:
    def __init__(self):
        self.members, self.closed, self.parent = {}, False, None  # bit: endpoint
        self.rounds, self.last = {}, {}  # (slot, version): Round; (member, slot): its last packet
        self.repeats = self.ups = self.sums = 0  # the first member's repeats; sums sent upstream, and different ones


class Job:
    def __init__(self):
        self.chips, self.ranks, self.complete = {}, set(), False


class Judge(Verdicts):
    def __init__(self, hostile, batch):
        super().__init__(RULES, hostile)
        self.private, self.jobs, self.batch = False, {}, batch
        self.repeats = Repeats(self, "back-off", batch)

    def datagram(self, d):
        self.count("packets")
        data = d.payload
        if len(data) < 48:
            self.unbelieved("malformed", f"{len(data)} bytes are no header")
        p = Packet(d.source, d.target, *HEADER.unpack_from(data), data[48:])
        if (not CONTRIBUTION <= p.type <= TURNED or p.version > 1 or p.member > 30 or p.round > 2**31 - 2 or p.exponent > UNKNOWN or p.second or
                p.kind > 1 or len(p.payload) not in ((0,) if p.type == TURNED else (4 * 64, 4 * 256))):
            self.unbelieved("malformed", f"type {p.type}, {len(p.payload)} bytes of payload, member {p.member}, exponents {p.exponent} and {p.second}, kind {p.kind}")
        if p.type == CONTRIBUTION:
            self.contribution(p)
            return
        job = self.jobs.get(p.job)
        chip = job and job.chips.get(p.source)
        if chip is None:
            self.unbelieved("turned" if p.type == TURNED else "result-to", f"{endpoint_text(p.source)} is no switch of this job")
        if p.type == TURNED:
            if p.target not in chip.members.values():
                self.unbelieved("turned", f"{endpoint_text(p.target)} has sent nothing there")
            self.count("contributions turned around")
            return
        self.from_chip(job, chip, p)

    # ---- upstream

    def contribution(self, p):
        job = self.jobs.setdefault(p.job, Job())
        chip, below = job.chips.setdefault(p.target, Chip()), job.chips.get(p.source)
        if chip.members.get(p.member, p.source) != p.source or any(at == p.source and member != p.member for member, at in chip.members.items()):
            self.unbelieved("address", f"bit {p.member} is that of {endpoint_text(chip.members.get(p.member, p.source))}, and {endpoint_text(p.source)} sends it")
        if p.member not in chip.members and chip.closed:
            self.refuse("complete", f"member {p.member} contributes for the first time to a chip that has had sums of all")
        chip.members[p.member] = p.source
        if below is None:
            job.ranks.add(p.rank)
            if not self.in_turn(job, chip, p):
                return
        else:
            below.parent = p.target
            if not self.sum_of(below, chip, p):
                return
        here = chip.rounds.get((p.slot, p.version))
        if here is None or p.round > here.number:
            if here is not None and not here.closed:
                self.refuse("newer", f"{named(p)} opens, and round {here.number} has no result")
            here = chip.rounds[p.slot, p.version] = Round(p.round)
        elif p.round < here.number:
            self.count("late packets")
            return
        here.echoes.add(echo_of(p))
        if here.given.setdefault(p.member, (p.exponent, p.payload)) != (p.exponent, p.payload) and not here.closed:
            self.unbelieved("repeat", f"member {p.member} sends {named(p)} again with other values")

    def in_turn(self, job, chip, p):
        """Of a rank; false: a repeat or a late one."""
        last = chip.last.get((p.member, p.slot))
        if last is not None and (last.version, last.round) == (p.version, p.round):
            if last != p:
                self.unbelieved("repeat", f"rank {p.rank} repeats {named(p)} with other bytes")
            chip.repeats += p.member == 0
            self.repeats.again(p.source, p.slot, named(p))
            self.count("repeats")
            return True
        if p.kind == 1 and any(p.payload):
            self.refuse("exponents", f"rank {p.rank} sends values in an exponent-only round")
        expected = (0, 0) if last is None else (1 - last.version, last.round + last.version)
        if (p.version, p.round) != expected:
            self.refuse("flip" if p.version != expected[0] else "round", f"rank {p.rank} sends {named(p)}, where version {expected[0]} has round {expected[1]} next")
        if last is not None:
            before = chip.rounds.get((last.slot, last.version))
            if before is None or before.number != last.round or p.source not in before.served:
                self.refuse("next-round", f"rank {p.rank} sends {named(p)} before it can have the result of round {last.round} of version {last.version}")
            self.follows(job, last, before.result[0], p)
        chip.last[p.member, p.slot] = p
        self.repeats.first(p.source, p.slot)
        self.count("contributions")
        return True

    def follows(self, job, last, exponent, p):
        """What a result has said of the next block."""
        if exponent >= FLOATS:
            return
        operation, chunk = last.operation + last.ahead_operation, last.ahead_chunk
        if last.ahead_operation == NONE_AHEAD or (p.operation, p.chunk, p.kind) != (operation, chunk, 0):
            self.refuse("look-ahead-follows", f"rank {p.rank} sends operation {p.operation} chunk {p.chunk} in slot {p.slot}, whose last result has the exponent of operation {operation} chunk {chunk}")
        if exponent < 255 and not self.private and job.complete:
            values = numpy.frombuffer(p.payload, ">i4").astype(numpy.int64)
            most = int(numpy.abs(values).max())
            if most > (2**31 - 1) // len(job.ranks):
                self.refuse("limit", f"rank {p.rank} has a value of {most} among {len(job.ranks)} ranks")

    def sum_of(self, below, chip, p):
        """Of a chip below; false: of a round that it has closed, of whatever it held by then."""
        here = below.rounds.get((p.slot, p.version))
        if here is None or here.number < p.round:
            self.refuse("up", f"a sum of {named(p)}, which nobody below has sent")
        if here.number > p.round or here.closed:
            self.count("late packets")
            return False
        self.whole(below, here, p)
        below.ups += 1
        chip.repeats += p.member == 0 and here.up is not None
        if here.up is None:
            below.sums += 1
            here.up = here.total()
        if (p.exponent, p.payload) != here.up:
            self.wrong("up", here.up, p)
        if echo_of(p) not in here.echoes:
            self.refuse("echo", f"a sum of {named(p)} with what no contribution says")
        if below.ups - below.sums > 2 * below.repeats + 16:  # each may come twice
            self.refuse("up-again", f"a chip has sent {below.ups} sums of {below.sums} rounds, and its first member {below.repeats} repeats")
        self.count("sums")
        return True

    def whole(self, chip, here, p):
        missing = [member for member in range(max(chip.members) + 1) if member not in here.given]
        if missing:
            self.refuse("complete", f"a sum of {named(p)} without members {missing}")
        chip.closed = True

    def wrong(self, rule, total, p):
        if p.exponent != total[0]:
            self.refuse("exponent", f"{named(p)} leaves with exponent {p.exponent}, and the largest is {total[0]}")
        expected, found = (numpy.frombuffer(payload, ">i4") for payload in (total[1], p.payload))
        if len(expected) != len(found):
            self.refuse("malformed", f"{len(found)} values, of contributions with {len(expected)}")
        at = int(numpy.flatnonzero(expected != found)[0])
        self.refuse(rule, f"element {at} of {named(p)} is {found[at]}, and the contributions make {expected[at]}")

    # ---- downstream

    def from_chip(self, job, chip, p):
        if p.target not in chip.members.values():
            self.refuse("result-to", f"a result for {endpoint_text(p.target)}, which is no member")
        here = chip.rounds.get((p.slot, p.version))
        if here is None or here.number < p.round:
            self.refuse("identity", f"a result of {named(p)}, which nobody has sent")
        if here.number > p.round:  # of a late second pass, with whatever the registers hold
            self.count("late packets")
            return
        if here.result is None:
            if chip.parent is None:
                self.whole(chip, here, p)
                job.complete = True
                total = here.total()
                self.count("results")
            else:
                above = job.chips[chip.parent].rounds.get((p.slot, p.version))
                if above is None or above.number != p.round or p.source not in above.served:
                    self.refuse("down", f"a result of {named(p)}, which the chip above has not sent")
                total = above.result
                here.echoes |= above.echoes
            here.result, here.closed = total, True
        if (p.exponent, p.payload) != here.result:
            self.wrong("sum" if chip.parent is None else "down", here.result, p)
        if echo_of(p) not in here.echoes:
            self.refuse("echo", f"a result of {named(p)} with what no contribution says")
        here.served.add(p.target)
        self.repeats.news(p.target)
