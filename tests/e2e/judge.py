#!/usr/bin/python3
"""judge/judge: what it says of traces of the simulator, of real processes, and of traces that were spoiled by hand.

usage: judge.py NETSUM [unittest arguments]

Exit code 77: numpy is not installed.
"""
import concurrent.futures
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zlib

import cli_support as cli
import netns_support as netns

try:
    import numpy  # noqa: F401
except ImportError:
    print("skipped: python3-numpy is not installed")
    sys.exit(netns.SKIPPED)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "judge"), str(ROOT / "conformance")]
import algorithm3  # noqa: E402
import atp  # noqa: E402
import chip  # noqa: E402
import netreduce  # noqa: E402
import switchml  # noqa: E402
from formats import encode_switchml, fold  # noqa: E402
from published import Algorithm3  # noqa: E402
from crc import crc32c  # noqa: E402
from verdict import place  # noqa: E402

FOLDER = None
HONEST = ("--limit", "without=forge+bypass")  # the judge cannot know a stranger who has the right addresses; past an accelerator sums are none


def simulated(protocol, seed, faults, *more):
    prefix = f"{FOLDER}/{protocol}{seed}{faults}"
    cli.checked(cli.run("simulate", "--protocol", protocol, "--faults", faults, "--seeds", seed, "--trace", prefix, *more))
    return prefix + ".pcap"


def with_privacy(capture):
    """What the judge is to be told of a simulator's capture."""
    with open(capture.removesuffix(".pcap") + ".txt") as file:
        return (*(("--private",) if "(private)" in file.readline() else ()), capture)


