"""Virtual machines with soft-RoCE, bumps in the wire, and relays between network cards and the bumps' ports.

    card of guest N  <- unix datagrams: a frame each ->  relay N  <- likewise ->  port N of the switch

A relay keeps what passes it, and loses what it is told to. One more relay waits for a card that is no guest's. A second card of
each guest leads to this machine's own 127.0.0.1, as 10.0.2.2, and nowhere else.
"""
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time

from cli_support import until

BOOT_LIMIT, LIMIT = 300, 120  # seconds; guests are emulated
FIRST, MIDDLE, LAST, ACKNOWLEDGE = 0x06, 0x07, 0x09, 0x11  # opcodes of WRITE_WITH_IMM's packets, and of answers


def opcode(frame):
    """Of a RoCEv2 packet in an untagged IPv4 frame; None: it is none."""
    roce = len(frame) >= 58 and frame[12:14] == b"\x08\x00" and frame[14] == 0x45 and frame[23] == 17
    return frame[42] if roce and frame[36:38] == b"\x12\xb7" else None


def psn(frame):
    """Of such a packet."""
    return int.from_bytes(frame[51:54], "big")


class Loss:
    """Loses the `number`th frame of an opcode; of those with a PSN, if one is given."""

    def __init__(self, wanted, number, psn=None):
        self.opcode, self.number, self.psn = wanted, number, psn
        self.seen, self.lost = 0, None

    def takes(self, frame):
        if opcode(frame) != self.opcode or self.psn not in (None, psn(frame)):
            return False
        self.seen += 1
        if self.seen == self.number:
            self.lost = frame
            return True
        return False


class Way:
    """One direction of a relay."""

    def __init__(self, passed, source, sink, address):
        self.passed, self.source, self.sink, self.address = passed, source, sink, address
        self.loss = None
        self.last_roce = 0.0  # when the last RoCEv2 packet passed
        threading.Thread(target=self.run, daemon=True).start()

    @property
    def frames(self):
        return [frame for way, frame in list(self.passed) if way is self]

    def run(self):
        while True:
            frame = self.source.recv(65536)
            loss = self.loss
            if loss and loss.takes(frame):
                continue
            if opcode(frame) is not None:
                self.last_roce = time.monotonic()
            self.passed.append((self, frame))  # first: who receives it may answer at once
            try:
                self.sink.sendto(frame, self.address)
            except OSError:
                pass  # nobody is there: a wire that is cut


class Relay:
    def __init__(self, run, number):
        path = {name: os.path.join(run, name + str(number)) for name in ("card", "to_card", "to_port", "port")}
        ends = []
        for name in ("to_card", "to_port"):
            ends.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            ends[-1].bind(path[name])
        self.netdev = ("dgram,id=net,local.type=unix,local.path={card},remote.type=unix,remote.path={to_card}").format(**path)
        self.port = "qemu:{port},{to_port}".format(**path)
        self.card = "qemu:{card},{to_card}".format(**path)  # of what is no guest
        self.passed = []  # ways and frames, in order
        self.inwards = Way(self.passed, ends[0], ends[1], path["port"])  # to the switch
        self.outwards = Way(self.passed, ends[1], ends[0], path["card"])

    def ways(self):
        return (self.inwards, self.outwards)


