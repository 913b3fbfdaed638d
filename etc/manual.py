#!/usr/bin/env python3
"""Man pages, and completions for bash, zsh and fish, from what `netsum --help` says.

manual.py NETSUM_BINARY FOLDER   writes FOLDER/man1/*.1, FOLDER/netsum (bash), FOLDER/_netsum (zsh), FOLDER/netsum.fish
"""
import os
import re
import subprocess
import sys

NAME = "netsum"
FLAG = re.compile(r"^  (?:-(\w),)?(--[\w-]+)(?: (\S.*?))?(?:  +(\S.*))?$")
WORD = re.compile(r"^  (\S+(?: [A-Z:]+)*)  +(\S.*)$")


def value_of(words):
    """What a flag's value is called, and its default: "N:INT in [1 - 64]=1" gives N, 1; "A=B" has no default. CLI11 2.4 writes
    "N:INT in [1 - 64] [1]"."""
    found = re.search(r"=([^A-Z].*)$", words) or re.search(r"(?<! in) \[(.*)\] *$", words)
    default = found[1] if found else ""
    return re.split(r":(?:INT|UINT|POSITIVE|FLOAT|TEXT)", words[:found.start()] if found else words)[0], default


class Page:
    """One command's help: `words` is ("bench", "all-reduce")."""

    def __init__(self, binary, words):
        self.words = words
        text = subprocess.run([binary, *words, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
        lines = text.rstrip("\n").split("\n")
        self.about, self.usage = lines[0], lines[1].removeprefix("Usage: ")
        self.flags, self.places, self.commands, self.notes = [], [], [], []
        heading = last = None
        for line in lines[2:]:
            if re.match(r"^[A-Z][^:]*:$", line) and not line.startswith("Example"):
                heading = line[:-1]
            elif not line.strip():
                if self.flags or self.commands:
                    heading = None if heading not in ("Positionals",) else heading
            elif line.startswith("                              ") and last is not None and heading:
                last[-1] = (last[-1] + " " + line.strip()).strip()
            elif heading == "Subcommands":
                found = WORD.match(line)
                self.commands.append([found[1], found[2]])
            elif heading == "Positionals":
                found = WORD.match(line)
                self.places.append(last := [found[1].split()[0], found[2]])
            elif heading and (found := FLAG.match(line)):
                value, default = value_of(found[3] or "")
                self.flags.append(last := [found[2], found[1], value, heading, default, found[4] or ""])
            if heading is None and (self.notes or line.strip()) and not line.startswith("  -"):
                self.notes.append(line)

    @property
    def name(self):
        return "-".join((NAME, *self.words))


def pages(binary, words=()):
    page = Page(binary, words)
    yield page
    for name, _ in page.commands:
        yield from pages(binary, (*words, name))


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def man(page, all_pages, version):
    lines = [f'.TH "{page.name.upper()}" 1 "" "{version}" "netsum"', ".SH NAME", f"{roff(page.name)} \\- {roff(page.about)}",
             ".SH SYNOPSIS", f".B {roff(page.usage)}"]
    if page.commands:
        lines.append(".SH COMMANDS")
        for name, about in page.commands:
            lines += [".TP", f".B {roff(name)}", f"{roff(about)}: \\fB{roff('-'.join((page.name, name)))}\\fR(1)"]
    if page.places or page.flags:
        lines.append(".SH OPTIONS")
    for name, about in page.places:
        lines += [".TP", f"\\fI{roff(name)}\\fR", roff(about)]
    heading = "Options"
    for flag, short, value, of, default, about in page.flags:
        if of != heading:
            heading = of
            lines.append(f".SS {roff(of)}")
        names = ", ".join(filter(None, (short and "-" + short, flag)))
        lines += [".TP", f"\\fB{roff(names)}\\fR" + (f" \\fI{roff(value)}\\fR" if value else ""),
                  roff(about + (f" (default: {default})" if default else ""))]
    if page.notes:
        lines += [".SH NOTES", ".nf", *map(roff, page.notes), ".fi"]
    others = [each.name for each in all_pages if each is not page and (len(each.words) < 2 or each.words[:-1] == page.words)]
    if others:
        lines += [".SH SEE ALSO", ", ".join(f"\\fB{roff(name)}\\fR(1)" for name in others)]
    return "\n".join(lines) + "\n"


def bash(all_pages):
    cases = []
    for page in sorted(all_pages, key=lambda page: -len(page.words)):
        words = [name for name, _ in page.commands] + [flag for flag, *_ in page.flags]
        pattern = " ".join(page.words)
        cases.append(f'    "{pattern} "*) words="{" ".join(words)}" ;;' if page.words else f'    *) words="{" ".join(words)}" ;;')
    of_files = sorted({flag for page in all_pages for flag, _, value, *_ in page.flags if value in ("FILE", "FOLDER")})
    return f"""# bash completion for netsum; made by etc/manual.py
_netsum() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} words line
  line="${{COMP_WORDS[*]:1:COMP_CWORD-1}} "
  COMPREPLY=()
  case $before in
    {' | '.join(of_files)})
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      return
      ;;
  esac
  case $line in
{chr(10).join(cases)}
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  [ ${{#COMPREPLY[@]}} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$current")
}}
complete -o filenames -F _netsum netsum
"""


def quoted(text):
    return text.replace("'", "'\\''")


def zsh(all_pages):
    functions = []
    for page in all_pages:
        lines = []
        for flag, _, value, *_, about in page.flags:
            about = re.sub(r"([\[\]:])", r"\\\1", about)
            action = f":{value.split()[0].replace(':', '-')}:" + ("_files" if value in ("FILE", "FOLDER") else " ") if value else ""
            lines.append(f"    '{flag}[{quoted(about)}]{quoted(action)}'")
        name = "_netsum" + "".join("__" + word.replace("-", "_") for word in page.words)
        if page.commands:
            commands = "\n".join(f"    '{command}:{quoted(about)}'" for command, about in page.commands)
            cases = "\n".join(f"      {command}) {name}__{command.replace('-', '_')} ;;" for command, _ in page.commands)
            functions.append(f"{name}() {{\n  local line state\n  local -a commands\n  commands=(\n{commands}\n  )\n"
                             "  _arguments -C '1: :->command' '*:: :->rest'\n  case $state in\n"
                             "    command) _describe command commands ;;\n    rest)\n      case $line[1] in\n"
                             + cases.replace("      ", "        ") + "\n      esac ;;\n  esac\n}")
        else:
            places = [f"    '*:{place}:_files'" for place, _ in page.places]
            functions.append(f"{name}() {{\n  _arguments \\\n" + " \\\n".join(lines + places) + "\n}")
    return "#compdef netsum\n# made by etc/manual.py\n" + "\n".join(functions) + '\n_netsum "$@"\n'


def fish(all_pages):
    lines = ["# fish completion for netsum; made by etc/manual.py", "complete -c netsum -f"]
    for page in all_pages:
        deeper = [name for name, _ in page.commands]
        seen = " and ".join(f"__fish_seen_subcommand_from {word}" for word in page.words)
        if not page.words:
            condition = "__fish_use_subcommand"
        else:
            condition = seen.replace(" and ", "; and ") + (f"; and not __fish_seen_subcommand_from {' '.join(deeper)}" if deeper else "")
        for name, about in page.commands:
            lines.append(f"complete -c netsum -n '{condition}' -a {name} -d '{about.replace(chr(39), chr(92) + chr(39))}'")
        for flag, _, value, *_, about in page.flags:
            takes = (" -r -F" if value in ("FILE", "FOLDER") else " -x") if value else ""
            lines.append(f"complete -c netsum -n '{condition}' -l {flag[2:]}{takes} -d '{about.replace(chr(39), chr(92) + chr(39))}'")
        if page.places:
            lines.append(f"complete -c netsum -n '{condition}' -F")
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: manual.py NETSUM_BINARY FOLDER")
    binary, folder = sys.argv[1:]
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    all_pages = list(pages(binary))
    os.makedirs(os.path.join(folder, "man1"), exist_ok=True)
    for page in all_pages:
        with open(os.path.join(folder, "man1", page.name + ".1"), "w", encoding="utf-8") as file:
            file.write(man(page, all_pages, version))
    for name, text in (("netsum", bash(all_pages)), ("_netsum", zsh(all_pages)), ("netsum.fish", fish(all_pages))):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
