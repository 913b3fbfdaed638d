"""The rows of scripts/bench over all processors that they were measured on: the range, and whether a goal is reached on each."""
import string

import ratios
import results

PEERS = ("Gloo", "Open MPI")


def ratio_text(ratio):
    if ratio is None:
        return "no pair"
    return f"{ratio['median']:.3g} ({ratio['low']:.3g} to {ratio['high']:.3g})"


def verdict(row, goal_of):
    """What a row as measured on one processor says of the goal that goal_of has."""
    if row["quick"]:
        return "quick: shows nothing"
    return "" if goal_of["goal"] is None else ratios.verdict(row["ratio"], goal_of["goal"], goal_of["at_least"])


def peer_wins(row):
    """Whether a peer's time over ours is surely below 1."""
    return (row["ratio"] and not row["quick"] and row["over"].startswith(PEERS) and not row["under"].startswith(PEERS)
            and row["ratio"]["high"] < 1)


def lettered(found):
    """A letter for each processor, and what was measured there."""
    return dict(zip(string.ascii_uppercase, (found["processors"][name] for name in sorted(found["processors"]))))


class Row:
    """A row as measured on some of the processors seen. Its words and its goal are those of the last measurement."""

    def __init__(self, each, seen):
        """each: {letter: the row as measured there}; seen: the letters of all processors."""
        self.each, self.seen = each, seen
        self.newest = max(each.values(), key=lambda row: row["date"])
        self.what, self.suite, self.goal, self.then = (self.newest[key] for key in ("what", "suite", "goal", "then"))

    def on(self, text, letters):
        """`text`, and where that holds if it does not hold on all processors."""
        return text if not text or letters == self.seen else f"{text} on {', '.join(letters)}"

    def ratio(self):
        """The one ratio, or the smallest and the largest."""
        known = sorted((letter for letter in self.each if self.each[letter]["ratio"]), key=lambda letter: self.each[letter]["ratio"]["median"])
        ends = known[:1] + known[1:][-1:]
        return " to ".join(self.on(ratio_text(self.each[letter]["ratio"]), [letter]) for letter in ends) or "no pair"

    def counts(self, count):
        """That number of each processor."""
        return ", ".join(str(count(row)) for row in self.each.values())

    def goal_text(self):
        return "–" if self.goal is None else f"{'≥' if self.newest['at_least'] else '≤'} {self.goal:g}"

    def verdict(self):
        """A goal is reached if it is on every processor seen: else this names those where it is, and those where it is not."""
        says = {}
        for letter, row in self.each.items():
            says.setdefault(verdict(row, self.newest), []).append(letter)
        return "; ".join(self.on(text, letters) for text, letters in says.items() if text)

    def missed(self):
        """Whether the goal is measured somewhere, and not shown to be reached there."""
        return any(verdict(row, self.newest) in ("not reached", "not shown") for row in self.each.values())

    def peer_wins(self):
        """What to say of a peer that wins, or nothing."""
        where = [letter for letter, row in self.each.items() if peer_wins(row)]
        return self.on("the peer wins", where) if where else ""


def rows(found, suite=None):
    """In order of their names."""
    letters = lettered(found)
    each = {}
    for letter, part in letters.items():
        for name, row in part["rows"].items():
            if suite in (None, row["suite"]):
                each.setdefault(name, {})[letter] = row
    return [Row(measured, list(letters)) for _, measured in sorted(each.items())]


def names(found):
    """{letter: what the processor is}"""
    return {letter: results.name_of(part["processor"]) for letter, part in lettered(found).items()}
