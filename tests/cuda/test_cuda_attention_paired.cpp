// Paired heads on CUDA: against the portable implementation, and against attention over the rows that the pairing
// defines.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "tests/cuda/device_mask.hpp"
#include "tests/cuda/panels.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"
#include "tests/support/owned_mask.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceMask;
using test::DeviceVector;
using test::everything;
using test::from_panels;
using test::regular_documents;
using test::relative_error;
using test::Tensor;

constexpr int spare = 8;  // columns between the rows, which must stay as they are
constexpr float scale = 0.12f;

struct Case {
  std::string name;
  int tokens, heads;
  WindowKind kind;
  int window;  ///< rows
  std::vector<int> document_begins;
  int head_dim = 128;

  int width() const { return heads * head_dim; }
  /// Over the 2 T rows.
  OwnedMask mask() const { return test::documents_mask(tokens, document_begins, kind, window, 2); }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// Inputs on both sides, and outputs that are NaN at first.
struct Problem {
  Case c;
  OwnedMask host_mask;
  DeviceMask mask;
  Tensor<bf16> q, k, v, d_y, y, d_k, d_v;
  Tensor<float> lse, d_q;
  DeviceVector<std::byte> workspace;

  explicit Problem(const Case& c)
      : c(c),
        host_mask(c.mask()),
        mask(host_mask.view()),
        q(random(1, 2)),
        k(random(2, 2)),
        v(random(3, 2)),
        d_y(random(4, 1)),
        y(output()),
        d_k(output()),
        d_v(output()),
        lse(Tensor<float>::poisoned(c.heads / 2, 2 * c.tokens)),
        d_q(Tensor<float>::poisoned(c.tokens, c.width())),
        workspace(attention_workspace<bf16>(c.tokens, c.heads, c.head_dim)) {}

  Tensor<bf16> random(unsigned seed, float bound) const {
    return Tensor<bf16>(c.tokens, c.width(), seed, {-bound, bound}, c.width() + spare);
  }
  Tensor<bf16> output() const { return Tensor<bf16>::poisoned(c.tokens, c.width(), c.width() + spare); }

  void run() const {
    const test::SumStream stream;
    const AttentionInputs<bf16> in{
        .q = q.device(), .k = k.device(), .v = v.device(), .heads = c.heads, .scale = scale, .paired = true};
    const Workspace scratch{workspace.data(), workspace.size()};
    cuda::attention_forward<bf16>(stream, y.device(), lse.device(), in, mask.view(), scratch);
    cuda::attention_backward<bf16>(stream, d_q.device(), d_k.device(), d_v.device(), y.device(), lse.device(),
                                   d_y.device(), in, mask.view(), scratch);
  }

  /// The rows without what is between them, which must still be NaN.
  test::Vector<float> rows(const char* name, const Tensor<bf16>& x) const {
    const test::Vector<float> all = x.device_values();
    test::Vector<float> out;
    std::size_t beyond = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (static_cast<int>(i % (c.width() + spare)) < c.width()) {
        out.push_back(all[i]);
      } else {
        beyond += !std::isnan(all[i]);
      }
    }
    EXPECT_EQ(beyond, 0u) << name;
    return out;
  }
};

class CudaAttentionPaired : public testing::TestWithParam<Case> {};

