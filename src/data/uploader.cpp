#include "src/data/uploader.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "src/base/error.hpp"
#include "src/data/bigram.hpp"

namespace nanorun {

using kernels::Stream;
using kernels::Token;
using kernels::Workspace;
using kernels::WorkspaceAllocator;

struct Uploader::Layout {
  Layout(int length, const ModelConfig& model, int candidate_count, Workspace space) {
    WorkspaceAllocator allocator(space);
    const auto rows = [&] { return take_vector<std::int32_t>(allocator, length); };
    tokens = take_vector<Token>(allocator, length);
    targets = take_vector<Token>(allocator, length);
    if (candidate_count > 0) {
      candidates = take_vector<std::int32_t>(allocator, candidate_count);
      candidate_prefixes = take_vector<std::int32_t>(allocator, candidate_count);
    }
    order = rows();
    if (model.bigram_rows > 0) {
      bigrams = rows();
      bigram_order = rows();
    }
    if (model.bigram_sign_rows > 0) bigram_signs = rows();
    long_mask = Mask(length, allocator);
    short_mask = Mask(length, allocator);
    if (!model.paired_layers.empty()) paired_mask = Mask(2 * length, allocator);
    bytes = allocator.used();
  }

  DeviceSequence view() const {
    return {tokens,       targets,          candidates,        candidate_prefixes, order, bigrams, bigram_order,
            bigram_signs, long_mask.view(), short_mask.view(), paired_mask.view()};
  }

  std::span<Token> tokens, targets;
  std::span<std::int32_t> candidates, candidate_prefixes, order, bigrams, bigram_order, bigram_signs;
  Mask long_mask, short_mask, paired_mask;
  std::size_t bytes;
};

template <class Row>
void RowSorter::sort(std::span<std::int32_t> order, std::span<const Row> rows) {
  std::ranges::fill(next_, 0);
  for (const Row row : rows) next_[row] += 1;
  std::exclusive_scan(next_.begin(), next_.end(), next_.begin(), 0);
  for (std::size_t t = 0; t < rows.size(); ++t) order[next_[rows[t]]++] = static_cast<std::int32_t>(t);
}

template void RowSorter::sort(std::span<std::int32_t>, std::span<const Token>);
template void RowSorter::sort(std::span<std::int32_t>, std::span<const std::int32_t>);

Uploader::Uploader(int length, const Config& config, Token end_of_text, Stream upload)
    : length_(length),
      config_(config),
      end_of_text_(end_of_text),
      upload_(upload),
      tokens_(1 + std::numeric_limits<Token>::max()),
      bigrams_(config.model.bigram_rows),
      candidates_(padded_vocabulary(config.model)),
      slots_{Slot(Layout(length, config.model, most_candidates(config), {}).bytes),
             Slot(Layout(length, config.model, most_candidates(config), {}).bytes)} {
  for (Slot& slot : slots_) {
    ops::record(upload_, slot.uploaded);
    ops::record(upload_, slot.consumed);
  }
}

Uploader::~Uploader() {
  for (Slot& slot : slots_) {
    ops::destroy_event(slot.uploaded);
    ops::destroy_event(slot.consumed);
  }
}

void Uploader::fill_targets(Layout& host, std::span<const Token> targets, CandidateDraw draw) {
  if (draw.count == 0) {
    std::ranges::copy(targets, host.targets.begin());
    return;
  }
  candidates_.draw(host.candidates, targets, draw.start);
  std::ranges::transform(targets, host.targets.begin(),
                         [&](Token target) { return static_cast<Token>(candidates_.index(target)); });
  std::ranges::transform(host.candidates, host.candidate_prefixes.begin(), [&](std::int32_t column) {
    const std::int32_t prefix = column < std::ssize(prefixes_) ? prefixes_[column] : CandidateSampler::none;
    return prefix < 0 ? CandidateSampler::none : candidates_.index(prefix);
  });
}

void Uploader::fill(Layout& host, const Sequence& sequence, Windows windows, CandidateDraw draw) {
  const WindowKind kind = config_.window.kind;
  const ModelConfig& model = config_.model;
  const MaskPieces pieces{config_.data.packing == Packing::rows ? config_.data.row_length : 0, windows.document_tokens};
  std::ranges::copy(sequence.tokens, host.tokens.begin());
  fill_targets(host, sequence.targets, draw);
  tokens_.sort<Token>(host.order, sequence.tokens);
  host.long_mask.build(sequence.tokens, end_of_text_, kind, windows.long_tokens, pieces);
  host.short_mask.build(sequence.tokens, end_of_text_, kind, windows.short_tokens, pieces);
  if (!model.paired_layers.empty()) {
    host.paired_mask.build(sequence.tokens, end_of_text_, kind, windows.short_tokens, pieces);
  }
  if (model.bigram_rows > 0) {
    bigram_rows(host.bigrams, sequence.tokens, model.bigram_rows);
    bigrams_.sort<std::int32_t>(host.bigram_order, host.bigrams);
  }
  if (model.bigram_sign_rows > 0) bigram_sign_rows(host.bigram_signs, sequence.tokens, model.bigram_sign_rows);
}

DeviceSequence Uploader::load(Trace& trace, Stream compute, const Sequence& sequence, Windows windows,
                              CandidateDraw draw) {
  const auto length = static_cast<int>(sequence.tokens.size());
  if (length > length_ || sequence.targets.size() != sequence.tokens.size()) {
    throw Error(ExitCode::internal, fmt::format("sequence of {} tokens and {} targets for {}", sequence.tokens.size(),
                                                sequence.targets.size(), length_));
  }
  current_ = 1 - current_;
  Slot& slot = slots_[current_];
  ops::synchronize(slot.uploaded);  // two sequences ago: the host's buffer is free
  Layout host(length, config_.model, draw.count, slot.host.space());
  fill(host, sequence, windows, draw);

  ops::wait(upload_, slot.consumed);
  {
    Transfer transfer(trace, Phase::data, upload_);
    ops::copy_to_device(upload_, slot.device.space().data(), slot.host.space().data(), host.bytes);
  }
  ops::record(upload_, slot.uploaded);
  ops::wait(compute, slot.uploaded);
  return Layout(length, config_.model, draw.count, slot.device.space()).view();
}

void Uploader::release(Stream compute) { ops::record(compute, slots_[current_].consumed); }

}  // namespace nanorun
