#!/usr/bin/env python3
"""What a package is made of, as SPDX 2.3 in JSON: sbom.py BUILD_DIR FOLDER NAME VERSION

FOLDER is what the package installs. All its files are listed, with digests; and for each program and library in it the Debian packages
that it was made from: those with the libraries that it loads (readelf), with the archives that were linked into it, and with the headers
that were compiled into it (both as ninja knows them, of what BUILD_DIR made under the same name).
"""
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import time
import uuid


def lines_of(*command, check=True):
    return subprocess.run(list(map(str, command)), check=check, stdout=subprocess.PIPE, stderr=None if check else subprocess.DEVNULL, text=True).stdout.splitlines()


class Build:
    def __init__(self, folder):
        self.folder = folder
        self.targets = [line.split(": ")[0] for line in lines_of("ninja", "-C", folder, "-t", "targets", "all") if not line.endswith(": phony")]
        self.headers, target = {}, None  # of each object
        for line in lines_of("ninja", "-C", folder, "-t", "deps"):
            if line.startswith("    "):
                self.headers[target].add(os.path.normpath(line.strip()))
            elif line:
                target = line.split(": ")[0]
                self.headers[target] = set()

    def target(self, path):
        """What was installed as this: of those with its name the one with most of its folders."""
        same = [target for target in self.targets if pathlib.PurePath(target).name == path.name]
        if not same:
            sys.exit(f"sbom: no target of {self.folder} is {path}")
        return max(same, key=lambda target: len(set(pathlib.PurePath(target).parts) & set(path.parts)))

    def made_from(self, path):
        """Archives and headers of other people's."""
        inputs = lines_of("ninja", "-C", self.folder, "-t", "inputs", self.target(path))
        headers = set().union(*(self.headers.get(each, ()) for each in [*inputs, self.target(path)]))
        return {each for each in inputs if each.startswith("/usr/") and each.endswith(".a")}, {each for each in headers if each.startswith("/usr/")}


def owners(paths):
    """The Debian package of each path, which may be a pattern."""
    lines = lines_of("dpkg-query", "-S", *sorted(paths), check=False) if paths else []
    return {path: packages.split(", ")[0] for packages, path in (line.split(": ", 1) for line in lines)}


def loaded(path):
    """The packages of the libraries that it names; a library that no package has stands for itself."""
    names = set(re.findall(r"\(NEEDED\).*\[(.*)\]", "\n".join(lines_of("readelf", "-d", path, check=False))))
    places = owners({f"*/{name}" for name in names})
    own = sorted(places, key=lambda place: f"/{sysconfig.get_config_var('MULTIARCH')}/" in place)  # another architecture's first, and so replaced
    by_name = {pathlib.PurePath(place).name: places[place] for place in own}
    return {by_name.get(name, name) for name in names}


def identifier(name):
    return "SPDXRef-package-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def package(name):
    known = lines_of("dpkg-query", "-W", "-f", "${Version} ${Architecture}", name, check=False)
    described = {"SPDXID": identifier(name), "name": name.split(":")[0], "downloadLocation": "NOASSERTION", "filesAnalyzed": False}
    if known:
        version, architecture = known[0].split()
        described["versionInfo"] = version
        purl = f"pkg:deb/debian/{described['name']}@{version}?arch={architecture}"
        described["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl.replace("+", "%2B")}]
    return described


def document(build, folder, name, version):
    files, relationships, others = [], [], set()
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()):
        content, place = path.read_bytes(), path.relative_to(folder)
        if place.parts[0] == "DEBIAN":  # dpkg's own
            continue
        own = f"SPDXRef-file-{len(files)}"
        digests = [{"algorithm": kind.upper(), "checksumValue": hashlib.new(kind, content).hexdigest()} for kind in ("sha1", "sha256")]
        files.append({"SPDXID": own, "fileName": f"./{place}", "checksums": digests})
        relationships.append((identifier(name), "CONTAINS", own))
        if not content.startswith((b"\x7fELF", b"!<arch>\n")):
            continue
        archives, headers = build.made_from(place)
        for kind, packages in (("DYNAMIC_LINK", loaded(path)), ("STATIC_LINK", owners(archives).values()), ("GENERATED_FROM", owners(headers).values())):
            relationships += [(own, kind, identifier(each)) for each in sorted(set(packages))]
            others.update(packages)
    sums = "".join(sorted(each["checksums"][0]["checksumValue"] for each in files))
    this = {"SPDXID": identifier(name), "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION", "licenseDeclared": "Apache-2.0",
            "filesAnalyzed": True, "packageVerificationCode": {"packageVerificationCodeValue": hashlib.sha1(sums.encode()).hexdigest()}}  # fmt: skip
    when = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), datetime.timezone.utc)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}",
        "documentNamespace": uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {version} {sums}").urn,
        "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: netsum-sbom"]},
        "packages": [this, *map(package, sorted(others))],
        "files": files,
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in [("SPDXRef-DOCUMENT", "DESCRIBES", this["SPDXID"]), *relationships]],
    }  # fmt: skip


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    build, folder = map(pathlib.Path, sys.argv[1:3])
    json.dump(document(Build(build), folder, *sys.argv[3:]), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
