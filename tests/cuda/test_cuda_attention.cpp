#include "kernels/attention/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "tests/cuda/device_mask.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/kernels/check.hpp"
#include "tests/support/bf16.hpp"
#include "tests/support/cuda_memory.hpp"
#include "tests/support/owned_mask.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceMask;
using test::DeviceVector;
using test::everything;
using test::regular_documents;
using test::relative_error;
using test::to_float;

constexpr int spare = 8;  // columns between the rows, which must stay as they are
constexpr float scale = 0.12f;
constexpr std::uint16_t poison = 0xFFFF;  // a NaN

/// Uniform in (-bound, bound), rounded down to bf16.
test::Vector<bf16> random_bf16(std::size_t n, std::uint32_t seed, float bound) {
  test::Vector<bf16> values(n);
  std::uint64_t state = 0x9E3779B97F4A7C15u * (seed + 1);
  for (bf16& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float unit = static_cast<float>(state >> 40) * 0x1p-23f - 1;
    value.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(bound * unit) >> 16);
  }
  return values;
}

/// Rows [first, first + count) of a case.
struct Rows {
  int first, count;
};

struct Case {
  std::string name;
  int length, heads;
  WindowKind kind;
  int window;
  std::vector<int> document_begins;
  int head_dim = 128;

  int width() const { return heads * head_dim; }
  Rows all() const { return {0, length}; }
  OwnedMask mask() const { return mask(all()); }
  /// Mask of these rows alone.
  OwnedMask mask(Rows rows) const {
    std::vector<int> begins;
    for (const int t : document_begins) {
      if (t >= rows.first && t < rows.first + rows.count) begins.push_back(t - rows.first);
    }
    return test::documents_mask(rows.count, begins, kind, window);
  }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// The case with heads of 64 columns.
Case narrow(Case c) {
  c.name += "_heads_of_64";
  c.head_dim = 64;
  return c;
}

/// What one head's y, lse and gradients of q, k and v come to.
struct HeadResult {
  test::Vector<float> y, lse, d_q, d_k, d_v;
};

/// Inputs on the host and on the device; q, k and v are column blocks of one buffer, and so are the gradients of k and
/// v.
struct Problem {
  Case c;
  DeviceMask mask;
  test::Vector<bf16> host_qkv, host_d_y;
  DeviceVector<bf16> qkv, d_y, y, d_kv;
  DeviceVector<float> lse, d_q;
  DeviceVector<std::byte> workspace;
  test::SumStream stream;

  explicit Problem(const Case& c, float q_factor = 1)
      : c(c),
        mask(c.mask().view()),
        host_qkv(random_bf16(static_cast<std::size_t>(c.length) * qkv_columns(), 1, 2)),
        host_d_y(random_bf16(static_cast<std::size_t>(c.length) * y_columns(), 2, 1)),
        qkv(scaled_q(q_factor)),
        d_y(host_d_y),
        y(host_d_y.size()),
        d_kv(static_cast<std::size_t>(c.length) * kv_columns()),
        lse(static_cast<std::size_t>(c.heads) * c.length),
        d_q(static_cast<std::size_t>(c.length) * c.width()),
        workspace(attention_workspace<bf16>(c.length, c.heads, c.head_dim)) {}

  int qkv_columns() const { return 3 * c.width() + spare; }
  int kv_columns() const { return 2 * c.width() + spare; }
  int y_columns() const { return c.width() + spare; }

  /// Multiplies q by a power of two, which is exact.
  const test::Vector<bf16>& scaled_q(float factor) {
    if (factor == 1) return host_qkv;
    for (std::size_t i = 0; i < host_qkv.size(); ++i) {
      if (static_cast<int>(i % qkv_columns()) >= c.width()) continue;
      host_qkv[i].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(factor * to_float(host_qkv[i])) >> 16);
    }
    return host_qkv;
  }

  /// Columns [i width, (i + 1) width) of a buffer whose rows hold `columns`.
  Mat<bf16> part(const DeviceVector<bf16>& buffer, int columns, int i) const {
    return Mat<bf16>(buffer.data(), c.length, columns).col_block(i * c.width(), c.width());
  }
  Mat<bf16> input(int i) const { return part(qkv, qkv_columns(), i); }
  Mat<bf16> values(const DeviceVector<bf16>& buffer) const { return part(buffer, y_columns(), 0); }
  AttentionInputs<bf16> inputs() const { return {input(0), input(1), input(2), c.heads, scale}; }
  Workspace scratch() const { return {workspace.data(), workspace.size()}; }

