#!/usr/bin/python3
"""What the papers publish, as an implementation to be set up: it fails where the pages say that the published rules go wrong.

usage: conformance/run --setup "conformance/published.py [--compare-chunks]" --protocol switchml --role switch
       conformance/run --setup conformance/published.py --protocol netreduce

SwitchML: Algorithm 3. --compare-chunks: and a contribution of another chunk than the slot's first one is dropped.
NetReduce: section 3.2: one entry for each connection in the lookup table, of its newest message, and aggregators that are freed one
window after. Packets have netsum's formats: it is rules that are compared.
"""
import json
import select
import socket
import sys

from formats import decode_roce, decode_switchml, encode_roce, encode_switchml, fold, seal_of


class Algorithm3:
    """SwitchML, Algorithm 3; lines in comments."""

    def __init__(self, job, compare_chunks):
        self.job, self.n, self.compare_chunks = job, len(job["ranks"]), compare_chunks
        self.seen = [[[False] * self.n for _ in range(job["slots"])] for _ in range(2)]
        self.count, self.pool, self.first = ([[nothing] * job["slots"] for _ in range(2)] for nothing in (0, None, None))

    def on_packet(self, data, _source):
        p = decode_switchml(data)
        version, slot, worker = p["version"], p["slot"], p["sender"]
        count, everybody = self.count[version], range(self.n)
        if not self.seen[version][slot][worker]:  # l. 5
            if self.compare_chunks and count[slot] and self.first[version][slot] != p["chunk"]:
                return
            self.seen[version][slot][worker] = True  # l. 6
            self.seen[1 - version][slot][worker] = False  # l. 7
            count[slot] = (count[slot] + 1) % self.n  # l. 8
            if count[slot] == 1 % self.n:  # l. 9 to 12
                self.pool[version][slot], self.first[version][slot] = p, p["chunk"]
            else:
                kept = self.pool[version][slot]
                self.pool[version][slot] = kept | {"values": [a + b for a, b in zip(kept["values"], p["values"])]}
            if count[slot] == 0:  # l. 13 to 15
                yield from self.result(version, slot, everybody)
        elif count[slot] == 0:  # l. 19 to 21
            yield from self.result(version, slot, [worker])

    def result(self, version, slot, workers):
        p = self.pool[version][slot]
        data = encode_switchml(p | {"type": "result", "sender": 0, "rank_epoch": fold(self.job["rank_epochs"])})
        return [(tuple(self.job["ranks"][worker]), data) for worker in workers]


class Accelerator:
    """NetReduce, section 3.2."""

    def __init__(self, job, _):
        self.job, self.n, self.window = job, len(job["ranks"]), job["slots"]
        self.table = {}  # of each connection: its newest message, with the first packet's PSN and header
        self.owner, self.buffers = {}, {}  # of an aggregator: its message; {rank: a packet}

    def on_packet(self, data, source):
        p = decode_roce(data)
        if p["type"] != "gradient":
            return
        if p["first"]:
            self.table[p["queue_pair"]] = p
        first = self.table.get(p["queue_pair"])
        if first is None:
            return
        place = (p["psn"] - first["psn"] + (1 << 23)) % (1 << 24) - (1 << 23)
        if not 0 <= place < first["length"]:
            return  # of an older message, whose entry is gone
        message, rank = first["message"], first["rank"]
        if p["first"]:  # what is one window away is freed: (MsgID + N) mod 2N
            self.free((message + self.window) % (2 * self.window), first["length"])
        aggregator = message % (2 * self.window) * self.job["message_packets"] + place
        if self.owner.get(aggregator) != message:
            self.owner[aggregator], self.buffers[aggregator] = message, {}
        packets = self.buffers[aggregator]
        whole = len(packets) == self.n
        repeat = rank in packets
        packets[rank] = packets.get(rank, p | {"rank": rank, "message": message, "packet": place, "length": first["length"]})
        if whole and repeat:
            yield self.result(packets, rank)
        elif not whole and len(packets) == self.n:
            for each in packets:
                yield self.result(packets, each)

    def free(self, message, length):
        for place in range(length):
            self.owner.pop(message * self.job["message_packets"] + place, None)

    def result(self, packets, rank):
        p = packets[rank]
        values = [sum(each) for each in zip(*(other["values"] for other in packets.values()))]
        seal = seal_of(self.job["incarnation"], self.job["ring"], p["message"], p["packet"], self.n)
        fields = {"ring": self.job["ring"], "signature": 0x4e520000, "mtu": 4 * self.job["packet_elements"]}
        return tuple(self.job["ranks"][(rank + 1) % self.n]), encode_roce(fields | p | {"values": values, "seal": seal})


def main():
    job = json.loads(sys.stdin.readline())
    rules = {"switchml": Algorithm3, "netreduce": Accelerator}[job["protocol"]](job, "--compare-chunks" in sys.argv)
    here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    here.bind(("127.0.0.1", 0))
    print(json.dumps({"address": "127.0.0.1", "port": here.getsockname()[1]}), flush=True)
    while True:
        ready, _, _ = select.select([here, sys.stdin], [], [])
        if here not in ready:
            return
        data, source = here.recvfrom(65536)
        for target, answer in rules.on_packet(data, source) or ():
            here.sendto(answer, target)


if __name__ == "__main__":
    main()
