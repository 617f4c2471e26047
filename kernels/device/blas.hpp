#pragma once
// The BLAS that portable ops call, as a library. What one of them alone has is looked up by its name at run time, so
// that the program links with any that has CBLAS.

#include <string>

namespace nanorun::kernels {

/// Name and version, as OpenBLAS, MKL and BLIS tell them: "OpenBLAS 0.3.21 ..."; of others the file of the library.
std::string blas_version();

/// Lets the BLAS compute on the calling thread alone, since ranks share the cores of a node, unless its variable is
/// set: OPENBLAS_NUM_THREADS, MKL_NUM_THREADS, BLIS_NUM_THREADS, or OMP_NUM_THREADS for NVPL. Does nothing to other
/// libraries, which follow OMP_NUM_THREADS where they have threads.
void limit_blas_threads();

/// Whether the limits on this process leave room for the buffers that OpenBLAS allocates in its first GEMM. Without
/// room OpenBLAS would retry for ever; others need none. Call it after start_kokkos().
bool room_for_blas_buffers();

}  // namespace nanorun::kernels
