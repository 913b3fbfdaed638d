"""The wheel (docs/pytorch.md#a-wheel): what CMake builds, and installs as its component `wheel`, with the libraries that it needs.

    pip wheel --no-build-isolation --no-deps .

NETSUM_BUILD names the build tree; without it, the tree is scripts/build's. A tree that is not there is made.
"""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys

import setuptools
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
TREE = pathlib.Path(os.environ.get("NETSUM_BUILD", ROOT / "build/release")).resolve()
MADE = ROOT / "build/wheel"  # what setuptools leaves


def version():
    text = (ROOT / "include/netsum/version.h").read_text()
    return ".".join(re.findall(r"^#define NETSUM_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text, re.M))


def torch_minor():
    """The backend runs with this one alone."""
    try:
        return ".".join(importlib.metadata.version("torch").split(".")[:2])
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"netsum: {sys.executable} has no torch that the backend could be built for: run the pip of the Python that has it "
                 "(Debian's: /usr/bin/python3 -m pip), with --no-build-isolation")


def call(*command, **options):
    command = [str(part) for part in command]
    try:
        return subprocess.run(command, check=True, text=True, **options).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        sys.exit(f"netsum: {error}; scripts/setup installs what the build needs")


def check_tree():
    """The import compares the interpreter and its torch with those that the tree was built for."""
    environment = os.environ | {"PYTHONPATH": str(TREE / "python")}
    done = subprocess.run([sys.executable, "-c", "import netsum.torch"], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"netsum: {TREE} does not fit: {done.stderr.strip().splitlines()[-1]} (NETSUM_BUILD=FOLDER names another build tree)")


def bring_libraries(package):
    """Programs and modules find the libraries of others beside them, under names that nothing else in the process asks for: torch and Python's
    own `ssl` keep the system's OpenSSL, which may be a newer one."""
    library, renames = package / "lib", []
    for link in filter(pathlib.Path.is_symlink, list(library.iterdir())):
        link.unlink()  # a wheel has no links
    for path in list(library.iterdir()):
        name = call("patchelf", "--print-soname", path, stdout=subprocess.PIPE).strip()
        own = name.replace(".so", "-netsum.so", 1)
        renames += ["--replace-needed", name, own]
        call("patchelf", "--set-soname", own, path.rename(library / own))
    for path in [package / "bin/netsum", *library.iterdir(), *package.glob("torch/*.so")]:
        call("patchelf", *renames, path)
        # RPATH, and not RUNPATH, since it also holds for what the libraries need. In one call with the above, patchelf 0.14 mixes up the strings.
        call("patchelf", "--force-rpath", "--set-rpath", f"$ORIGIN/{os.path.relpath(library, path.parent)}", path)


class Install(build_ext):
    def run(self):
        if not (TREE / "CMakeCache.txt").exists():
            call("cmake", "--preset", "release", "-S", ROOT, "-B", TREE, f"-DNETSUM_PYTHON={sys.executable}")
        call("cmake", "--build", TREE, "--target", "netsum", "netsum_torch_python")
        check_tree()
        shutil.rmtree(self.build_lib, ignore_errors=True)
        call("cmake", "--install", TREE, "--component", "wheel", "--strip", "--prefix", self.build_lib)
        package = pathlib.Path(self.build_lib) / "netsum"
        call(ROOT / "etc/copyrights", package / "lib", package / "licenses")
        bring_libraries(package)


MADE.mkdir(parents=True, exist_ok=True)
setuptools.setup(
    version=f"{version()}+torch{torch_minor()}",
    license="Apache-2.0",  # here, since Debian 12's setuptools takes no string in pyproject.toml, and Debian 13's nothing else
    install_requires=[f"torch=={torch_minor()}.*"],
    ext_modules=[setuptools.Extension("netsum.torch._C", [])],
    cmdclass={"build_ext": Install},
    options={"build": {"build_base": str(MADE)}, "egg_info": {"egg_base": str(MADE)}},
)
