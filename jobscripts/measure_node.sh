#!/usr/bin/env bash
# Measures a node of one to eight GPUs in one call: the time of a step, memory, losses, scaling and the fault tests.
# Each part starts only where the time that it needs, by estimate, is left. The table is printed and lies in
# OUT/table.md, the figures in OUT/node.json, beside the logs and output directories of all runs.
# Without GPUs --gpus says how many ranks to measure, so that a small deck can try it on CPUs.
# shellcheck source=jobscripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

usage='usage: measure_node.sh [--program PATH] [--data DIR] [--out DIR] [--gpus N] [--minutes M] [--only PART,...]
  [--whole] [--deck DECK] [--steps STEPS] [-- section.key=value...]'
all_parts=(windows losses nccl strong weak faults whole)
step_ms=80 # of one sequence of record 21, for the estimates; an H100 takes less
start_s=10 # of a run: from its start to the first step, and its end
mean_window=(window.first=896 window.last=896) # about the mean of the schedule of record 21

program=$root/build/h100/bin/nanorun
data=data
out=outputs/node
gpus=
minutes=9
only=windows,losses,nccl,strong,weak,faults
whole=
deck=$root/inputs/record21.toml
steps=40
overrides=()

require_number() {
  [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] || die 2 "$1 must be a positive whole number, not \"$2\""
}

is_part() {
  local one
  for one in "${all_parts[@]}"; do [[ $one != "$1" ]] || return 0; done
  return 1
}

