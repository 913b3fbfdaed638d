#!/usr/bin/python3
"""What netsum's P4 programs would need of a chip, from the annotations @stage(N) and @unit(BITS) in their source; an error if it is
more than there is: 12 stages, in each 4 register units of 64 bits, and one access of a register in each pass of a packet.

usage: budget.py FILE...      one line for each program
       budget.py --self-test

This is arithmetic about a plan. Only a chip's compiler says whether a program fits.
"""
import os
import re
import subprocess
import sys
import tempfile

STAGES, UNITS, BITS = 12, 4, 64
REGISTER = re.compile(r"((?:@\w+(?:\([^)]*\))?\s*)*)\b(register|Register)<([^;{}]*?)>\s*\([^;]*?\)\s*(\w+)\s*;")
UNIT_ACTION = re.compile(r"RegisterAction\d?<[^;{}]*?>\((\w+)\)\s*(\w+)\s*=")


def preprocessed(path):
    """The program without macros. The architecture's own headers are left out."""
    def text_of(file, seen):
        lines = []
        for line in open(file, encoding="utf-8"):
            other = re.match(r'#include "([^"]+)"', line)
            if other:
                name = os.path.join(os.path.dirname(path), other[1])
                if name not in seen:
                    seen.add(name)
                    lines.append(text_of(name, seen))
            elif not line.startswith("#include"):
                lines.append(line)
        return "".join(lines)

    made = subprocess.run(["cc", "-E", "-P", "-xc", "-D__TARGET_TOFINO__=1", "-"], input=text_of(path, set()), capture_output=True, text=True)
    if made.returncode != 0:
        raise SystemExit(f"budget: the preprocessor refuses {path}: {made.stderr.strip()}")
    return made.stdout


def block_at(text, begin):
    """From an opening brace on: what is within, and where it ends."""
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + 1:at], at + 1
    return text[begin + 1:], len(text)


def branches(text):
    """What one packet may meet: each branch of the pass's kind by itself, in a program of bmv2's."""
    found = re.search(r"if \(meta\.pass_kind == PASS_CONSUME\) (?=\{)", text)
    if not found:
        return [text]
    first, end = block_at(text, found.end())
    other = re.match(r"\s*else\s*(?=\{)", text[end:])
    rest = block_at(text, end + other.end())[0] if other else ""
    return [first, rest]


def check(path):
    """The units of each stage, and what is wrong."""
    text, wrong, stages, stage_of = preprocessed(path), [], {}, {}
    for notes, _, _, name in REGISTER.findall(text):
        if "@forwarding" in notes:  # of the ordinary switch; a chip has tables in its place
            continue
        notes = dict(re.findall(r"@(\w+)\(([^)]*)\)", notes))
        if "stage" not in notes or "unit" not in notes:
            wrong.append(f"register {name} says neither @stage nor @unit, or one alone")
            continue
        stage, bits = int(notes["stage"]), int(notes["unit"])
        stage_of[name] = stage
        stages.setdefault(stage, []).append(name)
        if bits > BITS:
            wrong.append(f"register {name} has {bits} bits, and a unit {BITS}")
        if stage >= STAGES:
            wrong.append(f"register {name} is in stage {stage} of {STAGES}")
    for stage, names in sorted(stages.items()):
        if len(names) > UNITS:
            wrong.append(f"stage {stage} has {len(names)} register units of {UNITS}: {' '.join(names)}")
    # bmv2's: read once and then written once, at one index.
    for branch in branches(text):
        for name in stage_of:
            accesses = re.findall(rf"\b{name}\.(read|write)\(([^;]*)\)\s*;", branch)
            kinds = [kind for kind, _ in accesses]
            if kinds not in ([], ["read"], ["write"], ["read", "write"]):
                wrong.append(f"register {name} is accessed more than once in a pass: {', '.join(kinds)}")
    # Tofino's: each unit's actions are run from actions of one table in the unit's stage, which is applied once.
    table_of = {}
    for found in re.finditer(r"(?:@stage\((\d+)\)\s*)?\btable (\w+)\s*(?=\{)", text):
        body = block_at(text, found.end())[0]
        actions = re.search(r"actions\s*=\s*\{([^}]*)\}", body)
        for action in re.findall(r"\w+", actions[1] if actions else ""):
            table_of.setdefault(action, []).append((found[2], found[1]))
    tables_of_unit = {}
    for register, unit_action in UNIT_ACTION.findall(text):
        runs = re.findall(rf"action (\w+)\([^)]*\)\s*\{{[^}}]*\b{unit_action}\.execute\(", text)
        if len(runs) != 1:
            wrong.append(f"{unit_action} of register {register} is run from {len(runs)} actions, not from one")
        for run in runs:
            for table, stage in table_of.get(run, []):
                tables_of_unit.setdefault(register, set()).add(table)
                if stage is None or int(stage) != stage_of.get(register):
                    wrong.append(f"table {table} is in stage {stage}, and its register {register} in {stage_of.get(register)}")
    for register, tables in tables_of_unit.items():
        applied = sum(len(re.findall(rf"\b{table}\.apply\(", text)) for table in tables)
        if len(tables) > 1 or applied != 1:
            wrong.append(f"register {register} is accessed more than once in a pass: by tables {' '.join(sorted(tables))}, applied {applied} times")
    if not stage_of:
        wrong.append("no register has @stage and @unit")
    return stages, wrong


