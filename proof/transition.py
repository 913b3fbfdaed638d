"""Transition systems over sorts without bound, for z3: an induction proves what always holds, a bounded search finds what goes wrong.

A state is a set of functions. What an action does is said once, as functions made of the old ones, and serves both: the induction asks
whether one step from any state with the invariant leads to one without it, with as many ranks, slots, rounds and packets as there may
be; the search takes steps from the first state, with as many of each as World is given.
"""

import itertools

import z3

PATIENCE = 60_000_000  # of the solver with one question, in its own steps; what is proved here takes a tenth of that


class World:
    """Sorts, functions and quantifiers. Without sizes a sort has any number of things; else each of them has a name, a function is a table,
    and numbers are small."""

    def __init__(self, **sizes):
        self.sizes = sizes
        self.within = []  # where there are sizes: that each unknown thing is one of them
        self.sorts = {"Bool": z3.BoolSort(), "Int": z3.BitVecSort(4) if sizes else z3.IntSort()}
        self.all = {"Bool": [z3.BoolVal(False), z3.BoolVal(True)]}
        for name, size in sizes.items():
            self.sorts[name] = z3.BitVecSort(max(1, (size - 1).bit_length()))
            self.all[name] = [z3.BitVecVal(i, self.sorts[name]) for i in range(size)]

    @property
    def bounded(self):
        return bool(self.sizes)

    def sort(self, name):
        if name not in self.sorts:
            self.sorts[name] = z3.DeclareSort(name)
        return self.sorts[name]

    def function(self, name, *sorts):
        if not self.bounded:
            return z3.Function(name, *map(self.sort, sorts))
        table = {each: self.constant(sorts[-1]) for each in itertools.product(*(range(len(self.all[sort])) for sort in sorts[:-1]))}

        def look_up(*given, known=()):
            if len(known) == len(given):
                return table[known]
            things = self.all[sorts[len(known)]]
            for number, thing in enumerate(things):
                if thing.eq(given[len(known)]):
                    return look_up(*given, known=(*known, number))
            value = look_up(*given, known=(*known, 0))
            for number, thing in list(enumerate(things))[1:]:
                value = z3.If(given[len(known)] == thing, look_up(*given, known=(*known, number)), value)
            return value

        return look_up

    def order(self, sort):
        """A total order of a sort's things, and its axioms."""
        if self.bounded:
            things = self.all[sort]
            return lambda a, b: z3.Or([z3.And(a == things[i], b == things[j]) for j in range(len(things)) for i in range(j)]), []
        before = self.function("before", sort, sort, "Bool")
        return before, [
            self.forall(sort, lambda a: z3.Not(before(a, a))),
            self.forall(f"{sort} {sort} {sort}", lambda a, b, c: z3.Implies(z3.And(before(a, b), before(b, c)), before(a, c))),
            self.forall(f"{sort} {sort}", lambda a, b: z3.Or(before(a, b), a == b, before(b, a))),
        ]

    def number(self, value):
        return z3.BitVecVal(value, 4) if self.bounded else z3.IntVal(value)

    def constant(self, sort):
        made = z3.FreshConst(self.sort(sort), sort.lower())
        if sort in self.sizes:
            self.within.append(z3.Or([made == thing for thing in self.all[sort]]))
        return made

    def everything(self, sorts):
        return itertools.product(*(self.all[sort] for sort in sorts))

    def forall(self, sorts, holds):
        """`sorts`: names, apart by spaces; `holds`: of as many arguments."""
        sorts = sorts.split()
        if self.bounded:
            return z3.And([holds(*each) for each in self.everything(sorts)])
        variables = [self.constant(sort) for sort in sorts]
        return z3.ForAll(variables, holds(*variables))

    def exists(self, sorts, holds):
        return z3.Not(self.forall(sorts, lambda *things: z3.Not(holds(*things))))


class State:
    def __init__(self, **functions):
        self.__dict__.update(functions)

    def but(self, **changed):
        return State(**{**self.__dict__, **changed})


def put(function, at, value, when=True):
    """The function, with another value in one place."""

    def changed(*arguments):
        here = z3.And(when, *(a == b for a, b in zip(arguments, at, strict=True)))
        return z3.If(here, value, function(*arguments))

    return changed


class System:
    """world, axioms (a list of what holds of the functions that never change), state (name: sorts of a function), initial(state), actions (name:
    (sorts, function of the state and of one thing of each sort, which gives the step's condition and the state after it)), and
    invariant(state) (name: formula); steps(state, name, things): what a step itself must hold to (name: formula)."""

    def symbols(self, suffix):
        return State(**{name: self.world.function(name + suffix, *sorts) for name, sorts in self.state.items()})

    def steps(self, state, action, things):
        return {}


def not_proved(system, most=1000, patience=PATIENCE):
    """What does not follow, as (clause, where), of: the first state has the invariant, and every action keeps it. Empty: it is proved. `most`:
    so many are enough to know."""
    state, open_ended = system.symbols(""), []
    invariant = system.invariant(state)

    def follows(clause, where, given, formula):
        if len(open_ended) >= most:
            return
        asked = z3.Solver()
        asked.set("rlimit", patience)
        asked.add(*system.axioms, *given, z3.Not(formula))
        if asked.check() != z3.unsat:
            open_ended.append((clause, where))

    for clause, formula in invariant.items():
        follows(clause, "at first", system.initial(state), formula)
    for action, (sorts, does) in system.actions.items():
        things = [system.world.constant(sort) for sort in sorts.split()]
        condition, after = does(state, *things)
        given = [*invariant.values(), condition]
        for clause, formula in system.steps(state, action, things).items():
            follows(clause, action, given, formula)
            given.append(formula)  # what is not proved is said, so the next may rest on it
        for clause, formula in system.invariant(after).items():
            follows(clause, action, given, formula)
    return open_ended


def search(system, bad, most, least=1):
    """The shortest way, of `least` to `most` steps, to a state that is `bad`: [(action, its things, the states before and after
    it)], and a model that gives them values; or None."""
    world, asked = system.world, z3.SolverFor("QF_FD")
    state, way = system.symbols("_0"), []
    asked.add(*system.axioms, *system.initial(state))
    for depth in range(1, most + 1):
        following = system.symbols(f"_{depth}")
        chosen, cases = z3.BitVec(f"action_{depth}", 4), []
        for number, (action, (sorts, does)) in enumerate(system.actions.items()):
            things = [world.constant(sort) for sort in sorts.split()]
            condition, after = does(state, *things)
            asked.add(z3.Implies(chosen == number, condition))
            cases.append((action, things, after))
        asked.add(z3.Or([chosen == number for number in range(len(cases))]))
        for name, sorts in system.state.items():
            for arguments in world.everything(sorts[:-1]):
                value = getattr(state, name)(*arguments)
                for number, (_, _, after) in enumerate(cases):
                    value = z3.If(chosen == number, getattr(after, name)(*arguments), value)
                asked.add(getattr(following, name)(*arguments) == value)
        asked.add(*world.within)
        world.within.clear()
        way.append((chosen, cases, state, following))
        state = following
        if depth < least:
            continue
        asked.push()
        asked.add(bad(state))
        if asked.check() == z3.sat:
            model = asked.model()
            steps = []
            for chosen, cases, before, after in way:
                action, things, _ = cases[model.eval(chosen, True).as_long()]
                steps.append((action, [model.eval(thing, True) for thing in things], before, after))
            return steps, model
        asked.pop()
    return None
