#include "src/data/bigram.hpp"

namespace nanorun {

void bigram_rows(std::span<std::int32_t> rows, std::span<const kernels::Token> tokens, int table_rows) {
  const std::int64_t last = table_rows - 1;
  auto before = static_cast<std::uint32_t>(last);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const std::uint32_t mixed = (36313U * tokens[t]) ^ (27191U * before);
    const std::int64_t remainder = static_cast<std::int32_t>(mixed) % last;
    rows[t] = static_cast<std::int32_t>(t == 0 ? last : remainder < 0 ? remainder + last : remainder);
    if (t > 0) before = tokens[t];
  }
}

void bigram_sign_rows(std::span<std::int32_t> rows, std::span<const kernels::Token> tokens, int table_rows) {
  for (std::size_t t = 0; t < tokens.size(); ++t) rows[t] = t == 0 ? 0 : (tokens[t - 1] ^ tokens[t]) % table_rows;
}

}  // namespace nanorun
