#!/usr/bin/env bash
# Measures a machine by a fixed amount of training on synthetic tokens, and says PASSED or FAILED by the loss, which is
# compared with a stored reference. OUT/benchmark.json has the result; compare.py lays several side by side.
# docs/benchmark.md says more. It works in the repository and where nanorun is installed, without internet.
set -euo pipefail

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/tools
# Any python3 will do; one with h5py also finds the slowest rank.
python=
for candidate in python3 /usr/bin/python3; do
  command -v "$candidate" >/dev/null || continue
  python=${python:-$candidate}
  "$candidate" -c 'import h5py, tomllib' 2>/dev/null || continue
  python=$candidate
  break
done
if [[ -z $python ]]; then
  echo "benchmark.sh: python3 is not on the PATH" >&2
  exit 2
fi
# Open MPI counts cores, which may have several processors each.
export OMPI_MCA_rmaps_base_oversubscribe=${OMPI_MCA_rmaps_base_oversubscribe-1}
exec "$python" "$tools/benchmark.py" "$@"
