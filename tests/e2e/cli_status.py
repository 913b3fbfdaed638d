#!/usr/bin/python3
"""`netsum switch` seen from outside: ready line, status, metrics, tokens, clean end."""
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

import cli_support as cli


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listeners(port):
    """Local IPv4 addresses, as /proc has them, that TCP connections to this port are taken at."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]


class Status(unittest.TestCase):
    def test_ready_line_and_clean_end(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with cli.Switch("--threads", 2) as switch:
                self.assertRegex(switch.out[0], r"^listening 127\.0\.0\.1:\d+$")
                self.assertNotIn(":0", switch.address[-2:])
                switch.signal(number)
                self.assertEqual(switch.wait(10), 0, switch.err)

    def test_ipv6(self):
        with cli.Switch(listen="[::1]:0") as switch:
            self.assertEqual(switch.address[:6], "[::1]:")
            ranks = [cli.rank_process(switch.address, rank, 2, "--elements", 1000) for rank in range(2)]
            for rank in ranks:
                with rank:
                    self.assertEqual(rank.wait(30), 0, rank.err)

    def test_a_log_that_nobody_reads_delays_nobody(self):
        for leaves in (False, True):
            with self.subTest(leaves=leaves):
                reader, writer = os.pipe()
                os.set_blocking(writer, False)
                try:
                    while True:
                        os.write(writer, b"x" * 4096)
                except BlockingIOError:
                    os.set_blocking(writer, True)
                if leaves:
                    os.close(reader)
                daemon = subprocess.Popen([cli.NETSUM, "switch", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=writer,
                                          stdin=subprocess.DEVNULL, env=cli.environment())
                try:
                    os.close(writer)
                    address = daemon.stdout.readline().decode().split()[1]
                    cli.bench("--switch", address, "--rank", 0, "--world-size", 1, "--elements", 1000)
                    cli.checked(cli.run("status", "--switch", address))
                    daemon.send_signal(signal.SIGTERM)
                    self.assertEqual(daemon.wait(20), 0)
                finally:
                    daemon.kill()
                    daemon.wait()
                    daemon.stdout.close()
                    if not leaves:
                        os.close(reader)

    def test_an_operator_ends_a_job(self):
        port = free_port()
        with cli.Switch("--metrics", port) as switch:
            def end(job, *words):
                return cli.run("end", job, "--switch", switch.address, *words)
            result = end("vision")
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (3, 1), result.stderr)
            self.assertIn("no job 'vision' is joining or running here", result.stderr)
            ranks = [cli.rank_process(switch.address, rank, 2, "--job", "vision", "--elements", 1000, "--iterations", 1_000_000, "--recovery", 60)
                     for rank in range(2)]
            waiting = cli.rank_process(switch.address, 0, 2, "--job", "waiting")
            with ranks[0], ranks[1], waiting:
                ranks[0].wait_line(ranks[0].out, "iteration 3")
                cli.until(lambda: len(switch.status()["jobs"]) == 2, 20, "two jobs")
                self.assertEqual(cli.checked(end("vision")).stdout, "job 'vision' is ended\n")
                self.assertEqual(json.loads(cli.checked(end("waiting", "--json")).stdout), {"job": "waiting", "ended": True})
                for rank, job in ((ranks[0], "vision"), (ranks[1], "vision"), (waiting, "waiting")):
                    self.assertEqual(rank.wait(20), 3, rank.err)
                    self.assertIn(f"an operator at 127.0.0.1 ended job '{job}' (netsum end)", rank.error_lines()[0])
                for job in ("vision", "waiting"):
                    cli.until(lambda job=job: sum(f"ended job '{job}'" in line for line in switch.err) == 1, 20, f"one line of {job} in {switch.err}")
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                    self.assertIn('netsum_jobs_failed_total{cause="operator"} 2', answer.read().decode())
                table = cli.checked(cli.run("status", "--switch", switch.address)).stdout
                self.assertRegex(table, r"(?s)lately.*\n  waiting failed [\d.]+ s ago: an operator at 127.0.0.1 ended job 'waiting'")
                self.assertIn("  waiting              failed", cli.checked(cli.run("top", "--switch", switch.address, "--frames", 1)).stdout)

    def test_a_drained_daemon_admits_no_job_and_those_that_run_go_on(self):
        with cli.Switch() as switch:
            def drain(*words):
                return cli.run("drain", "--switch", switch.address, *words)
            with cli.rank_process(switch.address, 0, 1, "--job", "vision", "--elements", 1000, "--iterations", 1_000_000) as rank:
                rank.wait_line(rank.out, "iteration 3")
                self.assertEqual(cli.checked(drain()).stdout, "draining: 1 job runs\n")
                with cli.rank_process(switch.address, 0, 1, "--job", "late") as late:
                    self.assertEqual(late.wait(20), 3, late.err)
                    self.assertIn("job 'late' is not admitted: an operator is draining this daemon", late.error_lines()[0])
                self.assertIn("draining: no new job is admitted", cli.checked(cli.run("status", "--switch", switch.address)).stdout)
                self.assertIn("draining", cli.checked(cli.run("top", "--switch", switch.address, "--frames", 1)).stdout)
                late = drain("--wait", "0.1")
                self.assertEqual((late.returncode, late.stderr), (1, "netsum: 1 job runs still; the daemon keeps draining\n"))
                seen = len(rank.out)
                cli.until(lambda: len(rank.out) > seen + 2, 20, "the job goes on")
                with cli.Process("drain", "--switch", switch.address, "--wait", 60, "--json") as waiting:
                    cli.until(lambda: sum("drains this daemon" in line for line in switch.err) == 3, 20, f"three drains in {switch.err}")
                    rank.signal(signal.SIGTERM)
                    self.assertEqual(waiting.wait(30), 0, waiting.err)
                    self.assertEqual(json.loads(waiting.out[0]), {"draining": True, "jobs": 0})
            self.assertEqual(cli.checked(drain("--undo")).stdout, "new jobs are admitted: no job runs\n")
            cli.checked(cli.run("bench", "all-reduce", "--switch", switch.address, "--rank", 0, "--world-size", 1))
        self.assertEqual(drain("--undo", "--wait", "5").returncode, 2)

    def test_a_drained_rack_switch_takes_no_new_part(self):
        with cli.Switch() as spine, cli.Switch() as leaf:
            cli.checked(cli.run("drain", "--switch", leaf.address))
            rank = cli.ranks_in_tree(spine, [leaf], "--job", "tree")[0]
            with rank:
                self.assertNotEqual(rank.wait(30), 0)
                self.assertIn(f"switch {leaf.address}", rank.error_lines()[0])
                self.assertIn("an operator is draining this switch for maintenance", rank.error_lines()[0])

    def test_what_is_refused_is_logged_and_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            token = {}
            for name in ("right", "wrong"):
                token[name] = os.path.join(folder, name)
                with open(token[name], "w") as file:
                    file.write(f"the {name} secret of this test\n")
            with cli.Switch("--token-file", token["right"]) as switch:
                result = cli.run("status", "--switch", switch.address, "--token-file", token["wrong"])
                self.assertEqual(result.returncode, 3)
                self.assertIn("wrong token: the daemon does not know the token in --token-file", result.stderr)
                with cli.rank_process(switch.address, 0, 2, "--token-file", token["right"]) as first:
                    cli.until(lambda: "1/2" in cli.run("status", "--switch", switch.address, "--token-file", token["right"]).stdout, 20, "rank 0")
                    self.assertEqual(cli.run("bench", "all-reduce", "--switch", switch.address, "--rank", 1, "--world-size", 3,
                                             "--token-file", token["right"]).returncode, 3)
                    report = json.loads(cli.run("status", "--switch", switch.address, "--token-file", token["right"], "--json").stdout)
                    self.assertEqual((report["counters"]["wrong_tokens"], report["counters"]["joins_refused"]), (1, 1))
                    for words in ("a caller at 127.0.0.1 showed a wrong token", "rank 1 at 127.0.0.1 was refused: .* world size 3"):
                        cli.until(lambda: any(re.search(words, line) for line in switch.err), 20, f"'{words}' in {switch.err}")
                    first.signal(signal.SIGKILL)

    def test_why_no_daemon_answers_is_told_apart(self):
        port = free_port()
        with cli.Switch("--metrics", port) as switch:
            for flags, words in ((["127.0.0.1:1"], "the connection was refused"), ([f"127.0.0.1:{port}"], "is it the --metrics port?"),
                                 ([switch.address, "--tls-ca", "/dev/null"], "has no PEM certificate")):
                result = cli.run("status", "--connect-deadline", 1, "--switch", *flags)
                self.assertNotEqual(result.returncode, 0)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertIn(words, result.stderr)

    def test_health_is_apart_from_metrics(self):
        port = free_port()
        with cli.Switch("--metrics", port):
            for path in ("healthz", "readyz"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20) as answer:
                    self.assertEqual(answer.read(), b"ok\n")

    def test_idle(self):
        with cli.Switch("--threads", 2, "--slots", 4096) as switch:
            status = switch.status()
            self.assertEqual([status[key] for key in ("threads", "lanes", "slots", "slots_free", "jobs")], [2, 2, 4096, 4096, []])
            self.assertIn("no jobs", cli.checked(cli.run("status", "--switch", switch.address)).stdout)
        with cli.Switch("--lanes", 1) as switch:
            self.assertEqual([switch.status()[key] for key in ("threads", "lanes")], [1, 1])

    def test_stalled_operation_names_the_ranks_that_it_waits_for(self):
        # A rank that is stopped for less than the heartbeat's patience is a straggler, not dead.
        with cli.Switch("--heartbeat-timeout-ms", 60_000) as switch:
            ranks = [cli.rank_process(switch.address, rank, 3, "--job", "vision", "--elements", 200_000, "--iterations", 1_000_000)
                     for rank in range(3)]
            with ranks[0], ranks[1], ranks[2]:
                ranks[2].wait_line(ranks[2].out, "iteration 3")
                ranks[2].signal(signal.SIGSTOP)

                def stalled():
                    jobs = switch.status()["jobs"]
                    return next((stall for stall in jobs[0]["stalled"] if stall["missing"] == [2]), None)
                cli.until(stalled, 10, "a stalled operation that waits for rank 2 alone")
                table = cli.checked(cli.run("status", "--switch", switch.address)).stdout
                self.assertRegex(table, r"(?m)^vision +running +3/3")
                self.assertRegex(table, rf"operation \d+, chunk \d+ .*waits for rank 2 \(127.0.0.1, \S+, process {ranks[2].pid}\)")
                ranks[2].signal(signal.SIGCONT)
                seen = len(ranks[0].out)
                cli.until(lambda: len(ranks[0].out) > seen + 2, 20, "the job goes on")

    def test_watch(self):
        with cli.Switch() as switch, cli.Process("status", "--switch", switch.address, "--watch", 0.1, "--json") as watch:
            cli.until(lambda: len(watch.out) >= 3, 20, "three reports")
            first, later = json.loads(watch.out[0]), json.loads(watch.out[2])
            self.assertLess(first["uptime_seconds"], later["uptime_seconds"])
            self.assertEqual((first["daemon"], first["address"]), ("aggregator", switch.address))
            watch.signal(signal.SIGINT)
            self.assertEqual(watch.wait(10), 0)

    def test_top_shows_many_daemons_with_rates_and_waits(self):
        with cli.Switch("--heartbeat-timeout-ms", 60_000) as one, cli.ParameterServer() as two:
            ranks = [cli.rank_process(one.address, rank, 2, "--job", "vision", "--elements", 200_000, "--iterations", 1_000_000)
                     for rank in range(2)]
            with ranks[0], ranks[1], cli.Process("top", "--switch", f"{one.address},{two.address},127.0.0.1:1", "--interval", 0.3) as top:
                ranks[0].wait_line(ranks[0].out, "iteration 3")

                def said(pattern):
                    return lambda: next((line for line in top.out if re.search(pattern, line)), None)
                for pattern in (f"^aggregator {re.escape(one.address)}, up .*: in .* [kMG]bit/s, out .* [kMG]bit/s, .* sent again",
                                f"^parameter server {re.escape(two.address)}, up ", "^127.0.0.1:1: .*127.0.0.1:1",
                                r"^  vision +running +switchml +2/2 +[\d.]+ [kMG]bit/s +[\d.]+ k? +[\d.]+ % +\d+$"):
                    cli.until(said(pattern), 20, f"'{pattern}' in {top.out}")
                ranks[1].signal(signal.SIGSTOP)
                cli.until(said(rf"vision .* rank 1 at 127.0.0.1, \S+, process {ranks[1].pid} for \d+ s \(operation \d+\)$"), 20, f"the wait in {top.out}")
                top.signal(signal.SIGTERM)
                self.assertEqual(top.wait(10), 0)
        result = cli.run("top", "--switch", "127.0.0.1:1", "--frames", 1)
        self.assertEqual(result.returncode, 3)
        self.assertEqual(len(result.stderr.splitlines()), 1)

    def test_top_in_a_terminal_ends_with_q_and_leaves_it_as_it_was(self):
        with cli.Switch() as switch:
            pid, terminal = pty.fork()
            if pid == 0:
                os.execve(cli.NETSUM, [cli.NETSUM, "top", "--switch", switch.address, "--interval", "0.2"], cli.environment())
            shown = b""

            def read_until(words):
                nonlocal shown
                while words not in shown:
                    ready, _, _ = select.select([terminal], [], [], 20)
                    self.assertTrue(ready, shown)
                    shown += os.read(terminal, 4096)
            read_until(switch.address.encode())
            os.write(terminal, b"q")
            read_until(b"\x1b[?1049l")  # the former screen
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            os.close(terminal)

    def test_a_job_whose_memory_cannot_be_had_is_refused(self):
        with cli.Switch("--slots", 1_000_000, "--memory-mib", 100_000) as switch:
            def start(job, *flags):
                return [cli.rank_process(switch.address, rank, 2, "--job", job, *flags) for rank in range(2)]

            small = start("small", "--elements", 100_000, "--iterations", 1_000_000)
            with small[0], small[1]:
                small[0].wait_line(small[0].out, "iteration 3")
                with open(f"/proc/{switch.pid}/statm") as sizes:
                    size = int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
                if size > 1 << 40:
                    return  # a sanitizer's shadow: its allocator does not outlive a limit
                resource.prlimit(switch.pid, resource.RLIMIT_AS, (size + (200 << 20),) * 2)
                large = start("large", "--elements", 1_000_000, "--packet-elements", 15360, "--slots", 4096)
                with large[0], large[1]:
                    for rank in large:
                        self.assertEqual(rank.wait(30), 3, rank.err)
                        self.assertIn("job 'large': this daemon has no memory left for the job", rank.error_lines()[0])
                seen = len(small[0].out)
                cli.until(lambda: len(small[0].out) > seen + 2, 20, "the other job goes on")

    def test_other_hosts_need_a_token(self):
        result = cli.run("switch", "--listen", "0.0.0.0:0", env={"NETSUM_ANYONE_MAY_JOIN": "false"})
        self.assertEqual(result.returncode, 2)
        for way in ("--token-file", "--tenants", "127.0.0.1", "--anyone-may-join"):
            self.assertIn(way, result.stderr)

    def test_tenants(self):
        with tempfile.TemporaryDirectory() as folder:
            def write(name, text):
                path = os.path.join(folder, name)
                with open(path, "w") as out:
                    out.write(text)
                return path

            def tenants(*names):
                return write("tenants", "".join(f'[[tenant]]\nname = "{name}"\ntoken = "the secret of tenant {name}"\n' for name in names))

            token = {name: write(name, f"the secret of tenant {name}\n") for name in ("a", "b")}

            def status(switch, name):
                return cli.run("status", "--switch", switch.address, "--token-file", token[name]).returncode

            with cli.Switch("--tenants", tenants("a")) as switch:
                self.assertEqual((status(switch, "a"), status(switch, "b")), (0, 3))
                tenants("b")
                switch.signal(signal.SIGHUP)
                cli.until(lambda: status(switch, "b") == 0, 10, "the other tenant is known")
                self.assertEqual(status(switch, "a"), 3)
                write("tenants", '[[tenant]]\nname = "both"\ntoken = ["the secret of tenant a", "the secret of tenant b"]\n')
                switch.signal(signal.SIGHUP)
                cli.until(lambda: status(switch, "a") == 0, 10, "both tokens are one tenant's")
                self.assertEqual(status(switch, "b"), 0)
                write("tenants", "[[tenant]]\nname = 7\n")
                switch.signal(signal.SIGHUP)
                cli.until(lambda: any("the previous ones stay in effect" in line for line in switch.err), 10, "a line about the file")
                self.assertEqual(status(switch, "b"), 0)
            for text in ("", "[tenant]\n", '[[tenant]]\nname = "a"\ntoken = []\n', '[[tenant]]\nname = "a"\ntoken = [7]\n', '[[tenant]]\nname = "a"\ntoken = "short"\n', '[[tenant]]\nname = "a"\nquota = 1\n'):
                result = cli.run("switch", "--tenants", write("bad", text))
                self.assertEqual(result.returncode, 2, result.stderr)

    def test_metrics(self):
        """A bare port is of the switch's own address. Jobs of two protocols at one switch count different things."""
        port = free_port()
        with cli.Switch("--metrics", port) as switch, cli.ParameterServer() as server:
            self.assertEqual(listeners(port), ["0100007F"])
            ranks = [cli.rank_process(switch.address, rank, 2, "--job", job, "--elements", 100_000, "--iterations", 1_000_000, *more)
                     for job, more in (("s", []), ("a", ["--protocol", "atp", "--ps", server.address])) for rank in range(2)]
            with ranks[0], ranks[1], ranks[2], ranks[3]:
                for rank in ranks:
                    rank.wait_line(rank.out, "iteration 3")

                def page():
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
                        return reply.read().decode()

                # ATP's job may begin before the switch is told of it.
                cli.until(lambda: re.search(r'(?m)^netsum_job_added_total\{job="a"\} [1-9]', page()), 20, "the switch adds for both jobs")
                text = page()
                status = switch.status()
            self.assertRegex(text, r"(?m)^netsum_\w*packets_received\w*(\{[^}]*\})? [1-9]")
            self.assertRegex(text, r"(?m)^# TYPE netsum_\w+ (counter|gauge)")
            own = {"s": "dropped_rank", "a": "parameters"}
            for job, name in own.items():
                counters = next(each for each in status["jobs"] if each["job"] == job)["counters"]
                exported = {found[1] for found in re.finditer(rf'(?m)^netsum_job_(\w+?)(?:_total)?\{{job="{job}"\}}', text)}
                self.assertEqual(exported - {"ranks", "ranks_joined", "stalled_seconds"}, set(counters))
                self.assertIn(name, exported)
            self.assertRegex(text, r'(?m)^netsum_job_dropped_rank_total\{job="s"\} 0$')


