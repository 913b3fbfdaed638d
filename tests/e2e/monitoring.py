#!/usr/bin/python3
"""examples/monitoring: the alert rules by promtool, and every query of the dashboard by a Prometheus while a job runs. Both are
Debian's `prometheus`; without it all is skipped but what needs neither.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request

import cli_support as cli
from cli_status import free_port

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "monitoring")
NEEDS_PROMETHEUS = unittest.skipUnless(shutil.which("promtool") and shutil.which("prometheus"), "there is no prometheus")


def file_of(name):
    with open(os.path.join(FOLDER, name)) as file:
        return file.read()


def dashboard_queries():
    """Each expression, as Grafana asks with all daemons and jobs chosen."""
    for panel in json.loads(file_of("grafana-dashboard.json"))["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "4s").replace("$instance", ".*").replace("$job", ".*")


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return answer.read().decode()


class Monitoring(unittest.TestCase):
    def ranks(self, switch, *flags, job="vision"):
        return [cli.rank_process(switch.address, rank, 2, "--job", job, "--elements", 100_000, "--iterations", 1_000_000, *flags)
                for rank in range(2)]

    def test_every_metric_is_there(self):
        port = free_port()
        with cli.Switch("--metrics", port) as switch:
            ranks = self.ranks(switch)
            with ranks[0], ranks[1]:
                ranks[0].wait_line(ranks[0].out, "iteration 3")
                known = set(re.findall(r"^(netsum_\w+)", scrape(port), re.M))
        known.add("netsum_certificate_expiry_timestamp_seconds")  # of daemons with TLS alone (cli_status.py)
        for name in ("grafana-dashboard.json", "netsum.rules.yml"):
            wanted = set(re.findall(r"netsum_\w+", file_of(name)))
            self.assertTrue(wanted)
            self.assertEqual(wanted - known, set(), name)

    @NEEDS_PROMETHEUS
    def test_rules(self):
        for command in (["check", "rules", "netsum.rules.yml"], ["check", "config", "prometheus.yml"],
                        ["test", "rules", "netsum.rules.test.yml"]):
            result = subprocess.run(["promtool", *command], cwd=FOLDER, capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    @NEEDS_PROMETHEUS
    def test_names_follow_the_conventions(self):
        ports = free_port(), free_port()
        with cli.Switch("--metrics", ports[0]) as switch, cli.ParameterServer("--metrics", ports[1]) as server:
            groups = [self.ranks(switch), self.ranks(switch, "--protocol", "netreduce", job="ring"),
                      self.ranks(switch, "--protocol", "atp", "--ps", server.address, job="atp")]
            try:
                for ranks in groups:
                    ranks[0].wait_line(ranks[0].out, "iteration 3")
                for port in ports:
                    result = subprocess.run(["promtool", "check", "metrics"], input=scrape(port), capture_output=True, text=True, timeout=60)
                    self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))
            finally:
                for ranks in groups:
                    for rank in ranks:
                        rank.__exit__()

    @NEEDS_PROMETHEUS
    def test_every_query_of_the_dashboard_has_an_answer(self):
        daemon, own = free_port(), free_port()
        with tempfile.TemporaryDirectory() as folder, cli.Switch("--metrics", daemon, "--heartbeat-timeout-ms", 60_000) as switch:
            config = file_of("prometheus.yml").replace("127.0.0.1:9170", f"127.0.0.1:{daemon}").replace("5s", "1s")
            config = config.replace("netsum.rules.yml", os.path.abspath(os.path.join(FOLDER, "netsum.rules.yml")))
            with open(os.path.join(folder, "prometheus.yml"), "w") as file:
                file.write(config)
            ranks = self.ranks(switch)
            prometheus = cli.Process(f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                     f"--web.listen-address=127.0.0.1:{own}", program=shutil.which("prometheus"))
            with ranks[0], ranks[1], prometheus:
                def ask(query):
                    address = f"http://127.0.0.1:{own}/api/v1/query?" + urllib.parse.urlencode({"query": query})
                    try:
                        with urllib.request.urlopen(address, timeout=20) as answer:
                            return json.load(answer)["data"]["result"]
                    except urllib.error.HTTPError as error:
                        if error.code == 503:
                            return None  # it starts
                        raise AssertionError(f"{query}: {error.read().decode()}") from None
                    except OSError:
                        return None
                for title, query in dashboard_queries():
                    cli.until(lambda: ask(query), 40, f"an answer to '{title}': {query}")
                running = cli.until(lambda: ask("netsum:job_answered_again:ratio_rate1m"), 40, "the recording rule")
                self.assertEqual(running[0]["metric"]["job"], "vision")
                ranks[1].signal(signal.SIGSTOP)
                cli.until(lambda: ask("netsum_job_stalled_seconds > 1"), 20, "the wait for rank 1")


if __name__ == "__main__":
    cli.main()