def judged(*arguments):
    """(exit code, what it prints)"""
    done = subprocess.run([ROOT / "judge/judge", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


PAPER = """name = "paper"
protocol = "atp"
network = {{ kind = "tree", fan_out = [2, 2], link = {{ rate = "1gbit", delay = "5us", buffer = "60kB", loss = 0.01 }} }}
aggregation = {{ switches = "all" }}
[[job]]
elements = 20_000
packet_elements = 256
slots = 32
rules = "{rules}"
"""


class Simulator(unittest.TestCase):
    """Chaos: losses, copies, restarts, trees, shards, seals, calls that differ."""

    def all_right(self, protocol, seeds, name, least, *more):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            said = list(pool.map(lambda seed: judged("--batch", 0, *with_privacy(simulated(protocol, seed, "chaos", *HONEST, *more))), seeds))
        results = 0
        for seed, (code, output) in zip(seeds, said):
            with self.subTest(protocol=protocol, seed=seed):
                self.assertEqual(code, 0, output)
                results += sum(int(part.split()[-2]) for part in output.split(",") if part.endswith(" results"))
                self.assertIn(name + ":", output)
        self.assertGreater(results, least)

    def test_switchml(self):
        self.all_right("switchml", (7, 8, 10, 20), "SwitchML", 2000)

    def test_chips(self):
        self.all_right("switchml-chip", (1, 3, 6, 8), "SwitchML at chips", 1000)

    def test_atp(self):
        self.all_right("atp", (7, 9), "ATP", 500)

    def test_atp_by_the_papers_rules(self):
        said = {}
        for rules in ("paper", "netsum"):
            prefix = pathlib.Path(FOLDER, f"atp-{rules}")
            prefix.with_suffix(".toml").write_text(PAPER.format(rules=rules))
            cli.checked(cli.run("simulate", "--scenario", prefix.with_suffix(".toml"), "--pcap", prefix.with_suffix(".pcap")))
            said[rules] = judged("--rules", "paper", "--batch", 0, prefix.with_suffix(".pcap"))
        self.assertEqual(said["paper"][0], 0, said)
        self.assertRegex(said["paper"][1], r" results, \d+ sums")
        self.assertEqual(said["netsum"][0], 1, said)
        self.assertRegex(said["netsum"][1], "docs/judge.md:[0-9]+: published: ")

    def test_netreduce(self):
        self.all_right("netreduce", (10, 11, 13), "NetReduce", 200)

    def test_strangers(self):
        code, output = judged("--hostile", *with_privacy(simulated("switchml", 38, "chaos")))
        self.assertEqual(code, 0, output)
        self.assertIn("nobody believes", output)


class Capture:
    """Packets of the loopback device of a network of one's own, as they arrive."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind(("lo", 3))
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 1 << 28)  # SO_RCVBUFFORCE
        self.socket.settimeout(0.2)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.read)
        self.dropped = None

    def read(self):
        with open(self.path, "wb") as file:
            file.write(struct.pack("<IHHIIII", 0xa1b23c4d, 2, 4, 0, 0, 1 << 18, 1))
            while True:
                try:
                    frame, (_, _, kind, _, _) = self.socket.recvfrom(1 << 18)
                except TimeoutError:
                    if self.ended.is_set():
                        return
                    continue
                if kind != socket.PACKET_OUTGOING:  # each comes by twice
                    file.write(struct.pack("<IIII", *divmod(time.monotonic_ns(), 10**9), len(frame), len(frame)) + frame)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.dropped = struct.unpack("II", self.socket.getsockopt(263, 6, 8))[1]  # SOL_PACKET, PACKET_STATISTICS
        self.socket.close()


class Processes(unittest.TestCase):
    """Real ranks and aggregators, on a loopback device of their own."""

    @classmethod
    def setUpClass(cls):
        if os.environ.get("JUDGE_INSIDE"):
            netns.ip("link", "set", "lo", "gso_max_segs", 1, "up")  # one frame a packet

    def setUp(self):
        if not os.environ.get("JUDGE_INSIDE"):
            self.skipTest("runs again in a network of its own")

    def job(self, name, *flags):
        path = f"{FOLDER}/{name}.pcap"
        with Capture(path) as capture:
            cli.bench("--iterations", 1, "--warmup", 0, *flags)
        self.assertEqual(capture.dropped, 0)
        code, output = judged(path)
        self.assertEqual(code, 0, output)
        return output

    def test_switchml(self):
        self.assertIn("results", self.job("flat", "--workers", 3, "--elements", 20000, "--packet-elements", 320, "--loss", 0.01))
        self.assertIn("results", self.job("tree", "--workers", 4, "--racks", 2, "--elements", 20000, "--dtype", "bfloat16"))
        self.assertIn("results", self.job("shards", "--workers", 3, "--aggregators", 2, "--elements", 20000, "--op", "max", "--dtype", "int16"))
        for wire in ("int8", "int4"):
            self.assertIn("results", self.job(wire, "--workers", 4, "--racks", 2, "--elements", 20001, "--wire", wire))

    def test_atp(self):
        self.assertIn("results", self.job("atp", "--protocol", "atp", "--workers", 3, "--elements", 20000, "--packet-elements", 320, "--loss", 0.01))

    def test_chips(self):
        chip = ("--profile", "chip", "--workers", 4, "--elements", 20000)
        self.assertIn("results", self.job("chip", *chip, "--loss", 0.01))
        self.assertIn("sums", self.job("chips", *chip, "--racks", 2))

    def test_algorithm_3(self):
        """By the kit: the schedules in which it goes wrong are right by its own rules."""
        for schedule, wrong in (("switchml-switch-two-slots", False), ("switchml-switch-late-copies", True)):
            path = f"{FOLDER}/{schedule}.pcap"
            with Capture(path):
                subprocess.run([sys.executable, ROOT / "conformance/run", "--setup", f"{sys.executable} {ROOT}/conformance/published.py", schedule],
                               check=False, capture_output=True, timeout=60)
            code, output = judged("--rules", "paper", path)
            self.assertEqual(code, 0, output)
            self.assertEqual("twice" in output, wrong, output)
            self.assertEqual(judged(path)[0], int(wrong))

    def test_netreduce(self):
        self.assertIn("sums", self.job("racks", "--protocol", "netreduce", "--workers", 4, "--racks", 2, "--elements", 20000, "--op", "avg"))
        self.assertIn("results", self.job("netreduce", "--protocol", "netreduce", "--workers", 3, "--elements", 20000, "--packet-elements", 256, "--loss", 0.01))


def packets(path):
    """Of a trace of the simulator: [record header and IP and UDP headers, payload]."""
    with open(path, "rb") as file:
        header, data = file.read(24), file.read()
    found, at = [], 0
    while at < len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        found.append([data[at:at + 16 + 28], data[at + 16 + 28:at + 16 + length]])
        at += 16 + length
    return header, found


def first_line(trace):
    """What the simulator says of a run."""
    return pathlib.Path(trace).with_suffix(".txt").read_text().splitlines()[0]


class Spoiled(unittest.TestCase):
    """One thing is wrong, and the judge says which rule forbids it."""

    def spoil(self, trace, spoiler, rule, *options):
        header, found = packets(trace)
        spoiler(found)
        path = f"{FOLDER}/spoiled.pcap"
        with open(path, "wb") as file:
            file.write(header)
            for head, payload in found:
                file.write(head[:8] + struct.pack("<II", 28 + len(payload), 28 + len(payload)) +
                           head[16:18] + struct.pack(">H", 28 + len(payload)) + head[20:40] +
                           struct.pack(">H", 8 + len(payload)) + head[42:44] + payload)
        code, output = judged("--batch", 0, *options, path)
        self.assertEqual(code, 1, output)
        self.assertRegex(output, f":[0-9]+: {rule}: ")
        self.assertRegex(output, r"packet \d+: .*\ndocs/[a-z-]+\.md:\d+: ")


class Chunk:
    """A packet about a chunk of SwitchML, to be changed."""

    def __init__(self, found, number):
        self.found, self.number, self.payload = found, number, bytearray(found[number][1])
        self.kind = self.payload[1] & 15
        self.sender, = struct.unpack_from("<H", self.payload, 2)
        self.chunk, self.operation = struct.unpack_from("<IQ", self.payload, 20)
        self.job, self.place = bytes(self.payload[8:16]), (bytes(self.payload[42:44]), self.payload[47] & 1)
        self.values = struct.unpack_from("<H", self.payload, 44)[0] if self.payload[41] == 0 else 0
        self.source, self.target = found[number][0][28:32], found[number][0][32:36]

    def name(self):
        return self.job, self.operation, self.chunk, self.kind in (1, 3)

    def write(self):
        if self.payload[1] >> 4 == 1:
            self.payload[4:8] = bytes(4)
            self.payload[4:8] = struct.pack("<I", crc32c(bytes(self.payload[8:]), int.from_bytes(self.payload[:4], "little")))
        self.found[self.number][1] = bytes(self.payload)


def chunks(found, *kinds):
    return [Chunk(found, i) for i, (_, payload) in enumerate(found) if len(payload) >= 48 and payload[0] == 3 and payload[1] & 15 in kinds]


def first_result(found):
    return next(c for c in chunks(found, 3) if c.values)


class SpoiledSwitchml(Spoiled):
    @classmethod
    def setUpClass(cls):
        cls.flat = simulated("switchml", 2, "lossy", "--jobs", 1, "--workers", 3, *HONEST)
        cls.calm = simulated("switchml", 12, "none", "--jobs", 1, "--workers", 3)
        cls.flat_in_groups = simulated("switchml", 38, "lossy", *HONEST)
        cls.tree = simulated("switchml", 11, "lossy", "--jobs", 1, "--workers", 3, *HONEST)
        cls.in_parts = simulated("switchml", 12, "lossy", "--jobs", 1, "--workers", 3, *HONEST)

    def all_copies(self, found, change):
        """The same change in all that was sent of the first result."""
        first = first_result(found)
        for c in chunks(found, 3):
            if c.name() == first.name():
                change(c)
                c.write()

    def test_a_bit_of_a_value(self):
        def flip(c):
            c.payload[48 + 7] ^= 1
        self.spoil(self.flat, lambda found: self.all_copies(found, flip), "sum")

    def test_a_contribution_counted_twice(self):
        def spoil(found):
            first = first_result(found)
            given = next(c for c in chunks(found, 1) if c.name() == first.name())

            def add(c):
                sums = numpy.frombuffer(bytes(c.payload[-4 * c.values:]), "<i4") + numpy.frombuffer(bytes(given.payload[-4 * c.values:]), "<i4")
                c.payload[-4 * c.values:] = sums.tobytes()
            self.all_copies(found, add)
        self.spoil(self.flat, spoil, "sum")

    def test_a_result_of_another_chunk(self):
        def another(c):
            c.payload[20] ^= 1
        self.spoil(self.flat, lambda found: self.all_copies(found, another), "identity")

    def test_a_result_before_all_contributed(self):
        def spoil(found):
            first = chunks(found, 3)[1]  # in the job, that is
            last = max(c.number for c in chunks(found, 1) if c.name() == first.name() and c.number < first.number)
            found.insert(last, found.pop(first.number))
        self.spoil(self.flat, spoil, "complete")

    def test_a_result_without_a_rank(self):
        def spoil(found):
            gives = [{c.name() for c in chunks(found, 1) if c.sender == rank and c.values} for rank in (0, 1)]
            last = [c.name() for c in chunks(found, 3) if c.name() in gives[0] & gives[1]][-1]
            for c in reversed(chunks(found, 1)):
                if c.name() == last and c.sender == 1:
                    del found[c.number]
        self.spoil(self.calm, spoil, "complete")

    def test_a_run_that_is_no_ranks(self):
        def spoil(found):
            run = chunks(found, 12)[-1]
            run.payload[48] ^= 1  # the first member's version
            run.write()
        self.spoil(self.flat_in_groups, spoil, "flip")

    def test_an_acknowledgement_in_a_run(self):
        def spoil(found):
            run = chunks(found, 13)[-1]
            run.payload[42] += 1  # all slots
            run.write()
        self.spoil(self.flat_in_groups, spoil, "(?:stale|identity)")  # whichever the slot beside it has

    def test_a_result_for_a_stranger(self):
        def spoil(found):
            c = first_result(found)
            found[c.number][0] = found[c.number][0][:32] + bytes((10, 9, 9, 9)) + found[c.number][0][36:]
        self.spoil(self.flat, spoil, "result-to")

    def test_values_of_the_slots_former_round(self):
        def rounds(found):
            results = [c for c in chunks(found, 3) if c.values]
            return results, next(((a, b) for a in results for b in results
                                  if b.number > a.number and a.place == b.place and a.name() != b.name() and a.values == b.values and
                                  len(a.payload) == len(b.payload)), None)

        def spoil(found):
            results, (old, new) = rounds(found)
            for c in results:
                if c.name() == new.name():
                    c.payload[48:] = old.payload[48:]
                    c.write()
        traces = (simulated("switchml", seed, "lossy", "--jobs", 1, "--workers", 3, *HONEST) for seed in range(2, 40))
        self.spoil(next(trace for trace in traces if rounds(packets(trace)[1])[1]), spoil, "sum")

    def test_a_result_of_a_former_round(self):
        def spoil(found):
            results = [c for c in chunks(found, 3) if c.values]
            old, new = next((a, b) for a in results for b in results if b.number > a.number and a.place == b.place and a.name() != b.name())
            head, payload = found[old.number]
            found.insert(new.number + 1, [found[new.number][0][:16] + head[16:], payload])
        self.spoil(self.flat, spoil, "stale")

    def test_results_that_differ(self):
        def spoil(found):
            first = first_result(found)
            c = [c for c in chunks(found, 3) if c.name() == first.name()][-1]
            c.payload[50] ^= 1
            c.write()
        self.spoil(self.flat, spoil, "one-result")

    def test_a_repeat_with_other_bytes(self):
        def spoil(found):
            c = chunks(found, 1)[0]
            copy = list(found[c.number])
            found.insert(c.number + 1, copy)
            again = Chunk(found, c.number + 1)
            again.payload[-1] ^= 1
            again.write()
        self.spoil(self.flat, spoil, "repeat")

    def test_a_round_without_the_last_ones_result(self):
        def spoil(found):
            first = first_result(found)
            for c in reversed(chunks(found, 3)):
                if c.name() == first.name() and c.target == first.target:
                    del found[c.number]
        self.spoil(self.flat, spoil, "next-round")

    def test_values_that_nobody_wanted(self):
        def spoil(found):
            result = first_result(found)
            for c in chunks(found, 1):
                if c.name() == result.name() and c.source == result.target:
                    c.payload[47] |= 4
                    c.write()
        self.spoil(self.flat, spoil, "wants")

    def test_versions_that_do_not_flip(self):
        def spoil(found):
            opened = set()
            for c in chunks(found, 1, 2):
                opened.add(c.place)
                if (c.place[0], 1) in opened:
                    wrong = c.name()
                    break
            for c in chunks(found, 1, 2):
                if c.name() == wrong:
                    c.payload[47] ^= 1
                    c.write()
        self.spoil(self.flat, spoil, "flip")

    def test_exponents(self):
        def spoil(found):
            c = next(c for c in chunks(found, 3, 4) if c.payload[46])
            c.payload[48] -= 1
            c.write()
        self.spoil(self.flat, spoil, "look-ahead")

    def test_a_checksum(self):
        def spoil(found):
            found[3][1] = found[3][1][:-1] + bytes((found[3][1][-1] ^ 1,))
        self.spoil(self.flat, spoil, "checksum")

    def test_another_life(self):
        def spoil(found):
            c = chunks(found, 3)[-1]
            c.payload[16] ^= 1
            c.write()
        self.spoil(self.flat, spoil, "rank-epoch")

    def test_waiting_without_a_name(self):
        def spoil(found):
            for i, (_, payload) in enumerate(found):
                if len(payload) == 48 and payload[:2] == b"\3\x15":
                    found[i][1] = payload[:40] + bytes((payload[40] ^ 7 or 1,)) + payload[41:]
                    Chunk(found, i).write()
        self.spoil(self.flat, spoil, "waiting-names")

    def test_waiting_for_every_repeat(self):
        def spoil(found):
            number = next(i for i, (_, payload) in enumerate(found) if len(payload) == 48 and payload[:2] == b"\3\x15")
            found[number:number] = [list(found[number]) for _ in range(3)]
        self.spoil(self.flat, spoil, "once")

    def test_repeats_that_come_as_fast_as_at_first(self):
        def spoil(found):
            c = chunks(found, 1, 2)[0]
            found[c.number + 1:c.number + 1] = [list(found[c.number]) for _ in range(12)]
        self.spoil(self.flat, spoil, "back-off")

    def test_a_chunk_in_two_lanes(self):
        def spoil(found):
            c = chunks(found, 1, 2)[0]
            head = bytearray(found[c.number][0])
            head[38:40] = (7177).to_bytes(2, "big")  # another port
            found.insert(c.number + 1, [bytes(head), found[c.number][1]])
        self.spoil(self.flat, spoil, "one-lane")

    def test_a_rank_that_takes_no_result(self):
        def spoil(found):
            last = [c for c in chunks(found, 3) if c.values][-1]
            given = next(c for c in chunks(found, 1) if c.name() == last.name() and c.source == last.target)
            head, seconds = bytearray(found[last.number][0]), struct.unpack_from("<I", found[-1][0], 0)[0]
            for again in range(1, 30):
                stamp = struct.pack("<I", seconds + again)
                found.append([stamp + found[given.number][0][4:], found[given.number][1]])
                found.append([stamp + bytes(head[4:]), found[last.number][1]])
        self.spoil(self.calm, spoil, "answered", "--heals")

    def test_a_sum_that_says_otherwise_what_may_wait(self):
        for flags, rule in ((12, "wants-tree"), (16, "due-now")):
            def spoil(found, flags=flags):
                switches = {c.target for c in chunks(found, 1)}
                c = next(c for c in chunks(found, 1) if c.values and c.source in switches and not c.payload[47] & 28)
                c.payload[47] |= flags
                c.write()
            with self.subTest(rule=rule):
                self.spoil(self.tree, spoil, rule, "--private")

    def test_a_sum_below(self):
        def spoil(found):
            c = next(c for c in chunks(found, 1) if c.values and c.source in {other.target for other in chunks(found, 1)})
            c.payload[-1] ^= 1
            c.write()
        self.spoil(self.tree, spoil, "up")

    def test_a_digit_of_a_part(self):
        def spoil(found):
            first = chunks(found, 14)[0]
            for c in chunks(found, 14):
                if c.name() == first.name() and c.source == first.source and c.payload[50] == first.payload[50]:
                    c.payload[-1] ^= 1
                    c.write()
        self.spoil(self.in_parts, spoil, "parts")

    def test_a_part_that_changes(self):
        def spoil(found):
            seen = set()
            for c in chunks(found, 14):
                name = c.source, c.name(), c.payload[50]
                if name in seen:
                    c.payload[-1] ^= 1
                    c.write()
                    return
                seen.add(name)
        self.spoil(self.in_parts, spoil, "repeat")

    def test_a_result_that_was_not_sent_down(self):
        def spoil(found):
            parents = {c.target for c in chunks(found, 1) if c.source in {other.target for other in chunks(found, 1)}}
            first = next(c for c in chunks(found, 3) if c.source in parents)
            for c in reversed(chunks(found, 3)):
                if c.name() == first.name() and c.source == first.source and c.target == first.target:
                    del found[c.number]
        self.spoil(self.tree, spoil, "down")


class Gradient:
    """A packet of ATP with values, to be changed."""

    def __init__(self, found, number):
        self.found, self.number, self.payload = found, number, bytearray(found[number][1])
        self.kind, self.flags = struct.unpack_from("<BH", self.payload, 1)
        self.job, self.sequence = self.payload[8:16], struct.unpack_from("<Q", self.payload, 16)[0]
        self.elements, = struct.unpack_from("<H", self.payload, 36)
        self.source, self.target = found[number][0][28:32], found[number][0][32:36]
        self.at = 60 if self.kind == 1 else 44

    def name(self):
        return bytes(self.job), self.sequence

    def numbers(self, values=None):
        if values is not None:
            self.payload[self.at:self.at + 4 * self.elements] = values.astype("<i4").tobytes()
        return numpy.frombuffer(bytes(self.payload[self.at:self.at + 4 * self.elements]), "<i4")


def gradients(found, kind=1):
    return [Gradient(found, i) for i, (_, payload) in enumerate(found) if payload[:2] == bytes((0xa3, kind))]


class SpoiledAtp(Spoiled):
    @classmethod
    def setUpClass(cls):
        cls.tree = next(trace for trace in (simulated("atp", seed, "none", "--jobs", 1, "--workers", 4) for seed in range(1, 20))
                        if "switches" in first_line(trace) and "protected" not in first_line(trace) and any(
                            g.flags & 2 == 0 and bin(g.payload[44]).count("1") > 1 and g.elements for g in gradients(packets(trace)[1])))

    def results(self, found, change):
        first = next(g for g in gradients(found, 2) if g.elements and not g.flags & 64)
        for g in gradients(found, 2):
            if g.name() == first.name():
                change(g)
                g.payload[4:8] = bytes(4) if g.flags & 512 else g.payload[4:8]
                self.write(g)

    @staticmethod
    def write(g):
        if not g.flags & 512:
            g.payload[4:8] = struct.pack("<I", crc32c(bytes(g.payload[8:]), int.from_bytes(g.payload[:4], "little")))
        g.found[g.number][1] = bytes(g.payload)

    def test_a_bit_of_a_value(self):
        self.spoil(self.tree, lambda found: self.results(found, lambda g: g.numbers(g.numbers() ^ 1)), "(sum|integers)")

    def test_a_contribution_counted_twice(self):
        def spoil(found):
            self.results(found, lambda g: g.numbers(g.numbers() + next(c for c in gradients(found) if c.name() == g.name()).numbers()))
        self.spoil(self.tree, spoil, "(sum|integers)")

    def test_repeats_that_come_as_fast_as_at_first(self):
        def spoil(found):
            g = gradients(found)[0]
            found[g.number + 1:g.number + 1] = [list(found[g.number]) for _ in range(12)]
        self.spoil(self.tree, spoil, "back-off")

    def test_a_result_before_all_contributed(self):
        def spoil(found):
            result = next(g for g in gradients(found, 2) if g.name() == gradients(found, 2)[-1].name())
            first = min(g.number for g in gradients(found) if g.name() == result.name())
            found.insert(first + 1, found.pop(result.number))
        self.spoil(self.tree, spoil, "complete")

    def test_a_result_of_another_chunk(self):
        def spoil(found):
            first, *_, other = [g for g in gradients(found, 2) if g.elements]
            other = next(g for g in gradients(found, 2) if g.elements == first.elements and g.sequence > first.sequence)
            for g in gradients(found, 2):
                if g.name() == other.name():
                    g.payload[g.at:] = first.payload[first.at:]
                    self.write(g)
        self.spoil(self.tree, spoil, "(sum|integers|fallback|floats|sum-of)")

    def test_a_result_for_a_stranger(self):
        def spoil(found):
            g = gradients(found, 2)[-1]
            found[g.number][0] = found[g.number][0][:32] + bytes((10, 9, 9, 9)) + found[g.number][0][36:]
        self.spoil(self.tree, spoil, "result-to")

    def test_results_that_differ(self):
        def spoil(found):
            first = next(g for g in gradients(found, 2) if g.elements)
            g = [g for g in gradients(found, 2) if g.name() == first.name()][-1]
            g.payload[-1] ^= 1
            self.write(g)
        self.spoil(self.tree, spoil, "one-result")

    def test_a_repeat_with_other_values(self):
        def spoil(found):
            g = next(g for g in gradients(found) if g.elements)
            found.insert(g.number + 1, list(found[g.number]))
            again = Gradient(found, g.number + 1)
            again.payload[-1] ^= 1
            self.write(again)
        self.spoil(self.tree, spoil, "repeat")

    def test_another_slot(self):
        def spoil(found):
            g = next(g for g in gradients(found) if g.name() == gradients(found)[0].name() and g.source != gradients(found)[0].source)
            g.payload[32] ^= 1
            self.write(g)
        self.spoil(self.tree, spoil, "index")

    def sum_of(self, found):
        """A sum on its way from a switch."""
        return next(g for g in gradients(found) if not g.flags & 2 and bin(g.payload[44]).count("1") > 1 and g.elements)

    def test_a_sum_below(self):
        def spoil(found):
            g = self.sum_of(found)
            g.numbers(g.numbers() ^ 2)
            self.write(g)
        self.spoil(self.tree, spoil, "(sum|integers)")

    def test_a_sum_that_says_less(self):
        def spoil(found):
            g = self.sum_of(found)
            g.payload[44] &= g.payload[44] - 1
            self.write(g)
        self.spoil(self.tree, spoil, "whole")


CHIP = struct.Struct(">BBBBHH8sI")


class AtChip:
    """A packet of the chip profile, to be changed."""

    def __init__(self, found, number):
        self.found, self.number, self.payload = found, number, bytearray(found[number][1])
        _, self.kind, self.member, self.version, self.slot, _, self.job, self.round = CHIP.unpack_from(self.payload)
        self.source, self.target = found[number][0][28:32], found[number][0][32:36]

    def name(self):
        return self.job, self.slot, self.version, self.round

    def write(self):
        self.found[self.number][1] = bytes(self.payload)


def at_chips(found, kind):
    return [AtChip(found, i) for i, (_, payload) in enumerate(found) if payload[:2] == bytes((0xc1, kind))]


class SpoiledAtChips(Spoiled):
    @classmethod
    def setUpClass(cls):
        lossy = [simulated("switchml-chip", seed, "lossy", "--jobs", 1, "--workers", 3, *HONEST) for seed in range(1, 12)]
        cls.flat = next(t for t in lossy if "switches" not in first_line(t) and "private" not in first_line(t) and len(at_chips(packets(t)[1], 2)) > 30)
        cls.tree = next(t for t in lossy if "switches" in first_line(t) and len(at_chips(packets(t)[1], 2)) > 30)

    def results(self, found, change, which=0):
        """The same change in all that was sent of a round's result."""
        first = at_chips(found, 2)[which]
        for c in at_chips(found, 2):
            if c.name() == first.name():
                change(c)
                c.write()

    def test_as_they_are(self):
        for trace in (self.flat, self.tree):
            self.assertEqual(judged("--batch", 0, *with_privacy(trace))[0], 0)

    def test_a_bit_of_a_value(self):
        def flip(c):
            c.payload[-1] ^= 1
        self.spoil(self.flat, lambda found: self.results(found, flip), "sum")

    def test_the_least_exponent(self):
        def less(c):
            c.payload[20:22] = struct.pack(">H", 3)
        self.spoil(self.flat, lambda found: self.results(found, less), "exponent")

    def test_a_result_before_all_contributed(self):
        def spoil(found):
            first = at_chips(found, 2)[3]
            given = [c.number for c in at_chips(found, 1) if c.name() == first.name() and c.number < first.number]
            found.insert(max(given), found.pop(first.number))
        self.spoil(self.flat, spoil, "complete")

    def test_a_result_for_a_stranger(self):
        def spoil(found):
            c = at_chips(found, 2)[0]
            found[c.number][0] = found[c.number][0][:32] + bytes((10, 9, 9, 9)) + found[c.number][0][36:]
        self.spoil(self.flat, spoil, "result-to")

    def test_what_nobody_contributed(self):
        def spoil(found):
            self.results(found, lambda c: c.payload.__setitem__(35, c.payload[35] ^ 64))
        self.spoil(self.flat, spoil, "echo")

    def test_a_round_too_early(self):
        def spoil(found):
            c = next(c for c in at_chips(found, 1) if c.round == 1)
            c.payload[19] += 1
            c.write()
        self.spoil(self.flat, spoil, "round")

    def test_a_repeat_with_other_values(self):
        def spoil(found):
            c = at_chips(found, 1)[0]
            found.insert(c.number + 1, [found[c.number][0], bytes(c.payload[:-1]) + bytes((c.payload[-1] ^ 1,))])
        self.spoil(self.flat, spoil, "repeat")

    def test_repeats_that_come_as_fast_as_at_first(self):
        def spoil(found):
            c = at_chips(found, 1)[0]
            found[c.number + 1:c.number + 1] = [list(found[c.number]) for _ in range(12)]
        self.spoil(self.flat, spoil, "back-off")

    def test_a_sum_below(self):
        def spoil(found):
            c = next(c for c in at_chips(found, 1) if c.source in {other.target for other in at_chips(found, 1)})
            c.payload[-1] ^= 1
            c.write()
        self.spoil(self.tree, spoil, "up")


class Algorithm3s(Spoiled):
    """What was published, as conformance/published.py has it, with two ranks and a slot: right by its own rules, also where sums are wrong."""

    RANKS = [(f"10.0.0.{rank + 1}", 7000) for rank in range(2)]

    def trace(self, name, *sent):
        """`sent`: (rank, chunk), in the order in which the switch gets them."""
        job = {"ranks": self.RANKS, "rank_epochs": [7, 8], "slots": 1, "job_epoch": 9}
        switch, path, out = Algorithm3(job, False), f"{FOLDER}/{name}.pcap", []

        def add(source, target, data):
            ip = struct.pack(">BBHHHBBH", 0x45, 0, 28 + len(data), 0, 0, 64, 17, 0) + bytes(int(n) for a in (source, target) for n in a[0].split("."))
            out.append(struct.pack("<IIII", len(out), 0, 28 + len(data), 28 + len(data)) + ip +
                       struct.pack(">HHHH", source[1], target[1], 8 + len(data), 0) + data)
        for rank, chunk in sent:
            data = encode_switchml({"type": "contribution", "sender": rank, "job_epoch": 9, "rank_epoch": job["rank_epochs"][rank], "chunk": chunk,
                                    "operation": 0, "signature": 5, "slot": 0, "version": chunk & 1, "values": [10 ** rank * (chunk + 1)] * 64})
            add(self.RANKS[rank], ("10.0.0.9", 7170), data)
            for target, answer in switch.on_packet(data, None) or ():
                add(("10.0.0.9", 7170), target, answer)
        with open(path, "wb") as file:
            file.write(struct.pack("<IHHIIII", 0xa1b23c4d, 2, 4, 0, 0, 1 << 18, 101) + b"".join(out))
        self.assertEqual(fold(job["rank_epochs"]), struct.unpack_from("<I", next(p for _, p in packets(path)[1] if p[1] & 15 == 3), 16)[0])
        return path

    def test_a_late_copy_makes_a_sum_wrong_and_the_rules_allow_it(self):
        eight = self.trace("eight", (0, 0), (1, 0), (0, 1), (0, 0), (0, 1))
        code, output = judged("--rules", "paper", eight)
        self.assertEqual(code, 0, output)
        self.assertIn("1 sums with a rank's values twice", output)
        code, output = judged(eight)
        self.assertRegex(output, r":\d+: complete: ")

    def test_right_sums(self):
        for name, sent in (("calm", [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2), (1, 2)]), ("repeats", [(0, 0), (0, 0), (1, 0), (1, 0), (0, 0), (1, 1), (0, 1)])):
            code, output = judged("--rules", "paper", self.trace(name, *sent))
            self.assertEqual(code, 0, output)
            self.assertNotIn("twice", output)

    def wrong(self, spoiler, rule):
        header, found = packets(self.trace("wrong", (0, 0), (1, 0), (1, 0), (0, 1), (1, 1)))
        spoiler(found)
        path = f"{FOLDER}/wrong.pcap"
        with open(path, "wb") as file:
            file.write(header + b"".join(head + payload for head, payload in found))
        code, output = judged("--rules", "paper", path)
        self.assertEqual(code, 1, output)
        self.assertRegex(output, f"docs/judge.md:[0-9]+: {rule}: ")

    def test_spoiled(self):
        def value(found):
            c = chunks(found, 3)[-1]
            c.payload[-1] ^= 1
            c.write()
        self.wrong(value, "published-sum")
        self.wrong(lambda found: found.pop(1), "published-result")  # a contribution
        self.wrong(lambda found: found.insert(3, found[3]), "published-result")  # to a rank that has not asked again

    def test_netsums_own(self):
        code, output = judged("--rules", "paper", "--batch", 0, simulated("switchml", 2, "lossy", "--jobs", 1, "--workers", 3, *HONEST))
        self.assertEqual(code, 1, output)
        self.assertRegex(output, "docs/judge.md:[0-9]+: published-types: ")


class Written:
    """A RoCE packet of a ring in a tunnel, to be changed."""

    def __init__(self, found, number):
        self.found, self.number, self.payload = found, number, bytearray(found[number][1])
        self.opcode, self.psn, self.receiver = self.payload[28], bytes(self.payload[37:40]), bytes(self.payload[16:20] + self.payload[33:36])
        self.at = {6: 96, 7: 48, 9: 52, 11: 100}[self.opcode]
        self.leaves = found[number][0][32:36] == self.payload[16:20]

    def name(self):
        return self.receiver, self.psn

    def write(self):
        masked = bytearray(self.payload[:-4])
        for at in (1, 8, 10, 11, 26, 27, 32):
            masked[at] = 255
        self.payload[-4:] = struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))
        self.found[self.number][1] = bytes(self.payload)


