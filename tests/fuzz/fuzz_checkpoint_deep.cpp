// The reader of checkpoints on a model of many layers. An input says what to change in a sound file: for each change
// four bytes of a position, little-endian, and one of bits to flip there. An input of no bytes leaves the file sound.

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "src/run/checkpoint.hpp"
#include "src/run/learner.hpp"
#include "tests/fuzz/checkpoints.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/small_model.hpp"

using namespace nanorun;

namespace {

constexpr int layers = 512;
constexpr std::size_t change_size = 5;

std::vector<std::uint8_t> sound_file(Learner<float>& learner) {
  learner.optimizer.initialise(1);
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("nanorun-fuzz-{}.h5", ::getpid());
  CheckpointHeader header;
  header.model = model_fingerprint(learner.table.layout());
  header.deck = to_toml(learner.config);
  header.progress.step = 7;
  write_checkpoint(fuzz::comm(), path, header, learner.optimizer.slabs());
  std::ifstream in(path, std::ios::binary);
  std::filesystem::remove(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Learner<float> learner(fuzz::small_model(layers), fuzz::comm(), 0, {});
  static const std::vector<std::uint8_t> sound = sound_file(learner);
  std::vector<std::uint8_t> bytes = sound;
  for (std::size_t i = 0; i + change_size <= size; i += change_size) {
    std::uint32_t at = 0;
    std::memcpy(&at, data + i, sizeof(at));
    bytes[at % bytes.size()] ^= data[i + sizeof(at)];
  }
  const fuzz::InputFile file(bytes);
  const bool restored = fuzz::restores(learner, file.path());
  fuzz::require(restored || bytes != sound, "a sound checkpoint was refused");
  return 0;
}
