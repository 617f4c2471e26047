# shellcheck shell=bash
# What Slurm can say about a site; site.sh sources this file, in zsh too.
# Defines: ask_slurm.

# ask_slurm PROGRAM: sets what the settings leave open. In jobs and outside: SLURM_MPI_TYPE, how srun starts the MPI of
# the program. Outside jobs: SBATCH_PARTITION, if Slurm's default does not fit, SBATCH_GPUS_PER_NODE, if the program
# computes on GPUs, as `PROGRAM info` says, and a line that says what holds. Where PROGRAM fails, what it said is shown.
# Without Slurm nothing happens. A Slurm that does not answer costs at most 20 seconds, a program as many.
ask_slurm() {
  command -v sinfo >/dev/null && command -v srun >/dev/null || return 0
  local nanorun=$1 libraries offered about='' mpi_type=none on_gpus=0 partition='' is_default='' gpus=''
  local answer='' failed=0 with_gpus='' code=0 how='fails here'
  libraries=$(ldd "$nanorun" 2>/dev/null) || libraries='' # a container's program is a script
  if [[ -z ${SLURM_MPI_TYPE-} ]]; then
    offered=$(timeout 10 srun --mpi=list 2>&1) || offered=''
    case $libraries in # of other MPIs Slurm's MpiDefault is right
      *libpmix.* | *libopen-pal.* | '') mpi_type=pmix ;;
      *libmpich.* | *libmpi.so.12*) mpi_type=pmi2 ;; # MPICH, Intel MPI, MVAPICH
    esac
    # Some Open MPI 4 has PMI2 too.
    if [[ $mpi_type == pmix && $offered != *pmix* ]] && ompi_info 2>/dev/null | grep -q 'pmix: s2'; then
      mpi_type=pmi2
    fi
    if [[ $mpi_type != none && $offered == *$mpi_type* ]]; then export SLURM_MPI_TYPE=$mpi_type; fi
  fi
  [[ -z ${in_job-} ]] || return 0

  # What an earlier call chose is no setting.
  [[ ${SBATCH_PARTITION-} != "${chosen_partition-}" ]] || unset SBATCH_PARTITION
  [[ ${SBATCH_GPUS_PER_NODE-} != "${chosen_gpus-}" ]] || unset SBATCH_GPUS_PER_NODE
  if [[ ! -x $nanorun ]]; then
    echo "site.sh: $nanorun: no such program; build it, or set NANORUN_BUILD" >&2
  else
    about=$(timeout 20 "$nanorun" info </dev/null 2>&1) || code=$?
    if [[ $code != 0 ]]; then
      [[ -z $about ]] || printf '%s\n' "$about" >&2
      [[ $code != 124 ]] || how='does not end within 20 seconds'
      echo "site.sh: $nanorun info $how, exit code $code, so jobs ask for no GPUs; SBATCH_GPUS_PER_NODE can" >&2
    elif [[ $'\n'$about == *$'\n''cuda '* ]]; then
      on_gpus=1
    fi
  fi
  answer=$(timeout 10 sinfo --noheader ${SBATCH_PARTITION:+"--partition=$SBATCH_PARTITION"} --format='%a|%P|%G' 2>&1) ||
    failed=$?
  # Of the partitions that this user may use one with H100 or H200, else the default, else the first that fits.
  read -r partition is_default gpus < <(
    printf '%s\n' "$answer" |
      awk -F '|' -v on_gpus=$on_gpus '
        $1 == "up" && (!on_gpus || match($3, /gpu:([^:,(]*:)?[0-9]+/)) {
          gpus = on_gpus ? substr($3, RSTART + 4, RLENGTH - 4) : ""
          score = 1 + sub(/\*$/, "", $2) + 2 * (gpus ~ /[hH][12]00/)
          if (score > best) { best = score; found = $2 " " (score % 2 ? 0 : 1) " " gpus }
        }
        END { print found }'
  ) || true
  if [[ $failed == 124 ]]; then
    echo "site.sh: Slurm does not answer: sinfo said nothing for 10 seconds; source this file again when it does, or" \
      "set SBATCH_PARTITION and SBATCH_GPUS_PER_NODE" >&2
  elif [[ $failed != 0 ]]; then
    answer=${answer##*$'\n'}
    echo "site.sh: Slurm does not answer: ${answer:-sinfo ends with exit code $failed}; run sinfo on a login node of" \
      "the cluster, or set SBATCH_PARTITION and SBATCH_GPUS_PER_NODE" >&2
  elif [[ -z $partition ]]; then
    [[ $on_gpus == 0 ]] || with_gpus=' with GPUs'
    echo "site.sh: sinfo shows no partition${SBATCH_PARTITION:+ $SBATCH_PARTITION}$with_gpus that is up; set" \
      "SBATCH_PARTITION and SBATCH_GPUS_PER_NODE if there is one" >&2
  fi
  chosen_partition='' chosen_gpus=''
  if [[ -z ${SBATCH_PARTITION-} && $is_default == 0 ]]; then
    export SBATCH_PARTITION=$partition && chosen_partition=$partition
  fi
  if [[ -n $gpus && -z ${SBATCH_GPUS-}${SBATCH_GPUS_PER_NODE-}${SBATCH_GPUS_PER_TASK-}${SBATCH_GRES-} ]]; then
    export SBATCH_GPUS_PER_NODE=$gpus && chosen_gpus=$gpus
  fi
  echo "site.sh: jobs run $nanorun, partition ${SBATCH_PARTITION:-${partition:-that sbatch chooses}}," \
    "GPUs of a node: ${SBATCH_GPUS_PER_NODE:-none}, srun --mpi=${SLURM_MPI_TYPE:-MpiDefault}" >&2
}
