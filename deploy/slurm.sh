#!/usr/bin/env bash
# A Ray cluster inside a Slurm allocation, and one run on it. From the root of the repository, which all nodes see:
#   sbatch deploy/slurm.sh --config configs/gsm8k_qwen2.5_1.5b.yaml --run.root /data/runs
#SBATCH --job-name=retrospect
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:TERM@120
# Slurm sends SIGTERM 120 s before the time limit: the run then saves a checkpoint and ends; `--resume RUN` continues it.
set -euo pipefail
: "${SLURM_JOB_ID:?start this script with sbatch}"

source .venv/bin/activate
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1 PYTHONPATH=$PWD
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))') # of this job alone; srun passes it on
export RAY_AUTH_TOKEN

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 20000)) # two jobs on one node do not meet
export RAY_ADDRESS=${nodes[0]}:$port

srun --nodes=1 --ntasks=1 --overlap -w "${nodes[0]}" \
    ray start --head --port="$port" --dashboard-host=127.0.0.1 --disable-usage-stats --block &
for node in "${nodes[@]:1}"; do
    # A worker that starts before the head tries again.
    srun --nodes=1 --ntasks=1 --overlap -w "$node" \
        bash -c 'until ray start --address="$RAY_ADDRESS" --disable-usage-stats --block; do sleep 5; done' &
done

# The driver runs on the first node, where this script runs; it waits for the resources that it needs.
python launch.py train --cluster.wait 600 "$@" &
driver=$!
trap 'kill -TERM "$driver"' TERM
status=0
wait "$driver" || status=$?
while kill -0 "$driver" 2>/dev/null; do status=0; wait "$driver" || status=$?; done # a signal ends the first wait
kill $(jobs -p) 2>/dev/null || true
exit "$status"
