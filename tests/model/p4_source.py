#!/usr/bin/python3
"""What control Sum of p4/netsum_v1model.p4 and Ingress of p4/netsum_tna.p4 say, statement by statement, is the rule of a chip's slots: they are
interpreted here, with every operand's width checked, on random packets, next to the rule in words of whole packets. No P4 compiler is needed; none
is replaced either: this knows just the statements that these controls have.

usage: p4_source.py P4_FOLDER
"""
import os
import random
import re
import subprocess
import sys

TOKEN = re.compile(r"\s*(\d+w\d+|0x[0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\+\+|\|-\||<<|&&|\|\||==|!=|<=|>=|[-+~!?:;,.(){}\[\]<>=&|^])")
PRECEDENCE = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("|",), ("^",), ("&",), ("<<",), ("+", "-", "++", "|-|"))
COMMON = ("common/constants.p4", "common/headers.p4", "common/tables.p4")
HEADERS = {"pass": "pass_t", "ipv4": "ipv4_t", "udp": "udp_t", "chip": "chip_t", "low": "half_t", "high": "half_t"}
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
        if self.taken("switch"):
            self.take("(")
            table = self.operand()
            cases = {}
            self.take(")")
            self.take("{")
            while not self.taken("}"):
                name = self.take()
                self.take(":")
                cases[name] = self.statement()
            return "switch", table[1], cases
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
                of = (of[0] if of[0] == "run" else "name", f"{of[1]}.{self.take()}", *of[2:])
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

    def __init__(self, folder, file_name="netsum_v1model.p4", flags=(), common=COMMON, headers=None):
        source, headers = "", headers or HEADERS
        for name in (*common, file_name):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                source += "".join(line for line in file if not line.startswith("#include"))
        self.text = text = subprocess.run(["cc", "-E", "-P", "-xc", *flags, "-"], input=source, capture_output=True, text=True, check=True).stdout
        self.constants = {name: (eval(value, {"__builtins__": {}}), int(width))  # sums and products of numbers
                          for width, name, value in re.findall(r"const bit<(\d+)> (\w+) = ([-+*\dxa-fA-F ]+);", text)}
        self.widths = {"standard.mcast_grp": 16, "standard.egress_spec": 9}
        for kind, name in re.findall(r"(?:header|struct) (\w+) (?=\{)()", text):
            fields = re.findall(r"bit<(\d+)>\s+(\w+)\s*;", text_between_braces(text, text.index("{", text.index(f" {kind} {{"))))
            places = [f"headers.{header}." for header, its in headers.items() if its == kind]
            places += {"metadata_t": ["meta."], "member_t": ["meta.member."], "atp_member_t": ["meta.member."]}.get(kind, [])
            self.widths.update({place + field: int(width) for place in places for width, field in fields})
        self.actions, self.body, self.fields, self.locals = {}, [], {}, {}
        self.read_control("Sum")

    def read_control(self, name):
        control = text_between_braces(self.text, self.text.index("{", self.text.index(f"control {name}(")))
        self.registers = {name: (int(width), {}) for width, name in re.findall(rf"register<bit<(\d+)>>\({ENTRIES}\) (\w+);", control)}
        for found in re.finditer(r"action (\w+)\(([^)]*)\) (?=\{)", control):
            parameters = re.findall(r"bit<(\d+)> (\w+)", found[2])
            self.actions[found[1]] = [(int(width), name) for width, name in parameters], Parser(text_between_braces(control, found.end())).statements()
        self.body = Parser(text_between_braces(control, control.index("{", control.index("apply {")))).statements()
        return control

    def run(self, fields):
        """One pass. Its counts; `fields` change."""
        self.fields, self.locals, self.counted, self.accesses, self.dropped = fields, {}, [], {}, False
        self.execute(("block", self.body))
        for name, accesses in self.accesses.items():
            if [kind for kind, _ in accesses] not in (["read"], ["write"], ["read", "write"], ["execute"]) or len({index for _, index in accesses}) != 1:
                raise SystemExit(f"p4_source: register {name} is accessed more than once in a pass: {accesses}")
        return self.counted

    def through(self, given, values):
        """All passes of a packet: what came of it, and what was sent: elements, exponent, and to whom."""
        fields = {**dict.fromkeys(self.widths, 0), **given}
        payload, counted, again = list(values), [], True
        while again:
            fields.update({"meta.again": 0, "standard.egress_spec": 0})
            is_answer = fields["meta.pass_kind"] == self.constants["PASS_ANSWER"][0]
            if not is_answer:
                taken, payload = payload[:2 * WORDS], payload[2 * WORDS:]
                fields.update({f"headers.{half}.w{word:02}": taken[at + word] for half, at in (("low", 0), ("high", WORDS)) for word in range(WORDS)})
            counted += self.run(fields)
            if is_answer:
                payload = [fields[f"headers.{half}.w{word:02}"] for half in ("low", "high") for word in range(WORDS)] + payload
            again = fields["meta.again"]
        sent = payload, fields["headers.chip.exponent"], (fields["standard.mcast_grp"], fields["meta.replica"])
        return self.outcome(counted, given), None if self.dropped else sent

    def outcome(self, counted, given):
        number = counted[-1] - 16 * given["meta.member.job"]
        return next(name.lower()[8:] for name, (value, _) in self.constants.items() if name.startswith("OUTCOME_") and value == number)

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
        made = {"|-|": max(0, one - other), "+": one + other, "-": one - other, "&": one & other, "|": one | other, "^": one ^ other, "<<": one << (other & 63)}
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