class Secrets(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name, text=None):
        path = os.path.join(self.folder.name, name)
        if text is not None:
            with open(path, "w") as out:
                out.write(text)
        return path

    def test_token(self):
        right, wrong = self.path("right", "secret\n"), self.path("wrong", "guess\n")
        with cli.Switch("--token-file", right) as switch:
            for flags in ([], ["--token-file", wrong]):
                result = cli.run("status", "--switch", switch.address, *flags)
                self.assertEqual(result.returncode, 3, result.stderr)
                self.assertIn("token", result.stderr)
            cli.checked(cli.run("status", "--switch", switch.address, "--token-file", right))
            result = cli.run("bench", "all-reduce", "--switch", switch.address, "--rank", 0, "--world-size", 1)
            self.assertEqual(result.returncode, 3, result.stderr)
            cli.checked(cli.run("bench", "all-reduce", "--switch", switch.address, "--rank", 0, "--world-size", 1,
                                "--token-file", right))

    def certificate(self, name):
        """Paths of a certificate that expires soon, and of its key."""
        certificate, key = self.path(name + "-cert.pem"), self.path(name + "-key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", certificate],
                       check=True, capture_output=True, timeout=60)
        return certificate, key

    def test_a_certificate_is_changed_while_jobs_run(self):
        former, later = self.certificate("former"), self.certificate("later")
        used = self.path("cert.pem"), self.path("key.pem")

        def put(certificate, key):
            for source, target in zip((certificate, key), used):
                shutil.copy(source, target)
        put(*former)
        port = free_port()
        with cli.Switch("--tls-cert", used[0], "--tls-key", used[1], "--metrics", port) as switch:
            def status(ca):
                return cli.run("status", "--switch", switch.address, "--tls-ca", ca, "--connect-deadline", 2).returncode
            self.assertTrue(any("(--tls-cert) expires in 1 day" in line for line in switch.err), switch.err)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                expiry = float(re.search(r"(?m)^netsum_certificate_expiry_timestamp_seconds (\S+)", answer.read().decode())[1])
            self.assertTrue(86400 < expiry - time.time() <= 2 * 86400, expiry)
            with cli.rank_process(switch.address, 0, 1, "--tls-ca", former[0], "--elements", 1000, "--iterations", 1_000_000) as rank:
                rank.wait_line(rank.out, "iteration 3")
                put(later[0], former[1])
                switch.signal(signal.SIGHUP)
                cli.until(lambda: any("the previous certificate stays in effect: the key in" in line for line in switch.err), 20, "a refusal")
                self.assertEqual((status(former[0]), status(later[0])), (0, 3))
                put(*later)
                switch.signal(signal.SIGHUP)
                cli.until(lambda: status(later[0]) == 0, 20, "the later certificate")
                self.assertEqual(status(former[0]), 3)
                seen = len(rank.out)
                cli.until(lambda: len(rank.out) > seen + 2, 20, "the job goes on")

    def test_tls(self):
        certificate, key = self.certificate("own")
        with cli.Switch("--tls-cert", certificate, "--tls-key", key) as switch:
            cli.checked(cli.run("status", "--switch", switch.address, "--tls-ca", certificate))
            result = cli.run("status", "--switch", switch.address, "--connect-deadline", 2)
            self.assertEqual(result.returncode, 3, result.stderr)


if __name__ == "__main__":
    cli.main()
