#!/usr/bin/env python3
"""Programs in C that were compiled with the last release run with today's library: abi.py ROOT [REVISION]

libabigail compares the C API of the newest tag v*, or of REVISION, with today's. What is only added passes: functions, enumerators, and
members at the end of netsum_call. `abi.py ROOT --self-test` shows that other changes are found. Exit status 77: no tag, or no abidiff.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import versions  # of tests/e2e

PARTS = ("bindings/c", "bindings/settings", "include", "src/base")  # the C API, and what its source includes
GROWS = "[suppress_type]\n  name = netsum_call\n"  # calls() looks at it: libabigail 2.2 takes any new member for one at the end


def library(tree):
    """The C API alone, with all that debuggers know of it: the rest of the library is nothing that a program in C sees."""
    path = tree / "libnetsum_c.so"
    if path.exists():
        return path
    (tree / "exports").write_text("{ global: netsum_*; local: *; };")
    flags = ["-std=c++20", "-g", "-fPIC", "-shared", f"-Wl,--version-script={tree}/exports", f"-I{tree}/src", f"-I{tree}/include", f"-I{tree}"]
    subprocess.run(["g++", *flags, *(tree / "bindings/c").glob("*.cc"), "-o", path], check=True)
    return path


def calls(tree):
    """The members of netsum_call."""
    body = re.search(r"struct netsum_call \{(.*?)\}", (tree / "include/netsum/netsum.h").read_text(), re.S)[1]
    return [" ".join(member.split()) for member in re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(";")][:-1]


def compare(old, new):
    """What programs would notice; empty: nothing."""
    before, after = calls(old), calls(new)
    if after[: len(before)] != before:
        return f"netsum_call had {before}, and has {after}"
    (new / "grows").write_text(GROWS)
    headers = ["--hd1", old / "include", "--hd2", new / "include", "--drop-private-types"]
    found = subprocess.run(["abidiff", *headers, "--no-added-syms", "--suppr", new / "grows", library(old), library(new)], capture_output=True, text=True)
    return found.stdout + found.stderr if found.returncode else ""


def today(root, tree):
    for part in PARTS:
        shutil.copytree(root / part, tree / part)
    return tree


# (what is replaced in netsum.h, by what, whether programs notice)
CHANGES = [
    ("NETSUM_OP_MAX_ENUM = 0x7fffffff", "NETSUM_OP_MAX_ENUM = 9", True),
    ("  uint32_t tag; ", "  double scale;\n  uint32_t tag; ", True),
    ("  uint32_t tag; ", "  uint32_t tag;\n  double scale; ", False),
    ("  NETSUM_EXCLUDED = 11,", "  NETSUM_EXCLUDED = 11,\n  NETSUM_NEWS = 12,", False),
]  # fmt: skip


def self_test(root, work):
    old = today(root, work / "old")
    for number, (before, after, noticed) in enumerate(CHANGES):
        new = today(root, work / str(number))
        header = new / "include/netsum/netsum.h"
        text = header.read_text()
        assert text.count(before) == 1, before
        header.write_text(text.replace(before, after))
        found = compare(old, new)
        if bool(found) != noticed:
            sys.exit(f"abi: {after!r} in place of {before!r}: expected {'a change' if noticed else 'nothing'}, found:\n{found}")


def main():
    root, given = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    revision = given[0] if given else versions.newest_tag(root)
    reason = "no abidiff (Debian: abigail-tools)" if not shutil.which("abidiff") else "no tag v* to compare with (name a revision)" if not revision else ""
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        if revision == "--self-test":
            return self_test(root, work)
        (work / "old").mkdir()
        archive = subprocess.run(["git", "-C", root, "archive", revision, *PARTS], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", work / "old"], check=True, input=archive.stdout)
        if found := compare(work / "old", today(root, work / "new")):
            sys.exit(f"abi: programs that were compiled with {revision} would not run with this library:\n{found}")
    print(f"abi: programs that were compiled with {revision} run with this library")


if __name__ == "__main__":
    main()
