#!/usr/bin/python3
"""Flags, exit codes and configuration of netsum."""
import os
import re
import subprocess
import tempfile
import unittest

import cli_support as cli


class Usage(unittest.TestCase):
    def test_help_teaches(self):
        for words in ([], ["switch"], ["ps"], ["bump"], ["status"], ["bench", "all-reduce"]):
            result = cli.checked(cli.run(*words, "--help"))
            self.assertIn("netsum " + (words[0] if words else "switch"), result.stdout)
            self.assertEqual(result.stderr, "")

    def test_version(self):
        self.assertRegex(cli.checked(cli.run("--version")).stdout, r"^netsum \d+\.\d+\.\d+\n$")

    def test_bad_usage_is_one_line_and_2(self):
        for words in (["--bogus"], [], ["bench"], ["fly"],
                      ["bench", "all-reduce", "--workers", "0"],
                      ["bench", "all-reduce", "--workers", "4097"],
                      ["bench", "all-reduce", "--elements", "many"],
                      ["bench", "all-reduce", "--elements", "-1"],
                      ["bench", "all-reduce", "--packet-elements", "100"],
                      ["bench", "all-reduce", "--spin"],
                      ["bench", "all-reduce", "--spin", "--transport", "shm", "--busy-poll", "false"],
                      ["bench", "all-reduce", "--slots", "3"],
                      ["bench", "all-reduce", "--dtype", "float8"],
                      ["bench", "all-reduce", "--wire", "int2"],
                      ["bench", "all-reduce", "--wire", "bfloat16", "--rounding", "nearest"],
                      ["bench", "all-reduce", "--wire", "int8", "--rounding", "even"],
                      ["bench", "all-reduce", "--wire", "float16", "--protocol", "atp"],
                      ["bench", "all-reduce", "--op", "most"],
                      ["bench", "all-reduce", "--loss", "1.5"],
                      ["bench", "all-reduce", "--rank", "0"],
                      ["bench", "all-reduce", "--switch", "127.0.0.1:1", "--rank", "2", "--world-size", "2"],
                      ["bench", "all-reduce", "--spine", "127.0.0.1:1", "--switch", "127.0.0.1:1", "--rank", "0", "--world-size", "2"],
                      ["bench", "all-reduce", "--switch", "127.0.0.1:1", "--rank", "0", "--world-size", "2", "--job", "\udcff"],  # no UTF-8
                      ["bench", "all-reduce", "--switch", "127.0.0.1:1"],
                      ["bench", "all-reduce", "--switch", "127.0.0.1:1", "--workers", "2"],
                      ["status"], ["switch", "--tls-cert", "x"], ["switch", "--listen", "nonsense"],
                      ["switch", "--require-keys"], ["switch", "--packet-security", "tag"],
                      ["switch", "--packet-security", "both"], ["ps", "--packet-security", "none", "--require-keys"],
                      ["bench", "all-reduce", "--require-keys"],
                      ["switch", "--token-file", "/nonexistent"]):
            with self.subTest(words=words):
                result = cli.run(*words)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertRegex(result.stderr, r"\Anetsum: [^\n]+\n\Z")

    def test_numbers_that_are_too_small_are_refused_in_plain_words(self):
        for flag, least in (("slots", 1), ("heartbeat-timeout-ms", 1000)):
            for value in ("0", "-1", "many"):
                result = cli.run("switch", f"--{flag}={value}")
                self.assertEqual((result.returncode, result.stderr), (
                    2, f"netsum: --{flag}: requires a whole number of at least {least}, not '{value}' (see netsum switch --help)\n"))

    def test_output_that_cannot_be_written_is_an_error(self):
        for words in (["simulate", "--workers", "2", "--seeds", "1..1"], ["--help"], ["end", "--help"], ["--version"], ["switch", "--print-config"]):
            with self.subTest(words=words), open("/dev/full", "w") as full:
                ended = subprocess.run([cli.NETSUM, *words], stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual(ended.returncode, 1)
                self.assertIn("standard output cannot be written", ended.stderr)

    def test_what_is_wrong_with_the_command_line_is_said_in_plain_words(self):
        for words, complaint in (
                (["bench", "all-reduce", "--elements", "many"], "--elements: requires a whole number of at least 0, not 'many'"),
                (["bench", "all-reduce", "--elements", "-1"], "--elements: requires a whole number of at least 0, not '-1'"),
                (["bench", "all-reduce", "--rank", "99999999999"], "--rank: requires a whole number"),
                (["switch", "--busy-poll", "maybe"], "--busy-poll: requires true or false, not 'maybe'"),
                (["switch", "--pin=maybe"], "--pin: requires true or false, not 'maybe'"),
                (["switch", "--threads"], "--threads requires a value"),
                (["switch", "--threads", "1", "--threads", "2"], "--threads may be given once only"),
                (["end"], "JOB is missing"), (["explain"], "FILE|JOB is missing"),
                ([], "a command is missing"), (["bench"], "a command is missing")):
            with self.subTest(words=words):
                result = cli.run(*words)
                self.assertEqual(result.returncode, 2)
                self.assertTrue(result.stderr.startswith(f"netsum: {complaint}"), result.stderr)

    def test_words_that_are_not_known_are_named(self):
        for words, complaint, command in ((["swich"], "unknown command 'swich'", ""),
                                          (["bench", "all-reduse", "--workers", "2"], "unknown command 'all-reduse'", "bench "),
                                          (["--foo"], "unknown flag '--foo'", ""),
                                          (["bench", "all-reduce", "--wokers", "2"], "unknown flag '--wokers'", "bench all-reduce "),
                                          (["switch", "now"], "unknown argument 'now'", "switch ")):
            with self.subTest(words=words):
                self.assertEqual(cli.run(*words).stderr, f"netsum: {complaint} (see netsum {command}--help)\n")


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

    def test_flags_of_a_job_here_beat_variables_of_one_across_hosts(self):
        across = {"NETSUM_SWITCH": "127.0.0.1:1", "NETSUM_TOKEN_FILE": "/nonexistent"}
        result = cli.checked(cli.run("bench", "all-reduce", "--workers", 2, "--elements", 1000, "--iterations", 1, env=across))
        self.assertIn("netsum: not used, because of --workers: NETSUM_SWITCH, NETSUM_TOKEN_FILE\n", result.stderr)
        result = cli.run("bench", "all-reduce", "--switch", "127.0.0.1:1", "--rank", 0, "--world-size", 2, env={"NETSUM_WORKERS": "2"})
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("netsum: not used, because of --switch: NETSUM_WORKERS\n", result.stderr)

    def test_flag_over_variable_over_file_over_default(self):
        path = self.file('[switch]\nthreads = 3\nslots = 512\npin = true\nlisten = "10.0.0.1:7"\n'
                         '[bench.all-reduce]\nelements = 77\n')
        env = {"NETSUM_THREADS": "4", "NETSUM_SLOTS": "1024"}
        got = self.settings("switch", "--config", path, "--slots", "2048", env=env)
        self.assertEqual(got["slots"], "2048  # --slots")
        self.assertEqual(got["threads"], "4  # NETSUM_THREADS")
        self.assertEqual(got["pin"], f"true  # {path}")
        self.assertEqual(got["listen"], f'"10.0.0.1:7"  # {path}')
        self.assertEqual(got["loss"], "0  # default")
        got = self.settings("bench", "all-reduce", env={"NETSUM_CONFIG": path})
        self.assertEqual(got["elements"], f"77  # {path}")

    def test_lists(self):
        path = self.file('[bench.all-reduce]\nswitch = ["a:1", "b:2"]\n')
        self.assertEqual(self.settings("bench", "all-reduce", "--config", path)["switch"], f'"a:1,b:2"  # {path}')

    def test_printed_settings_can_be_read_back(self):
        path = self.file(cli.checked(cli.run("switch", "--slots", "64", "--pin", "--print-config")).stdout)
        got = self.settings("switch", "--config", path)
        self.assertEqual(got["slots"], f"64  # {path}")
        self.assertEqual(got["pin"], f"true  # {path}")

    def test_any_value_can_be_read_back(self):
        # What fuzzing found: a line break was lost, digits were dropped, what is no TOML number was printed as one.
        for name, value, printed in (("listen", "\na'b\"", '"\\na\'b\\""'), ("loss", "0.123456789012", "0.123456789012"),
                                     ("loss", ".5", "0.5"), ("slots", "0x10", "16"), ("slots", "010", "8"),
                                     ("seed", str(2**64 - 1), f'"{2**64 - 1}"')):
            with self.subTest(name=name, value=value):
                text = cli.checked(cli.run("switch", f"--{name}", value, "--print-config")).stdout
                self.assertIn(f"\n{name} = {printed}  # --{name}\n", text)
                path = self.file(text)
                self.assertEqual(self.settings("switch", "--config", path)[name], f"{printed}  # {path}")

    def test_no_number_is_no_value(self):
        for name in ("threads", "loss", "seed"):
            for result in (cli.run("switch", f"--{name}", ""), cli.run("switch", env={"NETSUM_" + name.upper(): ""}),
                           cli.run("switch", "--config", self.file(f"[switch]\n{name} = ''\n"))):
                self.assertEqual(result.returncode, 2)
                self.assertRegex(result.stderr, f"{name}(: requires a .*| has no value)")
        result = cli.run("switch", "--loss", "nan")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--loss: requires a share from 0 to 0.9 (0.01, or 1%), not 'nan'", result.stderr)

    def test_a_loss_is_a_share_or_has_its_sign(self):
        for given in ("0.5", "50%", "50.0%"):
            for result in (cli.run("switch", "--loss", given, "--print-config"), cli.run("switch", "--print-config", env={"NETSUM_LOSS": given}),
                           cli.run("switch", "--print-config", "--config", self.file(f"[switch]\nloss = '{given}'\n"))):
                self.assertRegex(result.stdout, r"(?m)^loss = 0\.5 ", result.stderr)
        for given, words in (("5", "requires a share from 0 to 0.9 (0.01, or 1%), not '5': 5 percent is 5%"), ("1", "not '1' (see"), ("95%", "not '95%' (see"),
                             ("-1%", "not '-1%' (see"), ("%", "not '%' (see")):
            result = cli.run("bench", "all-reduce", "--loss", given)
            self.assertEqual(result.returncode, 2)
            self.assertIn(words, result.stderr)

    def test_a_file_with_a_mistake_is_named_with_its_line_in_plain_words(self):
        not_toml = ": this is not TOML: each line is `key = value` (strings and dates in quotes, each key once), "
        for command in (["switch", "--config"], ["switch", "--tenants"], ["simulate", "--scenario"]):
            for text, place in (("# fine\n[switch\n", "line 2"), ("a = 1\n\na = 2\n", "line 3"), ("a = hello\n", "line 1"), ("x\n", "line 1")):
                with self.subTest(command=command, text=text):
                    path = self.file(text)
                    result = cli.run(*command, path)
                    self.assertEqual(result.returncode, 2)
                    self.assertRegex(result.stderr, rf"\Anetsum: {path}, {place}, column \d+{re.escape(not_toml)}[^\n]+\n\Z")
            for path, why in ((self.folder.name, "it is a folder"), (os.path.join(self.folder.name, "none"), "is it there")):
                result = cli.run(*command, path)
                self.assertEqual(result.returncode, 2)
                self.assertIn(f"cannot read '{path}': {why}", result.stderr)

    def test_files_that_toml_libraries_stumble_over(self):
        for text in ("[,", "\u03ff = 1\n", "[switch]\nthreads \u03ff= 1\n"):
            with self.subTest(text=text):
                result = cli.run("switch", "--config", self.file(text))
                self.assertEqual(result.returncode, 2)
                self.assertEqual(result.stderr.count("\n"), 1)

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
