"""Interleaved runs of several entrants at one place, and the ratios of what two of them took in the same round.

A ratio is of medians within one round; what a row shows is the median of the rounds' ratios, with a bootstrap interval.
"""
import dataclasses
import statistics

import ratios
from contenders import Failed, Task

MOST_FAILURES = 3  # of an entrant: then it takes part no more


@dataclasses.dataclass(frozen=True)
class Entrant:
    name: str
    who: object  # a contender
    task: Task
    loss: float = 0.0  # percent, of each link, each way
    lossy: str = None  # the only host whose packets are lost; None: all links lose, each way
    tcp: str = "cubic"
    every: int = 1  # takes part in every so many rounds: what no goal names need not be shown as exactly


class Runs:
    """All that the entrants of one group did: by entrant and length a list with an entry for each round."""

    def __init__(self, entrants):
        self.entrants = entrants
        self.tat = {(each.name, elements): [] for each in entrants for elements in each.task.elements}
        self.p99, self.cpu, self.facts = {key: [] for key in self.tat}, {key: [] for key in self.tat}, {}
        self.idle = {each.name: [] for each in entrants}  # shares of the machine, where the place tells
        self.discarded = {each.name: 0 for each in entrants}
        self.failed = {each.name: 0 for each in entrants}
        self.wrong = 0

    def add(self, entrant, results, disturbed, idle=None):
        """results: by length, or None for a round without it."""
        self.discarded[entrant.name] += disturbed
        if idle is not None and results is not None:
            self.idle[entrant.name].append(idle)
        for elements in entrant.task.elements:
            key = entrant.name, elements
            counts = results is not None and not disturbed
            if counts and results[elements].cpu_per_worker is not None:
                self.cpu[key].append(results[elements].cpu_per_worker)
            self.tat[key].append(results[elements].tat if counts else None)
            self.p99[key].append(results[elements].p99 if counts else None)
            if results is not None:
                self.wrong += results[elements].wrong
                self.facts[key] = results[elements]

    def complete(self, name):
        """How many rounds in which an entrant had a run that counts."""
        return min(sum(each is not None for each in times) for (who, _), times in self.tat.items() if who == name)

    def ratio(self, over, under):
        return ratios.summary(self.tat[over], self.tat[under])

    def export(self):
        """What the JSON keeps of it: an object for each entrant and length."""
        for entrant in self.entrants:
            for elements in entrant.task.elements:
                key = entrant.name, elements
                times = [each for each in self.tat[key] if each is not None]
                if not times:  # it failed, or the machine was never idle
                    continue
                facts, tails = self.facts[key], [each for each in self.p99[key] if each is not None]
                yield key, {"who": entrant.who.name, "workers": entrant.task.workers, "elements": elements, "loss": entrant.loss, "lossy": entrant.lossy,
                            "tcp": entrant.tcp, "tat_seconds": statistics.median(times),
                            "tat_of_rounds": [None if each is None else float(f"{each:.6g}") for each in self.tat[key]], "p99_seconds": statistics.median(tails),
                            "runs": len(times), "discarded": self.discarded[entrant.name],
                            "failed": self.failed[entrant.name], "aggregator": facts.aggregator,
                            "idle": round(statistics.median(self.idle[entrant.name]), 3) if self.idle[entrant.name] else None,
                            "bytes_per_worker": facts.bytes_per_worker, "cpu_seconds": statistics.median(self.cpu[key]) if self.cpu[key] else None}


def race(place, entrants, pairs, keep_all, say):
    """Rounds until every entrant that is in each has `pairs` runs that count, or twice as many rounds have passed.

    keep_all: runs on a busy machine count too (a quick look, which shows nothing)."""
    runs = Runs(entrants)
    for number in range(2 * pairs):
        turn = number % len(entrants)
        for entrant in entrants[turn:] + entrants[:turn]:  # nobody always comes first
            if number % entrant.every != 0 or runs.failed[entrant.name] >= MOST_FAILURES:
                runs.add(entrant, None, False)
                continue
            place.set(entrant.loss, entrant.tcp, entrant.lossy)
            try:
                with place.watch() as watched:
                    results = entrant.who.run(place, entrant.task)
            except Failed as failure:
                say(f"{entrant.name} failed: {failure}")
                runs.failed[entrant.name] += 1
                runs.add(entrant, None, False)
                continue
            tells = not (getattr(entrant.who, "spins", False) and place.shaped)  # an idle share of what never sleeps tells nothing
            runs.add(entrant, results, not keep_all and tells and place.disturbed(watched), place.idle(watched) if tells else None)
        # Who fails again and again is waited for no longer.
        done = min((runs.complete(each.name) for each in entrants if each.every == 1 and runs.failed[each.name] < MOST_FAILURES), default=pairs)
        say(f"round {number + 1}: {done} of {pairs} pairs")
        if done >= pairs:
            break
    return runs
