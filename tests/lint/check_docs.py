#!/usr/bin/env python3
"""Holds the documents to the tree: what they link to and what they name exists.

check_docs.py ROOT          one line per dead link, dead heading, path that is not there, script that cannot be run, or code that the file
                            which the fence names (```cpp of FILE) does not have; exit status 1 if there is any
check_docs.py --self-test   shows that every kind of dead reference is found, and that good ones pass
"""

import os
import pathlib
import re
import sys
import tempfile

FOLDERS = ("apps", "bench", "bindings", "cmake", "conformance", "debian", "docs", "etc", "examples", "include", "judge", "oracle", "papers", "proof", "scripts", "sim", "src", "tests")

LINK = re.compile(r"\]\(([^)\s]+)\)")
# A path of the repository, in prose or code; not the end of a longer one (build/release/...) and not an address.
PATH = re.compile(rf"(?<![\w./:-])(?:{'|'.join(FOLDERS)})/[\w./*-]*")
QUOTED = re.compile(r"^```\w+ of (\S+)\n(.*?)^```$", re.M | re.S)
HEADING = re.compile(r"^#+ (.+)$", re.M)


def anchors(text):
    """The names that GitHub gives to headings."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {word.strip().replace(" ", "-") for word in words}


def link_complaint(document, target):
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    file = document.parent / path if path else document
    if not file.exists():
        return f"{target}: the link leads nowhere"
    if anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
        return f"{target}: no such heading"
    return None


def is_barred(file):
    """Whether it is a script without the right to be executed; Slurm's are submitted, and its daemons copy them."""
    if not file.is_file() or file.suffix == ".sbatch" or os.access(file, os.X_OK):
        return False
    with open(file, "rb") as opened:
        return opened.read(2) == b"#!"


def check(root):
    documents = [path for path in (root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")) if path.exists()]
    documents += sorted((root / "docs").glob("*.md")) + sorted((root / "bench/results").glob("*.md"))
    violations = [] if documents else [f"{root}: no document found"]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for quoted in QUOTED.finditer(text):
            source = root / quoted[1]
            if source.is_file() and quoted[2] not in source.read_text(encoding="utf-8"):
                violations.append(f"{document.relative_to(root)}:{text.count(chr(10), 0, quoted.start()) + 1}: {quoted[1]}: has other code")
        for number, line in enumerate(text.split("\n"), 1):
            where = f"{document.relative_to(root)}:{number}"
            for target in LINK.findall(line):
                if complaint := link_complaint(document, target):
                    violations.append(f"{where}: {complaint}")
            for name in PATH.findall(LINK.sub("", line)):
                found = list(root.glob(name.rstrip("./")))
                if not found:
                    violations.append(f"{where}: {name}: not in the repository")
                violations += [f"{where}: {name}: a script that may not be run" for each in found if is_barred(each)]
    return violations


# (text of docs/page.md, number of violations)
SAMPLES = [
    ("# A page\nSee [this](other.md), [that](../README.md#the-readme) and [below](#a-page).\n", 0),
    ("[elsewhere](https://example.org/docs/nothing.md) and build/release/tests/nothing\n", 0),
    ("The switch is `src/wire/format.cc`; all: `src/*/*.cc`, src/wire, and scripts/.\n", 0),
    ("[gone](gone.md)\n", 1),
    ("[gone](other.md#gone)\n", 1),
    ("`src/wire/gone.cc`\n", 1),
    ("    scripts/gone --fast    # src/gone/*.cc\n", 2),
    ("    scripts/runs && scripts/barred\n", 1),
    ("```sh of scripts/runs\n#!/bin/sh\n```\n", 0),
    ("```sh of scripts/runs\n#!/bin/bash\n```\n", 1),
]


def self_test():
    wrong = []
    for text, expected in SAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for place in ("docs", "src/wire", "scripts"):
                (root / place).mkdir(parents=True)
            (root / "README.md").write_text("# The README\n", encoding="utf-8")
            (root / "docs/other.md").write_text("# Other\n", encoding="utf-8")
            (root / "src/wire/format.cc").touch()
            for name in ("runs", "barred"):
                (root / "scripts" / name).write_text("#!/bin/sh\n", encoding="utf-8")
            (root / "scripts/runs").chmod(0o755)
            (root / "docs/page.md").write_text(text, encoding="utf-8")
            found = check(root)
            if len(found) != expected:
                wrong.append(f"{text!r}: expected {expected} violations, found {len(found)}: {found}")
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
