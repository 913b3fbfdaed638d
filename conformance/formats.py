"""Packets of the three protocols as fields and as bytes, by docs/protocol-*.md. Nothing of netsum is imported.

A packet is a dictionary: `type` in words, and the fields of the pages. encode() fills in checksums and ICRCs, decode() checks them.
"""
import struct
import zlib


class Malformed(Exception):
    pass


def table(polynomial):
    entries = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (value & 1) * polynomial
        entries.append(value)
    return entries


CASTAGNOLI = table(0x82f63b78)


def crc32c(data, before=0):
    state = before ^ 0xffffffff
    for byte in data:
        state = state >> 8 ^ CASTAGNOLI[(state ^ byte) & 255]
    return state ^ 0xffffffff


def fold(epochs):
    """What stands for all ranks' epochs."""
    return crc32c(b"".join(struct.pack("<I", epoch) for epoch in epochs))


def checked(data):
    """With the checksum of bytes 8 to the end, continued from bytes 0 to 3."""
    return data[:4] + struct.pack("<I", crc32c(data[8:], int.from_bytes(data[:4], "little"))) + data[8:]


def need(condition, text):
    if not condition:
        raise Malformed(text)


def words(values):
    return struct.pack(f"<{len(values)}I", *(value & 0xffffffff for value in values))