  void run() const { run(stream); }
  void run(Stream stream) const {
    const Mat<float> lse_mat(lse.data(), c.heads, c.length);
    cuda::attention_forward<bf16>(stream, values(y), lse_mat, inputs(), mask.view(), scratch());
    cuda::attention_backward<bf16>(stream, {d_q.data(), c.length, c.width()}, part(d_kv, kv_columns(), 0),
                                   part(d_kv, kv_columns(), 1), values(y), lse_mat, values(d_y), inputs(), mask.view(),
                                   scratch());
  }

  /// Columns [first, first + head_dim) as floats.
  test::Vector<float> columns(const test::Vector<bf16>& buffer, int buffer_columns, int first, Rows rows) const {
    test::Vector<float> out;
    out.reserve(static_cast<std::size_t>(rows.count) * c.head_dim);
    for (int t = rows.first; t < rows.first + rows.count; ++t) {
      const bf16* row = buffer.data() + static_cast<std::size_t>(t) * buffer_columns + first;
      std::transform(row, row + c.head_dim, std::back_inserter(out), [](bf16 x) { return to_float(x); });
    }
    return out;
  }

  /// d_q of one head.
  test::Vector<float> from_panels(const test::Vector<float>& panels, int head, Rows rows) const {
    test::Vector<float> out;
    out.reserve(static_cast<std::size_t>(rows.count) * c.head_dim);
    for (int t = rows.first; t < rows.first + rows.count; ++t) {
      for (int column = head * c.head_dim; column < (head + 1) * c.head_dim; ++column) {
        const std::size_t panel = column / d_q_panel;
        out.push_back(panels[(panel * c.length + t) * d_q_panel + column % d_q_panel]);
      }
    }
    return out;
  }

  /// What the portable implementation computes from the same inputs, in float; backward these include the device's y.
  HeadResult expected(int head, const test::Vector<float>& device_y) const { return expected(head, device_y, c.all()); }
  /// What the portable implementation computes from these rows alone.
  HeadResult expected(int head, const test::Vector<float>& device_y, Rows rows) const {
    const auto input = [&](int i) { return columns(host_qkv, qkv_columns(), i * c.width() + head * c.head_dim, rows); };
    test::Vector<float> q = input(0), k = input(1), v = input(2),
                        d = columns(host_d_y, y_columns(), head * c.head_dim, rows), y_input = device_y;
    HeadResult r{test::Vector<float>(q.size()), test::Vector<float>(rows.count), test::Vector<float>(q.size()),
                 test::Vector<float>(q.size()), test::Vector<float>(q.size())};
    const auto mat = [&](test::Vector<float>& x) { return Mat<float>(x.data(), rows.count, c.head_dim); };
    const Mat<float> lse_mat(r.lse.data(), 1, rows.count);
    test::Vector<std::byte> memory(portable::attention_workspace<float>(rows.count, 1, c.head_dim) + 64);
    const auto misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    const Workspace space = Workspace(memory).subspan(misaligned ? 64 - misaligned : 0);
    const AttentionInputs<float> in{mat(q), mat(k), mat(v), 1, scale};
    const OwnedMask host_mask = c.mask(rows);
    portable::attention_forward<float>({}, mat(r.y), lse_mat, in, host_mask.view(), space);
    portable::attention_backward<float>({}, mat(r.d_q), mat(r.d_k), mat(r.d_v), mat(y_input), lse_mat, mat(d), in,
                                        host_mask.view(), space);
    return r;
  }

  /// Results of all heads, copied once.
  struct Copy {
    test::Vector<bf16> y, d_kv;
    test::Vector<float> lse, d_q;
  };
  Copy copy() const { return {y.host(), d_kv.host(), lse.host(), d_q.host()}; }

  HeadResult head(const Copy& all, int head) const { return this->head(all, head, c.all()); }
  HeadResult head(const Copy& all, int head, Rows rows) const {
    const auto d_kv_part = [&](int i) {
      return columns(all.d_kv, kv_columns(), i * c.width() + head * c.head_dim, rows);
    };
    const auto lse_row = all.lse.begin() + static_cast<std::ptrdiff_t>(head) * c.length + rows.first;
    return {columns(all.y, y_columns(), head * c.head_dim, rows),
            {lse_row, lse_row + rows.count},
            from_panels(all.d_q, head, rows),
            d_kv_part(0),
            d_kv_part(1)};
  }
};

