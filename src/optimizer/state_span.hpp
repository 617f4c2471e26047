#pragma once
// Tensors that the optimizer keeps, masters and moments, in the format that the deck asks for.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/ops.hpp"
#include "src/base/threads.hpp"

namespace nanorun {

/// Elements in one of two formats: wide, the type of gradients, or narrow, the type T of the weights that GEMMs read.
/// The deck can ask for narrow ones where T is bf16. The span of the other format is empty.
template <class T>
struct StateSpan {
  using Wide = kernels::acc_t<T>;
  /// Whether T and Wide are the same type. If so, all elements are wide ones.
  static constexpr bool one_type = std::is_same_v<T, Wide>;

  std::span<Wide> wide{};
  std::span<T> narrow{};

  /// Calls body with the span that holds the elements.
  template <class Body>
  void visit(const Body& body) const {
    if constexpr (!one_type) {
      if (wide.empty()) return body(narrow);
    }
    body(wide);
  }
  /// The span of elements of type E, which is Wide or T.
  template <class E>
  std::span<E> as() const {
    if constexpr (std::is_same_v<E, Wide>) {
      return wide;
    } else {
      return narrow;
    }
  }
  std::size_t size() const { return wide.size() + narrow.size(); }
  StateSpan part(std::size_t first, std::size_t size) const {
    return wide.empty() ? StateSpan{{}, narrow.subspan(narrow.empty() ? 0 : first, narrow.empty() ? 0 : size)}
                        : StateSpan{wide.subspan(first, size), {}};
  }
};

/// A StateSpan as the host sees it, widened. Where ops work on host memory this is the span itself, elsewhere a copy.
template <class T>
class HostStateSpan {
 public:
  using Wide = typename StateSpan<T>::Wide;

  explicit HostStateSpan(const StateSpan<T>& state) : state_(state) {
    if constexpr (!ops::on_host) copy_ = std::make_unique_for_overwrite<Wide[]>(state.size());
  }

  std::span<Wide> span() {
    if constexpr (ops::on_host) return state_.wide;
    return {copy_.get(), state_.size()};
  }
  /// Brings the copy up to date. Complete once the stream has been waited for.
  void download(kernels::Stream stream) {
    if constexpr (ops::on_host) return;
    if (!std::exchange(has_pages_, true)) take_pages();
    state_.visit([&]<class E>(std::span<E> elements) {
      if constexpr (std::is_same_v<E, Wide>) {
        ops::copy_to_host(stream, copy_.get(), elements.data(), elements.size_bytes());
      } else {
        by_chunks([&](std::size_t at, std::span<E> chunk) {
          ops::copy_to_host(stream, chunk.data(), &elements[at], chunk.size_bytes());
          for (const E x : chunk) copy_[at++] = std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
        });
      }
    });
  }
  /// Writes the copy back, rounded to the format of the elements.
  void upload(kernels::Stream stream) {
    if constexpr (ops::on_host) return;
    state_.visit([&]<class E>(std::span<E> elements) {
      if constexpr (std::is_same_v<E, Wide>) {
        ops::copy_to_device(stream, elements.data(), copy_.get(), elements.size_bytes());
      } else {
        by_chunks([&](std::size_t at, std::span<E> chunk) {
          for (std::size_t i = 0; i < chunk.size(); ++i) chunk[i] = kernels::to_bf16(copy_[at + i]);
          ops::copy_to_device(stream, &elements[at], chunk.data(), chunk.size_bytes());
        });
      }
    });
  }

 private:
  /// One thread would wait for the zeroing of pages longer than for the copy.
  void take_pages() {
    constexpr std::size_t page = 4096 / sizeof(Wide), least = 1024 * page;
    in_parts(state_.size(), least, [this](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; i += page) copy_[i] = 0;
    });
  }

  /// body(at, chunk) for consecutive parts of the elements: a buffer for those from `at` on. The buffer is not pinned,
  /// so copies to and from it are complete when they return.
  template <class Body>
  void by_chunks(const Body& body) {
    std::vector<T> buffer(std::min<std::size_t>(state_.size(), 1 << 22));
    for (std::size_t at = 0; at < state_.size(); at += buffer.size()) {
      body(at, std::span(buffer).first(std::min(buffer.size(), state_.size() - at)));
    }
  }

  StateSpan<T> state_;
  std::unique_ptr<Wide[]> copy_;  ///< not zeroed, so that pages are allocated as they are written
  bool has_pages_ = false;
};

}  // namespace nanorun
