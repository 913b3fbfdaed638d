"""How often packets may be sent: what the documents bound, from time stamps."""


class Limits:
    """At most `most` of one kind in `interval` seconds. Packets may have waited for `batch` before they left, and then leave together."""

    def __init__(self, judge, batch):
        self.judge, self.batch, self.left = judge, batch, {}  # left: of a kind: (when, how many more may leave)

    def count(self, kind, interval, rule, what, most=1):
        now, full = self.judge.now.time, 2 * most + most * self.batch / interval  # twice, as an interval's end and the next one's beginning may be near
        before, left = self.left.get(kind, (now, full))
        left = min(full, left + most * (now - before) / interval)
        if left < 0.9:  # clocks differ
            self.judge.refuse(rule, f"{what} again after {(now - before) * 1000:.3f} ms")
        self.left[kind] = now, left - 1


class Repeats:
    """Of one packet, while the rank hears nothing. Time-outs are 1 ms at least and double, up to 250 ms, so n of them take as long as the
    shortest ones do. Up to `spare` repeats more are probes."""

    LEAST, MOST = 0.001, 0.25

    def __init__(self, judge, rule, batch, spare=5):
        self.judge, self.rule, self.batch, self.spare = judge, rule, batch, spare
        self.sent, self.heard = {}, {}  # (rank, packet): [since when, how often]; a rank, or it and a packet: when there was news of it

    def first(self, rank, packet):
        self.sent[rank, packet] = [self.judge.now.time, 0]

    def news(self, rank, packet=None):
        self.heard[rank, packet] = self.judge.now.time

    def again(self, rank, packet, what):
        now = self.judge.now.time
        known = self.sent.setdefault((rank, packet), [now, 0])
        if max(self.heard.get((rank, None), 0), self.heard.get((rank, packet), 0)) >= known[0]:
            known[:] = now, 0
            return
        known[1] += 1
        doubled = max(0, min(known[1] - self.spare, 8))
        shortest = sum(self.LEAST * 2**n for n in range(doubled)) + self.MOST * max(0, known[1] - self.spare - doubled)
        if now - known[0] + self.batch < shortest:
            self.judge.refuse(self.rule, f"{what} is repeated for the {known[1]}th time after {(now - known[0]) * 1000:.3f} ms without an answer")
