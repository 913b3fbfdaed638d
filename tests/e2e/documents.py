#!/usr/bin/python3
"""The commands of the documents, as somebody runs them who reads a page from its beginning.

documents.py SOURCE [--all] [PAGE...]   runs them (all pages), and compares what they print with what the page shows; --all: what takes
                                        minutes too
documents.py SOURCE --check             one line per block without a class; exit status 1 if there is any
documents.py --self-test                shows that the check and the comparison find what is wrong

The word after a fence's language is the block's class, which no rendered page shows:

  sh run         run here; a daemon that is started in the foreground goes on in the background, and ends where another takes its address
  sh minutes     run with --all alone; both may be followed by 12 or 13: with this Debian alone
  sh packages    tests/debian/packages does what it does
  sh hardware    wants other hosts, their devices or systemd: not run
  sh shown       has something to fill in: not run
  text output    what the block before prints, among other lines; numbers, units and spaces may differ, and "..." stands for anything
  text shown     no output, or one of another time
  LANGUAGE file NAME   what NAME has from here on
  LANGUAGE of FILE     what FILE of the repository has (tests/lint/check_docs.py)

What a page takes for granted (a daemon that runs) is in a comment, <!-- run ... -->. A page has a shell, a folder and a network of its own,
with the addresses that its commands name; the repository's files seem to be in the folder.
"""
import itertools
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

import netns_support as netns

CLASSES = {"sh": {"run", "minutes", "packages", "hardware", "shown"}, "text": {"output", "shown"}}
BLOCK = re.compile(r"^( *)```(\w*) ?([^\n]*)\n(.*?)^\1```$|^<!-- (run)\n(.*?)^-->$", re.M | re.S)
SKIPPED = netns.SKIPPED
try:
    RELEASE = platform.freedesktop_os_release().get("VERSION_ID", "")
except OSError:
    RELEASE = ""

SHELL = r"""
shopt -s expand_aliases
program=$PWD/build/release/bin/netsum
declare -A daemons=()
netsum() {
  case ${1:-}:$* in
    *--print-config* | *--help*) ;;
    switch:* | ps:* | bump:*)
      [ "$BASHPID" = "$$" ] || exec "$program" "$@" # the page itself lets it run in the background
      local place log=$folder/daemon.$RANDOM
      place=$(grep -oP -- '--listen \K\S+' <<<"$*" || echo none)
      if [ -n "${daemons[$place]:-}" ]; then
        kill "${daemons[$place]}"
        wait "${daemons[$place]}" || true
      fi
      "$program" "$@" >"$log" 2>&1 &
      daemons[$place]=$!
      for _ in {1..200}; do
        ! grep -qE '^(listening|ready)' "$log" || return 0
        kill -0 "${daemons[$place]}" 2>/dev/null || break
        sleep 0.05
      done
      cat "$log"
      return 1
      ;;
  esac
  "$program" "$@"
}
build/release/bin/netsum() { netsum "$@"; }
systemctl() { :; } # nobody's units run here
"""


def pages_of(source):
    return ["README.md", "CONTRIBUTING.md", "SECURITY.md"] + sorted("docs/" + name for name in os.listdir(os.path.join(source, "docs")) if name.endswith(".md"))


class Block:
    def __init__(self, page, line, language, kind, text):
        self.page, self.line, self.language, self.kind, self.text = page, line, language, kind, text
        self.seconds, self.said, self.is_indented = None, "", False

    @property
    def where(self):
        return f"{self.page}:{self.line}"


def blocks_of(page, text):
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match[5]:
            found.append(Block(page, line, "sh", "before", match[6]))
        else:
            found.append(Block(page, line, match[2], match[3].strip(), match[4]))
            found[-1].is_indented = bool(match[1])
    return found


