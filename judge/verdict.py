"""What every protocol's judge says: a refusal names a rule, and a rule is a sentence of the documents."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Refused(Exception):
    def __init__(self, rule, text):
        super().__init__(text)
        self.rule = rule


class Passed(Exception):
    """Nobody believes this packet, and in a hostile network that is all."""


class Verdicts:
    """`rules`: {name: (document, its words)}. `hostile`: strangers and broken links may add packets that no receiver takes."""

    def __init__(self, rules, hostile):
        self.rules, self.hostile, self.counts = rules, hostile, {}
        self.now, self.suspects = None, []  # the datagram; (datagram, refusal, whether it stands)

    def count(self, what, by=1):
        self.counts[what] = self.counts.get(what, 0) + by

    def refuse(self, rule, text):
        raise Refused(rule, text)

    def suspect(self, stands, rule, text):
        """A violation unless what comes later excuses it."""
        self.suspects.append((self.now, Refused(rule, text), stands))

    def violation(self):
        return next(((d, refused) for d, refused, stands in self.suspects if stands()), None)

    def unbelieved(self, rule, text):
        """Of what a receiver drops: a violation by who sent it, unless strangers may have."""
        if not self.hostile:
            raise Refused(rule, text)
        self.count("packets that nobody believes")
        raise Passed


def place(document, words):
    """(number, text) of the line in which a rule begins; a rule may go on in the next line."""
    lines = (ROOT / document).read_text().splitlines()
    for at, line in enumerate(lines):
        following = " ".join([line] + [after.strip() for after in lines[at + 1:at + 2]])
        begin = following.find(words)
        if 0 <= begin < len(line):
            return at + 1, line.strip()
    raise LookupError(f"{document} does not say '{words}'")
