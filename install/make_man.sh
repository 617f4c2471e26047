#!/usr/bin/env bash
# Makes the man pages of nanorun and its commands from their --help, with help2man. Usage: make_man.sh PROGRAM [FOLDER].
# FOLDER is install/man without the argument. The program is to be one for CPUs. A test compares the pages with the help.
set -euo pipefail
sources=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=$(realpath -- "$1")
folder=${2:-$sources/install/man}

# Version and date of the release; a page says nothing else of when it was made.
field() { sed -n "s/^$1: //p" "$sources/CITATION.cff"; }
version=$(field version)
SOURCE_DATE_EPOCH=$(date --utc --date="$(field date-released)" +%s)
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cat >"$work/files" <<'TEXT'
[files]
.TP
.I PREFIX/share/nanorun/inputs
decks that come with nanorun
.TP
.I PREFIX/share/nanorun/jobscripts
scripts for Slurm and tools
.TP
.I ~/.config/nanorun/site.sh
settings of a user for the job scripts
.TP
.I PREFIX/share/doc/nanorun/README.md
the documentation
TEXT

# Sections of the help as those of a page, which help2man would fill as text: examples, a comment and a command each,
# and exit codes.
sections() {
  awk '
    function roff(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); return text }
    /^Examples:/ { print "[examples]"; part = "examples"; next }
    /^Exit codes/ { print "[exit status]"; part = "codes"; if (sub(/^Exit codes, /, "")) { sub(/:$/, "."); print "Codes " $0 } next }
    part == "examples" && /^  # / { comment = substr($0, 5) }
    part == "examples" && /^  [^#]/ { print ".TP\n.B " roff(substr($0, 3)) "\n" roff(comment) }
    part == "codes" && /^  [0-9]/ { code = $1; $1 = ""; print ".TP\n.B " code "\n" roff(substr($0, 2)) }
  '
}

# make_page NAME DESCRIPTION [COMMAND]: help2man takes the title of a page from the name of the program.
make_page() {
  local help others=()
  help=$("$program" ${3:+"$3"} --help)
  printf '%s\n' "$help" | sed '/^Examples:/,$ d' >"$work/help"
  printf '#!/bin/sh\ncat "%s"\n' "$work/help" >"$work/$1"
  chmod +x "$work/$1"
  mapfile -t others < <(printf '%s\n' nanorun "${commands[@]/#/nanorun-}" | grep -vx -- "$1")
  {
    sections <<<"$help"
    cat "$work/files"
    printf '[see also]\n'
    printf '.BR %s (1),\n' "${others[@]}" | sed '$ s/,$//'
  } >"$work/include"
  help2man --no-info --section=1 --version-string="$version" --source="nanorun $version" --name="$2" \
    --include="$work/include" "$work/$1" >"$folder/$1.1"
}

# Each command, and what the help says of it, as far as the next line would begin.
help=$("$program" --help)
mapfile -t lines < <(sed -n '/^Subcommands:/,/^$/ s/^  \([a-z]*\)  */\1 /p' <<<"$help")
commands=("${lines[@]%% *}")
make_page nanorun "train the NanoGPT speedrun recipe as an MPI batch application"
for line in "${lines[@]}"; do
  description=${line#* }
  make_page "nanorun-${line%% *}" "${description,}" "${line%% *}"
done
