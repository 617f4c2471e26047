#include "src/comm/row_set.hpp"

#include <algorithm>
#include <bit>

namespace nanorun {

RowSet::RowSet(std::int64_t first, std::int64_t end) : base_(first / bits), words_(word_count(first, end)) {}

std::size_t RowSet::word_count(std::int64_t first, std::int64_t end) {
  return first == end ? 0 : (end + bits - 1) / bits - first / bits;
}

std::span<const std::uint64_t> RowSet::words(std::int64_t first, std::int64_t end) const {
  return words().subspan(first == end ? 0 : first / bits - base_, word_count(first, end));
}

void RowSet::clear() { std::ranges::fill(words_, 0); }

/// body(word, mask) for the words that hold rows [first, end); the mask has the bits of these rows.
template <class Body>
void RowSet::for_each_word(std::int64_t first, std::int64_t end, const Body& body) {
  for (std::int64_t row = first; row < end;) {
    const std::int64_t word = row / bits, next = std::min((word + 1) * bits, end);
    const std::uint64_t from = ~std::uint64_t{0} << (row % bits),
                        to = ~std::uint64_t{0} >> (bits - 1 - (next - 1) % bits);
    body(word, from & to);
    row = next;
  }
}

void RowSet::add(const RowSet& other, std::int64_t first, std::int64_t end) {
  for_each_word(first, end, [&](std::int64_t word, std::uint64_t mask) {
    words_[word - base_] |= other.words_[word - other.base_] & mask;
  });
}

std::size_t RowSet::count(std::int64_t first, std::int64_t end) const {
  std::size_t count = 0;
  for_each_word(first, end,
                [&](std::int64_t word, std::uint64_t mask) { count += std::popcount(words_[word - base_] & mask); });
  return count;
}

void RowSet::list(std::int64_t first, std::int64_t end, std::vector<std::int32_t>& rows) const {
  for_each_word(first, end, [&](std::int64_t word, std::uint64_t mask) {
    for (std::uint64_t rest = words_[word - base_] & mask; rest != 0; rest &= rest - 1) {
      rows.push_back(static_cast<std::int32_t>(word * bits + std::countr_zero(rest)));
    }
  });
}

}  // namespace nanorun
