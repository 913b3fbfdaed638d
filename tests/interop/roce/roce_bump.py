#!/usr/bin/python3
"""Three virtual machines with Linux soft-RoCE and unmodified rdma-core, and `netsum bump` between
them: their ring's sums are right whatever is lost, and all other traffic of theirs is left alone.

usage: roce_bump.py NETSUM_BINARY ROCE_ENDPOINT IMAGE [unittest arguments]     (endpoint.cc; what build_guest makes)
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
from rig import ACKNOWLEDGE, FIRST, LAST, LIMIT, MIDDLE, Loss, psn  # noqa: E402

NETSUM = ENDPOINT = IMAGE = None
GUESTS = 3
MESSAGES, MESSAGE_PACKETS, MESSAGE_BYTES = 12, 8, 8192
BROADCAST = b"\xff" * 6
NEW_RING_AFTER = 1.2  # seconds: a bump takes a host's new connection when the former one has been silent for one


class SoftRoce(unittest.TestCase):
    @classmethod
    def begin_bump(cls):
        words = ["--listen", "127.0.0.1:0", "--state", os.path.join(cls.folder, "state"),
                 "--hosts", ",".join(guest.address for guest in cls.rig.guests), "--ring",
                 f"id=0,ranks={GUESTS},packets={MESSAGE_PACKETS},window=4,dtype=int32,layout=nrtv"]
        for relay in cls.rig.relays:
            words += ["--port", relay.port]
        cls.bump = rigs.Bump(NETSUM, cls.folder, "bump", *words)

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="netsum-roce-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.rig = rigs.Rig(IMAGE, cls.folder, GUESTS)
        cls.addClassCleanup(cls.rig.end)
        cls.begin_bump()
        cls.addClassCleanup(lambda: cls.bump.end())
        cls.rig.wait_ready()

    def setUp(self):
        self.rig.finish_all()
        self.rig.forget()

    def start_ring(self, *options, messages=MESSAGES):
        until(lambda: self.rig.silent() > NEW_RING_AFTER, LIMIT, "the former ring is silent")
        hosts = " ".join(guest.address for guest in self.rig.guests)
        words = " ".join(map(str, options))
        for guest in self.rig.guests:
            guest.start(f"verbs -s {MESSAGE_BYTES} -n {messages} -w 4 {words} ring {guest.number} {hosts}")

    def ring(self):
        return self.bump.report()["jobs"][0]["counters"]

    def expect_sums(self, messages=MESSAGES):
        for guest, (code, output) in zip(self.rig.guests, self.rig.finish()):
            self.assertEqual((code, output), (0, f"ring: {messages} sums"), f"guest {guest.number}")

    def test_sums(self):
        before = self.ring()
        self.start_ring()
        self.expect_sums()
        after = self.ring()
        self.assertEqual(after["sums"] - before["sums"], MESSAGES * MESSAGE_PACKETS)
        self.assertEqual(after["contributions"] - before["contributions"], GUESTS * MESSAGES * MESSAGE_PACKETS)

    def test_sums_whose_packet_numbers_wrap(self):
        self.start_ring("-p", hex(0xffffff - 20))
        self.expect_sums()

    def test_sums_whatever_is_lost(self):
        losses = {
            "a first packet": (0, "inwards", Loss(FIRST, 3)),
            "a middle packet": (1, "inwards", Loss(MIDDLE, 20)),
            "a last packet": (2, "inwards", Loss(LAST, 4)),
            "the very last packet": (2, "inwards", Loss(LAST, MESSAGES)),
            "an acknowledgement": (1, "inwards", Loss(ACKNOWLEDGE, 5)),
            "the first packet of a result": (2, "outwards", Loss(FIRST, 5)),
            "a result": (0, "outwards", Loss(MIDDLE, 30)),
            "the last packet of the last result": (1, "outwards", Loss(LAST, MESSAGES)),
        }
        for what, (guest, way, loss) in losses.items():
            with self.subTest(lost=what):
                self.rig.forget()
                getattr(self.rig.relays[guest], way).loss = loss
                before = self.ring()
                self.start_ring()
                self.expect_sums()
                self.assertIsNotNone(loss.lost, "nothing was lost")
                self.assertEqual(self.ring()["sums"] - before["sums"], MESSAGES * MESSAGE_PACKETS)

    def test_the_ends_see_a_normal_connection(self):
        before = self.ring()
        self.start_ring("-T", 20)  # 4 s, so that no guest that has to wait for the machine takes that for a loss
        self.expect_sums()
        after = self.ring()
        self.assertEqual({name: after[name] - before[name] for name in after if name.startswith(("repeats", "dropped"))},
                         {name: 0 for name in after if name.startswith(("repeats", "dropped"))})
        for sender, receiver in ((0, 1), (1, 2), (2, 0)):
            with self.subTest(sender=sender):
                self.expect_normal(self.rig.guests[sender].mac, self.rig.relays[sender], self.rig.relays[receiver])

    def expect_normal(self, sender, near, far):
        """Of the connection from a guest at relay `near` to one at `far`."""
        def gradients(way):
            return [frame for frame in way.frames if frame[6:12] == sender and rigs.opcode(frame) in (FIRST, MIDDLE, LAST)]
        sent, arrived = gradients(near.inwards), gradients(far.outwards)
        first = psn(sent[0])
        self.assertEqual([psn(frame) for frame in sent],  # none twice
                         [(first + i) % (1 << 24) for i in range(MESSAGES * MESSAGE_PACKETS)])
        self.assertEqual(len(arrived), len(sent))
        for frame, changed in zip(sent, arrived):
            headers = 54 + {FIRST: 16 + 16, MIDDLE: 0, LAST: 4}[rigs.opcode(frame)]  # to BTH; RETH and the message's own; immediate
            self.assertEqual((len(changed), changed[:headers]), (len(frame), frame[:headers]))
        for relay in (near, far):
            for way in relay.ways():
                for frame in way.frames:
                    if rigs.opcode(frame) is not None:
                        self.assertTrue(scapy.icrc_is_right(scapy.roce(frame)))

        delivered, asked, acknowledged = set(), [], []
        for way, frame in far.passed:
            if way is far.outwards and frame[6:12] == sender and rigs.opcode(frame) in (FIRST, MIDDLE, LAST):
                delivered.add(psn(frame))
                if frame[50] & 0x80:
                    asked.append(psn(frame))
            elif way is far.inwards and frame[:6] == sender and rigs.opcode(frame) == ACKNOWLEDGE:
                self.assertIn(psn(frame), delivered)
                self.assertLess(frame[54], 0x20)  # no NAK
                acknowledged.append(frame)
        self.assertEqual([psn(frame) for frame in acknowledged], asked)
        self.assertEqual(asked[-1], psn(sent[-1]))
        until(lambda: [frame for frame in near.outwards.frames if frame[:6] == sender and frame[6:12] == acknowledged[0][6:12]
                       and rigs.opcode(frame) == ACKNOWLEDGE] == acknowledged, LIMIT, "the acknowledgements arrive as they were")

    def test_retrying_for_ever_is_refused(self):
        (code, output), = self.rig.run(["verbs -r 7 serve", None, None])
        self.assertEqual((code, output), (4, "retry_cnt 7 is refused: 7 means for ever"))

    def expect_untouched(self):
        """Of each guest's frames to another, what went into the bump came out of it."""
        for source in self.rig.guests:
            for sink in self.rig.guests:
                if source is sink:
                    continue
                def between(way, to=(sink.mac, BROADCAST), source=source):
                    return [frame for frame in way.frames if frame[6:12] == source.mac and frame[:6] in to]

                def passed(near=self.rig.relays[source.number].inwards, far=self.rig.relays[sink.number].outwards):
                    went = between(near)
                    arrived = between(far)
                    return arrived[len(arrived) - len(went):] == went  # in front of them may be what was on its way before
                until(passed, LIMIT, f"what guest {source.number} sent to guest {sink.number} arrives as it was")

    def opcodes(self):
        return {rigs.opcode(frame) for relay in self.rig.relays for frame in relay.outwards.frames} - {None}

    def test_other_verbs_are_left_alone(self):
        before = self.ring()["packets"]
        for operation, expected in (("write", 0x07), ("write_imm", 0x09), ("send", 0x01), ("read", 0x0e)):
            for sender, receiver in ((0, 1), (2, 0)):
                with self.subTest(operation=operation, sender=sender):
                    self.rig.forget()
                    options = f"verbs -o {operation} -s 5000 -n 10"
                    commands = [None] * GUESTS
                    commands[receiver] = options + " serve"
                    commands[sender] = options + " connect " + self.rig.guests[receiver].address
                    for code, output in self.rig.run(commands):
                        self.assertEqual(code, 0, output)
                    self.assertIn(expected, self.opcodes())
                    self.expect_untouched()
        self.assertEqual(self.ring()["packets"], before)

    def test_perftest_is_left_alone(self):
        before = self.ring()["packets"]
        for program in ("ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_write_lat"):
            with self.subTest(program=program):
                self.rig.forget()
                command = f"{program} -x 1 -s 4096 -n 50 -u 18 -F"
                results = self.rig.run([command, f"sleep 1; {command} 10.0.0.1", None])
                for code, output in results:
                    self.assertEqual(code, 0, output)
                self.assertTrue(self.opcodes())
                self.expect_untouched()
        self.assertEqual(self.ring()["packets"], before)

    def connect_endpoint(self, role, guest, *options, messages=20, size=5000, mtu=1024):
        """One connection between a guest and netsum's own queue pair, at the last relay; what the latter has counted."""
        mac = bytes([0x52, 0x54, 0, 0, 0, 9]).hex(":")
        endpoint = subprocess.Popen([ENDPOINT, self.rig.relays[-1].card, mac, guest.mac.hex(":"), "10.0.0.9", role,
                                     *map(str, (size, messages, 4, mtu, 0xfffff0, LIMIT))], stdout=subprocess.PIPE, text=True)
        try:
            words = endpoint.stdout.readline().split()
            self.assertEqual(words[:1], ["listening"])
            program = "serve" if role == "send" else "connect 10.0.0.9"
            guest.start(f"/bin/ip neigh replace 10.0.0.9 lladdr {mac} dev eth0; verbs -s {size} -n {messages} -w 4 -m {mtu} -x "
                        f"10.0.2.2:{words[1]} {' '.join(options)} {program}")
            output = endpoint.stdout.read()
            code, text = guest.finish(LIMIT)
            self.assertEqual((endpoint.wait(LIMIT), code), (0, 0), f"endpoint: {output}guest: {text}")
        finally:
            endpoint.kill()
            endpoint.wait()
            endpoint.stdout.close()
        return json.loads(output)

    def test_our_own_endpoint_and_a_guest(self):
        guest, ours = self.rig.guests[0], self.rig.relays[-1]
        theirs = self.rig.relays[0]
        packets, last = 5 * 20, (0xfffff0 + 5 * 20 - 1) % (1 << 24)
        for role, sender, receiver in (("send", ours, theirs), ("receive", theirs, ours)):
            with self.subTest(role=role):
                self.rig.forget()
                counted = self.connect_endpoint(role, guest, "-o write_imm -T 20")
                self.assertEqual(counted["packets_sent" if role == "send" else "packets_received"], packets)
                self.assertEqual([counted[name] for name in ("retransmissions", "duplicates", "out_of_order", "bad_icrc")], [0] * 4)
                self.assertTrue(all(scapy.icrc_is_right(scapy.roce(frame)) for frame in ours.inwards.frames))
            for what, relay, loss in (("first", sender, Loss(FIRST, 3)), ("middle", sender, Loss(MIDDLE, 20)),
                                      ("last", sender, Loss(LAST, 7)), ("the very last", sender, Loss(LAST, 20)),
                                      ("an acknowledgement", receiver, Loss(ACKNOWLEDGE, 4)),
                                      ("the last acknowledgement", receiver, Loss(ACKNOWLEDGE, 1, psn=last))):
                with self.subTest(role=role, lost=what):
                    self.rig.forget()
                    relay.inwards.loss = loss
                    self.connect_endpoint(role, guest, "-o write_imm -T 16 -p 0xfffff0")
                    self.assertIsNotNone(loss.lost, "nothing was lost")
        for mtu in (256, 512):
            for role in ("send", "receive"):
                with self.subTest(role=role, mtu=mtu):
                    self.connect_endpoint(role, guest, "-o write_imm -T 20", mtu=mtu)
        with self.subTest("without immediate values"):
            self.connect_endpoint("receive_silent", guest, "-o write -T 20")

    def start_bench(self, job, iterations, *options):
        port = self.bump.address.split(":")[1]
        self.rig.start_bench(job, [["--switch", f"10.0.2.2:{port}"]] * GUESTS, iterations, *options)

    def test_netsums_own_library_over_verbs(self):
        """Ranks in the guests: communicator, sealed messages and all, over libibverbs and through the bump in their wire."""
        losses = {"nothing": (0, "inwards", None),
                  "a first packet": (0, "inwards", Loss(FIRST, 3)),
                  "a middle packet": (1, "inwards", Loss(MIDDLE, 20)),
                  "a last packet": (2, "inwards", Loss(LAST, 4)),
                  "an acknowledgement": (1, "inwards", Loss(ACKNOWLEDGE, 5)),
                  "a result": (2, "outwards", Loss(MIDDLE, 30))}
        for number, (what, (guest, way, loss)) in enumerate(losses.items()):
            with self.subTest(lost=what):
                self.rig.forget()
                getattr(self.rig.relays[guest], way).loss = loss
                self.start_bench(f"lost{number}", 3, "--elements", 50000, "--dtype", "float32" if number % 2 == 0 else "int32")
                for each, (code, output) in zip(self.rig.guests, self.rig.finish()):
                    self.assertEqual(code, 0, f"guest {each.number}: {output}")
                    report = json.loads(output)
                    self.assertEqual((report["wrong"], report["workers"]), (0, GUESTS))
                if loss:
                    self.assertIsNotNone(loss.lost, "nothing was lost")

    def test_netsums_own_library_notices_a_bump_that_is_gone(self):
        def sums():
            return sum(job["counters"].get("sums", 0) for job in self.bump.report()["jobs"] if job["job"] == "gone")
        self.start_bench("gone", 10000, "--elements", 50000, "--deadline", 60)
        until(lambda: sums() > 1000, LIMIT, "the job is on its way")
        self.bump.end(signal.SIGKILL)
        results = self.rig.finish()
        self.begin_bump()
        for code, output in results:
            self.assertEqual(code, 1, output)
            self.assertRegex(output, "rank [0-2]: .*(has not answered|broke)")

    def test_ends_in_an_error_of_the_queue_pairs_after_a_restart(self):
        """Nothing of the ring passes unsummed when the accelerator, killed in the middle, is started again."""
        cls = type(self)
        before = self.ring()["sums"]
        self.start_ring("-T", 15, "-r", 4, "-l", 90, messages=2000)
        until(lambda: self.ring()["sums"] >= before + 400, LIMIT, "the ring is on its way")
        self.bump.end(signal.SIGKILL)
        cls.begin_bump()
        codes = [code for code, _ in self.rig.finish()]
        self.assertIn(2, codes)
        self.assertTrue(set(codes) <= {2, 3}, codes)  # 3: the successor of one that has failed waits in vain
        self.assertGreater(self.bump.report()["counters"]["dropped_roce_known"], 0)
        self.start_ring()
        self.expect_sums()

    def test_ends_in_an_error_of_the_queue_pairs_without_accelerator(self):
        cls = type(self)
        before = self.ring()["sums"]
        self.start_ring("-T", 15, "-r", 4, "-l", 60, messages=2000)
        until(lambda: self.ring()["sums"] >= before + 400, LIMIT, "the ring is on its way")
        self.bump.end(signal.SIGKILL)
        codes = [code for code, _ in self.rig.finish()]
        cls.begin_bump()
        self.assertIn(2, codes)
        self.assertTrue(set(codes) <= {2, 3}, codes)


def main():
    global NETSUM, ENDPOINT, IMAGE
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    NETSUM, ENDPOINT, IMAGE = (os.path.abspath(sys.argv.pop(1)) for _ in range(3))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends a test ends its guests too
    unittest.main(module="__main__", verbosity=2)


if __name__ == "__main__":
    main()
