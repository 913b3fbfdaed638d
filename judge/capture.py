"""Datagrams of pcap files, in the order of their time stamps."""
import heapq
import struct
from collections import namedtuple

# `frame`: the packet's number in its file, from 1 on, as Wireshark counts. Endpoints are (address bytes, port); an Ethernet
# frame that is not IP has the EtherType as its port.
Datagram = namedtuple("Datagram", "time file frame source target payload ecn")


class Unreadable(Exception):
    pass


LINK_HEADERS = {0: 4, 1: 14, 101: 0, 113: 16, 228: 0, 229: 0, 276: 20}  # BSD loopback, Ethernet, raw IP, Linux "any" (1, 2)


def endpoint_text(endpoint):
    address, port = endpoint
    if len(address) == 4:
        return ".".join(map(str, address)) + f":{port}"
    return "[" + ":".join(f"{a << 8 | b:x}" for a, b in zip(address[::2], address[1::2])) + f"]:{port}"


def is_multicast(endpoint):
    address = endpoint[0]
    return address[0] == 0xff if len(address) == 16 else address[0] >> 4 == 14


def records(path):
    with open(path, "rb", buffering=1 << 20) as file:
        header = file.read(24)
        magic = header[:4]
        orders = {b"\xd4\xc3\xb2\xa1": ("<", 1e-6), b"\x4d\x3c\xb2\xa1": ("<", 1e-9),
                  b"\xa1\xb2\xc3\xd4": (">", 1e-6), b"\xa1\xb2\x3c\x4d": (">", 1e-9)}
        if len(header) < 24 or magic not in orders:
            raise Unreadable(f"{path}: not a pcap file (of pcapng: editcap -F pcap IN OUT)")
        order, unit = orders[magic]
        link = struct.unpack(order + "I", header[20:])[0] & 0xffff
        if link not in LINK_HEADERS:
            raise Unreadable(f"{path}: link type {link} is none that the judge knows")
        record, number = struct.Struct(order + "IIII"), 0
        while len(head := file.read(16)) == 16:
            seconds, fraction, kept, length = record.unpack(head)
            frame, number = file.read(kept), number + 1
            if kept < length or len(frame) < kept:
                raise Unreadable(f"{path}: packet {number} is cut short: capture with a snapshot length of 262144")
            yield seconds + fraction * unit, path, number, link, frame


def datagram(time, path, number, link, frame):
    """None: no UDP over IP."""
    at = LINK_HEADERS[link]
    if link == 1:
        while frame[at - 2:at] == b"\x81\x00":  # 802.1Q
            at += 4
    ip = frame[at:]
    if len(ip) < 28:
        return None
    if ip[0] >> 4 == 4 and ip[9] == 17:
        if struct.unpack(">H", ip[6:8])[0] & 0x3fff:
            raise Unreadable(f"{path}: packet {number} is a fragment: the judge puts none together")
        source, target, ecn = ip[12:16], ip[16:20], ip[1] & 3
        udp = ip[(ip[0] & 15) * 4:]
    elif ip[0] >> 4 == 6 and ip[6] == 17 and len(ip) >= 48:
        source, target, ecn = ip[8:24], ip[24:40], ip[1] >> 4 & 3
        udp = ip[40:]
    else:
        return None
    source_port, target_port, length = struct.unpack(">HHH", udp[:6])
    if length < 8:  # a train of more than 65535 bytes
        length = len(udp)
    return Datagram(time, path, number, (source, source_port), (target, target_port), udp[8:length], ecn)


def datagrams(paths):
    streams = [records(path) for path in paths]
    for record in streams[0] if len(streams) == 1 else heapq.merge(*streams, key=lambda r: r[0]):
        found = datagram(*record)
        if found is not None:
            yield found
