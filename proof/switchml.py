"""SwitchML's rule of slots at one switch, as netsum has it (docs/proof.md), what was published, and rules with a part left out."""

import z3

from transition import State, System, put

And, Or, Not, If, Implies = z3.And, z3.Or, z3.Not, z3.If, z3.Implies


MEANINGS = {
    "exactly once": "A result that a rank takes holds each rank's values of that round once, and nothing else.",
    "once a round": "A rank takes one result of each of its rounds.",
    "never refused": "What a rank sends for the round that it is in is never dropped as older or too early.",
    "waits for somebody": "A round that is not complete lacks the values of some rank.",
    "nobody is left behind": "A round is overwritten only when every rank has had its result.",
    "nothing comes too early": "No packet is newer than a round that is not complete.",
}


def words(system, steps, model, in_tree):
    """The steps of a search, in packets; `system`: a job at one switch, or in a tree."""
    value = lambda term: model.eval(term, True)  # noqa: E731
    number = lambda term: value(term).as_long()  # noqa: E731
    is_true = lambda term: z3.is_true(value(term))  # noqa: E731
    arrived = set()

    def node(term):
        if not in_tree or is_true(system.is_rank(value(term))):
            return f"rank {number(term)}"
        return "the root" if number(term) == 0 else f"switch {number(term)}"

    def receiver(packet):
        return node(system.parent(value(system.sender(packet)))) if in_tree else "the switch"

    def about(packet):
        return f"round {number(system.round(packet))} (version {int(is_true(system.version(packet)))})"

    def content(packet):
        times = [(number(system.holds(packet, r, i)), r, i) for r, i in system.world.everything([system.ranks, "Round"])]
        return " + ".join(f"{f'{n} x ' if n > 1 else ''}rank {r}'s round {i}" for n, r, i in times if n) or "nothing"

    def is_new(packet, before, after):
        return is_true(after.sent(packet)) and not is_true(before.sent(packet))

    for action, things, before, after in steps:
        if action == "sends":
            rank, _, packet = things
            yield f"{node(rank)} sends its values of {about(packet)}"
        elif action == "arrives":
            packet, out = things
            again = "again " if number(packet) in arrived else ""
            arrived.add(number(packet))
            line = f"{receiver(packet)} receives {again}{node(system.sender(packet))}'s packet of {about(packet)}"
            if is_new(out, before, after):
                line += f", and sends the {'result' if is_true(system.is_result(out)) else 'sum'} of {about(out)}: {content(out)}"
            yield line
        elif action == "falls":
            yield f"{node(things[0])} receives the result of {about(things[1])}, and passes it on: {content(things[1])}"
        else:
            rank, packet = things
            yield f"{node(rank)}, in round {number(before.at(rank, system.slot(packet)))}, takes the result of {about(packet)}: {content(packet)}"


