"""SwitchML's rule of slots in a tree of switches of any depth: each round gathers at a switch, is sent upstream, and is final."""

import z3

import switchml
from transition import System, put

And, Or, Not, If, Implies = z3.And, z3.Or, z3.Not, z3.If, z3.Implies


class Nodes(System):
    """Ranks, and switches, each below another node but the root."""

    ranks = "Node"  # of which sort they are

    def grow(self, world):
        self.world = world
        f, forall = world.function, world.forall
        # `toward` is the child of a node on the way down to another one.
        self.root, self.parent = f("root", "Node"), f("parent", "Node", "Node")
        self.is_rank, self.above = f("is_rank", "Node", "Bool"), f("above", "Node", "Node", "Bool")
        self.toward = f("toward", "Node", "Node", "Node")
        above, parent, toward = self.above, self.parent, self.toward
        self.axioms = [
            forall("Node", lambda n: And(Not(above(n, n)), Not(above(n, self.root())), Not(self.is_rank(self.root())))),
            forall("Node Node", lambda a, n: Implies(above(a, n), Not(self.is_rank(a)))),
            forall("Node Node Node", lambda a, b, n: Implies(And(above(a, b), above(b, n)), above(a, n))),
            forall("Node", lambda n: Implies(n != self.root(), And(above(self.root(), n), above(parent(n), n)))),
            forall("Node Node", lambda a, n: Implies(above(a, n), Or(a == parent(n), above(a, parent(n))))),
            forall("Node Node", lambda a, n: Implies(above(a, n), And(self.is_child(toward(a, n), a), self.within(toward(a, n), n)))),
            forall("Node Node Node", lambda a, k, n: Implies(And(self.is_child(k, a), self.within(k, n)), k == toward(a, n))),
        ]

    def is_child(self, child, node):
        return And(child != self.root(), self.parent(child) == node)

    def within(self, top, node):
        return Or(top == node, self.above(top, node))

    def named(self, parents):
        """For a search: which node is where, `parents` of all but the root, 0. Who is nobody's parent is a rank."""
        nodes = self.world.all["Node"]
        switches = [0, *sorted(set(parents.values()) - {0})]
        of = [self.root() == nodes[0], self.parent(nodes[0]) == nodes[0]]
        of += [self.parent(nodes[i]) == nodes[parent] for i, parent in parents.items()]
        return of + [self.is_rank(node) == (i not in switches) for i, node in enumerate(nodes)], switches


