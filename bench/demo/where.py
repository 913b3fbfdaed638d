"""Where the demo's processes run: each worker in a host of its own behind a link (scripts/testbed), or all on loopback."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys

from network import Star

PROBE = 'ip netns add "$0" && ip netns exec "$0" true; code=$?; ip netns del "$0" 2>&-; exit $code'
OWN_RUN = "mount -t tmpfs tmpfs /run"  # for ip netns, where /run is somebody else's
UNSHARED = "--unshared"  # how the demo calls itself once it has namespaces of its own
UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--propagation", "private", "sh", "-c"]


def refusal(command):
    """What `command` complains of, in one line; None if it works."""
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if tried.returncode == 0 else (tried.stderr.strip().splitlines() or [f"status {tried.returncode}"])[-1]


def namespaces(words):
    """None if this process may make network namespaces, else why not. Where only user namespaces give the right, it does not return:
    the demo starts again inside one."""
    missing = [name for name in ("ip", "tc", "nft", "pgrep") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} not found: run scripts/setup"
    probe = f"demo-probe{os.getpid()}"
    direct = refusal(["sh", "-c", PROBE, probe])
    if direct is None or UNSHARED in words:
        return direct
    unshared = refusal([*UNSHARE, f"{OWN_RUN} || exit; {PROBE}", probe])
    if unshared is None:
        sys.stdout.flush()
        os.execvp(UNSHARE[0], [*UNSHARE, f'{OWN_RUN} && exec "$0" "$@"', sys.executable, *sys.argv, UNSHARED])
    return f"{direct}; in a user namespace: {unshared}"


def read(path):
    with open(path, encoding="ascii") as file:
        return file.read()


def sent(table, device):
    """Bytes that a device has sent, by the text of /proc/net/dev."""
    for line in table.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == device:
            return int(numbers.split()[8])
    return 0


def segments_again(snmp):
    names, values = (line.split() for line in snmp.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


class Loopback:
    links, device = False, "lo"

    def __init__(self, workers):
        self.workers = workers
        self.tcp = read("/proc/sys/net/ipv4/tcp_congestion_control").strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def command(self, _):
        return []

    def address(self, _):
        return "127.0.0.1"

    def free_port(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return free.getsockname()[1]

    def counters(self):
        """Bytes on the device by worker, on the mean; TCP's repeats of the machine; packets lost: nobody loses any here."""
        return {"bytes": [sent(read("/proc/net/dev"), "lo") / self.workers] * self.workers, "again": segments_again(read("/proc/net/snmp")),
                "lost": None}


class Links:
    """A star of links: a worker at the end of each, netsum's switch in its middle, and the parameter servers behind links too."""
    links, device = True, "eth0"

    def __init__(self, workers, servers, rate, loss, tcp):
        self.workers, self.tcp = workers, tcp
        self.star = Star(workers + servers, rate, None, ["--loss", f"{loss:.8f}", "--tcp", tcp])

    def __enter__(self):
        self.star.__enter__()
        return self

    def __exit__(self, *failure):
        self.star.__exit__(*failure)

    def namespace(self, name):
        return getattr(self.star, name).namespace

    def command(self, name):
        return ["ip", "netns", "exec", self.namespace(name)]

    def address(self, name):
        return getattr(self.star, name).addresses[4]

    def free_port(self):
        return 29500  # the network is the demo's

    def look(self, namespace, *command):
        done = subprocess.run(["ip", "netns", "exec", namespace, *command], capture_output=True, text=True, timeout=30)
        return done.stdout

    def lost(self):
        """Packets that links dropped: in queues that were full, and at random."""
        dropped = 0
        for end in self.star.environment["TESTBED_ENDS"].split():
            namespace, _, device = end.partition(":")
            for queue in json.loads(self.look(namespace, "tc", "-s", "-j", "qdisc", "show", "dev", device) or "[]"):
                dropped += queue.get("drops", 0) if queue.get("root") else 0  # htb counts what its leaf drops
            rules = self.look(namespace, "nft", "list", "table", "netdev", "loss_" + device)
            dropped += sum(map(int, re.findall(r"counter packets (\d+)", rules)))
        return dropped

    def counters(self):
        tables = [self.look(self.namespace(f"H{rank}"), "cat", "/proc/net/dev", "/proc/net/snmp") for rank in range(self.workers)]
        return {"bytes": [sent(table, "eth0") for table in tables], "again": sum(map(segments_again, tables)), "lost": self.lost()}


def make(arguments, words):
    """The place, and why it is not one with links (None: it is)."""
    if arguments.loopback:
        return Loopback(arguments.workers), "--loopback"
    reason = namespaces(words)
    if reason is None:
        links = Links(arguments.workers, 1 if arguments.protocol == "atp" else 0, arguments.rate, arguments.loss, arguments.tcp)
        try:
            with links:
                return links, None
        except SystemExit as failed:
            reason = str(failed).strip().splitlines()[-1]
    return Loopback(arguments.workers), reason

