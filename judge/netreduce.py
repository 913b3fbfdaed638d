"""Judges NetReduce's packets in tunnels by docs/protocol-netreduce.md."""
import struct
import zlib

import numpy

import arithmetic
from capture import endpoint_text
from verdict import Refused, Verdicts

PAGE, NUMBERS = "docs/protocol-netreduce.md", "docs/numerics.md"
RULES = {
    "length": (PAGE, "from its IP header to its ICRC, is the payload of a UDP datagram"),
    "icrc": (PAGE, "A packet with a wrong ICRC is dropped"),
    "raw-seal": (PAGE, "| 0 | 8 | seal | 0; the accelerator fills it in"),
    "immediate": (PAGE, "The immediate is MsgID modulo 2³²"),
    "header": (PAGE, "position in the ring's stream, from 0; never wraps"),
    "place": (PAGE, "Any other packet is looked up by its PSN among the first packets"),
    "repeat": (PAGE, "A repeat cannot change the sum"),
    "signature": (PAGE, "and the call is that of the other ranks"),
    "complete": (PAGE, "When the last rank's packet is there, the payloads behind header and seal are added in rank order"),
    "sum": (NUMBERS, "It adds the values x_r as they are, in float32, in ascending order of ranks"),
    "leaves": (PAGE, "Each rank's packet leaves as it came, with the sum, the seal, a new ICRC"),
    "seal": (PAGE, "of this ring's life, message and packet, with all ranks in it"),
    "contributions": (PAGE, "low 16 bits   number of contributions"),
    "up": (PAGE, "other switch's sum goes upstream"),
    "total": (PAGE, "The total comes back with the same PSN, and with the seal"),
    "headers-only": (PAGE, "but without values."),
    "marks": (PAGE, "The accelerator keeps the mark with the packet, which leaves with the sum"),
    "totals-mark": (PAGE, "and a total's leaves on all connections of the switch that takes it"),
    "private": ("docs/private-sums.md", "Ranks divide averages: no header has that flag"),
    "virtual": (PAGE, "same PSN, and with the seal, which only the root can make"),
}

FIRST, MIDDLE, LAST, ONLY = 6, 7, 9, 11  # RDMA WRITE, the last two with an immediate
UP, DOWN = 0x10, 0x11
KEPT_MESSAGES = 512
TYPES = {0: arithmetic.FLOAT32, 1: arithmetic.INT32, 2: arithmetic.FLOAT16, 3: arithmetic.BFLOAT16}


class Packet:
    """A RoCEv2 packet of a gradient connection."""

    def __init__(self, data, marked):
        six = data[0] >> 4 == 6
        self.leaves_marked = (data[1] >> 4 if six else data[1]) & 3 == 3
        self.marked = marked or self.leaves_marked  # when it arrives
        ip = 40 if six else 20
        bth = ip + 8
        self.source, self.target = (data[8:24], data[24:40]) if six else (data[12:16], data[16:20])
        self.opcode, self.pad = data[bth], data[bth + 1] >> 4 & 3
        self.queue_pair, self.psn = int.from_bytes(data[bth + 5:bth + 8], "big"), int.from_bytes(data[bth + 9:bth + 12], "big")
        at = bth + 12 + (16 if self.opcode in (FIRST, ONLY) else 0)
        self.immediate = None
        if self.opcode in (LAST, ONLY):
            self.immediate, at = int.from_bytes(data[at:at + 4], "big"), at + 4
        self.ina = data[at:at + 40] if self.opcode in (FIRST, ONLY) else None
        self.seal = data[at:at + 8]
        begin = at + (40 if self.ina else 8)
        self.values = data[begin:len(data) - 4 - self.pad]
        # What the accelerator leaves as it is: but for marks, what routers count, checksums and seal.
        masked = bytearray(data[:begin])
        for i in ((1, 7, ip + 6, ip + 7, bth + 4) if six else (1, 8, 10, 11, ip + 6, ip + 7, bth + 4)) + tuple(range(at, at + 8)):
            masked[i] = 0
        self.head, self.heads = bytes(masked), {bytes(masked)}
        self.same = self.opcode, self.pad, self.immediate, self.ina, self.values  # of each repeat

    def port(self):
        return self.queue_pair >> 1 & 0xffff


