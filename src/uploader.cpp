#include "src/uploader.hpp"

#include <algorithm>
#include <numeric>

#include "src/error.hpp"
#include "src/schedule.hpp"

namespace nanorun {

using kernels::Stream;
using kernels::Token;
using kernels::Workspace;
using kernels::WorkspaceAllocator;

namespace {

/// What a slot holds for a sequence of `length` tokens, in host and in device memory alike.
struct Layout {
  Layout(int length, Workspace space) {
    WorkspaceAllocator allocator(space);
    tokens = {allocator.take<Token>(length), static_cast<std::size_t>(length)};
    targets = {allocator.take<Token>(length), static_cast<std::size_t>(length)};
    order = {allocator.take<std::int32_t>(length), static_cast<std::size_t>(length)};
    long_mask = Mask(length, allocator);
    short_mask = Mask(length, allocator);
    bytes = allocator.used();
  }

  std::span<Token> tokens, targets;
  std::span<std::int32_t> order;
  Mask long_mask, short_mask;
  std::size_t bytes;
};

}  // namespace

void TokenSorter::sort(std::span<std::int32_t> order, std::span<const Token> tokens) {
  std::ranges::fill(next_, 0);
  for (const Token token : tokens) next_[token] += 1;
  std::exclusive_scan(next_.begin(), next_.end(), next_.begin(), 0);
  for (std::size_t t = 0; t < tokens.size(); ++t) order[next_[tokens[t]]++] = static_cast<std::int32_t>(t);
}

Uploader::Uploader(int length, const WindowConfig& window, Token end_of_text, Stream upload)
    : length_(length),
      window_(window),
      end_of_text_(end_of_text),
      upload_(upload),
      slots_{Slot(Layout(length, {}).bytes), Slot(Layout(length, {}).bytes)} {
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

DeviceSequence Uploader::load(Trace& trace, Stream compute, const Sequence& sequence, int window) {
  if (static_cast<int>(sequence.tokens.size()) != length_ || sequence.targets.size() != sequence.tokens.size()) {
    throw Error(ExitCode::internal, fmt::format("sequence of {} tokens and {} targets for {}", sequence.tokens.size(),
                                                sequence.targets.size(), length_));
  }
  current_ = 1 - current_;
  Slot& slot = slots_[current_];
  ops::synchronize(slot.uploaded);  // two sequences ago: the host's buffer is free
  Layout host(length_, slot.host.space());
  std::ranges::copy(sequence.tokens, host.tokens.begin());
  std::ranges::copy(sequence.targets, host.targets.begin());
  sorter_.sort(host.order, sequence.tokens);
  host.long_mask.build(sequence.tokens, end_of_text_, window_.kind, window);
  host.short_mask.build(sequence.tokens, end_of_text_, window_.kind, short_window(window_, window));

  ops::wait(upload_, slot.consumed);
  {
    Transfer transfer(trace, Phase::data, upload_);
    ops::copy_to_device(upload_, slot.device.space().data(), slot.host.space().data(), host.bytes);
  }
  ops::record(upload_, slot.uploaded);
  ops::wait(compute, slot.uploaded);
  const Layout device(length_, slot.device.space());
  return {device.tokens, device.targets, device.order, device.long_mask.view(), device.short_mask.view()};
}

void Uploader::release(Stream compute) { ops::record(compute, slots_[current_].consumed); }

}  // namespace nanorun
