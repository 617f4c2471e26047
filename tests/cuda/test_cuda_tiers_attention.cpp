// Attention and its projection by the bodies of both tiers; see test_cuda_tiers.cpp.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/attention/attention_bodies.hpp"
#include "kernels/attention/attention_projection.hpp"
#include "tests/cuda/device_mask.hpp"
#include "tests/cuda/projection_shape.hpp"
#include "tests/cuda/sum_stream.hpp"
#include "tests/cuda/tiers.hpp"
#include "tests/kernels/check.hpp"
#include "tests/support/owned_mask.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::Bodies;
using test::BothTensors;
using test::BothVectors;
using test::DeviceVector;
using test::everything;
using test::expect_near;
using test::poisoned_tensors;
using test::Source;
using test::Tensor;
using test::Tokens;
using test::with_both;

// ---------------------------------------------------------------------------------------------------------------------
// Attention

constexpr int spare = 8;  // columns between the rows, which must stay as they are

struct AttentionCase {
  std::string name;
  int tokens, heads;
  WindowKind kind;
  int window;  ///< rows
  std::vector<int> document_begins;
  int head_dim = 128;
  bool paired = false;

  int width() const { return heads * head_dim; }
  int token_rows() const { return paired ? 2 : 1; }
  OwnedMask mask() const { return test::documents_mask(tokens, document_begins, kind, window, token_rows()); }
};

/// By head, in norm. A tier is within 4e-3 of the portable one: it rounds p or d_s, the operand of a product, and the
/// result, each by 1.7e-3 in norm.
void expect_near_by_heads(const char* name, BothTensors<bf16>& x, const AttentionCase& c) {
  const test::Vector<float> hopper = x.hopper.device_values(), ampere = x.ampere.device_values();
  const std::size_t ld = c.width() + spare;
  for (int head = 0; head < c.heads; ++head) {
    test::Vector<float> of_hopper, of_ampere;
    for (std::size_t row = 0; row < hopper.size(); row += ld) {
      const std::size_t first = row + static_cast<std::size_t>(head) * c.head_dim;
      of_hopper.insert(of_hopper.end(), hopper.begin() + first, hopper.begin() + first + c.head_dim);
      of_ampere.insert(of_ampere.end(), ampere.begin() + first, ampere.begin() + first + c.head_dim);
    }
    EXPECT_LT(test::relative_error(of_ampere, of_hopper), test::of_difference * 4e-3) << name << ", head " << head;
  }
  std::size_t beyond = 0;
  for (std::size_t i = 0; i < hopper.size(); ++i) {
    beyond += static_cast<int>(i % ld) >= c.width() && !(std::isnan(hopper[i]) && std::isnan(ampere[i]));
  }
  EXPECT_EQ(beyond, 0u) << name;
}

/// d_q is unrounded, and each head's lies in one piece.
void expect_near_by_heads(const char* name, const BothTensors<float>& d_q, const AttentionCase& c) {
  const test::Vector<float> hopper = d_q.hopper.device_values(), ampere = d_q.ampere.device_values();
  const std::size_t of_head = static_cast<std::size_t>(c.tokens) * c.head_dim;
  for (int head = 0; head < c.heads; ++head) {
    const auto part = [&](const test::Vector<float>& all) {
      return test::Vector<float>(all.begin() + head * of_head, all.begin() + (head + 1) * of_head);
    };
    EXPECT_LT(test::relative_error(part(ampere), part(hopper)), test::of_difference * 4e-3)
        << name << ", head " << head;
  }
}

