# Finds Kokkos and mends Debian's package, whose target names an include directory that holds no Kokkos.
# Defines the target nanorun::kokkos, and NANORUN_KOKKOS_DEVICE where it has a backend for devices.
find_package(Kokkos CONFIG QUIET)

add_library(nanorun_kokkos INTERFACE)
add_library(nanorun::kokkos ALIAS nanorun_kokkos)

if(TARGET Kokkos::kokkos)
  target_link_libraries(nanorun_kokkos INTERFACE Kokkos::kokkos)
  if(Kokkos_ENABLE_CUDA OR Kokkos_ENABLE_HIP OR Kokkos_ENABLE_SYCL)
    set(NANORUN_KOKKOS_DEVICE TRUE)
  endif()
  # Functors that run on devices call constexpr functions of the standard library.
  if(Kokkos_CXX_COMPILER_ID STREQUAL NVIDIA)
    target_compile_options(nanorun_kokkos INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--expt-relaxed-constexpr>)
  endif()
  find_path(KOKKOS_TRILINOS_INCLUDE_DIR Kokkos_Core.hpp PATH_SUFFIXES trilinos)
  if(Kokkos_VERSION VERSION_LESS 4 AND KOKKOS_TRILINOS_INCLUDE_DIR)
    target_include_directories(nanorun_kokkos SYSTEM INTERFACE ${KOKKOS_TRILINOS_INCLUDE_DIR})
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(KokkosShim
  REASON_FAILURE_MESSAGE "install libtrilinos-kokkos-dev or a Kokkos of at least 3.4"
  REQUIRED_VARS Kokkos_DIR
  VERSION_VAR Kokkos_VERSION)
