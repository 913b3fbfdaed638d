"""Every function that a public header declares can be linked: declared_symbols.py INCLUDE_DIR SHARED_LIBRARY ARCHIVE...

Clang's syntax tree says what the headers declare and do not define; nm says what the shared library exports, and what the
archives define. And debian/libnetsum1.symbols, from which packages get their dependencies, lists the C functions that it exports.
"""
import json
import pathlib
import re
import subprocess
import sys

FUNCTIONS = {"FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXDestructorDecl"}


def documents(text):
    decoder, at = json.JSONDecoder(), 0
    while (at := next((i for i in range(at, len(text)) if not text[i].isspace()), len(text))) < len(text):
        document, at = decoder.raw_decode(text, at)
        yield document


def left_to_link(node, public=True):
    """Mangled names of the public functions without a body."""
    kind = node.get("kind", "")
    inner = node.get("inner", [])
    if kind in FUNCTIONS:
        has_body = any(child.get("kind") == "CompoundStmt" for child in inner)
        given = node.get("isImplicit") or node.get("explicitlyDeleted") or node.get("explicitlyDefaulted")
        if public and not has_body and not given and "mangledName" in node:
            yield node["mangledName"]
        return
    if "Template" in kind or kind.endswith("Stmt") or kind.endswith("Expr"):
        return
    if kind == "CXXRecordDecl":
        public = public and node.get("tagUsed") != "class"
    for child in inner:
        if child.get("kind") == "AccessSpecDecl":
            public = child["access"] == "public"
        else:
            yield from left_to_link(child, public)


def declared(include):
    headers = "".join(f'#include "netsum/{header.name}"\n' for header in sorted((include / "netsum").glob("*.h")))
    command = ["clang++", "-std=c++20", f"-I{include}", "-fsyntax-only", "-Xclang", "-ast-dump=json", "-Xclang", "-ast-dump-filter=netsum", "-xc++", "-"]
    tree = subprocess.run(command, input=headers, capture_output=True, text=True, check=True).stdout
    return {name for document in documents(tree) for name in left_to_link(document)}


def defined(files, *flags):
    listed = subprocess.run(["nm", "--defined-only", "--format=posix", *flags, *files], capture_output=True, text=True, check=True).stdout
    names = (line.split(" ", 1)[0] for line in listed.splitlines())
    return {name.split("@")[0] for name in names}


def packaged(symbols, version, exported):
    """What is wrong with the package's list of symbols."""
    text = symbols.read_text()
    c_functions = {name for name in exported if name.startswith("netsum_")}
    listed = dict(re.findall(r"^ (netsum_\w+)@NETSUM_1 (\S+)$", text, re.M))
    this = ".".join(version)
    for name in sorted(c_functions - listed.keys()):
        yield f"it lacks ' {name}@NETSUM_1 {this}~'"
    for name in sorted(listed.keys() - c_functions):
        yield f"{name} is not in the library: programs that use it would no longer start"
    after = f"libnetsum1 (<< {version[0]}.{version[1]}.{int(version[2]) + 1}~)"
    if after not in text or f'" {this}~ 1\n' not in text:
        yield f"C++ symbols do not depend on libnetsum1 (>= {this}~), {after}"


def main():
    include, shared, archives = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    wanted = declared(include)
    if len(wanted) < 20:  # the headers declare more: the tree was not understood
        sys.exit(f"declared_symbols: only {len(wanted)} functions found in {include}/netsum")
    exported = defined([shared], "-D")
    missing = {(name, shared) for name in wanted - exported} | {(name, "the archives") for name in wanted - defined(archives)}
    for name, place in sorted(missing):
        plain = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()
        print(f"declared_symbols: {plain} is declared in include/netsum, and is not in {place}")
    symbols = include.parent / "debian/libnetsum1.symbols"
    version = re.findall(r"^#define NETSUM_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", (include / "netsum/version.h").read_text(), re.M)
    complaints = list(packaged(symbols, version, exported))
    for complaint in complaints:
        print(f"declared_symbols: {symbols}: {complaint}")
    print(f"declared_symbols: {len(wanted)} functions, {len(missing)} missing")
    sys.exit(1 if missing or complaints else 0)


if __name__ == "__main__":
    main()
