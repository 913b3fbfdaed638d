#!/usr/bin/python3
"""What control Sum of p4/netsum_v1model.p4 says, statement by statement, is the rule of a chip's slots: it is interpreted here, with every
operand's width checked, on random packets, next to the rule in words of whole packets. No P4 compiler is needed; none is replaced either: this
knows just the statements that the control has.

usage: p4_source.py P4_FOLDER
"""
import os
import random
import re
import subprocess
import sys

TOKEN = re.compile(r"\s*(\d+w\d+|0x[0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\+\+|<<|&&|\|\||==|!=|<=|>=|[-+~!?:;,.(){}\[\]<>=&|^])")
PRECEDENCE = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("|",), ("^",), ("&",), ("<<",), ("+", "-", "++"))
SOURCES = ("common/constants.p4", "common/headers.p4", "common/tables.p4", "netsum_v1model.p4")
HEADERS = {"chip": "chip_t", "low": "half_t", "high": "half_t"}
ACCEPTED, WORDS, ENTRIES = 0x80000000, 32, 8192


def text_between_braces(text, begin):
    depth = 0
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin + 1:at]
    raise SystemExit("p4_source: a brace is open")


class Parser:
    """Statements as tuples."""

    def __init__(self, text):
        self.tokens, self.at, text = [], 0, text.rstrip()
        at = 0
        while at < len(text):
            found = TOKEN.match(text, at)
            if not found:
                raise SystemExit(f"p4_source: not understood: {text[at:at + 60]!r}")
            self.tokens.append(found[1])
            at = found.end()

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else None

    def take(self, *expected):
        token = self.peek()
        if expected and token not in expected:
            raise SystemExit(f"p4_source: {token!r} is not one of {expected}, after {' '.join(self.tokens[max(0, self.at - 12):self.at])}")
        self.at += 1
        return token

    def taken(self, token):
        if self.peek() != token:
            return False
        self.at += 1
        return True

    def statements(self, end=None):
        found = []
        while self.peek() != end:
            found.append(self.statement())
        return found

    def statement(self):
        if self.taken("{"):
            inner = self.statements("}")
            self.take("}")
            return "block", inner
        if self.taken("if"):
            self.take("(")
            condition = self.expression()
            self.take(")")
            return "if", condition, self.statement(), self.statement() if self.taken("else") else None
        if self.peek() in ("bit", "bool"):
            width = self.width() if self.peek() == "bit" else self.take()
            name = self.take()
            value = self.expression() if self.taken("=") else None
            self.take(";")
            return "declare", width, name, value
        left = self.operand()
        right = self.expression() if self.taken("=") else None
        self.take(";")
        return ("set", left, right) if right else ("call", left)

    def width(self):
        self.take("bit")
        self.take("<")
        width = int(self.take())
        self.take(">")
        return width

    def expression(self, level=-1):
        if level == -1:
            condition = self.expression(0)
            if not self.taken("?"):
                return condition
            yes = self.expression()
            self.take(":")
            return "choice", condition, yes, self.expression()
        if level == len(PRECEDENCE):
            return self.operand()
        left = self.expression(level + 1)
        while self.peek() in PRECEDENCE[level]:
            left = "both", self.take(), left, self.expression(level + 1)
        return left

    def operand(self):
        if self.peek() in ("!", "~"):
            return "not", self.take(), self.operand()
        if self.taken("("):
            if self.peek() == "bit":
                width = self.width()
                self.take(")")
                return "cast", width, self.operand()
            inner = self.expression()
            self.take(")")
            return self.suffixes(inner)
        token = self.take()
        if token[0].isdigit():
            width, _, value = token.rpartition("w")
            return "number", int(value, 0), int(width) if width else None
        return self.suffixes(("name", token))

    def suffixes(self, of):
        while True:
            if self.taken("."):
                of = ("name", f"{of[1]}.{self.take()}")
            elif self.taken("["):
                high = int(self.take())
                self.take(":")
                of = ("slice", of, high, int(self.take()))
                self.take("]")
            elif self.taken("("):
                arguments = []
                while not self.taken(")"):
                    arguments.append(self.expression())
                    self.taken(",")
                of = ("run", of[1], arguments)
            else:
                return of


