#!/usr/bin/python3
"""The bottleneck link between real network namespaces: what it marks and drops and how fast it is, as sockets see it.

usage: bottleneck.py BOTTLENECK TESTBED [unittest arguments]

Traffic runs inside papers/bottleneck/testbed, whose command is this file again (`bottleneck.py inside CASE`): it opens sockets in
the testbed's namespaces and prints what they saw as JSON. Exit code 77: network namespaces are not permitted here.
"""
import ctypes
import hashlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import cli_support as cli
import netns_support as netns

BOTTLENECK = TESTBED = None
LIMIT = 60  # seconds, for what takes one

RATE = 8_000_000
QUEUE, MARK = 400_000, 100_000
PAYLOAD = 1400
COUNT = 500  # datagrams: more than the queue holds
FAMILIES = {"IPv4": (socket.AF_INET, 28), "IPv6": (socket.AF_INET6, 48)}  # and the bytes of their headers, with UDP's

SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35  # what Python does not name
TCPI_OPT_ECN = 8
PR_CAPBSET_DROP, CAP_SYS_ADMIN = 24, 21

CAPABLE_0, CONGESTION = 2, 3


# Inside the testbed: its environment says where.

def open_socket(host, family, kind):
    """A socket of that host, wherever it is used."""
    made = netns.open_socket(os.environ[host], family, kind)
    made.settimeout(LIMIT)
    return made


def address(host, version):
    return os.environ[f"{host}_IP{version[-1]}"]


def datagram(number):
    return struct.pack("=I", number) + random.Random(number).randbytes(PAYLOAD - 4)


def receive(receiver):
    """Number, ECN field, and the kernel's time of arrival of one datagram."""
    data, control, _, _ = receiver.recvmsg(2048, 256)
    ecn = seconds = None
    for _, name, value in control:
        if name == SO_TIMESTAMPNS:
            whole, nanoseconds = struct.unpack("=qq", value)
            seconds = whole + nanoseconds / 1e9
        elif name in (socket.IP_TOS, socket.IPV6_TCLASS):
            ecn = value[0] & 3
    number, = struct.unpack_from("=I", data)
    if data != datagram(number):
        raise AssertionError(f"datagram {number} was changed on its way")
    return number, ecn, seconds


def flood(version, ecn):
    """COUNT datagrams leave L0 in one go, and a few later. How many, and those that R0 gets, in their order of arrival."""
    family, _ = FAMILIES[version]
    ask, say = {"IPv4": ((socket.IPPROTO_IP, socket.IP_RECVTOS), (socket.IPPROTO_IP, socket.IP_TOS)),
                "IPv6": ((socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS), (socket.IPPROTO_IPV6, socket.IPV6_TCLASS))}[version]
    with open_socket("R0", family, socket.SOCK_DGRAM) as receiver, open_socket("L0", family, socket.SOCK_DGRAM) as sender:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.setsockopt(*ask, 1)
        receiver.bind(("", 0))
        sender.setsockopt(*say, ecn)
        sender.connect((address("R0", version), receiver.getsockname()[1]))
        datagrams = [datagram(number) for number in range(COUNT)]
        burst = threading.Thread(target=lambda: [sender.send(data) for data in datagrams])
        # Beside the receiver: the kernel takes a while to begin with its time stamps, and until then recvmsg() makes them.
        burst.start()
        # Then one more for every 50 that arrive, until the last of them does: nothing overtakes, so it ends the row. If it was
        # dropped, the queue was full, so that more than 50 are still to come.
        sent, arrived = COUNT, []
        while sent == COUNT or arrived[-1][0] != sent - 1:
            arrived.append(receive(receiver))
            if len(arrived) % 50 == 0 and not burst.is_alive():
                sender.send(datagram(sent))
                sent += 1
        return {"sent": sent, "arrived": arrived}


def udp(ecn):
    return {version: flood(version, ecn) for version in FAMILIES}


def tcp():
    """A megabyte from L0 to R0, and its hash back."""
    seen = {}
    data = random.Random(1).randbytes(1_000_000)
    for version, (family, _) in FAMILIES.items():
        with open_socket("R0", family, socket.SOCK_STREAM) as listener, open_socket("L0", family, socket.SOCK_STREAM) as client:
            listener.bind(("", 0))
            listener.listen()

            def serve():
                server, _ = listener.accept()
                with server, server.makefile("rb") as stream:
                    server.sendall(hashlib.sha256(stream.read()).digest())

            thread = threading.Thread(target=serve)
            thread.start()
            client.connect((address("R0", version), listener.getsockname()[1]))
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            with client.makefile("rb") as stream:
                digest = stream.read()
            thread.join()
            options = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[5]
            seen[version] = {"right": digest == hashlib.sha256(data).digest(), "ecn": bool(options & TCPI_OPT_ECN)}
    return seen


