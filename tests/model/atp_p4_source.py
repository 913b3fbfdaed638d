#!/usr/bin/python3
"""What control Sum of p4/netsum_atp_v1model.p4 says is the rule of a chip's slots (src/protocol/atp/chip_rule.h): it is interpreted as
p4_source.py does, on random packets, next to that header as a C compiler translates it.

usage: atp_p4_source.py P4_FOLDER CHIP_RULE
"""
import ctypes
import os
import random
import struct
import subprocess
import sys
import tempfile

from p4_source import WORDS, Program

RANKS, WINDOW, SLOTS, JOB, NUMBER, FOLDED = 3, 4, 2, 5, 9, 0xabcdef01
OTHERS, OURS, TAKEN = 0, 1, 2
CALLS = """
uint32_t enter(struct AtpChipOwner* o, uint32_t h, uint32_t l, uint32_t w) { return atp_chip_enter(o, h, l, w); }
uint32_t leave(struct AtpChipOwner* o, uint32_t h, uint32_t l) { return atp_chip_leave(o, h, l); }
bool agrees(uint32_t* m, uint32_t f, uint32_t s) { return atp_chip_agrees(m, f, s); }
uint32_t mark(uint32_t* b, uint32_t f, uint32_t bit) { return atp_chip_mark(b, f, bit); }
bool seen(uint32_t before, uint32_t bit) { return atp_chip_seen(before, bit); }
uint32_t high(uint32_t job, uint32_t upper) { return atp_chip_high(job, upper); }
uint32_t everyone(uint32_t n) { return atp_chip_everyone(n); }
"""


class Owner(ctypes.Structure):
    _fields_ = [("high", ctypes.c_uint32), ("low", ctypes.c_uint32)]


def rule_in_c(header, folder):
    source, library = os.path.join(folder, "rule.c"), os.path.join(folder, "rule.so")
    with open(source, "w", encoding="utf-8") as file:
        file.write(f'#include "{header}"\n{CALLS}')
    root = os.path.dirname(os.path.dirname(os.path.dirname(header)))
    subprocess.run(["cc", "-shared", "-fPIC", "-I", root, "-o", library, source], check=True)
    return ctypes.CDLL(library)


class Slot:
    def __init__(self, rule):
        self.rule, self.owner, self.signature, self.bitmap = rule, Owner(), ctypes.c_uint32(), ctypes.c_uint32()
        self.values, self.sticks, self.exponent = [], 0, 0

    def from_above(self, low):
        self.rule.leave(ctypes.byref(self.owner), self.rule.high(NUMBER, 0), low)

    def gradient(self, low, rank, signature, flags, exponent, values):
        """The outcome, and of a sum what leaves."""
        resend, high, bit = flags & 1, self.rule.high(NUMBER, 0), 1 << rank
        owner = ctypes.byref(self.owner)
        found = self.rule.leave(owner, high, low) if resend else self.rule.enter(owner, high, low, WINDOW)
        if found == OTHERS:
            return ("resend" if resend else "collision"), None
        if not self.rule.agrees(ctypes.byref(self.signature), found, signature) & 0xff:
            return "mismatch", None
        before = self.rule.mark(ctypes.byref(self.bitmap), found, bit)
        adds = not self.rule.seen(before, bit) & 0xff
        if before == 0:
            self.values, self.sticks, self.exponent = [0] * len(values), 0, 0
        if adds:
            self.values = [(one + other) & 0xffffffff for one, other in zip(self.values, values)]
        self.sticks |= flags & 0x0a
        self.exponent = max(self.exponent, exponent)
        if resend or (adds and before | bit == self.rule.everyone(RANKS)):
            return "sum", (self.values, before | bit, self.sticks, self.exponent)
        return ("added" if adds else "silent"), None


def swapped(value, size="I"):
    return struct.unpack("<" + size, struct.pack(">" + size, value))[0]