void compare_attention(const AttentionCase& c) {
  SCOPED_TRACE(c.name + (c.paired ? ", paired" : "") + ", heads of " + std::to_string(c.head_dim));
  constexpr Bodies forward{hopper::attention_forward, ampere::attention_forward};
  constexpr Bodies backward{hopper::attention_backward, ampere::attention_backward};
  const auto random = [&](unsigned seed, float bound) {
    return Tensor<bf16>(c.tokens, c.width(), seed, {-bound, bound}, c.width() + spare);
  };
  const auto output = [&] { return poisoned_tensors<bf16>(c.tokens, c.width(), c.width() + spare); };
  const Tensor<bf16> q = random(1, 2), k = random(2, 2), v = random(3, 2), d_y = random(4, 1);
  const OwnedMask host_mask = c.mask();
  const test::DeviceMask device_mask(host_mask.view());
  const AttentionMask mask = device_mask.view();
  const test::SumStream stream;
  const AttentionInputs<bf16> in{q.device(), k.device(), v.device(), c.heads, 0.12f, c.paired};
  auto y = output(), d_k = output(), d_v = output();
  auto lse = poisoned_tensors<float>(c.heads / c.token_rows(), c.token_rows() * c.tokens);
  auto d_q = poisoned_tensors<float>(c.tokens, c.width());
  const BothVectors<float> delta{DeviceVector<float>(static_cast<std::size_t>(c.tokens) * c.heads),
                                 DeviceVector<float>(static_cast<std::size_t>(c.tokens) * c.heads)};
  with_both([&](auto of) { of(forward)(stream, of(y).device(), of(lse).device(), in, mask); });
  // Both directions backward have the same y and lse.
  with_both([&](auto of) {
    of(backward)(stream, of(d_q).device(), of(d_k).device(), of(d_v).device(), y.hopper.device(), lse.hopper.device(),
                 d_y.device(), in, mask, of(delta).data(), nullptr);
  });
  expect_near_by_heads("y", y, c);
  EXPECT_LT(test::relative_error(lse.ampere.device_values(), lse.hopper.device_values()), 2e-5);
  expect_near_by_heads("d_q", d_q, c);
  expect_near_by_heads("d_k", d_k, c);
  expect_near_by_heads("d_v", d_v, c);
}

TEST(CudaTiersAttention, Masks) {
  SKIP_WITHOUT_BOTH_TIERS();
  for (const int head_dim : {128, 64}) {
    for (AttentionCase c :
         {AttentionCase{"smallest", 128, 1, WindowKind::token, everything, {}},
          AttentionCase{"causal", 640, 3, WindowKind::token, everything, {}},
          AttentionCase{"documents", 384, 2, WindowKind::token, everything, {0, 50, 200, 201, 300}},
          AttentionCase{"one_block", 384, 3, WindowKind::block, 128, {}},
          AttentionCase{"30_tokens", 384, 2, WindowKind::token, 30, {45, 200}},
          AttentionCase{"200_tokens_and_documents", 512, 2, WindowKind::token, 200, {70, 400}},
          AttentionCase{"documents_near_half_blocks", 512, 2, WindowKind::token, everything, {63, 128, 193, 320, 447}},
          AttentionCase{"odd_number_of_blocks", 1664, 7, WindowKind::block, 384, {600, 900, 901}},
          AttentionCase{"more_tiles_than_sms", 1024, 40, WindowKind::token, everything, {}}}) {
      c.head_dim = head_dim;
      compare_attention(c);
    }
  }
}

TEST(CudaTiersAttention, PairedHeads) {
  SKIP_WITHOUT_BOTH_TIERS();
  for (const int head_dim : {128, 64}) {
    for (AttentionCase c : {AttentionCase{"smallest", 128, 2, WindowKind::token, everything, {}},
                            AttentionCase{"documents", 384, 2, WindowKind::token, everything, {0, 50, 200, 201, 300}},
                            AttentionCase{"one_block", 384, 6, WindowKind::block, 128, {}},
                            AttentionCase{"101_rows_and_documents", 384, 2, WindowKind::token, 101, {70, 71, 257}},
                            AttentionCase{"31_rows_near_half_blocks", 384, 4, WindowKind::token, 31, {31, 64, 97, 160}},
                            AttentionCase{"many_heads", 640, 20, WindowKind::block, 384, {200, 333}}}) {
      c.head_dim = head_dim;
      c.paired = true;
      compare_attention(c);
    }
  }
}

