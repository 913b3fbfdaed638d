"""Network namespaces, for tests that need hosts of their own: their links, what runs and the sockets inside them, and whether they are
permitted here."""
import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

import cli_support as cli

SKIPPED = 77  # exit code of a test that cannot run here


def enter(namespace):
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0x40000000) != 0:  # CLONE_NEWNET
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def open_socket(namespace, family, kind, protocol=0):
    """A socket of that namespace, wherever it is used."""
    home, there = os.open("/proc/thread-self/ns/net", os.O_RDONLY), os.open("/run/netns/" + namespace, os.O_RDONLY)
    try:
        enter(there)
        try:
            return socket.socket(family, kind, protocol)
        finally:
            enter(home)
    finally:
        os.close(home)
        os.close(there)


def ip(*words):
    """Runs ip(8); what it complains of is an error."""
    made = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    if made.returncode != 0:
        raise OSError(f"ip {' '.join(map(str, words))}: {made.stderr.strip()}")


def names():
    """Of all that are there."""
    return {line.split()[0] for line in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=False).stdout.splitlines()}


def alone(*more):
    """What to write before a command that is to have a network of its own, and `more` of unshare(1)."""
    return ["unshare", "--net", *more, *(["--map-root-user"] if os.geteuid() else [])]


def add(*hosts):
    """Makes hosts, each with its loopback device."""
    for host in hosts:
        ip("netns", "add", host)
        ip("-n", host, "link", "set", "lo", "up")


def remove(*hosts):
    """As far as they are there."""
    for host in hosts:
        subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)


def wire(host, device, other, peer="eth0", more=(), silent=False):
    """A link between two hosts. `more`: settings of both ends. `silent`: the kernel itself says nothing at `device`."""
    ip("-n", host, "link", "add", device, *more, "type", "veth", "peer", "name", peer, *more, "netns", other)
    ip("-n", host, "link", "set", device, *(("addrgenmode", "none") if silent else ()), "up")
    ip("-n", other, "link", "set", peer, "up")


def bridge(network, name="bridge0"):
    ip("-n", network, "link", "add", name, "type", "bridge")
    ip("-n", network, "link", "set", name, "up")


def bridged(network, port, host, device="eth0", more=()):
    """A link from the network's bridge to a host."""
    wire(network, port, host, device, more)
    ip("-n", network, "link", "set", port, "master", "bridge0")


def address(host, device, *addresses):
    for each in addresses:
        ip("-n", host, "addr", "add", each, "dev", device, *(("nodad",) if ":" in each else ()))


def links(host, device=None):
    """What ip(8) says of them."""
    shown = subprocess.run(["ip", "-n", host, "-s", "-j", "link", "show", *([device] if device else [])], capture_output=True, check=True)
    return json.loads(shown.stdout)


def command(host, *words):
    """A program and its arguments, to be run on that host; None: on this one."""
    return [*(["ip", "netns", "exec", host] if host else []), *map(str, words)]


def run(host, *words, limit=20, given=None):
    """A finished run there: returncode, stdout, stderr."""
    return subprocess.run(command(host, *words), capture_output=True, text=True, timeout=limit, env=cli.environment(), input=given, check=False)


def status(host, at, *more):
    """Of the daemon there, as the host sees it."""
    return json.loads(cli.checked(run(host, cli.NETSUM, "status", "--switch", at, "--json", *more)).stdout)


class Inside(cli.Process):
    """A running netsum on a host, or another program."""

    def __init__(self, host, *arguments, program=None):
        first, *words = command(host, program or cli.NETSUM, *arguments)
        super().__init__(*words, program=first)


def daemon(host, which, listen, *arguments):
    process = Inside(host, which, "--listen", listen, *arguments)
    process.wait_line(process.out, "listening ")
    return process


class Ranks:
    """Running ranks of a benchmark, processes of cli_support, for the length of a `with`."""

    def __init__(self, ranks):
        self.ranks = list(ranks)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.__exit__()

    def codes(self, seconds=60):
        return [rank.wait(seconds) for rank in self.ranks]

    def hash(self, seconds=60):
        """Of all ranks' results, which are right."""
        for number, code in enumerate(self.codes(seconds)):
            if code != 0:
                raise AssertionError(f"rank {number} ended with {code}: {self.ranks[number].err}")
        reports = [json.loads("\n".join(rank.out)) for rank in self.ranks]
        if any(report["wrong"] for report in reports) or len({report["result_hash"] for report in reports}) != 1:
            raise AssertionError(reports)
        return reports[0]["result_hash"]


