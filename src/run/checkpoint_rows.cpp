#include "src/run/checkpoint_rows.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <span>
#include <utility>

#include "src/base/files.hpp"
#include "src/base/output_file.hpp"
#include "src/base/threads.hpp"
#include "src/run/checkpoint_layout.hpp"
#include "src/storage/h5.hpp"

namespace nanorun {

namespace {

static_assert(std::endian::native == std::endian::little, "the values of a checkpoint are little-endian");

constexpr ExitCode code = ExitCode::checkpoint;

/// Elements of a slab that are moved in one call.
struct Piece {
  std::size_t slab;
  std::size_t begin, count;
};

/// A piece stays in a core's cache from its checksum to its call, or from its call to its checksum.
constexpr std::size_t most_elements = 1 << 18;

std::vector<Piece> pieces_of(const std::vector<Slab<float>>& slabs) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const std::size_t size = slabs[i].row_count * slabs[i].cols;
    for (std::size_t at = 0; at < size; at += most_elements)
      pieces.push_back({i, at, std::min(most_elements, size - at)});
  }
  return pieces;
}

/// Calls move(piece, byte) for all pieces, which begin at this byte of the file, and adds up the checksums of the
/// values that it returns.
std::vector<std::uint64_t> move_pieces(const PlacedSlabs& rows, const Spread& spread, auto&& move) {
  const std::vector<Piece> pieces = pieces_of(rows.slabs);
  std::vector<std::atomic<std::uint64_t>> sums(rows.slabs.size());
  spread(pieces.size(), [&](std::size_t i) {
    const Piece& piece = pieces[i];
    const Slab<float>& slab = rows.slabs[piece.slab];
    const std::uint64_t first = slab.first_row * slab.cols + piece.begin;
    const std::span<const float> values = move(piece, rows.first_bytes[piece.slab] + first * sizeof(float));
    sums[piece.slab] += h5::checksum<float>(values, first);
  });
  return {sums.begin(), sums.end()};
}

}  // namespace

std::vector<Slab<float>> without_data(std::vector<Slab<float>> slabs) {
  for (Slab<float>& slab : slabs) slab.data = {};
  return slabs;
}

PlacedSlabs place_rows(Comm& comm, const std::string& path, const CheckpointHeader& header,
                       std::vector<Slab<float>> slabs) {
  std::vector<std::uint64_t> bytes(slabs.size());
  comm.together([&] {
    if (comm.root()) bytes = first_bytes(path, header, slabs);
  });
  comm.broadcast(std::as_writable_bytes(std::span(bytes)));
  return {path, std::move(slabs), std::move(bytes)};
}

void by_threads(std::size_t count, const std::function<void(std::size_t)>& move) {
  std::atomic<std::size_t> next = 0;
  in_parts(count, 1, [&](std::size_t begin, std::size_t end) {
    for (; begin < end; ++begin) move(next++);
  });
}

std::vector<std::uint64_t> write_rows(const PlacedSlabs& rows, const Spread& spread) {
  const Descriptor file = open_to_change(rows.path, code);
  return move_pieces(rows, spread, [&](const Piece& piece, std::uint64_t byte) {
    const std::span<const float> values = rows.slabs[piece.slab].data.subspan(piece.begin, piece.count);
    write_at(file, rows.path, byte, std::as_bytes(values), code);
    begin_flush(file, byte, values.size_bytes());
    return values;
  });
}

std::vector<std::uint64_t> read_rows(const PlacedSlabs& rows, const Spread& spread) {
  const Descriptor file = open_to_read(rows.path, code);
  return move_pieces(rows, spread, [&](const Piece& piece, std::uint64_t byte) {
    thread_local std::vector<float> buffer;
    std::span<float> into = rows.slabs[piece.slab].data;
    if (into.empty()) {
      buffer.resize(most_elements);
      into = std::span(buffer).first(piece.count);
    } else {
      into = into.subspan(piece.begin, piece.count);
    }
    read_at(file, rows.path, byte, std::as_writable_bytes(into), code);
    return std::span<const float>(into);
  });
}

}  // namespace nanorun
