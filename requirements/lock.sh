#!/usr/bin/env bash
# Regenerates cpu.txt, gpu.txt and dev.txt from the .in files. Needs `uv` (pip install uv).
# Where uv finds the CPU build of torch goes into CPU_OPTIONS, e.g. CPU_OPTIONS='--find-links /path/to/wheels'.
set -euo pipefail
cd "$(dirname "$0")"
command -v uv >/dev/null || { echo "lock: uv is missing; run: pip install uv" >&2; exit 1; }
compile() { # compile IN OUT [OPTIONS]
    local source=$1 target=$2; shift 2
    uv pip compile "$source" -o "$target" --quiet --no-header --no-annotate --python-version 3.11 \
        --no-emit-index-url --no-emit-find-links "$@"
}
# shellcheck disable=SC2086
compile cpu.in cpu.txt --excludes excludes.txt ${CPU_OPTIONS:-}
compile gpu.in gpu.txt --python-platform x86_64-manylinux_2_28
# shellcheck disable=SC2086
compile dev.in dev.txt -c cpu.txt ${CPU_OPTIONS:-}