class Connection:
    """What one end has sent: a rank, or a switch to the one above."""

    def __init__(self, node):
        self.node, self.rank, self.base, self.newest = node, None, None, -1
        self.begun = self.renewed = 0  # how often message 0 was sent; of these, in former lives
        self.marks = {}  # of each packet: whether its transmissions were marked
        self.places, self.packets, self.calls = {}, {}, {}  # PSN: (message, packet); the packets; message: its header

    def begin(self, packet, rank, message, length):
        if message == 0 and packet.psn != self.base:  # another life, or the first
            self.places.clear(), self.packets.clear(), self.calls.clear(), self.marks.clear()
            self.base, self.newest = packet.psn, -1
        self.begun += message == 0
        self.rank = rank
        for i in range(length):
            self.places[packet.psn + i & 0xffffff] = message, i
        if message > self.newest:
            self.newest = message
            for place in [p for p in self.packets if p[0] < message - KEPT_MESSAGES]:
                del self.packets[place]
                self.marks.pop(place, None)
            self.calls.pop(message - KEPT_MESSAGES - 1, None)


class Ring:
    """The ranks' endpoints that lead to each other, and what switches have said of it."""

    def __init__(self):
        self.hosts, self.children = {}, {}  # endpoint: Connection; (switch above, switch below): Connection of a virtual one
        self.seals, self.totals, self.parents, self.covered, self.stride = {}, {}, {}, {}, None
        self.marks, self.left = {}, {}  # of a total's transmissions to a switch; for whom a switch has sent a total, both by (node, place)

    def renew(self):
        """Another life: nothing that was said counts."""
        self.seals.clear(), self.totals.clear(), self.marks.clear(), self.left.clear()
        for connection in self.hosts.values():
            connection.renewed = connection.begun

    def renew_tree(self):
        self.renew()
        self.parents.clear(), self.covered.clear(), self.children.clear()
        self.stride = None


