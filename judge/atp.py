"""Judges ATP's packets by docs/protocol-atp.md."""
import itertools
import struct
from collections import namedtuple

import numpy

from capture import endpoint_text
from crc import crc32c
from pace import Limits, Repeats
from verdict import Verdicts

PAGE, NUMBERS = "docs/protocol-atp.md", "docs/numerics.md"
RULES = {
    "checksum": (PAGE, "CRC32C of bytes 8–end"),
    "no-checksum": (PAGE, "a sum or a result has a checksum if any packet in it had one"),
    "malformed": (PAGE, "*floats* excludes wide, overflow and collision"),
    "broad": (PAGE, "a broad packet in which no level waits for more than 32 is malformed"),
    "length": (PAGE, "field beyond its range, or a length that is not exactly the implied one"),
    "bitmap": (PAGE, "From it on: one bit, whose child it is. No bit at or above the fan-in"),
    "rank-epoch": (PAGE, "on a sum and on what comes down: CRC32C over all ranks' epochs in rank order"),
    "address": (PAGE, "a switch believes a child's packets from that child's address"),
    "result-to": (PAGE, "every node sends copies"),
    "repeat": (PAGE, "*For a sequence number a rank always sends the same values.*"),
    "index": (PAGE, "So all ranks always agree."),
    "signature": (PAGE, "**The signature** is CRC32C over the call itself"),
    "sum-of": (PAGE, "*A sum at level 0 holds exactly the ranks in its bitmap.*"),
    "racks": (PAGE, "*A bit at level 1 and above stands for a rank, or for all ranks below the child.*"),
    "collided": (PAGE, "The rest of the chunk, what other ranks send of it, then takes no slot either"),
    "whole": (PAGE, "Without these flags a child switch sends only complete sums"),
    "integers": (PAGE, "are added modulo 2³², and never fall back"),
    "sum": (PAGE, "+ low is the exact sum, in any order of additions"),
    "overflow": (PAGE, "The flag is sticky through all sums"),
    "exponent": (PAGE, "in slots, in sums however partial, and in packets that pass on"),
    "result-exponent": (PAGE, "**The parameter packet of s says the largest exponent of all ranks**"),
    "complete": (PAGE, "each rank is added at most once. The result goes out when all"),
    "fallback": (PAGE, "A complete sum that overflowed is not sent"),
    "floats": (PAGE, "The others are added **in rank order in double**"),
    "one-result": (PAGE, "A repeated result is the same packet"),
    "down": (PAGE, "A node believes a downstream packet only from its parent"),
    "ahead": (PAGE, "A rank sends s + W only with the results of all up to s"),
    "ask": (PAGE, "are asked one by one"),
    "done": (PAGE, "All ranks have long had it: free the slot"),
    "waiting": (PAGE, "chunk and rank; switches are told nothing"),
    "mismatch": (PAGE, "the server tells all ranks, with two ranks' names"),
    "once": (PAGE, "this switch* still lacks"),
    "ask-once": (PAGE, "An **ask** to single ranks goes past the switches, at most once per millisecond and chunk"),
    "flood": (PAGE, "sequence, signature and index 0; at most 64 in 10 ms"),
    "back-off": (PAGE, "ms, doubling, spread from the second repeat on"),
    "published": ("docs/judge.md", "no rank is told anything, and only floats are asked for"),
    "unknown-job": (PAGE, "both epochs are those of the packet that it answers"),
}

GRADIENT, PARAMETER, ASK, DONE, WAITING, MISMATCH, UNKNOWN = range(1, 8)
RESEND, ECN, COLLISION, OVERFLOW, WIDE, DIRECT, FLOATS, INTEGERS, AVERAGE, UNCHECKED, BROAD = (1 << bit for bit in range(11))
COMMON = struct.Struct("<BBHIQQIIIHBB")
MOST_WINDOW, KEPT_BYTES, SELDOM = 4096, 1 << 26, 3
INT32 = numpy.iinfo(numpy.int32)

Gradient = namedtuple("Gradient", "source target flags job sequence rank_epoch signature index elements level exponent fan_in bitmap values high")


