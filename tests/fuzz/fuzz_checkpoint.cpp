// The reader of checkpoints: verified as any model's, and restored as the small model's.

#include "src/run/checkpoint.hpp"
#include "src/run/learner.hpp"
#include "tests/fuzz/checkpoints.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/small_model.hpp"

using namespace nanorun;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Learner<float> learner(fuzz::small_model(2), fuzz::comm(), 0, {});
  const fuzz::InputFile file({data, size});
  fuzz::restores(learner, file.path());
  return 0;
}
