"""ATP's slots (docs/protocol-atp.md): soft state in switches, bitmaps that say whose values a sum holds, and a server that adds what is disjoint."""

import z3

from transition import put
from trees import Nodes

And, Or, Not, If, Implies = z3.And, z3.Or, z3.Not, z3.If, z3.Implies


class Slots(Nodes):
    """Ranks, switches above each other, and the server, which is the root. A packet asks for a slot, and says whose values it holds, as the
    server reads it: several bits at a level are all ranks below those children; a single one is what that child's packet said. What a
    switch does when, and which slot a chunk asks for, is left open: it may send what a slot has, whole or not, pass a packet on, drop it, and
    forget a slot, at any time. Chunks stand for those of other jobs, too, as an identity is a job's epoch and a number.

    `left_out`: of the rule, for what must fail.
    """

    meanings = {
        "exactly once": "A result holds each rank's values of that chunk once, and nothing else.",
        "as the bitmap says": "A packet holds the values of the ranks that its bits are read as, once each, of its own chunk.",
        "never refused": "The server adds what a rank sends it directly, if that rank is missing.",
    }

    def __init__(self, world, left_out="", parents=None, packets=()):
        """For a search: the tree, and of each packet whose it is, and of which chunk."""
        self.left_out = left_out
        self.grow(world)
        f = world.function
        # A packet on its way from `sender` to its parent. `resends`: no switch keeps it. `direct`: for the server alone.
        self.sender, self.chunk, self.index = f("sender", "Packet", "Node"), f("chunk", "Packet", "Chunk"), f("index", "Packet", "Slot")
        self.resends, self.direct = f("resends", "Packet", "Bool"), f("direct", "Packet", "Bool")
        self.says = f("says", "Packet", "Node", "Bool")
        self.holds = f("holds", "Packet", "Node", "Chunk", "Int")
        self.state = {
            "sent": ("Packet", "Bool"),
            # At a switch, of each slot: children that are in, whether more than one, and what the last one's packet said.
            "used": ("Node", "Slot", "Bool"),
            "held": ("Node", "Slot", "Chunk"),
            "seen": ("Node", "Slot", "Node", "Bool"),
            "several": ("Node", "Slot", "Bool"),
            "said": ("Node", "Slot", "Node", "Bool"),
            "sum": ("Node", "Slot", "Node", "Chunk", "Int"),
            # At the server, of each chunk.
            "got": ("Chunk", "Node", "Bool"),
            "total": ("Chunk", "Node", "Chunk", "Int"),
        }
        self.actions = {
            "sends": ("Packet", self.sends),
            "enters": ("Packet", self.enters),
            "leaves": ("Node Slot Packet", self.leaves),
            "passes": ("Packet Packet", self.passes),
            "frees": ("Node Slot", self.frees),
            "is added": ("Packet", self.is_added),
        }
        if world.bounded:
            nodes, chunks = world.all["Node"], world.all["Chunk"]
            self.axioms += self.named(parents)[0]
            for packet, (sender, chunk) in zip(world.all["Packet"], packets, strict=True):
                self.axioms += [self.sender(packet) == nodes[sender], self.chunk(packet) == chunks[chunk], Not(self.direct(packet))]

    def initial(self, state):
        forall = self.world.forall
        return [
            forall("Packet", lambda p: Not(state.sent(p))),
            forall("Node Slot", lambda n, s: Not(Or(state.used(n, s), state.several(n, s)))),
            forall("Node Slot Node", lambda n, s, k: Not(Or(state.seen(n, s, k), state.said(n, s, k)))),
            forall("Node Slot Node Chunk", lambda n, s, r, c: state.sum(n, s, r, c) == self.world.number(0)),
            forall("Chunk Node", lambda c, r: Not(state.got(c, r))),
            forall("Chunk Node Chunk", lambda c, r, of: state.total(c, r, of) == self.world.number(0)),
        ]

    def is_switch(self, node):
        return And(node != self.root(), Not(self.is_rank(node)))

    def counts(self, holds, ranks, chunk):
        """Of a sum: it holds these ranks' values of the chunk once each, and nothing else."""
        one = lambda r, c: If(And(self.is_rank(r), ranks(r), c == chunk), self.world.number(1), self.world.number(0))  # noqa: E731
        return self.world.forall("Node Chunk", lambda r, c: holds(r, c) == one(r, c))

    def is_whole(self, packet):
        """It says that all ranks below its sender are in."""
        below = lambda r: And(self.is_rank(r), self.within(self.sender(packet), r))  # noqa: E731
        return self.world.forall("Node", lambda r: Implies(below(r), self.says(packet, r)))

    def read(self, state, node, slot, rank):
        """Whose values a slot has, as its packet will be read."""
        below = And(self.is_rank(rank), self.above(node, rank), state.seen(node, slot, self.toward(node, rank)))
        return If(state.several(node, slot), below, state.said(node, slot, rank))

    # ---- what happens

    def sends(self, state, packet):
        """A rank's values of a chunk: for any slot, at any time, as often as it likes."""
        rank = self.sender(packet)
        own = self.counts(lambda r, c: self.holds(packet, r, c), lambda r: r == rank, self.chunk(packet))
        says = self.world.forall("Node", lambda r: self.says(packet, r) == (r == rank))
        return And(self.is_rank(rank), own, says), state.but(sent=put(state.sent, [packet], True))

    def opens(self, state, packet):
        return Not(state.used(self.parent(self.sender(packet)), self.index(packet)))

    def enters(self, state, packet):
        """A packet is added to a slot, or takes it (Switch::on_gradient in src/protocol/atp/switch.cc)."""
        child, slot, chunk = self.sender(packet), self.index(packet), self.chunk(packet)
        node = self.parent(child)
        here = (node, slot)
        opens = self.opens(state, packet)
        same = And(Not(opens), Or(state.held(*here) == chunk, self.left_out == "identity"))
        had = lambda k: And(Not(opens), state.seen(*here, k))  # noqa: E731
        may = Or(Not(self.resends(packet)), And(Not(opens), self.is_whole(packet)))
        if self.left_out == "parts":
            may = z3.BoolVal(True)
        new = Or(Not(had(child)), self.left_out == "bit")
        none = self.world.number(0)
        empties = And(opens, self.left_out != "reset of the sum")
        sum = lambda r, c: If(empties, none, state.sum(*here, r, c)) + self.holds(packet, r, c)  # noqa: E731
        at_here = lambda n, s: And(n == node, s == slot)  # noqa: E731
        condition = And(state.sent(packet), self.is_switch(node), Not(self.direct(packet)), may, Or(opens, same), new)
        return condition, state.but(
            used=put(state.used, here, True),
            held=put(state.held, here, chunk, opens),
            seen=lambda n, s, k: If(at_here(n, s), Or(had(k), k == child), state.seen(n, s, k)),
            several=put(state.several, here, And(Not(opens), Or(state.several(*here), Not(had(child))))),
            said=lambda n, s, r: If(at_here(n, s), self.says(packet, r), state.said(n, s, r)),
            sum=lambda n, s, r, c: If(at_here(n, s), sum(r, c), state.sum(n, s, r, c)),
        )

    def leaves(self, state, node, slot, out):
        """What a slot has goes upstream: as a sum of all children, or as a part."""
        forall = self.world.forall
        complete = forall("Node", lambda k: Implies(self.is_child(k, node), state.seen(node, slot, k)))
        it = And(
            self.sender(out) == node, self.chunk(out) == state.held(node, slot), Not(self.direct(out)), Or(self.resends(out), complete),
            forall("Node", lambda r: self.says(out, r) == self.read(state, node, slot, r)),
            forall("Node Chunk", lambda r, c: self.holds(out, r, c) == state.sum(node, slot, r, c)),
        )  # fmt: skip
        return And(self.is_switch(node), state.used(node, slot), it), state.but(sent=put(state.sent, [out], True))

    def passes(self, state, packet, out):
        """A packet that no slot takes, or that is direct."""
        forall = self.world.forall
        it = And(
            self.sender(out) == self.parent(self.sender(packet)), self.chunk(out) == self.chunk(packet), self.direct(out) == self.direct(packet),
            self.resends(out), forall("Node", lambda r: self.says(out, r) == self.says(packet, r)),
            forall("Node Chunk", lambda r, c: self.holds(out, r, c) == self.holds(packet, r, c)),
        )  # fmt: skip
        return And(state.sent(packet), self.is_switch(self.parent(self.sender(packet))), it), state.but(sent=put(state.sent, [out], True))

    def frees(self, state, node, slot):
        """By a result, by age, or by a restart of the switch."""
        return And(self.is_switch(node), state.used(node, slot)), state.but(used=put(state.used, [node, slot], False))

    def adds(self, state, packet):
        if self.left_out == "disjoint":
            return z3.BoolVal(True)
        return self.world.forall("Node", lambda r: Not(And(self.says(packet, r), state.got(self.chunk(packet), r))))

    def is_added(self, state, packet):
        """The server adds a packet to its chunk (Server::add in src/protocol/atp/server.cc)."""
        chunk, none = self.chunk(packet), self.world.number(0)
        arrives = And(state.sent(packet), Or(self.is_child(self.sender(packet), self.root()), self.direct(packet)))
        return And(arrives, self.adds(state, packet)), state.but(
            got=lambda c, r: Or(state.got(c, r), And(c == chunk, self.says(packet, r))),
            total=lambda c, r, of: state.total(c, r, of) + If(c == chunk, self.holds(packet, r, of), none),
        )

    # ---- what must hold

    def is_result(self, state, chunk):
        return self.world.forall("Node", lambda r: Implies(self.is_rank(r), state.got(chunk, r)))

    def wrong(self, state):
        everybody = lambda r: z3.BoolVal(True)  # noqa: E731
        right = lambda c: self.counts(lambda r, of: state.total(c, r, of), everybody, c)  # noqa: E731
        return Not(self.world.forall("Chunk", lambda c: Implies(self.is_result(state, c), right(c))))

    def invariant(self, state):
        forall, number = self.world.forall, self.world.number
        one = lambda holds: If(holds, number(1), number(0))  # noqa: E731
        return {
            "exactly once": Not(self.wrong(state)),
            "as the bitmap says": forall(
                "Packet",
                lambda p: Implies(
                    state.sent(p),
                    And(
                        self.sender(p) != self.root(), self.counts(lambda r, c: self.holds(p, r, c), lambda r: self.says(p, r), self.chunk(p)),
                        Or(self.resends(p), self.direct(p), self.is_whole(p)),
                        forall("Node", lambda r: Implies(self.says(p, r), And(self.is_rank(r), self.within(self.sender(p), r)))),
                    ),  # fmt: skip
                ),
            ),
            "never refused": forall(
                "Packet",
                lambda p: Implies(
                    And(state.sent(p), self.direct(p), self.is_rank(self.sender(p)), Not(state.got(self.chunk(p), self.sender(p)))), self.adds(state, p)
                ),
            ),
            "who sends": forall("Packet", lambda p: Implies(And(state.sent(p), self.is_rank(self.sender(p))), self.is_whole(p))),
            "bits": forall(
                "Node Slot Node",
                lambda n, s, k: Implies(
                    And(self.is_switch(n), state.used(n, s), state.seen(n, s, k)),
                    And(self.is_child(k, n), Implies(self.is_rank(k), Or(state.several(n, s), state.said(n, s, k)))),
                ),
            ),
            "a bit is all below": forall(
                "Node Slot Node",
                lambda n, s, r: Implies(
                    And(self.is_switch(n), state.used(n, s)),
                    And(
                        Implies(
                            And(self.is_rank(r), self.above(n, r), state.seen(n, s, self.toward(n, r)), Not(state.several(n, s))), state.said(n, s, r)
                        ),
                        Implies(
                            And(state.said(n, s, r), Not(state.several(n, s))),
                            And(self.is_rank(r), self.above(n, r), state.seen(n, s, self.toward(n, r))),
                        ),
                    ),
                ),
            ),
            "slots": forall(
                "Node Slot Node Chunk",
                lambda n, s, r, c: Implies(
                    And(self.is_switch(n), state.used(n, s)),
                    state.sum(n, s, r, c)
                    == one(And(self.is_rank(r), self.above(n, r), state.seen(n, s, self.toward(n, r)), c == state.held(n, s))),
                ),
            ),
            "server": And(
                forall("Chunk Node Chunk", lambda c, r, of: state.total(c, r, of) == one(And(state.got(c, r), self.is_rank(r), of == c))),
                forall("Chunk Node", lambda c, r: Implies(state.got(c, r), self.is_rank(r))),
            ),
        }

    # ---- in words

    def words(self, steps, model):
        value = lambda term: model.eval(term, True)  # noqa: E731
        is_true = lambda term: z3.is_true(value(term))  # noqa: E731
        number = lambda term: value(term).as_long()  # noqa: E731
        nodes = self.world.all["Node"]

        def node(term):
            if is_true(self.is_rank(value(term))):
                return f"rank {number(term)}"
            return "the server" if number(term) == 0 else f"switch {number(term)}"

        def held(holds):
            times = [(number(holds(r, c)), r, c) for r, c in self.world.everything(["Node", "Chunk"])]
            return " + ".join(f"{f'{n} x ' if n > 1 else ''}rank {r}'s chunk {c}" for n, r, c in times if n) or "nothing"

        def packet(p):
            says = [str(number(r)) for r in nodes if is_true(self.says(p, r))]
            flags = "".join(f", {name}" for name, flag in (("resend", self.resends), ("direct", self.direct)) if is_true(flag(p)))
            return f"chunk {number(self.chunk(p))} (bits read as ranks {', '.join(says)}{flags}): {held(lambda r, c: self.holds(p, r, c))}"

        for action, things, _, after in steps:
            things = [value(thing) for thing in things]
            if action == "sends":
                yield f"{node(self.sender(things[0]))} sends {packet(things[0])}"
            elif action == "enters":
                n, s = value(self.parent(value(self.sender(things[0])))), value(self.index(things[0]))
                content = held(lambda r, c, n=n, s=s: after.sum(n, s, r, c))  # noqa: B023
                yield f"{node(n)} adds {node(self.sender(things[0]))}'s packet to slot {number(s)}, which has then {content}"
            elif action == "leaves":
                yield f"{node(things[0])} sends what slot {number(things[1])} has: {packet(things[2])}"
            elif action == "passes":
                yield f"{node(self.sender(things[1]))} passes on {packet(things[1])}"
            elif action == "frees":
                yield f"{node(things[0])} frees slot {number(things[1])}"
            else:
                c = value(self.chunk(things[0]))
                content = held(lambda r, of, c=c: after.total(c, r, of))  # noqa: B023
                yield f"the server adds {node(self.sender(things[0]))}'s packet to chunk {number(c)}, which has then {content}"
