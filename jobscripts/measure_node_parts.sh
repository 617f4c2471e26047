# shellcheck shell=bash
# The parts of jobscripts/measure_node.sh, which sources this file: `measure_PART` runs what belongs to the deck in use.
# shellcheck disable=SC2154 # variables of measure_node.sh

mean_window=(window.first=896 window.last=896) # about the mean of the schedule of record 21
study_keys=("${mean_window[@]}" train.cooldown=0)

# Sets `schedule`, the overrides for a schedule of so many steps with all stages of the deck.
schedule_of() {
  local lines
  lines=$(deck_tool --steps "$1" schedule "$deck") || exit 2
  mapfile -t schedule <<<"$lines"
}

# Each stage, with one sequence a rank and with 8 in all.
measure_stages() {
  local n
  schedule_of "$steps"
  if affordable stages "$(sum_estimates "$steps")" weak; then
    for n in "${ranks[@]}"; do
      train stages weak "$n" "${schedule[@]}" "train.sequences=$n" validation.tokens=0
    done
  fi
  affordable stages "$(sum_estimates "$steps" 8)" strong || return 0
  for n in "${ranks[@]}"; do
    train stages strong "$n" "${schedule[@]}" train.sequences=8 validation.tokens=0
  done
}

# Sets `kept`: the overrides without keys that a deck of windows no more has.
keep_overrides() {
  local one
  kept=()
  for one in "${overrides[@]}"; do
    [[ $one =~ ^(train\.length|window\.(first|last|quantum|rounding))= ]] || kept+=("$one")
  done
}

check_windows() {
  local kept=() schedule=()
  keep_overrides
  schedule_of "$steps"
  deck_tool windows "$deck" | dry_run "windows of $label, --steps $steps" /dev/stdin "${prefixes[@]}" "${kept[@]}" \
    "${common[@]}" "${schedule[@]}" train.extension_steps=0 "train.sequences=$most"
}

# A run whose stages have windows of 128, 896 and 1792 tokens, with one sequence a rank.
measure_windows() {
  local n kept=() grown=$deck deck=$out/windows_of_$label.toml
  affordable windows "$(sum_estimates "$steps")" || return 0
  deck_tool windows "$grown" >"$deck"
  keep_overrides
  local overrides=("${kept[@]}")
  schedule_of "$steps"
  for n in "${ranks[@]}"; do
    train windows weak "$n" "${schedule[@]}" train.extension_steps=0 "train.sequences=$n" validation.tokens=0
  done
}

measure_losses() {
  local n
  affordable losses "$(sum_estimates "$steps" 8)" || return 0
  schedule_of "$steps"
  for n in "${ranks[@]}"; do
    train losses strong "$n" "${schedule[@]}" train.sequences=8 validation.every=0 \
      "validation.tokens=$((4 * validation_length))"
  done
}

measure_nccl() {
  local window=("${mean_window[@]}")
  if [[ $most -eq 1 ]]; then
    record nccl "" "" - 0 "skipped: needs two GPUs"
    return
  fi
  affordable nccl "$(estimate "$nccl_steps" 1 1)" || return 0
  schedule_of "$nccl_steps"
  [[ $stages -eq 0 ]] || window=()
  train nccl nccl "$most" "${schedule[@]}" "train.sequences=$most" validation.tokens=0 comm.transport=nccl \
    "${window[@]}"
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
outputs = $(toml_strings "$out/report/$label")
overrides = [$(toml_strings "${study_keys[@]}" "${overrides[@]}" "${common[@]}")]

EOF
  sed -n '/^\[prediction\]/,$p' "$root/inputs/studies/$1.toml"
}

