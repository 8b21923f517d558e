#!/usr/bin/env bash
# Regenerates cpu.txt, gpu.txt, dev.txt, reasoning.txt, games.txt, verifiers.txt and docs.txt from pyproject.toml. Needs `uv` (make setup installs it; or pip
# install uv).
# Where uv finds the CPU build of torch goes into CPU_OPTIONS, e.g. CPU_OPTIONS='--find-links /path/to/wheels'.
set -euo pipefail
cd "$(dirname "$0")"
PATH=$PATH:$PWD/../.venv/bin
command -v uv >/dev/null || { echo "lock: uv is missing; run: pip install uv" >&2; exit 1; }
compile() { # compile IN OUT [OPTIONS]
    local source=$1 target=$2; shift 2
    uv pip compile "$source" -o "$target" --quiet --no-header --no-annotate --python-version 3.11 \
        --no-emit-index-url --no-emit-find-links "$@"
}
extra() { # extra NAME: the packages of an extra alone
    python3 -c 'import sys, tomllib; print(*tomllib.load(open("../pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")' "$1"
}
CPU_OPTIONS=${CPU_OPTIONS:---torch-backend cpu}
# shellcheck disable=SC2086
compile ../pyproject.toml cpu.txt --extra cpu --extra trl --excludes excludes.txt -c constraints.txt $CPU_OPTIONS
compile ../pyproject.toml gpu.txt --extra gpu --extra trl --python-platform x86_64-manylinux_2_28
for extra in dev reasoning games verifiers; do
    # shellcheck disable=SC2086
    extra $extra | compile - $extra.txt -c cpu.txt $CPU_OPTIONS
done
extra docs | compile - docs.txt
