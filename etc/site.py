#!/usr/bin/env python3
"""The site's pages, from the repository's documents and from what the binary says (scripts/site).

site.py pages NETSUM_BINARY FOLDER   writes the pages that mkdocs.yml names; run in the repository's root
site.py check FOLDER                 one line per link of the built site that leads nowhere; exit status 1 if there is any
site.py --self-test                  shows that dead links are found, and links out of docs/ led to copies
"""
import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

import manual

# Documents outside of docs/, and their pages.
OTHERS = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security-policy.md"}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
HEADING = re.compile(r"^(#+) (.+)$")
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".cpp": "cpp", ".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".sbatch": "bash"}


def anchor(heading):
    """The name that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def copied(root, pages, path):
    """The page, below files/, of a file or folder that a document links to and that is no document."""
    target = root / path
    if path.suffix in (".md", ".json"):  # tables are a page outside of the navigation; numbers stay as they are
        page = pages / "files" / path
        page.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            shutil.copy(target, page)
        elif not page.exists():
            page.touch()  # it may link back
            written(root, pages, path, page)
        return page
    files = sorted(file for file in target.iterdir() if file.is_file()) if target.is_dir() else [target]
    page = pages / "files" / (path.as_posix() + ".md")
    page.parent.mkdir(parents=True, exist_ok=True)
    parts = [f"# {path}\n"]
    for file in files:
        text = file.read_text(encoding="utf-8")
        if target.is_dir():
            parts.append(f"## {file.name}\n")
        parts.append(f"````{LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n````\n")
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def page_of(root, pages, path):
    """Where the site has what a document names by `path`, relative to the root; None: nowhere."""
    if not (root / path).exists():
        return None
    if path.as_posix() in OTHERS:
        return pages / OTHERS[path.as_posix()]
    if path.parts[0] == "docs":
        return pages / path.relative_to("docs")
    return copied(root, pages, path)


def led(root, pages, document, page, target):
    """`target`, a link of `document`, as a link of `page`."""
    path, hash_sign, name = target.partition("#")
    if re.match(r"[a-z]+:", target) or not path:
        return target
    found = page_of(root, pages, pathlib.Path(os.path.normpath(document.parent / path)))
    return target if found is None else os.path.relpath(found, page.parent) + hash_sign + name


def written(root, pages, document, page):
    lines, seen, fence = [], {}, None
    for line in (root / document).read_text(encoding="utf-8").split("\n"):
        mark = re.match(r"\s*(```+)", line)
        if mark and fence is None:
            fence = mark[1]
            line = re.sub(r"(```+\w+) .*", r"\1", line)  # of "```sh minutes" the second word is for tests/e2e/documents.py
        elif mark and line.strip() == fence:
            fence = None
        elif fence is None and not line.startswith("    "):
            if heading := HEADING.match(line):
                name = anchor(LINK.sub("", heading[2]))
                count = seen[name] = seen.get(name, -1) + 1
                line += f" {{ #{name}{f'-{count}' if count else ''} }}"
            line = line.replace("<details>", '<details markdown="1">')  # or what is in it is text
            line = LINK.sub(lambda found: found[1] + led(root, pages, document, page, found[2]) + found[3], line)
            # Markdown that mkdocs reads begins no list right below a paragraph.
            if re.match(r"(-|\d+\.) ", line) and lines and re.match(r"\S", lines[-1]) and not re.match(r"(-|\d+\.) |\|", lines[-1]):
                above = next((each for each in reversed(lines) if not each.strip() or re.match(r"(-|\d+\.) ", each)), "")
                if not above.strip():
                    lines.append("")
        lines.append(line)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines), encoding="utf-8")


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands(all_pages):
    lines = ["# Commands", "", "What `netsum COMMAND --help` says."]
    for page in all_pages:
        name = " ".join((manual.NAME, *page.words))
        lines += ["", f"## {name} {{ #{page.name} }}", "", page.about.rstrip(".") + ".", "", f"    {page.usage}"]
        if page.commands:
            lines += ["", "| command | |", "|---|---|"]
            lines += [f"| [{word}](#{page.name}-{word}) | {cell(about)} |" for word, about in page.commands]
        if page.places:
            lines += ["", "| argument | |", "|---|---|"] + [f"| `{place}` | {cell(about)} |" for place, about in page.places]
        of = None
        for flag, short, value, heading, default, about in page.flags:
            if heading != of:
                of = heading
                lines += ["", f"**{of}**" if of != "Options" else "", "", "| flag | default | |", "|---|---|---|"]
            lines.append(f"| `{flag}{' ' + cell(value) if value else ''}` | {f'`{cell(default)}`' if default else ''} | {cell(about)} |")
        if page.notes:
            lines += ["", "```text", *page.notes, "```"]
    return "\n".join(lines) + "\n"


def options(binary):
    lines = ["# Options and settings files", "", "Every flag of a [command](commands.md) can also be a variable (`--token-file`: `NETSUM_TOKEN_FILE`) or a line of a TOML file that",
             "`--config` names. A flag wins over the variable, the variable over the file; an unknown key is an error. `--print-config` shows",
             "every setting and where it comes from. These are all, as they are if nothing is said. The library's own options are",
             "[`netsum::Options`](../api/structnetsum_1_1Options.html), `AggregatorOptions` and `ParameterServerOptions`."]
    for command in ("switch", "ps"):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NETSUM_")}
        text = subprocess.run([binary, command, "--print-config"], capture_output=True, text=True, check=True, timeout=60, env=environment).stdout
        lines += ["", f"## netsum {command}", "", "```toml", text.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def rows(root, pattern):
    """(document, its title, heads of the table, rows) of each table whose rows' first cells have `pattern`."""
    for document in sorted((root / "docs").glob("*.md")):
        head, found, title = None, [], None
        for line in document.read_text(encoding="utf-8").split("\n") + [""]:
            title = title or (line[2:] if line.startswith("# ") else None)
            if not line.startswith("|"):
                if found:
                    yield document, title, head, found
                head, found = None, []
            elif head is None:
                head = line
            elif re.match(r"\| *`?" + pattern, line):
                found.append(line)