def report(path):
    stages, wrong = check(path)
    for each in wrong:
        print(f"budget: {path}: {each}", file=sys.stderr)
    if not wrong:
        units = sum(len(names) for names in stages.values())
        print(f"{os.path.basename(path)}: {units} register units in stages {min(stages)} to {max(stages)} of 0 to {STAGES - 1}, at most "
              f"{max(map(len, stages.values()))} of {UNITS} in one (a plan, not a compiler's result)")
    return not wrong


def self_test():
    bmv2 = """@stage(2) @unit(64) register<bit<64>>(8) gate;
        #define SUMS(N, STAGE) @stage(STAGE) @unit(64) register<bit<64>>(8) sums_##N;
        SUMS(00, 4) SUMS(01, 4) SUMS(02, 4) SUMS(03, 4)
        @forwarding register<bit<64>>(8) learned;
        apply { if (meta.pass_kind == PASS_CONSUME) { gate.read(u, i); gate.write(i, u + 1); } else { gate.read(u, i); } }"""
    tofino = """@stage(3) @unit(32) Register<bit<32>, bit<32>>(8, 0) done;
        RegisterAction<bit<32>, bit<32>, bit<32>>(done) compare = { void apply(inout bit<32> unit) { } };
        action at_done() { meta.done = compare.execute(meta.index); }
        @stage(3) table dones { key = { kind : exact; } actions = { at_done; } }
        apply { dones.apply(); }"""
    cases = [(bmv2, None), (tofino, None),
             (bmv2.replace("SUMS(03, 4)", "SUMS(03, 4) SUMS(04, 4)"), "stage 4 has 5"),
             (bmv2.replace("@unit(64) register<bit<64>>(8) gate", "@unit(128) register<bit<64>>(8) gate"), "128 bits"),
             (bmv2.replace("SUMS(03, 4)", "SUMS(03, 12)"), "stage 12 of 12"),
             (bmv2.replace("gate.write(i, u + 1);", "gate.write(i, u + 1); gate.read(v, i);"), "more than once"),
             (bmv2.replace("@forwarding", ""), "neither @stage"),
             (tofino.replace("dones.apply(); ", "dones.apply(); dones.apply(); "), "applied 2 times"),
             (tofino.replace("@stage(3) table", "@stage(4) table"), "is in stage 4"),
             (tofino.replace("action at_done()", "action again() { x = compare.execute(meta.other); } action at_done()"), "from 2 actions"),
             ("control Empty() { }", "no register")]
    for text, expected in cases:
        with tempfile.NamedTemporaryFile("w", suffix=".p4") as file:
            file.write(text.replace("        #define", "#define"))
            file.flush()
            wrong = check(file.name)[1]
        if (not wrong) != (expected is None) or (expected and not any(expected in each for each in wrong)):
            raise SystemExit(f"budget: self-test: expected {expected!r}, found {wrong}")
    print(f"budget: self-test: {len(cases)} cases")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    elif not sys.argv[1:]:
        raise SystemExit(__doc__)
    elif not all([report(path) for path in sys.argv[1:]]):
        sys.exit(1)
