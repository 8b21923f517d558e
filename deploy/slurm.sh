#!/usr/bin/env bash
# A Ray cluster inside a Slurm allocation, and one run on it. From the root of the repository, which all nodes see:
#   sbatch deploy/slurm.sh --config configs/gsm8k_qwen2.5_1.5b.yaml --run.root /data/runs
# The same as a run that may be stopped and started again any number of times (RUN on storage that all nodes see):
#   RUN=/data/runs/NAME sbatch --requeue deploy/slurm.sh --config configs/gsm8k_qwen2.5_1.5b.yaml
#SBATCH --job-name=retrospect
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:TERM@600
# Slurm sends SIGTERM 600 s before the time limit. The run finishes an update that has begun, saves a checkpoint (7B: 200 GB)
# and ends with status 0; raise the 600 if an update and a checkpoint take longer. `--resume RUN` continues it.
# What the recipes need; put one line in the place of --nodes above (not run yet):
##SBATCH --nodes=1 --gpus-per-node=1 --cpus-per-task=16    gsm8k_qwen2.5_0.5b_24gb, gsm8k_qwen2.5_1.5b_lora_24gb, ..._80gb
##SBATCH --nodes=1 --gpus-per-node=8 --cpus-per-task=80    gsm8k_qwen2.5_1.5b, math_qwen2.5_7b
set -euo pipefail
: "${SLURM_JOB_ID:?start this script with sbatch}"

source .venv/bin/activate
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1 PYTHONPATH=$PWD
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))') # of this job alone; srun passes it on
export RAY_AUTH_TOKEN

# srun does not take --cpus-per-task over from sbatch by itself.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

if [ -z "${RUN:-}" ]; then
    arguments=("$@")
elif [ -f "$RUN/checkpoints/latest" ]; then
    arguments=(--resume "$RUN")
else
    [ ! -d "$RUN" ] || mv "$RUN" "$RUN.before-$SLURM_JOB_ID-$(date +%s)" # no checkpoint, so nothing can be continued
    arguments=("$@" --run.root "$(dirname "$RUN")" --run.name "$(basename "$RUN")")
fi

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
python launch.py train --cluster.wait 600 "${arguments[@]}" &
driver=$!
trap 'kill -TERM "$driver"' TERM
status=0
wait "$driver" || status=$?
while kill -0 "$driver" 2>/dev/null; do status=0; wait "$driver" || status=$?; done # a signal ends the first wait
kill $(jobs -p) 2>/dev/null || true
# Status 0 also of an interrupted run; only a finished one has written its policy.
if [ -n "${RUN:-}" ] && [ "$status" = 0 ] && [ ! -d "$RUN/policy" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
