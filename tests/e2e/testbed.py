#!/usr/bin/python3
"""The testbed's links as sockets see them: who reaches whom, how fast, what is lost; and that nothing of it stays behind.

usage: testbed.py TESTBED [unittest arguments]

Traffic runs inside scripts/testbed, whose command is this file again (`testbed.py inside CASE`): it opens sockets in the
testbed's namespaces and prints what they saw as JSON. Exit code 77: network namespaces are not permitted here.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

import cli_support as cli
import netns_support as netns

TESTBED = None
LIMIT = 60  # seconds, for what takes one

RATE = 8_000_000
PAYLOAD = 1400
FRAME = PAYLOAD + 42
COUNT = 90  # datagrams that fit a queue of 150 kB
SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35  # what Python does not name
END = b"end"


# Inside the testbed: its environment says where.

def open_socket(host):
    made = netns.open_socket(os.environ[host], socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(LIMIT)
    return made


def send(origin, target, count):
    """How many of `count` datagrams from one host arrive at the other, and the seconds until the last.

    Nothing overtakes: what says that all were sent comes last. It is repeated until it arrives, as it may be lost too."""
    with open_socket(origin) as sender, open_socket(target) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind(("", 0))
        sender.connect((os.environ[target + "_IP4"], receiver.getsockname()[1]))
        began = time.time()  # the clock of SO_TIMESTAMPNS
        for number in range(count):
            sender.send(number.to_bytes(4, "big") + bytes(PAYLOAD - 4))
        sender.send(END)
        receiver.settimeout(0.2)
        times = []
        for _ in range(count + LIMIT * 5):
            try:
                data, control, _, _ = receiver.recvmsg(2048, 256)
            except socket.timeout:
                sender.send(END)
                continue
            if data == END:
                return len(times), times[-1] - began if times else 0
            times.extend(int.from_bytes(value[:8], "little") + int.from_bytes(value[8:16], "little") / 1e9
                         for _, name, value in control if name == SO_TIMESTAMPNS)
        raise SystemExit("nothing arrives")


def everyone():
    """A datagram from each host to each other one and to all switches."""
    hosts = [f"H{i}" for i in range(len(os.environ["HOSTS"].split()))]
    switches = [name for name in ("SW", "SW0", "SW1") if name in os.environ]
    return {f"{origin} {target}": send(origin, target, 1)[0] for origin in hosts for target in hosts + switches if origin != target}


def loss():
    seen = {"one link": send("H0", "SW", 1000)[0], "the other way": send("SW", "H0", 1000)[0], "two links": send("H0", "H1", 1000)[0]}
    subprocess.run([os.environ["TESTBED_SCRIPT"], "loss", "0"], check=True)
    seen["later"] = send("H0", "H1", 100)[0]
    subprocess.run([os.environ["TESTBED_SCRIPT"], "loss", "0.4", "H1"], check=True)
    return dict(seen, of_others=send("H0", "H1", 100)[0], of_one=send("H1", "H0", 1000)[0])


def rates():
    return {name: send(*way, COUNT) for name, way in (("side", ("H0", "H1")), ("across", ("H0", "H2")), ("back", ("H2", "H0")))}


CASES = {"everyone": everyone, "loss": loss, "rates": rates}


# Outside.

class RunningTestbed(cli.Process):
    def __init__(self, *arguments):
        super().__init__("--rate", f"{RATE // 1000}kbit", *arguments, program=TESTBED, env={"TESTBED_SCRIPT": TESTBED})

    def __exit__(self, *failure):
        if self.process.poll() is None:  # a test failed: SIGKILL would leave the namespaces behind
            self.signal(signal.SIGTERM)
            try:
                self.wait(10)
            except subprocess.TimeoutExpired:
                pass
        super().__exit__(*failure)

    def own(self):
        """Its namespaces that there are."""
        return {name for name in netns.names() if name.startswith(f"testbed{self.pid}-")}


class Links(unittest.TestCase):
    def run_case(self, case, *arguments):
        inside = ["/usr/bin/python3", os.path.abspath(__file__), "inside", case]
        with RunningTestbed(*arguments, "--", *inside) as process:
            self.assertEqual(process.wait(LIMIT), 0, process.err)
            self.assertEqual(process.own(), set())
            return json.loads("\n".join(process.out))

    def check_rate(self, seen, expected):
        arrived, seconds = seen
        self.assertEqual(arrived, COUNT)
        # A busy machine makes it slower, and never faster: the first few come at once, the shaper's burst, and what it did
        # not send in time follows at its rate.
        self.assertGreater(COUNT * FRAME * 8 / seconds / expected, 0.3)
        self.assertLess(COUNT * FRAME * 8 / seconds / expected, 1.2)

    def test_everyone_reaches_everyone(self):
        for topology, count in (("star", 12), ("racks", 20), ("shared", 20)):
            with self.subTest(topology=topology):
                seen = self.run_case("everyone", "--topology", topology, "--hosts", "4" if topology != "star" else "3")
                self.assertEqual((len(seen), set(seen.values())), (9 if topology == "star" else count, {1}))

    def test_each_link_has_its_rate(self):
        for topology, side, across in (("star", RATE, RATE), ("racks", RATE, RATE / 2), ("shared", None, RATE)):
            with self.subTest(topology=topology):
                seen = self.run_case("rates", "--topology", topology, "--hosts", "4", "--trunk", f"{RATE // 2000}kbit")
                if side:
                    self.check_rate(seen["side"], side)
                else:  # beside each other, without a link: far faster
                    self.assertLess(seen["side"][1], seen["across"][1] / 4)
                self.check_rate(seen["across"], across)
                self.check_rate(seen["back"], across)

    def test_each_link_loses_each_way_until_told_otherwise(self):
        seen = self.run_case("loss", "--loss", "40%", "--queue", "2000000")
        # Of 1000 by 0.6 and 0.36: six standard deviations are less than 95.
        self.assertAlmostEqual(seen["one link"], 600, delta=95)
        self.assertAlmostEqual(seen["the other way"], 600, delta=95)
        self.assertAlmostEqual(seen["two links"], 360, delta=95)
        self.assertEqual(seen["later"], 100)
        self.assertEqual(seen["of_others"], 100)
        self.assertAlmostEqual(seen["of_one"], 600, delta=95)


class Life(unittest.TestCase):
    WAITING = 'ip netns exec "$H0" tail -f /dev/null & echo up; wait'

    def settings(self):
        """What it changes on all of the machine."""
        found = {}
        for path in ("/sys/module/sch_htb/parameters/htb_hysteresis", "/proc/sys/net/ipv4/tcp_allowed_congestion_control"):
            if os.path.exists(path):
                with open(path, encoding="ascii") as file:
                    found[path] = file.read()
        return found

    def test_the_commands_environment_and_exit_code(self):
        before = self.settings()
        script = 'ip netns exec "$H1" sh -c "cat /proc/sys/net/ipv4/tcp_congestion_control /sys/class/net/eth0/mtu"; exit 7'
        with RunningTestbed("--tcp", "reno,cubic", "--mtu", "9000", "--", "sh", "-c", script) as process:
            self.assertEqual(process.wait(LIMIT), 7, process.err)
            self.assertEqual(process.out, ["reno", "9000"])
            self.assertEqual(process.own(), set())
        self.assertEqual(self.settings(), before)

    def test_a_signal_takes_everything_down(self):
        before = self.settings()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number=number), RunningTestbed("--", "sh", "-c", self.WAITING) as process:
                process.wait_line(process.out, "up", LIMIT)
                self.assertEqual(len(process.own()), 3)
                process.signal(number)
                self.assertEqual(process.wait(LIMIT), 128 + number)
                self.assertEqual(process.own(), set())
        self.assertEqual(self.settings(), before)

    def test_an_error_takes_everything_down(self):
        for arguments, word in ((("--tcp", "nonesuch"), "nonesuch"), (("--loss", "40"), "a share"), (("--mtu", "99999"), "")):
            with self.subTest(arguments=arguments), RunningTestbed(*arguments, "--", "true") as process:
                self.assertNotIn(process.wait(LIMIT), (0, 77))
                self.assertIn(word, "\n".join(process.err))
                self.assertEqual(process.own(), set())

    def test_the_next_one_takes_down_what_a_killed_one_left(self):
        with RunningTestbed("--", "sh", "-c", 'echo $$; exec tail -f /dev/null') as killed:
            command = int(cli.until(lambda: killed.out, LIMIT, "its command's process")[0])
            before = killed.own()
            killed.signal(signal.SIGKILL)
            killed.process.wait(LIMIT)
            os.kill(command, signal.SIGKILL)
            self.assertEqual((len(before), killed.own()), (3, before))
            with RunningTestbed("--", "true") as process:
                self.assertEqual(process.wait(LIMIT), 0, process.err)
            self.assertEqual(killed.own(), set())

    def test_bad_usage(self):
        for arguments in (["--", "true", "--rate"], ["--rate", "1gbit"], ["--rate", "1", "--", "true"], ["--hosts", "0", "--", "true"],
                          ["--rate", "1gbit", "--check", "--", "true"], ["--topology", "ring", "--rate", "1gbit", "--", "true"],
                          ["loss", "1"], ["--bogus"]):
            with self.subTest(arguments=arguments):
                result = subprocess.run([TESTBED, *arguments], capture_output=True, text=True, timeout=LIMIT, env=cli.environment())
                self.assertEqual(result.returncode, 2, result.stderr)


def main():
    global TESTBED
    if len(sys.argv) == 3 and sys.argv[1] == "inside":
        print(json.dumps(CASES[sys.argv[2]]()))
        return
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    TESTBED = os.path.abspath(sys.argv.pop(1))
    netns.skip_if_not_permitted(lambda: os.close(os.open("/sys/module/sch_htb/parameters/htb_hysteresis", os.O_RDONLY)))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends a test ends its processes too
    unittest.main(module="__main__", verbosity=2)


if __name__ == "__main__":
    main()
