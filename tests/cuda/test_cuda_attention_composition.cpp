#include "kernels/attention/attention_composition.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "tests/cuda/device_mask.hpp"
#include "tests/cuda/panels.hpp"
#include "tests/cuda/tensor.hpp"
#include "tests/kernels/check.hpp"

namespace nanorun::kernels::cuda {
namespace {

using test::DeviceVector;
using test::from_panels;
using test::regular_documents;
using test::relative_error;
using test::Tensor;

constexpr int head_dim = 128, spare = 8;  // columns between the rows, which must stay as they are
constexpr float scale = 0.12f;

struct Case {
  std::string name;
  int tokens, heads, window;
  std::vector<int> document_begins;

  int width() const { return heads * head_dim; }
  test::Vector<std::int32_t> first_keys() const {
    test::Vector<std::int32_t> first(tokens, 0);
    std::size_t next = 0;
    for (int t = 0; t < tokens; ++t) {
      if (t > 0) first[t] = first[t - 1];
      for (; next < document_begins.size() && document_begins[next] == t; ++next) first[t] = t;
    }
    return first;
  }
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// Inputs, output, and gradients that begin at random values. w1 and w2 are columns of one matrix, as are their
/// gradients.
struct Problem {
  Case c;
  test::Vector<std::int32_t> host_first_key;
  DeviceVector<std::int32_t> first_key;
  Tensor<bf16> q, k, v, y, d_out, out, d_k, d_v;
  Tensor<float> w, d_w, d_q;
  DeviceVector<std::byte> workspace;

  explicit Problem(const Case& c)
      : c(c),
        host_first_key(c.first_keys()),
        first_key(host_first_key),
        q(random(1, 2)),
        k(random(2, 2)),
        v(random(3, 1)),
        y(random(4, 1)),
        d_out(random(5, 1)),
        out(Tensor<bf16>::poisoned(c.tokens, c.width(), c.width() + spare)),
        d_k(random(6, 0.25f)),
        d_v(random(7, 0.25f)),
        w(c.tokens, 2 * c.heads, 8, {-1, 1}, 2 * c.heads + 3),
        d_w(c.tokens, 2 * c.heads, 9, {-1, 1}, 2 * c.heads + 3),
        d_q(c.tokens, c.width(), 10, {-0.25f, 0.25f}),
        workspace(attention_composition_workspace<bf16>(c.tokens, c.heads, c.window)) {}

  Tensor<bf16> random(unsigned seed, float bound) const {
    return Tensor<bf16>(c.tokens, c.width(), seed, {-bound, bound}, c.width() + spare);
  }

  /// Rows [first, first + count) as if no others were; their documents begin at `first`.
  AttentionComposition<bf16> inputs(const std::int32_t* first_keys, int first, int count) const {
    const auto rows = [&](const auto& x) { return x.device().row_block(first, count); };
    return {{rows(q), rows(k), rows(v), c.heads, scale},
            rows(w).col_block(0, c.heads),
            rows(w).col_block(c.heads, c.heads),
            c.window,
            first_keys};
  }
  AttentionComposition<bf16> inputs() const { return inputs(first_key.data(), 0, c.tokens); }
  AttentionCompositionGradients<bf16> gradients() const {
    return {d_q.device(), d_k.device(), d_v.device(), d_w.device().col_block(0, c.heads),
            d_w.device().col_block(c.heads, c.heads)};
  }
  Workspace scratch() const { return {workspace.data(), workspace.size()}; }
  void run() const {
    cuda::attention_composition_forward<bf16>({}, out.device(), y.device(), inputs(), {});
    cuda::attention_composition_backward<bf16>({}, gradients(), d_out.device(), inputs(), scratch());
  }

