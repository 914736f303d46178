#!/bin/bash
# The whole pipeline as one Slurm job: trainings run on all nodes, the other stages on the first one.
#
#     sbatch examples/slurm/pipeline.sh
#
# Submit it in the project's folder, on a file system that all nodes share. In params.yaml, `launch` and `num_processes`
# (the GPUs of all nodes together) are set in sft and rank_grpo. Before the time limit, or when the job is preempted,
# the training saves a checkpoint and the job is requeued; it resumes there.
#
# With `rollouts: vllm_server`, one more node serves rollouts. Its name is fixed, because params.yaml contains it
# (vllm_server_base_url: http://gpu07:8000):
#
#     VLLM_NODE=gpu07 sbatch --nodes=3 --nodelist=gpu07 examples/slurm/pipeline.sh
#SBATCH --job-name=convrec
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -euo pipefail
# shellcheck source=/dev/null
source .venv/bin/activate

VLLM_NODE=${VLLM_NODE:-}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST" | grep -vxF "$VLLM_NODE")
export MASTER_ADDR=${nodes[0]} MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=540  # seconds that a launcher gives its processes for the checkpoint

stopping=
step=
trap 'stopping=yes; [ -z "$step" ] || kill -TERM "$step"' TERM  # srun passes it on to the step's tasks

run() {  # a step with these options; after a signal: wait for its checkpoint, requeue the job
    if [ -z "$stopping" ]; then
        local status=0
        srun --kill-on-bad-exit=1 --ntasks-per-node=1 "$@" &
        step=$!
        wait "$step" || status=$?
        if [ -z "$stopping" ]; then
            step=
            [ "$status" = 0 ] || exit "$status"
            return
        fi
        wait "$step" || true  # the signal interrupted the first `wait`
    fi
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}

on_first_node() {
    run --nodes=1 --nodelist="${nodes[0]}" "$@"
}

on_all_nodes() {  # not if the stage is up to date: the other nodes would wait for the first one
    local list
    list=$(IFS=,; echo "${nodes[*]}")
    dvc status --quiet "$1" || run --nodes="${#nodes[@]}" --nodelist="$list" examples/node.sh "$1"
}

for stage in data evidence demonstrations base_model; do
    on_first_node examples/node.sh "$stage"
done
on_all_nodes sft
on_first_node examples/node.sh guidance
if [ -n "$VLLM_NODE" ]; then
    srun --nodes=1 --ntasks=1 --nodelist="$VLLM_NODE" \
        convrec vllm-server --training --model models/sft --host 0.0.0.0 --port 8000 --batch-size 256 &
fi
on_all_nodes rank_grpo
for stage in evaluate report; do
    on_first_node examples/node.sh "$stage"
done
on_first_node python -m flows.train  # every stage is up to date: it registers the model and decides on its promotion
