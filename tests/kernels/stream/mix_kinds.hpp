#pragma once
// The mixes that the tests of both implementations compute.

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/stream/mix.hpp"

namespace nanorun::kernels::test {

/// Where the gradient of a term's source goes: nowhere, to MixBackward::d_out, or to a matrix of the source's own.
enum class To { nowhere, d_out, accumulate, overwrite };

/// Where mix_backward() reads the gradient of the sum. With scaled_d_in it leaves its g.
enum class ReadFrom { d_out, scaled_d_in };

/// One term: indices of its source, scalars and column of numbers per token; -1: none.
struct Term {
  int source = 0;
  To to = To::nowhere;
  int scalar[2] = {-1, -1};
  bool sigmoid = false;  ///< the first scalar goes through a sigmoid
  int column = -1;
  double constant = 1;
  bool norm_source = false;  ///< the source is a norm
  bool implied = false;

  bool has_own_gradient() const { return to == To::accumulate || to == To::overwrite; }
};

struct Kind {
  std::string name;
  std::vector<Term> terms;
  bool norm = false, elsewhere = false;  ///< there is a norm; source 0 has a gradient from elsewhere
  bool alone = false;                    ///< only the norm is wanted
};

inline constexpr int scalar_count = 3, column_count = 4;

inline const std::vector<Kind> kinds = {
    {.name = "OneTerm", .terms = {{0, To::d_out, {0, -1}}}},
    {.name = "Residual",
     .terms = {{0, To::d_out, {0, -1}}, {1, To::accumulate, {1, -1}}},
     .norm = true,
     .elsewhere = true},
    {.name = "Skip",  // what a block of record 21 begins with
     .terms = {{0, To::d_out, {0, -1}}, {1, To::overwrite, {0, 2}}, {2, To::accumulate, {1, -1}}},
     .norm = true,
     .elsewhere = true},
    {.name = "SkipFromItself",
     .terms = {{0, To::d_out, {0, -1}}, {0, To::d_out, {0, 2}}, {1, To::accumulate, {1, -1}}},
     .norm = true},
    {.name = "NormAlone",
     .terms = {{0, To::d_out, {0, -1}}, {1, To::overwrite, {1, -1}}},
     .norm = true,
     .elsewhere = true,
     .alone = true},
    {.name = "Gates",
     .terms = {{.source = 0, .to = To::d_out, .constant = 0.5},
               {.source = 1, .to = To::accumulate, .scalar = {0, -1}, .sigmoid = true, .column = 1},
               {2, To::accumulate, {-1, 1}}}},
    {.name = "SquareOfAScalar",
     .terms = {{0, To::d_out},
               {.source = 1, .to = To::overwrite, .scalar = {0, 0}, .sigmoid = true, .column = 2, .constant = -2.5}},
     .elsewhere = true},
    {.name = "NotToOut",
     .terms = {{0, To::overwrite},
               {.source = 1, .to = To::accumulate, .scalar = {0, -1}, .column = 0},
               {.source = 2, .to = To::nowhere, .column = 3}},
     .norm = true},
    {.name = "FourTerms",
     .terms = {{0, To::d_out, {0, -1}},
               {1, To::overwrite, {1, 2}},
               {.source = 2, .to = To::accumulate, .column = 0},
               {.source = 3, .to = To::accumulate, .column = 1}},
     .norm = true},
    {.name = "FiveTerms",
     .terms = {{0, To::d_out},
               {.source = 0, .to = To::d_out, .column = 0},
               {.source = 1, .to = To::accumulate, .column = 1},
               {.source = 2, .to = To::accumulate, .column = 2},
               {3, To::accumulate, {2, -1}}}},
    {.name = "Six",
     .terms = {{.source = 0, .to = To::d_out, .scalar = {0, 1}, .sigmoid = true, .column = 0},
               {.source = 1, .to = To::accumulate, .column = 1, .constant = 3},
               {.source = 2, .to = To::overwrite, .scalar = {1, 2}, .sigmoid = true, .column = 1},
               {.source = 0, .to = To::d_out, .column = 2},
               {3, To::accumulate},
               {.source = 4, .to = To::nowhere, .scalar = {2, -1}, .sigmoid = true, .column = 3, .constant = -1}},
     .norm = true,
     .elsewhere = true},
    {.name = "SixSources",  // as many matrices as a backward pass may read
     .terms = {{0, To::d_out, {0, -1}},
               {1, To::accumulate, {1, -1}},
               {2, To::accumulate, {2, -1}},
               {.source = 3, .to = To::accumulate, .column = 0},
               {.source = 4, .to = To::accumulate, .column = 1},
               {.source = 5, .to = To::accumulate, .column = 2}},
     .norm = true,
     .elsewhere = true},
    // Behind the attention and behind the MLP of a block whose stream is kept as its norm.
    {.name = "AfterAttention",
     .terms = {{.source = 0, .to = To::d_out, .scalar = {0, -1}, .norm_source = true},
               {.source = 1, .to = To::overwrite, .scalar = {1, 2}, .implied = true},
               {.source = 2, .to = To::accumulate, .column = 0},
               {3, To::accumulate, {2, -1}}},
     .norm = true},
    {.name = "AfterMlp",
     .terms = {{.source = 0, .to = To::d_out, .scalar = {0, -1}, .norm_source = true},
               {.source = 1, .to = To::overwrite, .scalar = {1, -1}, .implied = true}},
     .norm = true},
};

inline const Kind& kind(const std::string& name) { return *std::ranges::find(kinds, name, &Kind::name); }

/// What the indices of terms stand for, in the memory of an implementation.
template <class T>
struct TermMemory {
  acc_t<T>*scalars = nullptr, *d_scalars = nullptr;
  acc_t<T>*tokens = nullptr, *d_tokens = nullptr;  ///< [rows, column_count], rows `stride` apart
  int stride = column_count;
  const acc_t<T>* rstd = nullptr;  ///< of a source that is a norm
};

/// `d_source` is the matrix of the term, whatever becomes of its gradient.
template <class T>
MixTerm<T> mix_term(const Term& term, Mat<const T> source, Mat<T> d_source, const TermMemory<T>& at) {
  MixTerm<T> view;
  view.source = source;
  if (term.to != To::nowhere) view.d_source = d_source;
  view.overwrites = term.to == To::overwrite;
  view.implied = term.implied;
  if (term.norm_source) view.rstd = at.rstd;
  view.constant = term.constant;
  for (const int i : {0, 1}) {
    const int s = term.scalar[i];
    if (s >= 0) view.scalars[i] = {at.scalars + s, at.d_scalars + s, term.sigmoid && i == 0};
  }
  const int k = term.column;
  if (k >= 0) view.per_token = {at.tokens + k, at.d_tokens + k, at.stride};
  return view;
}

}  // namespace nanorun::kernels::test