class Tree(Nodes):
    """As switchml.Corrected, with nodes in place of ranks: ranks, and switches, which send the sum of all ranks below them to their parent. The
    parent's result replaces the sum, and is passed on. `left_out`: of the rule, for what must fail."""

    meanings = switchml.MEANINGS

    def __init__(self, world, left_out="", parents=None):
        self.left_out = left_out
        self.grow(world)
        f = world.function
        self.before, axioms = world.order("Round")
        self.axioms += axioms
        self.first = f("first", "Slot", "Round")
        # A packet, from `sender` to its parent, or, a result, to its children.
        self.is_result, self.sender = f("is_result", "Packet", "Bool"), f("sender", "Packet", "Node")
        self.slot, self.version = f("slot", "Packet", "Slot"), f("version", "Packet", "Bool")
        self.round, self.follows = f("round", "Packet", "Round"), f("follows", "Packet", "Round")
        self.holds = f("holds", "Packet", "Node", "Round", "Int")
        self.state = {
            "sent": ("Packet", "Bool"),
            # At a rank.
            "at": ("Node", "Slot", "Round"),
            "flipped": ("Node", "Slot", "Bool"),
            "took": ("Node", "Round", "Packet", "Bool"),
            # At a switch. A round gathers until it `went` upstream, and is `final` when the result is there.
            "used": ("Node", "Slot", "Bool", "Bool"),
            "held": ("Node", "Slot", "Bool", "Round"),
            "went": ("Node", "Slot", "Bool", "Bool"),
            "final": ("Node", "Slot", "Bool", "Bool"),
            "seen": ("Node", "Slot", "Bool", "Node", "Bool"),
            "sum": ("Node", "Slot", "Bool", "Node", "Round", "Int"),
            "next": ("Node", "Slot", "Bool", "Round"),
            # For the proof alone.
            "newest": ("Slot", "Round"),
            "newest_version": ("Slot", "Bool"),
            "began": ("Slot", "Bool"),
            "last": ("Slot", "Round"),
        }
        self.actions = {
            "sends": ("Node Slot Packet", self.sends),
            "arrives": ("Packet Packet", self.arrives),
            "falls": ("Node Packet Packet", self.falls),
            "takes": ("Node Packet", self.takes),
        }
        if world.bounded:
            self.axioms += self.shape(parents)

    def shape(self, parents):
        """For a search: which node is where, and which packet is which."""
        rounds = self.world.all["Round"][:-1]
        nodes = self.world.all["Node"]
        of, switches = self.named(parents)
        of += [self.first(slot) == rounds[0] for slot in self.world.all["Slot"]]
        kinds = [(False, i) for i in parents] + [(True, i) for i in switches]
        for number, packet in enumerate(self.world.all["Packet"]):
            kind, round = divmod(number, len(rounds))
            of += [self.is_result(packet) == kinds[kind][0], self.sender(packet) == nodes[kinds[kind][1]], self.round(packet) == rounds[round]]
        return of

    def initial(self, state):
        forall = self.world.forall
        return [
            forall("Packet", lambda p: Not(state.sent(p))),
            forall("Node Slot", lambda r, s: And(state.at(r, s) == self.first(s), Not(state.flipped(r, s)))),
            forall("Node Round Packet", lambda r, i, p: Not(state.took(r, i, p))),
            forall("Node Slot Bool", lambda n, s, v: And(Not(state.used(n, s, v)), Not(state.went(n, s, v)), Not(state.final(n, s, v)))),
            forall("Node Slot Bool Node", lambda n, s, v, k: Not(state.seen(n, s, v, k))),
            forall("Node Slot Bool Node Round", lambda n, s, v, r, i: state.sum(n, s, v, r, i) == self.world.number(0)),
            forall("Slot", lambda s: And(state.newest(s) == self.first(s), Not(state.newest_version(s)), Not(state.began(s)))),
        ]

    def exactly(self, packet, ranks, round):
        one = lambda r, i: If(And(self.is_rank(r), ranks(r), i == round), self.world.number(1), self.world.number(0))  # noqa: E731
        return self.world.forall("Node Round", lambda r, i: self.holds(packet, r, i) == one(r, i))

    def is_packet(self, packet, is_result, sender, slot, version, round):
        return And(
            self.is_result(packet) == is_result, self.sender(packet) == sender, self.slot(packet) == slot,
            self.version(packet) == version, self.round(packet) == round,
        )  # fmt: skip

    # ---- what happens

    def sends(self, state, rank, slot, packet):
        it = self.is_packet(packet, z3.BoolVal(False), rank, slot, state.flipped(rank, slot), state.at(rank, slot))
        condition = And(self.is_rank(rank), it, self.exactly(packet, lambda r: r == rank, self.round(packet)))
        return condition, state.but(sent=put(state.sent, [packet], True))

    def takes(self, state, rank, packet):
        slot = self.slot(packet)
        at, flipped = state.at(rank, slot), state.flipped(rank, slot)
        it = self.is_packet(packet, z3.BoolVal(True), self.parent(rank), slot, flipped, at)
        return And(self.is_rank(rank), state.sent(packet), it), state.but(
            at=put(state.at, [rank, slot], self.follows(packet)),
            flipped=put(state.flipped, [rank, slot], Not(flipped)),
            took=put(state.took, [rank, at, packet], True),
        )

    def opens(self, state, packet):
        here = (self.parent(self.sender(packet)), self.slot(packet), self.version(packet))
        return Or(Not(state.used(*here)), And(self.before(state.held(*here), self.round(packet)), state.final(*here)))

    def of_step(self, state, packet):
        child, round = self.sender(packet), self.round(packet)
        node = self.parent(child)
        here = (node, self.slot(packet), self.version(packet))
        opens = self.opens(state, packet)
        equal = And(state.used(*here), state.held(*here) == round)
        had = lambda k: And(Not(opens), state.seen(*here, k))  # noqa: E731
        adds = And(Or(opens, equal), Not(had(child)))
        full = self.world.forall("Node", lambda k: Implies(self.is_child(k, node), Or(k == child, had(k))))
        return {"opens": opens, "equal": equal, "had": had, "adds": adds, "completes": And(adds, full)}

    def arrives(self, state, packet, out):
        """A contribution reaches the parent of its sender (Switch::on_contribution). It goes upstream, or, at the root, is the result."""
        child, slot, version, round = self.sender(packet), self.slot(packet), self.version(packet), self.round(packet)
        node = self.parent(child)
        here, forall = (node, slot, version), self.world.forall
        opens, equal, had, adds, completes = self.of_step(state, packet).values()
        none = self.world.number(0)
        sum = lambda r, i: If(opens, none, state.sum(*here, r, i)) + If(adds, self.holds(packet, r, i), none)  # noqa: E731
        at_root, repeats = node == self.root(), And(equal, had(child))
        answered = Or(state.final(*here), And(state.went(*here), self.left_out == "waiting for the result"))
        ends = And(completes, at_root)
        down = Or(ends, And(repeats, answered))
        up = Or(And(completes, Not(at_root)), And(repeats, state.went(*here), Not(answered)))
        remembered = Or(Not(answered), self.follows(out) == state.next(*here), self.left_out == "waiting for the result")
        it = And(
            self.is_packet(out, down, node, slot, version, round), forall("Node Round", lambda r, i: self.holds(out, r, i) == sum(r, i)),
            Implies(down, self.before(round, self.follows(out))), Implies(And(repeats, down), remembered),
        )  # fmt: skip
        at_here = lambda n, s, v: And(n == node, s == slot, v == version)  # noqa: E731
        after = state.but(
            sent=put(state.sent, [out], True, Or(down, up)),
            used=put(state.used, here, True, opens),
            held=put(state.held, here, round, opens),
            went=put(state.went, here, Or(And(completes, Not(at_root)), And(Not(opens), state.went(*here)))),
            final=put(state.final, here, Or(ends, And(Not(opens), state.final(*here)))),
            seen=lambda n, s, v, k: If(at_here(n, s, v), Or(had(k), And(adds, k == child)), state.seen(n, s, v, k)),
            sum=lambda n, s, v, r, i: If(at_here(n, s, v), sum(r, i), state.sum(n, s, v, r, i)),
            next=put(state.next, here, self.follows(out), ends),
            newest=put(state.newest, [slot], self.follows(out), ends),
            newest_version=put(state.newest_version, [slot], Not(version), ends),
            began=put(state.began, [slot], True, ends),
            last=put(state.last, [slot], round, ends),
        )
        return And(state.sent(packet), Not(self.is_result(packet)), child != self.root(), Implies(Or(down, up), it)), after

    def falls(self, state, node, packet, out):
        """A result reaches a switch whose sum of that round went upstream (Switch::on_result), and is passed on."""
        slot, version, round = self.slot(packet), self.version(packet), self.round(packet)
        here = (node, slot, version)
        waits = And(state.used(*here), state.went(*here), Not(state.final(*here)), state.held(*here) == round)
        from_parent = And(state.sent(packet), self.is_result(packet), self.is_child(node, self.sender(packet)), Not(self.is_rank(node)))
        copied = self.world.forall("Node Round", lambda r, i: self.holds(out, r, i) == self.holds(packet, r, i))
        it = And(self.is_packet(out, z3.BoolVal(True), node, slot, version, round), copied, self.follows(out) == self.follows(packet))
        at_here = lambda n, s, v: And(n == node, s == slot, v == version)  # noqa: E731
        return And(waits, from_parent, it), state.but(
            sent=put(state.sent, [out], True),
            final=put(state.final, here, True),
            sum=lambda n, s, v, r, i: If(at_here(n, s, v), self.holds(packet, r, i), state.sum(n, s, v, r, i)),
            next=put(state.next, here, self.follows(packet)),
        )

    # ---- what must hold

    def wrong(self, state):
        everybody = lambda r: z3.BoolVal(True)  # noqa: E731
        right = lambda r, i, p: Implies(state.took(r, i, p), self.exactly(p, everybody, i))  # noqa: E731
        return Not(self.world.forall("Node Round Packet", right))

    def words(self, steps, model):
        return switchml.words(self, steps, model, in_tree=True)

    def holds_newest(self, state, switch, slot):
        here = (switch, slot, state.newest_version(slot))
        return And(state.used(*here), state.held(*here) == state.newest(slot))

    def gave(self, state, node, slot):
        """What the node gives to the newest round is under way to its parent."""
        went = And(self.holds_newest(state, node, slot), state.went(node, slot, state.newest_version(slot)))
        return If(self.is_rank(node), state.at(node, slot) == state.newest(slot), went)

    def invariant(self, state):
        forall, before, above, is_rank = self.world.forall, self.before, self.above, self.is_rank
        is_switch = lambda n: Not(is_rank(n))  # noqa: E731
        new, old = state.newest_version, lambda s: Not(state.newest_version(s))
        holds_newest = lambda n, s: self.holds_newest(state, n, s)  # noqa: E731
        gave = lambda n, s: self.gave(state, n, s)  # noqa: E731
        final_above = lambda n, s: forall("Node", lambda a: Implies(And(state.began(s), above(a, n)), state.final(a, s, old(s))))  # noqa: E731
        no_later = lambda a, b: Or(a == b, before(a, b))  # noqa: E731
        everybody = lambda r: z3.BoolVal(True)  # noqa: E731

        def newest_round(n, s):
            v = new(s)
            former = And(state.final(n, s, v), state.began(s), before(state.held(n, s, v), state.last(s)))
            return Implies(And(is_switch(n), state.used(n, s, v)), If(state.held(n, s, v) == state.newest(s), Not(state.final(n, s, v)), former))

        def last_round(n, s):
            v = old(s)
            whole = And(
                state.used(n, s, v), state.held(n, s, v) == state.last(s), Or(state.went(n, s, v), state.final(n, s, v)),
                Implies(n == self.root(), state.final(n, s, v)), Implies(state.final(n, s, v), state.next(n, s, v) == state.newest(s)),
                before(state.last(s), state.newest(s)),
            )  # fmt: skip
            return Implies(is_switch(n), If(state.began(s), whole, Not(state.used(n, s, v))))

        def accepted(n, s, v, round):
            takes = And(before(state.held(n, s, v), round), state.final(n, s, v))
            return Or(Not(state.used(n, s, v)), state.held(n, s, v) == round, takes)

        def contribution(p):
            k, s, i, v = self.sender(p), self.slot(p), self.round(p), self.version(p)
            passed = forall("Node", lambda n: Implies(is_switch(n), And(state.used(n, s, v), no_later(i, state.held(n, s, v)))))
            return And(
                k != self.root(), self.exactly(p, lambda r: self.within(k, r), i),
                If(i == state.newest(s), And(v == new(s), gave(k, s), final_above(k, s)), passed),
            )  # fmt: skip

        def result(p):
            n, s, i = self.sender(p), self.slot(p), self.round(p)
            last = And(self.follows(p) == state.newest(s), self.version(p) == old(s), state.final(n, s, old(s)), final_above(n, s))
            return And(state.began(s), is_switch(n), no_later(i, state.last(s)), self.exactly(p, everybody, i), Implies(i == state.last(s), last))

        def sum(n, s, v, r, i):
            there = Or(state.final(n, s, v), And(above(n, r), state.seen(n, s, v, self.toward(n, r))))
            one = And(state.used(n, s, v), is_rank(r), i == state.held(n, s, v), there)
            return Implies(is_switch(n), state.sum(n, s, v, r, i) == If(one, self.world.number(1), self.world.number(0)))

        whole = lambda n, s, v: Or(state.went(n, s, v), state.final(n, s, v))  # noqa: E731
        return {
            "exactly once": Not(self.wrong(state)),
            "once a round": forall("Node Round Packet", lambda r, i, p: Implies(state.took(r, i, p), before(i, state.at(r, self.slot(p))))),
            "never refused": And(
                forall("Node Slot", lambda r, s: Implies(is_rank(r), accepted(self.parent(r), s, state.flipped(r, s), state.at(r, s)))),
                forall(
                    "Node Slot Bool",
                    lambda n, s, v: Implies(
                        And(is_switch(n), state.used(n, s, v), state.went(n, s, v), Not(state.final(n, s, v))),
                        accepted(self.parent(n), s, v, state.held(n, s, v)),
                    ),
                ),
            ),
            "waits for somebody": forall(
                "Node Slot Bool",
                lambda n, s, v: Implies(
                    And(is_switch(n), state.used(n, s, v), Not(whole(n, s, v))),
                    self.world.exists("Node", lambda k: And(self.is_child(k, n), Not(state.seen(n, s, v, k)))),
                ),
            ),
            "one round apart": forall(
                "Node Slot",
                lambda r, s: Implies(
                    is_rank(r),
                    Or(
                        And(state.at(r, s) == state.newest(s), state.flipped(r, s) == new(s), final_above(r, s)),
                        And(state.began(s), state.at(r, s) == state.last(s), state.flipped(r, s) == old(s)),
                    ),
                ),
            ),
            "newest round": forall("Node Slot", newest_round),
            "last round": forall("Node Slot", last_round),
            "final above": forall(
                "Node Slot",
                lambda n, s: Implies(
                    And(is_switch(n), state.began(s)),
                    And(
                        Implies(state.final(n, s, old(s)), final_above(n, s)),
                        Implies(holds_newest(n, s), And(state.final(n, s, old(s)), final_above(n, s))),
                    ),
                ),
            ),
            "all below gave": And(
                forall("Node Slot Node", lambda n, s, k: Implies(And(is_switch(n), holds_newest(n, s), state.seen(n, s, new(s), k)), gave(k, s))),
                forall("Node Slot Node", lambda n, s, x: Implies(And(is_switch(n), gave(n, s), above(n, x)), gave(x, s))),
            ),
            "seen": forall(
                "Node Slot Bool Node",
                lambda n, s, v, k: Implies(
                    is_switch(n),
                    And(
                        Implies(state.seen(n, s, v, k), And(state.used(n, s, v), self.is_child(k, n))),
                        Implies(And(whole(n, s, v), self.is_child(k, n)), state.seen(n, s, v, k)),
                        Implies(whole(n, s, v), state.used(n, s, v)),
                        Implies(state.went(n, s, v), n != self.root()),
                    ),
                ),
            ),
            "sum": forall("Node Slot Bool Node Round", sum),
            "contributions": forall("Packet", lambda p: Implies(And(state.sent(p), Not(self.is_result(p))), contribution(p))),
            "results": forall("Packet", lambda p: Implies(And(state.sent(p), self.is_result(p)), result(p))),
        }

    def steps(self, state, action, things):
        if action != "arrives":
            return {}
        packet, forall = things[0], self.world.forall
        slot, version, round = self.slot(packet), self.version(packet), self.round(packet)
        node = self.parent(self.sender(packet))
        here = (node, slot, version)
        held, used = state.held(*here), state.used(*here)
        has_had = lambda r: Implies(self.is_rank(r), self.before(held, state.at(r, slot)))  # noqa: E731
        completes = self.of_step(state, packet)["completes"]
        newest = And(round == state.newest(slot), version == state.newest_version(slot))
        return {
            "nothing comes too early": Not(And(used, self.before(held, round), Not(state.final(*here)))),
            "nobody is left behind": Implies(And(used, self.opens(state, packet)), forall("Node", has_had)),
            "it is the newest round that completes": Implies(completes, newest),
            "all children gave": Implies(completes, forall("Node", lambda k: Implies(self.is_child(k, node), self.gave(state, k, slot)))),
            "all below gave what completes": Implies(completes, forall("Node", lambda x: Implies(self.above(node, x), self.gave(state, x, slot)))),
        }
