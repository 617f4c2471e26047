#!/usr/bin/env bash
# Builds everything and runs every test. With --asan also the unit tests under the address and undefined-behaviour
# sanitizers.
# shellcheck source=jobscripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

presets=(cpu)
for argument in "$@"; do
  case $argument in
    --asan) presets+=(asan) ;;
    *) die 2 "unknown argument $argument; usage: test.sh [--asan]" ;;
  esac
done

# tests/slurm starts a Slurm of its own; a machine that has one already keeps it.
command -v srun >/dev/null || packages+=(slurmctld slurmd slurm-client munge)

for preset in "${presets[@]}"; do
  setup "$preset" all
  ctest --preset "$preset" --parallel 2
done
