#!/usr/bin/env bash
# Builds everything and runs every test. Where CUDA 12.4 or newer is installed also builds for GPUs and runs the tests of
# the CUDA kernels, which are skipped without a GPU, and then not optimised. Compiles through ccache where that is
# installed. Options:
#   --asan             also the unit tests under the address and undefined-behaviour sanitizers
#   --compiler NAME    also the unit tests of a build by clang, or clang-19
#   --mpi mpich        also the unit and MPI tests of a build with MPICH
#   --blas NAME        also the unit and golden tests with the BLAS blis, or reference
#   --openmp PREFIX    also the unit and golden tests with the Kokkos of this prefix, which is to have OpenMP
#   --aarch64          also a build for ARM, which starts if qemu can run it
#   --long             also the tests that take more than a minute, or half a minute of processor time
#   --quick            no other builds and tests than those that the options above name; without any, the unit and golden
#                      tests on CPUs. For the machines of forges.
# shellcheck source=jobscripts/setup.sh
source "$(dirname "$(realpath -- "${BASH_SOURCE[0]}")")/setup.sh"

usage="usage: test.sh [--asan] [--compiler clang|clang-19] [--mpi mpich] [--blas blis|reference] [--openmp PREFIX] \
[--aarch64] [--long] [--quick]"
presets=()
long=false quick=false
openmp_prefix=
while [[ $# -gt 0 ]]; do
  case $1 in
    --asan) presets+=(asan) ;;
    --compiler | --mpi | --blas)
      case "$1 ${2:-}" in
        "--compiler clang") packages+=(clang) presets+=(clang) ;;
        "--compiler clang-19") packages+=(clang-19) presets+=(clang19) ;;
        # Beside Open MPI, whose mpirun has the higher priority among Debian's alternatives.
        "--mpi mpich") packages+=(libmpich-dev libhdf5-mpich-dev) presets+=(mpich) ;;
        "--blas blis") packages+=(libblis-serial-dev) presets+=(blis) ;;
        "--blas reference") packages+=(libblas-dev) presets+=(reference_blas) ;;
        *) die 2 "$1 does not take ${2:-nothing}; $usage" ;;
      esac
      shift
      ;;
    --openmp)
      [[ -d ${2:-} ]] || die 2 "--openmp takes the prefix of a Kokkos, not ${2:-nothing}; $usage"
      openmp_prefix=$(cd "$2" && pwd)
      presets+=(openmp)
      shift
      ;;
    --aarch64)
      packages+=(g++-aarch64-linux-gnu qemu-user-static)
      presets+=(aarch64)
      ;;
    --long) long=true ;;
    --quick) quick=true ;;
    *) die 2 "unknown argument $1; $usage" ;;
  esac
  shift
done

# The compiler of CUDA 12.4 or newer: the first on the PATH, or the one where NVIDIA's installer puts it.
find_nvcc() {
  local candidate release
  for candidate in nvcc /usr/local/cuda/bin/nvcc; do
    release=$("$candidate" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') || continue
    if [[ -n $release ]] && printf '12.4\n%s\n' "$release" | sort --check=silent --version-sort; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

# Kernels that nothing here can run are not optimised, in a build of their own: that halves the time they take to compile.
preset_for_gpus() {
  if nvidia-smi -L >/dev/null 2>&1 || [[ $("$CUDACXX" --help) != *--Ofast-compile* ]]; then
    echo h100
  else
    echo h100_unoptimised
  fi
}

# In the presets for users warnings stay warnings.
cmake_options+=(-DCMAKE_COMPILE_WARNING_AS_ERROR=ON)

packages+=(shellcheck clang-format)
if ! "$quick"; then
  # tests/slurm starts a Slurm of its own; a machine that has one already keeps it.
  command -v srun >/dev/null || packages+=(slurmctld slurmd slurm-client munge)
  # Some of its nodes have networks of their own.
  packages+=(iproute2)
  # Its lstopo writes the topology that ranks of tests read.
  packages+=(hwloc-nox)
  # A launcher of another MPI; mpirun stays that of Open MPI, which has the higher priority among Debian's alternatives.
  packages+=(mpich)
  # Tests run exported models in PyTorch.
  packages+=(python3-torch)
  # Tests run the benchmark in JUBE.
  packages+=(jube)
  # tests/install looks at man pages and module files, and configures builds with other libraries.
  packages+=(help2man man-db environment-modules libblis-serial-dev libmpich-dev libhdf5-mpich-dev)
  # It also compiles the sources for ARM.
  [[ $(uname -m) != x86_64 ]] || packages+=(g++-aarch64-linux-gnu)
fi

# CMake takes compilers and launchers from these variables when it first configures a build.
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi
if ! "$quick" && CUDACXX=$(find_nvcc); then
  export CUDACXX
  presets+=("$(preset_for_gpus)")
fi
if ! "$quick" || [[ ${#presets[@]} -eq 0 ]]; then presets+=(cpu); fi

# The packages of a build, as Debian names them for another processor.
sysroot=$root/build/aarch64-sysroot
make_sysroot() {
  "$root/tests/install/debian_sysroot.sh" arm64 "$sysroot" libc6-dev libstdc++-12-dev libopenmpi-dev \
    libhdf5-openmpi-dev libtrilinos-kokkos-dev libopenblas-dev libfmt-dev libtomlplusplus-dev libcli11-dev \
    nlohmann-json3-dev libpcre2-dev
}

# Options of cmake that no preset can hold.
options_of() {
  case $1 in
    reference_blas) echo "-DBLAS_LIBRARIES=$(echo /usr/lib/*-linux-gnu/blas/libblas.so)" ;;
    openmp) echo "-DKokkos_ROOT=$openmp_prefix" ;;
    aarch64) echo "-DNANORUN_SYSROOT=$sysroot" ;;
  esac
}

# Most tests on CPUs wait for programs and files longer than they compute. Those on GPUs compute longer on the host than
# on the GPUs that they share.
processors=$(nproc)
common_options=("${cmake_options[@]}")
for preset in "${presets[@]}"; do
  [[ $preset != aarch64 ]] || make_sysroot
  mapfile -t cmake_options < <(printf '%s\n' "${common_options[@]}" && options_of "$preset")
  setup "$preset" all
  if [[ $preset == aarch64 ]]; then
    # The program as far as one rank takes it.
    qemu-aarch64-static -L "$sysroot" build/aarch64/bin/nanorun train --dry-run inputs/quickstart.toml
    continue
  fi
  tests_at_once=$((processors < 6 ? 3 * processors : 16))
  [[ $preset != h100* ]] || tests_at_once=$((processors < 4 ? 2 : processors < 16 ? processors / 2 : 8))
  labels=()
  ! { "$quick" && [[ $preset == cpu ]]; } || labels=(-L '^(unit|golden)$')
  ctest --preset "$preset" --parallel "$tests_at_once" "${labels[@]}"
done
# A few at a time, since each has many ranks or builds of its own.
! "$long" || ctest --preset long --parallel 2
"$quick" || [[ -n $CUDACXX ]] || say "no CUDA 12.4 or newer found: the build for GPUs and the tests of the CUDA kernels were left out"
