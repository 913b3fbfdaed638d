"""The command `netsum` of a wheel."""

import os
import pathlib
import sys


def run():
    """Becomes the binary, which has the libraries that it needs beside it, and so cannot lie in a folder of scripts."""
    os.execv(pathlib.Path(__file__).parent / "bin/netsum", ["netsum", *sys.argv[1:]])
