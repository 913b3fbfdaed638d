"""SwitchML's Algorithms 3 and 4 alone, over a star: what a lost packet costs where a time-out of fixed length is all that finds it (§6.3), in
place of netsum's rules. No bits, no hosts' time: when packets are sent, lost and answered.
"""
import collections
import heapq
import random

DELAY = 1e-6  # of a link
HEADERS = 76  # with 256 elements the paper's packets are of 1,100 bytes (§4.4)


def all_reduce(workers, rate, loss, slots, elements, packet_elements=256, timeout=1e-3, seed=1, delay=DELAY, lossy=None):
    """Seconds, and when worker 0 sent its packets. `lossy`: the workers whose links lose; all."""
    draw = random.Random(seed).random
    lost = lambda worker: (lossy is None or worker in lossy) and draw() < loss  # noqa: E731
    packet = 8 * (4 * packet_elements + HEADERS) / (rate * 1e9)
    chunks = -(-elements // packet_elements)
    up, down = [0.0] * workers, [0.0] * workers  # when each link is free
    phase = [[slot] * workers for slot in range(slots)]  # the chunk that a worker has in a slot
    seen = [set() for _ in range(chunks)]
    sent, end = [], 0.0
    number = iter(range(1 << 62))
    timers = collections.deque()  # all as long, so in order
    events = [(0.0, next(number), "send", worker, slot) for slot in range(min(slots, chunks)) for worker in range(workers)]

    def link(free, worker, now):
        free[worker] = max(free[worker], now) + packet
        return free[worker] + delay

    def answer(now, worker, chunk):
        arrives = link(down, worker, now)
        if not lost(worker):
            heapq.heappush(events, (arrives, next(number), "result", worker, chunk))

    heapq.heapify(events)
    while events or timers:
        now, _, what, worker, chunk = timers.popleft() if timers and (not events or timers[0] < events[0]) else heapq.heappop(events)
        slot = chunk % slots
        if what == "result":
            if phase[slot][worker] != chunk:
                continue
            end = max(end, now)
            phase[slot][worker] = chunk = chunk + slots
            if chunk < chunks:
                heapq.heappush(events, (now, next(number), "send", worker, chunk))
        elif what == "send":  # and again, as long as it has no result
            if phase[slot][worker] != chunk:
                continue
            if worker == 0:
                sent.append(now)
            timers.append((now + timeout, next(number), "send", worker, chunk))
            arrives = link(up, worker, now)
            if not lost(worker):
                heapq.heappush(events, (arrives, next(number), "arrive", worker, chunk))
        elif worker in seen[chunk]:
            if len(seen[chunk]) == workers:
                answer(now, worker, chunk)
        else:
            seen[chunk].add(worker)
            if len(seen[chunk]) == workers:
                for each in range(workers):
                    answer(now, each, chunk)
    return end, sent
