#!/usr/bin/env bash
# Measures a node of one to eight GPUs in one call: steps of each stage or window, whole schedules, memory, losses,
# scaling and the fault tests. Each part starts only where the time that it needs, by estimate, is left. The tables are
# printed and lie in OUT/table.md, the figures in OUT/node.json, beside the logs and output directories of all runs.
# Without GPUs --gpus says how many ranks to measure, so that small decks can try it on CPUs.
# It works in the repository and where nanorun is installed, also through a symbolic link.
jobscripts=$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")
# shellcheck source=jobscripts/shell.sh
source "$jobscripts/shell.sh"
# shellcheck source=jobscripts/measure_node_parts.sh
source "$jobscripts/measure_node_parts.sh"

all_parts=(stages windows whole strong weak nccl faults losses) # in the order of their worth
start_s=9 # time of a run outside of its steps: until the first one, and its end

program=$root/build/h100/bin/nanorun
[[ -f $root/CMakeLists.txt ]] || program=$(realpath -m -- "$root/../../bin/nanorun") # installed beside it
data=data
out=outputs/node
gpus=
minutes=9
only=$(IFS=, && printf %s "${all_parts[*]}")
decks=()
steps=40
overrides=()

print_usage() {
  cat <<EOF
usage: measure_node.sh [--program PATH] [--data DIR] [--out DIR] [--gpus N] [--minutes M] [--only PART,...]
  [--deck DECK]... [--steps STEPS] [-- section.key=value...]

Measures a node of one to eight GPUs. The table is printed and written to OUT/table.md.

  --program PATH    nanorun (default: $program)
  --data DIR        token shards *train*.h5 and *val*.h5, or .bin files to make them from (default: $data)
  --out DIR         new directory for tables, logs and runs (default: $out)
  --gpus N          ranks (default: as many as there are GPUs)
  --minutes M       time for all parts (default: $minutes)
  --only PART,...   parts (default: all of $only)
  --deck DECK       a deck, for each one (default: inputs/record89.toml and inputs/record21.toml)
  --steps STEPS     of the short runs (default: $steps)
  -- KEY=VALUE...   keys for all decks

Exit codes: 0 all that ran is well, 1 a run has failed or none could be measured, 2 wrong arguments or decks,
3 .bin files that cannot be converted, 129, 130 and 143 ended by SIGHUP, SIGINT and SIGTERM.
EOF
}

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
      --help) print_usage && exit 0 ;;
      --program | --data | --out | --gpus | --minutes | --only | --deck | --steps)
        [[ $# -gt 1 ]] || die 2 "$1 needs a value"
        if [[ $1 == --deck ]]; then decks+=("$2"); else printf -v "${1#--}" '%s' "$2"; fi
        shift
        ;;
      --)
        overrides=("${@:2}")
        break
        ;;
      *=*) die 2 "unknown argument $1; keys of decks follow after --, as in -- $1" ;;
      *) die 2 "unknown argument $1; measure_node.sh --help shows the usage" ;;
    esac
    shift
  done
  require_number --minutes "$minutes"
  require_number --steps "$steps"
  [[ ${#decks[@]} -gt 0 ]] || decks=("$root/inputs/record89.toml" "$root/inputs/record21.toml")
  IFS=, read -ra parts <<<"${only//$'\n'/ }"
  [[ ${#parts[@]} -gt 0 ]] || parts=("")
  local part
  for part in "${parts[@]}"; do
    is_part "$part" || die 2 "--only: \"$part\" is none of the parts ${all_parts[*]}"
  done
  nccl_steps=$((steps * 5 / 2))
}

find_programs() {
  local name said
  for name in mpirun python3 timeout; do
    command -v "$name" >/dev/null || die 2 "$name is not on the PATH"
  done
  [[ -f $program && -x $program ]] || die 2 "$program: no such program; build it, or name it with --program"
  [[ -d $data ]] || die 2 "$data: no such directory; --data names the one with the token shards or .bin files"
  if [[ $("$program" --version </dev/null 2>/dev/null) != "nanorun "* ]]; then
    said=$("$program" --version </dev/null 2>&1 >/dev/null) || true
    said=${said##*$'\n'}
    die 2 "$program: not nanorun, or it cannot run here; name another one with --program${said:+; it says: $said}"
  fi
  program=$(realpath -s -- "$program") data=$(realpath -- "$data")
  # The report of the studies needs modules that the table does without.
  python=$(find_python 2>/dev/null && printf %s "$python") || python=python3
}

# deck_tool ARGUMENT...: what a deck says together with the overrides.
deck_tool() { "$python" -B "$root/jobscripts/tools/node/deck.py" "$@" -- "${overrides[@]}"; }

# Labels name the decks in the tables and their files.
read_decks() {
  local i label
  for i in "${!decks[@]}"; do
    [[ -f ${decks[i]} ]] || die 2 "${decks[i]}: no such deck"
    decks[i]=$(realpath -- "${decks[i]}")
    label=$(basename -- "${decks[i]}" .toml)
    label=${label//[^A-Za-z0-9_]/_}
    [[ " ${labels[*]} " != *" $label "* ]] || die 2 "--deck: two decks are called $label"
    labels+=("$label")
    deck_facts[i]=$(deck_tool facts "${decks[i]}" 2>&1) || die 2 "${deck_facts[i]#deck.py: }"
    deck_prefixes[i]=$(deck_tool --data "$data" prefixes "${decks[i]}") || exit 2
  done
}

# use_deck I: what the functions below measure. For the estimates, step_ms are the milliseconds that a sequence of
# record 89 or 21 takes at most on an H200.
use_deck() {
  deck=${decks[$1]} label=${labels[$1]}
  read -r stages deck_steps validation_tokens validation_length <<<"${deck_facts[$1]}"
  step_ms=$((stages > 0 ? 55 : 80))
  prefixes=()
  [[ -z ${deck_prefixes[$1]} ]] || mapfile -t prefixes <<<"${deck_prefixes[$1]}"
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

# picked PART...: whether one of them is to be measured.
picked() {
  local one
  for one in "$@"; do
    [[ " ${parts[*]} " != *" $one "* ]] || return 0
  done
  return 1
}

# dry_run WHAT DECK KEY=VALUE...: ends the call where the program refuses the deck with these keys.
dry_run() {
  local said
  said=$("$program" train --dry-run --ranks "$most" "${@:2}" 2>&1 >/dev/null) ||
    die 2 "$1: $(sed -n '1s/^nanorun: //;1p' <<<"$said")"
}

# The deck in use, the overrides and --steps must do for all parts that are to be measured, before anything is made.
check_deck() {
  local keys=("${prefixes[@]}" "${overrides[@]}" "${common[@]}") short="$label, --steps $steps" schedule=()
  if picked whole; then dry_run "$label" "$deck" "${keys[@]}" train.sequences=8; fi
  if picked losses || { [[ $stages -gt 0 ]] && picked stages; }; then
    schedule_of "$steps"
    dry_run "$short" "$deck" "${keys[@]}" "${schedule[@]}" train.sequences=8
  fi
  if [[ $most -gt 1 ]] && picked nccl; then
    schedule_of "$nccl_steps"
    dry_run "$short" "$deck" "${keys[@]}" "${schedule[@]}" "train.sequences=$most"
  fi
  [[ $stages -eq 0 ]] || return 0
  if picked strong weak; then
    dry_run "$short" "$deck" "${study_keys[@]}" "${overrides[@]}" "${common[@]}" "train.steps=$steps" train.sequences=8
  fi
  if picked windows; then check_windows; fi
}

# exists PATTERN, expanded by the caller: whether it matches a file.
exists() { [[ -e $1 ]]; }

check_data() {
  local kind
  for kind in train val; do
    exists "$data"/*"$kind"*.h5 || exists "$data"/*"$kind"*.bin ||
      die 2 "$data holds no token shards *$kind*.h5, nor *$kind*.bin to make them from"
  done
}

# Token shards *train*.h5 and *val*.h5: each .bin file of a kind becomes one, unless its FILE.h5 is there already.
make_shards() {
  local bin kind
  for kind in train val; do
    for bin in "$data"/*"$kind"*.bin; do
      [[ -e $bin && ! -e ${bin%.bin}.h5 ]] || continue
      "$program" shard "${bin%.bin}" "$bin" >>"$out/shards.log" 2>&1 || die 3 "$(tail -n 1 "$out/shards.log")"
    done
  done
}

fact() { printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >>"$out/facts.tsv"; }

# Estimates the tokens of the shards *KIND*.h5, a little too low. A token takes two bytes.
tokens_of() { du -cbL "$data"/*"$1"*.h5 | tail -n 1 | awk '{ n = int($1 * 0.4995 - 4096); print (n > 0 ? n : 0) }'; }

write_facts() {
  local devices i
  devices=$(nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c |
    sed 's/^ *\([0-9]*\) /\1 x /; s/,\([^,]*\)$/, driver\1/' | paste -sd ';') || devices=none
  fact date "$(date -u '+%Y-%m-%d %H:%M UTC')"
  fact GPUs "$devices"
  fact measured "${ranks[*]} ranks"
  fact CPU "$(nproc) x $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort -u | paste -sd ';')"
  fact program "$("$program" --version 2>/dev/null || true)"
  fact 'training tokens' "about $(tokens_of train); a run that needs more reads them again"
  for i in "${!decks[@]}"; do
    use_deck "$i"
    fact "deck $label" "${deck#"$root/"}${prefixes[*]:+ ${prefixes[*]}}${overrides[*]:+ ${overrides[*]}}"
  done
}

left() { echo $((minutes * 60 - SECONDS)); }

# record PART RUN RANKS CODE SECONDS [NOTE], of the deck in use: CODE - is a part that was left out.
record() { printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$label" "$1" "$2" "$3" "$4" "$5" "${6-}" >>"$out/runs.tsv"; }

# affordable PART SECONDS [RUN]: whether the time that it needs is left. A run that takes much longer hangs.
affordable() {
  local rest
  limit=$(($2 * 2 + 60))
  rest=$(left)
  say "${label:+$label }$1${3:+ $3}: needs about $2 s, $rest s are left" >&2
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

# An interrupted measurement leaves no run behind, and the table so far: interrupt SIGNAL CODE.
child=
interrupt() {
  local outcome="nothing was measured"
  trap '' INT TERM HUP
  if [[ -n $child ]]; then
    kill "$child" 2>/dev/null || true
    wait "$child" || true
  fi
  if [[ -f $out/runs.tsv ]]; then
    fact interrupted "by $1 in part $part"
    report --quick >/dev/null 2>&1 || true
    outcome="$out/table.md has the runs that had ended"
  fi
  say "interrupted by $1; $outcome" >&2 || true
  exit "$2"
}
trap 'interrupt SIGHUP 129' HUP
trap 'interrupt SIGINT 130' INT
trap 'interrupt SIGTERM 143' TERM

# launch PART RUN RANKS COMMAND...
launch() {
  local part=$1 run=$2 count=$3 begin=$SECONDS
  limited "$out/${label:+$label.}$part.$run.$count.log" "${@:4}"
  record "$part" "$run" "$count" "$code" $((SECONDS - begin))
}

# train PART RUN RANKS KEY=VALUE...: its output directory is OUT/runs/LABEL.PART.RUN.RANKS.
train() {
  launch "$1" "$2" "$3" mpirun -n "$3" "$program" train "$deck" "${prefixes[@]}" "${overrides[@]}" "${common[@]}" \
    "${own[@]}" "run.name=\"$label.$1.$2.$3\"" "${@:4}"
}

# Seconds of a run of the given steps and sequences on so many ranks.
estimate() { echo $((start_s + $1 * $2 * step_ms / $3 / 1000)); }

# The estimates of a run on each rank count: sum_estimates STEPS [SEQUENCES], by default one a rank.
sum_estimates() {
  local n sum=0
  for n in "${ranks[@]}"; do sum=$((sum + $(estimate "$1" "${2:-$n}" "$n"))); done
  echo "$sum"
}

# Parts are of a kind of decks, and those of the fault tests of none.
is_measurable() {
  case $1 in
    stages) [[ $stages -gt 0 ]] ;;
    windows | strong | weak) [[ $stages -eq 0 ]] ;;
  esac
}

measure() {
  local i measured=
  if [[ $1 == faults ]]; then
    label=
    measure_faults
    return
  fi
  for i in "${!decks[@]}"; do
    use_deck "$i"
    is_measurable "$1" || continue
    measured=1
    "measure_$1" "$i"
  done
  label=
  [[ -z $measured ]] || return 0
  record "$1" "" "" - 0 "skipped: $([[ $1 == stages ]] && echo no || echo every) deck has [[stage]]"
}

report() { "$python" -B "$root/jobscripts/tools/measure_node.py" "$out" "$@"; }

ranks=()
labels=()
deck_facts=()
deck_prefixes=()
postponed=()
label=
part=
read_arguments "$@"
find_programs
read_decks
count_ranks
mpi_environment
common=("data.train=$(shards_of train)" data.end=wrap run.log_every=1)
for i in "${!decks[@]}"; do
  use_deck "$i"
  check_deck
done
label=
check_data
make_directory
make_shards
own=("data.validation=$(shards_of val)" "run.outputs=$(toml_strings "$out/runs")" checkpoint.at_end=false) # no study's
write_facts
: >"$out/runs.tsv"
for part in "${all_parts[@]}"; do
  [[ $part != losses ]] || measure_postponed
  ! picked "$part" || measure "$part"
  report --quick >/dev/null || true # a call that is ended leaves the table so far
done
fact end "$(date -u '+%Y-%m-%d %H:%M UTC')"
report
