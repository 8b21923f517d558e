#!/usr/bin/env bash
# Creates the virtual environment and installs the pinned locks. Called by `make setup`.
#   install.sh PYTHON VENV [TORCH_INDEX]
# The locks are complete, so everything is installed with --no-deps: vLLM's own requirements name torchvision,
# torchaudio and torchcodec, whose PyPI wheels are CUDA builds that break transformers beside a CPU torch.
set -euo pipefail
python=$1; venv=$2; torch_index=${3:-}
here=$(cd "$(dirname "$0")" && pwd)

fail() { echo "setup: $1" >&2; exit 1; }

# System packages: Python and its venv module, vLLM's libnuma, the sandbox of model-written programs.
missing=()
if ! command -v "$python" >/dev/null; then
    [ "$python" = python3.11 ] || fail "$python not found; name a Python 3.11: make setup PYTHON=/path/to/python3.11"
    missing+=(python3.11 python3.11-venv)
elif ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    fail "$python is not Python 3.11; name one: make setup PYTHON=/path/to/python3.11"
elif ! "$python" -c 'import ensurepip' 2>/dev/null; then
    missing+=(python3.11-venv)
fi
[[ $(PATH=$PATH:/usr/sbin:/sbin ldconfig -p) == *libnuma.so.1* ]] || missing+=(libnuma1)
command -v bwrap >/dev/null || missing+=(bubblewrap)
if [ ${#missing[@]} -gt 0 ]; then
    as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    if command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null; then
        echo "setup: installing the system packages ${missing[*]}"
        "${as_root[@]}" apt-get update -qq && "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null \
            || fail "apt-get could not install ${missing[*]}; install them another way. Debian 13 and Ubuntu 24.04 have no Python 3.11: install uv (apt-get install pipx; pipx install uv), uv python install 3.11, then make setup PYTHON=\$(uv python find 3.11)"
    else
        echo "setup: please install the system packages ${missing[*]} (Debian, Ubuntu: apt-get install ${missing[*]})" >&2
        [ "${missing[*]}" = bubblewrap ] || fail "only bubblewrap is optional"
        echo "setup: without bubblewrap the tasks that run programs refuse to start, and their tests are skipped" >&2
    fi
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "could not create $venv"
pip=("$venv/bin/python" -m pip install --no-deps --progress-bar off --quiet --disable-pip-version-check)

torch=$(grep '^torch==' "$here/cpu.txt")
if ! "$venv/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch') != '${torch#torch==}')" 2>/dev/null; then
    echo "setup: installing $torch"
    if [ -n "$torch_index" ]; then "${pip[@]}" --index-url "$torch_index" "$torch"; else "${pip[@]}" "$torch"; fi \
        || fail "pip does not find $torch (the CPU build). Name the CPU index that PyTorch's install page gives: make setup TORCH_INDEX=URL"
fi
echo "setup: installing the pinned packages (about 4 GB, a few minutes)"
# One process per core, because pip unpacks and compiles on one. From Z to A, so that the large ones (vllm, triton) do not come last.
grep -h == "$here"/{cpu,dev,sinks}.txt | sort -ru | xargs -n 25 -P "$(nproc)" "${pip[@]}" \
    || fail "a package did not install; check the disk space (4 GB) and the network, then run the same command again"
echo "setup: done"
