#!/usr/bin/env bash
# Makes the wheel of a build, installs it into an environment of its own, and uses it there, where nothing names the build:
# wheel.sh PYTHON BUILD_DIR SOURCE_DIR
set -euo pipefail
python=$1 build=$2 source=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1

fail() {
  echo "wheel: $*" >&2
  exit 1
}

NETSUM_BUILD=$build "$python" -m pip wheel --no-build-isolation --no-deps --wheel-dir . "$source" >log 2>&1 || fail "$(tail -n 40 log)"
wheel=$(echo netsum-*.whl)
du -h "$wheel"
"$python" -m venv --system-site-packages --without-pip venv # pip is the system's: ensurepip would take seconds
clean() {
  "${run:-command}" env -i HOME="$work" LANG=C.UTF-8 PATH="$work/venv/bin:/usr/bin:/bin" PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 "$@"
}
clean python -m pip install --quiet --no-deps "$wheel"
clean python -m pip check >log || true # other packages may lack something
! grep '^netsum ' log || fail "the wheel asks for another torch than the one that it was made for"

# What is in it.
package=$(clean python -c 'import netsum; print(*netsum.__path__)')
[ "${package#"$work/venv/"}" != "$package" ] || fail "netsum is imported from $package"
! grep -rlF -e "$source" -e "$build" "$package" "$package"-*.dist-info || fail "these files name the folder that they were built in"
for each in "$package"/bin/netsum "$package"/lib/*.so* "$package"/torch/*.so; do
  clean ldd "$each" >log
  ! grep 'not found' log || fail "$each lacks these libraries"
  ! grep -e '-netsum\.so' log | grep -vF "=> $package/" || fail "$each finds these elsewhere"
  readelf -d "$each" | grep -q '(RPATH).*\[\$ORIGIN/[^:]*\]' || fail "$each looks for libraries elsewhere: $(readelf -d "$each" | grep PATH)"
done
clean ldd "$package/bin/netsum" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | grep -vF "$package/" >log
while read -r library; do
  case $(dpkg-query -S "*/${library##*/}" | cut -d: -f1) in
    *libc6* | *libgcc-s1* | *libstdc++6*) ;;
    *) fail "$library is not in the wheel" ;;
  esac
done <log
ls "$package/licenses"
clean python - "$(clean netsum --version)" <<'END'
import importlib.metadata
import sys

found = importlib.metadata.distribution("netsum")
version, torch = found.version.split("+torch")
assert sys.argv[1].split()[1] == version, (sys.argv[1], found.version)
assert importlib.metadata.version("torch").startswith(torch + "."), torch
assert "# netsum" in found.read_text("METADATA") and any(path.name == "LICENSE" for path in found.files)
END

# A switch, and two ranks without an import of netsum: torches that know the entry point find the backend by its name, and load it like this.
cat >train.py <<'END'
import importlib.metadata
import sys

import torch
import torch.distributed as dist

assert not any(name.startswith("netsum") for name in sys.modules)
if not hasattr(dist.Backend, "_ensure_backend_registered"):
    (entry,) = importlib.metadata.entry_points(group="torch.distributed.backends", name="netsum")
    entry.load()()
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("netsum", init_method=f"file://{store}", rank=rank, world_size=2)
values = torch.arange(100_000, dtype=torch.float32)
tensor = values * (rank + 1)
dist.all_reduce(tensor)
assert tensor.equal(values * 3), tensor
torch.manual_seed(rank)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(5):
    loss = model(torch.ones(8, 100) * (rank + 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
of_rank_0 = parameters.clone()
dist.broadcast(of_rank_0, 0)
assert parameters.equal(of_rank_0) and losses[0] != losses[-1]
import netsum.torch

counts = netsum.torch.statistics()
assert counts["path"] == "switch" and counts["switch_operations"] > 5, counts
dist.destroy_process_group()
END
trap 'kill $SWITCH_PID; rm -rf "$work"' EXIT
coproc SWITCH { run=exec clean netsum switch --listen 127.0.0.1:0 2>switch.log; } # what is killed is the switch
read -r _ address <&"${SWITCH[0]}" # "listening ADDRESS"
rank() {
  clean NETSUM_SWITCH="$address" NETSUM_MODE=force python train.py "$1" "$work/store" >"rank$1" 2>&1
}
rank 1 &
rank 0 || fail "rank 0: $(tail -n 20 rank0)"
wait $! || fail "rank 1: $(tail -n 20 rank1)"
