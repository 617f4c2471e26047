// The reader of safetensors files. What it takes fills the file, and can be read.

#include "src/commands/safetensors.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace nanorun;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::InputFile input({data, size});
  fuzz::accepts([&] {
    const SafeTensors file = read_safetensors(input.path());
    std::uint64_t place = 0;
    for (const SafeTensor& tensor : file.tensors) {
      fuzz::require(tensor.begin == place && tensor.end >= place, "tensors overlap or leave gaps");
      place = tensor.end;
    }
    fuzz::require(file.values + place == size, "tensors do not fill the file");
    for (const SafeTensor& tensor : file.tensors) {
      const std::uint64_t value = tensor.type == "F32" ? 4 : 2;
      std::vector<float> values((tensor.end - tensor.begin) / value);
      fuzz::accepts([&] { read_safetensor(input.path(), file, tensor, values); });
    }
  });
  return 0;
}