class ChipProgram(Program):
    """Tofino's: tables, whose actions run those of the registers."""

    def __init__(self, folder, chip):
        super().__init__(folder, "netsum_tna.p4", (f"-D__TARGET_TOFINO__={chip}", "-DENTRY_BITS=16"))
        self.widths.update({"tm.ucast_egress_port": 9, "tm.bypass_egress": 1, "tm.mcast_grp_a": 16, "deparser.drop_ctl": 3})

    def read_control(self, _):
        self.text = self.text.replace("(PortId_t)", "(bit<9>)").replace("(L2ExclusionId_t)", "(bit<16>)")
        registers, self.units, self.tables = {}, {}, {}
        for name in ("Sum", "Ingress"):
            control = super().read_control(name)
            if name == "Sum":
                self.sum = self.body
            for kind, register in re.findall(rf"Register<([^,]+), bit<\d+>>\({ENTRIES}[^;]*\) (\w+);", control):
                struct = re.search(rf"struct {kind} (?=\{{)", self.text)
                fields = re.findall(r"bit<(\d+)>\s+(\w+)", text_between_braces(self.text, struct.end())) if struct else [(kind[4:-1], "")]
                registers[register] = {field: int(width) for width, field in fields}, {}
            for found in re.finditer(r"RegisterAction\d?<[^;{}]*?>\((\w+)\) (\w+) = (?=\{)", control):
                text = text_between_braces(control, found.end())
                outs = [(int(width), out) for width, out in re.findall(r"(?<!in)out bit<(\d+)> (\w+)", text)]
                self.units[found[2]] = found[1], outs, Parser(text_between_braces(text, text.index("{"))).statements()
            for found in re.finditer(r"\btable (\w+) (?=\{)", control):
                self.read_table(found[1], text_between_braces(control, found.end()))
        self.registers = registers

    def read_table(self, name, text):
        keys = [Parser(key.split(":")[0]).expression() for key in re.search(r"key = \{([^}]*)\}", text)[1].split(";")[:-1]]
        entries = []
        for match, action, given in re.findall(r"(\([^()]*\)|\w+) : (\w+)\(([^()]*)\);", text):
            patterns = [self.pattern(each) for each in match.strip("()").split(",")]
            entries.append((patterns, action, [Parser(given).expression()] if given else []))
        _, action, given = re.search(r"(default_action) = (\w+)\(([^()]*)\);", text).groups()
        if len(entries) > int(re.search(r"size = ([^;]*);", text)[1].split()[0]) and entries:
            raise SystemExit(f"p4_source: table {name} has more entries than its size")
        self.tables[name] = keys, entries + [([(0, 0)] * len(keys), action, [Parser(given).expression()] if given else [])]

    def pattern(self, text):
        if text.strip() == "_":
            return 0, 0
        value, _, mask = text.partition("&&&")
        value = self.value(Parser(value).expression())[0]
        return value, self.value(Parser(mask).expression())[0] if mask else -1

    def apply_table(self, name):
        keys, entries = self.tables[name]
        found = [self.value(key)[0] for key in keys]
        for patterns, action, given in entries:
            if all((key ^ value) & mask == 0 for key, (value, mask) in zip(found, patterns)):
                if action != "NoAction":
                    self.call(action, given)
                return action

    def run_unit(self, name, arguments):
        register, outs, body = self.units[name]
        index = self.value(arguments[0])[0]
        self.accesses.setdefault(register, []).append(("execute", index))
        widths, entries = self.registers[register]
        entry = entries.get(index, {})
        outside, self.locals = self.locals, {out: (0, width) for width, out in outs}
        self.locals.update({f"unit.{field}".strip("."): (entry.get(field, 0), width) for field, width in widths.items()})
        self.execute(("block", body))
        entries[index] = {field: self.locals[f"unit.{field}".strip(".")][0] for field in widths}
        results, self.locals = [self.locals[out] for _, out in outs], outside
        for argument, result in zip(arguments[1:], results[1:]):
            self.assign(argument[1], *result)
        return results[0] if results else None

    def value(self, of):
        if of[0] != "run":
            return super().value(of)
        place, _, method = of[1].rpartition(".")
        if of[1] == "max":
            return max(self.value(each) for each in of[2])
        return (True, "bool") if method == "isValid" else self.run_unit(place, of[2])

    def execute(self, statement):
        if statement[0] == "switch":
            self.execute(statement[2][self.apply_table(statement[1].split(".")[0])])
        else:
            super().execute(statement)

    def call(self, name, arguments):
        place, _, method = name.rpartition(".")
        if method == "apply" and place in self.tables:
            self.apply_table(place)
        elif method == "execute":
            self.run_unit(place, arguments)
        elif name == "sum.apply":
            self.execute(("block", self.sum))
        elif method in ("setValid", "setInvalid"):
            (self.valid.add if method == "setValid" else self.valid.discard)(place)
        elif name not in ("find_member.apply", "find_lane.apply", "strangers.count"):
            super().call(name, arguments)

    def through(self, given, values):
        carried, payload, counted = given, list(values), []
        while True:
            fields = dict.fromkeys(self.widths, 0)
            fields.update({name: value for name, value in carried.items() if name.startswith("headers.")})
            fields.update({name: value for name, value in given.items() if name.startswith("meta.member.")})
            self.valid = set()
            if fields["headers.pass.kind"] == self.constants["PASS_CONSUME"][0]:
                taken, payload = payload[:2 * WORDS], payload[2 * WORDS:]
                self.valid = {"headers.low", "headers.high"}
                fields.update({f"headers.{half}.w{word:02}": taken[at + word] for half, at in (("low", 0), ("high", WORDS)) for word in range(WORDS)})
            counted += self.run(fields)
            payload = [fields[f"{half}.w{word:02}"] for half in ("headers.low", "headers.high") if half in self.valid for word in range(WORDS)] + payload
            if fields["deparser.drop_ctl"]:
                return self.outcome(counted, given) if counted else "malformed", None
            if not fields["tm.bypass_egress"]:
                group, replica = fields["tm.mcast_grp_a"], fields["headers.pass.replica"]
                to = (group, 0) if group else (0, replica)
                return "sent_to_all" if group else "answered", (payload, fields["headers.chip.exponent"], to)
            carried = fields

    def is_malformed(self, given, values, rng):
        """Whether the packet, with one field out of its range, is dropped without a trace."""
        before = repr(self.registers)
        name, value = rng.choice([("headers.chip.slot", given["meta.member.slots"]), ("headers.udp.length", 0), ("headers.chip.reserved", 1),
                                  ("headers.chip.round", 0x7fffffff), ("headers.chip.round", 0x80000000), ("headers.chip.exponent", 257)])
        return self.through({**given, name: value}, values) == ("malformed", None) and repr(self.registers) == before


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


