#pragma once
// The functions of CBLAS that portable ops call: the C interface of the BLAS (BLAS Technical Forum Standard, 2001,
// annex B), with integers of 32 bits. They are declared here, since each library's header has a name of its own:
// cblas.h, mkl_cblas.h, nvpl_blas_cblas.h.

namespace nanorun::kernels::portable {

enum CBLAS_ORDER : int { CblasRowMajor = 101 };
enum CBLAS_TRANSPOSE : int { CblasNoTrans = 111, CblasTrans = 112 };
enum CBLAS_UPLO : int { CblasUpper = 121 };
enum CBLAS_SIDE : int { CblasLeft = 141, CblasRight = 142 };

extern "C" {

void cblas_sgemm(CBLAS_ORDER, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, int m, int n, int k, float alpha, const float* a,
                 int lda, const float* b, int ldb, float beta, float* c, int ldc);
void cblas_dgemm(CBLAS_ORDER, CBLAS_TRANSPOSE, CBLAS_TRANSPOSE, int m, int n, int k, double alpha, const double* a,
                 int lda, const double* b, int ldb, double beta, double* c, int ldc);
void cblas_ssyrk(CBLAS_ORDER, CBLAS_UPLO, CBLAS_TRANSPOSE, int n, int k, float alpha, const float* a, int lda,
                 float beta, float* c, int ldc);
void cblas_dsyrk(CBLAS_ORDER, CBLAS_UPLO, CBLAS_TRANSPOSE, int n, int k, double alpha, const double* a, int lda,
                 double beta, double* c, int ldc);
void cblas_ssymm(CBLAS_ORDER, CBLAS_SIDE, CBLAS_UPLO, int m, int n, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc);
void cblas_dsymm(CBLAS_ORDER, CBLAS_SIDE, CBLAS_UPLO, int m, int n, double alpha, const double* a, int lda,
                 const double* b, int ldb, double beta, double* c, int ldc);

}  // extern "C"

}  // namespace nanorun::kernels::portable