CASES = {"capable": lambda: udp(CAPABLE_0), "not_capable": lambda: udp(0), "tcp": tcp}


# Outside.

class RunningTestbed(cli.Process):
    def __init__(self, *arguments):
        super().__init__("--rate", f"{RATE}bit", "--delay", "2ms", "--queue", f"{QUEUE}B", "--mark", f"{MARK}B", *arguments,
                         program=TESTBED, env={"BOTTLENECK": BOTTLENECK})

    def __exit__(self, *failure):
        if self.process.poll() is None:  # a test failed: SIGKILL would leave the namespaces behind
            self.signal(signal.SIGTERM)
            try:
                self.wait(10)
            except subprocess.TimeoutExpired:
                pass
        super().__exit__(*failure)


class Bottleneck(unittest.TestCase):
    def hosts(self, process):
        """The namespaces that a testbed announced."""
        line = process.wait_line(process.err, "LEFT=", LIMIT)
        return {name for part in line.split("'")[1::2] for name in part.split()}

    def expect_gone(self, process):
        hosts = self.hosts(process)
        self.assertTrue(hosts)
        prefix = next(iter(hosts)).split("-")[0] + "-"
        self.assertEqual([name for name in netns.names() if name.startswith(prefix)], [])


class Traffic(Bottleneck):
    def run_case(self, case):
        """What the sockets saw, and the last statistics of the way from left to right."""
        with tempfile.NamedTemporaryFile("r", suffix=".json") as stats:
            inside = ["/usr/bin/python3", os.path.abspath(__file__), "inside", case]
            with RunningTestbed("--stats", stats.name, "--", *inside) as process:
                self.assertEqual(process.wait(LIMIT), 0, process.err)
                self.expect_gone(process)
                seen = json.loads("\n".join(process.out))
            lines = [json.loads(line) for line in stats]
        self.assertEqual(lines[0]["bits_per_second"], RATE)
        return seen, [line for line in lines if line.get("direction") == "left-to-right"][-1]

    def check_flood(self, seen, statistics):
        for version, flood in seen.items():
            with self.subTest(version=version):
                bytes_each = PAYLOAD + FAMILIES[version][1]
                numbers = [number for number, _, _ in flood["arrived"]]
                self.assertEqual(numbers, sorted(set(numbers)))
                fit = QUEUE // bytes_each - 1  # but for what the routers say, such as MLD
                self.assertEqual(numbers[:fit], list(range(fit)))
                self.assertLess(len(numbers), COUNT)
                first, last = flood["arrived"][0], flood["arrived"][fit - 1]
                rate = (fit - 1) * bytes_each * 8 / (last[2] - first[2])
                self.assertGreater(rate / RATE, 0.5)
                self.assertLess(rate / RATE, 2)
        arrived = sum(len(flood["arrived"]) for flood in seen.values())
        lost = sum(flood["sent"] for flood in seen.values()) - arrived
        self.assertEqual(statistics["overrun"], 0)
        self.assertGreaterEqual(statistics["packets"], arrived)
        self.assertLessEqual(lost, statistics["dropped"])
        self.assertLess(statistics["dropped"], lost + 20)
        self.assertLessEqual(statistics["queue_bytes_peak"], QUEUE)

    def fields(self, seen):
        """The ECN fields of the datagrams that arrived, by version."""
        return {version: [ecn for _, ecn, _ in flood["arrived"]] for version, flood in seen.items()}

    def test_marks_datagrams_that_are_ecn_capable(self):
        seen, statistics = self.run_case("capable")
        self.check_flood(seen, statistics)
        for version, fields in self.fields(seen).items():
            with self.subTest(version=version):
                below = MARK // (PAYLOAD + FAMILIES[version][1]) - 1
                self.assertEqual(fields[:below], [CAPABLE_0] * below)
                self.assertEqual(set(fields), {CAPABLE_0, CONGESTION})
        self.assertEqual(statistics["marked"], sum(fields.count(CONGESTION) for fields in self.fields(seen).values()))

    def test_drops_but_does_not_mark_others(self):
        seen, statistics = self.run_case("not_capable")
        self.check_flood(seen, statistics)
        for fields in self.fields(seen).values():
            self.assertEqual(set(fields), {0})
        self.assertEqual(statistics["marked"], 0)

    def test_a_tcp_flow_passes(self):
        seen, statistics = self.run_case("tcp")
        self.assertEqual(seen, {version: {"right": True, "ecn": True} for version in FAMILIES})
        self.assertGreater(statistics["bytes"], 2_000_000)
        self.assertEqual(statistics["refused"], 0)