/// Every element is written but the spare columns at the end of each row.
void expect_written(const char* name, const test::Vector<bf16>& buffer, int columns) {
  std::size_t missing = 0, beyond = 0;
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    if (static_cast<int>(i % columns) < columns - spare) {
      missing += buffer[i].bits == poison;
    } else {
      beyond += buffer[i].bits != poison;
    }
  }
  EXPECT_EQ(missing, 0u) << name;
  EXPECT_EQ(beyond, 0u) << name;
}

/// Each result but lse and d_q is rounded to bf16 (relative norm 1.7e-3), after GEMMs whose operand p or d_s was
/// rounded too.
void expect_near(const HeadResult& got, const HeadResult& expected) {
  EXPECT_LT(relative_error(got.y, expected.y), 4e-3);
  EXPECT_LT(relative_error(got.lse, expected.lse), 1e-5);
  EXPECT_LT(relative_error(got.d_q, expected.d_q), 4e-3);
  EXPECT_LT(relative_error(got.d_k, expected.d_k), 4e-3);
  EXPECT_LT(relative_error(got.d_v, expected.d_v), 4e-3);
}

/// With what the portable implementation makes of this head.
void expect_agrees(const Problem& p, const Problem::Copy& all, int head) {
  const HeadResult got = p.head(all, head);
  expect_near(got, p.expected(head, got.y));
}

class CudaAttention : public testing::TestWithParam<Case> {};

TEST_P(CudaAttention, AgreesWithThePortableOne) {
  SKIP_WITHOUT_DEVICE();
  const Problem p(GetParam());
  p.run();
  const auto all = p.copy();
  expect_written("y", all.y, p.y_columns());
  EXPECT_TRUE(std::none_of(all.d_q.begin(), all.d_q.end(), [](float x) { return std::isnan(x); }));
  expect_written("d_kv", all.d_kv, p.kv_columns());
  EXPECT_TRUE(std::all_of(all.lse.begin(), all.lse.end(), [](float x) { return std::isfinite(x); }));
  for (const int head : {0, p.c.heads - 1}) expect_agrees(p, all, head);
}

INSTANTIATE_TEST_SUITE_P(
    Masks, CudaAttention,
    testing::Values(Case{"smallest", 128, 1, WindowKind::token, everything, {}},
                    Case{"causal", 640, 2, WindowKind::token, everything, {}},
                    Case{"documents", 384, 2, WindowKind::token, everything, {0, 50, 200, 201, 300}},
                    Case{"one_block", 384, 3, WindowKind::block, 128, {}},
                    Case{"two_blocks_and_documents", 512, 2, WindowKind::block, 256, {128, 130, 300}},
                    Case{"two_tokens", 384, 1, WindowKind::token, 2, {}},
                    Case{"100_tokens", 384, 1, WindowKind::token, 100, {}},
                    Case{"200_tokens_and_documents", 512, 2, WindowKind::token, 200, {70, 400}},
                    Case{"30_tokens", 384, 2, WindowKind::token, 30, {45, 200}},
                    Case{"64_tokens", 384, 2, WindowKind::token, 64, {}},
                    Case{"documents_near_half_blocks", 512, 2, WindowKind::token, everything, {63, 128, 193, 320, 447}},
                    Case{"half_a_block_and_long_document", 4224, 1, WindowKind::token, everything, {60}},
                    Case{"more_tiles_than_sms", 1024, 40, WindowKind::token, everything, {}},
                    Case{"two_steps_a_tile", 8192, 6, WindowKind::block, 128, {}},
                    Case{"odd_number_of_blocks", 1664, 7, WindowKind::block, 384, {600, 900, 901}},
                    Case{"groups_of_heads", 8192, 10, WindowKind::token, everything, {}},
                    Case{"recipe", 49152, 6, WindowKind::block, 1792, regular_documents(49152, 1000)},
                    narrow({"smallest", 128, 1, WindowKind::token, everything, {}}),
                    narrow({"causal", 640, 3, WindowKind::token, everything, {}}),
                    narrow({"documents", 384, 2, WindowKind::token, everything, {0, 50, 200, 201, 300}}),
                    narrow({"one_block", 384, 3, WindowKind::block, 128, {}}),
                    narrow({"200_tokens_and_documents", 512, 2, WindowKind::token, 200, {70, 400}}),
                    narrow({"30_tokens", 384, 2, WindowKind::token, 30, {45, 200}}),
                    narrow({"documents_near_half_blocks", 512, 2, WindowKind::token, everything, {63, 128, 193, 320}}),
                    narrow({"more_tiles_than_sms", 1024, 40, WindowKind::token, everything, {}}),
                    narrow({"gpt2", 16384, 25, WindowKind::token, 1024, regular_documents(16384, 1024)})),
    [](const auto& info) { return info.param.name; });