class Program:
    """The control, its registers included."""

    def __init__(self, folder, sources=SOURCES, headers=None):
        source, headers = "", headers or HEADERS
        for name in sources:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                source += "".join(line for line in file if not line.startswith("#include"))
        text = subprocess.run(["cc", "-E", "-P", "-xc", "-"], input=source, capture_output=True, text=True, check=True).stdout
        self.constants = {name: (eval(value, {"__builtins__": {}}), int(width))  # sums and products of numbers
                          for width, name, value in re.findall(r"const bit<(\d+)> (\w+) = ([-+*\dxa-fA-F ]+);", text)}
        self.widths = {"standard.mcast_grp": 16, "standard.egress_spec": 9}
        for kind, name in re.findall(r"(?:header|struct) (\w+) (?=\{)()", text):
            fields = re.findall(r"bit<(\d+)>\s+(\w+)\s*;", text_between_braces(text, text.index("{", text.index(f" {kind} {{"))))
            places = [f"headers.{header}." for header, its in headers.items() if its == kind]
            places += {"metadata_t": ["meta."], "member_t": ["meta.member."], "atp_member_t": ["meta.member."]}.get(kind, [])
            self.widths.update({place + field: int(width) for place in places for width, field in fields})
        control = text_between_braces(text, text.index("{", text.index("control Sum(")))
        self.registers = {name: (int(width), {}) for width, name in re.findall(rf"register<bit<(\d+)>>\({ENTRIES}\) (\w+);", control)}
        self.actions = {}
        for found in re.finditer(r"action (\w+)\(([^)]*)\) (?=\{)", control):
            parameters = re.findall(r"bit<(\d+)> (\w+)", found[2])
            self.actions[found[1]] = [(int(width), name) for width, name in parameters], Parser(text_between_braces(control, found.end())).statements()
        self.body = Parser(text_between_braces(control, control.index("{", control.index("apply {")))).statements()

    def run(self, fields):
        """One pass. Its counts; `fields` change."""
        self.fields, self.locals, self.counted, self.accesses, self.dropped = fields, {}, [], {}, False
        self.execute(("block", self.body))
        for name, accesses in self.accesses.items():
            if [kind for kind, _ in accesses] not in (["read"], ["write"], ["read", "write"]) or len({index for _, index in accesses}) != 1:
                raise SystemExit(f"p4_source: register {name} is accessed more than once in a pass: {accesses}")
        return self.counted

    def width_of(self, name):
        return self.locals[name][1] if name in self.locals else self.widths[name]

    def assign(self, name, value, width):
        if width not in (None, self.width_of(name)):
            raise SystemExit(f"p4_source: {name} has {self.width_of(name)} bits, and is given {width}")
        if name in self.locals:
            self.locals[name] = value, self.locals[name][1]
        else:
            self.fields[name] = value

    def value(self, of):
        """And its width: None of a number that says none."""
        kind = of[0]
        if kind == "number":
            return of[1], of[2]
        if kind == "name":
            if of[1] in ("true", "false"):
                return of[1] == "true", "bool"
            if of[1] in self.fields:
                return self.fields[of[1]], self.widths[of[1]]
            return self.locals[of[1]] if of[1] in self.locals else self.constants[of[1]]
        if kind == "slice":
            return self.value(of[1])[0] >> of[3] & (1 << of[2] - of[3] + 1) - 1, of[2] - of[3] + 1
        if kind == "cast":
            return self.value(of[2])[0] & (1 << of[1]) - 1, of[1]
        if kind == "not":
            value, width = self.value(of[2])
            return (not value, "bool") if of[1] == "!" else (~value & (1 << width) - 1, width)
        if kind == "choice":
            yes, no = self.value(of[2]), self.value(of[3])
            return (yes if self.value(of[1])[0] else no)[0], yes[1] or no[1]
        _, operator, left, right = of
        if operator in ("&&", "||"):
            first = self.value(left)[0]
            return (first and self.value(right)[0] if operator == "&&" else first or self.value(right)[0]), "bool"
        (one, width), (other, other_width) = self.value(left), self.value(right)
        if operator == "++":
            return one << other_width | other, width + other_width
        if operator != "<<" and None not in (width, other_width) and width != other_width:
            raise SystemExit(f"p4_source: {of} has operands of {width} and {other_width} bits")
        width = other_width if width is None else width
        compared = {"==": one == other, "!=": one != other, "<": one < other, ">": one > other, "<=": one <= other, ">=": one >= other}
        if operator in compared:
            return compared[operator], "bool"
        made = {"+": one + other, "-": one - other, "&": one & other, "|": one | other, "^": one ^ other, "<<": one << (other & 63)}
        return made[operator] & (1 << width) - 1, width

    def execute(self, statement):
        kind = statement[0]
        if kind == "block":
            for each in statement[1]:
                self.execute(each)
        elif kind == "declare":
            self.locals[statement[2]] = 0, statement[1]
            if statement[3]:
                self.assign(statement[2], *self.value(statement[3]))
        elif kind == "set":
            self.assign(statement[1][1], *self.value(statement[2]))
        elif kind == "if":
            taken = statement[2] if self.value(statement[1])[0] else statement[3]
            if taken:
                self.execute(taken)
        else:
            self.call(*statement[1][1:])

    def call(self, name, arguments):
        place, _, method = name.rpartition(".")
        if place in self.registers:
            width, entries = self.registers[place]
            index = self.value(arguments[1 if method == "read" else 0])[0]
            self.accesses.setdefault(place, []).append((method, index))
            if method == "read":
                self.assign(arguments[0][1], entries.get(index, 0), width)
            else:
                value, value_width = self.value(arguments[1])
                if value_width != width:
                    raise SystemExit(f"p4_source: register {place} has {width} bits, and is given {value_width}")
                entries[index] = value
        elif name == "outcomes.count":
            self.counted.append(self.value(arguments[0])[0])
        elif name == "mark_to_drop":
            self.dropped = True
        elif method == "setInvalid":
            self.fields.update({f"{place}.w{word:02}": 0 for word in range(WORDS)})
        elif name in self.actions:
            parameters, body = self.actions[name]
            outside, self.locals = self.locals, {each: (*self.value(given)[:1], width) for (width, each), given in zip(parameters, arguments)}
            self.execute(("block", body))
            self.locals = outside
        elif method != "setValid":
            raise SystemExit(f"p4_source: {name} is not known")


