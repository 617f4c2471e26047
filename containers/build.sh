#!/usr/bin/env bash
# The steps of Dockerfile and nanorun.def, within an image of Debian 12 or of another system with its packages:
#   build.sh packages           installs what jobscripts/setup.sh lists for the program
#   build.sh program cpu|gpu [argument of cmake...]
#                               builds, installs into /opt/nanorun, and writes the packages of what the program loads
#                               into /opt/nanorun/packages.txt
#   build.sh libraries          a copy in another image: installs the packages of /opt/nanorun/packages.txt
set -euo pipefail
prefix=/opt/nanorun

install_all() {
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
  rm -rf /var/lib/apt/lists/*
}

# The packages that hold the shared libraries of a program, one a line.
packages_of() {
  local library file
  while read -r library; do
    file=$(realpath "$library")
    # Some packages name files in /lib, which is /usr/lib.
    dpkg-query -S "$file" "${file#/usr}" 2>/dev/null || true
  done < <(ldd "$1" | sed -n 's|.* => \(/[^ ]*\) .*|\1|p') | sed 's/:.*//' | sort -u
}

program() {
  local device=$1 options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DNANORUN_NATIVE=OFF -DNANORUN_TESTS=OFF)
  case $device in
    cpu) ;;
    gpu)
      options+=(-DNANORUN_CUDA=ON)
      CUDACXX=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
      if [[ ! -x $CUDACXX ]]; then
        echo "build.sh: no nvcc on the PATH or in /usr/local/cuda: for gpu the base image has CUDA 12.4 or newer" >&2
        exit 2
      fi
      export CUDACXX
      ;;
    *)
      echo "build.sh: program takes cpu or gpu, not $device" >&2
      exit 2
      ;;
  esac
  cmake -S "$root" -B /tmp/nanorun-build "${options[@]}" "${@:2}"
  cmake --build /tmp/nanorun-build --parallel "$(nproc)"
  cmake --install /tmp/nanorun-build --prefix "$prefix" --strip
  rm -rf /tmp/nanorun-build
  {
    packages_of "$prefix/bin/nanorun"
    echo openmpi-bin # mpirun, for ranks within one container
  } >"$prefix/packages.txt"
}

case ${1-} in
  packages | program)
    # shellcheck source=jobscripts/setup.sh
    source "$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/../jobscripts/setup.sh"
    if [[ $1 == packages ]]; then install_all "${program_packages[@]}"; else program "${@:2}"; fi
    ;;
  libraries)
    mapfile -t libraries <"$prefix/packages.txt"
    install_all "${libraries[@]}"
    ;;
  *)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
