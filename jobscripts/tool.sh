# shellcheck shell=bash
# Starts tools that need no setup; benchmark.sh and record.sh source this file.

# start_tool TOOL MODULES [ARGUMENT...]: with a python3 that has the modules, or else with any, which names those that
# the tool needs.
start_tool() {
  local tools python='' candidate
  tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/tools
  for candidate in python3 /usr/bin/python3; do
    command -v "$candidate" >/dev/null || continue
    python=${python:-$candidate}
    "$candidate" -c "import $2" 2>/dev/null || continue
    python=$candidate
    break
  done
  if [[ -z $python ]]; then
    printf '%s: python3 is not on the PATH\n' "$(basename "$0")" >&2
    exit 2
  fi
  # Open MPI counts cores, which may have several processors each.
  export OMPI_MCA_rmaps_base_oversubscribe=${OMPI_MCA_rmaps_base_oversubscribe-1}
  exec "$python" "$tools/$1" "${@:3}"
}