class Guest:
    def __init__(self, image, run, number, relay):
        self.number, self.address = number, f"10.0.0.{number + 1}"
        self.mac = bytes([0x52, 0x54, 0, 0, 0, number + 1])
        self.log = os.path.join(run, f"guest{number}.log")
        console = os.path.join(run, f"console{number}")
        # Whole frames: there is no room between card and relay for what is left to be done to one.
        whole = ",".join(f"{name}=off" for name in ("csum", "guest_csum", "gso", "host_tso4", "host_tso6", "host_ufo",
                                                    "guest_tso4", "guest_tso6", "guest_ufo"))
        self.process = subprocess.Popen(
            ["nice", "-n", "5", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-m", "384", "-smp", "1", "-nodefaults",
             "-no-user-config", "-display", "none", "-no-reboot",
             "-kernel", os.path.join(image, "vmlinuz"), "-initrd", os.path.join(image, "initramfs"),
             # Without the check of the timer, which panics where the host is too busy for it.
             "-append", f"console=ttyS0 quiet panic=-1 no_timer_check mitigations=off guest.address={self.address}/24",
             "-serial", f"file:{self.log}", "-chardev", f"socket,id=console,path={console},server=on,wait=off",
             "-serial", "chardev:console", "-netdev", relay.netdev,
             "-device", f"virtio-net-pci,netdev=net,mac={self.mac.hex(':')},romfile=,{whole}",
             "-netdev", "user,id=host", "-device", "virtio-net-pci,netdev=host,romfile="],
            stdin=subprocess.DEVNULL)
        self.console, self.pending, self.busy = socket.socket(socket.AF_UNIX), b"", False
        self.path = console

    def line(self, seconds):
        """The next one that it writes; None: not in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.pending:
            self.console.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                piece = self.console.recv(65536)
            except socket.timeout:
                return None
            if not piece:
                raise EOFError(f"guest {self.number} is gone")
            self.pending += piece
        line, self.pending = self.pending.split(b"\n", 1)
        return line.decode(errors="replace").rstrip("\r")

    def wait_ready(self, seconds):
        deadline = time.monotonic() + seconds
        # The socket's file is there before QEMU listens.
        until(lambda: self.process.poll() is not None or self.console.connect_ex(self.path) == 0, seconds, "QEMU starts")
        if self.process.poll() is not None:
            with open(self.log, errors="replace") as file:
                raise AssertionError(f"guest {self.number}: QEMU has ended with {self.process.returncode}: {file.read()[-2000:]}")
        # Asked until it answers, because input before it listens may be lost; the answer to the last question ends it.
        for number in range(1_000_000):
            # A guest that takes long to boot reads nothing, until there is no room for another question.
            if select.select([], [self.console], [], 0)[1]:
                self.console.send(f"test -e /run/ready && echo ready {number}\n".encode())
            while (line := self.line(1)) is not None:
                if line == f"ready {number}":
                    while not (line := self.line(5)) or not line.startswith("@@rc="):
                        pass
                    return
            if time.monotonic() > deadline:
                raise AssertionError(f"guest {self.number} did not boot within {seconds} s: {self.log}")

    def start(self, command):
        self.console.sendall(command.encode() + b"\n")
        self.busy = True

    def finish(self, seconds):
        """Exit code and output of what was started."""
        deadline, lines = time.monotonic() + seconds, []
        while True:
            line = self.line(deadline - time.monotonic())
            if line is None:
                raise AssertionError(f"guest {self.number} has not finished within {seconds} s: {lines}")
            if line.startswith("@@rc="):
                self.busy = False
                return int(line[5:]), "\n".join(lines)
            lines.append(line)

    def end(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Bump:
    """A `netsum bump`, named in the run's folder."""

    def __init__(self, netsum, run, name, *words):
        self.netsum = netsum
        # Guests that are emulated may be silent for seconds.
        words = [netsum, "bump", "--heartbeat-timeout-ms", "20000", *words]
        log = os.path.join(run, name + ".log")
        with open(log, "a") as file:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening "):
            with open(log) as file:
                raise AssertionError(f"netsum bump has not begun: {file.read()}")
        self.address = line.split()[1]

    def report(self):
        def asked():
            return subprocess.run([self.netsum, "status", "--switch", self.address, "--json"], capture_output=True, text=True,
                                  timeout=LIMIT).stdout
        return json.loads(until(asked, LIMIT, "netsum bump answers"))

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.wait(10)
        self.process.stdout.close()


class Rig:
    """Relay N is guest N's; the last one is for what is no guest, and may join two bumps' ports."""

    def __init__(self, image, run, guests):
        self.relays = [Relay(run, number) for number in range(guests + 1)]
        self.guests = [Guest(image, run, number, relay) for number, relay in enumerate(self.relays[:guests])]

    def wait_ready(self):
        for guest in self.guests:
            guest.wait_ready(BOOT_LIMIT)

    def start_bench(self, job, aggregators, iterations, *options):
        """`netsum bench` in all guests, over verbs; aggregators: each guest's options that name them."""
        for guest, named in zip(self.guests, aggregators):
            words = ["--protocol", "netreduce", "--verbs", "rxe0", *named, "--job", job, "--rank", guest.number,
                     "--world-size", len(self.guests), "--slots", 4, "--message-packets", 16, "--iterations", iterations,
                     "--warmup", 0, "--connect-deadline", 60, "--json", *options]
            guest.start(f"netsum bench all-reduce {' '.join(map(str, words))} 2>/tmp/log || "
                        "{ code=$?; cat /tmp/log; exit $code; }")

    def run(self, commands):
        """One command for each guest, or None, at the same time; exit codes and outputs."""
        busy = [(guest, command) for guest, command in zip(self.guests, commands) if command]
        for guest, command in busy:
            guest.start(command)
        return [guest.finish(LIMIT) for guest, _ in busy]

    def finish(self):
        """Exit code and output of what was started in each guest."""
        return [guest.finish(LIMIT) for guest in self.guests]

    def finish_all(self):
        """What a test that failed has left behind."""
        for guest in self.guests:
            if guest.busy:
                guest.finish(LIMIT)

    def silent(self):
        """Seconds since the last RoCEv2 packet."""
        return time.monotonic() - max(way.last_roce for relay in self.relays for way in relay.ways())

    def forget(self):
        """Of what passed, and of losses."""
        for relay in self.relays:
            for way in relay.ways():
                way.loss = None
            relay.passed.clear()

    def end(self):
        for guest in self.guests:
            guest.end()