class SpoiledNetReduce(Spoiled):
    @classmethod
    def setUpClass(cls):
        cls.ring = next(trace for trace in (simulated("netreduce", seed, "none", "--jobs", 1, "--workers", 3) for seed in range(1, 20))
                        if "switches" not in first_line(trace) and "protected" not in first_line(trace))

    def written(self, found, leaves):
        writes = [Written(found, i) for i, (_, payload) in enumerate(found) if payload[0] == 0x45 and payload[28] in (6, 7, 9, 11)]
        return [w for w in writes if w.leaves == leaves and len(w.payload) - 4 - w.at >= 8]

    def sums(self, found, change):
        """The same change in the first sum, for whomever it leaves."""
        psn = self.written(found, True)[0].psn
        for w in self.written(found, True):
            if w.psn == psn:
                change(w)
                w.write()

    def test_a_bit_of_a_value(self):
        def flip(w):
            w.payload[w.at + 1] ^= 1
        self.spoil(self.ring, lambda found: self.sums(found, flip), "sum")

    def test_a_ranks_own_values(self):
        def spoil(found):
            raw = {w.psn: w for w in self.written(found, False)}
            self.sums(found, lambda w: w.payload.__setitem__(slice(w.at, None), raw[w.psn].payload[w.at:]))
        self.spoil(self.ring, spoil, "sum")

    def test_a_sum_before_all_contributed(self):
        def spoil(found):
            first = self.written(found, True)[0]
            given = [w.number for w in self.written(found, False) if w.psn == first.psn and w.number < first.number]
            found.insert(given[-1], found.pop(first.number))
        self.spoil(self.ring, spoil, "(complete|leaves)")

    def test_fewer_contributions(self):
        def one_less(w):
            w.payload[w.at - 8 if w.opcode in (7, 9) else w.at - 40] -= 1
        self.spoil(self.ring, lambda found: self.sums(found, one_less), "complete")

    def test_another_seal(self):
        def spoil(found):
            first = self.written(found, True)[0]
            w = [w for w in self.written(found, True) if w.psn == first.psn][-1]
            w.payload[w.at - 6 if w.opcode in (7, 9) else w.at - 38] ^= 1
            w.write()
        self.spoil(self.ring, spoil, "seal")

    def test_raw_packets_leave(self):
        def spoil(found):
            first = self.written(found, True)[0]
            found[first.number][1] = next(w for w in self.written(found, False) if w.name() == first.name()).payload
        self.spoil(self.ring, spoil, "contributions")

    def test_a_mark_that_is_forgotten(self):
        def spoil(found):
            w = self.written(found, False)[0]
            head = bytearray(found[w.number][0])
            head[17] |= 3
            found[w.number][0] = bytes(head)
        self.spoil(self.ring, spoil, "marks")

    def test_other_headers(self):
        def spoil(found):
            w = self.written(found, True)[0]
            w.payload[30] ^= 1  # the partition key
            w.write()
        self.spoil(self.ring, spoil, "leaves")

    def test_a_result_for_a_stranger(self):
        def spoil(found):
            w = self.written(found, True)[0]
            w.payload[16:20] = bytes((10, 9, 9, 9))
            w.write()
            found[w.number][0] = found[w.number][0][:32] + bytes((10, 9, 9, 9)) + found[w.number][0][36:]
        self.spoil(self.ring, spoil, "leaves")


class Rules(unittest.TestCase):
    def test_each_is_in_the_documents(self):
        for rules in (switchml.RULES, algorithm3.RULES, chip.RULES, atp.RULES, netreduce.RULES):
            for name, (document, words) in rules.items():
                with self.subTest(rule=name):
                    place(document, words)

    def test_what_is_no_capture(self):
        self.assertEqual(judged(__file__)[0], 2)
        self.assertEqual(judged(FOLDER + "/none")[0], 2)


def main():
    """Processes run in a network of their own, if that is permitted."""
    global FOLDER
    with tempfile.TemporaryDirectory() as FOLDER:
        if not os.environ.get("JUDGE_INSIDE") and subprocess.run(netns.alone("true"), check=False, capture_output=True).returncode == 0:
            os.environ["JUDGE_INSIDE"] = "1"
            sys.exit(subprocess.run(netns.alone(sys.executable, *sys.argv), check=False).returncode)
        cli.main()


if __name__ == "__main__":
    main()