class Job(System):
    """Ranks, and a network that keeps every packet that was ever sent: each may arrive at any time, any number of times, or never.

    A round is a number in the order of identities: (operation, chunk, exponents or values). Which one is first in a slot, all ranks know;
    which one follows is anybody's choice, made once, when the round before it completes, and told with the result: in netsum it follows
    from the calls, which are the same at all ranks, and from the look-ahead's exponents in the result.
    """

    ranks = "Rank"  # of which sort they are
    meanings = MEANINGS
    # Left out of the rule, in turn, by the cases that must fail.
    left_out = ""

    def __init__(self, world):
        self.world = world
        f = world.function
        self.before, self.axioms = world.order("Round")
        self.first = f("first", "Slot", "Round")
        # A packet, which never changes. `holds`: how many times a rank's values of a round are in its sum.
        self.is_result = f("is_result", "Packet", "Bool")
        self.slot, self.version = f("slot", "Packet", "Slot"), f("version", "Packet", "Bool")
        self.round, self.follows = f("round", "Packet", "Round"), f("follows", "Packet", "Round")
        self.sender = f("sender", "Packet", "Rank")
        self.holds = f("holds", "Packet", "Rank", "Round", "Int")
        self.state = {
            "sent": ("Packet", "Bool"),
            # At a rank, for each slot: the round that it is in, that round's version, and the results that it took in it.
            "at": ("Rank", "Slot", "Round"),
            "flipped": ("Rank", "Slot", "Bool"),
            "took": ("Rank", "Round", "Packet", "Bool"),
            **self.of_switch,
        }
        self.actions = {
            "sends": ("Rank Slot Packet", self.sends),
            "arrives": ("Packet Packet", self.arrives),
            "takes": ("Rank Packet", self.takes),
        }

        if world.bounded:
            self.axioms += self.packets()

    def packets(self):
        """For a search: which packet is which, so that it does not try each in each other's place. A contribution of each rank to each round
        but the last, then a result of each."""
        ranks, rounds = self.world.all["Rank"], self.world.all["Round"][:-1]
        of = [self.first(slot) == rounds[0] for slot in self.world.all["Slot"]]
        for number, packet in enumerate(self.world.all["Packet"]):
            rank, round = divmod(number, len(rounds))
            of += [self.is_result(packet) == (rank == len(ranks)), self.round(packet) == rounds[round]]
            if rank < len(ranks):
                of.append(self.sender(packet) == ranks[rank])
                of += [self.exactly(packet, lambda r, rank=rank: r == ranks[rank], rounds[round]), self.follows(packet) == rounds[round]]
        return of

    def initial(self, state):
        forall = self.world.forall
        return [
            forall("Packet", lambda p: Not(state.sent(p))),
            forall("Rank Slot", lambda r, s: And(state.at(r, s) == self.first(s), Not(state.flipped(r, s)))),
            forall("Rank Round Packet", lambda r, i, p: Not(state.took(r, i, p))),
            *self.initial_of_switch(state),
        ]

    def exactly(self, packet, ranks, round):
        """The packet holds these ranks' values of the round once each, and nothing else."""
        one = lambda r, i: If(And(ranks(r), i == round), self.world.number(1), self.world.number(0))  # noqa: E731
        return self.world.forall("Rank Round", lambda r, i: self.holds(packet, r, i) == one(r, i))

    # ---- a rank: SwitchML's Algorithm 4

    def sends(self, state, rank, slot, packet):
        """A rank sends its values of the round that it is in, for the first time or again."""
        condition = And(
            Not(self.is_result(packet)), self.sender(packet) == rank, self.slot(packet) == slot,
            self.round(packet) == state.at(rank, slot), self.version(packet) == state.flipped(rank, slot),
            self.exactly(packet, lambda r: r == rank, self.round(packet)),
        )  # fmt: skip
        return condition, state.but(sent=put(state.sent, [packet], True))

    def takes(self, state, rank, packet):
        """A result reaches a rank that waits for it. (Others are dropped, and change nothing.)"""
        slot = self.slot(packet)
        at, flipped = state.at(rank, slot), state.flipped(rank, slot)
        condition = And(state.sent(packet), self.is_result(packet), self.version(packet) == flipped)
        if self.left_out != "result's identity":
            condition = And(condition, self.round(packet) == at)
        return condition, state.but(
            at=put(state.at, [rank, slot], self.follows(packet)),
            flipped=put(state.flipped, [rank, slot], flipped if self.left_out == "two versions" else Not(flipped)),
            took=put(state.took, [rank, at, packet], True),
        )

    def answer(self, packet, answer, round, holds, follows):
        """The switch's answer to a packet: a result with that packet's slot and version."""
        return And(
            self.is_result(answer), self.slot(answer) == self.slot(packet), self.version(answer) == self.version(packet),
            self.round(answer) == round, self.before(self.round(answer), self.follows(answer)),
            self.world.forall("Rank Round", lambda r, i: self.holds(answer, r, i) == holds(r, i)), follows,
        )  # fmt: skip

    # ---- what must hold

    def wrong(self, state):
        """A rank took a sum that is not its round's."""
        everybody = lambda r: z3.BoolVal(True)  # noqa: E731
        forall = self.world.forall
        return Not(forall("Rank Round Packet", lambda r, i, p: Implies(state.took(r, i, p), self.exactly(p, everybody, i))))

    def words(self, steps, model):
        return words(self, steps, model, in_tree=False)


