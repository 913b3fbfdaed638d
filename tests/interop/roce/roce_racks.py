#!/usr/bin/python3
"""Four virtual machines with Linux soft-RoCE in two racks, a `netsum bump --racks` in the wire of each rack, and a third one
above them: the ranks in the guests get right sums whatever is lost, and no values leave a rack but its sums.

    guests 0, 1 - bump 0 - trunk - bump 1 - guests 2, 3
                       `. root .`                         datagrams

usage: roce_racks.py NETSUM_BINARY IMAGE [unittest arguments]     (IMAGE: what build_guest makes)

Changes the addresses of its network namespace.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../e2e"))
import rig as rigs  # noqa: E402
import scapy_support as scapy  # noqa: E402
from cli_support import until  # noqa: E402
from rig import ACKNOWLEDGE, FIRST, LAST, LIMIT, MIDDLE, Loss  # noqa: E402

NETSUM = IMAGE = None
RACKS = ((0, 1), (2, 3))
GUESTS = 4
HERE = "198.18.0.1"  # the address of the bumps, for each other and for ranks: QEMU leads there
FIRST_PORT = 7170  # the bumps' ports count from there: each must know others' before it begins
MESSAGES, MESSAGE_PACKETS, MESSAGE_BYTES = 12, 8, 8192  # of a ring whose connections are learned
NEW_RING_AFTER = 1.2  # seconds: a bump takes a host's new connection when the former one has been silent for one
HEADERS = 128  # bytes that the headers of a packet stay below: Ethernet, IPv4, UDP, BTH, RETH, the message's own, immediate, ICRC


class Racks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for command in (["ip", "link", "set", "lo", "up"], ["ip", "address", "add", HERE + "/32", "dev", "lo"]):
            subprocess.run(command, check=True)
        cls.folder = tempfile.mkdtemp(prefix="netsum-racks-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.rig = rigs.Rig(IMAGE, cls.folder, GUESTS)
        cls.addClassCleanup(cls.rig.end)
        cls.trunk = cls.rig.relays[-1]
        cls.bumps = [None] * 3
        for number in range(3):
            cls.begin_bump(number)
            cls.addClassCleanup(lambda number=number: cls.bumps[number].end())
        cls.rig.wait_ready()
        for code, output in cls.rig.run([f"ip route add {HERE}/32 via 10.0.2.2 dev eth1"] * GUESTS):
            assert code == 0, output

    @classmethod
    def begin_bump(cls, number):
        """A rack's, or the root."""
        addresses = [f"{HERE}:{FIRST_PORT + bump}" for bump in range(len(RACKS) + 1)]
        words = ["--racks", "--listen", addresses[number], "--anyone-may-join",
                 "--state", os.path.join(cls.folder, f"state{number}"), "--ring",
                 f"id=0,ranks={GUESTS},racks=2:2,packets={MESSAGE_PACKETS},window=4,dtype=int32,layout=nrtv"]
        if number == len(RACKS):
            for address in addresses[:-1]:
                words += ["--rack-bumps", address]
        else:
            words += ["--rack", str(number), "--root", addresses[-1],
                      "--hosts", ",".join(guest.address for guest in cls.rig.guests)]
            for port in [cls.rig.relays[guest].port for guest in RACKS[number]] + [(cls.trunk.port, cls.trunk.card)[number]]:
                words += ["--port", port]
        cls.bumps[number] = rigs.Bump(NETSUM, cls.folder, f"bump{number}", *words)

    def setUp(self):
        self.rig.finish_all()
        self.rig.forget()

    def start_bench(self, job, iterations, *options):
        aggregators = [["--spine", self.bumps[-1].address, "--switch", self.bumps[rack].address]
                       for rack, guests in enumerate(RACKS) for _ in guests]
        self.rig.start_bench(job, aggregators, iterations, *options)

    def expect_sums(self):
        for guest, (code, output) in zip(self.rig.guests, self.rig.finish()):
            self.assertEqual(code, 0, f"guest {guest.number}: {output}")
            report = json.loads(output)
            self.assertEqual((report["wrong"], report["workers"]), (0, GUESTS))

    def gradients(self, way):
        return [frame for frame in way.frames if rigs.opcode(frame) in (FIRST, MIDDLE, LAST)]

    def counters(self, job, bump):
        for each in bump.report()["jobs"]:
            if each["job"] == job:
                return each["counters"]
        return {}

    def test_no_values_leave_a_rack_but_its_sums(self):
        self.start_bench("sums", 3, "--elements", 50000, "--dtype", "int32")
        self.expect_sums()
        for way in self.trunk.ways():
            frames = self.gradients(way)
            self.assertGreater(len(frames), 3 * 50000 * 4 // 1024)  # of one connection
            self.assertLess(max(map(len, frames)), HEADERS)
            self.assertTrue(all(scapy.icrc_is_right(scapy.roce(frame)) for frame in frames))
        for guest in self.rig.guests:
            with self.subTest(guest=guest.number):
                way = self.rig.relays[guest.number].outwards
                frames = self.gradients(way)
                self.assertGreater(max(map(len, frames)), 1024)
                self.assertTrue(all(scapy.icrc_is_right(scapy.roce(frame)) for frame in frames))
                self.assertEqual(len({frame[6:12] for frame in frames}), 1)  # the predecessor

    def test_sums_whatever_is_lost(self):
        trunk = self.trunk
        losses = {"a first packet of a connection in a rack": (self.rig.relays[0].inwards, Loss(FIRST, 3)),
                  "a middle packet of one that leaves it": (self.rig.relays[1].inwards, Loss(MIDDLE, 20)),
                  "a last packet of one that leaves it": (self.rig.relays[3].inwards, Loss(LAST, 4)),
                  "a first packet's headers": (trunk.outwards, Loss(FIRST, 4)),
                  "a middle packet's headers": (trunk.inwards, Loss(MIDDLE, 25)),
                  "a last packet's headers": (trunk.inwards, Loss(LAST, 3)),
                  "an acknowledgement": (trunk.inwards, Loss(ACKNOWLEDGE, 3)),
                  "a result": (self.rig.relays[2].outwards, Loss(MIDDLE, 30))}
        for number, (what, (way, loss)) in enumerate(losses.items()):
            with self.subTest(lost=what):
                self.rig.forget()
                way.loss = loss
                self.start_bench(f"lost{number}", 2, "--elements", 30000, "--dtype", ("float32", "int32")[number % 2])
                self.expect_sums()
                self.assertIsNotNone(loss.lost, "nothing was lost")

    def test_the_ranks_learn_of_a_dead_bump(self):
        for number in (1, 2):
            with self.subTest("the root" if number == 2 else "a rack's bump"):
                job = f"gone{number}"
                self.start_bench(job, 10000, "--elements", 50000, "--deadline", 60)
                until(lambda job=job: self.counters(job, self.bumps[0]).get("sums_sent_up", 0) > 500, LIMIT, "the job is on its way")
                address = self.bumps[number].address
                self.bumps[number].end(signal.SIGKILL)
                results = self.rig.finish()
                self.begin_bump(number)
                for code, output in results:
                    self.assertEqual(code, 1, output)
                    self.assertRegex(output, "rank [0-3]: ")
                self.assertTrue(any(address in output for _, output in results), results)
        self.start_bench("after", 1, "--elements", 30000)
        self.expect_sums()

    # ---- programs of their own, whose connections are learned from packets

    def start_ring(self, *options, messages=MESSAGES):
        until(lambda: self.rig.silent() > NEW_RING_AFTER, LIMIT, "the former ring is silent")
        hosts = " ".join(guest.address for guest in self.rig.guests)
        words = " ".join(map(str, options))
        for guest in self.rig.guests:
            guest.start(f"verbs -s {MESSAGE_BYTES} -n {messages} -w 4 -T 17 {words} ring {guest.number} {hosts}")

    def expect_ring(self):
        for guest, (code, output) in zip(self.rig.guests, self.rig.finish()):
            self.assertEqual((code, output), (0, f"ring: {MESSAGES} sums"), f"guest {guest.number}")

    def test_a_ring_is_learned_in_both_racks(self):
        self.start_ring()
        self.expect_ring()
        for way in self.trunk.ways():
            frames = self.gradients(way)
            self.assertGreaterEqual(len(frames), MESSAGES * MESSAGE_PACKETS)
            self.assertLess(max(map(len, frames)), HEADERS)

    def test_a_ring_that_is_learned_whatever_is_lost(self):
        losses = {"a first packet in a rack": (self.rig.relays[0].inwards, Loss(FIRST, 3)),
                  "a middle packet that leaves it": (self.rig.relays[1].inwards, Loss(MIDDLE, 40)),
                  "a last packet's headers": (self.trunk.inwards, Loss(LAST, 3)),
                  "a result": (self.rig.relays[2].outwards, Loss(MIDDLE, 30))}
        for what, (way, loss) in losses.items():
            with self.subTest(lost=what):
                self.rig.forget()
                way.loss = loss
                self.start_ring()
                self.expect_ring()
                self.assertIsNotNone(loss.lost, "nothing was lost")

    def test_a_ring_that_is_learned_ends_with_a_bump_and_begins_anew(self):
        for number in (0, len(RACKS)):
            with self.subTest("the root" if number == len(RACKS) else "a rack's bump"):
                before = self.counters("ring 0", self.bumps[1]).get("sums", 0)
                self.start_ring("-r", 4, "-l", 90, messages=2000)
                until(lambda before=before: self.counters("ring 0", self.bumps[1]).get("sums", 0) > before + 200, LIMIT,
                      "the ring is on its way")
                self.bumps[number].end(signal.SIGKILL)
                self.begin_bump(number)
                codes = [code for code, _ in self.rig.finish()]
                self.assertIn(2, codes)
                self.assertTrue(set(codes) <= {2, 3}, codes)  # 3: the successor of one that has failed waits in vain
                self.start_ring()
                self.expect_ring()


def main():
    global NETSUM, IMAGE
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    NETSUM, IMAGE = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the guests end with the test
    unittest.main(module="__main__", verbosity=2)


if __name__ == "__main__":
    main()
