"""What machine this is: processor, memory, kernel, GPU, and the versions of what the other stages use."""

import importlib.metadata
import json
import os
import platform
import subprocess

import torch


def said(*command):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main():
    fields = dict(line.split(":", 1) for line in said("lscpu").splitlines() if ":" in line)
    result = {
        "processor": fields.get("Model name", "").strip(), "cpus": os.cpu_count(), "caches": {k: v.strip() for k, v in fields.items() if "cache" in k},
        "avx512": "avx512f" in fields.get("Flags", ""), "kernel": platform.release(), "libc": platform.libc_ver()[1], "python": platform.python_version(),
        "gpus": said("nvidia-smi", "--query-gpu=name,memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current",
                     "--format=csv,noheader").splitlines(),
        "torch": torch.__version__, "torch_cuda": torch.version.cuda, "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "versions": {p: version(p) for p in ("lightning", "pytorch-lightning", "accelerate", "transformers", "nvidia-nccl-cu13", "numpy")},
        "rmem_max": said("cat", "/proc/sys/net/core/rmem_max"), "memlock": said("sh", "-c", "ulimit -l"), "shm": said("df", "-h", "/dev/shm"),
        "netsum": said(os.environ["NETSUM_BINARY"], "--version"), "ldd": [line for line in said("ldd", os.environ["NETSUM_BINARY"]).splitlines() if "not found" in line],
    }
    if torch.cuda.is_available():
        result["nccl"] = torch.cuda.nccl.version()
        result["capability"] = torch.cuda.get_device_capability()
    print(json.dumps(result, indent=1))
    with open(os.environ["NETSUM_STAGE_RESULT"], "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