def check(page, text):
    """Blocks without a class, and such as have no fence, which cannot have one."""
    wrong = []
    former = None
    for block in blocks_of(page, text):
        if block.is_indented:
            wrong.append(f"{block.where}: a fence that is indented, which the site shows as text")
        elif block.kind.startswith("file "):
            pass
        elif not block.language:
            wrong.append(f"{block.where}: a block without a language: text shown, if it is none")
        elif block.language in CLASSES and block.kind != "before" and re.sub(r"^(run|minutes) 1[23]$", r"\1", block.kind) not in CLASSES[block.language]:
            wrong.append(f"{block.where}: '{block.language} {block.kind}': a class is one of {', '.join(sorted(CLASSES[block.language]))}")
        elif block.kind == "output" and (former is None or former.kind.split()[0] not in ("run", "minutes")):
            wrong.append(f"{block.where}: output of a block that is not run")
        former = block
    blank, in_list = True, False
    bare = BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(bare.split("\n"), 1):
        if re.match(r"(-|\d+\.) ", line):
            in_list = True
        elif re.match(r"\S", line):
            in_list = False
        if blank and re.match(r" {6,}\S" if in_list else r" {4,}\S", line):
            wrong.append(f"{page}:{number}: a block by indentation alone: a fence has room for a class")
        blank = not line.strip()
    return wrong


def pattern(line):
    line = re.sub(r"\b(?=\d*[a-f])[0-9a-f]{16}\b", "#", line)
    line = re.sub(r"\d[\d.,:]*", "#", line)
    line = re.sub(r"# [kKMGT]?i?(?=[Bb ]|p)", "# ", line)
    return re.sub(r"\s+", " ", line).strip().replace("# ", "#")


def missing(shown, said):
    """The first line that a page shows and that a command did not say behind those before it; None: all are there."""
    rest = iter([pattern(line) for line in said.split("\n")])
    for line in shown.split("\n"):
        want = pattern(line)
        if want in ("", "..."):
            continue
        parts = [re.escape(part) for part in want.split("...")]
        if not any(re.fullmatch(".*".join(parts), each) for each in rest):
            return line
    return None


def script_of(blocks, folder, with_minutes):
    lines = [SHELL]
    kinds = ["run", "before"] + (["minutes"] if with_minutes else [])
    kinds += [f"{kind} {RELEASE}" for kind in kinds]
    addresses = sorted({found for block in blocks if block.language == "sh" for found in re.findall(r"\b(?:10|192\.168|192\.0\.2)\.\d+\.\d+(?:\.\d+)?\b", block.text)})
    if not with_minutes:
        lines += ["ip link set lo up", "hostname node1"] + [f"ip address add {each}/32 dev lo" for each in addresses if each.count(".") == 3]
    for number, block in enumerate(blocks):
        if block.kind.startswith("file "):
            lines.append(f"cat >{shlex.quote(block.kind[5:])} <<'END OF FILE'\n{block.text}END OF FILE")
        elif block.language == "sh" and block.kind in kinds:
            lines.append(f"echo {number} $EPOCHREALTIME >>{folder}/began\n{{\n{block.text}\n}} >{folder}/said.{number} 2>&1\necho {number} $EPOCHREALTIME >>{folder}/ended")
    return "\n".join(lines) + "\n"


