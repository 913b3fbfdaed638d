#!/usr/bin/env python3
"""Holds the texts that people read to plain English: no string of src, apps and bindings has a phrase that has to be read twice.

check_words.py ROOT          one line for each such phrase in a string of C++ or Python; exit status 1 if there is any
check_words.py --self-test   shows that phrases are found, also across lines, and that good texts, comments and docstrings pass
"""

import pathlib
import re
import sys
import tempfile

# Each hides what the sentence is about. Instead: the subject first, its name in place of a pronoun, the term of the field.
PHRASES = (
    "who", "whose", "whom", "whoever", "nobody", "anybody", "another's", "others'", "of which", "what came", "what was asked for",
    "is none", "are none", "that is none", "(?<!there )is no(?! longer)", "is not the one", "for ever", "anew", "under way", "goes on", "go on", "gone on",
    "come together", "came together", "the way there", "tells? of jobs", "by themselves",
)  # fmt: skip
PATTERN = re.compile(rf"(?<![\w'])(?:{'|'.join(PHRASES)})(?!\w)", re.I)

CPP = re.compile(r"""//[^\n]*|/\*.*?\*/|\#\s*include[^\n]*|'(?:[^'\\\n]|\\.)+'|R"(\w*)\((?P<raw>.*?)\)\1"|"(?P<text>(?:[^"\\\n]|\\.)*)"|(?P<code>\S)""", re.S)
PYTHON = re.compile(r"""\#[^\n]*|(['"])\1\1.*?\1\1\1|"(?P<text>(?:[^"\\\n]|\\.)*)"|'(?P<raw>(?:[^'\\\n]|\\.)*)'|(?P<code>\S)""", re.S)


def strings(path):
    """(line, text) of each string; C++ and Python join those that follow each other."""
    source, found, open_ended = path.read_text(encoding="utf-8"), [], False
    for match in (PYTHON if path.suffix == ".py" else CPP).finditer(source):
        text = match["text"] if match["text"] is not None else match["raw"]
        if text is not None and open_ended:
            found[-1][1] += text
        elif text is not None:
            found.append([source.count("\n", 0, match.start()) + 1, text])
        if text is not None or match["code"]:
            open_ended = text is not None or (open_ended and path.suffix == ".py" and match["code"] == "f")
    return found


def check(root):
    files = [path for folder in ("src", "apps", "bindings") for path in sorted((root / folder).rglob("*")) if path.suffix in (".cc", ".h", ".py")]
    violations = [] if files else [f"{root}: nothing to check"]
    for path in files:
        for line, text in strings(path):
            for phrase in PATTERN.findall(text.replace("\\n", " ")):
                violations.append(f"{path.relative_to(root)}:{line}: '{phrase}': say it plainly in \"{text}\"")
    return violations


# (name, text, number of violations)
SAMPLES = [
    ("src/good.cc", '// nobody, whose\nconst char* text = "there is no route to it";  /* whom */ char c = \'"\';\n#include "who/is.h"\n', 0),
    ("apps/names.h", 'constexpr auto name = "others_whose_who";\n', 0),
    ("src/bad.cc", 'Error("the job is another\'s");\n', 1),
    ("src/bad.cc", 'refuse("a port that is none");\n', 1),
    ("src/bad.cc", 'fail("Nobody knows, "\n     "whose it is");\n', 2),
    ("apps/split.cc", 'log("it "\n    "is "  // a comment between\n    "none");\n', 1),
    ("apps/split.cc", 'log("it is", "none");\n', 0),
    ("apps/raw.h", 'auto help = R"x(Who waits)x";\n', 1),
    ("bindings/good.py", '"""Whose it is."""\nprint("plain")  # whom\n', 0),
    ("bindings/bad.py", "raise Error('it goes on')\nprint(f\"packets under \"\n      f\"way\")\n", 2),
]  # fmt: skip


def self_test():
    wrong = []
    for name, text, expected in SAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, name)
            path.parent.mkdir()
            path.write_text(text, encoding="utf-8")
            found = check(pathlib.Path(folder))
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
