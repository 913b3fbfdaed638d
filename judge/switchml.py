"""Judges SwitchML's packets by docs/protocol-switchml.md."""
import functools
import operator
import struct
from collections import namedtuple

import numpy

import arithmetic
from capture import endpoint_text, is_multicast
from crc import crc32c
from pace import Limits, Repeats
from verdict import Verdicts

PAGE, NUMBERS = "docs/protocol-switchml.md", "docs/numerics.md"
RULES = {
    "version": (PAGE, "A packet of another version is"),
    "protection": (PAGE, "bits 4–7: what protects the packet"),
    "checksum": (PAGE, "CRC32C of bytes 8–end"),
    "no-checksum": (PAGE, "A result has a checksum if any of its contributions had one"),
    "length": (PAGE, "The datagram's length must be exactly"),
    "malformed": (PAGE, "is not 0, or a field beyond its range makes the packet malformed"),
    "types": (PAGE, "bits 4–7: what the switch does with it"),
    "sender": (PAGE, "upstream: the rank, or the lowest rank below the switch that sends"),
    "rank-epoch": (PAGE, "From a switch: CRC32C over all ranks' epochs in rank order"),
    "address": (PAGE, "Contributions are believed only from these addresses"),
    "result-to": (PAGE, "When a round is complete the result goes to all ranks' registered addresses"),
    "complete": (PAGE, "When a round is complete the result goes to all ranks' registered addresses"),
    "newer": (PAGE, "resets bitmap, masks, exponents and payload together"),
    "identity": (PAGE, "Each stores the **identity** of the round that it holds"),
    "stale": (PAGE, "| final | a newer identity opens the slot's version"),
    "repeat": (PAGE, "A retransmission is byte-identical"),
    "one-lane": (PAGE, "On its lane a chunk has a position p, counted over all operations"),
    "next-round": (PAGE, "A worker opens the next round of a slot only with the result of the last"),
    "flip": (PAGE, "The version flips with every round of a"),
    "signature": (PAGE, "CRC32C of the call"),
    "elements": (PAGE, "all of the chunk's, or 0 from a rank that has none to give"),
    "look-ahead": (PAGE, "The switch keeps the largest exponents while all ranks name the same chunk"),
    "look-ahead-follows": (PAGE, "and then all ranks run the exponent-only round"),
    "exponents": (PAGE, "exponents of this chunk, no values (the exponent-only round)"),
    "one-result": (PAGE, "A result is sealed once, for all"),
    "wants": (PAGE, "A rank that takes no result of a chunk says so in its contribution"),
    "wants-tree": (PAGE, "a switch's sum says that it wants no values if no rank below wants any"),
    "later": (PAGE, "bit 3 if all below have it"),
    "due-now": (PAGE, "So in a sum of which somebody wants values bit 4 says that some rank"),
    "due": (PAGE, "bit 4, of types 1, 12 and 14 from a switch"),
    "masks": (NUMBERS, "The switch ORs them."),
    "sum": (NUMBERS, "the switch's sum, int32"),
    "integers": (NUMBERS, "as they are; the switch combines them as they arrive"),
    "floats": (NUMBERS, "Sums on the switch are integer sums, or sums of floats that are buffered until all are there"),
    "limit": (NUMBERS, "**No overflow.** |q| ≤ limit"),
    "up": (PAGE, "The sum, the masks' OR and the exponents' maxima are a contribution like a rank's"),
    "down": (PAGE, "A result is taken from the parent alone"),
    "unsummed": (PAGE, "go upstream unsummed, as they came"),
    "parts": (PAGE, "a sum's parts make the exact sum of what came"),
    "waiting": (PAGE, "if the round is complete (l. 19–21), else \"waiting\""),
    "answered": (PAGE, "An acknowledgement ends a chunk once, like a result"),
    "heard": (PAGE, "4. the **equal** identity is added if the rank's bit is clear"),
    "waiting-names": (PAGE, "missing ranks (8·k"),
    "missing": (PAGE, "of a switch that was told that its own sum is missing"),
    "mismatch": (PAGE, "is a *mismatch*: every rank is told once"),
    "unknown-job": (PAGE, "job epoch and rank epoch are those of the packet that it answers"),
    "once": (PAGE, "that is longer than the repeat go out at most once per millisecond, round and rank"),
    "flood": (PAGE, "Never longer than what caused it; at most 64 in 10 ms"),
    "back-off": (PAGE, "time-out doubles with each retransmission up to 250 ms"),
    "probe": (PAGE, "20 sequence (4), 24 the cookie of the endpoint that it goes to"),
}

CONTRIBUTION, EXPONENTS, RESULT, EXPONENT_RESULT, WAITING, MISMATCH, UNKNOWN, PROBE, REPLY, MISSING, ACK, EMPTY_RUN, ACK_RUN, PART = range(1, 15)
CHUNKS = (CONTRIBUTION, EXPONENTS, RESULT, EXPONENT_RESULT, ACK)
RUNS = {EMPTY_RUN: CONTRIBUTION, ACK_RUN: ACK}
COMMON, CHUNK = struct.Struct("<BBHIQI"), struct.Struct("<IQIIBBHHBB")
SEAL = (0, 0, 16, 24)
VERSION_BIT, MASKS_BIT, UNWANTED_BIT, LATER_BIT, DUE_BIT = 1, 2, 4, 8, 16
NONE_AHEAD, MOST_SLOTS, KEPT_OPERATIONS = 0xff, 2 * 4096, 32
ENOUGH = 24  # times

