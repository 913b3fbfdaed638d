#!/usr/bin/env python3
"""Holds tests/mutation/mutants.toml to the sources: what a deliberate bug replaces occurs exactly once in its file.

check_mutants.py ROOT          one line per mutant that cannot be put in; exit status 1 if there is any
check_mutants.py --self-test   shows that every kind is found, and that a good one passes
"""

import pathlib
import sys
import tempfile
import tomllib


def check(root):
    found = []
    mutants = tomllib.loads((root / "tests/mutation/mutants.toml").read_text(encoding="utf-8")).get("mutant", [])
    for mutant in mutants:
        path = root / mutant["file"]
        if not path.is_file():
            found.append(f"{mutant['name']}: no file {mutant['file']}")
            continue
        count = path.read_text(encoding="utf-8").count(mutant["old"])
        if count != 1:
            found.append(f"{mutant['name']}: `old` occurs {count} times in {mutant['file']}")
    return found or ([] if mutants else ["there are no mutants"])


def self_test():
    line = '[[mutant]]\nname = "m"\nfile = "src/{}"\nold = "{}"\n'
    wrong = []
    for text, expected in ((line.format("a.cc", "one"), 0), (line.format("a.cc", "none"), 1), (line.format("a.cc", "two"), 1),
                           (line.format("b.cc", "one"), 1), ("", 1)):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "tests/mutation").mkdir(parents=True)
            (root / "src").mkdir()
            (root / "src/a.cc").write_text("one two two")
            (root / "tests/mutation/mutants.toml").write_text(text)
            if len(check(root)) != expected:
                wrong.append(f"{text!r}: {check(root)}")
    return wrong


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = self_test() if sys.argv[1] == "--self-test" else check(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(found or ["ok"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
