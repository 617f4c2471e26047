// Preloaded into the program: rank HANG_RANK hangs in its next matrix product once the file HANG_FILE exists, as it
// would in a kernel that never ends.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*sgemm_type)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*,
                           int);

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc) {
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  if (rank && strcmp(rank, getenv("HANG_RANK")) == 0) {
    while (access(getenv("HANG_FILE"), F_OK) == 0) sleep(1);
  }
  sgemm_type next;
  *(void**)&next = dlsym(RTLD_NEXT, "cblas_sgemm");
  next(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
