#!/usr/bin/python3
"""Private sums through the command line: the bits that sums have without pads, and what is refused (docs/private-sums.md)."""
import os
import secrets
import tempfile
import unittest

import cli_support as cli

USUAL = ("--elements", 10_003, "--iterations", 2, "--warmup", 1, "--seed", 4)


def bench(*flags, collective="all-reduce"):
    return cli.bench(*USUAL, *flags, collective=collective)


class Private(unittest.TestCase):
    def same(self, plain, private, collective="all-reduce"):
        expected, found = bench(*plain, collective=collective), bench(*plain, *private, collective=collective)
        with self.subTest(collective=collective, plain=plain, private=private):
            self.assertEqual(0, found["wrong"])
            self.assertEqual(expected["result_hash"], found["result_hash"])

    @cli.compares
    def test_sums_have_the_same_bits_in_trees_over_shards_and_with_losses(self):
        three = ("--workers", 3)
        self.same(three, ("--private",))
        self.same((*three, "--op", "avg", "--dtype", "int64"), ("--private", "--racks", 2, "--loss", 0.01))
        self.same((*three, "--wire", "float32", "--dtype", "bfloat16"), ("--private", "--aggregators", 2))
        self.same(("--workers", 1), ("--private",))
        self.same((*three, "--dtype", "int32", "--protocol", "netreduce", "--op", "avg"), ("--private", "--loss", 0.01))
        self.same((*three, "--profile", "chip"), ("--private",))
        for collective in ("reduce-scatter", "all-gather", "reduce", "broadcast"):
            self.same(three, ("--private",), collective)
        found = bench(*three, "--private", "--fixed-scale", 8)
        self.assertEqual(0, found["wrong"])
        self.assertIn("sums are private", found["placement"])

    def test_what_is_not_possible_is_refused_in_words(self):
        for flags, words in (
                (("--protocol", "atp", "--private"), "--private requires --protocol switchml or netreduce"),
                (("--protocol", "netreduce", "--private"), "--private requires --dtype int32 with --protocol netreduce"),
                (("--private", "--transport", "shm"), "--private and --transport shm exclude each other"),
                (("--private", "--wire", "float16"), "private sums require the wire format native or float32, not float16"),
                (("--private", "--op", "max"), "max of float32 is not possible with private sums"),
                (("--private", "--dtype", "bool"), "sum of bool is not possible with private sums"),
                (("--fixed-scale", "4"), "--fixed-scale requires --private"),
                (("--private", "--fixed-scale", "four"), "--fixed-scale is a power of two by its exponent"),
                (("--private", "--fixed-scale", "129"), "a fixed scale is between -126 and 128, not 129"),
                (("--private", "--switch", "127.0.0.1:9", "--rank", 0, "--world-size", 1), "--private needs --job-key-file FILE"),
                (("--job-key-file", "/dev/null", "--switch", "127.0.0.1:9", "--rank", 0, "--world-size", 1),
                 "--job-key-file requires --private")):
            result = cli.run("bench", "all-reduce", *USUAL, *flags)
            self.assertNotEqual(0, result.returncode, flags)
            self.assertIn(words, result.stderr, flags)

    def test_ranks_that_differ_are_told_so(self):
        with tempfile.TemporaryDirectory() as folder, cli.Switch() as switch:
            def key(name, text=None):
                path = os.path.join(folder, name)
                with open(path, "w") as file:
                    file.write(text or secrets.token_hex(32))
                return ("--private", "--job-key-file", path)

            one, other = key("one"), key("other")
            common = ("bench", "all-reduce", "--switch", switch.address, "--world-size", 2, "--elements", 100, "--connect-deadline", 1)
            for number, (first, second, words) in enumerate(((one, (), "with private sums"), (one, other, "a job key with the fingerprint"),
                                                             (one, (*one, "--fixed-scale", 3), "a fixed scale"))):
                job = ("--job", f"differs{number}")
                with cli.Process(*common, *job, "--rank", 0, *first) as waiting, cli.Process(*common, *job, "--rank", 1, *second) as joining:
                    codes = {waiting.wait(30), joining.wait(30)}
                    said = "\n".join(waiting.error_lines() + joining.error_lines())
                self.assertNotIn(0, codes, said)
                self.assertIn(words, said)
                self.assertIn("all ranks must give the same", said)
            short = cli.run(*common, "--rank", 0, *key("short", "password"))
            self.assertIn("at least 16 bytes, and it has 8", short.stderr)


if __name__ == "__main__":
    cli.main()