def compare(folder, header, packets, rng):
    program = Program(folder, "netsum_atp_v1model.p4", (), ("common/headers.p4",), {"atp": "atp_t", "directions": "directions_t", "low": "half_t", "high": "half_t"})
    names = {value: name.lower()[8:] for name, (value, _) in program.constants.items() if name.startswith("OUTCOME_")}
    seen = {}
    with tempfile.TemporaryDirectory() as made:
        rule = rule_in_c(header, made)
        slots = [Slot(rule) for _ in range(SLOTS)]
        front = 0
        for _ in range(packets):
            front += rng.random() < 0.03
            low, rank = max(0, front + rng.choice([0, 0, 0, 1, 2, 5, -1, -4, -5])), rng.randrange(RANKS)
            same = random.Random(repr((low, rank)))
            values = [same.getrandbits(32) for _ in range(2 * WORDS)]
            flags, exponent = same.choice([0, 0, 2, 8]) | rng.choice([0, 0, 0, 0, 1, 0x20]), same.randrange(255)
            signature = low // 3 + (rng.random() < 0.02)
            fields = dict.fromkeys(program.widths, 0)
            fields.update({"meta.member.job": JOB, "meta.member.number": NUMBER, "meta.member.bit_of": 1 << rank,
                           "meta.member.everyone": (1 << RANKS) - 1, "meta.member.mask": SLOTS - 1, "meta.member.window": WINDOW,
                           "meta.member.folded_epochs": FOLDED, "meta.member.next_level": 1, "meta.member.group": 7, "meta.member.parent_port": 3,
                           "headers.atp.packet_type": 1, "headers.atp.flags": flags, "headers.atp.sequence": swapped(low, "Q"),
                           "headers.atp.slot": swapped(low % SLOTS), "headers.atp.signature": swapped(signature), "headers.atp.exponent": exponent})
            halves = [(f"headers.{half}.w{word:02}", at + word) for half, at in (("low", 0), ("high", WORDS)) for word in range(WORDS)]
            fields.update({name: swapped(values[at]) for name, at in halves})
            slot, sent = slots[low % SLOTS], None
            if rng.random() < 0.1:
                outcome, fields["headers.atp.packet_type"] = "from_above", 2
                slot.from_above(low)
            elif flags & 0x20:
                outcome = "direct"
            else:
                outcome, sent = slot.gradient(low, rank, signature, flags, exponent, values)
            counted = [names[each - 16 * JOB] for each in program.run(fields)]
            if counted != [outcome]:
                raise SystemExit(f"atp_p4_source: a packet's outcome is {counted}, not {outcome}")
            seen[outcome] = seen.get(outcome, 0) + 1
            if sent:
                is_right = sent == ([swapped(fields[name]) for name, _ in halves], swapped(fields["headers.directions.bitmap"]),
                                    fields["headers.atp.flags"] & 0x0a, fields["headers.atp.exponent"])
                is_right = is_right and fields["headers.atp.rank_epoch"] == FOLDED and fields["headers.atp.level"] == 1
            elif outcome in ("added", "silent"):
                is_right = program.dropped
            elif outcome == "from_above":
                is_right = fields["standard.mcast_grp"] == 7
            else:
                marked = {"collision": 5, "mismatch": 1}.get(outcome, 0)
                is_right = (fields["standard.egress_spec"], fields["headers.atp.flags"], fields["headers.atp.level"]) == (3, flags | marked, 1)
                is_right = is_right or outcome in ("added", "silent")
            if not is_right:
                raise SystemExit(f"atp_p4_source: the right outcome, {outcome}, but another packet")
    if len(seen) != 8:
        raise SystemExit(f"atp_p4_source: too few packets: only {seen}")
    print(f"atp_p4_source: {packets} packets: the program's outcomes and sums are the rule's: {seen}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    compare(sys.argv[1], sys.argv[2], 3000, random.Random(1))
