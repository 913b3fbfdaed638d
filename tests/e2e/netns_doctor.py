#!/usr/bin/python3
"""`netsum doctor` on a host with five planted faults: it finds all five, and none of them where there are none. Needs to be root.

A host and a switch, each a network namespace; what /proc and /sys say is a file mounted over theirs, for the doctor alone.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import cli_support as cli
import netns_support as netns

HOST, SWITCH = f"doctor-h{os.getpid()}", f"doctor-s{os.getpid()}"
RMEM, WMEM, PAGES, SHARED = ("/proc/sys/net/core/rmem_max", "/proc/sys/net/core/wmem_max", "/sys/kernel/mm/transparent_hugepage/enabled",
                             "/sys/kernel/mm/transparent_hugepage/shmem_enabled")
WELL = {RMEM: "16777216", WMEM: "16777216", PAGES: "always [madvise] never", SHARED: "always within_size [advise] never deny force"}

OF_AUTHORITY = """
[ca]
default_ca = any
[any]
database = {0}/index
serial = {0}/serial
new_certs_dir = {0}
default_md = sha256
policy = all
[all]
commonName = supplied
"""


def run(*words, cwd=None):
    made = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=cwd, timeout=60)
    if made.returncode != 0:
        raise OSError(f"{words}: {made.stderr.strip()}")


def certificate(folder, name, begin, end):
    """A certificate of these dates, and its key."""
    key, request, made = (os.path.join(folder, name + suffix) for suffix in (".key", ".csr", ".pem"))
    config = os.path.join(folder, "config")
    for path, text in ((config, OF_AUTHORITY.format(folder)), (os.path.join(folder, "index"), ""),
                       (os.path.join(folder, "index.attr"), "unique_subject = no\n"), (os.path.join(folder, "serial"), "01\n")):
        with open(path, "w") as file:
            file.write(text)
    run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=netsum", "-keyout", key, "-out", request)
    run("openssl", "ca", "-batch", "-selfsign", "-notext", "-config", config, "-keyfile", key, "-in", request, "-out", made,
        "-startdate", begin, "-enddate", end)
    return made, key


class Doctor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup(netns.remove, HOST, SWITCH)
        netns.add(HOST, SWITCH)
        netns.wire(HOST, "wire", SWITCH, "wire", more=("mtu", 9000))
        netns.address(HOST, "wire", "10.77.0.1/24")
        netns.address(SWITCH, "wire", "10.77.0.2/24")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def doctor(self, kernel, *flags):
        """Its exit code, and its findings that are not ok, by name."""
        mounts = []
        for number, (path, text) in enumerate(kernel.items()):
            fake = os.path.join(self.folder, str(number))
            with open(fake, "w") as file:
                file.write(text + "\n")
            if os.path.exists(path):
                mounts.append(f"mount --bind {fake} {path}")
        script = " && ".join([*mounts, 'exec "$@"'])
        result = netns.run(HOST, "unshare", "--mount", "sh", "-c", script, "sh", cli.NETSUM, "doctor", "--json", *flags, limit=60)
        self.assertEqual(result.stderr, "")
        found = {}
        for finding in json.loads(result.stdout)["findings"]:
            if finding["level"] != "ok":
                found.setdefault(finding["name"], []).append(finding)
        return result.returncode, found

    def switch(self, *flags):
        process = netns.daemon(SWITCH, "switch", "10.77.0.2:7170", "--threads", 2, *flags)
        self.addCleanup(process.__exit__)
        return process

    def in_switch(self, *words):
        run(*netns.command(SWITCH, *words))

    def test_nothing_is_wrong(self):
        self.switch()
        cert, _ = certificate(self.folder, "good", "20200101000000Z", "20990101000000Z")
        code, found = self.doctor(WELL, "--switch", "10.77.0.2:7170", "--tls-cert", cert)
        for name in ("mtu", "rmem", "wmem", "firewall", "hugepages", "certificate", "control", "token"):
            self.assertNotIn(name, found)
        self.assertEqual(code, 0, found)

    def test_five_faults(self):
        self.switch()
        cert, _ = certificate(self.folder, "old", "20200101000000Z", "20210101000000Z")
        netns.ip("-n", SWITCH, "link", "set", "wire", "mtu", 2000)
        self.addCleanup(netns.ip, "-n", SWITCH, "link", "set", "wire", "mtu", 9000)
        self.in_switch("nft", "add table inet planted; add chain inet planted input { type filter hook input priority 0; }; "
                              "add rule inet planted input udp dport 7171 drop")
        self.addCleanup(self.in_switch, "nft", "delete table inet planted")
        code, found = self.doctor({**WELL, RMEM: "212992", PAGES: "always madvise [never]"}, "--switch", "10.77.0.2:7170", "--tls-cert", cert)
        self.assertEqual(code, 1)
        words = {"mtu": ("the longest packets that arrive have 200", "ip link set dev wire mtu 200"),  # veth lets a VLAN tag's 4 bytes pass too
                 "rmem": ("net.core.rmem_max is 212992", "sysctl -w net.core.rmem_max=8388608"),
                 "firewall": ("not on UDP 7171", "udp dport '{ 7171 }' accept"),
                 "hugepages": ("transparent huge pages are off", "echo madvise >" + PAGES),
                 "certificate": ("expired on 2021-01-01", "openssl req")}
        for name, (what, fix) in words.items():
            self.assertIn(name, found)
            self.assertTrue([each for each in found[name] if what in each["what"] and fix in each["fix"] and each["level"] == "wrong"], found[name])
        self.assertEqual({name for name, each in found.items() if any(one["level"] == "wrong" for one in each)}, set(words))

    def test_the_certificate_that_a_switch_shows(self):
        cert, key = certificate(self.folder, "old", "20200101000000Z", "20210101000000Z")
        # A switch does not start with one that has expired: it is about one that runs since before.
        server = netns.Inside(SWITCH, "s_server", "-accept", "10.77.0.2:7170", "-cert", cert, "-key", key, "-www", program="openssl")
        self.addCleanup(server.__exit__)
        server.wait_line(server.out, "ACCEPT")
        code, found = self.doctor(WELL, "--switch", "10.77.0.2:7170", "--tls-ca", cert)
        self.assertEqual(code, 1)
        text = " ".join(each["what"] for each in found["certificate"])
        self.assertIn("the certificate of 10.77.0.2:7170 (/CN=netsum) expired on 2021-01-01", text)
        self.assertIn("does not name 10.77.0.2", text)
        self.assertIn("control", found)

    def test_a_certificate_of_another_authority(self):
        cert, key = certificate(self.folder, "one", "20200101000000Z", "20990101000000Z")
        other, _ = certificate(self.folder, "other", "20200101000000Z", "20990101000000Z")
        self.switch("--tls-cert", cert, "--tls-key", key)
        for ca, told in ((cert, False), (other, True)):
            _, found = self.doctor(WELL, "--switch", "10.77.0.2:7170", "--tls-ca", ca)
            text = " ".join(each["what"] for each in found["certificate"])
            self.assertEqual(f"is not signed by one in --tls-ca {ca}" in text, told, text)

    def test_no_switch(self):
        code, found = self.doctor(WELL, "--switch", "10.77.0.2:7999")
        self.assertEqual((code, list(found)[0]), (1, "control"))
        self.assertIn("10.77.0.2:7999", found["control"][0]["what"])


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("netns_doctor: skipped: it mounts files over those of the kernel, and is not root", file=sys.stderr)
        sys.exit(netns.SKIPPED)
    netns.skip_if_not_permitted(lambda: run("unshare", "--mount", "true"))
    cli.main()
