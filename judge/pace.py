"""How often packets may be sent: what the documents bound, from time stamps."""


class Limits:
    """At most once in `interval` seconds of each kind; packets may have waited for `batch` before they left."""

    def __init__(self, judge, batch):
        self.judge, self.batch, self.first = judge, batch, {}

    def count(self, key, interval, rule, what, most=1):
        """`most` in one interval."""
        now = self.judge.now.time
        began, number = self.first.get(key, (now, 0))
        allowed = most * ((now - began + self.batch) / interval + 1)
        if number >= allowed + 1e-6 * most and number >= most:
            self.judge.refuse(rule, f"{what} {number + 1} times in {(now - began) * 1000:.3f} ms")
        self.first[key] = (now, 1) if now - began > 100 * interval else (began, number + 1)


class Repeats:
    """Of one packet, while the rank hears nothing. Time-outs are 1 ms at least and double, up to 250 ms, so n of them take as long as the
    shortest ones do. Some more are no time-outs: `spare`."""

    LEAST, MOST = 0.001, 0.25

    def __init__(self, judge, rule, batch, spare=5):
        self.judge, self.rule, self.batch, self.spare = judge, rule, batch, spare
        self.sent, self.heard = {}, {}  # of a packet: [since when, how often]; of a rank: when it last heard something

    def first(self, key):
        self.sent[key] = [self.judge.now.time, 0]

    def news(self, rank):
        self.heard[rank] = self.judge.now.time

    def again(self, key, what):
        now = self.judge.now.time
        known = self.sent.setdefault(key, [now, 0])
        if self.heard.get(key[:2], 0) >= known[0]:  # whatever it waited for before
            known[:] = now, 0
            return
        known[1] += 1
        doubled = min(known[1] - self.spare, 8)
        shortest = sum(min(self.LEAST * 2**n, self.MOST) for n in range(doubled)) + self.MOST * (known[1] - self.spare - doubled)
        if known[1] > self.spare and now - known[0] + self.batch < shortest:
            self.judge.refuse(self.rule, f"{what} is repeated for the {known[1]}th time after {(now - known[0]) * 1000:.3f} ms without an answer")