class Corrected(Job):
    """netsum's switch: a slot's version has the identity of its round; older is dropped, newer opens a new round if the old one is complete."""

    of_switch = {
        # Of each version of each slot. `next`: what follows the round, once it is complete.
        "used": ("Slot", "Bool", "Bool"),
        "held": ("Slot", "Bool", "Round"),
        "complete": ("Slot", "Bool", "Bool"),
        "seen": ("Slot", "Bool", "Rank", "Bool"),
        "sum": ("Slot", "Bool", "Rank", "Round", "Int"),
        "next": ("Slot", "Bool", "Round"),
        # For the proof alone: the slot's newest round and its version, and the round before it, if there was one.
        "newest": ("Slot", "Round"),
        "newest_version": ("Slot", "Bool"),
        "began": ("Slot", "Bool"),
        "last": ("Slot", "Round"),
    }

    def __init__(self, world, left_out=""):
        self.left_out = left_out
        super().__init__(world)

    def initial_of_switch(self, state):
        forall = self.world.forall
        return [
            forall("Slot Bool", lambda s, v: And(Not(state.used(s, v)), Not(state.complete(s, v)))),
            forall("Slot", lambda s: And(state.newest(s) == self.first(s), Not(state.newest_version(s)), Not(state.began(s)))),
            forall("Slot Bool Rank", lambda s, v, r: Not(state.seen(s, v, r))),
            forall("Slot Bool Rank Round", lambda s, v, r, i: state.sum(s, v, r, i) == 0),
        ]

    def opens(self, state, packet):
        slot, version = self.slot(packet), self.version(packet)
        newer = self.before(state.held(slot, version), self.round(packet))
        if self.left_out != "newer only if complete":
            newer = And(newer, state.complete(slot, version))
        return Or(Not(state.used(slot, version)), newer)

    def arrives(self, state, packet, answer):
        """A contribution reaches the switch (Switch::place, add_contribution, answer_repeat in src/protocol/switchml/switch.cc)."""
        slot, version, round, rank = self.slot(packet), self.version(packet), self.round(packet), self.sender(packet)
        here = (slot, version)
        opens = self.opens(state, packet)
        equal = And(state.used(*here), state.held(*here) == round)
        if self.left_out == "contribution's identity":  # what is no newer is taken for the slot's round
            equal = And(state.used(*here), Not(self.before(state.held(*here), round)))
        had = lambda r: And(Not(opens), state.seen(*here, r))  # noqa: E731
        if self.left_out == "reset of the bits":
            had = lambda r: state.seen(*here, r)  # noqa: E731
        adds = And(Or(opens, equal), Not(had(rank)))
        full = self.world.forall("Rank", lambda r: Or(r == rank, had(r)))
        completes = And(adds, full)
        clears = And(opens, self.left_out != "reset of the sum")
        sum = lambda r, i: If(clears, self.world.number(0), state.sum(*here, r, i)) + If(adds, self.holds(packet, r, i), self.world.number(0))  # noqa: E731
        answers = Or(completes, And(equal, had(rank), state.complete(*here)))

        at_here = lambda s, v: And(s == slot, v == version)  # noqa: E731
        after = state.but(
            sent=put(state.sent, [answer], True, answers),
            used=put(state.used, here, True, opens),
            held=put(state.held, here, round, opens),
            complete=put(state.complete, here, Or(completes, And(Not(opens), state.complete(*here)))),
            seen=lambda s, v, r: If(at_here(s, v), Or(had(r), And(adds, r == rank)), state.seen(s, v, r)),
            sum=lambda s, v, r, i: If(at_here(s, v), sum(r, i), state.sum(s, v, r, i)),
            next=put(state.next, here, self.follows(answer), completes),
            newest=put(state.newest, [slot], self.follows(answer), completes),
            newest_version=put(state.newest_version, [slot], Not(version), completes),
            began=put(state.began, [slot], True, completes),
            last=put(state.last, [slot], round, completes),
        )
        remembered = Or(completes, self.follows(answer) == state.next(*here))
        condition = And(state.sent(packet), Not(self.is_result(packet)), Implies(answers, self.answer(packet, answer, If(opens, round, state.held(*here)), sum, remembered)))
        return condition, after

    def invariant(self, state):
        """The names are those of tests/model/slot_invariant.h, which holds the C++ to the same clauses."""
        forall, before = self.world.forall, self.before
        is_newest = lambda s, i: i == state.newest(s)  # noqa: E731
        is_last = lambda s, i: And(state.began(s), i == state.last(s))  # noqa: E731
        everybody = lambda r: z3.BoolVal(True)  # noqa: E731

        def result_is_right(p):
            s, i = self.slot(p), self.round(p)
            last = And(self.follows(p) == state.newest(s), self.version(p) != state.newest_version(s))
            return And(state.began(s), Or(i == state.last(s), before(i, state.last(s))), self.exactly(p, everybody, i), Implies(is_last(s, i), last))

        def contribution_is_known(p):
            s, i, v = self.slot(p), self.round(p), self.version(p)
            at = state.at(self.sender(p), s)
            overtaken = And(state.used(s, v), Or(i == state.held(s, v), before(i, state.held(s, v))))
            return And(
                Or(i == at, before(i, at)), Implies(is_newest(s, i), v == state.newest_version(s)), Implies(Not(is_newest(s, i)), overtaken),
                self.exactly(p, lambda r: r == self.sender(p), i),
            )  # fmt: skip

        def newest_version_is_right(s):
            v = state.newest_version(s)
            former = And(state.complete(s, v), state.began(s), before(state.held(s, v), state.last(s)))
            return Implies(state.used(s, v), If(is_newest(s, state.held(s, v)), Not(state.complete(s, v)), former))

        def last_version_is_right(s):
            v = Not(state.newest_version(s))
            whole = And(state.held(s, v) == state.last(s), state.complete(s, v), state.next(s, v) == state.newest(s), before(state.last(s), state.newest(s)))
            return If(state.began(s), And(state.used(s, v), whole), Not(state.used(s, v)))

        def never_refused(r, s):
            v = state.flipped(r, s)
            takes = And(before(state.held(s, v), state.at(r, s)), state.complete(s, v))
            return Or(Not(state.used(s, v)), state.held(s, v) == state.at(r, s), takes)

        return {
            "exactly once": Not(self.wrong(state)),
            "once a round": forall("Rank Round Packet", lambda r, i, p: Implies(state.took(r, i, p), before(i, state.at(r, self.slot(p))))),
            "never refused": forall("Rank Slot", never_refused),
            "waits for somebody": forall(
                "Slot Bool",
                lambda s, v: Implies(And(state.used(s, v), Not(state.complete(s, v))), self.world.exists("Rank", lambda r: Not(state.seen(s, v, r)))),
            ),
            "one round apart": forall(
                "Rank Slot",
                lambda r, s: Or(
                    And(is_newest(s, state.at(r, s)), state.flipped(r, s) == state.newest_version(s)),
                    And(is_last(s, state.at(r, s)), state.flipped(r, s) != state.newest_version(s)),
                ),
            ),
            "newest round": forall("Slot", newest_version_is_right),
            "last round": forall("Slot", last_version_is_right),
            "seen": forall(
                "Slot Bool Rank",
                lambda s, v, r: And(
                    Implies(state.seen(s, v, r), state.used(s, v)),
                    Implies(state.complete(s, v), state.seen(s, v, r)),
                    Implies(And(state.seen(s, v, r), is_newest(s, state.held(s, v)), v == state.newest_version(s)), is_newest(s, state.at(r, s))),
                ),
            ),
            "sum": forall(
                "Slot Bool Rank Round",
                lambda s, v, r, i: state.sum(s, v, r, i) == If(And(state.seen(s, v, r), i == state.held(s, v)), self.world.number(1), self.world.number(0)),
            ),
            "contributions": forall("Packet", lambda p: Implies(And(state.sent(p), Not(self.is_result(p))), contribution_is_known(p))),
            "results": forall("Packet", lambda p: Implies(And(state.sent(p), self.is_result(p)), result_is_right(p))),
        }

    def steps(self, state, action, things):
        if action != "arrives":
            return {}
        packet = things[0]
        slot, version, round = self.slot(packet), self.version(packet), self.round(packet)
        held, used = state.held(slot, version), state.used(slot, version)
        overwrites = And(used, self.opens(state, packet))
        early = And(used, self.before(held, round), Not(state.complete(slot, version)))
        return {
            "nobody is left behind": Implies(overwrites, self.world.forall("Rank", lambda r: self.before(held, state.at(r, slot)))),
            "nothing comes too early": Not(early),
        }


