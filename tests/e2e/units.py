#!/usr/bin/python3
"""What is installed beside the binary. systemd's units: they are valid and sandboxed, and the daemon tells its service manager what units of Type=notify promise."""
import glob
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import cli_support as cli

UNITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "etc", "systemd")


@unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
class Units(unittest.TestCase):
    def test_valid_and_sandboxed(self):
        sources = glob.glob(os.path.join(UNITS, "*.service.in"))
        self.assertEqual(len(sources), 3)
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(cli.NETSUM, os.path.join(folder, "netsum"))
            for source in sources:
                unit = os.path.join(folder, os.path.basename(source)[:-3].replace("@", "@0"))
                with open(source) as read, open(unit, "w") as write:
                    write.write(read.read().replace("@CMAKE_INSTALL_FULL_BINDIR@", folder))
                for words in (["verify"], ["security", "--offline=true", "--threshold=30"]):
                    result = subprocess.run(["systemd-analyze", *words, unit], capture_output=True, text=True, timeout=60)
                    self.assertEqual(result.returncode, 0, f"{words} {source}: {result.stdout[-300:]}{result.stderr}")

    def test_flags_are_known(self):
        for source in glob.glob(os.path.join(UNITS, "*.service.in")):
            with open(source) as file:
                command = re.search(r"^ExecStart=\S+/netsum (\w+) (.*)$", file.read(), re.M)
            listed = cli.checked(cli.run(command[1], "--help")).stdout
            for flag in re.findall(r"--[\w-]+", command[2]):
                self.assertIn(flag, listed)


class Manual(unittest.TestCase):
    def test_made_from_what_help_says(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, os.path.join(UNITS, "..", "manual.py"), cli.NETSUM, folder], check=True, timeout=120)

            def text(name):
                with open(os.path.join(folder, name)) as file:
                    return file.read()
            listed = re.findall(r"^  (\w+) {2,}", cli.run("--help").stdout.split("Subcommands:")[1].split("\n\n")[0], re.M)
            self.assertGreater(len(listed), 8)
            for command in listed:
                self.assertIn(f"netsum-{command}.1", os.listdir(os.path.join(folder, "man1")))
            page = text("man1/netsum-switch.1").replace("\\-", "-")
            for words in ("\n\\fB--threads\\fR \\fIN\\fR\n", "(default: 127.0.0.1:0)", "\n\\fB--flight-records\\fR \\fIFOLDER\\fR\n", ".SH NOTES"):
                self.assertIn(words, page)
            complete = 'source "$1"; COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2)); _netsum; printf "%s\\n" "${COMPREPLY[@]}"'

            def completions(*words):
                result = subprocess.run(["bash", "-c", complete, "bash", os.path.join(folder, "netsum"), *words], capture_output=True, text=True, timeout=60)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                return result.stdout.split()
            self.assertEqual(completions("netsum", "do"), ["doctor"])
            self.assertEqual(completions("netsum", "switch", "--thr"), ["--threads"])
            self.assertEqual(completions("netsum", "bench", "all-r"), ["all-reduce"])
            self.assertIn("complete -c netsum -n '__fish_seen_subcommand_from top' -l interval -x", text("netsum.fish"))
            for program, name in (("zsh", "_netsum"), ("fish", "netsum.fish")):
                if shutil.which(program):
                    subprocess.run([program, "-n", os.path.join(folder, name)], check=True, timeout=60)


class ServiceManager(unittest.TestCase):
    def test_hears_of_the_daemon(self):
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            path = os.path.join(folder, "notify")
            manager.bind(path)
            manager.settimeout(20)
            with cli.Process("switch", "--listen", "127.0.0.1:0", env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}) as switch:
                self.assertEqual([manager.recv(100) for _ in range(3)], [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"])
                switch.wait_line(switch.out, "listening ")
                switch.signal(signal.SIGTERM)
                said = manager.recv(100)
                while said == b"WATCHDOG=1":
                    said = manager.recv(100)
                self.assertEqual(said, b"STOPPING=1")
                self.assertEqual(switch.wait(10), 0)


if __name__ == "__main__":
    cli.main()
