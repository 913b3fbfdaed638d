"""etc/sbom.py says what the program and the library were really made of: sbom.py SOURCE_DIR BUILD_DIR PROGRAM LIBRARY"""
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE, BUILD, PROGRAM, LIBRARY = map(pathlib.Path, sys.argv[1:])
# (file, relationship, the beginning of a package's name, whether it is there)
FACTS = [
    (PROGRAM, "DYNAMIC_LINK", "libssl3", True),
    (PROGRAM, "DYNAMIC_LINK", "lib32", False),
    (PROGRAM, "STATIC_LINK", "libhighwayhash", True),
    (PROGRAM, "GENERATED_FROM", "libcli11-dev", True),
    (LIBRARY, "DYNAMIC_LINK", "libhwy", True),
    (LIBRARY, "STATIC_LINK", "libhighwayhash", True),
    (LIBRARY, "GENERATED_FROM", "libprotozero-dev", True),
    (LIBRARY, "GENERATED_FROM", "libcli11-dev", False),  # the command line's
]


def sbom(folder):
    return subprocess.run([SOURCE / "etc/sbom.py", BUILD, folder, "netsum", "1.2"], capture_output=True, text=True)


with tempfile.TemporaryDirectory() as work:
    folder = pathlib.Path(work)
    for file in (PROGRAM, LIBRARY):
        shutil.copy(file, folder)
    written = sbom(folder)
    assert written.returncode == 0, written.stderr
    document = json.loads(written.stdout)
    names = {package["SPDXID"]: package["name"] for package in document["packages"]}
    files = {file["fileName"][2:]: file for file in document["files"]}
    assert set(files) == {PROGRAM.name, LIBRARY.name}, files
    for file in (PROGRAM, LIBRARY):
        assert {"algorithm": "SHA256", "checksumValue": hashlib.sha256(file.read_bytes()).hexdigest()} in files[file.name]["checksums"], file
    known = {"SPDXRef-DOCUMENT", *names, *(file["SPDXID"] for file in files.values())}
    triples = {(each["spdxElementId"], each["relationshipType"], each["relatedSpdxElement"]) for each in document["relationships"]}
    assert all({a, b} <= known for a, _, b in triples), triples
    for file, kind, name, there in FACTS:
        found = [names[b] for a, is_kind, b in triples if a == files[file.name]["SPDXID"] and is_kind == kind]
        assert any(each.startswith(name) for each in found) == there, f"{file.name}: {kind} {name} is {not there} among {found}"
    assert all("versionInfo" in package for package in document["packages"]), document["packages"]

    shutil.copy(PROGRAM, folder / "not-built-here")
    refused = sbom(folder)
    assert refused.returncode == 1 and refused.stderr.strip().endswith("is not-built-here"), refused.stderr
print("the document is right")