class Published(Job):
    """Algorithm 3 as published: a bit for each rank and version, which a packet to the other version clears. `compares`: a packet whose chunk
    is older than the version's, or another one before that is complete, is dropped."""

    of_switch = {
        "named": ("Slot", "Bool", "Bool"),
        "held": ("Slot", "Bool", "Round"),
        "seen": ("Slot", "Bool", "Rank", "Bool"),
        "count": ("Slot", "Bool", "Int"),
        "sum": ("Slot", "Bool", "Rank", "Round", "Int"),
    }

    def __init__(self, world, compares):
        self.compares = compares
        super().__init__(world)
        # Chunks follow each other, as in Algorithm 4.
        between = lambda p, i: And(self.before(self.round(p), i), self.before(i, self.follows(p)))  # noqa: E731
        self.axioms.append(world.forall("Packet Round", lambda p, i: Implies(self.is_result(p), Not(between(p, i)))))

    def initial_of_switch(self, state):
        forall = self.world.forall
        return [
            forall("Slot Bool", lambda s, v: And(Not(state.named(s, v)), state.count(s, v) == 0)),
            forall("Slot Bool Rank", lambda s, v, r: Not(state.seen(s, v, r))),
            forall("Slot Bool Rank Round", lambda s, v, r, i: state.sum(s, v, r, i) == 0),
        ]

    def arrives(self, state, packet, answer):
        slot, version, round, rank = self.slot(packet), self.version(packet), self.round(packet), self.sender(packet)
        here, ranks = (slot, version), self.world.sizes["Rank"]
        held = state.held(*here)
        other = And(state.named(*here), held != round, Or(self.before(round, held), state.count(*here) != 0))
        heard = Not(other) if self.compares else z3.BoolVal(True)
        known, counted = state.seen(*here, rank), state.count(*here)
        adds = And(heard, Not(known))  # l. 5
        count = If(adds, If(counted + 1 == ranks, self.world.number(0), counted + 1), counted)  # l. 8
        begins = And(adds, counted == 0)  # l. 9-10
        sum = lambda r, i: If(begins, self.world.number(0), state.sum(*here, r, i)) + If(adds, self.holds(packet, r, i), self.world.number(0))  # noqa: E731
        answers = And(heard, count == 0)  # l. 13-15, 19-21
        at_here = lambda s, v: And(s == slot, v == version)  # noqa: E731
        after = state.but(
            sent=put(state.sent, [answer], True, answers),
            named=put(state.named, here, True, adds),
            held=put(state.held, here, round, adds),
            seen=lambda s, v, r: If(And(adds, s == slot, r == rank), v == version, state.seen(s, v, r)),  # l. 6-7
            count=put(state.count, here, count),
            sum=lambda s, v, r, i: If(at_here(s, v), sum(r, i), state.sum(s, v, r, i)),
        )
        condition = And(state.sent(packet), Not(self.is_result(packet)), Implies(answers, self.answer(packet, answer, round, sum, z3.BoolVal(True))))
        return condition, after
