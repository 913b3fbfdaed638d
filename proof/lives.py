"""A job's lives (docs/elastic.md): who is in the next one, what stands of the results, and which sums count."""

import z3

from transition import System, put

And, Or, Not, If, Implies = z3.And, z3.Or, z3.Not, z3.If, z3.Implies


class Lives(System):
    """Processes, each of a rank; what an aggregator's registry decides (src/session/registry.cc); and sums, of contributions that may arrive at
    any time, or never. A process that is dead, stopped or cut off is one that does nothing, for ever or for a while: so nobody dies here, and
    who is taken for dead may still live. A result is named by the life that it was formed in: that one's members are its set.

    `left_out`: of the rule, for what must fail.
    """

    ranks = "Rank"
    meanings = {
        "one set": "Of a call, all that the others go on with have the same result, over the same set of ranks.",
        "what it names": "A result holds the values of each rank that it names, given in that life, and nothing else.",
        "a life at a time": "Only the latest life of a job has sums.",
        "left out for ever": "A process that the others went on without is never in again.",
        "no sum of an ended life": "A life that has ended never gives a sum again.",
    }

    def __init__(self, world, left_out=""):
        self.world, self.left_out = world, left_out
        f = world.function
        self.before, self.axioms = world.order("Life")  # in the order of their numbers
        self.rank_of = f("rank_of", "Process", "Rank")
        # Of each life, as it begins: its members, and late ranks without which it does; of both the processes.
        self.is_in, self.is_late = f("is_in", "Life", "Rank", "Bool"), f("is_late", "Life", "Rank", "Bool")
        self.who = f("who", "Life", "Rank", "Process")
        # A call that a member has a result of is not summed anew: `keeper` gives what it has, which is of the life `given`.
        self.replays, self.keeper = f("replays", "Life", "Call", "Bool"), f("keeper", "Life", "Call", "Rank")
        self.given = f("given", "Life", "Call", "Life")
        # New processes begin behind these calls.
        self.is_done = f("is_done", "Life", "Call", "Bool")
        # A member that was in the former life, and has got as far as any late rank has.
        self.furthest = f("furthest", "Life", "Rank")
        self.former = f("former", "Life", "Life")  # only of a rule that is wrong
        self.state = {
            # At the registry.
            "began": ("Life", "Bool"),
            "any": ("Bool",),
            "latest": ("Life",),
            "runs": ("Life", "Bool"),
            # At a process: the life that it was last in, and whether it is there still.
            "heard": ("Process", "Bool"),
            "life": ("Process", "Life"),
            "within": ("Process", "Bool"),
            "has": ("Process", "Call", "Bool"),
            "result": ("Process", "Call", "Life"),
            "skips": ("Process", "Call", "Bool"),
            # Contributions that were sent, and those that are in the sum of a life.
            "sent": ("Life", "Call", "Process", "Bool"),
            "holds": ("Life", "Call", "Process", "Bool"),
            "formed": ("Life", "Call", "Bool"),
            # For the proof alone: whom the others went on without.
            "out": ("Process", "Bool"),
        }
        self.actions = {
            "begins": ("Life", self.begins),
            "ends": ("Life", self.ends),
            "hears": ("Process Life", self.hears),
            "sends": ("Process Call", self.sends),
            "arrives": ("Life Call Process", self.arrives),
            "takes": ("Process Call", self.takes),
        }
        if world.bounded:
            ranks = world.all["Rank"]
            self.axioms += [self.rank_of(p) == ranks[i % len(ranks)] for i, p in enumerate(world.all["Process"])]

    def initial(self, state):
        forall = self.world.forall
        return [
            Not(state.any()),
            forall("Life", lambda l: And(Not(state.began(l)), Not(state.runs(l)))),
            forall("Process", lambda p: And(Not(state.heard(p)), Not(state.within(p)), Not(state.out(p)))),
            forall("Process Call", lambda p, c: And(Not(state.has(p, c)), Not(state.skips(p, c)))),
            forall("Life Call Process", lambda l, c, p: And(Not(state.sent(l, c, p)), Not(state.holds(l, c, p)))),
            forall("Life Call", lambda l, c: Not(state.formed(l, c))),
        ]

    def is_on(self, life, rank):
        return Or(self.is_in(life, rank), self.is_late(life, rank))

    def is_member(self, life, process):
        return And(self.is_in(life, self.rank_of(process)), self.who(life, self.rank_of(process)) == process)

    def was_on(self, life, process):
        return And(self.is_on(life, self.rank_of(process)), self.who(life, self.rank_of(process)) == process)

    def goes_on(self, state, process):
        """It is in the latest life, or one of that one's late ranks."""
        return And(state.any(), self.was_on(state.latest(), process))

    def past(self, state, process, call):
        """It will not make the call any more."""
        return Or(state.has(process, call), state.skips(process, call))

    # ---- the registry

    def accepts(self, state, life, process):
        """A process that was in a life joins again for another one (Impl::muster)."""
        if self.left_out == "who was in the latest life":
            return z3.BoolVal(True)
        if self.left_out == "which life was the latest":  # some earlier one, of which a process says that it was there
            return And(state.began(self.former(life)), self.was_on(self.former(life), process))
        if self.left_out == "which process":
            return self.is_on(state.latest(), self.rank_of(process))
        return self.goes_on(state, process)

    def begins(self, state, life):
        """Whoever has joined, of those that were on the latest life, and new processes. Who has joined has left the life that it was in."""
        forall, latest = self.world.forall, state.latest()
        is_in, is_late, who = (lambda r: self.is_in(life, r)), (lambda r: self.is_late(life, r)), (lambda r: self.who(life, r))
        furthest = who(self.furthest(life))
        joined = lambda r: Implies(state.heard(who(r)), self.accepts(state, life, who(r)))  # noqa: E731
        late = lambda r: And(  # joined, or as before  # noqa: E731
            state.any(), Not(is_in(r)), state.heard(who(r)), self.accepts(state, life, who(r)),
        )  # fmt: skip
        no_further = lambda r, c: Implies(And(is_late(r), self.past(state, who(r), c)), self.past(state, furthest, c))  # noqa: E731

        def of_call(c):
            kept = And(is_in(self.keeper(life, c)), state.has(who(self.keeper(life, c)), c), self.given(life, c) == state.result(who(self.keeper(life, c)), c))
            nobody = forall("Rank", lambda r: Implies(is_in(r), Not(state.has(who(r), c))))
            anew = self.given(life, c) == life
            if self.left_out == "results that stand":
                return And(Not(self.replays(life, c)), anew)
            return If(self.replays(life, c), kept, And(nobody, anew))

        condition = And(
            Not(state.began(life)), forall("Life", lambda other: Implies(state.began(other), self.before(other, life))),
            forall("Rank", lambda r: Implies(Or(is_in(r), is_late(r)), self.rank_of(who(r)) == r)),
            forall("Rank", lambda r: Implies(is_in(r), joined(r))), forall("Rank", lambda r: Implies(is_late(r), late(r))),
            forall("Call", of_call), is_in(self.furthest(life)), Implies(state.any(), state.heard(furthest)),
            Or(state.any(), forall("Rank", is_in)),  # the first one has all
        )  # fmt: skip
        if self.left_out != "how far late ranks are":
            condition = And(condition, forall("Rank Call", no_further))
        on = lambda p: self.was_on(life, p)  # noqa: E731
        return condition, state.but(
            began=put(state.began, [life], True),
            any=lambda: z3.BoolVal(True),
            latest=lambda: life,
            runs=lambda other: other == life,
            within=lambda p: And(state.within(p), Not(on(p))),
            skips=lambda p, c: If(And(self.is_member(life, p), Not(state.heard(p))), self.is_done(life, c), state.skips(p, c)),
            out=lambda p: Or(state.out(p), And(state.heard(p), Not(on(p)))),
        )

    def ends(self, state, life):
        """Packets of this life are refused from here on."""
        return state.runs(life), state.but(runs=put(state.runs, [life], False))

    # ---- a process

    def hears(self, state, process, life):
        """It is told that it is in: what it has asked for last."""
        later = lambda other: And(state.began(other), self.before(life, other), self.was_on(other, process))  # noqa: E731
        condition = And(
            Not(state.within(process)), state.began(life), self.is_member(life, process),
            self.world.forall("Life", lambda other: Not(later(other))),
        )  # fmt: skip
        return condition, state.but(
            heard=put(state.heard, [process], True), life=put(state.life, [process], life), within=put(state.within, [process], True)
        )

    def sends(self, state, process, call):
        life = state.life(process)
        calls = Or(self.replays(life, call), Not(state.skips(process, call) if self.left_out == "results that stand" else self.past(state, process, call)))
        return And(state.within(process), calls), state.but(sent=put(state.sent, [life, call, process], True))

    def arrives(self, state, life, call, process):
        """A contribution reaches the aggregator's lanes, which know the epochs of lives that run."""
        counts, known = life, state.runs(life)
        if self.left_out == "epochs":
            counts, known = state.latest(), And(state.any(), state.runs(state.latest()))
        had = lambda p: Or(state.holds(counts, call, p), p == process)  # noqa: E731
        full = self.world.forall("Rank", lambda r: Implies(self.is_in(counts, r), had(self.who(counts, r))))
        return And(state.sent(life, call, process), known, Not(state.formed(counts, call))), state.but(
            holds=put(state.holds, [counts, call, process], True),
            formed=put(state.formed, [counts, call], True, full),
        )

    def takes(self, state, process, call):
        life = state.life(process)
        return And(state.within(process), state.formed(life, call), Not(state.has(process, call))), state.but(
            has=put(state.has, [process, call], True), result=put(state.result, [process, call], self.given(life, call))
        )

    # ---- what must hold

    def one_set(self, state):
        both = lambda p, q, c: And(self.goes_on(state, p), self.goes_on(state, q), state.has(p, c), state.has(q, c))  # noqa: E731
        return self.world.forall("Process Process Call", lambda p, q, c: Implies(both(p, q, c), state.result(p, c) == state.result(q, c)))

    def what_it_names(self, state):
        exactly = lambda l, c, p: Implies(state.formed(l, c), state.holds(l, c, p) == self.is_member(l, p))  # noqa: E731
        return self.world.forall("Life Call Process", exactly)

    def invariant(self, state):
        forall, before, latest = self.world.forall, self.before, state.latest
        stands = lambda v, c: And(state.began(v), state.formed(v, c), self.given(v, c) == v)  # noqa: E731
        of_latest = lambda p: And(state.any(), self.is_member(latest(), p))  # noqa: E731
        is_late = lambda p: And(self.goes_on(state, p), Not(self.is_in(latest(), self.rank_of(p))))  # noqa: E731
        nobody_sums = lambda c: And(state.skips(self.who(latest(), self.furthest(latest())), c), Not(self.replays(latest(), c)))  # noqa: E731
        return {
            "one set": self.one_set(state),
            "what it names": And(
                self.what_it_names(state),
                forall("Process Call", lambda p, c: Implies(state.has(p, c), stands(state.result(p, c), c))),
            ),
            "a life at a time": forall("Life", lambda l: Implies(state.runs(l), And(state.any(), l == latest()))),
            "left out for ever": forall("Process", lambda p: Implies(state.out(p), And(state.heard(p), Not(self.goes_on(state, p))))),
            "lives": And(
                forall("Life", lambda l: Implies(state.began(l), And(state.any(), Not(before(latest(), l))))),
                Implies(state.any(), And(state.began(latest()), self.is_in(latest(), self.furthest(latest())))),
                forall("Life Rank", lambda l, r: Implies(And(state.began(l), self.is_on(l, r)), self.rank_of(self.who(l, r)) == r)),
                forall("Life Rank", lambda l, r: Implies(And(state.began(l), self.is_in(l, r)), Not(self.is_late(l, r)))),
            ),
            "where a process is": forall(
                "Process",
                lambda p: And(
                    Implies(state.within(p), state.heard(p)),
                    Implies(state.heard(p), And(state.began(state.life(p)), self.is_member(state.life(p), p))),
                    Implies(And(of_latest(p), state.within(p)), state.life(p) == latest()),
                    Implies(is_late(p), And(Not(state.within(p)), state.heard(p))),
                ),
            ),
            "contributions": forall(
                "Life Call Process",
                lambda l, c, p: And(
                    Implies(state.holds(l, c, p), state.sent(l, c, p)),
                    Implies(state.sent(l, c, p), And(state.began(l), state.heard(p), self.is_member(l, p), Or(self.replays(l, c), Not(state.skips(p, c))))),
                ),
            ),
            "sums": And(
                forall("Life Call", lambda l, c: Implies(state.formed(l, c), state.began(l))),
                forall("Life Call Rank", lambda l, c, r: Implies(And(state.formed(l, c), self.is_in(l, r)), state.holds(l, c, self.who(l, r)))),
                forall("Life Call", lambda l, c: Implies(state.began(l), If(self.replays(l, c), stands(self.given(l, c), c), self.given(l, c) == l))),
            ),
            "results": forall(
                "Process Call",
                lambda p, c: Implies(
                    state.has(p, c),
                    And(
                        state.heard(p),
                        Implies(of_latest(p), state.result(p, c) == self.given(latest(), c)),
                        Implies(is_late(p), Or(state.result(p, c) == self.given(latest(), c), nobody_sums(c))),
                    ),
                ),
            ),
        }

    def steps(self, state, action, things):
        if action != "arrives":
            return {}
        life, call, _ = things
        _, after = self.actions[action][1](state, *things)
        gave = lambda l, c: And(after.formed(l, c), Not(state.formed(l, c)))  # noqa: E731
        runs = lambda l, c: Implies(gave(l, c), And(l == state.latest(), state.runs(l)))  # noqa: E731
        return {"no sum of an ended life": self.world.forall("Life Call", runs)}

    # ---- in words

    def words(self, steps, model):
        value = lambda term: model.eval(term, True)  # noqa: E731
        is_true = lambda term: z3.is_true(value(term))  # noqa: E731
        number = lambda term: value(term).as_long()  # noqa: E731
        ranks = self.world.all["Rank"]

        def process(p):
            of_rank = [other for other in self.world.all["Process"] if number(self.rank_of(other)) == number(self.rank_of(p))]
            several = f"process {'ABCDEFGH'[[number(o) for o in of_rank].index(number(p))]} of " if len(of_rank) > 1 else ""
            return f"{several}rank {number(self.rank_of(p))}"

        def named(life):
            return ", ".join(process(self.who(life, r)) for r in ranks if is_true(self.is_in(life, r)))

        for action, things, before, after in steps:
            things = [value(thing) for thing in things]
            if action == "begins":
                late = [process(self.who(things[0], r)) for r in ranks if is_true(self.is_late(things[0], r))]
                yield f"life {number(things[0])} begins: {named(things[0])}" + (f"; late: {', '.join(late)}" if late else "")
            elif action == "ends":
                yield f"life {number(things[0])} ends"
            elif action == "hears":
                yield f"{process(things[0])} hears that it is in life {number(things[1])}"
            elif action == "sends":
                yield f"{process(things[0])} sends its values of call {number(things[1])} in life {number(before.life(things[0]))}"
            elif action == "arrives":
                life, call, p = things
                line = f"the aggregator receives {process(p)}'s packet of call {number(call)}, life {number(life)}"
                for other in self.world.all["Life"]:
                    if is_true(after.formed(other, call)) and not is_true(before.formed(other, call)):
                        held = [process(q) for q in self.world.all["Process"] if is_true(after.holds(other, call, q))]
                        line += f", and has the sum for life {number(other)} ({named(other)}): it holds {', '.join(held)}"
                yield line
            else:
                p, call = things
                yield f"{process(p)} takes the result of call {number(call)}, of life {number(after.result(p, call))}: the sum of {named(after.result(p, call))}"
