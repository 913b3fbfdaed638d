#!/usr/bin/env python3
"""Holds the pure folders to their word: their archives may need nothing but what allowed_symbols.txt lists.

check_symbols.py ARCHIVE...     one line per symbol that is needed, not defined in one of the archives and not allowed
check_symbols.py --self-test    compiles good and bad samples and shows that the bad ones are found
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ALLOW_LIST = pathlib.Path(__file__).with_name("allowed_symbols.txt")


def allowed_patterns():
    lines = [line.strip() for line in ALLOW_LIST.read_text(encoding="utf-8").splitlines()]
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


def symbols(archives):
    """Demangled name -> object that needs it, and the set of names that the archives define."""
    needed, defined = {}, set()
    for archive in archives:
        listing = subprocess.run(["nm", "-A", "-C", str(archive)], check=True, capture_output=True, text=True).stdout
        for line in listing.splitlines():
            match = re.match(r"^(?:.*?:)?([0-9a-f]{16}| {16}) ([A-Za-z]) (.*)$", line)
            if not match:
                continue
            kind, name = match[2], match[3]
            if kind in "Uwv":
                needed.setdefault(name, line[: match.start(1)].rstrip(":"))
            else:
                defined.add(name)
    return needed, defined


def check(archives):
    needed, defined = symbols(archives)
    if not defined:
        return [f"no symbols in {' '.join(map(str, archives))}"]
    patterns = allowed_patterns()
    return [
        f"{where}: needs {name}"
        for name, where in sorted(needed.items())
        if name not in defined and not any(pattern.fullmatch(name) for pattern in patterns)
    ]


# (name, source, what must be found; empty: nothing)
SAMPLES = [
    ("pure", "#include <string>\n#include <vector>\nstd::string f(std::vector<int>& v) { v.push_back(1); return \"x\"; }", ""),
    ("socket", "#include <sys/socket.h>\nint f() { return socket(AF_INET, SOCK_DGRAM, 0); }", "socket"),
    ("clock", "#include <chrono>\nlong f() { return std::chrono::steady_clock::now().time_since_epoch().count(); }", "steady_clock"),
    ("time", "#include <ctime>\nlong f() { return time(nullptr); }", "time"),
    ("thread", "#include <thread>\nvoid g();\nvoid f() { std::thread(g).join(); }", "thread"),
    ("lock", "#include <mutex>\nstd::mutex m;\nvoid f() { m.lock(); }", "pthread_mutex_lock"),
    ("stream", "#include <iostream>\nvoid f() { std::cout << 1; }", "std::cout"),
    ("print", "#include <cstdio>\nvoid f() { std::printf(\"%d\", 1); }", "printf"),
    ("exit", "#include <cstdlib>\nvoid f() { std::exit(1); }", "exit"),
    ("upward", "namespace netsum { void above(); }\nvoid f() { netsum::above(); }", "netsum::above()"),
]


def self_test(compiler):
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name, source, expected in SAMPLES:
            base = pathlib.Path(folder) / name
            base.with_suffix(".cc").write_text(source, encoding="utf-8")
            compile_sample = [compiler, "-std=c++20", "-O1", "-c", base.with_suffix(".cc"), "-o", base.with_suffix(".o")]
            subprocess.run(compile_sample, check=True)
            subprocess.run(["ar", "rcs", base.with_suffix(".a"), base.with_suffix(".o")], check=True)
            found = check([base.with_suffix(".a")])
            if expected == "" and found or expected and not any(expected in line for line in found):
                wrong.append(f"{name}: expected {expected or 'nothing'}, found {found}")
    return wrong


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    violations = self_test("c++") if sys.argv[1] == "--self-test" else check(sys.argv[1:])
    print("\n".join(violations or ["ok"]))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