def collected(root, pages, title, about, pattern, page):
    lines = [f"# {title}", "", about]
    for document, of, head, found in rows(root, pattern):
        path = document.relative_to(root)
        lines += ["", f"From [{of}]({os.path.relpath(pages / path.relative_to('docs'), page.parent)}):", "", head, "|" + "---|" * (head.count("|") - 1)]
        lines += [LINK.sub(lambda link: link[1] + led(root, pages, path, page, link[2] if not link[2].startswith("#") else path.name + link[2]) + link[3], row) for row in found]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def make(root, binary, pages):
    shutil.copytree(root / "docs/images", pages / "images")
    (pages / "site.css").write_text(".md-grid { max-width: 84rem; }\n", encoding="utf-8")  # commands are long
    for document in sorted((root / "docs").glob("*.md")):
        written(root, pages, document.relative_to(root), pages / document.name)
    for document, page in OTHERS.items():
        if (root / document).exists():
            written(root, pages, pathlib.Path(document), pages / page)
    reference = pages / "reference"
    reference.mkdir()
    (reference / "commands.md").write_text(commands(list(manual.pages(binary))), encoding="utf-8")
    (reference / "options.md").write_text(options(binary), encoding="utf-8")
    collected(root, pages, "Environment", "Every flag of a command is a variable too ([options](options.md)). These are the ranks' own.", "NETSUM_",
              reference / "environment.md")
    collected(root, pages, "Metrics", "What a daemon's `--metrics` serves at `/metrics`. Names end as Prometheus wants: `_total`, `_seconds`, `_bytes`.", "netsum_",
              reference / "metrics.md")


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.targets, self.names = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.names.add(value)
            elif name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "srcset" and value:
                self.targets += [part.split()[0] for part in value.split(",")]