/// Neighbouring tiles have none, some or all of their key blocks in common.
TEST(CudaAttentionMasks, AnyDocumentsAndWindowsOfBlocks) {
  SKIP_WITHOUT_DEVICE();
  std::uint32_t state = 1;
  const auto below = [&](int n) {
    state = state * 1664525 + 1013904223;
    return static_cast<int>((state >> 8) % n);
  };
  for (int i = 0; i < 40; ++i) {
    const int length = attention_block * (1 + below(24)), heads = 1 + below(12);
    Case c{"", length, heads, WindowKind::block, attention_block * (1 + below(20)), {}, i % 2 == 0 ? 128 : 64};
    SCOPED_TRACE(std::to_string(length) + " tokens, " + std::to_string(heads) + " heads of " +
                 std::to_string(c.head_dim) + ", window " + std::to_string(c.window));
    const int mean = 64 << below(5);
    for (int t = below(mean); t < c.length; t += 1 + below(2 * mean)) c.document_begins.push_back(t);
    const Problem p(c);
    p.run();
    expect_agrees(p, p.copy(), below(c.heads));
  }
}

/// Rows [first, last) of a result.
HeadResult cut(const HeadResult& r, int head_dim, int first, int last) {
  const auto part = [&](const test::Vector<float>& x, int columns) {
    return test::Vector<float>(x.begin() + static_cast<std::ptrdiff_t>(first) * columns,
                               x.begin() + static_cast<std::ptrdiff_t>(last) * columns);
  };
  return {part(r.y, head_dim), part(r.lse, 1), part(r.d_q, head_dim), part(r.d_k, head_dim), part(r.d_v, head_dim)};
}

/// Long sequences: samples of rows that the window keeps from all but their neighbours.
class CudaAttentionLong : public testing::TestWithParam<Case> {};

