#!/usr/bin/env bash
# Packages, environment and build for one machine; the other job scripts source this file and call `setup`.
# Defines: root (the repository), nanorun (the program), python (one that imports h5py and matplotlib), setup.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export nanorun=$root/build/cpu/bin/nanorun

packages=(
  g++ cmake ninja-build
  libopenmpi-dev openmpi-bin libhdf5-openmpi-dev
  libtrilinos-kokkos-dev libopenblas-dev
  libfmt-dev libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libpcre2-dev libgtest-dev
  python3-h5py python3-matplotlib python3-scipy
)

# Further arguments of cmake.
cmake_options=()

say() { printf '%s: %s\n' "$(basename "$0")" "$*"; }
die() {
  say "$2" >&2
  exit "$1"
}

missing_packages() {
  comm -23 <(printf '%s\n' "${packages[@]}" | sort) \
    <(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^installed //p' | sort)
}

# Without apt-get, or without the right to use it, the build decides whether what it needs is there.
install_packages() {
  command -v apt-get >/dev/null || return 0
  local missing as_root=()
  mapfile -t missing < <(missing_packages)
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || return 0
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  if ! { "${as_root[@]}" apt-get update -qq && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}"; }; then
    say "the packages could not be installed" >&2
  fi
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

configure() {
  local preset=$1 log
  command -v cmake >/dev/null || return 1
  log=$(cmake --preset "$preset" "${cmake_options[@]}" 2>&1) && return 0
  printf '%s\n' "$log" >&2
  return 1
}

explain_packages() {
  cat >&2 <<EOF

$(basename "$0"): the build needs what these packages hold:
  Debian 12:  ${packages[*]}
  Spack:      spack env create nanorun spack.yaml && spack env activate nanorun && spack install
EOF
}

# Open MPI refuses root unless told twice, and starts no more ranks than there are cores unless told so.
mpi_environment() {
  if [[ $EUID -eq 0 ]]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  export OMPI_MCA_rmaps_base_oversubscribe=1
}

# setup PRESET TARGET...
setup() {
  local preset=$1
  shift
  cd "$root"
  install_packages
  mpi_environment
  if ! configure "$preset"; then
    explain_packages
    exit 2
  fi
  cmake --build "build/$preset" --parallel "$(nproc)" --target "$@"
}
