# Finds a BLAS with its C interface, CBLAS: the BLAS of FindBLAS, with a libcblas before it where the BLAS has none of
# its own. BLA_VENDOR or BLAS_LIBRARIES choose one. Defines the target nanorun::cblas. No header is needed:
# kernels/device/cblas.hpp declares what is called, with integers of 32 bits.
if(BLA_SIZEOF_INTEGER EQUAL 8 OR BLA_VENDOR MATCHES "ilp|ILP")
  message(FATAL_ERROR "BLA_VENDOR=${BLA_VENDOR}, BLA_SIZEOF_INTEGER=${BLA_SIZEOF_INTEGER}: nanorun calls a BLAS with "
    "integers of 32 bits (LP64), not of 64 (ILP64)")
endif()
set(BLA_SIZEOF_INTEGER 4)
find_package(BLAS QUIET)

set(CBLAS_LIBRARIES "")
if(BLAS_FOUND)
  include(CheckCSourceCompiles)
  # Each choice of a BLAS has an answer of its own.
  string(MD5 choice "${BLAS_LIBRARIES}")
  set(source "float cblas_sdot(int, const float*, int, const float*, int);
    void cblas_ssymm(void); void cblas_dsyrk(void);
    int main(void) { float x = 0; cblas_ssymm(); cblas_dsyrk(); return (int)cblas_sdot(1, &x, 1, &x, 1); }")
  set(CMAKE_REQUIRED_QUIET TRUE)
  set(CMAKE_REQUIRED_LIBRARIES BLAS::BLAS)
  check_c_source_compiles("${source}" NANORUN_BLAS_HAS_CBLAS_${choice})
  if(NANORUN_BLAS_HAS_CBLAS_${choice})
    set(CBLAS_LIBRARIES BLAS::BLAS)
  elseif(BLAS_LIBRARIES)
    list(GET BLAS_LIBRARIES 0 first_library)
    get_filename_component(blas_directory "${first_library}" DIRECTORY)
    find_library(CBLAS_LIBRARY NAMES cblas HINTS ${blas_directory})
    mark_as_advanced(CBLAS_LIBRARY)
    if(CBLAS_LIBRARY)
      set(CMAKE_REQUIRED_LIBRARIES ${CBLAS_LIBRARY} BLAS::BLAS)
      check_c_source_compiles("${source}" NANORUN_CBLAS_LINKS_${choice})
      if(NANORUN_CBLAS_LINKS_${choice})
        set(CBLAS_LIBRARIES ${CBLAS_LIBRARY} BLAS::BLAS)
      endif()
    endif()
  endif()
  unset(CMAKE_REQUIRED_LIBRARIES)
  unset(CMAKE_REQUIRED_QUIET)
endif()

include(FindPackageHandleStandardArgs)
# A list would become further arguments.
list(JOIN BLAS_LIBRARIES " " found)
foreach(library IN LISTS BLAS_LIBRARIES)
  if(IS_ABSOLUTE "${library}" AND NOT EXISTS "${library}")
    string(APPEND found " (there is no file ${library})")
  endif()
endforeach()
if(NOT found)
  set(found "no library with BLA_VENDOR=${BLA_VENDOR}")
endif()
find_package_handle_standard_args(CBLAS
  REASON_FAILURE_MESSAGE "name a BLAS with its C interface by -DBLA_VENDOR=OpenBLAS, FLAME (BLIS), Intel10_64lp (MKL), \
Generic, or by -DBLAS_LIBRARIES=/path/of/lib.so. FindBLAS found: ${found}"
  REQUIRED_VARS CBLAS_LIBRARIES)

if(CBLAS_FOUND AND NOT TARGET nanorun::cblas)
  add_library(nanorun::cblas INTERFACE IMPORTED)
  target_link_libraries(nanorun::cblas INTERFACE ${CBLAS_LIBRARIES})
endif()
