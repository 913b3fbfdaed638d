#!/usr/bin/env python3
"""Holds the layers apart: which folder of src/ may include which, and what the pure folders may include at all.

check_includes.py ROOT          one line per violation; exit status 1 if there is any
check_includes.py --self-test   shows that every kind of violation is found, and that good code passes
"""

import pathlib
import re
import sys
import tempfile

# Folder -> folders that it may include, besides itself. Lower layers first; a cycle cannot be written down here. Who may include a
# folder may include those inside it.
ALLOWED = {
    "base": set(),
    "wire": {"base"},
    "kernels": {"base"},
    "seal": {"base"},
    "stream": {"base", "wire", "kernels"},
    "protocol": {"base", "wire", "kernels", "seal", "stream"},
    "encoding": {"base", "seal"},
    "session": {"base", "seal", "stream", "protocol", "encoding"},
    "jobs": {"base", "wire", "seal", "protocol", "session", "encoding"},
    "service": {"base", "wire", "seal", "protocol", "session", "jobs"},
    "transport/system": {"base"},
    "transport/addresses": {"base", "wire", "transport/system"},
    "transport/datagram": {"base", "transport/system", "transport/addresses"},
    "transport/bypass": {"base", "wire", "transport/system", "transport/addresses", "transport/datagram"},
    "transport/ports": {"base", "transport/system", "transport/addresses", "transport/datagram", "transport/bypass"},
    "transport/rdma": {"base", "transport/system", "transport/datagram"},
    "transport/local": {"base", "transport/system"},
    "dpdk": {"transport/bypass"},  # the plugin that it loads
    "dataplane": {"base", "wire", "protocol", "service", "transport/system", "transport/addresses"},  # switches outside of this process
    "telemetry": {"base", "session", "transport/system", "transport/addresses"},
    "control": {"base", "wire", "seal", "stream", "session", "transport/system", "transport/addresses", "telemetry", "encoding", "jobs"},
    "runtime": {"base", "wire", "stream", "protocol", "service", "transport/datagram", "transport/ports", "transport/rdma", "transport/system"},
    "oracle": {"base"},  # beside src/: none of what it judges
    "sim": {"base", "wire", "seal", "stream", "protocol", "session", "service", "jobs", "oracle"},  # beside src/: the same objects, and no runtime, transport or clock
    "p4app": {"base", "wire", "protocol", "encoding", "transport", "telemetry", "control", "runtime"},  # around protocol/p4app: its own control service
    # What `netsum switch`, `ps` and `bump` run, and a rank's process: they meet in messages alone.
    "daemon": {"base", "wire", "protocol", "session", "jobs", "service", "transport", "dataplane", "telemetry", "control", "runtime"},
    "collective": {"base", "wire", "kernels", "stream", "protocol", "session", "jobs", "seal", "transport", "control", "runtime"},
    "parallel": {"base", "kernels", "protocol", "transport", "runtime", "collective"},  # NetReduce §3.4
}

# Above src/: the bindings, and what each may include of it and of other bindings; all include the façades.
OF_BINDINGS = {
    "bindings/settings": {"base", "transport", "wire"},
    "bindings/staging": set(),
    "bindings/c": {"bindings/settings"},
    "bindings/nccl": {"base", "transport", "runtime", "bindings/settings"},
    "bindings/torch": {"bindings/settings", "bindings/staging"},
    "bindings/torchcomms": set(),
    "bindings/mpi": {"base", "stream", "transport", "bindings/settings"},
}

# State machines without I/O: they run unchanged under a virtual clock, a fuzzer and every transport.
PURE = {"base", "wire", "kernels", "seal", "stream", "protocol", "encoding", "session", "jobs", "service", "oracle", "sim"}

# An allow-list, so that a header nobody thought of is refused: no operating system, thread, clock, iostream or <atomic>.
# <chrono> is for durations (its clocks are refused below); <cstdio> is for snprintf (check_symbols.py refuses the rest).
PURE_STANDARD = set(
    """algorithm array bit bitset cassert cfloat charconv chrono cinttypes climits cmath compare concepts cstddef cstdint cstdio
    cstdlib cstring deque exception functional initializer_list iterator limits list map memory new numbers numeric optional
    queue ranges set span stdexcept string string_view tuple type_traits typeinfo unordered_map unordered_set utility variant
    vector version""".split()
)
OF_C = {"base": {"stdbool.h", "stdint.h"}}  # for headers that are C as well
PURE_THIRD_PARTY = {"base": {"hwy"}, "kernels": {"hwy"}, "seal": {"highwayhash", "hwy", "openssl"}, "encoding": {"protozero"}}

# The public API's words that every layer uses; the rest of include/netsum are the façades, of these.
FACADES = {"collective", "daemon", "parallel"}
PUBLIC_WORDS = {"netsum/error.h", "netsum/tenant.h", "netsum/types.h", "netsum/version.h"}
GENERATED = {"version.h"}

