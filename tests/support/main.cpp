// main() of every test program, alone or under mpirun. Rank 0 prints the progress, every rank its failures. A fatal
// failure ends the whole job: the other ranks may wait in a collective for ever.

#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/ops.hpp"
#include "src/base/launch.hpp"
#include "tests/support/environment.hpp"

namespace nanorun {
namespace {

class FailureReport : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    if (!test_comm().root()) {
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", test_comm().rank(), result.file_name() ? result.file_name() : "?",
                   result.line_number(), result.message());
    }
    std::fflush(nullptr);
    if (result.fatally_failed() && test_comm().size() > 1) Context::abort(1);
  }
};

}  // namespace
}  // namespace nanorun

#ifdef __SANITIZE_ADDRESS__
// MPI libraries leave memory to the end of the process.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  nanorun::start_without_daemon(nanorun::launch_variables());
  nanorun::Context context(argc, argv);
  nanorun::test_context = &context;
  // Programs for devices are built on machines without one too, where their tests skip.
  if (const int devices = nanorun::ops::device_count(); devices > 0) {
    nanorun::kernels::start_kokkos(context.comm().rank() % devices);
  } else if (!nanorun::kernels::portable::on_host && !testing::GTEST_FLAG(list_tests)) {
    std::puts("no device on this machine");
    return 0;
  }
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (!context.comm().root()) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new nanorun::FailureReport);
  return RUN_ALL_TESTS();
}