TEST_P(CudaAttentionLong, AgreesWithThePortableOneOnSamples) {
  SKIP_WITHOUT_DEVICE();
  const Problem p(GetParam());
  p.run();
  const auto all = p.copy();
  expect_written("y", all.y, p.y_columns());
  expect_written("d_kv", all.d_kv, p.kv_columns());
  const int reach = p.c.window, sample = 4 * reach, head = p.c.heads - 1;
  for (const int first : {0, p.c.length / 2, p.c.length - sample}) {
    SCOPED_TRACE(first);
    const Rows rows{first, sample};
    const HeadResult got = p.head(all, head, rows), expected = p.expected(head, got.y, rows);
    // Queries further than the window from the sample's start, and keys further from its end, miss no pair; the
    // gradients of keys also need their queries' statistics.
    const int begin = first == 0 ? 0 : reach, end = first + sample == p.c.length ? sample : sample - reach;
    expect_near(cut(got, p.c.head_dim, begin, end), cut(expected, p.c.head_dim, begin, end));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lengths, CudaAttentionLong,
    testing::Values(Case{"65536", 65536, 6, WindowKind::block, 384, regular_documents(65536, 1000)},
                    Case{"65536_tokens", 65536, 2, WindowKind::token, 1024, regular_documents(65536, 3000)},
                    Case{"262144", 262144, 2, WindowKind::block, 1792, regular_documents(262144, 1000)}),
    [](const auto& info) { return "T" + info.param.name; });

TEST(CudaAttentionSingleKey, YieldsItsValueAndNoGradientOfScores) {
  SKIP_WITHOUT_DEVICE();
  const Problem p({"", 384, 1, WindowKind::token, 1, {}});
  p.run();
  const HeadResult got = p.head(p.copy(), 0), expected = p.expected(0, got.y);
  EXPECT_EQ(got.y, expected.y);
  EXPECT_LT(relative_error(got.d_v, expected.d_v), 4e-3);
  // p = 1 and d_p = delta but for the order of float sums, about 1 in size.
  for (const float x : got.d_q) ASSERT_NEAR(x, 0, 1e-4);
  for (const float x : got.d_k) ASSERT_NEAR(x, 0, 1e-4);
}

TEST(CudaAttentionRange, ScoresBeyondTheRangeOfExpStayAccurate) {
  SKIP_WITHOUT_DEVICE();
  const Problem p({"", 256, 1, WindowKind::token, everything, {}}, 32);
  p.run();
  const HeadResult got = p.head(p.copy(), 0), expected = p.expected(0, got.y);
  EXPECT_GT(*std::max_element(expected.lse.begin(), expected.lse.end()), 150);  // exp overflows float at 88.7
  EXPECT_LT(relative_error(got.y, expected.y), 4e-3);
  EXPECT_LT(relative_error(got.lse, expected.lse), 1e-5);
}

TEST(CudaAttentionOrder, EveryRunGivesTheSameBits) {
  SKIP_WITHOUT_DEVICE();
  const Problem p({"", 2048, 6, WindowKind::token, 700, {500, 1300}});
  p.run();
  const auto first = p.copy();
  for (int i = 0; i < 5; ++i) {
    p.run();
    const auto again = p.copy();
    const auto same = [](bf16 a, bf16 b) { return a.bits == b.bits; };
    EXPECT_TRUE(std::equal(first.y.begin(), first.y.end(), again.y.begin(), same));
    EXPECT_EQ(first.lse, again.lse);
    for (int head = 0; head < p.c.heads; ++head) {
      const HeadResult a = p.head(first, head), b = p.head(again, head);
      EXPECT_EQ(a.d_k, b.d_k);
      EXPECT_EQ(a.d_v, b.d_v);
      EXPECT_EQ(a.d_q, b.d_q);  // sums of up to 7 terms
    }
  }
}

/// Beside other work on the device thread blocks may start when those before them have taken all tiles, or most.
TEST(CudaAttentionOrder, ThreadBlocksMayStartLate) {
  SKIP_WITHOUT_DEVICE();
  const Problem other({"", 8192, 12, WindowKind::token, everything, {}});
  const Problem p({"", 2048, 12, WindowKind::token, 128, {500, 1300}});
  p.run();
  const auto alone = p.copy();
  Stream streams[2];
  for (Stream& s : streams) s = create_stream(Gemms::reproducible);
  for (int round = 0; round < 20; ++round) {
    other.run(streams[0]);
    for (int i = 0; i < 10; ++i) p.run(streams[1]);
    const auto beside = p.copy();
    const auto same = [](bf16 a, bf16 b) { return a.bits == b.bits; };
    EXPECT_TRUE(std::equal(alone.y.begin(), alone.y.end(), beside.y.begin(), same));
    EXPECT_TRUE(std::equal(alone.d_kv.begin(), alone.d_kv.end(), beside.d_kv.begin(), same));
    EXPECT_EQ(beside.d_q, alone.d_q);  // sums of two terms
  }
  for (Stream& s : streams) destroy_stream(s);
}

/// Whoever uses a counter last clears it, so that the next launch finds zeros.
TEST(CudaAttentionOrder, CountersAreLeftAtZero) {
  SKIP_WITHOUT_DEVICE();
  const Case cases[] = {{"", 128, 1, WindowKind::token, everything, {}},
                        {"", 1024, 3, WindowKind::token, everything, {}},
                        {"", 2048, 12, WindowKind::token, 128, {500, 1300}},
                        {"", 2048, 6, WindowKind::token, 16, regular_documents(2048, 40)},
                        {"", 4096, 20, WindowKind::block, 384, {200, 333, 640}}};
  for (const Case& c : cases) {
    const Problem p(c);
    p.run();
    std::vector<unsigned> counters(attention_counter_bytes / sizeof(unsigned), 1);
    const auto* const from = static_cast<const std::byte*>(static_cast<Stream>(p.stream).sums) + ordered_sum_bytes;
    test::cuda_check(cudaMemcpy(counters.data(), from, attention_counter_bytes, cudaMemcpyDeviceToHost));
    EXPECT_EQ(std::ranges::count(counters, 0u), static_cast<std::ptrdiff_t>(counters.size())) << c.length;
  }
}

/// Poisons q, k and v of block `poisoned_block` and expects the rows [first, last), which have no pair with it, to stay
/// as they were: an implementation that computed such a pair and masked it afterwards would spread the NaN, as 0 * NaN
/// is NaN.
void expect_block_untouched(const Case& c, int poisoned_block, int first, int last) {
  const Problem p(c);
  p.run();
  const HeadResult clean = p.head(p.copy(), 0);
  const std::size_t row_bytes = p.qkv_columns() * sizeof(bf16);
  test::cuda_check(
      cudaMemset(p.qkv.data() + static_cast<std::size_t>(poisoned_block) * attention_block * p.qkv_columns(), 0xFF,
                 attention_block * row_bytes));
  p.run();
  const HeadResult dirty = p.head(p.copy(), 0);
  EXPECT_TRUE(std::isnan(dirty.d_v[static_cast<std::size_t>(poisoned_block) * attention_block * c.head_dim]));
  const auto same = [&](const test::Vector<float>& a, const test::Vector<float>& b) {
    return std::equal(a.begin() + first * c.head_dim, a.begin() + last * c.head_dim, b.begin() + first * c.head_dim);
  };
  EXPECT_TRUE(same(dirty.y, clean.y));
  EXPECT_TRUE(same(dirty.d_k, clean.d_k));
  EXPECT_TRUE(same(dirty.d_v, clean.d_v));
  EXPECT_TRUE(std::none_of(dirty.d_q.begin() + first * c.head_dim, dirty.d_q.begin() + last * c.head_dim,
                           [](float x) { return std::isnan(x); }));
}

TEST(CudaAttentionSparsity, SkipsBlocksWithoutAPair) {
  SKIP_WITHOUT_DEVICE();
  const Case one_block{"", 512, 1, WindowKind::block, 128, {}};
  expect_block_untouched(one_block, 1, 0, 128);
  expect_block_untouched(one_block, 1, 256, 512);
  const Case two_blocks{"", 512, 1, WindowKind::block, 256, {}};
  expect_block_untouched(two_blocks, 0, 256, 512);
  expect_block_untouched(two_blocks, 3, 0, 256);
  const Case documents{"", 512, 1, WindowKind::token, everything, {100, 300}};
  expect_block_untouched(documents, 0, 384, 512);
  expect_block_untouched(documents, 3, 0, 256);
  expect_block_untouched(narrow(documents), 3, 0, 256);
  expect_block_untouched(narrow(two_blocks), 0, 256, 512);
}

TEST(CudaAttentionArguments, RefusesWhatTheKernelsCannotTake) {
  SKIP_WITHOUT_DEVICE();
  const Problem p({"", 256, 2, WindowKind::token, everything, {}});
  const Mat<float> lse(p.lse.data(), 2, 256);
  auto in = p.inputs();
  in.heads = 8;  // of 32 columns
  EXPECT_THROW(cuda::attention_forward<bf16>(p.stream, p.values(p.y), lse, in, p.mask.view(), p.scratch()),
               std::invalid_argument);
  in = p.inputs();
  in.paired = true;  // its mask has two rows a token
  EXPECT_THROW(cuda::attention_forward<bf16>(p.stream, p.values(p.y), lse, in, p.mask.view(), p.scratch()),
               std::invalid_argument);
  in = p.inputs();
  in.scale = 0;
  EXPECT_THROW(cuda::attention_forward<bf16>(p.stream, p.values(p.y), lse, in, p.mask.view(), p.scratch()),
               std::invalid_argument);
  in = p.inputs();
  in.q.data += 1;  // rows no longer begin at multiples of 16 bytes
  EXPECT_THROW(cuda::attention_forward<bf16>(p.stream, p.values(p.y), lse, in, p.mask.view(), p.scratch()),
               std::invalid_argument);
  constexpr int tokens = 1 << 18, heads = 128;  // more than there are counters for
  const Mat<bf16> x(p.qkv.data(), tokens, heads * p.c.head_dim);
  AttentionMask mask = p.mask.view();
  mask.length = tokens;
  EXPECT_THROW(
      cuda::attention_backward<bf16>(p.stream, {p.d_q.data(), tokens, x.cols}, x, x, x, {p.lse.data(), heads, tokens},
                                     x, {x, x, x, heads, scale}, mask, p.scratch()),
      std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