def values_of(data):
    need(len(data) % 4 == 0, f"{len(data)} bytes are no 32-bit values")
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def bits(ranks, length):
    data = bytearray(length)
    for rank in ranks:
        data[rank // 8] |= 1 << rank % 8
    return bytes(data)


def set_bits(data):
    return [8 * at + bit for at, byte in enumerate(data) for bit in range(8) if byte >> bit & 1]


# ---- SwitchML: sums of int32, which need no exponents

SWITCHML_TYPES = {"contribution": 1, "result": 3, "waiting": 5, "mismatch": 6, "unknown job": 7, "probe": 8, "probe reply": 9}
CHUNK = struct.Struct("<IQIIBBHHBB")
NONE_AHEAD = 0xff


def encode_switchml(p):
    kind = p["type"]
    if kind in ("contribution", "result"):
        body = CHUNK.pack(p["chunk"], p["operation"], p["signature"], 0, NONE_AHEAD, 0, p["slot"], len(p["values"]), 0,
                          p["version"]) + words(p["values"])
    elif kind == "waiting":
        body = struct.pack("<IQHBBI", p["chunk"], p["operation"], p["slot"], 0, 0, 0xffffffff)
        if p["missing"]:
            body += bits(p["missing"], 8 * (max(p["missing"]) // 64 + 1))
    elif kind == "mismatch":
        body = struct.pack("<IQIIHH", p["chunk"], p["operation"], *p["signatures"], *p["ranks"])
    elif kind == "probe":
        body = struct.pack("<IQ", 1, 0)
    else:
        body = b""
    return checked(struct.pack("<BBHIQI", 3, SWITCHML_TYPES[kind] | 16, p["sender"], 0, p["job_epoch"], p["rank_epoch"]) + body)


def decode_switchml(data):
    need(len(data) >= 20, f"{len(data)} bytes are no common header")
    version, kind, sender, checksum, job, rank_epoch = struct.unpack_from("<BBHIQI", data)
    need(version == 3, f"version {version}")
    protection, kind = kind >> 4, next((name for name, number in SWITCHML_TYPES.items() if number == kind & 15), None)
    need(kind is not None and protection in (0, 1), f"type {data[1]:#x}")
    if protection == 1:
        need(checked(data)[4:8] == data[4:8], "the checksum is wrong")
    else:
        need(checksum == 0, "a checksum in a packet that says that it has none")
    p = {"type": kind, "sender": sender, "job_epoch": job, "rank_epoch": rank_epoch}
    if kind in ("contribution", "result"):
        need(len(data) >= 48, f"{len(data)} bytes are no header of a chunk")
        (p["chunk"], p["operation"], p["signature"], _, ahead, values, p["slot"], elements, exponents,
         flags) = CHUNK.unpack_from(data, 20)
        need(values == 0 and ahead == NONE_AHEAD and exponents == 0 and flags < 2,
             f"values {values:#x}, ahead {ahead}, {exponents} exponents, flags {flags:#x} in a sum of int32")
        p["version"] = flags
        need(len(data) == 48 + 4 * elements, f"{len(data)} bytes, where the header implies {48 + 4 * elements}")
        p["values"] = values_of(data[48:])
    elif kind == "waiting":
        need(len(data) >= 40 and len(data) % 8 == 0, f"{len(data)} bytes")
        p["chunk"], p["operation"], p["slot"], _, _, _ = struct.unpack_from("<IQHBBI", data, 20)
        p["missing"] = set_bits(data[40:])
    elif kind == "mismatch":
        need(len(data) == 44, f"{len(data)} bytes")
        p["chunk"], p["operation"], *rest = struct.unpack_from("<IQIIHH", data, 20)
        p["signatures"], p["ranks"] = rest[:2], rest[2:]
    elif kind == "probe reply":
        need(len(data) == 32, f"{len(data)} bytes")
        p["cookie"] = int.from_bytes(data[24:], "little")
    return p


# ---- ATP: sums of integers

ATP_TYPES = {"gradient": 1, "parameter": 2, "ask": 3, "done": 4, "waiting": 5, "mismatch": 6, "unknown job": 7}
ATP_FLAGS = ("resend", "ecn", "collision", "overflow", "wide", "direct", "floats", "integers", "average", "unchecked", "broad")
ATP_COMMON = struct.Struct("<BBHIQQIIIHBB")


def encode_atp(p):
    kind = p["type"]
    if kind == "gradient":
        body = bytes(p["fan_in"]) + struct.pack("<4I", *p["bitmap"]) + words(p["values"])
    elif kind == "parameter":
        body = struct.pack("<I", p["next_index"]) + words(p["values"])
    elif kind in ("ask", "done"):
        body = bytes(4)
    elif kind == "waiting":
        body = bits(p["missing"], 128)
    else:
        body = b""
    flags = sum(1 << ATP_FLAGS.index(flag) for flag in p["flags"])
    data = ATP_COMMON.pack(0xa3, ATP_TYPES[kind], flags, 0, p["job_epoch"], p["sequence"], p["rank_epoch"], p["signature"],
                           p["index"], len(p.get("values", ())), p["level"], 0) + body
    return data if "unchecked" in p["flags"] else checked(data)


def decode_atp(data):
    need(len(data) >= 40, f"{len(data)} bytes are no common header")
    (version, kind, flags, checksum, job, sequence, rank_epoch, signature, index, elements, level,
     exponent) = ATP_COMMON.unpack_from(data)
    need(version == 0xa3, f"version {version:#x}")
    kind = next((name for name, number in ATP_TYPES.items() if number == kind), None)
    need(kind is not None and flags < 1 << 11 and exponent == 0, f"type {data[1]}, flags {flags:#x}, exponent {exponent}")
    p = {"type": kind, "flags": [name for bit, name in enumerate(ATP_FLAGS) if flags >> bit & 1], "job_epoch": job,
         "sequence": sequence, "rank_epoch": rank_epoch, "signature": signature, "index": index, "level": level}
    if "unchecked" in p["flags"]:
        need(checksum == 0, "a checksum in a packet that says that it has none")
    else:
        need(checked(data)[4:8] == data[4:8], "the checksum is wrong")
    if kind == "gradient":
        need(len(data) == 60 + 4 * elements, f"{len(data)} bytes, where the header implies {60 + 4 * elements}")
        p["fan_in"], p["bitmap"], p["values"] = list(data[40:44]), list(struct.unpack_from("<4I", data, 44)), values_of(data[60:])
    elif kind == "parameter":
        need(len(data) == 44 + 4 * elements, f"{len(data)} bytes, where the header implies {44 + 4 * elements}")
        p["next_index"], p["values"] = int.from_bytes(data[40:44], "little"), values_of(data[44:])
    elif kind == "waiting":
        need(len(data) == 168, f"{len(data)} bytes")
        p["missing"] = set_bits(data[40:])
    return p


# ---- NetReduce: RoCEv2 over IPv4, from the IP header to the ICRC; values are int32

FIRST, MIDDLE, LAST, ONLY, ACKNOWLEDGE = 6, 7, 9, 11, 17
MASK64 = (1 << 64) - 1


def mix(value):
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9 & MASK64
    value = (value ^ value >> 27) * 0x94d049bb133111eb & MASK64
    return value ^ value >> 31


def seal_of(incarnation, ring, message, packet, contributions):
    digest = mix((mix((mix((mix(incarnation) + message) & MASK64) + (ring << 32 | packet)) & MASK64) + contributions) & MASK64)
    return (digest & ~0xffff | contributions & 0xffff) or 1


def icrc(data):
    masked = bytearray(data)
    for at in (1, 8, 10, 11, 26, 27, 32):
        masked[at] = 255
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


def ip_checksum(header):
    total = sum(struct.unpack(">10H", header))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def encode_roce(p):
    """Packet `packet` of a message of `length` packets, or an answer."""
    if p["type"] == "gradient":
        first, last = p["packet"] == 0, p["packet"] + 1 == p["length"]
        opcode = (ONLY if last else FIRST) if first else (LAST if last else MIDDLE)
        headers = struct.pack(">QII", p["message"] * p["length"] * p["mtu"], 1, p["length"] * p["mtu"]) if first else b""
        headers += struct.pack(">I", p["message"] & 0xffffffff) if last else b""
        payload = struct.pack("<Q", p["seal"])
        if first:
            payload += struct.pack("<4sBBHIIQII", b"NSnr", 1, 0, p["length"], p["ring"], p["rank"], p["message"], p["signature"], 0)
        payload += words(p["values"])
    else:
        opcode, headers, payload = ACKNOWLEDGE, struct.pack(">I", p["syndrome"] << 24 | p["msn"]), b""
    bth = struct.pack(">BBHII", opcode, 0, 0xffff, p["queue_pair"], p["psn"] | (opcode in (LAST, ONLY)) << 31)
    length = 20 + 8 + len(bth) + len(headers) + len(payload) + 4
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, length, 0, 0x4000, 64, 17, 0, p["source"], p["target"])
    ip = ip[:10] + struct.pack(">H", ip_checksum(ip)) + ip[12:]
    data = ip + struct.pack(">HHHH", 0xc000, 4791, length - 20, 0) + bth + headers + payload
    return data + icrc(data)


def decode_roce(data):
    need(len(data) >= 44 and data[0] == 0x45 and data[9] == 17, "no UDP over IPv4")
    need(int.from_bytes(data[2:4], "big") == len(data), f"{len(data)} bytes, where the IP header says other")
    need(icrc(data[:-4]) == data[-4:], "the ICRC is wrong")
    opcode, _, _, queue_pair, psn = struct.unpack_from(">BBHII", data, 28)
    p = {"queue_pair": queue_pair & 0xffffff, "psn": psn & 0xffffff, "source": data[12:16], "target": data[16:20]}
    at = 40
    if opcode == ACKNOWLEDGE:
        word = int.from_bytes(data[at:at + 4], "big")
        p.update(syndrome=word >> 24, msn=word & 0xffffff)
        p["type"] = {0x7e: "repeat request", 0x7f: "repeat request"}.get(p["syndrome"], "acknowledgement")
        return p
    need(opcode in (FIRST, MIDDLE, LAST, ONLY), f"opcode {opcode:#x}")
    p.update(type="gradient", first=opcode in (FIRST, ONLY), last=opcode in (LAST, ONLY))
    at += 16 * p["first"]
    if p["last"]:
        p["immediate"], at = int.from_bytes(data[at:at + 4], "big"), at + 4
    p["seal"], at = int.from_bytes(data[at:at + 8], "little"), at + 8
    if p["first"]:
        magic, dtype, flags, p["length"], p["ring"], p["rank"], p["message"], p["signature"], _ = struct.unpack_from(
            "<4sBBHIIQII", data, at)
        need(magic == b"NSnr" and dtype == 1 and flags == 0, f"{magic}, dtype {dtype}, flags {flags:#x}")
        at += 32
    p["values"] = values_of(data[at:-4])
    return p


ENCODE = {"switchml": encode_switchml, "atp": encode_atp, "netreduce": encode_roce}
DECODE = {"switchml": decode_switchml, "atp": decode_atp, "netreduce": decode_roce}
