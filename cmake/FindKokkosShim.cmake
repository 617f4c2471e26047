# Finds Kokkos and mends Debian's package, whose target names an include folder that holds no Kokkos.
# Defines the target nanorun::kokkos.
find_package(Kokkos CONFIG QUIET)

add_library(nanorun_kokkos INTERFACE)
add_library(nanorun::kokkos ALIAS nanorun_kokkos)

if(TARGET Kokkos::kokkos)
  target_link_libraries(nanorun_kokkos INTERFACE Kokkos::kokkos)
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
