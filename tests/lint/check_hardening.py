#!/usr/bin/env python3
"""Reads from what is released that it was built with stack protector, fortified calls, full RELRO, BIND_NOW and as PIE.

check_hardening.py FILE...      one line for each thing that a program or shared library lacks; after --no-arrays come those whose
                                code has no array of a known size, and so no call to fortify
check_hardening.py --self-test  compiles good and bad samples and shows that the bad ones are found
"""

import pathlib
import re
import subprocess
import sys
import tempfile


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def check(path, arrays=True):
    header, segments, dynamic = readelf("-h", path), readelf("-l", path), readelf("-d", path)
    needed = set(re.findall(r" UND (\w+)", readelf("--dyn-syms", path)))
    is_program = " INTERP " in segments
    facts = {
        "not position-independent (PIE, or a shared library)": re.search(r"Type:\s+DYN ", header)
        and (not is_program or re.search(r"FLAGS_1\).*\bPIE\b", dynamic)),
        "no RELRO": " GNU_RELRO " in segments,
        "no BIND_NOW": re.search(r"\bBIND_NOW\b|FLAGS_1\).*\bNOW\b", dynamic),
        "relocations in its code": "(TEXTREL)" not in dynamic,
        "an executable stack": re.search(r" GNU_STACK .* RW  ", segments),
        "no stack protector": "__stack_chk_fail" in needed,
        "no fortified calls (_FORTIFY_SOURCE)": not arrays or any(name.endswith("_chk") for name in needed),
    }
    return [f"{path}: {what}" for what, holds in facts.items() if not holds]


GOOD = ["-O2", "-fPIE", "-pie", "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now"]
BAD = {
    "position-independent": ["-no-pie", "-fno-pie"],
    "no RELRO": ["-Wl,-z,norelro"],
    "no BIND_NOW": ["-Wl,-z,lazy"],
    "executable stack": ["-Wl,-z,execstack"],
    "no stack protector": ["-fno-stack-protector"],
    "no fortified calls": ["-U_FORTIFY_SOURCE"],
}
SAMPLE = """
#include <string.h>
int main(int argc, char** argv) {
  char buffer[64];
  memcpy(buffer, argv[0], (unsigned long)argc);
  return buffer[argc & 7];
}
"""


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "sample.c"), pathlib.Path(folder, "sample")
        source.write_text(SAMPLE)
        for words, flags in {None: [], **BAD}.items():
            subprocess.run(["cc", *GOOD, *flags, "-o", program, source], check=True)
            found = check(program)
            if bool(words) != bool(found) or (words and not any(words in each for each in found)):
                failures.append(f"{words or 'nothing'} was to be found, but {found or 'nothing'} was")
    print("\n".join(failures) or "self-test passed")
    return 1 if failures else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if not sys.argv[1:]:
        sys.exit(__doc__)
    files = sys.argv[1:]
    with_arrays = files.index("--no-arrays") if "--no-arrays" in files else len(files)
    files = [(name, place < with_arrays) for place, name in enumerate(files) if place != with_arrays]
    complaints = [line for name, arrays in files for line in check(name, arrays)]
    print("\n".join(complaints) or f"{len(files)} files checked")
    sys.exit(1 if complaints else 0)
