// Mutations that keep the length of an input, for formats whose parts are found by their position in the file.

#include <cstddef>
#include <cstdint>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t, unsigned) {
  LLVMFuzzerMutate(data, size, size);
  return size;
}