class Chunk:
    """One sequence number of a lane."""

    def __init__(self, packet):
        self.signature, self.index = packet.signature, packet.index
        self.integers, self.floats = {}, {}  # of each rank: a Gradient
        self.result, self.sent_to = None, set()
        self.signatures = {packet.signature}


class Lane:
    def __init__(self):
        self.endpoints, self.ranks, self.chunks, self.bytes = set(), {}, {}, 0  # ranks: path: endpoint


class Job:
    def __init__(self):
        self.epochs, self.fans = {}, {}  # of a rank, by its path; of a node: its children
        self.lanes, self.switches, self.folds, self.fold, self.order = {}, set(), set(), None, None
        self.sets = {}
        self.collided, self.late = {}, {}  # of a switch: sequences; those of them that it summed later

    def lane(self, *endpoints):
        """The lane of which all of these are."""
        found = {id(lane): lane for lane in (self.lanes.get(e) for e in endpoints) if lane}
        first, *others = found.values() or [Lane()]
        for other in others:
            first.endpoints |= other.endpoints
            first.ranks.update(other.ranks)
            for sequence, chunk in other.chunks.items():
                mine = first.chunks.setdefault(sequence, chunk)
                if mine is not chunk:
                    mine.integers.update(chunk.integers)
                    mine.floats.update(chunk.floats)
                    mine.signatures |= chunk.signatures
        first.endpoints.update(endpoints)
        for endpoint in first.endpoints:
            self.lanes[endpoint] = first
        return first

    def all_ranks(self):
        """All paths, or None as long as some child of some node has not shown itself."""
        def below(prefix):
            if prefix in self.epochs:
                return [prefix]
            if prefix not in self.fans:
                return None
            level, fan = self.fans[prefix]
            parts = [below(prefix + ((level, child),)) for child in range(fan)]
            return None if None in parts else [path for part in parts for path in part]
        return below(())

    def stranger(self, lane, endpoint):
        """Whether it takes no part: each of the lane's ranks and nodes is known, and it is none of them."""
        ranks = self.all_ranks()
        return endpoint not in lane.endpoints and ranks is not None and len(lane.endpoints) == len(ranks) + len(self.fans)

    def ranks_of(self, g):
        """Which ranks' values a gradient is a sum of (No contribution twice, none left out)."""
        key = g.fan_in, g.bitmap, len(self.epochs)
        if key not in self.sets:
            self.sets[key] = frozenset(path for path in self.epochs if self.within(path, g))
        return self.sets[key]

    @staticmethod
    def within(path, g):
        for level, child in path:
            if not g.bitmap[level] >> child & 1:
                return False
            if g.bitmap[level] & (g.bitmap[level] - 1):
                return True
        return True


def path_of(g):
    """From the server down: (level, position) of a packet that one rank's values are in."""
    return tuple((level, g.bitmap[level].bit_length() - 1) for level in range(3, -1, -1) if g.fan_in[level])