class Judge(Verdicts):
    def __init__(self, hostile, _batch):  # its rules do not depend on the order in which packets leave
        super().__init__(RULES, hostile)
        self.all_private = False
        self.rings, self.before, self.lives = {}, {}, {}  # of an endpoint; its predecessor's; incarnation: Ring
        self.virtual, self.nodes, self.unclear = {}, set(), {}

    def datagram(self, d):
        self.count("packets")
        data = d.payload
        six = data[0] >> 4 == 6
        bth = 48 if six else 28
        if len(data) < bth + 16:
            self.unbelieved("length", f"{len(data)} bytes")
        length = struct.unpack_from(">H", data, 4)[0] + 40 if six else struct.unpack_from(">H", data, 2)[0]
        if len(data) - length == 24:
            self.count("encrypted packets, of which nothing is seen")
            return
        if len(data) - length not in (0, 16):
            self.unbelieved("length", f"{len(data)} bytes around a packet of {length}")
        data = data[:length]
        if data[bth] not in (FIRST, MIDDLE, LAST, ONLY):  # which pass untouched, damaged or not
            self.count("acknowledgements and others")
            return
        if len(data) < bth + {FIRST: 68, MIDDLE: 20, LAST: 24, ONLY: 72}[data[bth]] + 4:
            self.unbelieved("length", f"{len(data)} bytes are too few for a packet of a message")
        p = Packet(data, d.ecn == 3)
        if not six and not p.values and (d.source in self.nodes or d.source[0] != p.source) and d.target != (p.target, p.port()):
            self.nodes.add(d.target)
            self.count("headers between switches")  # which pass those in between likewise
            return
        if self.icrc(data, six, bth) != data[-4:]:
            self.unbelieved("icrc", "the ICRC is wrong")
        if six and p.target[:6] == b"\xfdnetsu":
            self.of_virtual(d, p)
        elif d.target == (p.target, p.port()):
            self.leaving(d, p)
        elif d.source in self.nodes:
            self.refuse("headers-only", "a switch sends a rank's values to another")
        else:
            self.contribution(d, p)

    @staticmethod
    def icrc(data, six, bth):
        masked = bytearray(data[:-4])
        for at in ((1, 2, 3, 7) if six else (1, 8, 10, 11)) + (bth - 2, bth - 1, bth + 4):
            masked[at] = 255
        if six:
            masked[0] |= 15
        return struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))

    # ---- from a rank

    def contribution(self, d, p):
        self.nodes.add(d.target)
        ring = self.ring(d.source, (p.target, p.port()))
        connection = ring.hosts.get(d.source)
        if connection is None or connection.node != d.target:
            connection = ring.hosts[d.source] = Connection(d.target)
        if any(p.seal):
            self.refuse("raw-seal", "a rank's packet has a seal")
        self.place(connection, p, ring)
        self.count("contributions")

    def ring(self, endpoint, successor):
        rings = {id(r): r for r in (self.rings.get(endpoint), self.rings.get(successor)) if r}
        first, *others = rings.values() or [Ring()]
        for other in others:
            for mine, theirs in ((first.hosts, other.hosts), (first.children, other.children), (first.parents, other.parents),
                                 (first.covered, other.covered), (first.seals, other.seals), (first.totals, other.totals),
                                 (first.marks, other.marks), (first.left, other.left)):
                mine.update(theirs)
            first.stride = first.stride or other.stride
            for known in (self.rings, self.lives):
                known.update({key: first for key, ring in known.items() if ring is other})
        self.rings[endpoint] = self.rings[successor] = first
        self.before[successor] = endpoint
        return first

    def place(self, connection, p, ring):
        """(message, packet) of a packet of a connection, which it is noted in."""
        if p.ina is not None:
            magic, dtype, flags, length, _, rank, message, signature, zero = struct.unpack("<4sBBHIIQII", p.ina[8:40])
            if flags & 1 and self.all_private:
                self.refuse("private", f"message {message} is a private sum, and asks for the average")
            if magic != b"NSnr" or dtype > 3 or flags > 1 or zero or length == 0 or (p.opcode == ONLY) != (length == 1):
                self.unbelieved("header", f"{magic}, dtype {dtype}, flags {flags:#x}, {length} packets")
            for endpoint in [e for e, c in ring.hosts.items() if message == 0 and c.rank == rank and c is not connection]:
                del ring.hosts[endpoint]  # the rank was started again elsewhere
            connection.begin(p, rank, message, length)
            connection.calls[message] = dtype, flags, signature, length
        place = connection.places.get(p.psn)
        if place is None or place[0] not in connection.calls:
            self.refuse("place", f"PSN {p.psn} follows no first packet")
        if p.immediate is not None and p.immediate != place[0] & 0xffffffff:
            self.refuse("immediate", f"{p.immediate}, of message {place[0]}")
        connection.marks.setdefault(place, set()).add(p.marked)
        known = connection.packets.setdefault(place, p)
        known.heads.add(p.head)
        if known is p:
            p.begun = connection.begun
        elif known.begun != connection.begun:  # perhaps of another life, with the same PSNs
            connection.packets[place] = p
            p.heads |= known.heads
            p.begun = connection.begun
        elif known.same != p.same:
            self.unbelieved("repeat", f"packet {place[1]} of message {place[0]} comes again with other bytes")
        return place

    # ---- sums

    def parts(self, ring, node, place):
        """[(lowest rank, values)] of what a switch adds, and how many ranks that is of."""
        message = place[0]
        members = self.members(ring, node)
        absent = [rank for rank, c, _ in members if place not in c.packets]
        if absent:
            self.refuse("complete", f"packet {place[1]} of message {message} leaves without that of rank {absent[0]}")
        dtype, flags, _, _ = self.call(ring, node, message)
        return [(rank, c.packets[place].values) for rank, c, _ in members], TYPES[dtype], flags & 1, sum(n for *_, n in members)

    @staticmethod
    def members(ring, node):
        """[(lowest rank, connection, ranks)] of what comes to a switch."""
        found = [(c.rank, c, 1) for c in ring.hosts.values() if c.node == node]
        found += [(c.rank, c, ring.covered.get(below, 0)) for (above, below), c in ring.children.items() if above == node]
        return sorted(found, key=lambda member: member[0])

    def call(self, ring, node, message):
        calls = {c.calls[message] for _, c, _ in self.members(ring, node) if message in c.calls}
        if len(calls) != 1:
            self.refuse("signature", f"message {message} leaves as a sum, of {len(calls)} calls")
        return calls.pop()

    def places_between(self, ring, node, p):
        """Between two switches PSN = message · MsgLen + packet. MsgLen may be longer than any message so far."""
        for _, connection, _ in self.members(ring, node):
            for place, sent in connection.packets.items():
                message, packet = place
                if (sent.opcode, sent.immediate, len(sent.values), (sent.ina or b"")[8:]) != (
                        p.opcode, p.immediate, len(p.values), (p.ina or b"")[8:]):
                    continue
                stride = ring.stride or ((p.psn - packet) // message if message else connection.calls[message][3])
                if stride >= connection.calls[message][3] and p.psn == message * stride + packet & 0xffffff:
                    yield place, stride if message else ring.stride
            return

    def check(self, rule, ring, node, place, values, ranks):
        """Values that a switch has summed itself; `ranks`: of the total, by which an average is divided."""
        raw, dtype, average, covered = self.parts(ring, node, place)
        if ranks is not None and covered != ranks:
            self.refuse("complete", f"the sum of {covered} ranks leaves with a seal of {ranks}")
        parts = [numpy.frombuffer(part, arithmetic.STORED[dtype]) for _, part in raw]
        found = numpy.frombuffer(values, arithmetic.STORED[dtype])
        if any(len(part) != len(found) for part in parts):
            self.refuse("complete", f"a sum of {len(found)} values, of contributions with {[len(part) for part in parts]}")
        with numpy.errstate(all="ignore"):
            divisor = ranks if average and ranks is not None else 1
            if dtype == arithmetic.INT32:
                total = parts[0].astype(numpy.int64)
                for part in parts[1:]:
                    total = total + part
                total = total.astype(numpy.int32)
                if divisor > 1:
                    total = numpy.trunc(total / divisor).astype(numpy.int32)
            else:
                wide = [arithmetic.widened(part) if dtype == arithmetic.BFLOAT16 else part for part in parts]
                total = arithmetic.ordered_float32(wide, divisor)
                total = arithmetic.narrowed(total) if dtype == arithmetic.BFLOAT16 else total.astype(arithmetic.STORED[dtype])
        wrong = arithmetic.difference(total, found, dtype)
        if wrong is not None:
            self.refuse(rule, f"element {wrong[0]} of packet {place[1]} of message {place[0]} is {wrong[1]}, and the contributions make {wrong[2]}")
        return covered

    def total(self, ring, node, place, p):
        """What leaves a switch for ranks or for switches below; whether it is the first such packet."""
        count = p.seal[0] | p.seal[1] << 8
        if count == 0:
            self.refuse("contributions", f"packet {place[1]} of message {place[0]} leaves without a seal")
        if not ring.seals:
            ring.renew()
        elif ring.seals.get(place, p.seal) != p.seal and all(c.begun > c.renewed for c in ring.hosts.values()):
            ring.renew()  # all ranks have begun again, and this shows another incarnation
        if ring.seals.setdefault(place, p.seal) != p.seal:
            self.refuse("seal", f"packet {place[1]} of message {place[0]} leaves with another seal than before")
        known = ring.totals.get((node, place))
        if known is None:
            if node in ring.parents:
                self.refuse("total", f"packet {place[1]} of message {place[0]} leaves before its total has come")
            self.check("sum", ring, node, place, p.values, count)
            self.count("results")
            ring.totals[node, place] = p.values
        elif known != p.values:
            self.refuse("total", f"packet {place[1]} of message {place[0]} leaves with other values than before")
        if len(ring.totals) > 4 * KEPT_MESSAGES * max(1, len(ring.hosts)):
            for old in list(ring.totals)[:len(ring.totals) // 2]:
                del ring.totals[old]
                ring.seals.pop(old[1], None)
                ring.marks.pop(old, None)
        first = (d := self.now.target, p.psn) not in ring.left.setdefault((node, place), set())
        ring.left[node, place].add((d, p.psn))
        return first

    def leaving(self, d, p):
        host = self.before.get(d.target)
        ring = self.rings.get(d.target)
        connection = ring and ring.hosts.get(host)
        if connection is None:
            self.unbelieved("leaves", f"a packet for {endpoint_text(d.target)}, to which nobody sends")
        place = connection.places.get(p.psn)
        sent = place and connection.packets.get(place)
        if sent is None:
            self.refuse("leaves", f"PSN {p.psn} leaves, which the rank has not sent")
        ina = (sent.ina or b"")[8:], (p.ina or b"")[8:]
        if p.head not in sent.heads or ina[0] != ina[1]:
            self.refuse("leaves", f"packet {place[1]} of message {place[0]} leaves with other headers than it came with")
        if self.total(ring, d.source, place, p):
            if connection.node == d.source:  # else its headers came by themselves, perhaps after the total
                self.check_marks("marks", connection.marks[place], ring.marks.get((d.source, place)), p, place)

    def check_marks(self, rule, own, totals, p, place):
        """Of the first packet that leaves: `own` and `totals` say of each transmission that came whether it was marked."""
        if {True} in (own, totals) and not p.leaves_marked:
            self.refuse(rule, f"packet {place[1]} of message {place[0]} leaves without the mark that it came with")
        if rule == "marks" and p.leaves_marked and True not in own | (totals or set()):
            self.refuse(rule, f"packet {place[1]} of message {place[0]} leaves with a mark that nothing came with")

    def of_virtual(self, d, p):
        """Between two switches; both directions have the place in the PSN."""
        life = p.target[6:14]
        key = d.source, d.target, life
        if key not in self.virtual:
            self.virtual[key] = Connection(d.target)
        if p.queue_pair == UP:
            connection = self.virtual[key]
            if any(p.seal):
                self.refuse("virtual", "a sum has a seal on its way up")
            if p.leaves_marked:
                self.refuse("marks", "a sum goes up with a rank's mark")
            rings = [self.lives[life]] if life in self.lives else list({id(r): r for r in self.rings.values()}.values())
            reason, fits = Refused("up", f"PSN {p.psn}: a sum of what nobody below has sent"), {}
            for ring in rings:
                for place, stride in self.places_between(ring, d.source, p):
                    try:
                        fits.setdefault(id(ring), (ring, place, stride, self.check("up", ring, d.source, place, p.values, None)))
                    except Refused as refused:
                        reason = refused
            if not fits:
                raise reason
            if len(fits) > 1:  # of zeros, say: another packet will tell which ring's incarnation this is
                self.unclear.setdefault(life, []).append((d, p))
                return
            (ring, place, stride, covered), = fits.values()
            ring.stride = stride
            if life not in self.lives:
                self.lives[life] = ring
                ring.renew_tree()
                for earlier in self.unclear.pop(life, ()):
                    self.of_virtual(*earlier)
            connection.rank, connection.calls[place[0]] = self.members(ring, d.source)[0][0], self.call(ring, d.source, place[0])
            connection.packets[place], connection.places[p.psn] = p, place
            connection.marks.setdefault(place, set()).add(p.marked)
            ring.covered[d.source], ring.children[d.target, d.source], ring.parents[d.source] = covered, connection, d.target
            self.nodes.update((d.source, d.target))
            self.count("sums")
            return
        ring = self.lives.get(life)
        up = self.virtual.get((d.target, d.source, life))
        place = up and up.places.get(p.psn)
        if ring is None or place is None:
            self.refuse("total", f"PSN {p.psn} comes back, which did not go up")
        if self.total(ring, d.source, place, p):
            self.check_marks("totals-mark", up.marks.get(place), ring.marks.get((d.source, place)), p, place)
        ring.totals[d.target, place] = p.values
        ring.marks.setdefault((d.target, place), set()).add(p.marked)