# How messages travel is the border's, where one from outside becomes a validated value; and of the digest of their layouts.
MAY_ENCODE = {
    "protozero": {"src/encoding/codec.h"},
    "encoding/codec.h": {"src/control/border.cc", "src/control/fingerprint.cc", "src/jobs/own_part.h", "src/jobs/atp_job.cc",
                         "src/jobs/chip_profile.cc", "src/jobs/netreduce_job.cc", "src/jobs/switchml_terms.cc", "src/jobs/tree.cc", "src/p4app/messages.cc"},
}
# Membership and its messages know no protocol: all that they may include of a folder where protocols are.
ONLY = {("session", "protocol"): {"protocol/worker_lane.h"}, ("control", "jobs"): {"jobs/layouts.h"}}

PURE_STANDARD_MORE = {"sim": {"ostream", "sstream"}}  # its traces are text, handed out

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CLOCK = re.compile(r"\b\w+_clock\b")


def without_comments(text):
    blank = lambda match: "\n" * match.group().count("\n")
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", blank, text, flags=re.S))


def layer_of(path):
    """The layer that a path below src/ is in: its first two folders if these are one, and otherwise the first."""
    folders = path.split("/")[:-1]
    inner = "/".join(folders[:2])
    return inner if inner in ALLOWED else (folders or [""])[0]


def complaint(folder, bracket, header):
    """What is wrong with this include in this folder ("public": include/netsum), or None."""
    first = header.split("/")[0] if "/" in header else ""
    if folder in OF_BINDINGS:
        layer = "/".join(header.split("/")[:2]) if first == "bindings" else layer_of(header)
        if {layer, first} & (OF_BINDINGS[folder] | {folder}) or not (layer in ALLOWED or first == "bindings"):
            return None
        return f"{folder}/ may not include {layer}/"
    if folder == "public":
        if first == "netsum" or (bracket == "<" and first == ""):
            return None
        return "a public header includes standard and netsum/ headers only"
    if first == "netsum":
        if header in PUBLIC_WORDS or folder in FACADES:
            return None
        return "only " + ", ".join(sorted(FACADES)) + " include the façades' headers"
    layer = layer_of(header)
    if layer in ALLOWED:
        if first != folder and header not in ONLY.get((folder, first), {header}):
            return f"{folder}/ knows no protocol, and includes nothing of {first}/ but " + ", ".join(sorted(ONLY[folder, first]))
        if {layer, first} & (ALLOWED[folder] | {folder}):
            return None
        return f"{folder}/ may not include {layer}/"
    if first in {"apps", "bindings", "tests", "bench", "papers"}:
        return "src/ includes nothing from above itself"
    if bracket == '"':
        return None if header in GENERATED else "name the folder in the include"
    if folder in PURE and header in PURE_STANDARD_MORE.get(folder, set()) | OF_C.get(folder, set()):
        return None
    if folder in PURE and header not in PURE_STANDARD and first not in PURE_THIRD_PARTY.get(folder, set()):
        return f"{folder}/ is pure: no operating-system, thread, clock, iostream or atomic header"
    return None


def beyond_border(where, header):
    for name, places in MAY_ENCODE.items():
        if name in {header, header.split("/")[0]} and where not in places:
            return "only " + ", ".join(sorted(places)) + " may include it"
    return None


def check(root):
    violations = []
    places = [(layer_of(str(path.relative_to(root / "src"))), path) for path in (root / "src").rglob("*")]
    places += [("oracle", path) for path in (root / "oracle").rglob("*")]
    # sim/ns3 is a program, above all of these as apps/ is: ns-3 beside the simulator.
    places += [("sim", path) for path in (root / "sim").rglob("*") if path.parent.name != "ns3"]
    places += [("/".join(path.relative_to(root).parts[:2]), path) for path in (root / "bindings").rglob("*")]
    places += [("public", path) for path in (root / "include").rglob("*")]
    files = 0
    for folder, path in sorted(places, key=lambda place: place[1]):
        if path.suffix not in {".h", ".cc", ".in"}:
            continue
        files += 1
        if folder != "public" and folder not in ALLOWED and folder not in OF_BINDINGS:
            violations.append(f"{path.relative_to(root)}: {folder} is not in the table of layers")
            continue
        for number, line in enumerate(without_comments(path.read_text(encoding="utf-8")).split("\n"), 1):
            where = f"{path.relative_to(root)}:{number}"
            if match := INCLUDE.match(line):
                if reason := complaint(folder, *match.groups()) or beyond_border(str(path.relative_to(root)), match[2]):
                    violations.append(f"{where}: {match[2]}: {reason}")
            elif folder in PURE and (match := CLOCK.search(line)):
                violations.append(f"{where}: {match[0]}: {folder}/ is pure: the time comes in as an argument")
    if files == 0:
        violations.append(f"{root}: no source file found")
    return violations