class Testbed(Bottleneck):
    def test_hosts_on_both_sides_and_the_commands_exit_code(self):
        script = 'echo "$LEFT|$RIGHT|$L1_IP4|$R2_IP6"; ip -n "$R2" -6 -o addr show dev eth0 | cut -d" " -f7; exit 7'
        with RunningTestbed("--left", "2", "--right", "3", "--", "sh", "-c", script) as process:
            self.assertEqual(process.wait(LIMIT), 7, process.err)
            left, right, ip4, ip6 = process.out[0].split("|")
            self.assertEqual((len(left.split()), len(right.split()), ip4, ip6), (2, 3, "10.77.1.11", "fd77:2::12"))
            self.assertIn("fd77:2::12/64", process.out)
            self.expect_gone(process)

    def test_a_signal_takes_everything_down(self):
        script = 'ip netns exec "$L0" tail -f /dev/null & echo up; wait'
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number=number), RunningTestbed("--", "sh", "-c", script) as process:
                process.wait_line(process.out, "up", LIMIT)
                self.assertTrue(self.hosts(process) <= netns.names())
                process.signal(number)
                self.assertEqual(process.wait(LIMIT), 128 + number)
                self.expect_gone(process)

    def test_without_its_bottleneck_there_is_no_result(self):
        with RunningTestbed("--", "sh", "-c", 'echo up; tail -f /dev/null') as process:
            process.wait_line(process.out, "up", LIMIT)
            bottleneck = next(pid for pid, command in cli.children_of(process.pid).items() if command[0] == BOTTLENECK)
            os.kill(bottleneck, signal.SIGKILL)
            self.assertEqual(process.wait(LIMIT), 1)
            self.assertIn("testbed: the bottleneck ended before the command", process.err)
            self.expect_gone(process)

    def test_bad_usage(self):
        for arguments in (["--", "true", "--rate"], ["--rate", "1gbit"], ["--left", "0", "--", "true"], ["--left"]):
            with self.subTest(arguments=arguments):
                result = subprocess.run([TESTBED, *arguments], capture_output=True, text=True, timeout=LIMIT,
                                        env=cli.environment({"BOTTLENECK": BOTTLENECK}))
                self.assertEqual(result.returncode, 2, result.stderr)


class Usage(unittest.TestCase):
    FLAGS = ["--left", "a-gone", "--right", "b-gone", "--rate", "1mbit"]

    def run_it(self, *arguments, **more):
        return subprocess.run([BOTTLENECK, *arguments], capture_output=True, text=True, timeout=LIMIT, **more)

    def test_help_teaches(self):
        result = self.run_it("--help")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for word in ("--rate", "--mark", "queue_bytes_peak", "ip netns add"):
            self.assertIn(word, result.stdout)

    def expect_one_line(self, result, code, word):
        self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
        self.assertRegex(result.stderr, r"\Abottleneck: [^\n]+\n\Z")
        self.assertIn(word, result.stderr)

    def test_bad_usage_is_one_line_and_2(self):
        for arguments, word in (([], "required"), (self.FLAGS[:4], "--rate"), ([*self.FLAGS, "--rate", "fast"], "--rate"),
                                ([*self.FLAGS, "--delay", "5"], "--delay"), ([*self.FLAGS, "--queue", "1kB"], "--queue"),
                                ([*self.FLAGS, "--mark", "-1B"], "--mark"), ([*self.FLAGS, "--interval", "0s"], "--interval"),
                                ([*self.FLAGS, "--mtu", "100"], "--mtu"), ([*self.FLAGS, "--device", "d" * 16], "--device"),
                                ([*self.FLAGS, "--bogus"], "--bogus")):
            with self.subTest(arguments=arguments):
                self.expect_one_line(self.run_it(*arguments), 2, word)

    def test_a_namespace_that_is_not_there(self):
        self.expect_one_line(self.run_it(*self.FLAGS), 1, "'a-gone'")

    def test_without_permission(self):
        def give_up_rights():
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)

        own = f"/proc/{os.getpid()}/ns/net"
        self.expect_one_line(self.run_it("--left", own, "--right", own, "--rate", "1mbit", preexec_fn=give_up_rights), 1,
                             "needs root")


def main():
    global BOTTLENECK, TESTBED
    if len(sys.argv) == 3 and sys.argv[1] == "inside":
        print(json.dumps(CASES[sys.argv[2]]()))
        return
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    BOTTLENECK, TESTBED = (os.path.abspath(sys.argv.pop(1)) for _ in range(2))
    netns.skip_if_not_permitted(lambda: os.close(os.open("/dev/net/tun", os.O_RDWR)))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends a test ends its processes too
    unittest.main(module="__main__", verbosity=2)


if __name__ == "__main__":
    main()
