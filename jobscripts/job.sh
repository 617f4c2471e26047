# shellcheck shell=bash
# What the job scripts share; they source this file, which sources site.sh. Within a job it asks Slurm about the job and
# makes an environment in which srun takes nothing from another job.
# Defines: job_name, restarts, asked_processors, rank_processors, requeue_at_most, is_number, still_runs, may_requeue,
# requeue_job, and what site.sh does.

# Fields of this job's record, by name; none where Slurm does not answer.
declare -A job=()

is_number() { [[ $1 =~ ^(0|[1-9][0-9]{0,8})$ ]]; }

is_count() { [[ $1 =~ ^[1-9][0-9]{0,8}$ ]]; }

# Asks Slurm about this job. The last task of an array has the number of the array, for which Slurm shows all tasks.
read_job() {
  local line field fields mine=false
  local known='^ *(JobId|JobState|Requeue|NumNodes|Socks/Node|OverSubscribe)='
  job=()
  while IFS= read -r line; do
    if [[ $line == JobId=* ]]; then
      mine=false
      [[ "$line " != "JobId=$SLURM_JOB_ID "* ]] || mine=true
      line=${line%% JobName=*} # a name may hold anything
    fi
    [[ $mine == true && $line =~ $known ]] || continue
    read -ra fields <<<"$line"
    for field in "${fields[@]}"; do job[${field%%=*}]=${field#*=}; done
  done < <(scontrol show job "$SLURM_JOB_ID" 2>/dev/null)
  [[ -n ${job[JobId]-} ]]
}

# How Slurm's commands name this job: of an array, this task alone. The variables of an outer array stay in the
# environment of a plain job, so that they count only where Slurm does not answer and they cannot be of another job.
name_job() {
  job_name=$SLURM_JOB_ID
  if [[ -z ${job[JobId]-} ]]; then
    if [[ ${SLURM_ARRAY_JOB_ID-} == "$SLURM_JOB_ID" ]] && is_number "${SLURM_ARRAY_TASK_ID-}"; then
      job_name=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    fi
  elif is_number "${job[ArrayJobId]-}" && is_number "${job[ArrayTaskId]-}"; then
    export SLURM_ARRAY_JOB_ID=${job[ArrayJobId]} SLURM_ARRAY_TASK_ID=${job[ArrayTaskId]}
    job_name=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  else
    unset SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID
  fi
}

# How often the job has been requeued. Slurm sets the variable only once it has been.
count_restarts() {
  restarts=${job[Restarts]-${SLURM_RESTART_COUNT-}}
  is_number "$restarts" || restarts=0
  export SLURM_RESTART_COUNT=$restarts
}

# What srun takes for options of its own: Slurm sets some of it in a job or step, from which the job may have been
# submitted, and leaves it in the environment of a job that has not asked for it.
srun_options=(
  "${!SRUN_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" "${!SLURM_MEM_PER_@}" "${!SLURM_GPU@}"
  "${!SLURM_NTASKS_PER_@}" "${!SLURM_STEP@}" "${!SLURM_TRES_@}" "${!SLURM_PTY_@}" "${!SLURM_SRUN_@}" "${!SLURM_DIST@}"
  SLURM_ARBITRARY_NODELIST SLURM_CONSTRAINT SLURM_CORE_SPEC SLURM_CPUS_PER_GPU SLURM_CPUS_PER_TASK SLURM_CPU_FREQ_REQ
  SLURM_DEPENDENCY SLURM_EPILOG SLURM_EXACT SLURM_EXCLUSIVE SLURM_EXIT_ERROR SLURM_EXIT_IMMEDIATE SLURM_EXPORT_ENV
  SLURM_GRES SLURM_GRES_FLAGS SLURM_HET_SIZE SLURM_HINT SLURM_HOSTFILE SLURM_IMMEDIATE SLURM_KILL_BAD_EXIT
  SLURM_LAUNCH_NODE_IPADDR SLURM_NCORES_PER_SOCKET SLURM_NETWORK SLURM_NO_KILL SLURM_NSOCKETS_PER_NODE SLURM_OPEN_MODE
  SLURM_OVERCOMMIT SLURM_OVERLAP SLURM_PROLOG SLURM_RELATIVE SLURM_REMOTE_CWD SLURM_REQ_SWITCH SLURM_RESV_PORTS
  SLURM_SIGNAL SLURM_SPREAD_JOB SLURM_STDERRMODE SLURM_STDINMODE SLURM_STDOUTMODE SLURM_TASK_EPILOG SLURM_TASK_PROLOG
  SLURM_TEST_EXEC SLURM_THREADS SLURM_THREADS_PER_CORE SLURM_THREAD_SPEC SLURM_TIMELIMIT SLURM_USE_MIN_NODES
  SLURM_WAIT4SWITCH SLURM_WHOLE SLURM_WORKING_DIR
)

# expand LIST: a number for each node, a line each, of a list such as 4(x2),3.
expand() {
  local part parts count
  IFS=, read -ra parts <<<"$1"
  for part in "${parts[@]}"; do
    [[ $part =~ ^([1-9][0-9]{0,5})(\(x([1-9][0-9]{0,5})\))?$ ]] || return 1
    for ((count = ${BASH_REMATCH[3]:-1}; count > 0; --count)); do echo "${BASH_REMATCH[1]}"; done
  done
}

# share_processors THREADS USED: processors of a rank on the node that has the fewest for each: whole cores of so many
# threads, of which the ranks use so many. 0 where Slurm does not say.
share_processors() {
  local processors ranks i cores share least=
  mapfile -t processors < <(expand "${SLURM_JOB_CPUS_PER_NODE-}")
  mapfile -t ranks < <(expand "${SLURM_TASKS_PER_NODE-}")
  if [[ ${#processors[@]} -eq ${#ranks[@]} ]]; then
    for i in "${!processors[@]}"; do
      cores=$((processors[i] / $1 / ranks[i]))
      share=$((cores * $2))
      [[ -n $least && $share -ge $least ]] || least=$share
    done
  fi
  echo "${least:-0}"
}

# Threads of a core of this node.
threads_per_core() {
  local node=
  [[ -z ${SLURMD_NODENAME-} ]] || node=$(scontrol show node "$SLURMD_NODENAME" 2>/dev/null) || true
  if [[ $node =~ ThreadsPerCore=([1-9][0-9]?)([^0-9]|$) ]]; then echo "${BASH_REMATCH[1]}"; else echo 1; fi
}

# Ranks, for srun, as this job asked for them. Without options on memory and GPUs the ranks have all that the job has.
set_ranks() {
  local per_node=${SLURM_NTASKS_PER_NODE-} per_socket='' tasks=${job[NumTasks]-}
  if [[ -n ${job[JobId]-} ]]; then
    IFS=: read -r per_node _ per_socket _ <<<"${job[NtasksPerN:B:S:C]-}"
  fi
  unset "${srun_options[@]}"
  if is_count "$per_node"; then
    export SLURM_NTASKS_PER_NODE=$per_node
  elif is_count "$tasks"; then
    export SLURM_NTASKS=$tasks SLURM_NPROCS=$tasks
  fi
  if is_count "$per_socket"; then export SLURM_NTASKS_PER_SOCKET=$per_socket; fi
  # Only a job that asked for it has fewer processors than ranks.
  if is_count "$tasks" && [[ ${job[NumCPUs]-} =~ ^[0-9]+$ && ${job[NumCPUs]} -lt $tasks ]]; then
    export SLURM_OVERCOMMIT=1
  fi
  [[ ${job[Network]-(null)} == "(null)" ]] || export SLURM_NETWORK=${job[Network]}
}

# Processors of a rank, for srun: asked_processors, which the job asked for, and rank_processors, its share where that
# is more.
set_processors() {
  local used='' threads share
  IFS=: read -r _ _ _ used <<<"${job[ReqB:S:C:T]-}"
  if is_count "$used"; then export SLURM_THREADS_PER_CORE=$used; fi
  is_count "$asked_processors" || asked_processors=1
  threads=$(threads_per_core)
  is_count "$used" && [[ $used -lt $threads ]] || used=$threads
  share=$(share_processors "$threads" "$used")
  rank_processors=$((share > asked_processors ? share : asked_processors))
  # srun reads the first from 22.05 on, and the second before.
  export SRUN_CPUS_PER_TASK=$rank_processors SLURM_CPUS_PER_TASK=$rank_processors
}

# Whether this job still runs. Else it has been cancelled meanwhile, or Slurm itself has requeued it, and may have
# started it again on other nodes. Where Slurm does not answer, "incomplete" below leaves all but the last of these
# alone.
still_runs() {
  read_job || return 0
  [[ ${job[Restarts]-$restarts} == "$restarts" && ${job[JobState]-} =~ ^(RUNNING|SUSPENDED)$ ]]
}

# may_requeue WHY: whether this job's record, as still_runs has read it, lets it be requeued; else says so, and why the
# job would have been.
may_requeue() {
  [[ ${job[Requeue]-1} == 0 ]] || return 0
  echo "job $job_name may not be requeued (Requeue=0 in its record, as after sbatch --no-requeue): $1" >&2
  return 1
}

# requeue_job WHY: puts this job back into the queue, of an array this task alone, and says so.
requeue_job() {
  echo "job $job_name $1"
  scontrol requeue incomplete "$job_name" || echo "job $job_name could not be queued again" >&2
}

if [[ -n ${SLURM_JOB_ID-} ]]; then
  # shellcheck disable=SC2034 # site.sh uses it
  in_job=true
  read_job || true
  name_job
  count_restarts
  asked_processors=${job[CPUs/Task]-${SLURM_CPUS_PER_TASK-}}
  set_ranks
  set_processors
  export SLURM_EXPORT_ENV=ALL # after sbatch --export=NONE, too
fi
# shellcheck source=jobscripts/site.sh
source "$(dirname "${BASH_SOURCE[0]}")/site.sh"

requeue_at_most=${requeue_at_most-3}
if ! is_number "$requeue_at_most"; then
  printf 'site.sh: requeue_at_most must be a whole number, not %q\n' "$requeue_at_most" >&2
  exit 2
fi
