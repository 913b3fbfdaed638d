"""Processes that begin with modules imported already: a server, forked before anything else runs, imports them once and forks for each.

The processes are otherwise like any: they leave main() and end as an interpreter ends. (multiprocessing's own fork server ends its
processes without that.)
"""

import json
import os
import select
import signal
import socket
import sys


class ForkedProcess:
    """What subprocess.Popen would be, with its stdout as a pipe; the leader of a session of its own."""

    def __init__(self, server, pid, stdout):
        self.server, self.pid, self.stdout, self.status = server, pid, stdout, None

    def poll(self):
        if self.status is None:
            self.server.read(0)
        return self.status

    def wait(self):
        while self.status is None:
            self.server.read(None)
        return self.status


class ForkServer:
    """server.start(task, environment, stderr): a process that returns from ForkServer() with `task`, in which it is None elsewhere."""

    def __init__(self, modules):
        self.task, self.processes = None, {}
        self.socket, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            self.socket.close()
            self._serve(requests, modules)
        else:
            requests.close()

    def start(self, task, environment, stderr):
        ours, theirs = os.pipe()
        request = json.dumps({"task": task, "environment": environment}).encode()
        socket.send_fds(self.socket, [request], [theirs, stderr.fileno()])
        os.close(theirs)
        while (pid := self.read(None)) is None:
            pass
        process = self.processes[pid] = ForkedProcess(self, pid, os.fdopen(ours, "rb"))
        return process

    def read(self, wait):
        """One answer, if there is one within `wait` seconds: the number of a new process, or how a process ended (which is noted)."""
        if not select.select([self.socket], [], [], wait)[0]:
            return None
        answer = json.loads(self.socket.recv(1000))
        if "ended" not in answer:
            return answer["began"]
        self.processes.pop(answer["ended"]).status = answer["status"]
        return None

    def _serve(self, requests, modules):
        """Returns in processes that were asked for, and never in the server."""
        for module in modules:
            __import__(module)
        wake, woken = os.pipe()
        for end in (wake, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([requests, wake], [], [])
            if wake in ready:
                os.read(wake, 1000)
                self._report(requests)
            if requests not in ready:
                continue
            request, descriptors, _, _ = socket.recv_fds(requests, 1 << 17, 2)
            if not request:
                os._exit(0)
            began, beginning = os.pipe()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (began, wake, woken):
                    os.close(end)
                requests.close()
                self._become(json.loads(request), *descriptors)
                os.close(beginning)
                return
            os.close(beginning)
            os.read(began, 1)  # until the process leads its session
            for descriptor in (began, *descriptors):
                os.close(descriptor)
            requests.send(json.dumps({"began": pid}).encode())

    def _report(self, requests):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            requests.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())

    def _become(self, request, stdout, stderr):
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        sys.stdout.reconfigure(line_buffering=True)
        os.environ.clear()
        os.environ.update(request["environment"])
        self.task = request["task"]
