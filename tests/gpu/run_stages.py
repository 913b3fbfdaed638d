"""Runs the stages on a machine with a GPU, from a folder that `scripts/gpu pack` made: builds what depends on the machine's PyTorch,
then runs each stage in a session of its own, with a time limit. A stage that fails or hangs is ended, and the next one runs.

    python3 netsum/tests/gpu/run_stages.py [--stage NAME]... [--results FOLDER] [--built FOLDER] [--rehearse]

Results: FOLDER/results.json (what each stage measured, and how it ended) and FOLDER/log.txt. docs/gpu.md describes the stages.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

GPU = pathlib.Path(__file__).resolve().parent
PACK = GPU.parent.parent
E2E = PACK / "tests/e2e"

# Name, seconds, and the script with its arguments, in the order of docs/gpu.md.
STAGES = [
    ("machine", 60, [GPU / "machine.py"]),
    ("devices", 150, [E2E / "torch_devices.py"]),
    ("operations", 150, [E2E / "torch_operations.py"]),
    ("layouts", 120, [E2E / "torch_layouts.py"]),
    ("streams", 150, [GPU / "streams.py"]),
    ("nccl", 150, [GPU / "nccl.py"]),
    ("training", 180, [GPU / "training.py"]),
    ("frameworks", 180, [GPU / "frameworks.py"]),
    ("staging", 120, [GPU / "staging.py"]),
    ("sanitizer", 180, [GPU / "sanitizer.py"]),
    ("threads", 150, [GPU / "cores.py", "threads"]),
    ("peers", 240, [GPU / "cores.py", "peers"]),
    ("defaults", 180, [GPU / "cores.py", "defaults"]),
]
TAIL = 3000  # characters of a stage's output that the results keep, where it failed


def build(folder):
    """The PyTorch binding for this interpreter's torch, in `folder`."""
    jobs = str(os.cpu_count())
    commands = [["cmake", "-S", PACK / "src", "-B", folder, f"-DCMAKE_PREFIX_PATH={PACK}", f"-DNETSUM_PYTHON={sys.executable}",
                 "-DNETSUM_GPU_TESTS=ON"],
                ["cmake", "--build", folder, "-j", jobs]]
    if shutil.which("ninja"):
        commands[0] += ["-G", "Ninja"]
    for command in commands:
        subprocess.run(command, check=True, stdout=sys.stderr)


def run_stage(command, seconds, environment, log):
    """How a stage ended, and its output."""
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                               text=True, errors="replace")
    hung = False
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        hung = True
        end_session(process.pid)
        output, _ = process.communicate()
    end_session(process.pid)
    log.write(output)
    log.flush()
    if hung:
        return f"ended after {seconds} s", output
    return "passed" if process.returncode == 0 else f"failed with status {process.returncode}", output


def end_session(leader):
    """Ranks have sessions of their own, below this one: all that descends from the leader's environment mark is ended."""
    mark = f"NETSUM_STAGE_LEADER={leader}".encode()
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--stage", action="append", choices=[name for name, *_ in STAGES], help="only this one; may be repeated")
    parser.add_argument("--results", type=pathlib.Path, default="gpu-results", help="folder of results.json and log.txt")
    parser.add_argument("--built", type=pathlib.Path, help="a folder built before for the same torch, or where to build")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU: each stage as far as it goes, with the host's tensors")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    results = {"stages": {}}

    def save():
        (options.results / "results.json").write_text(json.dumps(results, indent=1))

    with tempfile.TemporaryDirectory(prefix="netsum-gpu-") as temporary, open(options.results / "log.txt", "a", encoding="utf-8") as log:
        built = (options.built or pathlib.Path(temporary) / "build").resolve()
        began = time.monotonic()
        try:
            if not list((built / "python").rglob("_C.*.so")):
                build(built)
            results["build"] = "passed"
        except (OSError, subprocess.CalledProcessError) as error:  # some stages do not need it
            results["build"] = f"failed: {error}"
        results["build_seconds"] = round(time.monotonic() - began, 1)
        print(f"build: {results['build']}, {results['build_seconds']} s", flush=True)
        for name, seconds, command in STAGES:
            if options.stage and name not in options.stage:
                continue
            result_file = pathlib.Path(temporary) / f"{name}.json"
            environment = {k: v for k, v in os.environ.items() if not k.startswith("NETSUM_")} | {
                "PYTHONPATH": f"{built / 'python'}:{built / 'test_python'}:{E2E}:{GPU}", "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUNBUFFERED": "1", "NETSUM_BINARY": str(PACK / "bin/netsum"), "NETSUM_TEST_DEVICE": "cpu" if options.rehearse else "cuda",
                "NETSUM_LIBRARIES": str(PACK / "lib"), "NETSUM_STAGE_RESULT": str(result_file)}
            log.write(f"\n===== {name}\n")
            began = time.monotonic()
            # The leader's own mark must be in its environment: a shell knows its number before it becomes the stage.
            leader = ["/bin/sh", "-c", 'export NETSUM_STAGE_LEADER=$$; exec "$@"', "stage", sys.executable, *map(str, command)]
            ended, output = run_stage(leader, seconds, environment, log)
            stage = {"ended": ended, "seconds": round(time.monotonic() - began, 1)}
            if result_file.exists():
                stage["result"] = json.loads(result_file.read_text())
            if ended != "passed":
                stage["tail"] = output[-TAIL:]
            results["stages"][name] = stage
            print(f"{name}: {ended}, {stage['seconds']} s", flush=True)
            save()
    save()
    sys.exit(results["build"] != "passed" or any(stage["ended"] != "passed" for stage in results["stages"].values()))


if __name__ == "__main__":
    main()
