#!/usr/bin/python3
"""The web page of a daemon's --metrics, in a headless Chromium: it shows what happens, and survives a restart of the daemon.

NETSUM_SCREENSHOTS=FOLDER page.py NETSUM_BINARY   also takes the screenshots of the docs (docs/images)
"""
import os
import signal
import socket
import sys
import tempfile
import unittest

import cli_support as cli
import devtools


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % probe.getsockname()[1]


def text_of(browser):
    return browser.value("document.body?.innerText") or ""


def shows(browser, words, seconds=20):
    """The page's text, once it has these words."""
    try:
        return cli.until(lambda: (lambda text: text if words in text else None)(text_of(browser)), seconds, f"'{words}' in the page")
    except AssertionError as error:
        raise AssertionError(f"{error}; it has:\n{text_of(browser)}\n{browser.complaints()}") from None


class Page(unittest.TestCase):
    def setUp(self):
        self.metrics = free_address()

    def open(self, browser, interval=100):
        browser.open(f"http://{self.metrics}/?interval={interval}")

    def screenshot(self, browser, name):
        folder = os.environ.get("NETSUM_SCREENSHOTS")
        if folder:
            browser.screenshot(os.path.join(folder, name))

    def ranks(self, address, count, job, *flags):
        return [cli.rank_process(address, rank, count, "--job", job, "--elements", 500_000, "--iterations", 1_000_000, *flags)
                for rank in range(count)]

    def check_width(self, browser):
        widths = browser.value("[document.documentElement.scrollWidth, innerWidth]")
        self.assertLessEqual(widths[0], widths[1], "nothing is wider than the window")

    def test_a_straggler_in_every_light_and_width(self):
        with cli.Switch("--metrics", self.metrics, "--heartbeat-timeout-ms", 60_000) as switch, devtools.Browser() as browser:
            browser.window(1280, 800)
            self.open(browser)
            shows(browser, "No jobs.")
            ranks = self.ranks(switch.address, 4, "vision")
            with ranks[0], ranks[1], ranks[2], ranks[3]:
                text = shows(browser, "started: switchml")  # what happened to a job is looked at twice a second
                for words in ("aggregator " + switch.address, "vision", "running", "4 of 4", f"127.0.0.1 {socket.gethostname()} ranks 0–3, processes {', '.join(str(rank.pid) for rank in ranks)}"):
                    self.assertIn(words, text)
                self.assertNotIn("has waited", text)
                points = "[...document.querySelectorAll('#charts path')].map((path) => path.getAttribute('d')).join('').split('L').length"
                cli.until(lambda: browser.value(points) > 100, 20, "curves")
                seen = browser.value("document.querySelector('.figures').innerText")
                cli.until(lambda: browser.value("document.querySelector('.figures').innerText") != seen, 20, "figures change")
                if os.environ.get("NETSUM_SCREENSHOTS"):
                    cli.until(lambda: browser.value(points) > 800, 60, "long curves")
                ranks[2].signal(signal.SIGSTOP)
                shows(browser, f"has waited for rank 2 at 127.0.0.1, {socket.gethostname()}, process {ranks[2].pid} for ")
                shows(browser, "stalled: operation ")
                self.assertEqual(browser.value("document.querySelectorAll('.node.missing').length"), 1)
                self.check_width(browser)
                self.screenshot(browser, "page.png")
                self.assertNotIn("your token", text_of(browser))
                self.assertEqual(browser.value("getComputedStyle(document.getElementById('who')).display"), "none")
                light = browser.value("getComputedStyle(document.body).backgroundColor")
                browser.window(1280, 800, "dark")
                self.assertNotEqual(browser.value("getComputedStyle(document.body).backgroundColor"), light)
                self.screenshot(browser, "page-dark.png")
                browser.window(380, 1100)
                self.check_width(browser)
                top = "document.getElementById('%s').getBoundingClientRect().top"
                self.assertLess(browser.value(top % "jobs"), browser.value(top % "charts"), "on a phone jobs come first")
                self.screenshot(browser, "page-narrow.png")
                ranks[2].signal(signal.SIGCONT)
                shows(browser, "went on: operation ")
                self.assertNotIn("has waited", text_of(browser))
            self.assertEqual(browser.complaints(), [])
            others = [url for url in browser.requests() if not url.startswith((f"http://{self.metrics}/", "data:"))]
            self.assertEqual(others, [])

    def test_a_failure_and_a_restart(self):
        with devtools.Browser() as browser:
            with cli.Switch("--metrics", self.metrics, "--heartbeat-timeout-ms", 1000) as switch:
                address = switch.address
                self.open(browser)
                ranks = self.ranks(address, 2, "speech")
                with ranks[0], ranks[1]:
                    shows(browser, "running")
                    ranks[1].signal(signal.SIGKILL)
                    shows(browser, "rank 1 of job 'speech' died: its process has ended")
                cli.checked(cli.run("drain", "--switch", address))
                shows(browser, "draining")
                switch.signal(signal.SIGTERM)
                switch.wait(20)
            text = shows(browser, "trying again")
            self.assertIn("speech", text, "what was known stays")
            with cli.Switch("--metrics", self.metrics, listen=address):
                text = shows(browser, "live")
                self.assertIn("No jobs.", shows(browser, "No jobs."))
                self.assertIn("path", browser.value("document.querySelector('#charts svg').innerHTML"), "the curve goes on")

    def test_a_tree_of_switches(self):
        # A spine, two leaves, and ranks at each.
        with cli.Switch("--metrics", self.metrics) as spine, cli.Switch() as left, cli.Switch() as right, devtools.Browser() as browser:
            browser.window(1280, 800)
            self.open(browser)
            places = [left, left, right, right, spine]
            ranks = cli.ranks_in_tree(spine, places, "--job", "tree", "--elements", 100_000, "--iterations", 1_000_000)
            try:
                text = shows(browser, "running")
                self.assertIn("switch " + left.address, text)
                self.assertIn("switch " + right.address, text)
                nested = browser.value("[...document.querySelectorAll('ul.tree ul ul')].map((list) => list.innerText.trim())")
                self.assertEqual(nested, [f"127.0.0.1 {socket.gethostname()} ranks {a}, {b}, processes {ranks[a].pid}, {ranks[b].pid}"
                                          for a, b in ((0, 1), (2, 3))])
                self.screenshot(browser, "page-tree.png")
            finally:
                for rank in ranks:
                    rank.__exit__()

    def test_jobs_that_ended_with_those_that_failed_first(self):
        with cli.Switch("--metrics", self.metrics) as switch, devtools.Browser() as browser:
            self.open(browser)
            cli.checked(cli.run("bench", "all-reduce", "--switch", switch.address, "--rank", 0, "--world-size", 1, "--job", "good"))
            with cli.rank_process(switch.address, 0, 2, "--job", "lonely") as rank:
                shows(browser, "waits for rank 1 to join")
                cli.checked(cli.run("end", "lonely", "--switch", switch.address))
                self.assertEqual(rank.wait(20), 3)
            shows(browser, "ended job 'lonely' (netsum end)")
            rows = browser.value("[...document.querySelectorAll('#ended tr')].map((row) => row.innerText)")
            self.assertEqual([("lonely" in row, "good" in row) for row in rows], [(True, False), (False, True)], rows)
            self.assertEqual(browser.complaints(), [])

    def test_tenants_see_their_own_jobs(self):
        with tempfile.TemporaryDirectory() as folder:
            names = ("a", "b")
            with open(os.path.join(folder, "tenants"), "w") as out:
                out.writelines(f'[[tenant]]\nname = "{name}"\ntoken = "the secret of tenant {name}"\n' for name in names)
            for name in names:
                with open(os.path.join(folder, name), "w") as out:
                    out.write(f"the secret of tenant {name}\n")
            tenants = ("--tenants", os.path.join(folder, "tenants"))
            with cli.Switch("--metrics", self.metrics, *tenants) as switch, devtools.Browser() as browser:
                ranks = [self.ranks(switch.address, 1, "job-of-" + name, "--token-file", os.path.join(folder, name))[0] for name in names]
                with ranks[0], ranks[1]:
                    self.open(browser)
                    text = shows(browser, "2 jobs belong to other tenants.")
                    self.assertNotIn("job-of-", text)

                    def give(token):
                        browser.value(f"document.getElementById('token').value = '{token}'; document.querySelector('form button').click()")
                    give("the secret of tenant a")
                    text = shows(browser, "job-of-a")
                    self.assertNotIn("job-of-b", text)
                    self.assertIn("1 job belongs to other tenants.", text)
                    give("the secret of nobody here")
                    shows(browser, "This token belongs to no tenant.")
                    self.assertNotIn("job-of-", text_of(browser))
                    self.assertFalse([url for url in browser.requests() if "secret" in url], "no token is sent")


if __name__ == "__main__":
    if not devtools.program():
        print("page: skipped: there is no chromium (apt-get install chromium)", file=sys.stderr)
        sys.exit(77)
    cli.main()
