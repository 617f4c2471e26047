#pragma once
// Rows of the tables that are indexed by a token and the one before it.
//   row[0] = N - 1,  row[t] = ((36313 x[t]) xor (27191 y[t-1])) mod (N - 1), in 32-bit arithmetic that wraps, the
//   remainder not negative; y[t] = x[t], but y[0] = N - 1
//   sign_row[0] = 0,  sign_row[t] = (x[t-1] xor x[t]) mod S
// These are the rows of the published speedrun, whose script overwrites the first token before it forms the products.

#include <cstdint>
#include <span>

#include "kernels/device/types.hpp"

namespace nanorun {

/// rows [tokens.size()], for a table of `table_rows` >= 2 rows N.
void bigram_rows(std::span<std::int32_t> rows, std::span<const kernels::Token> tokens, int table_rows);
/// sign_row [tokens.size()], for a table of signs of `table_rows` >= 1 rows S.
void bigram_sign_rows(std::span<std::int32_t> rows, std::span<const kernels::Token> tokens, int table_rows);

}  // namespace nanorun