read_arguments() {
  while [[ $# -gt 0 ]]; do
    case $1 in
      --help) printf '%s\n' "$usage" && exit 0 ;;
      --whole) whole=,whole ;;
      --program | --data | --out | --gpus | --minutes | --only | --deck | --steps)
        [[ $# -gt 1 ]] || die 2 "$1 needs a value"
        printf -v "${1#--}" '%s' "$2"
        shift
        ;;
      --)
        overrides=("${@:2}")
        break
        ;;
      *) die 2 "unknown argument $1; measure_node.sh --help shows the usage" ;;
    esac
    shift
  done
  require_number --minutes "$minutes"
  require_number --steps "$steps"
  IFS=, read -ra parts <<<"${only//$'\n'/ }$whole"
  [[ ${#parts[@]} -gt 0 ]] || parts=("")
  local part
  for part in "${parts[@]}"; do
    is_part "$part" || die 2 "--only: \"$part\" is none of the parts ${all_parts[*]}"
  done
}

find_programs() {
  local name
  for name in mpirun python3 timeout; do
    command -v "$name" >/dev/null || die 2 "$name is not on the PATH"
  done
  [[ -f $program && -x $program ]] || die 2 "$program: no such program; build it, or name it with --program"
  [[ -f $deck ]] || die 2 "$deck: no such deck"
  [[ -d $data ]] || die 2 "$data: no such directory; --data names the one with the token shards or .bin files"
  program=$(realpath -s -- "$program") data=$(realpath -- "$data") deck=$(realpath -- "$deck")
  # The report of the studies needs modules that the table does without.
  python=$(find_python 2>/dev/null && printf %s "$python") || python=python3
}

# Rank counts: 1, 2, 4 and 8, as far as there are GPUs.
count_ranks() {
  [[ -n $gpus ]] || gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ') ||
    die 2 "nvidia-smi sees no GPU; --gpus N measures N ranks without one"
  require_number --gpus "$gpus"
  local n
  for n in 1 2 4 8; do
    [[ $n -gt $gpus ]] || ranks+=("$n")
  done
  most=${ranks[-1]}
}

make_directory() {
  mkdir -p -- "$out/runs" 2>/dev/null || die 2 "$out: the directory cannot be made"
  out=$(realpath -- "$out")
  [[ ! -e $out/runs.tsv ]] || die 2 "$out holds a measurement already; name another directory with --out"
}

# TEXT... as strings of TOML, with commas between them. Bytes that are no text stay, for the program to refuse.
toml_strings() {
  "$python" -c 'import json, os, sys
strings = ", ".join(json.dumps(text, ensure_ascii=False) for text in sys.argv[1:])
sys.stdout.buffer.write(os.fsencode(strings.replace("\x7f", "\\u007f")))' "$@"
}

# The list of the shards *KIND*.h5 for a deck: their directory is no pattern, whatever its name.
shards_of() {
  local directory
  directory=$(printf %s "$data" | sed 's/[][*?\]/\\&/g')
  printf '[%s]' "$(toml_strings "$directory/*$1*.h5")"
}

# exists PATTERN, expanded by the caller: whether it matches a file.
exists() { [[ -e $1 ]]; }

# Token shards *train*.h5 and *val*.h5; where there are none of a kind, they are made from its .bin files.
make_shards() {
  local bin kind
  for kind in train val; do
    exists "$data"/*"$kind"*.h5 && continue
    exists "$data"/*"$kind"*.bin ||
      die 2 "$data holds no token shards *$kind*.h5, nor *$kind*.bin to make them from"
    for bin in "$data"/*"$kind"*.bin; do
      "$program" shard "${bin%.bin}" "$bin" >>"$out/shards.log" 2>&1 || die 3 "$(tail -n 1 "$out/shards.log")"
    done
  done
}

fact() { printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >>"$out/facts.tsv"; }

# Of the shards *KIND*.h5, a little less than they hold: tokens take two bytes each.
tokens_of() { du -cbL "$data"/*"$1"*.h5 | tail -n 1 | awk '{ n = int($1 * 0.4995 - 4096); print (n > 0 ? n : 0) }'; }

write_facts() {
  local devices
  devices=$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c |
    sed 's/^ *\([0-9]*\) /\1 x /; s/,\([^,]*\)$/, driver\1/' | paste -sd ';') || devices=none
  fact date "$(date -u '+%Y-%m-%d %H:%M UTC')"
  fact GPUs "$devices"
  fact measured "${ranks[*]} ranks"
  fact CPU "$(nproc) x $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort -u | paste -sd ';')"
  fact program "$("$program" --version 2>/dev/null || true)"
  fact deck "${deck#"$root/"}${overrides[*]:+ ${overrides[*]}}"
  fact 'training tokens' "about $(tokens_of train); a run that needs more reads them again"
}

left() { echo $((minutes * 60 - SECONDS)); }

# record PART RUN RANKS CODE SECONDS [NOTE]: CODE - is a part that was left out.
record() { printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "$5" "${6-}" >>"$out/runs.tsv"; }

# affordable PART SECONDS [RUN]: whether the time that it needs is left. A run that takes much longer hangs.
affordable() {
  local rest
  limit=$(($2 * 2 + 60))
  rest=$(left)
  say "$1 ${3-}: needs about $2 s, $rest s are left" >&2
  [[ $2 -gt $rest ]] || return 0
  record "$1" "${3-}" "" - 0 "skipped: needs about $2 s, $rest s were left"
  return 1
}

# limited LOG COMMAND...: runs it within its limit and the budget; sets `code`, 124 where it was stopped.
limited() {
  local log=$1 rest
  shift
  code=0
  rest=$(left)
  rest=$((rest < limit ? rest : limit))
  timeout --kill-after=10 "$((rest > 1 ? rest : 1))" "$@" >"$log" 2>&1 </dev/null &
  child=$!
  wait "$child" || code=$?
  child=
}

# An interrupted measurement leaves no run behind.
child=
trap '[[ -z $child ]] || kill "$child" 2>/dev/null; exit 130' INT TERM HUP

# launch PART RUN RANKS COMMAND...
launch() {
  local part=$1 run=$2 count=$3 begin=$SECONDS
  limited "$out/$part.$run.$count.log" "${@:4}"
  record "$part" "$run" "$count" "$code" $((SECONDS - begin))
}

# train PART RUN RANKS KEY=VALUE...: its output directory is OUT/runs/PART.RUN.RANKS.
train() {
  launch "$1" "$2" "$3" mpirun -n "$3" "$program" train "$deck" "${overrides[@]}" "${common[@]}" \
    "data.validation=$validation" "run.outputs=$(toml_strings "$out/runs")" "run.name=\"$1.$2.$3\"" \
    checkpoint.at_end=false "${@:4}"
}

# Seconds of a run of the given steps and sequences on so many ranks.
estimate() { echo $((start_s + $1 * $2 * step_ms / $3 / 1000)); }

# The estimates of a run on each rank count: sum_estimates STEPS [SEQUENCES], by default one a rank.
sum_estimates() {
  local n sum=0
  for n in "${ranks[@]}"; do sum=$((sum + $(estimate "$1" "${2:-$n}" "$n"))); done
  echo "$sum"
}

# in_deck SECTION KEY DEFAULT: a whole number of the deck.
in_deck() {
  local value
  value=$(sed -n "/^\[$1\]/,/^\[/s/^$2 *= *\([0-9_]*\).*/\1/p" "$deck" | tr -d _)
  echo "${value:-$3}"
}

measure_windows() {
  local n window
  affordable windows $((3 * $(sum_estimates "$steps"))) || return 0
  for n in "${ranks[@]}"; do
    for window in 128 896 1792; do
      train windows "window$window" "$n" "train.sequences=$n" "train.steps=$steps" validation.tokens=0 \
        "window.first=$window" "window.last=$window"
    done
  done
}

measure_losses() {
  local n
  affordable losses "$(sum_estimates "$steps" 8)" || return 0
  for n in "${ranks[@]}"; do
    train losses loss "$n" train.sequences=8 "train.steps=$steps" validation.every=0 \
      "validation.tokens=$((4 * $(in_deck validation length 262144)))"
  done
}

measure_nccl() {
  local nccl_steps=$((steps * 5 / 2))
  if [[ $most -eq 1 ]]; then
    record nccl "" "" - 0 "skipped: needs two GPUs"
    return
  fi
  affordable nccl "$(estimate "$nccl_steps" 1 1)" || return 0
  train nccl nccl "$most" "train.sequences=$most" "train.steps=$nccl_steps" validation.tokens=0 \
    comm.transport=nccl "${mean_window[@]}"
}

# A study like that of inputs/studies/ on this node's ranks: write_study KIND SEQUENCES.
write_study() {
  cat <<EOF
[study]
name = "$1"
kind = "$1"
deck = $(toml_strings "$deck")
ranks = [${ranks[*]/%/,}]
sequences = $2
steps = $steps
warmup = $((steps / 5))
outputs = $(toml_strings "$out/report")
overrides = [$(toml_strings "${mean_window[@]}" train.cooldown=0 "${overrides[@]}" "${common[@]}")]

EOF
  sed -n '/^\[prediction\]/,$p' "$root/inputs/studies/$1.toml"
}

# measure_study KIND SEQUENCES SECONDS: runs and report of scaling_study.py.
measure_study() {
  local kind=$1 begin=$SECONDS n failed report
  affordable "$kind" "$3" || return 0
  write_study "$kind" "$2" >"$out/study_$kind.toml"
  limited "$out/$kind.log" "$python" "$root/jobscripts/tools/scaling_study.py" "$out/study_$kind.toml" \
    --program "$program"
  report=$code
  for n in "${ranks[@]}"; do
    failed=$(sed -n "s/.*ranks${n}_repeat1: failed with exit code \([0-9]*\),.*/\1/p" "$out/$kind.log")
    [[ -f $out/report/$kind/ranks${n}_repeat1/summary.json ]] || failed=${failed:-$report}
    record "$kind" "ranks${n}_repeat1" "$n" "${failed:-0}" ""
  done
  if grep -q 'has no module' "$out/$kind.log"; then
    record "$kind" report "" - $((SECONDS - begin)) "skipped: $(tail -n 1 "$out/$kind.log")"
  else
    record "$kind" report "" "$report" $((SECONDS - begin))
  fi
}

measure_strong() { measure_study strong 8 "$(sum_estimates "$steps" 8)"; }
measure_weak() { measure_study weak 1 "$(sum_estimates "$steps")"; }

# The test programs beside the program, on up to four ranks, and those that kill and stop ranks.
measure_faults() {
  local name directory=${program%/*} n=$((most < 4 ? most : 4)) found=()
  for name in test_rank_count test_device_checkpoint test_tensor_comm; do
    [[ ! -x $directory/$name ]] || found+=("$name")
  done
  [[ ! -f $root/tests/fault/devices.py || $most -eq 1 ]] || found+=(Auto Nccl Idle Monitored)
  [[ ${#found[@]} -gt 0 ]] || record faults "" "" - 0 "skipped: no test programs beside $program"
  for name in "${found[@]}"; do
    affordable faults 40 "$name" || continue
    if [[ $name == test_* ]]; then
      launch faults "$name" "$n" mpirun -n "$n" "$directory/$name" --gtest_color=no
    else
      launch faults "$name" "$most" "$python" -B "$root/tests/fault/devices.py" "$program" "$(command -v mpirun)" "$name"
    fi
  done
}

# The deck's own schedule, or as much of one as the rest of the budget and the validation tokens allow.
measure_whole() {
  local all least fit length tokens there
  all=$(in_deck train steps 1770)
  length=$(in_deck validation length 262144) tokens=$(in_deck validation tokens 10485760)
  least=$((all < 100 ? all : 100))
  fit=$((($(left) - 2 * start_s) * 1000 * most / 8 / step_ms))
  fit=$((fit > all ? all : fit < least ? least : fit))
  affordable whole $((2 * start_s + fit * 8 * step_ms / most / 1000)) || return 0
  there=$(($(tokens_of val) / length * length))
  there=$((there < length ? length : there)) # the program says where even one sequence is too much
  tokens=$((there < tokens ? there : tokens))
  train whole "$([[ $fit -eq $all ]] || echo shortened_to_)${fit}_of_${all}_steps" "$most" train.sequences=8 \
    "train.steps=$fit" "validation.tokens=$tokens"
  fact 'validation tokens of the whole schedule' "$tokens"
}

report() { "$python" "$root/jobscripts/tools/measure_node.py" "$out"; }

ranks=()
read_arguments "$@"
find_programs
count_ranks
make_directory
mpi_environment
make_shards
write_facts
: >"$out/runs.tsv"
validation=$(shards_of val)
common=("data.train=$(shards_of train)" data.end=wrap run.log_every=1)
for part in "${all_parts[@]}"; do
  [[ " ${parts[*]} " != *" $part "* ]] || "measure_$part"
  report >/dev/null || true # a call that is ended leaves the table so far
done
report