def run(source, page, with_all):
    """What is wrong with a page's commands; and its blocks, with times."""
    with open(os.path.join(source, page), encoding="utf-8") as file:
        blocks = blocks_of(page, file.read())
    with_minutes = with_all and any(block.kind.startswith("minutes") for block in blocks)  # these want the network that there is
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "page")
        os.mkdir(place)
        for name in ("scripts", "build", "examples", "bench", "docs", "proof", "tests"):
            os.symlink(os.path.join(source, name), os.path.join(place, name))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NETSUM_") and name != "PYTHONPATH"}
        environment |= {"folder": folder, "PYTHONPATH": "build/release/python", "GLOO_SOCKET_IFNAME": "lo"}
        environment["PATH"] = f"{source}/build/release/bin:/usr/bin:/usr/sbin:" + environment["PATH"]  # torch belongs to Debian's own python3
        alone = [] if with_minutes else netns.alone("--uts")
        shell = subprocess.Popen([*alone, "bash", "-euo", "pipefail", "-c", script_of(blocks, folder, with_minutes)], cwd=place, env=environment,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        late = False
        try:
            status = shell.wait(timeout=3600 if with_all else 120)
        except subprocess.TimeoutExpired:
            late, status = True, None
        finally:
            try:
                os.killpg(shell.pid, signal.SIGKILL)  # daemons
            except ProcessLookupError:
                pass
        shell.wait()
        times = {}
        for name in ("began", "ended"):
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    times[name] = {int(words[0]): float(words[1]) for words in map(str.split, file)}
            except FileNotFoundError:
                times[name] = {}
        for number, at in times["began"].items():
            with open(os.path.join(folder, f"said.{number}"), encoding="utf-8", errors="replace") as file:
                blocks[number].said = file.read()
            blocks[number].seconds = times["ended"].get(number, time.time()) - at
        if status != 0:
            last = max(times["began"], default=None)
            what = "does not end" if late else f"exit code {status}"
            return [f"{page}: {what}: {shell.stdout.read()}" if last is None else f"{blocks[last].where}: {what}:\n{blocks[last].text}\n{blocks[last].said[-4000:]}"], blocks
    wrong = []
    for former, block in itertools.pairwise(blocks):
        if block.kind == "output" and former.seconds is not None and (line := missing(block.text, former.said)) is not None:
            wrong.append(f"{block.where}: the page shows '{line.strip()}', and not so\n{former.text}\n{former.said}")
    return wrong, blocks


def self_test():
    wrong = []
    for text, expected in (("```sh run\ntrue\n```\n```text output\na\n```\n```python\n1\n```\n", 0), ("```sh\ntrue\n```\n", 1), ("```\ntrue\n```\n", 1), ("a\n\n    true\n", 1),
                           ("- a\n\n    still the list\n", 0), ("- a\n\n      true\n", 1), ("```sh shown\ntrue ...\n```\n```text output\na\n```\n", 1), ("- a\n\n  ```sh run\n  true\n  ```\n", 1),
                           ("```toml file a.toml\na = 1\n```\n<!-- run\ntrue\n-->\n", 0)):
        if len(check("page", text)) != expected:
            wrong.append(f"{text!r}: expected {expected}, found {check('page', text)}")
    for shown, said, expected in (("a 1.5 MB\nb", "a   2,000 kB\nx\nb\n", None), ("b\na", "a\nb\n", "a"), ("a ... b 7\n...\nc", "a x b 8\nc", None), ("wrong 0, all", "wrong 0, some", "wrong 0, all"),
                                  ("hash 0123456789abcdef", "hash fedcba9876543210", None), ("a 0.3", "a 0.3289945125579834", None)):
        if missing(shown, said) != expected:
            wrong.append(f"{shown!r} of {said!r}: {missing(shown, said)!r}")
    with tempfile.TemporaryDirectory() as folder:
        for text, expected in (("```toml file f\n1\n```\n```sh run\ncat f\n```\n```text output\n2\n```\n", 0), ("```sh run\necho a\n```\n```text output\nb\n```\n", 1),
                               ("```sh run\nfalse\n```\n", 1), ("<!-- run\na=1\n-->\n```sh run\ntest $a = 1; ip address show dev lo to 10.0.0.7 | grep lo\n```\n", 0)):
            with open(os.path.join(folder, "page.md"), "w", encoding="utf-8") as file:
                file.write(text)
            if len(run(folder, "page.md", False)[0]) != expected:
                wrong.append(f"{text!r}: {run(folder, 'page.md', False)[0]}")
    return wrong


def main():
    words = sys.argv[1:]
    if not words or words[0].startswith("--") and words != ["--self-test"]:
        sys.exit(__doc__)
    if "--check" in words:
        wrong = []
        for page in pages_of(words[0]):
            with open(os.path.join(words[0], page), encoding="utf-8") as file:
                wrong += check(page, file.read())
    else:
        if subprocess.run([*netns.alone("--uts"), "true"], capture_output=True, check=False).returncode != 0:
            print("skipped: no network of one's own here")
            return SKIPPED
        if words == ["--self-test"]:
            wrong = self_test()
        else:
            wrong, with_all = [], "--all" in words
            for page in [word for word in words[1:] if word != "--all"] or pages_of(words[0]):
                complaints, blocks = run(os.path.abspath(words[0]), page, with_all)
                wrong += complaints
                kinds = {}
                for block in blocks:
                    if block.language == "sh" or block.kind == "output":
                        count, seconds = kinds.get(block.kind, (0, 0))
                        kinds[block.kind] = count + 1, seconds + (block.seconds or 0)
                if kinds:
                    print(f"{page}: " + ", ".join(f"{count} {kind}" + (f" ({seconds:.1f} s)" if seconds else "") for kind, (count, seconds) in sorted(kinds.items())),
                          flush=True)
    print("\n".join(wrong or ["ok"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