Packet = namedtuple("Packet", "source target type protection sender job rank_epoch chunk operation signature ahead_chunk "
                              "ahead_operation values slot elements exponent_count flags exponents payload masks body")


class Round:
    """A slot's version at a switch, in one life of one chunk."""

    def __init__(self, packet, before):
        self.identity, self.before = identity(packet), before
        self.signature, self.values, self.elements = packet.signature, packet.values, packet.elements
        self.senders = {}  # of contributions: the packet's bytes, but for what seals it
        self.covered = set()
        self.sum, self.floats, self.masks = None, {}, None
        self.sums = []  # exact ones, of child switches
        self.part_times = {}
        self.parts, self.planes = {}, {}  # of its own sum, as sent upstream
        self.ahead, self.exponents, self.protected = None, None, False
        self.answers, self.times = {}, {}  # of each member since it last had news: how often it was answered; of each sender: how often it sent this
        self.due = False  # whether somebody below is to be told now of what waits
        self.empty = set()  # members whose repeats are shorter than the result
        self.wanted, self.unwanted = False, set()  # whether anybody below wants values; the members that want none
        self.result = self.answer = self.sent_up = None  # bytes: as sent to ranks; (result's fields, payload); as sent upstream
        self.served = set()
        self.spoken_at = self.result_at = None  # when the switch first sent anything of it, and a result

    def add(self, packet, passed_on, total):
        a = packet.ahead_operation != NONE_AHEAD and (packet.ahead_operation, packet.ahead_chunk, packet.exponent_count)
        exponents = packet.exponents and numpy.frombuffer(packet.exponents, numpy.uint8)
        if self.ahead is None:
            self.ahead, self.exponents = a, exponents
        elif a != self.ahead:
            self.ahead = False
        elif a:
            self.exponents = numpy.maximum(self.exponents, exponents)
        self.protected |= packet.protection != 0
        self.due |= bool(packet.flags & DUE_BIT) or packet.flags & (UNWANTED_BIT | LATER_BIT) == UNWANTED_BIT and not passed_on
        if packet.flags & UNWANTED_BIT and not passed_on:  # which says nothing of the other ranks there
            self.unwanted.add(packet.source)
        else:
            self.wanted = True
        if packet.elements == 0:
            self.empty.add(packet.source)
            return
        dtype, operation = packet.values & 15, packet.values >> 4
        self.elements = packet.elements
        if total is not None:
            self.sums.append(total)
            return
        payload = numpy.frombuffer(packet.payload, arithmetic.STORED[dtype])
        if buffered(packet.values):
            self.floats[packet.sender] = payload
        elif self.sum is None:
            self.sum = payload.copy()
        else:
            arithmetic.IN_PLACE[operation](self.sum, payload, out=self.sum)
        if packet.masks:
            masks = numpy.frombuffer(packet.masks, numpy.uint8)
            self.masks = masks if self.masks is None else self.masks | masks

    def exact(self):
        return functools.reduce(operator.add, [arithmetic.exact(each, self.values & 15) for each in self.floats.values()] + self.sums)

    def total(self, ranks, in_tree):
        if in_tree and arithmetic.short(self.values & 15, self.values >> 4) and (self.floats or self.sums):
            return arithmetic.of_exact(self.exact(), self.values & 15, self.values >> 4, ranks)
        if self.floats:
            values = [self.floats[rank] for rank in sorted(self.floats)]
            return arithmetic.of_ranks(values, self.values & 15, self.values >> 4, ranks)
        return self.sum

    def ahead_fields(self):
        return (self.ahead[1], self.ahead[0], self.ahead[2], padded(self.exponents.tobytes())) if self.ahead else (0, NONE_AHEAD, 0, b"")


class Node:
    """A switch's lane in a job: an endpoint to which contributions go."""

    def __init__(self, endpoint):
        self.endpoint, self.parent = endpoint, None
        self.ranks, self.children = {}, {}  # sender: endpoint
        self.below = set()  # all ranks
        self.rounds, self.last = {}, {}  # (slot, version): the open round; (rank, slot): the rank's last
        self.closed_to_members = False
        self.elements = 0


class Job:
    def __init__(self, epoch):
        self.name = epoch
        self.epochs, self.nodes, self.fold, self.ranks = {}, {}, None, None
        self.calls = {}  # operation: signatures
        self.places = {}  # operation: {(chunk, values, rank): (switch, slot, version)}
        self.at = {}  # (node's endpoint, rank): the rank's endpoint

    def agrees(self):
        """Whether all ranks make the same calls."""
        return all(len(signatures) == 1 for signatures in self.calls.values())


def identity(packet):
    return packet.operation, packet.chunk, packet.type in (CONTRIBUTION, RESULT, ACK)


def buffered(values):
    """Whether the switch keeps what each rank gave until all are there."""
    return values & 15 in arithmetic.FLOATS


def padded(exponents):
    return exponents + bytes(-len(exponents) % 4)


def named(round_identity):
    operation, chunk, values = round_identity
    return f"operation {operation} chunk {chunk}" + ("" if values else ", exponents")


