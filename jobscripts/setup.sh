#!/usr/bin/env bash
# Packages, environment and build for one machine; the other job scripts source this file and call `setup`.
# Defines: nanorun (the program), python (one that imports h5py and matplotlib), setup, and what shell.sh does.
# shellcheck source=jobscripts/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/shell.sh"

export nanorun=$root/build/cpu/bin/nanorun

# What the program needs; containers/build.sh takes the same.
program_packages=(
  g++ cmake ninja-build
  libopenmpi-dev openmpi-bin libhdf5-openmpi-dev
  libtrilinos-kokkos-dev libopenblas-dev
  libfmt-dev libtomlplusplus-dev libcli11-dev nlohmann-json3-dev libpcre2-dev
)
packages=(
  "${program_packages[@]}"
  libgtest-dev
  python3-h5py python3-matplotlib python3-scipy
)

# Further arguments of cmake.
cmake_options=()

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
  if ! { "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes \
      apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }; then
    say "the packages could not be installed" >&2
  fi
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