/// Results but lse and d_q are rounded to bf16 (relative norm 1.7e-3), after GEMMs whose operand p or d_s was rounded
/// too.
TEST_P(CudaAttentionPaired, AgreesWithThePortableOne) {
  SKIP_WITHOUT_DEVICE();
  Problem p(GetParam());
  p.run();
  const int tokens = p.c.tokens, width = p.c.width();
  test::Vector<float> y = p.rows("y", p.y);  // backward inputs include the device's y
  struct {
    test::Vector<float> y, lse, d_q, d_k, d_v;
  } expected;
  for (test::Vector<float>* x : {&expected.y, &expected.lse, &expected.d_q, &expected.d_k, &expected.d_v}) {
    x->resize(x == &expected.lse ? static_cast<std::size_t>(p.c.heads) * tokens : y.size());
  }
  const auto mat = [&](test::Vector<float>& x) { return Mat<float>(x.data(), tokens, width); };
  const Mat<float> lse(expected.lse.data(), p.c.heads / 2, 2 * tokens);
  test::Vector<std::byte> memory(portable::attention_workspace<float>(tokens, p.c.heads, p.c.head_dim) + 64);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  const Workspace scratch = Workspace(memory).subspan(misaligned ? 64 - misaligned : 0);
  const AttentionInputs<float> in{
      .q = p.q.host(), .k = p.k.host(), .v = p.v.host(), .heads = p.c.heads, .scale = scale, .paired = true};
  portable::attention_forward<float>({}, mat(expected.y), lse, in, p.host_mask.view(), scratch);
  portable::attention_backward<float>({}, mat(expected.d_q), mat(expected.d_k), mat(expected.d_v), mat(y), lse,
                                      p.d_y.host(), in, p.host_mask.view(), scratch);
  EXPECT_LT(relative_error(y, expected.y), 4e-3);
  EXPECT_LT(relative_error(p.lse.device_values(), expected.lse), 1e-5);
  EXPECT_LT(relative_error(from_panels(p.d_q.device_values(), tokens, width), expected.d_q), 4e-3);
  EXPECT_LT(relative_error(p.rows("d_k", p.d_k), expected.d_k), 4e-3);
  EXPECT_LT(relative_error(p.rows("d_v", p.d_v), expected.d_v), 4e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Masks, CudaAttentionPaired,
    testing::Values(Case{"smallest", 128, 2, WindowKind::token, everything, {}},
                    Case{"causal", 384, 4, WindowKind::token, everything, {}},
                    Case{"documents", 384, 2, WindowKind::token, everything, {0, 50, 200, 201, 300}},
                    Case{"one_block", 384, 6, WindowKind::block, 128, {}},
                    Case{"two_blocks_and_documents", 512, 2, WindowKind::block, 256, {128, 130, 300}},
                    Case{"two_rows", 384, 2, WindowKind::token, 2, {}},
                    Case{"101_rows_and_documents", 384, 2, WindowKind::token, 101, {70, 71, 257}},
                    Case{"31_rows_near_half_blocks", 384, 4, WindowKind::token, 31, {31, 64, 97, 160}},
                    Case{"300_rows_and_documents", 2048, 6, WindowKind::token, 300, regular_documents(2048, 300)},
                    Case{"many_heads", 640, 20, WindowKind::block, 384, {200, 333}},
                    Case{"long", 2048, 6, WindowKind::block, 896, regular_documents(2048, 1000)},
                    Case{"heads_of_64_near_half_blocks", 384, 4, WindowKind::token, everything, {31, 64, 97, 160}, 64},
                    Case{"heads_of_64", 384, 6, WindowKind::token, 101, {70, 71, 257}, 64}),
    [](const auto& info) { return info.param.name; });

enum class Heads { plain, paired };

/// Inputs and results of one attention over dense tensors.
struct Dense {
  DeviceVector<bf16> y, d_k, d_v;
  DeviceVector<float> lse, d_q;

  explicit Dense(std::size_t size) : y(size), d_k(size), d_v(size), lse(size / 128), d_q(size) {}

  void run(const Tensor<bf16> (&inputs)[4], int rows, int heads, Heads kind, const AttentionMask& mask) const {
    const bool paired = kind == Heads::paired;
    const test::SumStream stream;
    const int cols = heads * 128;
    const auto mat = [&](const Tensor<bf16>& x) { return Mat<bf16>(x.device().data, rows, cols); };
    const auto out = [&](const DeviceVector<bf16>& x) { return Mat<bf16>(x.data(), rows, cols); };
    const Mat<float> lse_mat(lse.data(), paired ? heads / 2 : heads, mask.length);
    const DeviceVector<std::byte> workspace(attention_workspace<bf16>(rows, heads, 128));
    const Workspace scratch{workspace.data(), workspace.size()};
    const AttentionInputs<bf16> in{mat(inputs[0]), mat(inputs[1]), mat(inputs[2]), heads, scale, paired};
    cuda::attention_forward<bf16>(stream, out(y), lse_mat, in, mask, scratch);
    cuda::attention_backward<bf16>(stream, {d_q.data(), rows, cols}, out(d_k), out(d_v), out(y), lse_mat,
                                   mat(inputs[3]), in, mask, scratch);
    test::cuda_check(cudaDeviceSynchronize());
  }
};

/// A dense [T, H D] lies as [2 T, H/2 D] does, so the two must agree bit for bit where sums have a fixed order.
TEST(CudaAttentionPairedRows, AreThoseOfPlainAttention) {
  SKIP_WITHOUT_DEVICE();
  const Case cases[] = {{"", 1024, 40, WindowKind::token, everything, {100, 600}},
                        {"", 8192, 10, WindowKind::block, 384, regular_documents(8192, 700)},
                        {"", 49152, 6, WindowKind::block, 896, regular_documents(49152, 1000)}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.tokens);
    const OwnedMask host_mask = c.mask();
    const DeviceMask mask(host_mask.view());
    const Tensor<bf16> inputs[] = {{c.tokens, c.width(), 1, {-2, 2}},
                                   {c.tokens, c.width(), 2, {-2, 2}},
                                   {c.tokens, c.width(), 3, {-2, 2}},
                                   {c.tokens, c.width(), 4}};
    const std::size_t size = static_cast<std::size_t>(c.tokens) * c.width();
    const Dense got(size), expected(size);
    got.run(inputs, c.tokens, c.heads, Heads::paired, mask.view());
    expected.run(inputs, 2 * c.tokens, c.heads / 2, Heads::plain, mask.view());
    const auto same = [](const DeviceVector<bf16>& a, const DeviceVector<bf16>& b) {
      const auto x = a.host(), y = b.host();
      return std::equal(x.begin(), x.end(), y.begin(), [](bf16 i, bf16 j) { return i.bits == j.bits; });
    };
    EXPECT_TRUE(same(got.y, expected.y));
    EXPECT_EQ(got.lse.host(), expected.lse.host());
    EXPECT_TRUE(same(got.d_k, expected.d_k));
    EXPECT_TRUE(same(got.d_v, expected.d_v));
    EXPECT_LT(relative_error(from_panels(got.d_q.host(), c.tokens, c.width()),
                             from_panels(expected.d_q.host(), 2 * c.tokens, c.width() / 2)),
              2e-6);  // float sums in any order
  }
}

TEST(CudaAttentionPairedArguments, RefusesAnOddNumberOfHeadsAndAMaskOfTokens) {
  SKIP_WITHOUT_DEVICE();
  Problem p({"", 256, 6, WindowKind::token, everything, {}});
  AttentionInputs<bf16> in{p.q.device(), p.k.device(), p.v.device(), 6, scale};
  in.paired = true;
  const Workspace scratch{p.workspace.data(), p.workspace.size()};
  AttentionMask mask = p.mask.view();
  mask.length = 256;
  EXPECT_THROW(cuda::attention_forward<bf16>({}, p.y.device(), p.lse.device(), in, mask, scratch),
               std::invalid_argument);
  for (Mat<const bf16>* x : {&in.q, &in.k, &in.v}) x->cols = 3 * 128;
  in.heads = 3;
  EXPECT_THROW(cuda::attention_forward<bf16>({}, p.y.device(), p.lse.device(), in, p.mask.view(), scratch),
               std::invalid_argument);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
