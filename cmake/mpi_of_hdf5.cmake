# Refuses an HDF5 of another MPI than the one that was found: a program with both would call one with the handles of the
# other. Compares names of shared libraries with their ABI's number, such as libmpi.so.40; MPICH and its kin share one,
# 12, under several names. Says nothing of static libraries, nor where the compiler links MPI by itself.
function(nanorun_mpi_libraries out tag)
  set(names "")
  foreach(file IN LISTS ARGN)
    if(NOT file MATCHES "[.]so" OR NOT EXISTS "${file}")
      continue()
    endif()
    execute_process(COMMAND ${CMAKE_READELF} -d "${file}" OUTPUT_VARIABLE dynamic ERROR_QUIET)
    string(REGEX MATCHALL "\\(${tag}\\)[^\n]*\\[libmpi[a-z_]*[^]/]*[.]so[.][0-9]+" lines "${dynamic}")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^.*\\[" "" name "${line}")
      list(APPEND names "${name} (${file})")
    endforeach()
  endforeach()
  set(${out} "${names}" PARENT_SCOPE)
endfunction()

function(nanorun_require_same_mpi)
  nanorun_mpi_libraries(of_mpi SONAME ${MPI_C_LIBRARIES})
  nanorun_mpi_libraries(of_hdf5 NEEDED ${HDF5_C_LIBRARIES})
  foreach(mpi IN LISTS of_mpi)
    foreach(hdf5 IN LISTS of_hdf5)
      string(REGEX REPLACE "^.*[.]so[.]([0-9]+) .*$" "\\1" mpi_abi "${mpi}")
      string(REGEX REPLACE "^.*[.]so[.]([0-9]+) .*$" "\\1" hdf5_abi "${hdf5}")
      if(NOT mpi_abi STREQUAL hdf5_abi)
        string(REGEX REPLACE " .*$" "" needed "${hdf5}")
        string(REGEX REPLACE "^.* \\((.*)\\)$" "\\1" library "${hdf5}")
        message(FATAL_ERROR "MPI and HDF5 do not belong together: MPI is ${mpi}, and HDF5 (${library}) is built with "
          "another, ${needed}. Name an HDF5 of this MPI, -DHDF5_ROOT=PREFIX or "
          "-DHDF5_C_COMPILER_EXECUTABLE=/path/of/h5pcc, or the other MPI, -DMPI_C_COMPILER=/path/of/mpicc, in a new "
          "build directory.")
      endif()
    endforeach()
  endforeach()
endfunction()
