"""Judges SwitchML's packets by Algorithm 3 as it was published: docs/judge.md, "The papers' rules"."""
import numpy

import switchml
from capture import endpoint_text
from switchml import CONTRIBUTION, RESULT, RULES, VERSION_BIT, identity, named

PAGE = "docs/judge.md"
RULES = RULES | {
    "published-types": (PAGE, "It has contributions and results of int32, added modulo 2³²"),
    "published-sum": (PAGE, "The vector of the first is stored, others are added to it"),
    "published-result": (PAGE, "With the n-th the sum goes to all ranks"),
    "published-repeat": (PAGE, "where the count is 0, the sum goes to this rank"),
}


class Version:
    """One version of a slot."""

    def __init__(self):
        self.seen, self.count, self.pool, self.of = set(), 0, None, []  # of: whose packets are in the pool
        self.complete = False  # the paper's count of 0, but for that of the beginning


class Switch:
    def __init__(self):
        self.versions, self.ranks, self.last = {}, {}, {}  # (slot, version): Version; sender: endpoint; (sender, slot): its last packet
        self.owed = {}  # (target, slot, version): [(rule, sum, identities)]

    def version(self, slot, number):
        return self.versions.setdefault((slot, number), Version())


class Judge(switchml.Judge):
    def __init__(self, hostile, batch):
        super().__init__(hostile, batch)
        self.rules, self.switches = RULES, {}

    def contribution(self, p, _):
        job = self.jobs.setdefault(p.job, switchml.Job(p.job))
        self.register(job, p)
        self.published(p)
        switch = self.switches.setdefault((p.job, p.target), Switch())
        switch.ranks[p.sender] = p.source
        self.of_rank(switch, p)
        here = switch.version(p.slot, p.flags & VERSION_BIT)
        if p.sender in here.seen:
            if here.complete:
                self.owe(switch, here, p, [p.source], "published-repeat")
            return
        here.seen.add(p.sender)
        switch.version(p.slot, 1 - (p.flags & VERSION_BIT)).seen.discard(p.sender)
        payload = numpy.frombuffer(p.payload, "<i4")
        if here.count == 0:
            here.pool, here.of = payload, []
        elif len(payload) != len(here.pool):
            self.refuse("published-types", f"rank {p.sender} sends {len(payload)} values, where slot {p.slot} holds {len(here.pool)}")
        else:
            here.pool = here.pool + payload
        here.of.append((p.sender, identity(p)))
        here.count, here.complete = here.count + 1, False
        if job.ranks is not None and here.count == job.ranks:
            self.whole(switch, here, p)

    def whole(self, switch, here, p):
        here.count, here.complete = 0, True
        self.owe(switch, here, p, switch.ranks.values(), "published-result")
        if len({sender for sender, _ in here.of}) < len(here.of) or len({of for _, of in here.of}) > 1:
            self.count("sums with a rank's values twice, or of two chunks")

    def owe(self, switch, here, p, targets, rule):
        for target in targets:
            switch.owed.setdefault((target, p.slot, p.flags & VERSION_BIT), []).append((rule, here.pool, {of for _, of in here.of}))

    def published(self, p):
        if p.type not in (CONTRIBUTION, RESULT) or p.values or p.masks:
            self.refuse("published-types", f"type {p.type} with values of kind {p.values:#x}")

    def of_rank(self, switch, p):
        last = switch.last.get((p.sender, p.slot))
        if last is not None and identity(last) < identity(p):
            if (last.flags ^ p.flags) & VERSION_BIT == 0:
                self.refuse("flip", f"rank {p.sender} sends {named(identity(p))} in slot {p.slot} with the version of its last round")
        elif last is not None and identity(last) == identity(p) and last != p:
            self.unbelieved("repeat", f"rank {p.sender} repeats {named(identity(p))} with other bytes")
        if last is None or identity(last) < identity(p):
            switch.last[p.sender, p.slot] = p
            self.count("contributions")

    def result(self, p, _):
        self.published(p)
        job, switch = self.jobs.get(p.job), self.switches.get((p.job, p.source))
        if switch is None:
            self.unbelieved("result-to", f"{endpoint_text(p.source)} is no switch of this job")
        if job.ranks is None:
            self.count_ranks(job, p.rank_epoch)
            if job.ranks is None:
                self.refuse("published-result", "a result before all ranks' contributions")
            for (slot, number), here in switch.versions.items():  # with the first result it is known how many ranks there are
                if here.count == job.ranks:
                    self.whole(switch, here, p._replace(slot=slot, flags=number))
        owed = switch.owed.get((p.target, p.slot, p.flags & VERSION_BIT))
        if not owed:
            self.refuse("published-result", f"{endpoint_text(p.target)} gets a result of slot {p.slot} version {p.flags & 1}, and must get none now")
        _, total, identities = owed.pop(0)
        found = numpy.frombuffer(p.payload, "<i4")
        if identity(p) not in identities:
            self.refuse("published-sum", f"a result of {named(identity(p))}, where the slot holds {', '.join(named(i) for i in identities)}")
        if len(found) != len(total) or (found != total).any():
            at = int(numpy.flatnonzero(found != total)[0]) if len(found) == len(total) else 0
            self.refuse("published-sum", f"element {at} of slot {p.slot} version {p.flags & 1} is {found[at]}, and the slot holds {total[at]}")
        self.count("results")

    def sum_part(self, p, *_):
        self.refuse("published-types", "a part of a sum")

    def refused(self, *_):
        self.refuse("published-types", "a packet of a type that the published switch does not have")

    waiting = missing = mismatch = unknown = refused
