"""Scenarios of the simulator (docs/simulator.md) from dictionaries, run by netsum; and what frameworks make of a model's buckets."""
import concurrent.futures
import json
import os
import subprocess
import tempfile

from network import ROOT

NETSUM = os.path.join(ROOT, "build/release/bin/netsum")
NS3 = os.path.join(ROOT, "build/release/bin/netsum_ns3")
MODELS = os.path.join(ROOT, "examples/workloads/models.toml")
PATIENCE = 600  # seconds for one run


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def run(scenario, level="packet"):
    """The report, without what is not determined by the scenario."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "scenario.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{key} = {toml(value)}\n" for key, value in scenario.items())
        command = [NS3, "--json", path] if level == "ns-3" else [NETSUM, "simulate", "--scenario", path, "--level", level, "--json"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if answer.returncode != 0:
        raise SystemExit(f"a scenario failed: {answer.stderr.strip()}")
    report = json.loads(answer.stdout)
    for key in ("real_seconds", "packets_per_second"):
        del report[key]
    return report


def run_all(scenarios, level="packet"):
    """In order; several at a time."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda scenario: run(scenario, level), scenarios))


def gbit(rate):
    return f"{round(rate * 1000)}mbit"


def star(hosts, rate, **more):
    """`rate`: in Gbit/s. Switches of a rack are a microsecond away."""
    link = {"rate": gbit(rate), "delay": "1us", **more.pop("link", {})}
    return {"kind": "star", "hosts": hosts, "link": link, **more}


def job_of(model, gpu=None, **more):
    job = {"workloads": MODELS, "model": model, **more}
    if gpu:
        job["gpu"] = gpu
    return job


def time_of(report, job=0):
    """Seconds of the median iteration: of a job that does not compute, tensor aggregation time."""
    return report["jobs"][job]["iteration_seconds"]["median"]


def link(report, name):
    return next(each for each in report["links"] if each["link"] == name)


def model_bytes(report, job=0):
    return 4 * sum(bucket["elements"] for bucket in report["jobs"][job]["buckets"])


def compute_seconds(buckets):
    return sum(bucket["forward"] + bucket["backward"] for bucket in buckets)


def iteration(buckets, seconds_of):
    """Seconds of an iteration whose all-reduces, one after another, take `seconds_of` elements; as the simulator's trainings."""
    now = sum(bucket["forward"] for bucket in buckets)
    network = 0.0
    for bucket in buckets:
        now += bucket["backward"]
        network = max(network, now) + seconds_of(bucket["elements"])
    return max(network, now)


def shortened(buckets, part):
    """A part of the elements and of the passes' time: over the same links a training of fewer packets."""
    return [{"elements": max(1, round(part * bucket["elements"])), "forward": f"{round(1e9 * part * bucket['forward'])}ns",
             "backward": f"{round(1e9 * part * bucket['backward'])}ns"} for bucket in buckets]


def buckets_of(model, gpu, **more):
    scenario = {"network": star(2, 100), "job": [job_of(model, gpu, **more)]}
    return run(scenario, "flow")["jobs"][0]["buckets"]
