"""RoCEv2 packets as scapy, an independent program, sees them."""
import logging

logging.getLogger("scapy").setLevel(logging.ERROR)  # at start it warns of interfaces without addresses

from scapy.contrib.roce import BTH  # noqa: E402
from scapy.layers.l2 import Ether  # noqa: E402


def roce(frame):
    """The base transport header of an Ethernet frame, with all behind it; None: it is no RoCEv2 packet over IPv4."""
    packet = Ether(frame)
    return packet[BTH] if BTH in packet else None


def icrc_is_right(header):
    return header.compute_icrc(b"") == header.icrc.to_bytes(4, "big")
