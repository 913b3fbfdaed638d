#!/usr/bin/python3
"""Flags, exit codes and configuration of netsum."""
import os
import tempfile
import unittest

import cli_support as cli


class Usage(unittest.TestCase):
    def test_help_teaches(self):
        for words in ([], ["switch"], ["status"], ["bench", "all-reduce"]):
            result = cli.checked(cli.run(*words, "--help"))
            self.assertIn("netsum " + (words[0] if words else "switch"), result.stdout)
            self.assertEqual(result.stderr, "")

    def test_version(self):
        self.assertRegex(cli.checked(cli.run("--version")).stdout, r"^netsum \d+\.\d+\.\d+\n$")

    def test_bad_usage_is_one_line_and_2(self):
        for words in (["--bogus"], [], ["bench"], ["fly"],
                      ["bench", "all-reduce", "--workers", "0"],
                      ["bench", "all-reduce", "--workers", "257"],
                      ["bench", "all-reduce", "--elements", "many"],
                      ["bench", "all-reduce", "--elements", "-1"],
                      ["bench", "all-reduce", "--packet-elements", "100"],
                      ["bench", "all-reduce", "--slots", "3"],
                      ["bench", "all-reduce", "--dtype", "float64"],
                      ["bench", "all-reduce", "--op", "max"],
                      ["bench", "all-reduce", "--loss", "1.5"],
                      ["bench", "all-reduce", "--rank", "0"],
                      ["bench", "all-reduce", "--switch", "127.0.0.1:1", "--rank", "2", "--world-size", "2"],
                      ["bench", "all-reduce", "--switch", "127.0.0.1:1"],
                      ["bench", "all-reduce", "--switch", "127.0.0.1:1", "--workers", "2"],
                      ["status"], ["switch", "--tls-cert", "x"], ["switch", "--listen", "nonsense"],
                      ["switch", "--token-file", "/nonexistent"]):
            with self.subTest(words=words):
                result = cli.run(*words)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertRegex(result.stderr, r"\Anetsum: [^\n]+\n\Z")

    def test_protocols_that_are_not_there_yet(self):
        for protocol in ("atp", "netreduce"):
            result = cli.run("bench", "all-reduce", "--protocol", protocol)
            self.assertEqual(result.returncode, 2)
            self.assertIn(protocol + " is not available yet", result.stderr)


class Configuration(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, text):
        path = os.path.join(self.folder.name, "netsum.toml")
        with open(path, "w") as out:
            out.write(text)
        return path

    def settings(self, *words, env=None):
        out = cli.checked(cli.run(*words, "--print-config", env=env)).stdout
        return dict(line.split(" = ", 1) for line in out.splitlines() if " = " in line)

    def test_flag_over_variable_over_file_over_default(self):
        path = self.file('[switch]\nthreads = 3\nslots = 512\npin = true\nlisten = "10.0.0.1:7"\n'
                         '[bench.all-reduce]\nelements = 77\n')
        env = {"NETSUM_THREADS": "4", "NETSUM_SLOTS": "1024"}
        got = self.settings("switch", "--config", path, "--slots", "2048", env=env)
        self.assertEqual(got["slots"], "2048  # --slots")
        self.assertEqual(got["threads"], "4  # NETSUM_THREADS")
        self.assertEqual(got["pin"], f"true  # {path}")
        self.assertEqual(got["listen"], f"'10.0.0.1:7'  # {path}")
        self.assertEqual(got["loss"], "0  # default")
        got = self.settings("bench", "all-reduce", env={"NETSUM_CONFIG": path})
        self.assertEqual(got["elements"], f"77  # {path}")

    def test_lists(self):
        path = self.file('[bench.all-reduce]\nswitch = ["a:1", "b:2"]\n')
        self.assertEqual(self.settings("bench", "all-reduce", "--config", path)["switch"], f"'a:1,b:2'  # {path}")

    def test_printed_settings_can_be_read_back(self):
        path = self.file(cli.checked(cli.run("switch", "--slots", "64", "--pin", "--print-config")).stdout)
        got = self.settings("switch", "--config", path)
        self.assertEqual(got["slots"], f"64  # {path}")
        self.assertEqual(got["pin"], f"true  # {path}")

    def test_unknown_keys_and_bad_values_are_errors(self):
        for text, word in (("[switch]\nthread = 1\n", "switch.thread"), ("[swich]\nthreads = 1\n", "swich"),
                           ("threads = 1\n", "threads"), ("[bench.all-reduce]\nfoo = 1\n", "bench.all-reduce.foo"),
                           ("[switch]\nthreads = 'x'\n", "--threads"), ("[switch\n", "line 1")):
            with self.subTest(text=text):
                result = cli.run("switch", "--config", self.file(text))
                self.assertEqual(result.returncode, 2)
                self.assertIn(word, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)
        result = cli.run("switch", env={"NETSUM_THREADS": "x"})
        self.assertEqual(result.returncode, 2)
        self.assertIn("NETSUM_THREADS", result.stderr)


if __name__ == "__main__":
    cli.main()