def compare(program, quarters, packets, rng, members=3, slots=2, base=40, job=5):
    rules, rounds, seen = {}, {}, set()
    is_chip = isinstance(program, ChipProgram)
    for entry in range(base, base + 2 * slots * quarters):
        program.registers["gate"][1][entry] = {"x": 0, "bitmap": ACCEPTED} if is_chip else ACCEPTED
    length = program.constants["LENGTH_OF_64" if quarters == 1 else "LENGTH_OF_256"][0]
    for _ in range(packets):
        slot, version, member = rng.randrange(slots), rng.randrange(2), rng.randrange(members)
        number = max(0, rounds.get((slot, version), 0) + rng.choice([0] * 9 + [-1, -2, 1]))
        same = random.Random(repr((slot, version, member, number)))  # a repeat is equal to the last byte
        exponent, values = same.randrange(255), [same.getrandbits(32) for _ in range(2 * WORDS * quarters)]
        given = {"meta.member.job": job, "meta.member.replica": member + 1, "meta.member.bit_of": 1 << member, "meta.member.is_known": 1,
                 "meta.member.everyone": ACCEPTED | (1 << members) - 1, "meta.member.base": base, "meta.member.stride": 2 * slots,
                 "meta.member.last_quarter": quarters - 1, "meta.member.port": member, "meta.member.group": 9, "meta.member.slots": slots,
                 "meta.member.length": length, "headers.udp.length": length, "headers.chip.slot": slot, "headers.chip.version": version,
                 "headers.chip.round": number, "headers.chip.exponent": exponent}
        if is_chip and not program.is_malformed(given, values, rng):
            raise SystemExit("p4_source: a malformed packet is not dropped, or leaves a trace")
        rule = rules.setdefault((slot, version), Rule(members))
        expected = rule.outcome(2 * number, member, exponent, values)
        outcome, sent = program.through(given, values)
        if outcome != ("old" if is_chip and expected == "early" else expected):  # a chip's gate does not tell these two
            raise SystemExit(f"p4_source: a packet's outcome is {outcome}, not {expected}")
        seen.add(expected)
        to = {"sent_to_all": (9, 0), "answered": (0, member + 1)}.get(expected)
        if sent != ((rule.sums, rule.exponent, to) if to else None):
            raise SystemExit(f"p4_source: the right outcome, {outcome}, but another packet")
        if expected == "sent_to_all":
            rounds[slot, version] = number + 1
    if len(seen) != 6:
        raise SystemExit(f"p4_source: too few packets: only {seen}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for name, make in (("bmv2", Program), ("Tofino 1", lambda folder: ChipProgram(folder, 1)), ("Tofino 2", lambda folder: ChipProgram(folder, 2))):
        for quarters in (1, 4):
            compare(make(sys.argv[1]), quarters, 400, random.Random(quarters))
            print(f"p4_source: {name}, packets of {64 * quarters} elements: the program's outcomes and results are the rule's")