def check(site):
    """Dead links, and requests to others than the site."""
    pages = {page: Links(page.read_text(encoding="utf-8")) for page in site.rglob("*.html") if "api" not in page.relative_to(site).parts[:1]}
    violations = [] if pages else [f"{site}: no page"]
    for page, links in sorted(pages.items()):
        if page.name == "404.html":
            continue  # its links are to the root of wherever the site is put
        for target in links.targets:
            parts = urllib.parse.urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = page.parent / urllib.parse.unquote(parts.path) if parts.path else page
            file = pathlib.Path(os.path.normpath(file))
            if file.is_dir():
                file /= "index.html"
            name = urllib.parse.unquote(parts.fragment)
            if not file.exists():
                violations.append(f"{page.relative_to(site)}: {target}: leads nowhere")
            elif name and file in pages and name not in pages[file].names:
                violations.append(f"{page.relative_to(site)}: {target}: no such heading")
        if re.search(r"^(<p>)?\|.*\|$", re.sub(r"<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.S), re.M):
            violations.append(f"{page.relative_to(site)}: shows a table as text")
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?:[^\" >]+)", page.read_text(encoding="utf-8")):
            violations.append(f"{page.relative_to(site)}: asks another server for {tag}")
    return violations


def self_test():
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        root, pages = pathlib.Path(folder), pathlib.Path(folder) / "pages"
        (root / "docs").mkdir()
        (root / "src").mkdir()
        pages.mkdir()
        (root / "src/a.h").write_text("int a;\n", encoding="utf-8")
        (root / "README.md").write_text("# R\n[d](docs/d.md#x--y)\n", encoding="utf-8")
        (root / "docs/d.md").write_text("# D\n## X & y\n[a](../src/a.h) [r](../README.md) [me](#d)\nText:\n- one\n- two\n\n<details>\n</details>\n\n```sh minutes\n# no heading\n```\n", encoding="utf-8")
        written(root, pages, pathlib.Path("docs/d.md"), pages / "d.md")
        written(root, pages, pathlib.Path("README.md"), pages / "index.md")
        text = (pages / "d.md").read_text(encoding="utf-8") + (pages / "index.md").read_text(encoding="utf-8")
        for words in ("## X & y { #x--y }\n", "[a](files/src/a.h.md) [r](index.md) [me](#d)\n", "Text:\n\n- one\n- two\n", "\n```sh\n# no heading\n", "[d](d.md#x--y)", '<details markdown="1">\n'):
            if words not in text:
                wrong.append(f"lacks {words!r}: {text!r}")
        if "int a;" not in (pages / "files/src/a.h.md").read_text(encoding="utf-8"):
            wrong.append("no copy of src/a.h")
    for text, expected in (("<h1 id=x></h1><a href='#x'>a</a><a href='https://example.org/'>b</a>", 0), ("<a href='#y'>a</a>", 1), ("<a href='gone.html'>a</a>", 1),
                           ("<img srcset='gone.png 2x'>", 1), ("<p>| a | b |\n|---|---|</p>", 1), ("<pre>\n| a |\n</pre>", 0), ('<script src="https://example.org/x.js">', 1), (None, 1)):
        with tempfile.TemporaryDirectory() as folder:
            if text is not None:
                (pathlib.Path(folder) / "page.html").write_text(text, encoding="utf-8")
            if len(check(pathlib.Path(folder))) != expected:
                wrong.append(f"{text!r}: expected {expected} violations, found {check(pathlib.Path(folder))}")
    return wrong


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "pages":
        make(pathlib.Path.cwd(), sys.argv[2], pathlib.Path(sys.argv[3]).resolve())
        return 0
    if len(sys.argv) == 3 and sys.argv[1] == "check":
        violations = check(pathlib.Path(sys.argv[2]).resolve())
    elif sys.argv[1:] == ["--self-test"]:
        violations = self_test()
    else:
        sys.exit(__doc__)
    print("\n".join(violations or ["ok"]))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
