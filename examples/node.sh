#!/bin/bash
# Run one stage on this node: node 0 runs it under DVC, every other node runs only its processes of a training.
#
#     examples/node.sh STAGE
#
# NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT describe the nodes (docs/nodes.md). In a Slurm step, the first two have
# defaults. The exit status is that of the stage.
set -euo pipefail
export NNODES=${NNODES:-${SLURM_STEP_NUM_NODES:-1}} NODE_RANK=${NODE_RANK:-${SLURM_PROCID:-0}}
command=(convrec run "$1")
if [ "$NODE_RANK" = 0 ]; then
    command=(python -m tasks.dvc_stage "$1")  # `dvc repro --single-item`, with the exit status of the stage
fi
# A scheduler signals this script. It passes SIGTERM on, once, to a session of its own, in which DVC ignores it and waits
# for the stage, while a training saves a checkpoint.
(
    trap '' TERM
    exec setsid "${command[@]}"
) &
session=$!
trap 'kill -TERM -- "-$session"' TERM
while true; do
    status=0
    wait "$session" || status=$?
    kill -0 "$session" 2>/dev/null || exit "$status"  # otherwise the signal interrupted `wait`
done
