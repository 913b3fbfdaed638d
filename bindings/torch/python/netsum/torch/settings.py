"""What the NETSUM_* variables say, checked. docs/pytorch.md describes each."""

import os
from dataclasses import dataclass, field
from typing import Dict, List

MODES = ("off", "probe", "force")
LOG_LEVELS = ("off", "info", "debug")
PROTOCOLS = ("switchml", "atp", "netreduce")
# The settings that not all protocols have, and which do.
OWNERS = {"NETSUM_PS": ("atp",), "NETSUM_SPINE": ("switchml", "netreduce"), "NETSUM_VERBS": ("netreduce",), "NETSUM_WIRE": ("switchml",),
          "NETSUM_SHARED_MEMORY": ("switchml",)}
# NETSUM_VERBS_*: the least and the greatest value of each.
VERBS_SETTINGS = {"PORT": (1, 255), "GID_INDEX": (0, 255), "ACK_TIMEOUT": (1, 31), "RETRIES": (0, 7), "TRAFFIC_CLASS": (0, 255),
                  "SERVICE_LEVEL": (0, 7)}
SHARED_MEMORY = ("auto", "off", "required")
WIRE_FORMATS = ("native", "float32", "float16", "bfloat16")
PACKET_SECURITY = ("none", "tag", "encrypt")


class SettingError(ValueError):
    """A NETSUM_* variable that cannot be used; the text names it and what it may be."""


@dataclass
class Settings:
    mode: str = "probe"
    protocol: str = "switchml"
    servers: List[str] = field(default_factory=list)
    spines: List[str] = field(default_factory=list)
    switches: List[str] = field(default_factory=list)
    job: str = ""
    threads: int = 1
    slots: int = 0
    packet_elements: int = 0
    shared_memory: str = "auto"
    wire: str = "native"
    recovery: float = 0.0
    verbs: str = ""  # each host's device has a name of its own
    uses_verbs: bool = False
    verbs_settings: Dict[str, int] = field(default_factory=dict)
    token: str = ""
    tls_ca: str = ""
    tls_cert: str = ""  # of this host's shard, as is tls_key
    tls_key: str = ""
    shards_have_tls: bool = False
    packet_security: str = "none"
    require_keys: bool = False
    log: str = "info"
    address: str = ""
    connect_seconds: float = 30.0

    @property
    def above(self):
        """Where the ranks join, if `switches` is the one that this rank is at: ATP's parameter servers, or the spines of a tree."""
        return self.servers or self.spines


def _choice(name, default, choices):
    value = os.environ.get(name, default) or default
    if value not in choices:
        raise SettingError(f"{name}={value!r}: must be one of {', '.join(choices)}")
    return value


def _number(name, default, lowest, highest, kind=int):
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        raise SettingError(f"{name}={text!r}: must be a number") from None
    if not lowest <= value <= highest:
        raise SettingError(f"{name}={text}: must be between {lowest} and {highest}")
    return value


