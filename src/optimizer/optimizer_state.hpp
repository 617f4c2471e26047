#pragma once
// What the optimizer keeps of a bucket, in the format that the deck asks for.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/ops.hpp"
#include "src/model/params.hpp"
#include "src/optimizer/update_rules.hpp"

namespace nanorun {

/// Elements in the accumulators' type, or in T, that of the weights, where T is bf16 and the deck asks for it. The
/// other span is empty.
template <class T>
struct Kept {
  using Wide = kernels::acc_t<T>;
  static constexpr bool one_type = std::is_same_v<T, Wide>;  ///< then there are only wide elements

  std::span<Wide> wide;
  std::span<T> narrow{};

  /// Calls body with the span that holds the elements.
  template <class Body>
  void visit(const Body& body) const {
    if constexpr (!one_type) {
      if (wide.empty()) return body(narrow);
    }
    body(wide);
  }
  /// The elements, known to be of this type.
  template <class E>
  std::span<E> as() const {
    if constexpr (std::is_same_v<E, Wide>) {
      return wide;
    } else {
      return narrow;
    }
  }
  Kept part(std::size_t first, std::size_t size) const {
    if (wide.empty()) return {{}, narrow.subspan(first, size)};
    return {wide.subspan(first, size)};
  }
  std::size_t size() const { return wide.size() + narrow.size(); }
};

/// Masters that are no weights themselves, and moments, of what is trained: Adam has two, Muon one and, of NorMuon, a
/// number for each line of a block. What there is none of is empty.
template <class T>
struct BucketState {
  Kept<T> master, moment1, moment2;

  /// Takes the memory of one rank's part, `rows` with `lines` of NorMuon; only counts where the allocator does.
  BucketState(kernels::WorkspaceAllocator& allocator, const Config& config, const Bucket& bucket,
              const std::vector<OwnedRows>& rows, std::size_t lines) {
    std::size_t size = 0;
    for (const OwnedRows& tensor : rows) size += tensor.row_count * tensor.cols;
    // Tensors of one bucket lie together; of learned scalars, which are fp32 everywhere, bf16 values are kept in fp32.
    const auto narrow = [&](StateFormat UpdateRule::*format) {
      return !Kept<T>::one_type && !bucket.scalars() && std::ranges::all_of(rows, [&](const OwnedRows& tensor) {
        return update_rule(config, *tensor.parameter).*format == StateFormat::bf16;
      });
    };
    const auto take = [&](std::size_t count, bool in_bf16) -> Kept<T> {
      if (in_bf16) return {{}, {allocator.take<T>(count), count}};
      return {{allocator.take<typename Kept<T>::Wide>(count), count}};
    };
    if (bucket.fixed()) return;
    if (!Kept<T>::one_type && !bucket.scalars() && !narrow(&UpdateRule::master)) master = take(size, false);
    moment1 = take(size, narrow(&UpdateRule::moments));
    moment2 = bucket.group == Group::matrix ? take(lines, false) : take(size, narrow(&UpdateRule::moments));
  }
};

/// Kept elements as the host sees them, in the accumulators' type: themselves where ops work on host memory, elsewhere
/// a copy.
template <class T>
class HostKept {
 public:
  using Wide = typename Kept<T>::Wide;

  explicit HostKept(const Kept<T>& kept) : kept_(kept) {
    if constexpr (!ops::on_host) copy_ = std::make_unique_for_overwrite<Wide[]>(kept.size());
  }

  std::span<Wide> span() {
    if constexpr (ops::on_host) return kept_.wide;
    return {copy_.get(), kept_.size()};
  }
  /// Brings the copy up to date, once the stream has been waited for.
  void download(kernels::Stream stream) {
    if constexpr (ops::on_host) return;
    kept_.visit([&]<class E>(std::span<E> elements) {
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
  /// Brings the elements up to date with what the host wrote to the copy, rounded to their type.
  void upload(kernels::Stream stream) {
    if constexpr (ops::on_host) return;
    kept_.visit([&]<class E>(std::span<E> elements) {
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
  /// body(at, chunk) on a buffer for the elements from `at` on. Its memory is not pinned, so that copies are done with
  /// it when they return.
  template <class Body>
  void by_chunks(const Body& body) {
    std::vector<T> buffer(std::min<std::size_t>(kept_.size(), 1 << 22));
    for (std::size_t at = 0; at < kept_.size(); at += buffer.size()) {
      body(at, std::span(buffer).first(std::min(buffer.size(), kept_.size() - at)));
    }
  }

  Kept<T> kept_;
  std::unique_ptr<Wide[]> copy_;  ///< whose pages the system gives where they are written
};

}  // namespace nanorun
