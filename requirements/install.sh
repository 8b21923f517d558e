#!/usr/bin/env bash
# Creates the virtual environment and installs the pinned locks. Called by `make setup`.
#   install.sh PYTHON VENV [TORCH_INDEX]      no PYTHON (''): the first of 3.11, 3.12 and 3.13 that is found, or else that apt has
# The locks are complete, so everything is installed with --no-deps: vLLM's own requirements name torchvision,
# torchaudio and torchcodec, whose PyPI wheels are CUDA builds that break transformers beside a CPU torch.
set -euo pipefail
python=$1; venv=$2; torch_index=${3:-}
here=$(cd "$(dirname "$0")" && pwd)

fail() { echo "setup: $1" >&2; exit 1; }

fits() { command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

# System packages: Python and its venv module, vLLM's libnuma, the sandbox of model-written programs.
missing=()
if [ -n "$python" ]; then
    fits "$python" || fail "$python is not Python 3.11, 3.12 or 3.13; name one: make setup PYTHON=/path/to/python3"
else
    for python in python3.11 python3.12 python3.13 python3 ""; do ! fits "$python" || break; done
fi
if [ -n "$python" ] && ! "$python" -c 'import ensurepip' 2>/dev/null; then
    missing+=("$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
fi
[[ $(PATH=$PATH:/usr/sbin:/sbin ldconfig -p) == *libnuma.so.1* ]] || missing+=(libnuma1)
command -v bwrap >/dev/null || missing+=(bubblewrap)
if [ -z "$python" ] || [ ${#missing[@]} -gt 0 ]; then
    as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    if command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null; then
        "${as_root[@]}" apt-get update -qq || fail "apt-get update failed; see its output above"
        if [ -z "$python" ]; then
            for python in python3.11 python3.12 python3.13; do ! apt-cache show "$python-venv" >/dev/null 2>&1 || break; done
            missing+=("$python" "$python-venv")
        fi
        echo "setup: installing the system packages ${missing[*]}"
        "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null \
            || fail "apt-get could not install ${missing[*]}; install them another way. A Python by uv: pipx install uv, uv python install 3.13, then make setup PYTHON=\$(uv python find 3.13)"
    else
        [ -n "$python" ] || missing+=("python3 (3.11, 3.12 or 3.13)" python3-venv)
        echo "setup: please install the system packages ${missing[*]} (Debian, Ubuntu: by apt-get install)" >&2
        [ "${missing[*]}" = bubblewrap ] || fail "only bubblewrap is optional"
        echo "setup: without bubblewrap the tasks that run programs refuse to start, and their tests are skipped" >&2
    fi
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "could not create $venv"
pip=("$venv/bin/python" -m pip install --no-deps --progress-bar off --quiet --disable-pip-version-check)

torch=$(grep '^torch==' "$here/cpu.txt")
if ! "$venv/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('torch') != '${torch#torch==}')" 2>/dev/null; then
    echo "setup: installing $torch"
    if [ -n "$torch_index" ]; then
        "${pip[@]}" --index-url "$torch_index" "$torch" || fail "there is no $torch at TORCH_INDEX=$torch_index"
    elif ! "${pip[@]}" "$torch" 2>/dev/null; then
        echo "setup: pip does not find the CPU build of torch; getting it with uv, which knows the place"
        "${pip[@]}" "$(grep '^uv==' "$here/dev.txt")" \
            && "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --torch-backend cpu "$torch" \
            || fail "uv could not get $torch either; check the network, or name the CPU index that PyTorch's install page gives: make setup TORCH_INDEX=URL"
    fi
fi
echo "setup: installing the pinned packages (about 4 GB, a few minutes)"
# One process per core, because pip unpacks and compiles on one. From Z to A, so that the large ones (vllm, triton) do not come last.
grep -h == "$here"/{cpu,dev,sinks}.txt | sort -ru | xargs -n 25 -P "$(nproc)" "${pip[@]}" \
    || fail "a package did not install; check the disk space (4 GB) and the network, then run the same command again"
echo "setup: done"