class Judge(Verdicts):
    def __init__(self, hostile, batch):
        super().__init__(RULES, hostile)
        self.private = self.heals = False  # values are masked; what is sent often enough arrives
        self.batch = batch  # seconds within which a switch's packets may leave in another order
        self.jobs, self.asked, self.probes, self.told, self.lost = {}, set(), set(), set(), set()
        self.limits, self.repeats = Limits(self, batch), Repeats(self, "back-off", batch)

    # ---- bytes

    def datagram(self, d):
        data = d.payload
        self.count("packets")
        if len(data) < 20:
            self.unbelieved("length", f"{len(data)} bytes are no common header")
        version, kind, sender, checksum, job, rank_epoch = COMMON.unpack_from(data)
        kind, protection = kind & 15, kind >> 4
        if version != 3:
            self.unbelieved("version", f"version {version}")
        if not 1 <= kind <= PART or protection > 3 or (protection == 0 and kind not in CHUNKS and kind not in RUNS and kind != PART) or (
                protection > 1 and kind in (UNKNOWN, PROBE, REPLY)):
            self.unbelieved("protection", f"type {kind} with protection {protection}")
        if protection == 1:
            if crc32c(data[8:], int.from_bytes(data[:4], "little")) != checksum:
                self.unbelieved("checksum", "the checksum is wrong")
        elif checksum != 0:
            self.unbelieved("checksum", "a checksum in a packet that has another protection")
        if protection == 3:
            self.count("encrypted packets, of which nothing is seen")
            return
        body = data[:len(data) - SEAL[protection]]
        if kind in CHUNKS:
            packet = self.chunk(d, body, kind, protection, sender, job, rank_epoch)
            (self.contribution if kind <= EXPONENTS else self.result)(packet, data)
        elif kind in RUNS:
            for member in self.apart(body, kind, protection):
                packet = self.chunk(d, member, RUNS[kind], protection, sender, job, rank_epoch)
                (self.contribution if kind == EMPTY_RUN else self.result)(packet, member)
        elif kind == PART:
            self.sum_part(*self.part(d, body, protection, sender, job, rank_epoch))
        else:
            {WAITING: self.waiting, MISSING: self.missing, MISMATCH: self.mismatch, UNKNOWN: self.unknown, PROBE: self.probe,
             REPLY: self.reply}[kind](d, body, sender, job, rank_epoch)

    def apart(self, body, kind, protection):
        """A run's members, as they would have been sent alone."""
        if len(body) < 52:
            self.unbelieved("length", f"{len(body)} bytes are no header of a run")
        chunk, operation, signature, ahead_chunk, ahead_operation, values, slot, members, each, flags = CHUNK.unpack_from(body, 20)
        versions, zero = struct.unpack_from("<HH", body, 48)
        used = each * members.bit_count()
        if len(body) != 52 + len(padded(bytes(used))):
            self.unbelieved("length", f"{len(body)} bytes, where the header implies {52 + len(padded(bytes(used)))}")
        if (members & 1 == 0 or members == 1 or versions & ~members or zero or any(body[52 + used:]) or
                flags & (VERSION_BIT | MASKS_BIT) or (kind == EMPTY_RUN and values & 15 in arithmetic.FLOATS)):
            self.unbelieved("malformed", f"a run of members {members:#x}, versions {versions:#x}, flags {flags:#x}, values {values:#x}")
        all_, at = [], 52
        for j in (j for j in range(16) if members >> j & 1):
            fields = CHUNK.pack(chunk + j, operation, signature, ahead_chunk + j * (ahead_operation != NONE_AHEAD), ahead_operation,
                                values, slot + j, 0, each, flags | versions >> j & 1)
            rest = fields + padded(body[at:at + each])
            head = bytes([body[0], RUNS[kind] | protection << 4]) + body[2:4]
            tail = body[8:20] + rest
            checksum = crc32c(tail, int.from_bytes(head, "little")) if protection == 1 else 0
            all_.append(head + struct.pack("<I", checksum) + tail)
            at += each
        self.count("runs")
        return all_

    def chunk(self, d, body, kind, protection, sender, job, rank_epoch):
        if len(body) < 48:
            self.unbelieved("length", f"{len(body)} bytes are no header of a chunk")
        fields = CHUNK.unpack_from(body, 20)
        _, _, _, _, ahead_operation, values, slot, elements, exponents, flags = fields
        dtype, operation = values & 15, values >> 4
        allowed = (0,) if dtype in arithmetic.BLOCKS else (0, 1, 4) if dtype in arithmetic.FLOATS else (0, 2, 3, 4, 5, 6, 7)
        if dtype > arithmetic.BLOCK4 or operation not in allowed:
            self.unbelieved("types", f"values {values:#x}")
        e, n = (exponents + 3) // 4 * 4, elements * arithmetic.BYTES[dtype]
        m = (elements + 7) // 8 if flags & MASKS_BIT else 0
        if len(body) != 48 + e + n + 2 * m:
            self.unbelieved("length", f"{len(body)} bytes, where the header implies {48 + e + n + 2 * m}")
        own = body[48:48 + exponents]
        if (flags & ~31 or (flags & DUE_BIT and (kind != CONTRIBUTION or flags & UNWANTED_BIT)) or (flags & UNWANTED_BIT and kind != CONTRIBUTION) or (flags & LATER_BIT and not flags & UNWANTED_BIT) or (flags & MASKS_BIT and values != 0) or
                (exponents == 0) != (ahead_operation == NONE_AHEAD) or 255 in own or any(body[48 + exponents:48 + e]) or
                slot >= MOST_SLOTS or (kind == CONTRIBUTION and elements == 0 and dtype in arithmetic.FLOATS)):
            self.unbelieved("malformed", f"flags {flags:#x}, {exponents} exponents, ahead {ahead_operation}, slot {slot}, values {values:#x}")
        if kind not in (CONTRIBUTION, RESULT) and elements:
            self.unbelieved("malformed", f"{elements} values in a packet of type {kind}")
        if kind in (EXPONENTS, EXPONENT_RESULT) and ahead_operation != NONE_AHEAD and (ahead_operation or fields[3] != fields[0]):
            self.unbelieved("exponents", "exponents of another chunk")
        return Packet(d.source, d.target, kind, protection, sender, job, rank_epoch, *fields, own, body[48 + e:48 + e + n],
                      body[48 + e + n:], body)

    def part(self, d, body, protection, sender, job, rank_epoch):
        if len(body) < 52:
            self.unbelieved("length", f"{len(body)} bytes are no header of a part")
        fields = CHUNK.unpack_from(body, 20)
        values, elements, exponents, flags = fields[5], fields[7], fields[8], fields[9]
        place, number, all_ = struct.unpack_from("<HBB", body, 48)
        dtype, e = values & 15, (exponents + 3) // 4 * 4
        count = arithmetic.values_in(dtype, elements)
        n = 3 * ((count + 7) // 8) if place == arithmetic.MASKS else count * (1 if dtype in arithmetic.BLOCKS else 2)
        if len(body) != 52 + e + n:
            self.unbelieved("length", f"{len(body)} bytes, where the header implies {52 + e + n}")
        own = body[52:52 + exponents]
        if (not arithmetic.short(dtype, values >> 4) or elements == 0 or flags & MASKS_BIT or flags & (UNWANTED_BIT | LATER_BIT) == LATER_BIT or flags & ~31 or flags & DUE_BIT and flags & UNWANTED_BIT or number >= all_ or
                all_ > 37 or 273 < place != arithmetic.MASKS or 255 in own or any(body[52 + exponents:52 + e])):
            self.unbelieved("malformed", f"part {number} of {all_} at {place}, values {values:#x}, flags {flags:#x}")
        return Packet(d.source, d.target, CONTRIBUTION, protection, sender, job, rank_epoch, *fields, own, body[52 + e:], b"", body), place, number, all_

    # ---- upstream

    def sum_part(self, p, place, number, all_):
        """Of a switch's sum of short floats, which is complete with its last part."""
        self.asked.add((p.source, p.target, p.job, p.rank_epoch))
        job = self.jobs.get(p.job)
        child = job and job.nodes.get(p.source)
        if not child:
            self.refuse("identity", f"a part of a sum of {named(identity(p))}, which nobody below has sent")
            return
        node = job.nodes.setdefault(p.target, Node(p.target))
        job.calls.setdefault(p.operation, set()).add(p.signature)
        if len(job.calls[p.operation]) > 1:
            return
        here = self.of_child(job, child, node, p)
        if here is None:
            return
        here.part_times[number] = here.part_times.get(number, 0) + 1
        known = here.parts.setdefault(number, (all_, p.body[8:]))
        if known != (all_, p.body[8:]):
            self.refuse("repeat", f"a part of a sum of {named(identity(p))} goes upstream again with other bytes")
        here.planes[number] = place, p.payload
        current = self.open(job, node, p)
        if current is None or len(here.parts) < all_:
            return
        if p.sender in current.senders:
            current.times[p.sender] = min(here.part_times.values())
            return
        dtype = p.values & 15
        total = arithmetic.of_parts(here.planes.values(), dtype, arithmetic.values_in(dtype, p.elements))
        chunk, operation, count, exponents = here.ahead_fields()
        if (p.ahead_chunk, p.ahead_operation, p.exponent_count, padded(p.exponents)) != (chunk, operation, count, exponents):
            self.refuse("look-ahead", f"a sum of {named(identity(p))} has other exponents than its contributions")
        if p.values != here.values or p.elements != here.elements or total != here.exact():
            self.refuse("parts", f"a sum of {named(identity(p))} is not that of its contributions")
        self.wants(here, p)
        self.enter(job, node, current, child, p, hash(p.sender), total)

    def contribution(self, p, _):
        self.asked.add((p.source, p.target, p.job, p.rank_epoch))
        job = self.jobs.setdefault(p.job, Job(p.job))
        job.calls.setdefault(p.operation, set()).add(p.signature)
        child = job.nodes.get(p.source)
        if child is None:
            self.register(job, p)
        node = job.nodes.setdefault(p.target, Node(p.target))
        if len(job.calls[p.operation]) > 1:  # a mismatch: no chunk of it can become complete
            return
        if child is None:
            if p.flags & DUE_BIT:
                self.refuse("due", f"rank {p.sender} says of {named(identity(p))} what a switch alone says")
            self.join(job, node, node.ranks, {p.sender}, p)
        else:
            self.from_switch(job, child, node, p)
        current = self.open(job, node, p)
        if current is not None:
            self.enter(job, node, current, child, p, hash(p.body))

    def open(self, job, node, p):
        """The round that it belongs to; None: none any more."""
        current = node.rounds.get((p.slot, p.flags & VERSION_BIT))
        if current is None or identity(p) > current.identity:
            if current is not None and current.result is None:
                # Ranks whose calls differ differ in what is in a slot too, and the packet that shows it may come later.
                self.suspect(job.agrees, "newer", f"{named(identity(p))} opens slot {p.slot} version {p.flags & 1}, whose {named(current.identity)} is not complete")
                return None
            if current is not None:
                current.before = None
            current = node.rounds[p.slot, p.flags & VERSION_BIT] = Round(p, current)
        elif identity(p) < current.identity:
            self.late(current, p)
            return None
        return current

    def enter(self, job, node, current, child, p, fingerprint, total=None):
        if p.sender in current.senders:
            if current.senders[p.sender] != fingerprint:
                self.unbelieved("repeat", f"rank {p.sender} repeats {named(identity(p))} with other bytes")
            self.sent_again(node, current, p)
            if child is None:
                self.repeats.again(p.source, p.slot, named(identity(p)))
            return
        if p.values != current.values and 0 not in (p.elements, current.elements) or (
                0 < p.elements != current.elements > 0 and not self.empty_so_far(current)):
            self.unbelieved("signature", f"rank {p.sender} has {p.elements} values of kind {p.values:#x} where others have {current.elements} of {current.values:#x}")
        if child is None:
            self.in_turn(job, node, current, p)
            self.in_one_place(job, p)
            self.repeats.first(p.source, p.slot)
        if p.elements:
            current.values = p.values
        current.senders[p.sender] = fingerprint
        current.covered |= {p.sender} if child is None or p.rank_epoch == job.epochs.get(p.sender) else child.below
        current.add(p, child is not None and buffered(p.values) and p.elements and total is None, total)
        self.count("contributions")

    def sent_again(self, node, here, p):
        here.times[p.sender] = here.times.get(p.sender, 1) + 1
        if self.heals and here.answers.get(p.source, 0) >= ENOUGH:
            self.refuse("answered", f"{endpoint_text(p.source)} sends {named(identity(p))} again, though the result went to it {here.answers[p.source]} times")

    def in_one_place(self, job, p):
        places, place = job.places.setdefault(p.operation, {}), (p.target, p.slot, p.flags & VERSION_BIT)
        if places.setdefault((*identity(p)[1:], p.sender), place) != place:
            self.refuse("one-lane", f"rank {p.sender} sends {named(identity(p))} in slot {p.slot} to {endpoint_text(p.target)}, and before in another place")
        if len(job.places) > KEPT_OPERATIONS:
            del job.places[min(job.places)]

    @staticmethod
    def empty_so_far(round_):
        return round_.sum is None and not round_.floats and not round_.sums

    def register(self, job, p):
        """A rank's first packet says its life; a node's later ones have to be from the same address."""
        known = job.epochs.get(p.sender)
        if known is not None and known != p.rank_epoch:
            self.unbelieved("rank-epoch", f"rank {p.sender} has epoch {p.rank_epoch:#x}, and had {known:#x}")
        if job.ranks is not None and p.sender >= job.ranks:
            self.unbelieved("sender", f"rank {p.sender} of {job.ranks}")
        address = job.at.get((p.target, p.sender), p.source)
        if address != p.source or any(at == p.source and rank != p.sender and node == p.target for (node, rank), at in (
                job.at.items() if known is None else ())):
            self.unbelieved("address", f"rank {p.sender} sends from {endpoint_text(p.source)}")
        job.epochs[p.sender] = p.rank_epoch
        job.at[p.target, p.sender] = p.source

    def join(self, job, node, kind, below, p):
        if p.sender not in kind:
            if node.closed_to_members:
                self.refuse("complete", f"rank {p.sender} contributes for the first time to a switch that has sent sums")
            kind[p.sender] = p.source
        if not below <= node.below:
            node.below |= below

    def from_switch(self, job, child, node, p):
        """A sum of what came to the child, or what a rank sent it, unsummed."""
        if buffered(p.values) and p.elements:
            here = self.find(child, p)
            child.parent = node.endpoint
            if here is None or arithmetic.short(p.values & 15, p.values >> 4):
                self.refuse("unsummed", f"rank {p.sender}'s values of {named(identity(p))}, which a switch has to add")
            self.unsummed(job, child, here, p)
            node.below |= child.below
            node.children.setdefault(min(child.below), p.source)
            return
        here = self.of_child(job, child, node, p)
        if here.sent_up is None:
            self.compare("up", p, here, None, True)
            if p.type == CONTRIBUTION:
                self.wants(here, p)
            here.sent_up = p.body
        elif here.sent_up != p.body:
            self.refuse("repeat", f"a sum of {named(identity(p))} goes upstream again with other bytes")

    def wants(self, here, p):
        """What a sum says of values and acknowledgements below."""
        if bool(p.flags & UNWANTED_BIT) == here.wanted:
            self.refuse("wants-tree", "a sum says otherwise than the ranks below whether values are wanted")
        if bool(p.flags & LATER_BIT) == (here.wanted or here.due):
            self.refuse("later", f"a sum of {named(identity(p))} says otherwise than those below whether it may wait")
        if bool(p.flags & DUE_BIT) != (here.wanted and here.due):
            self.refuse("due-now", f"a sum of {named(identity(p))} says otherwise than those below whether what waits is due")

    def of_child(self, job, child, node, p):
        """The child's round that a sum is of."""
        if child.parent not in (None, node.endpoint):
            self.unbelieved("address", f"a switch with two parents: {endpoint_text(p.target)}")
        child.parent = node.endpoint
        here = self.find(child, p)
        if here is None:
            self.refuse("identity", f"a sum of {named(identity(p))}, which nobody below has sent")
        child.closed_to_members = True
        if p.sender != min(child.below):
            self.refuse("sender", f"a switch above ranks {sorted(child.below)} sends as {p.sender}")
        if job.fold is None:
            job.fold = p.rank_epoch
        elif p.rank_epoch != job.fold:
            self.refuse("rank-epoch", f"a sum with epoch {p.rank_epoch:#x}, where all ranks' are {job.fold:#x}")
        if here.covered != child.below:
            self.refuse("complete", f"a sum of {named(identity(p))} without ranks {sorted(child.below - here.covered)}")
        node.below |= child.below
        node.children.setdefault(p.sender, p.source)
        return here

    def unsummed(self, job, child, here, p):
        if p.sender not in here.floats or p.payload != here.floats[p.sender].tobytes():
            self.refuse("unsummed", f"rank {p.sender}'s values of {named(identity(p))} are not those that it sent")

    def late(self, current, p):
        before = current.before
        if before is not None and before.identity == identity(p) and before.senders.get(p.sender, hash(p.body)) != hash(p.body):
            self.unbelieved("repeat", f"rank {p.sender} repeats {named(identity(p))} with other bytes")
        self.count("late copies of contributions")

    def in_turn(self, job, node, current, p):
        """A rank's next round of a slot follows from the result of its last one."""
        last = node.last.get((p.sender, p.slot))
        node.last[p.sender, p.slot] = current, p.flags & VERSION_BIT
        if last is None:
            if p.flags & VERSION_BIT:
                self.refuse("flip", f"rank {p.sender} begins slot {p.slot} with version 1")
            return
        before, version = last
        if version == p.flags & VERSION_BIT:
            self.refuse("flip", f"rank {p.sender} sends {named(identity(p))} in slot {p.slot} with the version of its last round")
        if p.source not in before.served:
            self.refuse("next-round", f"rank {p.sender} sends {named(identity(p))} in slot {p.slot} before it can have the result of {named(before.identity)}")
        if before.identity >= identity(p):
            self.refuse("identity", f"rank {p.sender} goes back from {named(before.identity)} to {named(identity(p))} in slot {p.slot}")
        operation, chunk, values = before.identity
        if before.ahead:
            expected = operation + before.ahead[0] if values else operation, before.ahead[1], True
            if identity(p) != expected:
                self.refuse("look-ahead-follows", f"rank {p.sender} sends {named(identity(p))} in slot {p.slot}, whose last result has the exponents of {named(expected)}")
            if p.elements and p.values == 0 and job.ranks and not self.private:
                values = numpy.frombuffer(p.payload, "<i4")
                most = max(int(values.max()), -int(values.min()))
                if most > (2**31 - 1) // job.ranks:
                    self.refuse("limit", f"rank {p.sender} has a value of {most} among {job.ranks} ranks")

    # ---- downstream

    def lately(self, time):
        return time is None or self.now.time - time < self.batch

    def find(self, node, p):
        """The round in its slot's version, or the one before while the switch has not said that it has another."""
        current = node.rounds.get((p.slot, p.flags & VERSION_BIT))
        if current is not None and identity(p) != current.identity:
            current = current.before if self.lately(current.spoken_at) else None
        return current if current is not None and current.identity == identity(p) else None

    def known(self, p):
        job = self.jobs.get(p.job)
        node = job and job.nodes.get(p.source)
        if not node:
            self.unbelieved("result-to", f"{endpoint_text(p.source)} is no switch of this job")
        if job.ranks is None:
            self.count_ranks(job, p.rank_epoch)
        if job.ranks is None:
            self.unbelieved("complete", f"a result before all ranks' contributions: those of ranks {sorted(job.epochs)} have no such epoch")
        if p.rank_epoch != job.fold:
            self.unbelieved("rank-epoch", f"epoch {p.rank_epoch:#x}, where all ranks' are {job.fold:#x}")
        return job, node

    def count_ranks(self, job, rank_epoch):
        """As many ranks as make the epoch that switches send."""
        state = 0
        for rank in range(len(job.epochs)):
            if rank not in job.epochs:
                return
            state = crc32c(struct.pack("<I", job.epochs[rank]), state)
            if state == rank_epoch:
                job.ranks, job.fold = rank + 1, state
                return

    def result(self, p, data):
        job, node = self.known(p)
        if p.sender != 0:
            self.unbelieved("sender", f"a result of sender {p.sender}")
        here = self.find(node, p)
        if here is None:
            current = node.rounds.get((p.slot, p.flags & VERSION_BIT))
            stale = current is not None and current.identity > identity(p)
            self.refuse("stale" if stale else "identity", f"a result of {named(identity(p))} in slot {p.slot} version {p.flags & 1}, which has {named(current.identity) if current else 'had no round'}")
        if p.signature != here.signature:
            self.refuse("signature", "a result with another signature than the contributions")
        if p.elements not in (0, arithmetic.elements_of_sum(p.values & 15, here.elements)) and (here.elements or node.parent is None):
            self.unbelieved("elements", f"a result of {p.elements} values, of contributions with {here.elements}")
        receivers = self.receivers(job, node, p)
        if here.result is None:
            self.first_result(job, node, here, p)
        values = p.type != ACK
        if p.type != EXPONENT_RESULT and not is_multicast(p.target) and values == (p.target in here.unwanted):
            self.refuse("wants", f"{endpoint_text(p.target)} gets {'values' if values else 'none'}, and asked otherwise")
        if values:
            if here.answer is None:
                here.answer = data
                self.count("results")
            elif here.answer != data:
                self.refuse("one-result", f"the result of {named(here.identity)} differs from the one that others had")
        elif (p.ahead_chunk, p.ahead_operation, p.exponent_count, padded(p.exponents)) != here.result:
            self.refuse("look-ahead", "an acknowledgement with other exponents than the result")
        if p.target in here.served & here.empty and p.elements:
            self.limits.count(("result", node.endpoint, p.target, p.slot, here.identity), 0.001, "once", f"the result of {named(here.identity)} is repeated")
        self.repeats.news(p.target)
        here.served |= receivers
        for receiver in receivers:
            here.answers[receiver] = here.answers.get(receiver, 0) + 1
        if here.spoken_at is None:
            here.spoken_at = self.now.time

    def receivers(self, job, node, p):
        if is_multicast(p.target):
            if p.type == ACK or node.children or node.parent:
                self.refuse("result-to", "what goes to a group is one result, of a job without a tree")
            return set(node.ranks.values())
        if p.target in node.children.values():
            return {p.target}
        ranks = [rank for rank, at in node.ranks.items() if at == p.target]
        if not ranks:
            self.refuse("result-to", f"a result for {endpoint_text(p.target)}, from where no rank contributes")
        return {p.target}

    def first_result(self, job, node, here, p):
        node.closed_to_members = True
        if node.parent is None:
            missing = set(range(job.ranks)) - here.covered
            if missing:
                self.refuse("complete", f"a result of {named(here.identity)} without contributions of ranks {sorted(missing)}")
            if p.protection == 0 and here.protected:
                self.refuse("no-checksum", "a result without a checksum, of contributions that had one")
            self.compare("sum", p, here, job.ranks, bool(node.children))
        else:
            parent = job.nodes[node.parent]
            above = self.find(parent, p)
            if above is None or node.endpoint not in above.served:
                self.refuse("down", f"a result of {named(here.identity)}, which the switch above has not sent")
            if p.type != ACK and above.answer is not None and above.answer[8:] != self.whole(p, above):
                self.refuse("down", f"the result of {named(here.identity)} is not the one of the switch above")
            here.ahead = above.ahead
            here.exponents = above.exponents
        here.result, here.result_at = here.ahead_fields(), self.now.time

    @staticmethod
    def whole(p, above):
        return p.body[8:] + above.answer[len(p.body):]

    def compare(self, rule, p, here, ranks, in_tree):
        """A result, or a sum for the switch above, with what its contributions make."""
        chunk, operation, count, exponents = here.ahead_fields()
        found = p.ahead_chunk, p.ahead_operation, p.exponent_count, padded(p.exponents)
        if found != (chunk, operation, count, exponents):
            self.refuse("look-ahead", f"ahead: operation +{found[1]} chunk {found[0]}, exponents {list(found[3])}; contributions make +{operation} chunk {chunk}, {list(exponents)}")
        if p.type not in (CONTRIBUTION, RESULT):
            return
        total = here.total(ranks, in_tree)
        length = 0 if total is None else len(total)
        if p.elements != length or (length and p.values != here.values):
            self.refuse("elements", f"{p.elements} values of kind {p.values:#x} from contributions with {length} of {here.values:#x}")
        masks = b"" if here.masks is None else here.masks.tobytes()
        if p.masks != masks:
            self.refuse("masks", "the masks are not those of the contributions together")
        if length:
            dtype = p.values & 15
            wrong = arithmetic.difference(total, numpy.frombuffer(p.payload, arithmetic.STORED[dtype]), dtype)
            if wrong is not None:
                names = "floats" if buffered(p.values) else rule if p.values == 0 else "integers"
                self.refuse(names, f"element {wrong[0]} of {named(here.identity)} is {wrong[1]}, and the contributions make {wrong[2]}")

    # ---- the others

    def round_fields(self, body, kind):
        if len(body) < 40 or len(body) % 8:
            self.unbelieved("length", f"{len(body)} bytes")
        chunk, operation, slot, exponents, zero, overtaken = struct.unpack_from("<IQHBBI", body, 20)
        if exponents > 1 or zero or slot >= MOST_SLOTS or (len(body) > 40 and not any(body[-8:])):
            self.unbelieved("malformed", "a field beyond its range, or padding")
        ranks = {8 * at + bit for at, byte in enumerate(body[40:]) if byte for bit in range(8) if byte >> bit & 1}
        return (operation, chunk, not exponents), slot, overtaken, ranks

    def waiting(self, d, body, sender, job, rank_epoch):
        if job not in self.jobs:
            self.unbelieved("result-to", "a job that nobody contributed to")
        name, slot, overtaken, missing = self.round_fields(body, WAITING)
        job = self.jobs[job]
        node = job.nodes.get(d.source)
        if node is None:
            self.unbelieved("result-to", f"{endpoint_text(d.source)} is no switch of this job")
        if job.ranks is None:
            self.count_ranks(job, rank_epoch)
        if job.ranks is None:  # not all ranks have spoken yet
            job.fold = job.fold or rank_epoch
        if rank_epoch != job.fold:
            self.unbelieved("rank-epoch", f"epoch {rank_epoch:#x}, where all ranks' are {job.fold:#x}")
        below = job.nodes.get(d.target)
        if below is not None:  # which may have sent nothing yet
            if below.parent not in (None, node.endpoint):
                self.unbelieved("result-to", f"{endpoint_text(d.target)} has another parent")
            below.parent = node.endpoint
        elif d.target not in node.ranks.values() and node.parent is None and job.ranks is not None and all(
                n is node or n.parent for n in job.nodes.values()):  # else it may be a switch or a rank that has sent nothing yet
            self.unbelieved("result-to", f"{endpoint_text(d.target)} is no member")
        if overtaken != 0xffffffff and below is None:
            self.refuse("waiting-names", "a rank is told that it was overtaken")
        here = next((r for version in (0, 1) for r in [node.rounds.get((slot, version))] for r in (r, r and r.before)
                     if r and r.identity == name), None)
        self.told.add((job.name, d.target, d.source, slot, name))
        if here is None:
            self.suspect(job.agrees, "waiting", f"waiting for {named(name)} in slot {slot}, which is not there")
            return
        if here.result is not None and not self.lately(here.result_at):
            self.refuse("waiting", f"waiting for {named(name)}, whose result was sent")
        asked = below is None and node.ranks.keys() & missing & {rank for rank, at in node.ranks.items() if at == d.target}
        if asked:
            self.repeats.news(d.target, slot)
        elif below is None and node.parent is None:  # in a tree, what the parent says is passed on
            self.limits.count(("waiting", node.endpoint, d.target, slot, name), 0.001, "once", f"waiting for {named(name)} is told")
        silent = set(node.ranks) - here.covered
        if not silent <= missing:
            self.suspect(job.agrees, "waiting-names", f"waiting for {named(name)}: ranks {sorted(silent - missing)} have sent nothing, and are not named")
        deaf = [rank for rank in missing if here.times.get(rank, 0) >= ENOUGH and (rank in node.ranks or rank in node.children)]
        if self.heals and deaf:
            self.refuse("heard", f"waiting for {named(name)} names rank {deaf[0]}, which has sent it {here.times[deaf[0]]} times")
        if job.ranks is not None and missing and max(missing) >= job.ranks:
            self.refuse("waiting-names", f"rank {max(missing)} of {job.ranks}")
        if here.spoken_at is None:
            here.spoken_at = d.time
        self.count("waiting")

    def missing(self, d, body, sender, job, rank_epoch):
        name, slot, _, missing = self.round_fields(body, MISSING)
        if (job, d.source, d.target, slot, name) not in self.told:
            self.unbelieved("missing", f"nobody had asked for {named(name)}")
        self.jobs[job].nodes.setdefault(d.source, Node(d.source)).parent = d.target
        job, elsewhere = self.jobs[job], set()
        for at, rank in job.at:
            chain = self.chain(job, at)
            if rank in missing and d.source not in chain and chain[-1] == self.chain(job, d.source)[-1]:
                elsewhere.add(rank)
        if not missing or elsewhere:
            self.refuse("missing", f"ranks {sorted(elsewhere)} are not below")
        self.count("missing")

    @staticmethod
    def chain(job, at):
        """A switch and all that are known to be above it."""
        found = []
        while at is not None and at not in found:
            found.append(at)
            at = job.nodes[at].parent if at in job.nodes else None
        return found

    def mismatch(self, d, body, sender, job, rank_epoch):
        if len(body) != 44:
            self.unbelieved("length", f"{len(body)} bytes")
        chunk, operation, first, other, first_rank, other_rank = struct.unpack_from("<IQIIHH", body, 20)
        if job not in self.jobs:
            self.unbelieved("mismatch", "a job that nobody contributed to")
        if first == other:
            self.unbelieved("mismatch", "two equal signatures")
        if not {first, other} <= self.jobs[job].calls.get(operation, set()):
            self.unbelieved("mismatch", f"operation {operation} was not called with both signatures {first:#x} and {other:#x}")
        self.count("mismatches")

    def unknown(self, d, body, sender, job, rank_epoch):
        if len(body) != 20:
            self.unbelieved("length", f"{len(body)} bytes")
        if (d.target, d.source, job, rank_epoch) not in self.asked and (d.source, job) not in self.lost:
            self.unbelieved("unknown-job", "it answers no packet")
        if job in self.jobs and d.target in self.jobs[job].nodes:
            self.lost.add((d.target, job))  # and passes it on to all its members
        self.limits.count(("unknown", d.source), 0.01, "flood", "unknown jobs are told", 64)
        self.count("unknown jobs")

    def probe(self, d, body, sender, job, rank_epoch):
        if len(body) < 32:
            self.unbelieved("length", f"{len(body)} bytes")
        if any(body[24:]):
            self.unbelieved("malformed", "a probe has zeros behind its sequence")
        self.probes.add((d.source, d.target, body[20:24]))

    def reply(self, d, body, sender, job, rank_epoch):
        if len(body) != 32:
            self.unbelieved("length", f"{len(body)} bytes")
        if (d.target, d.source, body[20:24]) not in self.probes:
            self.unbelieved("probe", "it answers no probe")
