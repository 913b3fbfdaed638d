#!/usr/bin/python3
"""Strangers who know no token, and whoever reaches a daemon that has none, do all that one core can to its control connections:
others' jobs start, run right and take at most 1.3 times as long as beside a process that is as busy, the daemon takes little
memory, its log stays short, and SIGTERM ends it at once.

usage: hostile_strangers.py NETSUM [--seconds S] [--limit RATIO] [unittest arguments]

S: how long each test attacks (60). RATIO: in place of 1.3; 0: no times are compared.
"""
import collections
import ctypes
import json
import os
import re
import resource
import select
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import cli_support as cli
import hostile_tenant

SECONDS, LIMIT = 60, 1.3
MOST_BYTES = 64 << 20
FEWEST_JOBS = 7  # of each kind, if their times are compared
ENDS_WITHIN = 3
PR_SET_PDEATHSIG = 1

# ---- the attack: python3 hostile_strangers.py --attack HOST:PORT KIND...

MAGIC = b"netsum 2\r\n\r\n"
GREETING, PROOFS, STATUS, INSTALL = 1, 3, 20, 21
LONGEST = 4 << 20  # of any frame


def frame(kind, payload=b"", length=None):
    return struct.pack("<IBBH", len(payload) if length is None else length, kind, 0, 0) + payload


def greeting(fingerprint):
    fields = (b"stranger", fingerprint, bytes(16))
    return MAGIC + frame(GREETING, b"".join(bytes([tag << 3 | 2, len(text)]) + text for tag, text in enumerate(fields, 1)))


def connect(address, source="127.0.0.1"):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(1)
    connection.bind((source, 0))
    connection.connect(address)
    return connection


def fingerprint_of(address):
    """The daemon says it to those that have another one."""
    with connect(address) as connection:
        connection.sendall(greeting(b"none"))
        said = b""
        while part := connection.recv(4096):
            said += part
    return re.search(rb"daemon runs netsum \S+ \(layouts (\w+)\)", said)[1]


def client_hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()


class Kept:
    """Connections that begin with the same bytes; another one for each that the daemon ends."""

    def __init__(self, address, most, begin, hosts=("127.0.0.1",), a_turn=20, drips=False, resets=False, renews=False):
        self.address, self.most, self.begin, self.hosts, self.a_turn = address, most, begin, hosts, a_turn
        self.drips, self.resets, self.renews = drips, resets, renews
        self.open, self.poll, self.made, self.next_drip = {}, select.poll(), 0, 0

    def turn(self):
        for number, _ in self.poll.poll(0):
            self.close(number)
        if self.renews and len(self.open) == self.most:  # who does not read does not notice the end
            self.close(next(iter(self.open)))
        for _ in range(min(self.a_turn, self.most - len(self.open))):
            try:
                self.add(connect(self.address, self.hosts[self.made % len(self.hosts)]))
            except OSError:
                pass  # it hung up on us
        if self.drips and time.monotonic() > self.next_drip:
            self.next_drip = time.monotonic() + 1
            for connection in self.open.values():
                try:
                    connection.send(b"d")
                except OSError:
                    pass

    def close(self, number):
        self.poll.unregister(number)
        self.open.pop(number).close()

    def add(self, connection):
        self.made += 1
        try:
            connection.sendall(self.begin)
            if self.resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return connection.close()
        except TimeoutError:  # it does not read: that is what the connection is for
            pass
        self.open[connection.fileno()] = connection
        self.poll.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)


def attacks(address):
    """Each says what it is by its name."""
    def proved():  # at a daemon without a token
        return greeting(fingerprint_of(address)) + frame(PROOFS)
    several_hosts = [f"127.0.0.{number}" for number in range(2, 8)]  # each may have 1024 connections
    return {
        "silent": lambda: Kept(address, 600, b""),
        "too_long": lambda: Kept(address, 100, MAGIC + frame(GREETING, length=0xffffffff)),
        "dripping": lambda: Kept(address, 300, MAGIC + frame(GREETING, length=1000), drips=True),
        "resets": lambda: Kept(address, 20, greeting(fingerprint_of(address)), resets=True),
        "plain": lambda: Kept(address, 8000, greeting(b"none")),
        "unfinished": lambda: Kept(address, 600, client_hello()),
        "begun": lambda: Kept(address, 4096, proved() + frame(INSTALL, bytes(16 << 10), LONGEST), several_hosts, a_turn=100),
        "unread": lambda: Kept(address, 200, proved() + frame(STATUS) * 1000, several_hosts, renews=True),
        # Buffers that were large once.
        "large": lambda: Kept(address, 1000, proved() + frame(INSTALL, bytes(LONGEST)) + frame(STATUS), several_hosts, a_turn=1),
    }