# (file, text, number of violations)
SAMPLES = [
    ("src/wire/good.h", '#include <cstdint>\n#include "base/bytes.h"\n#include "netsum/error.h"\n// steady_clock, <thread>\n', 0),
    ("src/wire/comment.h", '/* #include <thread>\n#include <mutex> */\n#include <chrono>\n', 0),
    ("src/base/simd.cc", "#include <hwy/highway.h>\n", 0),
    ("src/runtime/good.cc", '#include <atomic>\n#include <thread>\n#include "protocol/switchml/switch.h"\n', 0),
    ("src/collective/good.cc", '#include "netsum/communicator.h"\n#include "control/client.h"\n', 0),
    ("src/daemon/good.cc", '#include "netsum/aggregator.h"\n#include "version.h"\n', 0),
    ("src/daemon/sideways.cc", '#include "collective/join.h"\n', 1),
    ("src/collective/sideways.cc", '#include "daemon/broker.h"\n', 1),
    ("include/netsum/good.h", '#include <string>\n#include "netsum/error.h"\n', 0),
    ("sim/good.cc", '#include <ostream>\n#include "protocol/switchml/switch.h"\n#include "sim/network.h"\n', 0),
    ("oracle/judge.cc", '#include <cmath>\n#include "netsum/types.h"\n#include "kernels/kernels.h"\n', 1),
    ("src/collective/judge.cc", '#include "oracle/judge.h"\n', 1),
    ("sim/runtime.cc", '#include <thread>\n#include "runtime/thread.h"\n', 2),
    ("src/base/upward.h", '#include "wire/switchml.h"\n', 1),
    ("src/wire/sideways.h", '#include "kernels/kernels.h"\n', 1),
    ("src/transport/rdma/upward.cc", '#include "protocol/switchml/switch.h"\n#include "session/registry.h"\n', 2),
    ("src/transport/ports/good.cc", '#include "transport/bypass/ring.h"\n#include "transport/ports/port.h"\n', 0),
    ("src/transport/bypass/sideways.cc", '#include "transport/ports/port.h"\n#include "transport/drawer.h"\n', 2),
    ("src/transport/drawer.cc", '#include <vector>\n', 1),
    ("src/collective/inner.cc", '#include "transport/datagram/udp.h"\n', 0),
    ("src/telemetry/inner.cc", '#include "transport/datagram/udp.h"\n#include "transport/system/socket.h"\n', 1),
    ("src/stream/angle.h", "#include <runtime/thread.h>\n", 1),
    ("src/protocol/threads.cc", "#include <atomic>\n#  include <mutex>\n#include <thread>\n", 3),
    ("src/session/system.cc", "#include <iostream>\n#include <sys/socket.h>\n#include <unistd.h>\n#include <time.h>\n", 4),
    ("src/session/clock.cc", "#include <chrono>\nauto now() { return std::chrono::steady_clock::now(); }\n", 1),
    ("src/wire/simd.cc", "#include <hwy/highway.h>\n", 1),
    ("src/seal/good.cc", '#include <highwayhash/c_bindings.h>\n#include <hwy/highway.h>\n#include <openssl/evp.h>\n#include "base/bytes.h"\n', 0),
    ("src/protocol/cipher.cc", '#include <openssl/evp.h>\n#include "seal/sealer.h"\n', 1),
    ("src/kernels/facade.h", '#include "netsum/communicator.h"\n', 1),
    ("src/runtime/sideways.cc", '#include "session/registry.h"\n#include "control/client.h"\n', 2),
    ("src/runtime/above.h", '#include "apps/netsum/config.h"\n', 1),
    ("src/control/bare.h", '#include "client.h"\n', 1),
    ("src/encoding/codec.h", "#include <protozero/pbf_reader.hpp>\n", 0),
    ("src/control/border.cc", '#include "control/border.h"\n#include "encoding/codec.h"\n', 0),
    ("src/control/client.cc", '#include <protozero/pbf_reader.hpp>\n#include "control/border.h"\n#include "encoding/codec.h"\n', 2),
    ("src/session/rank.h", '#include "protocol/worker_lane.h"\n#include "protocol/atp/server.h"\n', 1),
    ("src/control/fingerprint.cc", '#include "jobs/layouts.h"\n#include "jobs/atp_job.h"\n', 1),
    ("src/novelty/file.h", "#include <vector>\n", 1),
    ("bindings/nccl/good.cc", '#include <poll.h>\n#include "bindings/nccl/tcp.h"\n#include "bindings/settings/reach.h"\n#include "netsum/error.h"\n', 0),
    ("bindings/torch/good.cc", '#include <torch/version.h>\n#include "work.h"\n', 0),
    ("bindings/nccl/upward.cc", '#include "bindings/torch/work.h"\n#include "collective/join.h"\n', 2),
    ("bindings/novelty/file.cc", "#include <vector>\n", 1),
    ("include/netsum/third.h", "#include <openssl/ssl.h>\n", 1),
    ("include/netsum/inner.h", '#include "base/bytes.h"\n', 1),
]


def self_test():
    wrong = []
    for name, text, expected in SAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(text, encoding="utf-8")
            found = check(root)
            if len(found) != expected:
                wrong.append(f"{name}: expected {expected} violations, found {len(found)}: {found}")
    with tempfile.TemporaryDirectory() as folder:
        if not check(pathlib.Path(folder)):
            wrong.append("an empty tree passed")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    violations = self_test() if sys.argv[1] == "--self-test" else check(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(violations or ["ok"]))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
