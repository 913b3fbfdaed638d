"""A group's job has the same name when torchrun starts all ranks again, and a later generation.

The former ranks were killed without leaving their job, which keeps its memory at the switch until their heartbeats are missed.
Ranks of a later generation end it at once. All of a rank's processes under torchrun have the same parent, the agent, which no
other run has, and its host has one clock. torchrun's own count of restarts is each agent's, and its run ID may be another run's
too.
"""

import hashlib
import os
import secrets
import time

RUN_ID = "TORCHELASTIC_RUN_ID"

_named = 0  # jobs, by this process


def host_identity():
    """Equal for two processes iff they share a machine and its network: containers have their own."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"


def _agent():
    """The process that starts this rank again, in words that no other process has; None if nothing does."""
    if RUN_ID not in os.environ or "RANK" not in os.environ:
        return None
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/environ", "rb") as file:
            if f"{RUN_ID}=".encode() in file.read():  # a child of a rank, or of a script that starts the rank
                return None
        with open(f"/proc/{parent}/stat", encoding="utf-8", errors="replace") as file:
            started = file.read().rpartition(")")[2].split()[19]
        identity = f"{host_identity()} {os.readlink('/proc/self/ns/pid')} {parent} {started}"
    except OSError:
        return None
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def name_job():
    """(name, generation) of a group's job, for all its ranks, by its rank 0."""
    agent = _agent()
    if agent is None:
        return secrets.token_hex(6), 0
    global _named
    _named += 1
    return f"{agent}.{os.environ['RANK']}.{_named}", time.monotonic_ns()
