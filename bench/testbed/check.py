#!/usr/bin/python3
"""How exact the links of a testbed are: TCP over each of them by iperf3, beside what its rate allows.

Runs inside a testbed (scripts/testbed --check). First all hosts send at once, each to another, then the other way round; a trunk
is measured by itself. Exit code 1: a link is off by more than 1 %.
"""
import json
import os
import subprocess
import sys

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = 3  # after one that does not count: TCP has to find the rate
OFF = 0.01
LIMIT = 60  # seconds that iperf3 may take


def bits(rate):
    unit = rate.lstrip("0123456789")
    return int(rate[:-len(unit)]) * UNITS[unit]


def inside(host, *command, **how):
    return subprocess.Popen(["ip", "netns", "exec", os.environ[host], *command], text=True, **how)


def cpu():
    """Idle and all time of the machine, in ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(each) for each in file.readline().split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def serve(host):
    server = inside(host, "iperf3", "--server", "--one-off", "--forceflush", stdout=subprocess.PIPE)
    for line in server.stdout:
        if "listening" in line:
            return server
    raise SystemExit("testbed: iperf3 does not listen: is it installed?")


def measure(flows, rate):
    """TCP from host to host, over all of `flows` at once. True if each has what `rate` allows."""
    mtu = int(os.environ["TESTBED_MTU"])
    possible = bits(rate) * (mtu - 52) / (mtu + 14)  # the rest are headers of Ethernet, IP, and TCP with time stamps
    servers = [serve(to) for _, to in flows]
    idle, total = cpu()
    clients = [inside(host, "iperf3", "--client", os.environ[to + "_IP4"], "--omit", "1", "--time", str(SECONDS), "--json",
                      stdout=subprocess.PIPE) for host, to in flows]
    reports = [json.loads(client.communicate(timeout=LIMIT)[0]) for client in clients]
    idle, total = cpu()[0] - idle, cpu()[1] - total
    for server in servers:
        server.communicate(timeout=LIMIT)
    exact = True
    for (host, to), report in zip(flows, reports):
        if "error" in report:
            raise SystemExit(f"testbed: iperf3 from {host} to {to}: {report['error']}")
        got = report["end"]["sum_received"]["bits_per_second"]
        ratio = got / possible
        exact = exact and abs(ratio - 1) <= OFF
        print(f"{host + ' -> ' + to:12} {got / 1e6:9.2f} Mbit/s of TCP, ratio to the link {ratio:.4f}, "
              f"{100 * idle / total:.0f} % of the machine idle", flush=True)
    return exact


def main():
    topology, rate, trunk = (os.environ["TESTBED_" + name] for name in ("TOPOLOGY", "RATE", "TRUNK"))
    count = len(os.environ["HOSTS"].split())
    racks = [range(count)] if topology == "star" else [range(count // 2), range(count // 2, count)]
    rounds = []
    if topology != "shared":
        # Who is left over sends to the switch beside it.
        pairs = [(f"H{rack[i]}", f"H{rack[i + 1]}" if i + 1 < len(rack) else "SW" if topology == "star" else f"SW{number}")
                 for number, rack in enumerate(racks) for i in range(0, len(rack), 2)]
        rounds.append((pairs, rate))
    if topology != "star":
        rounds.append(([("H0", f"H{count - 1}")], trunk if topology == "shared" else min(rate, trunk, key=bits)))
    exact = True
    for flows, limit in rounds:
        exact = measure(flows, limit) and exact
        exact = measure([(to, host) for host, to in flows], limit) and exact
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
