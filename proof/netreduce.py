"""NetReduce's buffers and windows (docs/protocol-netreduce.md): a buffer per rank that repeats do not change, and which message may take it when."""

import z3

from transition import System, put

And, Or, Not, If, Implies = z3.And, z3.Or, z3.Not, z3.If, z3.Implies


class Ring(System):
    """Hosts in a ring, each of which writes messages to its successor, and an accelerator in between. A packet is known by its connection and
    PSN, which never come again: so by sender, message and place. (PSNs have 24 bits, so that holds of packets that are not late by 2^23.) The
    network keeps every packet that was ever sent.

    Of the window only this matters: `result`, whether one message is N or more before another one, `ack`, whether A or more, and `free`, G.
    `middle` of a message is N before it. G = N + A is: what is G before a message is A before its middle.

    `left_out`: of the rule, for what must fail.
    """

    ranks = "Rank"
    meanings = {
        "exactly once": "A result that a host takes holds each rank's values of that packet, and no other's.",
        "never refused": "What a host may have to repeat has its buffers still, or they are complete and older: it is answered, or taken.",
        "nobody is left behind": "Buffers are taken only when all hosts have the former message, and its acknowledgements.",
        "nothing comes too early": "No message begins while the one that has its buffers is not complete.",
    }

    def __init__(self, world, left_out=""):
        self.world, self.left_out = world, left_out
        f, forall = world.function, world.forall
        self.before, self.axioms = world.order("Message")
        self.successor, self.predecessor = f("successor", "Rank", "Rank"), f("predecessor", "Rank", "Rank")
        self.result, self.ack, self.free = (f(name, "Message", "Message", "Bool") for name in ("result", "ack", "free"))
        self.middle, self.buffer, self.first = f("middle", "Message", "Message"), f("buffer", "Message", "Buffer"), f("first", "Place")
        # A result on its way from a rank's connection to the successor: whose message's values it has of each rank.
        self.of, self.message, self.place = f("of", "Packet", "Rank"), f("message", "Packet", "Message"), f("place", "Packet", "Place")
        self.values = f("values", "Packet", "Rank", "Message")
        apart = self.result if left_out == "window of buffers" else self.free
        self.axioms += [
            forall("Rank", lambda r: And(self.successor(self.predecessor(r)) == r, self.predecessor(self.successor(r)) == r)),
            forall("Message Message", lambda k, m: Implies(And(self.buffer(k) == self.buffer(m), self.before(k, m)), apart(k, m))),
            forall("Message Message", lambda k, m: Implies(self.free(k, m), And(self.result(self.middle(m), m), self.ack(k, self.middle(m))))),
        ]
        self.state = {
            "sent": ("Rank", "Message", "Place", "Bool"),
            "has": ("Rank", "Message", "Place", "Bool"),
            "acked": ("Rank", "Message", "Bool"),
            # At the accelerator: which message has these buffers, of which ranks its first packet was there, and what came.
            "used": ("Buffer", "Bool"),
            "held": ("Buffer", "Message"),
            "known": ("Buffer", "Rank", "Bool"),
            "got": ("Buffer", "Place", "Rank", "Bool"),
            "value": ("Buffer", "Place", "Rank", "Message"),
            "left": ("Packet", "Bool"),
            "took": ("Packet", "Bool"),
        }
        self.actions = {
            "sends": ("Rank Message Place", self.sends),
            "arrives": ("Rank Message Place", self.arrives),
            "leaves": ("Buffer Packet", self.leaves),
            "takes": ("Packet", self.takes),
            "acknowledges": ("Rank Message", self.acknowledges),
        }
        if world.bounded:
            self.axioms += self.small()

    def small(self):
        """For a search: N = A = 1."""
        messages, ranks = self.world.all["Message"], self.world.all["Rank"]
        lag = 1 if self.left_out == "window of buffers" else 2
        of = [self.first() == self.world.all["Place"][0]]
        of += [self.successor(r) == ranks[(i + 1) % len(ranks)] for i, r in enumerate(ranks)]
        for j, m in enumerate(messages):
            of += [self.buffer(m) == self.world.all["Buffer"][j % lag], self.middle(m) == messages[max(j - 1, 0)]]
            for i, k in enumerate(messages):
                of += [self.result(k, m) == (i + 1 <= j), self.ack(k, m) == (i + 1 <= j), self.free(k, m) == (i + 2 <= j)]
        return of

    def initial(self, state):
        forall = self.world.forall
        return [
            forall("Rank Message Place", lambda r, m, i: And(Not(state.sent(r, m, i)), Not(state.has(r, m, i)))),
            forall("Rank Message", lambda r, m: Not(state.acked(r, m))),
            forall("Buffer", lambda b: Not(state.used(b))),
            forall("Buffer Place Rank", lambda b, i, r: Not(state.got(b, i, r))),
            forall("Packet", lambda p: And(Not(state.left(p)), Not(state.took(p)))),
        ]

    def is_there(self, state, rank, message):
        return self.world.forall("Place", lambda i: state.has(rank, message, i))

    def is_whole(self, state, buffer):
        return self.world.forall("Place Rank", lambda i, r: state.got(buffer, i, r))

    # ---- a host

    def sends(self, state, rank, message, place):
        """The window lets it, and it is not acknowledged. (Copies of others may be under way.)"""
        forall = self.world.forall
        condition = And(
            forall("Message", lambda k: Implies(self.result(k, message), self.is_there(state, rank, k))), Not(state.acked(rank, message))
        )
        if self.left_out != "acknowledgements":
            condition = And(condition, forall("Message", lambda k: Implies(self.ack(k, message), state.acked(rank, k))))
        return condition, state.but(sent=put(state.sent, [rank, message, place], True))

    def takes(self, state, packet):
        """The seal shows of which message and packet it is."""
        rank, message, place = self.successor(self.of(packet)), self.message(packet), self.place(packet)
        return And(state.left(packet), Not(state.has(rank, message, place))), state.but(
            has=put(state.has, [rank, message, place], True), took=put(state.took, [packet], True)
        )

    def acknowledges(self, state, rank, message):
        """The successor has all of the message, and its acknowledgement reaches the rank."""
        return self.is_there(state, self.successor(rank), message), state.but(acked=put(state.acked, [rank, message], True))

    # ---- the accelerator

    def opens(self, state, message, place):
        buffer = self.buffer(message)
        return And(
            place == self.first(), Or(Not(state.used(buffer)), And(self.before(state.held(buffer), message), self.is_whole(state, buffer)))
        )

    def arrives(self, state, rank, message, place):
        """A packet is put into its rank's buffer (src/protocol/netreduce/ring.cc). One that has its place in no message there is dropped."""
        buffer = self.buffer(message)
        opens = self.opens(state, message, place)
        same = And(state.used(buffer), state.held(buffer) == message)
        finds = Or(opens, And(same, Or(place == self.first(), state.known(buffer, rank))))
        if self.left_out == "PSN":
            finds = Or(opens, state.used(buffer))
        had = lambda i, r: And(Not(opens), state.got(buffer, i, r))  # noqa: E731
        is_new = Not(self.world.forall("Rank", lambda r: had(place, r)))  # the sum is not there yet
        here = lambda b: b == buffer  # noqa: E731
        return And(state.sent(rank, message, place), finds, is_new), state.but(
            used=put(state.used, [buffer], True),
            held=put(state.held, [buffer], message, opens),
            known=lambda b, r: If(here(b), Or(And(r == rank, place == self.first()), And(Not(opens), state.known(b, r))), state.known(b, r)),
            got=lambda b, i, r: If(here(b), Or(had(i, r), And(i == place, r == rank)), state.got(b, i, r)),
            value=put(state.value, [buffer, place, rank], message),
        )

    def leaves(self, state, buffer, packet):
        """A sum that is there leaves on any connection, at any time: in the ring's order, early, or for a repeat or a NAK."""
        forall, place = self.world.forall, self.place(packet)
        it = And(self.message(packet) == state.held(buffer), forall("Rank", lambda r: self.values(packet, r) == state.value(buffer, place, r)))
        formed = And(state.used(buffer), forall("Rank", lambda r: state.got(buffer, place, r)))
        return And(formed, it), state.but(left=put(state.left, [packet], True))

    # ---- what must hold

    def wrong(self, state):
        right = lambda p, r: Implies(state.took(p), self.values(p, r) == self.message(p))  # noqa: E731
        return Not(self.world.forall("Packet Rank", right))

    def invariant(self, state):
        forall, before = self.world.forall, self.before
        held = lambda m: state.held(self.buffer(m))  # noqa: E731
        used = lambda m: state.used(self.buffer(m))  # noqa: E731
        no_earlier = lambda m: And(used(m), Not(before(held(m), m)))  # noqa: E731
        sums = lambda m, i, r: Implies(held(m) == m, state.got(self.buffer(m), i, r))  # noqa: E731
        return {
            "exactly once": Not(self.wrong(state)),
            "never refused": forall(
                "Rank Message Place",
                lambda r, m, i: Implies(
                    And(state.sent(r, m, i), Not(state.acked(r, m)), used(m)),
                    Or(held(m) == m, And(before(held(m), m), self.is_whole(state, self.buffer(m)))),
                ),
            ),
            "windows": And(
                forall("Rank Message Place Message Place", lambda r, m, i, k, j: Implies(And(state.sent(r, m, i), self.result(k, m)), state.has(r, k, j))),
                forall("Rank Message Place Message", lambda r, m, i, k: Implies(And(state.sent(r, m, i), self.ack(k, m)), state.acked(r, k))),
                forall("Rank Message Place", lambda r, m, i: Implies(state.acked(r, m), state.has(self.successor(r), m, i))),
            ),
            "buffers": And(
                forall("Buffer Place Rank", lambda b, i, r: Implies(state.got(b, i, r), And(state.used(b), state.sent(r, state.held(b), i)))),
                forall("Buffer Place Rank", lambda b, i, r: Implies(state.got(b, i, r), state.value(b, i, r) == state.held(b))),
                forall("Buffer", lambda b: Implies(state.used(b), self.buffer(state.held(b)) == b)),
            ),
            "overwritten": forall(
                "Message Rank", lambda m, r: Implies(And(used(m), before(m, held(m))), state.acked(r, m))
            ),
            "sums": And(
                forall("Packet Rank", lambda p, r: Implies(state.took(p), state.left(p))),
                forall("Packet Rank", lambda p, r: Implies(state.left(p), And(self.values(p, r) == self.message(p), state.sent(r, self.message(p), self.place(p))))),
                forall("Packet Rank", lambda p, r: Implies(state.left(p), And(no_earlier(self.message(p)), sums(self.message(p), self.place(p), r)))),
                forall(
                    "Rank Message Place Rank",
                    lambda q, m, i, r: Implies(state.has(q, m, i), And(state.sent(r, m, i), no_earlier(m), sums(m, i, r))),
                ),
            ),
        }

    def steps(self, state, action, things):
        if action not in ("sends", "arrives"):
            return {}
        forall, (rank, message, place) = self.world.forall, things
        middle = self.middle(message)
        after = lambda holds: forall("Message Rank", lambda k, r: Implies(self.free(k, message), holds(k, r)))  # noqa: E731
        lemmas = {
            "who sends has the result of the middle": after(lambda k, r: state.has(rank, middle, self.first())),
            "all have sent the middle": after(lambda k, r: state.sent(r, middle, self.first())),
            "all have acknowledgements": after(lambda k, r: state.acked(r, k)),
        }
        if action == "sends":
            return lemmas
        buffer = self.buffer(message)
        held, used = state.held(buffer), state.used(buffer)
        has_had = lambda r, i: And(state.has(r, held, i), state.acked(r, held))  # noqa: E731
        return {
            **lemmas,
            "nobody is left behind": Implies(And(used, self.opens(state, message, place)), forall("Rank Place", has_had)),
            "nothing comes too early": Not(And(used, self.before(held, message), Not(self.is_whole(state, buffer)))),
        }

    # ---- in words

    def words(self, steps, model):
        value = lambda term: model.eval(term, True)  # noqa: E731
        number = lambda term: value(term).as_long()  # noqa: E731
        is_true = lambda term: z3.is_true(value(term))  # noqa: E731

        def named(rank, message, place):
            several = f", packet {number(place)}" if len(self.world.all["Place"]) > 1 else ""
            return f"rank {number(rank)}'s message {number(message)}{several}"

        for action, things, before, after in steps:
            things = [value(thing) for thing in things]
            if action == "sends":
                again = " again" if is_true(before.sent(*things)) else ""
                yield f"rank {number(things[0])} sends message {number(things[1])}{again}"
            elif action == "arrives":
                b = value(self.buffer(things[1]))
                takes = is_true(before.used(b)) and number(after.held(b)) != number(before.held(b))
                former = f", which takes the buffers of message {number(before.held(b))}" if takes else ""
                yield f"the accelerator receives {named(*things)}{former}"
            elif action == "leaves":
                p = things[1]
                values = ", ".join(f"rank {number(r)}'s message {number(self.values(p, r))}" for r in self.world.all["Rank"])
                yield f"the sum of message {number(self.message(p))} leaves for rank {number(self.successor(value(self.of(p))))}: {values}"
            elif action == "takes":
                p = things[0]
                yield f"rank {number(self.successor(value(self.of(p))))} takes the result of message {number(self.message(p))}"
            else:
                yield f"rank {number(things[0])} has the acknowledgement of message {number(things[1])}"