class Judge(Verdicts):
    def __init__(self, hostile, batch):
        super().__init__(RULES, hostile)
        self.paper, self.limits, self.repeats = False, Limits(self, batch), Repeats(self, "back-off", batch)
        self.jobs, self.asked, self.sealed = {}, set(), set()

    def datagram(self, d):
        self.count("packets")
        data = d.payload
        if len(data) < 40:
            self.unbelieved("length", f"{len(data)} bytes are no common header")
        _, kind, flags, checksum, job, sequence, rank_epoch, signature, index, elements, level, exponent = COMMON.unpack_from(data)
        if not 1 <= kind <= 7 or flags >> 11:
            self.unbelieved("malformed", f"type {kind}, flags {flags:#x}")
        length = self.implied(data, kind, flags, elements)
        seal = len(data) - length
        if seal and kind != UNKNOWN and seal in (16, 24):
            self.sealed.add((d.source, d.target))
            if seal == 24:
                self.count("encrypted packets, of which nothing is seen")
                return
            data = data[:length]
        elif seal:
            self.unbelieved("length", f"{len(data)} bytes, where the header implies {length}")
        elif flags & UNCHECKED:
            if checksum or kind > PARAMETER:
                self.unbelieved("malformed", "unchecked, with a checksum or of another type")
        elif crc32c(data[8:], int.from_bytes(data[:4], "little")) != checksum:
            self.unbelieved("checksum", "the checksum is wrong")
        allowed = {GRADIENT: 0x7ff, PARAMETER: ECN | FLOATS | UNCHECKED, ASK: FLOATS}.get(kind, 0)
        if (flags & ~allowed or (flags & COLLISION and not flags & RESEND) or (flags & FLOATS and flags & (WIDE | OVERFLOW | COLLISION)) or
                (kind == GRADIENT and flags & FLOATS and not flags & DIRECT) or (flags & INTEGERS and flags & (FLOATS | WIDE | OVERFLOW)) or
                (flags & AVERAGE and not flags & FLOATS) or (flags & WIDE and not elements) or elements > 10880 or
                (kind > PARAMETER and (elements or exponent)) or exponent > 254 or (level if kind != GRADIENT else level > 3) or
                (flags & INTEGERS and exponent)):
            self.unbelieved("malformed", f"type {kind}, flags {flags:#x}, {elements} elements, level {level}, exponent {exponent}")
        if kind == GRADIENT:
            at, fan_in, bitmap = self.directions(data, flags)
            values = data[at:at + 4 * elements]
            self.gradient(Gradient(d.source, d.target, flags, job, sequence, rank_epoch, signature, index, elements, level, exponent,
                                   fan_in, bitmap, values, data[at + 4 * elements:at + 6 * elements] if flags & WIDE else b""))
            return
        if kind == UNKNOWN:
            # A seal is checked by who has the job, so what is answered may be a packet that was damaged on its way.
            if (d.target, d.source, job, rank_epoch) not in self.asked and (d.target, d.source) not in self.sealed:
                self.unbelieved("unknown-job", "it answers no packet")
            self.limits.count(("unknown", d.source), 0.01, "flood", "unknown jobs are told", 64)
            self.count("unknown jobs")
            return
        known = self.jobs.get(job)
        lane = known and known.lanes.get(d.source)
        below = known and known.lanes.get(d.target)
        if lane is None and below is not None and not known.stranger(below, d.source):  # a switch that nothing has come through yet
            lane = known.lane(d.source, d.target)
            known.switches.add(d.source)
        if lane is None:
            self.unbelieved("down", f"{endpoint_text(d.source)} is no node of this job")
        self.folded(known, rank_epoch)
        chunk = lane.chunks.get(sequence)
        if chunk is None:
            if lane.chunks and sequence < min(lane.chunks):
                self.count("late packets")
                return
            self.unbelieved("ask", f"type {kind} of sequence {sequence}, which nobody has sent")
        {PARAMETER: self.parameter, ASK: self.ask, DONE: self.done, WAITING: self.waiting, MISMATCH: self.mismatch}[kind](
            d, data, known, lane, chunk, sequence, flags, signature, elements, exponent)

    def directions(self, data, flags):
        if not flags & BROAD:
            fan_in, bitmap = tuple(data[40:44]), struct.unpack_from("<4I", data, 44)
            return 60, fan_in, bitmap
        fan_in, at, bitmap = struct.unpack_from("<4H", data, 40), 48, []
        for fan in fan_in:
            words = max(1, (fan + 31) // 32)
            bitmap.append(int.from_bytes(data[at:at + 4 * words], "little"))
            at += 4 * words
        return at, fan_in, tuple(bitmap)

    @staticmethod
    def implied(data, kind, flags, elements):
        if kind == GRADIENT:
            header = 60
            if flags & BROAD and len(data) >= 48:
                header = 48 + 4 * sum(max(1, (fan + 31) // 32) for fan in struct.unpack_from("<4H", data, 40))
            return header + 4 * elements + (4 * ((elements + 1) // 2) if flags & WIDE else 0)
        # "waiting" has bits of 1,024 ranks, or of 4,096 if one of the others is missing.
        waiting = 168 if len(data) < 552 or not any(data[168:552]) else 552
        return (44 + 4 * elements, 44, 44, waiting, 52, 40)[kind - 2]

    # ---- towards the server

    def gradient(self, g):
        most = max(g.fan_in)
        if most > 256 or bool(g.flags & BROAD) != (most > 32):
            self.unbelieved("broad", f"fan-in {g.fan_in}, flags {g.flags:#x}")
        if not any(g.fan_in) or g.fan_in[g.level] == 0 or any(bits >> fan or (fan and not bits) for bits, fan in zip(g.bitmap, g.fan_in)) or any(
                bits & (bits - 1) for bits in g.bitmap[g.level:]):
            self.unbelieved("bitmap", f"fan-in {g.fan_in}, bitmaps {[hex(bits) for bits in g.bitmap]}, level {g.level}")
        self.asked.add((g.source, g.target, g.job, g.rank_epoch))
        job = self.jobs.setdefault(g.job, Job())
        single = not any(bits & (bits - 1) for bits in g.bitmap)
        if g.source not in job.switches:
            if not single:
                self.unbelieved("bitmap", "a rank sends a sum")
            self.register(job, g)
        job.switches.add(g.target)
        lane = job.lane(g.source, g.target)
        if g.source in lane.ranks.values():
            self.of_rank(job, lane, g)
        else:
            self.of_switch(job, lane, g)

    def register(self, job, g):
        path = path_of(g)
        if job.epochs.setdefault(path, g.rank_epoch) != g.rank_epoch:
            self.unbelieved("rank-epoch", f"epoch {g.rank_epoch:#x} of a rank that had {job.epochs[path]:#x}")
        lane = job.lanes.get(g.target)
        if lane and lane.ranks.get(path, g.source) != g.source or any(at == g.source and other != path for other, at in (lane.ranks.items() if lane else ())):
            self.unbelieved("address", f"another sender {endpoint_text(g.source)} of a rank")
        prefix = ()
        for level, child in path:
            if job.fans.setdefault(prefix, (level, g.fan_in[level])) != (level, g.fan_in[level]):
                self.unbelieved("bitmap", f"fan-in {g.fan_in}, where another rank has {job.fans[prefix]}")
            prefix += ((level, child),)
        job.lane(g.source, g.target).ranks[path] = g.source

    def of_rank(self, job, lane, g):
        path = path_of(g)
        if lane.ranks.get(path) != g.source:
            self.unbelieved("address", "a rank sends for another")
        new = g.sequence not in lane.chunks
        if new and lane.chunks and g.sequence < min(lane.chunks) and lane.bytes == 0:
            self.count("late packets")
            return
        chunk = lane.chunks.setdefault(g.sequence, Chunk(g))
        chunk.signatures.add(g.signature)
        if len(chunk.signatures) > 1:  # a mismatch: this chunk gets no result
            return
        if g.index != chunk.index:
            self.refuse("index", f"sequence {g.sequence} asks for slot {g.index}, and before for {chunk.index}")
        kind = chunk.floats if g.flags & FLOATS else chunk.integers
        before = kind.get(path)
        if before is not None:
            if (g.values, g.exponent, g.flags & (OVERFLOW | INTEGERS | AVERAGE)) != (before.values, before.exponent, before.flags & (
                    OVERFLOW | INTEGERS | AVERAGE)):
                self.unbelieved("repeat", f"a rank repeats sequence {g.sequence} with other values")
            self.repeats.again(g.source, g.sequence, f"sequence {g.sequence}")
            return
        if g.flags & (WIDE | COLLISION):
            self.unbelieved("malformed", "a rank's own packet is wide, or says that it collided")
        self.in_turn(lane, g, path)
        kind[path] = g
        self.repeats.first(g.source, g.sequence)
        lane.bytes += len(g.values)
        self.count("contributions")
        while lane.bytes > KEPT_BYTES and len(lane.chunks) > 2 * MOST_WINDOW:
            gone = lane.chunks.pop(next(iter(lane.chunks)))
            lane.bytes -= sum(len(p.values) for p in (*gone.integers.values(), *gone.floats.values()))

    def in_turn(self, lane, g, path):
        behind = lane.chunks.get(g.sequence - MOST_WINDOW)
        if behind is not None and behind.result is None:
            self.refuse("ahead", f"sequence {g.sequence}, before the result of {g.sequence - MOST_WINDOW}")

    def of_switch(self, job, lane, g):
        chunk = lane.chunks.get(g.sequence)
        if chunk is None:
            if lane.chunks and g.sequence < min(lane.chunks):
                self.count("late packets")
                return
            self.refuse("sum-of", f"a sum of sequence {g.sequence}, which no rank has sent")
        if len(chunk.signatures) > 1:
            return
        if g.signature != chunk.signature:
            self.refuse("signature", "a sum with another signature than the packets in it")
        ranks = job.ranks_of(g)
        given = chunk.floats if g.flags & FLOATS else chunk.integers
        missing = [path for path in ranks if path not in given]
        if not ranks or missing:
            self.refuse("sum-of", f"a sum of sequence {g.sequence} with ranks in its bitmaps {[hex(b) for b in g.bitmap]} that have not sent it")
        several = [level for level in range(4) if g.bitmap[level] & (g.bitmap[level] - 1)]
        full = [not g.fan_in[level] or g.bitmap[level] == (1 << g.fan_in[level]) - 1 for level in range(4)]
        if several and not all(full[:several[-1]]):
            self.refuse("racks", f"a sum of several switches' ranks in which some level is not full: {[hex(b) for b in g.bitmap]}")
        if not g.flags & (RESEND | DIRECT) and not all(full[:g.level]):
            self.refuse("whole", f"a sum without resend that is not complete: {[hex(b) for b in g.bitmap]} of {g.fan_in}")
        own = job.epochs[next(iter(ranks))]
        if len(ranks) > 1 or g.rank_epoch != own:
            self.folded(job, g.rank_epoch)
        parts = [given[path] for path in ranks]
        if g.flags & UNCHECKED and not all(part.flags & UNCHECKED for part in parts):
            self.refuse("no-checksum", "a sum without a checksum, of packets that had one")
        if bool(g.flags & OVERFLOW) != any(part.flags & OVERFLOW for part in parts) and not (
                g.flags & OVERFLOW and not g.flags & WIDE and numpy.isin(numpy.frombuffer(g.values, "<i4"), (INT32.min, INT32.max)).any()):
            self.refuse("overflow", "a sum says otherwise than its packets whether values fit")
        if g.exponent != max(part.exponent for part in parts):
            self.refuse("exponent", f"a sum with exponent {g.exponent}, of packets with {sorted({part.exponent for part in parts})}")
        self.compare(g, parts)
        self.after_collision(job, g, ranks)
        self.count("sums")

    def after_collision(self, job, g, ranks):
        """At a first level. A switch that begins anew has forgotten what collided, and that is seldom."""
        if g.flags & DIRECT or any(job.lanes[g.source].ranks.get(path) is None for path in ranks):
            return
        if g.flags & COLLISION:
            job.collided.setdefault(g.source, set()).add(g.sequence)
        elif len(ranks) > 1 and g.sequence in job.collided.get(g.source, ()):
            job.late.setdefault(g.source, set()).add(g.sequence)
            if len(job.late[g.source]) > SELDOM + len(job.collided[g.source]) // 8:
                self.refuse("collided", f"the rest of sequence {g.sequence} leaves as a sum, after a packet of it had met a collision there")

    def compare(self, g, parts):
        if len(parts) == 1:
            wrong = g.values != parts[0].values or any(g.high)
            expected = found = None
        else:
            total = self.total(parts)
            found = numpy.frombuffer(g.values, "<i4")
            if len(found) != len(total):
                self.refuse("sum-of", f"{len(found)} values, of contributions with {len(total)}")
            expected = total
            if parts[0].flags & INTEGERS:
                wrong = (total.astype(numpy.int32) != found)
            elif g.flags & WIDE:
                wrong = total != found + (numpy.frombuffer(g.high, "<i2").astype(numpy.int64) << 32)
            else:
                wrong = total != found
                if g.flags & OVERFLOW:  # a saturating switch stays at the ends, in whatever order values came
                    most = numpy.sum([numpy.abs(numpy.frombuffer(p.values, "<i4").astype(numpy.int64)) for p in parts if p.elements], axis=0)
                    wrong &= most <= INT32.max
            wrong = numpy.flatnonzero(wrong)
            if len(wrong):
                self.refuse("integers" if parts[0].flags & INTEGERS else "sum",
                            f"element {wrong[0]} of sequence {g.sequence} is {found[wrong[0]]}, and the contributions make {expected[wrong[0]]}")
            return
        if wrong:
            self.refuse("sum-of", f"a rank's values of sequence {g.sequence} are not those that it sent")

    @staticmethod
    def total(parts):
        longest = max(part.elements for part in parts)
        total = numpy.zeros(longest, numpy.int64)
        for part in parts:
            if part.elements:
                total += numpy.frombuffer(part.values, "<i4")
        return total

    # ---- towards the ranks

    def parameter(self, d, data, job, lane, chunk, sequence, flags, signature, elements, exponent):
        if job.stranger(lane, d.target):
            self.refuse("result-to", f"a result for {endpoint_text(d.target)}, which takes no part")
        if len(chunk.signatures) > 1:
            self.refuse("mismatch", f"a result of sequence {sequence}, of which calls differ")
        if signature != chunk.signature:
            self.refuse("signature", "a result with another signature than the contributions")
        rank_epoch, = struct.unpack_from("<I", data, 24)
        values, fields = data[44:], (elements, exponent, flags & FLOATS, data[40:44])
        if chunk.result is None:
            self.first_result(job, chunk, sequence, flags, exponent, values, rank_epoch)
            chunk.result = values, fields
            self.count("results")
        elif chunk.result != (values, fields):
            self.refuse("one-result", f"the result of sequence {sequence} differs from the one that others had")
        chunk.sent_to.add(d.target)
        self.repeats.news(d.target)

    def first_result(self, job, chunk, sequence, flags, exponent, values, rank_epoch):
        ranks = job.all_ranks()
        given = chunk.floats if flags & FLOATS else chunk.integers
        if ranks is None or any(path not in given for path in ranks):
            self.refuse("complete", f"a result of sequence {sequence} without {'all ranks' if ranks is None else sum(path not in given for path in ranks)}' contributions")
        self.rank_order(job, ranks, rank_epoch)
        if flags & UNCHECKED and not all(given[path].flags & UNCHECKED for path in ranks):
            self.refuse("no-checksum", "a result without a checksum, of packets that had one")
        if all(path in chunk.integers for path in ranks):
            largest = max(chunk.integers[path].exponent for path in ranks)
            if exponent != largest:
                self.refuse("result-exponent", f"a result with exponent {exponent}, of packets with {largest} at most")
        parts = [given[path] for path in (job.order or ranks)]
        if flags & FLOATS:
            self.compare_floats(parts, numpy.frombuffer(values, "<f4"), sequence, bool(job.order))
            return
        total, found = self.total(parts), numpy.frombuffer(values, "<i4")
        modular = parts[0].flags & INTEGERS
        if not modular and (any(part.flags & OVERFLOW for part in parts) or (numpy.abs(total + 0.5) > 2.0**31).any()):
            self.refuse("fallback", f"a result of sequence {sequence} as integers, where a value or a sum does not fit")
        if len(found) != len(total):
            self.refuse("sum-of", f"a result of {len(found)} values, of contributions with {len(total)}")
        wrong = numpy.flatnonzero(total.astype(numpy.int32) != found)
        if len(wrong):
            self.refuse("integers" if modular else "sum",
                        f"element {wrong[0]} of sequence {sequence} is {found[wrong[0]]}, and the contributions make {total[wrong[0]]}")

    def folded(self, job, epoch):
        """What says that it is for all ranks. The first result shows what all ranks' epochs make."""
        job.folds.add(epoch)
        if job.fold is not None and epoch != job.fold:
            self.unbelieved("rank-epoch", f"epoch {epoch:#x}, where all ranks' are {job.fold:#x}")

    def rank_order(self, job, ranks, epoch):
        """Positions do not say which rank is where, but of few ranks the fold does."""
        if job.order is not None:
            return
        tries = itertools.permutations(ranks) if len(ranks) <= 8 else [sorted(ranks), ranks]
        order = next((o for o in tries if crc32c(b"".join(struct.pack("<I", job.epochs[path]) for path in o)) == epoch), None)
        if order is None and len(ranks) <= 8:
            self.unbelieved("rank-epoch", f"a result with epoch {epoch:#x}, which the ranks' epochs make in no order")
        job.order, job.fold = list(order or ()), epoch
        if len(job.folds) > 1:
            self.unbelieved("rank-epoch", f"sums had epochs {[hex(f) for f in job.folds]}")

    def compare_floats(self, parts, found, sequence, ordered):
        count = len(parts)
        with numpy.errstate(all="ignore"):
            values = [numpy.frombuffer(p.values, "<f4").astype(numpy.float64) if p.elements else numpy.zeros(len(found)) for p in parts]
            scale, largest = 1e8, max(part.exponent for part in parts)
            if largest:
                bits = (count - 1).bit_length() + (count in (256, 512, 1024, 2048, 4096))
                scale = min(scale, 2.0**(31 - bits - (largest - 126)))
            divisor = count if parts[0].flags & AVERAGE else 1
            scaled = [numpy.rint(v * scale) for v in values]
            fits = numpy.all([(s >= INT32.min) & (s <= INT32.max) for s in scaled], axis=0)
            total = numpy.sum([numpy.where(fits, s, 0) for s in scaled], axis=0)
            fits &= (total >= INT32.min) & (total <= INT32.max)
            direct = values[0]
            for value in values[1:]:
                direct = direct + value
            expected = numpy.where(fits, total / (scale * divisor), direct / divisor).astype(numpy.float32)
            same = (expected.view("u4") == found.view("u4")) | (numpy.isnan(expected) & numpy.isnan(found))
            if not ordered:  # then only as near as any order comes
                same |= numpy.abs(expected - found) <= numpy.sum(numpy.abs(values), axis=0) * 2.0**-23
        wrong = numpy.flatnonzero(~same)
        if len(wrong):
            self.refuse("floats", f"element {wrong[0]} of sequence {sequence} is {found[wrong[0]]}, and the floats make {expected[wrong[0]]}")

    def ask(self, d, data, job, lane, chunk, sequence, flags, signature, *_):
        if any(data[40:44]):
            self.unbelieved("malformed", "an ask has zeros behind its header")
        if job.stranger(lane, d.target):
            self.refuse("ask", f"{endpoint_text(d.target)} is asked, which takes no part")
        if self.paper and not flags & FLOATS:
            self.refuse("published", f"values of sequence {sequence} are asked for, and no floats")
        not flags & FLOATS and self.limits.count(("ask", d.source, d.target, sequence), 0.001, "ask-once", f"sequence {sequence} is asked for")
        self.repeats.news(d.target, sequence)
        self.count("asks")

    def done(self, d, data, job, lane, chunk, sequence, *_):
        if any(data[40:44]):
            self.unbelieved("malformed", "a done has zeros behind its header")
        if chunk.result is None:
            self.refuse("done", f"sequence {sequence} is done before its result")
        if d.target in lane.ranks.values():
            self.refuse("done", "a rank is told that a chunk is done")

    def waiting(self, d, data, job, lane, chunk, sequence, *_):
        if self.paper:
            self.refuse("published", f"{endpoint_text(d.target)} is told to wait")
        if d.target not in lane.ranks.values():
            self.refuse("waiting", f"{endpoint_text(d.target)} is told to wait, which is no rank")
        self.limits.count(("waiting", d.source, d.target, sequence), 0.001, "once", f"waiting for sequence {sequence} is told", 2)  # and that its packet is missing
        self.repeats.news(d.target, sequence)
        self.count("waiting")

    def mismatch(self, d, data, job, lane, chunk, sequence, *_):
        first, other, _, _ = struct.unpack_from("<IIHH", data, 40)
        if first == other or not {first, other} <= chunk.signatures:
            self.unbelieved("mismatch", f"sequence {sequence} was not sent with both signatures {first:#x} and {other:#x}")
        self.count("mismatches")
