#include "kernels/device/blas.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

using namespace nanorun::kernels;

namespace {

/// How a BLAS that has threads sets and tells their number.
struct Threads {
  const char *variable, *set, *get;
};
constexpr Threads libraries[] = {{"OPENBLAS_NUM_THREADS", "openblas_set_num_threads", "openblas_get_num_threads"},
                                 {"BLIS_NUM_THREADS", "bli_thread_set_num_threads", "bli_thread_get_num_threads"}};

template <class Function>
Function* find(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

}  // namespace

TEST(Blas, HasAName) {
  const std::string version = blas_version();
  ASSERT_FALSE(version.empty());
  EXPECT_NE(version.back(), ' ');
  EXPECT_EQ(version.find('\n'), std::string::npos);
  EXPECT_TRUE(find<char*()>("openblas_get_config") == nullptr || version.starts_with("OpenBLAS ")) << version;
}

TEST(Blas, ComputesOnOneThreadUnlessItsVariableSaysOtherwise) {
  for (const Threads& library : libraries) {
    const auto set = find<void(long)>(library.set);
    const auto get = find<int()>(library.get);
    if (set == nullptr || get == nullptr) continue;
    const char* const before = std::getenv(library.variable);
    const std::string value = before == nullptr ? "" : before;
    ::setenv(library.variable, "2", 1);
    set(2);
    if (get() == 2) {  // else it was built without threads
      limit_blas_threads();
      EXPECT_EQ(get(), 2) << library.variable;
    }
    ::unsetenv(library.variable);
    limit_blas_threads();
    EXPECT_EQ(get(), 1) << library.variable;
    if (before != nullptr) ::setenv(library.variable, value.c_str(), 1);
    return;
  }
  GTEST_SKIP() << "the threads of this BLAS cannot be set";
}
