#!/usr/bin/env bash
# Repeats a record of the speedrun: fetches the tokens that are missing, trains a deck once with each of several seeds,
# and says whether the mean loss is below the target, as its rules ask:
#   jobscripts/record.sh DECK --seeds N [--ranks N] [--data DIR] [--target LOSS] [-- section.key=value...]
# The same command goes on where it was interrupted. docs/records.md says more. It works in the repository and where
# nanorun is installed.
set -euo pipefail

# shellcheck source=jobscripts/tool.sh
source "$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/tool.sh"
start_tool record.py scipy.stats,tomllib "$@"
