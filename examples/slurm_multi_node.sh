#!/usr/bin/env bash
# Several nodes under Slurm: one torchrun a node, one process a GPU. `sbatch examples/slurm_multi_node.sh RECIPE OUTPUT_DIR`
# 2 minutes before the time limit, or when pre-empted, every process gets SIGTERM: the run writes a checkpoint, leaves
# OUTPUT_DIR/preempted and ends with status 75 (torchrun, like accelerate launch, turns that into 1). The job then queues
# itself again and goes on from there. torchrun gives its workers 30 s to write the checkpoint.
#SBATCH --job-name=supclap
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
recipe=$1
output=$2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun --kill-on-bad-exit=0 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \
    train_supclap.py "$recipe" --output_dir "$output" --bf16 true
status=$?
[ -e "$output/preempted" ] && scontrol requeue "$SLURM_JOB_ID"
exit $status
