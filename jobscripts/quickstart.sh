#!/usr/bin/env bash
# From a bare machine to a trained model and a picture of its training: installs what is missing, builds, makes token
# shards from the C and C++ headers of this machine, trains inputs/quickstart.toml on two ranks, plots the run, and
# prints what the model writes.
# Arguments override keys of the deck, for example train.steps=100.
# shellcheck source=jobscripts/setup.sh
source "$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/setup.sh"

data=outputs/quickstart-data
run=outputs/quickstart
max_bytes=40000000

# Short headers in a random but fixed order, so that every step and the validation meet much the same mixture, up to
# max_bytes.
list_documents() {
  find /usr/include -type f -size -16k \
    \( -name '*.h' -o -name '*.hpp' -o -path '*/c++/*' ! -name '*.*' \) -printf '%p\t%s\n' |
    LC_ALL=C sort | awk 'BEGIN { srand(1) } { printf "%.6f\t%s\n", rand(), $0 }' | LC_ALL=C sort |
    awk -F '\t' -v max="$max_bytes" '(sum += $3) <= max { print $2 }'
}

# Every 20th document is for validation.
make_shards() {
  [[ -f $data/train.h5 && -f $data/val.h5 ]] && return 0
  mkdir -p "$data"
  list_documents >"$data/documents.txt"
  awk 'NR % 20 == 0' "$data/documents.txt" >"$data/val.txt"
  awk 'NR % 20 != 0' "$data/documents.txt" >"$data/train.txt"
  rm -f "$data"/*.partial # left by a quickstart that was killed here
  # Some libraries have headers in Latin-1.
  "$nanorun" shard --force --text --allow-invalid-utf8 --list "$data/val.txt" "$data/val"
  "$nanorun" shard --force --text --allow-invalid-utf8 --list "$data/train.txt" "$data/train"
}

train() {
  local code=0
  mpirun -n 2 "$nanorun" train inputs/quickstart.toml checkpoint.restart=none "$@" || code=$?
  [[ $code -eq 0 ]] || die "$code" "training ended with exit code $code (docs/running.md lists the exit codes)"
}

# This machine's compiler may warn of more than those that the presets are made for.
cmake_options+=(-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF)
setup cpu nanorun
find_python
make_shards
train "$@"
"$python" jobscripts/tools/plot_run.py "$run" >/dev/null

newest() {
  find "$run/checkpoints" -name 'checkpoint_????????.h5' | LC_ALL=C sort | tail -n 1
}

printf '\nThe model writes:\n\n'
"$nanorun" sample "$(newest)" --prompt '#ifndef ' --tokens 700

cat <<EOF

Everything lies in $root/$run:
  run.png        the losses and where the time went
  log.txt        the lines above
  metrics.jsonl  loss, time and gradient norm of each step
  summary.json   the figures of merit
  trace.h5       time by step, rank and phase
  deck.toml      the deck with every key
  checkpoints/   what a later run may continue from
The token shards lie in $root/$data.
EOF
