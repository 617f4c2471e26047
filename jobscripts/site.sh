# shellcheck shell=bash
# Settings of one site: edit them here. Source this file before sbatch, which reads the SBATCH_* variables; the job
# scripts source it again.

# Whom the jobs are charged to, and where they run.
# export SBATCH_ACCOUNT=project SBATCH_PARTITION=gpu
# GPUs of a node; --ntasks-per-node gives as many ranks.
# export SBATCH_GPUS_PER_NODE=8

# What nanorun was built with: modules, or a Spack environment.
# module load gcc openmpi hdf5-parallel
# spack env activate nanorun

# How srun starts the ranks of this MPI; `srun --mpi=list` names what Slurm offers.
export SLURM_MPI_TYPE=${SLURM_MPI_TYPE:-pmix}

# The build that jobs run; for GPUs build/h100.
# export NANORUN_BUILD=$PWD/build/h100
export build=${NANORUN_BUILD:-$PWD/build/cpu}
export nanorun=$build/bin/nanorun