TEST(CudaTiersAttention, ShapesOfRecords) {
  SKIP_WITHOUT_BOTH_TIERS();
  const std::vector<int> documents = test::regular_documents(8192, 1000);
  compare_attention({"record 89", 8192, 6, WindowKind::block, 1792, documents});
  compare_attention({"record 89", 8192, 6, WindowKind::block, 896, documents, 128, true});
  compare_attention({"GPT-2", 4096, 25, WindowKind::token, 1024, test::regular_documents(4096, 1024), 64});
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention projection

using ProjectionShape = test::ProjectionShape;

void compare_projection(const ProjectionShape& s, Source source) {
  SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.in) + ", " + std::to_string(s.heads) + " heads of " +
               std::to_string(s.head_dim) + ", source " + std::to_string(static_cast<int>(source)));
  constexpr Bodies forward{hopper::attention_projection_forward<bf16>, ampere::attention_projection_forward<bf16>};
  const int width = s.heads * s.head_dim, vocabulary = 300, angle_rows = s.paired ? 2 * s.rows : s.rows;
  const Tensor<bf16> x(s.rows, s.in, 1), w(3 * width, s.in, 2);
  const Tensor<bf16> u(source == Source::table ? vocabulary : s.rows, width, 3);
  const Tensor<float> cos(angle_rows, s.head_dim / 2, 4), sin(angle_rows, s.head_dim / 2, 5), lambda(1, 2, 6),
      numbers(1, 3 * width, 8);
  const Tokens tokens(s.rows, vocabulary, 7);
  const Vec<const float> bias = s.bias ? Vec<const float>(numbers.device_flat()) : Vec<const float>();
  auto qkv = poisoned_tensors<bf16>(s.key_offset ? s.rows + 1 : s.rows, 3 * width, 3 * width + s.pad);
  auto v_out = poisoned_tensors<bf16>(s.rows, width);
  auto rstd = poisoned_tensors<float>(s.rows, 2 * s.heads);
  const bool in_place = source == Source::in_place || source == Source::as_is;
  with_both([&](auto of) {
    const Mat<bf16> to = of(qkv).device();
    const Mat<bf16> mixed =
        in_place ? to.row_block(0, s.rows).col_block(2 * width, width) : static_cast<Mat<bf16>>(of(v_out).device());
    of(forward)({}, to, mixed, of(rstd).device(), x.device(), w.device(), s.rotary<bf16>(cos.device(), sin.device()),
                test::residual_of<bf16>(source, lambda.device().data, to, u.device(), tokens.device.data()), 1.0 / 128,
                bias);
  });
  // With a key offset the last row has still dims of keys alone.
  expect_near("qkv", qkv, 2e-3, test::two_roundings, s.rows);
  if (!in_place) expect_near("v_out", v_out, 2e-3);
  expect_near("rstd", rstd, 0, 2e-4, s.norms ? test::all_rows : 0);
}

TEST(CudaTiersAttention, Projection) {
  SKIP_WITHOUT_BOTH_TIERS();
  for (const Source source : {Source::none, Source::in_place, Source::as_is, Source::interpolated, Source::itself,
                              Source::unit, Source::table}) {
    for (const ProjectionShape& s :
         {ProjectionShape{1, 64, 1}, ProjectionShape{17, 128, 1, 128}, ProjectionShape{300, 576, 3, 16},
          ProjectionShape{.rows = 17, .in = 64, .heads = 1, .head_dim = 64},
          ProjectionShape{.rows = 300, .in = 576, .heads = 5, .pad = 16, .head_dim = 64},
          ProjectionShape{.rows = 300, .in = 576, .heads = 6, .paired = true, .head_dim = 64},
          ProjectionShape{.rows = 300, .in = 576, .heads = 3, .pad = 16, .bias = true},
          ProjectionShape{.rows = 300, .in = 576, .heads = 5, .bias = true, .head_dim = 64},
          ProjectionShape{.rows = 300, .in = 576, .heads = 6, .pad = 16, .paired = true},
          ProjectionShape{.rows = 1, .in = 64, .heads = 1, .key_offset = true},
          ProjectionShape{.rows = 192, .in = 64, .heads = 2, .key_offset = true},
          ProjectionShape{.rows = 300, .in = 576, .heads = 6, .pad = 16, .paired = true, .key_offset = true},
          ProjectionShape{.rows = 300, .in = 576, .heads = 6, .paired = true, .live_pairs = 32},
          ProjectionShape{
              .rows = 300, .in = 576, .heads = 6, .pad = 16, .key_offset = true, .live_pairs = 48, .still_from = 24},
          ProjectionShape{.rows = 300, .in = 576, .heads = 3, .bias = true, .norms = false},
          ProjectionShape{.rows = 300, .in = 576, .heads = 5, .pad = 16, .head_dim = 64, .norms = false}}) {
      compare_projection(s, source);
    }
  }
}

TEST(CudaTiersAttention, ProjectionOfRecords) {
  SKIP_WITHOUT_BOTH_TIERS();
  compare_projection({8191, 768, 6}, Source::table);
  compare_projection({.rows = 8191, .in = 768, .heads = 6, .paired = true}, Source::unit);
  compare_projection({.rows = 8192, .in = 768, .heads = 6, .key_offset = true}, Source::interpolated);
  compare_projection({.rows = 4096, .in = 1600, .heads = 25, .head_dim = 64}, Source::as_is);
}

}  // namespace
}  // namespace nanorun::kernels::cuda
