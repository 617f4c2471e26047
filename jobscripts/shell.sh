# shellcheck shell=bash
# What scripts share that print messages and start ranks themselves; setup.sh and measure_node.sh source this file.
# Defines: root (the repository, or PREFIX/share/nanorun), say, die, find_python, mpi_environment.
set -euo pipefail

# shellcheck disable=SC2034 # the scripts use it
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }
die() {
  say "$2" >&2
  exit "$1"
}

find_python() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if "$candidate" -c 'import h5py, matplotlib' 2>/dev/null; then
      export python=$candidate
      return 0
    fi
  done
  die 2 "no python3 with h5py and matplotlib found; install python3-h5py and python3-matplotlib"
}

# Open MPI refuses root unless told twice, and starts no more ranks than there are cores unless told so.
mpi_environment() {
  if [[ $EUID -eq 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMPI_MCA_rmaps_base_oversubscribe=1
}