class Rule:
    """Of one version of one slot, for whole packets: docs/protocol-switchml-chip.md."""

    def __init__(self, members):
        self.x = self.done = self.bits = self.exponent = 0
        self.everyone, self.sums = (1 << members) - 1, []

    def outcome(self, a, member, exponent, values):
        if self.x not in (a, a + 1):
            return "answered" if self.done == a + 2 else "early" if self.x < a else "old"
        self.x, is_new, is_first = a + 1, not self.bits >> member & 1, not self.bits
        if is_new:
            self.sums = values if is_first else [(one + other) & 0xffffffff for one, other in zip(self.sums, values)]
            self.exponent = exponent if is_first else max(self.exponent, exponent)
        self.bits |= 1 << member
        if self.bits != self.everyone:
            return "contribution" if is_new else "silent"
        self.x = self.done = a + 2
        self.bits = 0
        return "sent_to_all"


def compare(folder, quarters, packets, rng, members=3, slots=2, base=40, job=5):
    program, rules, rounds, seen = Program(folder), {}, {}, set()
    names = {value: name.lower()[8:] for name, (value, _) in program.constants.items() if name.startswith("OUTCOME_")}
    for entry in range(base, base + 2 * slots * quarters):
        program.registers["gate"][1][entry] = ACCEPTED
    for _ in range(packets):
        slot, version, member = rng.randrange(slots), rng.randrange(2), rng.randrange(members)
        number = max(0, rounds.get((slot, version), 0) + rng.choice([0] * 9 + [-1, -2, 1]))
        same = random.Random(repr((slot, version, member, number)))  # a repeat is equal to the last byte
        exponent, values = same.randrange(255), [same.getrandbits(32) for _ in range(2 * WORDS * quarters)]
        fields = dict.fromkeys(program.widths, 0)
        fields.update({"meta.member.job": job, "meta.member.replica": member + 1, "meta.member.bit_of": 1 << member,
                       "meta.member.everyone": ACCEPTED | (1 << members) - 1, "meta.member.base": base, "meta.member.stride": 2 * slots,
                       "meta.member.last_quarter": quarters - 1, "meta.member.port": member, "meta.member.group": 9, "headers.chip.slot": slot,
                       "headers.chip.version": version, "headers.chip.round": number, "headers.chip.exponent": exponent})
        payload, counted, again = list(values), [], True
        while again:
            fields.update({"meta.again": 0, "standard.egress_spec": 0})
            is_answer = fields["meta.pass_kind"] == program.constants["PASS_ANSWER"][0]
            if not is_answer:
                taken, payload = payload[:2 * WORDS], payload[2 * WORDS:]
                fields.update({f"headers.{half}.w{word:02}": taken[at + word] for half, at in (("low", 0), ("high", WORDS)) for word in range(WORDS)})
            counted += program.run(fields)
            if is_answer:
                payload = [fields[f"headers.{half}.w{word:02}"] for half in ("low", "high") for word in range(WORDS)] + payload
            again = fields["meta.again"]
        rule = rules.setdefault((slot, version), Rule(members))
        outcome = rule.outcome(2 * number, member, exponent, values)
        if names[counted[-1] - 16 * job] != outcome:
            raise SystemExit(f"p4_source: a packet's outcome is {names[counted[-1] - 16 * job]}, not {outcome}")
        seen.add(outcome)
        if outcome not in ("sent_to_all", "answered"):
            sent = program.dropped
        else:
            sent = (payload, fields["headers.chip.exponent"]) == (rule.sums, rule.exponent)
            to_all = (9, 0) if outcome == "sent_to_all" else (0, member + 1)
            sent = sent and (fields["standard.mcast_grp"], fields["meta.replica"]) == to_all
        if not sent:
            raise SystemExit(f"p4_source: the right outcome, {outcome}, but another packet")
        if outcome == "sent_to_all":
            rounds[slot, version] = number + 1
    if len(seen) != 6:
        raise SystemExit(f"p4_source: too few packets: only {seen}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for quarters in (1, 4):
        compare(sys.argv[1], quarters, 400, random.Random(quarters))
        print(f"p4_source: packets of {64 * quarters} elements: the program's outcomes and results are the rule's")