  /// What the portable implementation makes of the host's tensors; d_q is dense.
  void run_on_host(Mat<float> dense_d_q) {
    const AttentionComposition<float> dc{{q.host(), k.host(), v.host(), c.heads, scale},
                                         w.host().col_block(0, c.heads),
                                         w.host().col_block(c.heads, c.heads),
                                         c.window,
                                         host_first_key.data()};
    test::Vector<std::byte> memory(portable::attention_composition_workspace<float>(c.tokens, c.heads, c.window) + 64);
    const auto misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    const Workspace space = Workspace(memory).subspan(misaligned ? 64 - misaligned : 0);
    portable::attention_composition_forward<float>({}, out.host(), y.host(), dc, space);
    portable::attention_composition_backward<float>(
        {},
        {dense_d_q, d_k.host(), d_v.host(), d_w.host().col_block(0, c.heads), d_w.host().col_block(c.heads, c.heads)},
        d_out.host(), dc, space);
  }
};

/// The two sides of x differ by this, as a norm, and what is between the rows on the device is what was there.
template <class T>
double error_of(Tensor<T>& x) {
  const Mat<float> host = x.host();
  const test::Vector<float> device = x.device_values();
  test::Vector<float> got, expected;
  std::size_t beyond = 0;
  for (std::size_t i = 0; i < device.size(); ++i) {
    const float want = host.data[i];
    if (static_cast<int>(i % host.ld) < host.cols) {
      got.push_back(device[i]);
      expected.push_back(want);
    } else {
      beyond += device[i] != want && !(std::isnan(device[i]) && std::isnan(want));
    }
  }
  EXPECT_EQ(beyond, 0u);
  return relative_error(got, expected);
}

class CudaHeadComposition : public testing::TestWithParam<Case> {};

/// Results of bf16 are rounded (relative norm 1.7e-3), after products whose operand was rounded too.
TEST_P(CudaHeadComposition, AgreesWithThePortableOne) {
  SKIP_WITHOUT_DEVICE();
  Problem p(GetParam());
  const int tokens = p.c.tokens, width = p.c.width();
  const test::Vector<float> start = from_panels(p.d_q.device_values(), tokens, width);
  test::Vector<float> d_q = start;
  p.run();
  p.run_on_host({d_q.data(), tokens, width});
  EXPECT_LT(error_of(p.out), 4e-3);
  EXPECT_LT(error_of(p.d_k), 4e-3);
  EXPECT_LT(error_of(p.d_v), 4e-3);
  EXPECT_LT(error_of(p.d_w), 5e-5);
  EXPECT_LT(relative_error(from_panels(p.d_q.device_values(), tokens, width), d_q), 4e-3);
}

INSTANTIATE_TEST_SUITE_P(Windows, CudaHeadComposition,
                         testing::Values(Case{"one_block", 64, 2, 112, {}}, Case{"one_head", 128, 1, 112, {}},
                                         Case{"across_blocks", 384, 6, 112, {}}, Case{"one_key", 128, 2, 1, {}},
                                         Case{"five_keys", 256, 3, 5, {100}},
                                         Case{"documents", 384, 6, 112, {0, 50, 63, 64, 65, 130, 190, 192, 370}},
                                         Case{"eight_heads", 256, 8, 100, {17, 200}},
                                         Case{"many_blocks", 8192, 6, 112, regular_documents(8192, 500)}),
                         [](const auto& info) { return info.param.name; });

TEST(CudaHeadCompositionOutput, MayReplaceItsBase) {
  SKIP_WITHOUT_DEVICE();
  const Problem p({"", 256, 6, 112, {100}});
  p.run();
  cuda::attention_composition_forward<bf16>({}, p.y.device(), p.y.device(), p.inputs(), {});
  const test::Vector<float> apart = p.out.device_values(), same = p.y.device_values();
  for (std::size_t i = 0; i < apart.size(); ++i) {
    const bool between = static_cast<int>(i % (p.c.width() + spare)) >= p.c.width();
    ASSERT_TRUE(between || apart[i] == same[i]) << i;
  }
}

TEST(CudaHeadCompositionOrder, ResultsAreReproducible) {
  SKIP_WITHOUT_DEVICE();
  const Case c{"", 4096, 6, 112, regular_documents(4096, 300)};
  const Problem first(c);
  first.run();
  for (int i = 0; i < 3; ++i) {
    const Problem again(c);
    again.run();
    for (const auto tensor : {&Problem::out, &Problem::d_k, &Problem::d_v}) {
      const auto a = (first.*tensor).device_values(), b = (again.*tensor).device_values();
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(),
                             [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); }));
    }
    for (const auto tensor : {&Problem::d_q, &Problem::d_w}) {
      EXPECT_EQ((first.*tensor).device_values(), (again.*tensor).device_values());
    }
  }
}

/// Far down a long sequence, too: the last document, which begins with a block, is as if it were alone.
TEST(CudaHeadCompositionOrder, DocumentsDoNotMeet) {
  SKIP_WITHOUT_DEVICE();
  constexpr int tokens = 49152, last = 512, first = tokens - last;
  const Problem p({"", tokens, 6, 112, {0, 10000, first}});
  p.run();
  const DeviceVector<std::int32_t> zeros(test::Vector<std::int32_t>(last, 0));
  const Tensor<bf16> alone = Tensor<bf16>::poisoned(last, p.c.width());
  cuda::attention_composition_forward<bf16>({}, alone.device(), p.y.device().row_block(first, last),
                                            p.inputs(zeros.data(), first, last), {});
  const test::Vector<float> got = alone.device_values(), all = p.out.device_values();
  for (int t = 0; t < last; ++t) {
    const float* const expected = all.data() + static_cast<std::size_t>(first + t) * (p.c.width() + spare);
    ASSERT_TRUE(std::equal(expected, expected + p.c.width(), got.data() + t * p.c.width())) << t;
  }
}

TEST(CudaHeadCompositionArguments, RefusesWhatTheKernelsCannotTake) {
  SKIP_WITHOUT_DEVICE();
  const Problem p({"", 128, 2, 112, {}});
  const auto refuses = [&](const AttentionComposition<bf16>& dc) {
    EXPECT_THROW(cuda::attention_composition_forward<bf16>({}, p.out.device(), p.y.device(), dc, {}),
                 std::invalid_argument);
    EXPECT_THROW(cuda::attention_composition_backward<bf16>({}, p.gradients(), p.d_out.device(), dc, p.scratch()),
                 std::invalid_argument);
  };
  AttentionComposition<bf16> dc = p.inputs();
  dc.window = 113;
  refuses(dc);
  dc = p.inputs();
  dc.in.heads = 4;  // head_dim 64
  refuses(dc);
  dc = p.inputs();
  dc.in.paired = true;
  refuses(dc);
  refuses(p.inputs(p.first_key.data(), 0, 96));  // not a multiple of 64
}

}  // namespace
}  // namespace nanorun::kernels::cuda