def split_address(address, name="NETSUM_SWITCH"):
    """("host", port) of "host:port" or "[v6]:port"."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingError(f"{name}: {address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _addresses(name):
    addresses = [a.strip() for a in os.environ.get(name, "").split(",") if a.strip()]
    for address in addresses:
        split_address(address, name)
    return addresses


def _check_owner(protocol, name, given, shown=None):
    if given and protocol not in OWNERS[name]:
        raise SettingError(f"{shown or name} goes with NETSUM_PROTOCOL={' or '.join(OWNERS[name])}")


def _read_verbs(settings):
    settings.verbs = os.environ.get("NETSUM_VERBS", "")
    settings.uses_verbs = bool(settings.verbs)
    _check_owner(settings.protocol, "NETSUM_VERBS", settings.verbs)
    if settings.verbs and (settings.spines or not settings.switches):
        raise SettingError("NETSUM_VERBS requires NETSUM_SWITCH with the addresses of bumps in the wire, and excludes NETSUM_SPINE")
    for name, (lowest, highest) in VERBS_SETTINGS.items():
        value = _number(f"NETSUM_VERBS_{name}", None, lowest, highest, int)
        if value is None:
            continue
        if not settings.verbs:
            raise SettingError(f"NETSUM_VERBS_{name} requires NETSUM_VERBS")
        settings.verbs_settings[name.lower()] = value


def _read_tls_of_shards(settings):
    for name in ("tls_cert", "tls_key"):
        variable = f"NETSUM_{name.upper()}"
        setattr(settings, name, os.environ.get(variable, ""))
        if getattr(settings, name) and not os.access(getattr(settings, name), os.R_OK):
            raise SettingError(f"{variable}: cannot read {getattr(settings, name)}")
    settings.shards_have_tls = bool(settings.tls_cert)
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise SettingError("NETSUM_TLS_CERT and NETSUM_TLS_KEY are both given, or neither")
    if settings.tls_cert and not settings.tls_ca:
        raise SettingError("NETSUM_TLS_CERT requires NETSUM_TLS_CA, by which the ranks know the shards")
    if settings.tls_cert and (settings.switches or settings.above):
        raise SettingError("NETSUM_TLS_CERT is for shards: with NETSUM_SWITCH or NETSUM_PS the switch has its own")


def from_environment():
    settings = Settings()
    settings.mode = _choice("NETSUM_MODE", settings.mode, MODES)
    settings.log = _choice("NETSUM_LOG", settings.log, LOG_LEVELS)
    settings.protocol = _choice("NETSUM_PROTOCOL", settings.protocol, PROTOCOLS)
    settings.switches = _addresses("NETSUM_SWITCH")
    settings.servers = _addresses("NETSUM_PS")
    if settings.protocol in OWNERS["NETSUM_PS"] and not settings.servers and settings.mode != "off":
        raise SettingError("NETSUM_PROTOCOL=atp needs NETSUM_PS=HOST:PORT[,...]: the ranks join at their parameter servers")
    settings.spines = _addresses("NETSUM_SPINE")
    _check_owner(settings.protocol, "NETSUM_PS", settings.servers)
    _check_owner(settings.protocol, "NETSUM_SPINE", settings.spines)
    if settings.above and len(settings.switches) > 1:
        raise SettingError(f"NETSUM_SWITCH: with {'NETSUM_PS' if settings.servers else 'NETSUM_SPINE'} it is the one switch that "
                           "this rank is at")
    settings.job = os.environ.get("NETSUM_JOB", "")
    settings.threads = _number("NETSUM_THREADS", settings.threads, 1, 64)
    settings.slots = _number("NETSUM_SLOTS", settings.slots, 0, 1 << 20)
    settings.packet_elements = _number("NETSUM_PACKET_ELEMENTS", settings.packet_elements, 0, 15360)
    settings.wire = _choice("NETSUM_WIRE", settings.wire, WIRE_FORMATS)
    _check_owner(settings.protocol, "NETSUM_WIRE", settings.wire != "native", f"NETSUM_WIRE={settings.wire}")
    settings.shared_memory = _choice("NETSUM_SHARED_MEMORY", settings.shared_memory, SHARED_MEMORY)
    _check_owner(settings.protocol, "NETSUM_SHARED_MEMORY", settings.shared_memory == "required", "NETSUM_SHARED_MEMORY=required")
    settings.recovery = _number("NETSUM_RECOVERY", settings.recovery, 0, 86400, float)
    if settings.recovery and not (settings.switches or settings.above):
        raise SettingError("NETSUM_RECOVERY requires NETSUM_SWITCH or NETSUM_PS: a shard ends with its rank and cannot be restarted")
    if settings.recovery and settings.shared_memory == "required":
        raise SettingError("NETSUM_RECOVERY and NETSUM_SHARED_MEMORY=required exclude each other")
    _read_verbs(settings)
    settings.address = os.environ.get("NETSUM_ADDRESS", "")
    settings.connect_seconds = _number("NETSUM_CONNECT_SECONDS", settings.connect_seconds, 0.1, 3600, float)
    settings.tls_ca = os.environ.get("NETSUM_TLS_CA", "")
    if settings.tls_ca and not os.access(settings.tls_ca, os.R_OK):
        raise SettingError(f"NETSUM_TLS_CA: cannot read {settings.tls_ca}")
    _read_tls_of_shards(settings)
    settings.packet_security = _choice("NETSUM_PACKET_SECURITY", settings.packet_security, PACKET_SECURITY)
    settings.require_keys = _choice("NETSUM_REQUIRE_KEYS", "0", ("0", "1")) == "1"
    token_file = os.environ.get("NETSUM_TOKEN_FILE", "")
    if token_file:
        try:
            with open(token_file, encoding="utf-8") as file:
                settings.token = file.read().strip()
        except OSError as error:
            raise SettingError(f"NETSUM_TOKEN_FILE: {error}") from None
    return settings
