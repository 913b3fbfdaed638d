#!/usr/bin/python3
"""examples/kubernetes without a Kubernetes: every field is one that its API has and of its type, what refers to something finds it, and the
commands are ones that the binary takes. `python3 manifests.py NETSUM_BINARY SOURCE`; skipped without python3-yaml.

The schema below is of the kinds and fields that the manifests have, from Kubernetes' API reference (v1, apps/v1, batch/v1).
"""
import copy
import glob
import os
import re
import sys
import unittest

import cli_support as cli

try:
    import yaml
except ImportError:
    yaml = None

SOURCE = sys.argv.pop(2) if len(sys.argv) > 2 else ""

TEXT, NUMBER, YES = str, int, bool
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"\d+(\.\d+)?(m|Ki|Mi|Gi|k|M|G)?")
IMAGE = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+:[\w.-]+")
WORDS = {str: str}  # a map
PORT = lambda value: isinstance(value, int) and 0 < value < 65536  # noqa: E731
PORT_OR_NAME = lambda value: PORT(value) or (isinstance(value, str) and re.fullmatch(r"[a-z0-9-]{1,15}", value))  # noqa: E731
PROTOCOL = {"TCP", "UDP"}

METADATA = {"name": NAME, "namespace": NAME, "labels": WORDS, "annotations": WORDS}
PROBE = {"tcpSocket": {"port": PORT_OR_NAME}, "httpGet": {"path": TEXT, "port": PORT_OR_NAME}, "periodSeconds": NUMBER, "failureThreshold": NUMBER}
AMOUNTS = {"cpu": QUANTITY, "memory": QUANTITY}
CONTAINER = {
    "name": NAME, "image": IMAGE, "command": [TEXT], "args": [TEXT],
    "env": [{"name": re.compile(r"[A-Z][A-Z0-9_]*"), "value": TEXT, "valueFrom": {"fieldRef": {"fieldPath": TEXT}}}],
    "ports": [{"name": PORT_OR_NAME, "containerPort": PORT, "hostPort": PORT, "protocol": PROTOCOL}],
    "readinessProbe": PROBE, "livenessProbe": PROBE,
    "resources": {"requests": AMOUNTS, "limits": AMOUNTS},
    "securityContext": {"runAsNonRoot": YES, "runAsUser": NUMBER, "allowPrivilegeEscalation": YES, "readOnlyRootFilesystem": YES,
                        "capabilities": {"drop": [TEXT], "add": [TEXT]}, "seccompProfile": {"type": {"RuntimeDefault"}}},
    "volumeMounts": [{"name": NAME, "mountPath": TEXT, "readOnly": YES}],
}
POD = {
    "metadata": {"labels": WORDS, "annotations": WORDS},
    "spec": {
        "hostNetwork": YES, "dnsPolicy": {"ClusterFirstWithHostNet"}, "automountServiceAccountToken": YES, "terminationGracePeriodSeconds": NUMBER,
        "nodeSelector": WORDS, "restartPolicy": {"Never", "OnFailure"}, "subdomain": NAME, "containers": [CONTAINER],
        "topologySpreadConstraints": [{"maxSkew": NUMBER, "topologyKey": TEXT, "whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
                                       "labelSelector": {"matchLabels": WORDS}}],
        "volumes": [{"name": NAME, "secret": {"secretName": NAME, "defaultMode": NUMBER}, "emptyDir": {"sizeLimit": QUANTITY}}],
    },
}
KINDS = {
    ("v1", "Service"): {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA, "spec": {
        "clusterIP": {"None"}, "publishNotReadyAddresses": YES, "selector": WORDS, "ports": [{"name": PORT_OR_NAME, "port": PORT, "protocol": PROTOCOL}]}},
    ("apps/v1", "DaemonSet"): {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA, "spec": {
        "selector": {"matchLabels": WORDS}, "updateStrategy": {"type": {"OnDelete", "RollingUpdate"}}, "template": POD}},
    ("batch/v1", "Job"): {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA, "spec": {
        "completions": NUMBER, "parallelism": NUMBER, "completionMode": {"Indexed"}, "backoffLimit": NUMBER, "template": POD}},
}