def sends_whole(host, to, size):
    """Whether a datagram of that many bytes gets there without fragments, from host to (host, address)."""
    namespace, address = to
    discover, never_cut = 10, 2  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
    with open_socket(host, socket.AF_INET, socket.SOCK_DGRAM) as sender, open_socket(namespace, socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind((address, 0))
        receiver.settimeout(2)
        sender.setsockopt(socket.IPPROTO_IP, discover, never_cut)
        sender.sendto(bytes(size), receiver.getsockname())
        try:
            return len(receiver.recv(65536)) == size
        except TimeoutError:
            return False


def carry(data, source, sink, seconds=60):
    """Sends the bytes by TCP from one (host, address) to another. Returns the seconds that it took; another content is an error."""
    with open_socket(source[0], socket.AF_INET, socket.SOCK_STREAM) as client, open_socket(sink[0], socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((sink[1], 0))
        listener.listen()
        for each in (client, listener):
            each.settimeout(seconds)
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        received = bytearray(len(data))
        begin = time.monotonic()
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        with server:
            server.settimeout(seconds)
            at, place = 0, memoryview(received)
            while at < len(data):
                got = server.recv_into(place[at:])
                if got == 0:
                    break
                at += got
        took = time.monotonic() - begin
        sender.join()
        if received != data:
            raise AssertionError(f"{at} of {len(data)} bytes arrived, or others")
        return took


def set_offload(namespace, device, which, value):
    ethtool = 0x8946  # SIOCETHTOOL
    request = ctypes.create_string_buffer(struct.pack("II", which, value))
    with open_socket(namespace, socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, ethtool, struct.pack("16sP16x", device.encode(), ctypes.addressof(request)))


def poll_for_frames(namespace, device, polls=True):
    """Of a veth that is up, by generic receive offload: otherwise the other end's XDP program can send it nothing."""
    set_offload(namespace, device, 0x2c, int(polls))  # ETHTOOL_SGRO


def cut_before_sending(namespace, device):
    """Trains of datagrams, which a veth takes as they are: as ethtool -K DEVICE tx-udp-segmentation off."""
    count_of, names_of, set_features, of_features = 0x37, 0x1b, 0x3b, 4  # ETHTOOL_GSSET_INFO, _GSTRINGS, _SFEATURES, ETH_SS_FEATURES
    with open_socket(namespace, socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        def ask(request):
            fcntl.ioctl(any_socket, 0x8946, struct.pack("16sP16x", device.encode(), ctypes.addressof(request)))  # SIOCETHTOOL
            return request.raw
        count = struct.unpack_from("I", ask(ctypes.create_string_buffer(struct.pack("IIQI", count_of, 0, 1 << of_features, 0))), 16)[0]
        raw = ask(ctypes.create_string_buffer(struct.pack("III", names_of, of_features, count), 12 + 32 * count))
        bit = [raw[12 + 32 * i:44 + 32 * i].split(b"\0")[0] for i in range(count)].index(b"tx-udp-segmentation")
        blocks = [(1 << bit % 32 if bit // 32 == block else 0, 0) for block in range((count + 31) // 32)]
        ask(ctypes.create_string_buffer(struct.pack("II", set_features, len(blocks)) + b"".join(struct.pack("II", *each) for each in blocks)))


def sum_before_sending(namespace, device):
    """Checksums are in the packets, for who takes them from the other end of a veth."""
    set_offload(namespace, device, 0x17, 0)  # ETHTOOL_STXCSUM


def refusal(also=lambda: None):
    """Why nobody may make network namespaces here, or what OSError `also` raises; None: all is well."""
    name = f"netns-probe{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
        also()
    except OSError as error:
        return error
    return None


def skip_if_not_permitted(also=lambda: None):
    """Ends the process where there is a refusal."""
    error = refusal(also)
    if error:
        print(f"skipped: network namespaces are not permitted here: {error}", file=sys.stderr)
        sys.exit(SKIPPED)
