#!/usr/bin/env bash
# Measures a machine by a fixed amount of training on synthetic tokens, and says PASSED or FAILED by the loss, which is
# compared with a stored reference. With --weak the work grows with the ranks. OUT/benchmark.json has the result;
# compare.py lays several side by side. docs/benchmark.md says more. It works in the repository and where nanorun is
# installed, without internet.
set -euo pipefail

# shellcheck source=jobscripts/tool.sh
source "$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/tool.sh"
# One with h5py also finds the slowest rank.
start_tool benchmark.py h5py,tomllib "$@"