# measure_study KIND SEQUENCES SECONDS: runs and report of scaling_study.py.
measure_study() {
  local kind=$1 begin=$SECONDS n failed report
  affordable "$kind" "$3" || return 0
  write_study "$kind" "$2" >"$out/$label.$kind.toml"
  limited "$out/$label.$kind.log" "$python" "$root/jobscripts/tools/scaling_study.py" "$out/$label.$kind.toml" \
    --program "$program"
  report=$code
  for n in "${ranks[@]}"; do
    failed=$(sed -n "s/.*ranks${n}_repeat1: failed with exit code \([0-9]*\),.*/\1/p" "$out/$label.$kind.log")
    [[ -f $out/report/$label/$kind/ranks${n}_repeat1/summary.json ]] || failed=${failed:-$report}
    record "$kind" "ranks${n}_repeat1" "$n" "${failed:-0}" ""
  done
  if grep -q 'has no module' "$out/$label.$kind.log"; then
    record "$kind" report "" - $((SECONDS - begin)) "skipped: $(tail -n 1 "$out/$label.$kind.log")"
  else
    record "$kind" report "" "$report" $((SECONDS - begin))
  fi
}

measure_strong() { measure_study strong 8 "$(sum_estimates "$steps" 8)"; }
measure_weak() { measure_study weak 1 "$(sum_estimates "$steps")"; }

# The test programs beside the program, on up to four ranks and on all, and those that kill and stop ranks.
measure_faults() {
  local name n directory=${program%/*} found=() few=$((most < 4 ? most : 4)) mpirun
  mpirun=$(command -v mpirun)
  for name in test_rank_count test_device_checkpoint test_tensor_comm; do
    [[ ! -x $directory/$name ]] || found+=("$name")
  done
  [[ ! -f $root/tests/fault/devices.py || $most -eq 1 ]] || found+=(Auto Nccl Idle Monitored)
  [[ ${#found[@]} -gt 0 ]] || record faults "" "" - 0 "skipped: no test programs beside $program"
  for name in "${found[@]}"; do
    if [[ $name == test_* ]]; then
      for n in $(printf '%s\n' "$few" "$most" | sort -nu); do
        affordable faults 20 "$name" || continue
        launch faults "$name" "$n" mpirun -n "$n" "$directory/$name" --gtest_color=no
      done
    else
      affordable faults 60 "$name" || continue
      launch faults "$name" "$most" "$python" -B "$root/tests/fault/devices.py" "$program" "$mpirun" "$name"
    fi
  done
}

# Seconds of a schedule of so many steps of 8 sequences, with validations.
whole_estimate() { echo $((2 * start_s + $1 * 8 * step_ms / most / 1000)); }

# train_whole STEPS: the deck's own schedule, or as much of one as that, with as many validation tokens as there are.
train_whole() {
  local there=$(($(tokens_of val) / validation_length * validation_length))
  there=$((there < validation_length ? validation_length : there)) # the program says where that is too much
  there=$((there < validation_tokens ? there : validation_tokens))
  schedule_of "$1"
  train whole "$([[ $1 -eq $deck_steps ]] || echo shortened_to_)$1_of_${deck_steps}_steps" "$most" "${schedule[@]}" \
    train.sequences=8 "validation.tokens=$there"
  fact "validation tokens of the whole schedule of $label" "$there"
}

# The whole schedule, where that takes no more than a third of all the time. Others wait for what the parts leave.
measure_whole() {
  local needs
  needs=$(whole_estimate "$deck_steps")
  if [[ $((3 * needs)) -gt $((60 * minutes)) ]]; then
    postponed+=("$1")
  elif affordable whole "$needs"; then
    train_whole "$deck_steps"
  fi
}

# In the rest of the time, shortened where that is necessary, but to no less than 100 steps.
measure_postponed() {
  local i least fit
  for i in "${postponed[@]}"; do
    use_deck "$i"
    least=$((deck_steps < 100 ? deck_steps : 100))
    fit=$((($(left) - 2 * start_s) * 1000 * most / 8 / step_ms))
    fit=$((fit > deck_steps ? deck_steps : fit < least ? least : fit))
    if affordable whole "$(whole_estimate "$fit")"; then train_whole "$fit"; fi
  done
}
