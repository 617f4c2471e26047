# shellcheck shell=bash
# Settings of one site: edit them here. Source this file before sbatch, which reads the SBATCH_* variables; the job
# scripts source it again. Settings of one user go into ~/.config/nanorun/site.sh, which this file reads.
# What is left out here, ask_slurm.sh asks Slurm for, but for the account.

# Whom the jobs are charged to.
# export SBATCH_ACCOUNT=project
# Where they run.
# export SBATCH_PARTITION=gpu
# GPUs of a node for a program that computes on them; --ntasks-per-node gives as many ranks.
# export SBATCH_GPUS_PER_NODE=8

# What nanorun was built with: modules, or a Spack environment.
# module load gcc openmpi hdf5-parallel
# spack env activate nanorun

# How srun starts the ranks of this MPI; `srun --mpi=list` names what Slurm offers. A job step that submits a job has the
# variable of its own.
unset SLURM_MPI_TYPE
# export SLURM_MPI_TYPE=pmix

# Where srun places the ranks: options of sbatch do not say so (docs/slurm.md).
# export SLURM_CPU_BIND=cores SLURM_DISTRIBUTION=block:cyclic

# How often in a row a job that failed goes back to the queue, without a new checkpoint in between.
requeue_at_most=${requeue_at_most:-3}

# Where the job scripts lie: Slurm runs a copy of them, which finds this file by the variable.
NANORUN_JOBSCRIPTS=$(CDPATH='' cd -P -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)
export NANORUN_JOBSCRIPTS

# The build that jobs run, or the prefix of an installed nanorun. In a repository it is build/cpu; for GPUs build/h100.
# export NANORUN_BUILD=${NANORUN_JOBSCRIPTS%/*}/build/h100

# What differs for one user. The variable NANORUN_SITE names another file.
user_site=${NANORUN_SITE:-${XDG_CONFIG_HOME:-${HOME-}/.config}/nanorun/site.sh}
if [[ -r $user_site ]]; then
  # shellcheck source=/dev/null
  source "$user_site"
elif [[ -n ${NANORUN_SITE-} ]]; then
  printf 'site.sh: NANORUN_SITE names %q, which cannot be read\n' "$user_site" >&2
  return 2
fi
unset user_site

if [[ -f $NANORUN_JOBSCRIPTS/../CMakeLists.txt ]]; then
  build=${NANORUN_BUILD:-${NANORUN_JOBSCRIPTS%/*}/build/cpu}
else
  build=${NANORUN_BUILD:-${NANORUN_JOBSCRIPTS%/*/*/*}} # PREFIX/share/nanorun/jobscripts
fi
export build nanorun=$build/bin/nanorun

# shellcheck source=jobscripts/ask_slurm.sh
source "$NANORUN_JOBSCRIPTS/ask_slurm.sh"
ask_slurm "$nanorun"