def attack(address, *names):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    host, port = address.rsplit(":", 1)
    kinds = {name: attacks((host, int(port)))[name]() for name in names}
    print("attacking", flush=True)
    while not stopping:
        for kept in kinds.values():
            kept.turn()
    print(json.dumps({name: kept.made for name, kept in kinds.items()}), flush=True)


# ---- what the daemon makes of it


class Attack(hostile_tenant.Other):
    """Without kinds: a process that is as busy, and talks to nobody."""

    def __init__(self, address, *kinds):
        cli.Process.__init__(self, __file__, "--attack", address, *kinds, program=sys.executable)
        self.wait_line(self.out, "attacking")
        self.seconds = 0
        self.signal(signal.SIGSTOP)


class Attacked(hostile_tenant.Daemons):
    """A switch, and who uses it by right."""

    def __init__(self, daemon, rank):
        self.switch, self.flags = cli.Switch(*daemon), rank

    def __exit__(self, *_):
        self.switch.__exit__()

    def seconds(self):
        took, errors = self.job("switchml")
        if errors:
            raise AssertionError("\n".join(errors))
        return took

    def peak(self, reset=False):
        """The most bytes of memory since the last reset."""
        if reset:
            with open(f"/proc/{self.switch.pid}/clear_refs", "w") as out:
                out.write("5")
        with open(f"/proc/{self.switch.pid}/status") as status:
            return int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) << 10


class HostileStrangers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda name: os.path.join(folder.name, name)

    def token(self):
        with open(self.path("token"), "w") as out:
            out.write("a secret of the ranks'\n")
        return ["--token-file", self.path("token")]

    def check(self, daemon, rank, *kinds):
        with Attacked(daemon, rank) as attacked, Attacked(daemon, rank) as quiet, \
                Attack(attacked.switch.address, *kinds) as strangers, Attack("nobody:0") as busy:
            attacked.seconds()
            before, seconds = attacked.peak(reset=True), collections.defaultdict(list)
            while strangers.seconds < SECONDS or len(seconds["quiet"]) < (FEWEST_JOBS if LIMIT else 0):
                seconds["attacked"].append(strangers.beside(attacked.seconds))
                if LIMIT:
                    seconds["quiet"].append(busy.beside(quiet.seconds, strangers))
            grown = attacked.peak() - before
            lines = [line for line in attacked.switch.err if "job '" not in line]
            strangers.signal(signal.SIGCONT)
            began = time.monotonic()
            attacked.switch.signal(signal.SIGTERM)
            code, took = attacked.switch.wait(20), time.monotonic() - began
            made = strangers.stop()
        print(f"{made} connections in {strangers.seconds:.0f} s; {grown >> 20} MB more; {len(lines)} lines; ended in {took:.1f} s; "
              f"{len(seconds['attacked'])} jobs", file=sys.stderr)
        self.assertLessEqual(grown, MOST_BYTES)
        self.assertEqual(code, 0)
        self.assertLess(took, ENDS_WITHIN)
        # A host's connections have a line a minute; all refusals have 20 in 10 s.
        self.assertLess(len(lines), 40 + 2 * strangers.seconds, lines[:50])
        for kind in kinds:
            self.assertGreater(made[kind], 0, kind)
        if LIMIT:
            of = {where: statistics.median(each) for where, each in seconds.items()}
            print(f"{of['attacked']:.2f} s attacked, {of['quiet']:.2f} s not", file=sys.stderr)
            self.assertLessEqual(of["attacked"], LIMIT * of["quiet"])

    def test_at_a_daemon_with_a_token(self):
        self.check(self.token(), self.token(), "silent", "too_long", "dripping", "resets")

    def test_at_one_with_tls(self):
        certificate, key = self.path("cert.pem"), self.path("key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
                       check=True, capture_output=True, timeout=60)
        self.check(["--tls-cert", certificate, "--tls-key", key, *self.token()], ["--tls-ca", certificate, *self.token()],
                   "silent", "plain", "unfinished")

    def test_at_one_without_a_token(self):
        self.check([], [], "begun", "unread", "large")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--attack"]:
        sys.exit(attack(*sys.argv[2:]))
    while len(sys.argv) > 3 and sys.argv[2] in ("--seconds", "--limit"):
        flag, value = sys.argv.pop(2), float(sys.argv.pop(2))
        if flag == "--seconds":
            SECONDS = value
        else:
            LIMIT = hostile_tenant.LIMIT = value
    cli.main()