def complaints(value, schema, where):
    """What of `value` is not as `schema` says: a type, a pattern, a set of values, a test, [of each], {of each field}, {str: str}."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where}: not a map"]
        if schema == WORDS:
            return [f"{where}.{key}: not text" for key, each in value.items() if not isinstance(each, str)]
        found = [f"{where}.{key}: no such field" for key in value if key not in schema]
        return found + [line for key in value if key in schema for line in complaints(value[key], schema[key], f"{where}.{key}")]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: not a list"]
        return [line for number, each in enumerate(value) for line in complaints(each, schema[0], f"{where}[{number}]")]
    if isinstance(schema, type):
        fits = isinstance(value, schema) and (schema is bool or not isinstance(value, bool))
    elif isinstance(schema, set):
        fits = value in schema
    elif isinstance(schema, re.Pattern):
        fits = isinstance(value, str) and schema.fullmatch(value)
    else:
        fits = schema(value)
    return [] if fits else [f"{where}: {value!r} does not fit"]


def of_pod(pod, where):
    """What refers to nothing."""
    found = []
    volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
    for container in pod["spec"]["containers"]:
        ports = {port["name"]: port for port in container.get("ports", [])}
        if len(ports) != len(container.get("ports", [])):
            found.append(f"{where}: two ports of one name")
        found += [f"{where}: no volume {mount['name']}" for mount in container.get("volumeMounts", []) if mount["name"] not in volumes]
        for probe in ("readinessProbe", "livenessProbe"):
            for how in ("tcpSocket", "httpGet"):
                port = container.get(probe, {}).get(how, {}).get("port")
                if isinstance(port, str) and port not in ports:
                    found.append(f"{where}: {probe} of a port {port} that there is not")
        if pod["spec"].get("hostNetwork"):
            found += [f"{where}: on the host's network port {name} is the host's" for name, port in ports.items() if port["hostPort"] != port["containerPort"]]
        variables = {each["name"] for each in container.get("env", [])}
        for argument in container.get("args", []) + container.get("command", []):
            found += [f"{where}: no variable {name}" for name in re.findall(r"\$\((\w+)\)", argument) if name not in variables]
        found += [f"{where}: {each['name']} has a value, or comes from somewhere" for each in container.get("env", []) if ("value" in each) == ("valueFrom" in each)]
    return found


def of_document(document, where):
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in KINDS:
        return [f"{where}: no kind {kind}"]
    where = f"{where} {kind[1]}"
    found = complaints(document, KINDS[kind], where)
    template = document["spec"].get("template")
    if template and not found:
        found = of_pod(template, where)
        selector = document["spec"].get("selector", {}).get("matchLabels", {})
        if not selector.items() <= template["metadata"]["labels"].items():
            found.append(f"{where}: the selector fits no pod")
    return found


def read(path):
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]


class Manifests(unittest.TestCase):
    def setUp(self):
        self.files = {os.path.basename(path): read(path) for path in glob.glob(f"{SOURCE}/examples/kubernetes/*.yaml")}

    def of_kind(self, kind):
        return [document for documents in self.files.values() for document in documents if document["kind"] == kind]

    def test_fit_the_api(self):
        self.assertEqual(sorted(self.files), ["switch.yaml", "train.yaml"])
        self.assertEqual([line for name, documents in self.files.items() for document in documents for line in of_document(document, name)], [])

    def test_the_check_can_fail(self):
        good = self.of_kind("DaemonSet")[0]
        for change, words in ((lambda d: d["spec"].update(replicas=2), "no such field"),
                              (lambda d: d["metadata"].update(name="Netsum_"), "does not fit"),
                              (lambda d: d["spec"]["template"]["spec"].update(hostNetwork="yes"), "does not fit"),
                              (lambda d: d["spec"]["template"]["spec"]["containers"][0]["ports"][0].update(hostPort=7), "is the host's"),
                              (lambda d: d["spec"]["template"]["spec"]["volumes"].pop(), "no volume records"),
                              (lambda d: d["spec"]["template"]["metadata"].update(labels={"a": "b"}), "fits no pod"),
                              (lambda d: d["spec"]["template"]["spec"]["containers"][0]["env"].clear(), "no variable NODE_ADDRESS"),
                              (lambda d: d.update(apiVersion="v2"), "no kind")):
            bad = copy.deepcopy(good)
            change(bad)
            self.assertIn(words, "\n".join(of_document(bad, "x")))

    def test_services_select_the_pods(self):
        labels = [document["spec"]["template"]["metadata"]["labels"] for kind in ("DaemonSet", "Job") for document in self.of_kind(kind)]
        labels += [{"job-name": document["metadata"]["name"]} for document in self.of_kind("Job")]  # the controller's
        for service in self.of_kind("Service"):
            self.assertTrue(any(service["spec"]["selector"].items() <= each.items() for each in labels), service["metadata"]["name"])

    def test_commands_are_the_binarys(self):
        container = self.of_kind("DaemonSet")[0]["spec"]["template"]["spec"]["containers"][0]
        flags = dict(zip(container["args"][1::2], container["args"][2::2]))
        listed = cli.checked(cli.run(container["args"][0], "--help")).stdout
        for flag in flags:
            self.assertRegex(listed, rf"(?m)^  {flag} ")
        for address in ("127.0.0.1", "::1"):
            words = [word.replace("$(NODE_ADDRESS)", address) for word in container["args"]]
            cli.checked(cli.run(*words, "--print-config"))
            given = dict(zip(words[1::2], words[2::2]))
            if ":" in address and not os.path.exists("/proc/net/if_inet6"):
                continue  # no IPv6 here
            at = [given[flag].rsplit(":", 1)[0] + ":0" for flag in ("--listen", "--metrics")]
            with cli.Process("switch", "--listen", at[0], "--metrics", at[1]) as switch:
                switch.wait_line(switch.out, "listening ")
        # A port for each lane, and those of the flags.
        ports = {(port["protocol"], port["containerPort"]) for port in container["ports"]}
        first = int(flags["--listen"].rsplit(":", 1)[1])
        self.assertEqual(ports, {("TCP", first), ("TCP", int(flags["--metrics"].rsplit(":", 1)[1])), *(("UDP", first + i) for i in range(int(flags["--lanes"])))})
        default = int(re.search(r"--memory-mib MIB:POSITIVE(?:=| \[)(\d+)", listed)[1])
        self.assertGreater(int(container["resources"]["limits"]["memory"].removesuffix("Mi")), default)

    def test_ranks_ask_for_the_service(self):
        job = self.of_kind("Job")[0]
        variables = {each["name"]: each.get("value") for each in job["spec"]["template"]["spec"]["containers"][0]["env"]}
        service = next(each for each in self.of_kind("Service") if each["metadata"]["name"] == "netsum-switch")
        control = next(port for port in service["spec"]["ports"] if port["protocol"] == "TCP")
        place = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local"
        self.assertEqual(variables["NETSUM_SWITCH"], f"srv:_{control['name']}._tcp.{place}")
        self.assertEqual(int(variables["WORLD_SIZE"]), job["spec"]["completions"])
        self.assertEqual(job["spec"]["parallelism"], job["spec"]["completions"])
        with open(f"{SOURCE}/docs/pytorch.md", encoding="utf-8") as file:
            documented = file.read()
        for name in variables:
            if name.startswith("NETSUM_"):
                self.assertIn(f"`{name}`", documented)


if __name__ == "__main__":
    if yaml is None:
        print("skipped: no python3-yaml")
        sys.exit(77)
    cli.main()
