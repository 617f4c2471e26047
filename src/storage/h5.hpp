#pragma once
// HDF5 files, slabs of datasets, and checksums. The HDF5 library may not be thread-safe: every function here takes one
// process-wide lock, so a reader thread and the main thread may both call it. Failures throw Error with the code with
// which the file was opened; the message is one line that names the file, the object and HDF5's innermost reason. The
// cause is Cause::damage if the file exists but does not hold what is asked of it, and the system reports no failure.
// If the system reports a reason that passes, such as a lock that another program holds, the Error is a Busy of
// src/base/files.hpp.

#include <hdf5.h>
#include <mpi.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/base/error.hpp"
#include "src/storage/h5_shared.hpp"

namespace nanorun::h5 {

/// Called before MPI_Init and every use of HDF5, with the argv of main(). A process that was started to examine a file
/// (src/storage/h5_structure.hpp) does so here and ends. Keeps HDF5 from shutting itself down at the end of the program
/// or in MPI_Finalize, where it would crash if a file could not be closed. The program closes what it opens.
void start(char** argv);

/// Owns one HDF5 identifier of any class.
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept { swap(other); }
  Handle& operator=(Handle&& other) noexcept {
    swap(other);
    return *this;
  }
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Closes the identifier.
  void reset();
  /// Gives up the identifier without closing it.
  hid_t release() { return std::exchange(id_, -1); }

 private:
  void swap(Handle& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
  }
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

/// Order-independent checksum of the elements [first, first + data.size()) of a tensor: the sum modulo 2^64 over the
/// elements i of mix(bits_i + (i + 1) * 0x9e3779b97f4a7c15), where bits_i are the element's bits extended by zeros to
/// 64, arithmetic is modulo 2^64, and mix is the bijection
///   z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;  z = (z ^ z >> 27) * 0x94d049bb133111eb;  z ^ z >> 31.
/// Parts computed by different ranks add up to the whole; a change of one element always changes the sum.
template <class T>
std::uint64_t checksum(std::span<const T> data, std::uint64_t first) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8);
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t,
                                                     std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;
  std::uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::size_t i = 0; i < data.size(); ++i) {
    std::uint64_t z = std::bit_cast<Bits>(data[i]) + (first + i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    sum += z ^ z >> 31;
  }
  return sum;
}

/// The checksum of the bytes of a text.
inline std::uint64_t checksum(const std::string& text) {
  return checksum(std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()), 0);
}

/// checksum() of a large tensor, by as many threads as this process may use processors, at most 16.
std::uint64_t checksum_by_threads(std::span<const float> data, std::uint64_t first);

/// Sizes or positions, one per axis.
using Extent = std::vector<std::uint64_t>;

/// A file opened for one purpose. With a communicator the file is shared by its ranks, all of which must make the same
/// calls in the same order; a rank with nothing to move passes a count of 0. A rank that fails alone in a call may keep
/// the others waiting in theirs: each call that ranks make together is watched.
/// T is one of float, double, std::uint8_t, std::uint16_t, std::int32_t, std::int64_t, std::uint64_t, on disk
/// little-endian. Objects are named by their path; "/" is the root group. What a name gives lies in the file itself:
/// soft and external links, virtual datasets and external storage throw. So do compressed and filtered datasets. While
/// a file without communicator is open, HDF5 holds a lock on it, unless its file system has none.
class File {
 public:
  /// Replaces an existing file.
  static File create(const std::string& path, Sharing sharing = {}, ExitCode code = ExitCode::data);
  /// Read only. What is no regular file is refused at once. Where ranks share the file and some cannot open it, all
  /// throw the error of the lowest of them.
  static File open(const std::string& path, Sharing sharing = {}, ExitCode code = ExitCode::data);
  /// Read and write.
  static File open_append(const std::string& path, Sharing sharing = {}, ExitCode code = ExitCode::data);

  ~File();
  File(File&&) noexcept = default;
  File& operator=(File&&) noexcept = default;

  const std::string& path() const { return path_; }

  bool exists(const std::string& object) const;
  /// Names of the members of a group, sorted.
  std::vector<std::string> members(const std::string& group) const;
  /// The shape of a contiguous dataset. Throws if it is stored otherwise, for example in chunks. In a file from open()
  /// also throws if the dataset claims more elements than the file can hold, so that callers may allocate memory for
  /// them.
  Extent shape(const std::string& dataset) const;
  /// Where in the file the elements of a contiguous dataset begin, which are of type T: the number of their first byte.
  /// From there on they lie as they are, in the order of their indices.
  template <class T>
  std::uint64_t first_byte(const std::string& dataset) const;
  /// shape() of a dataset that may be stored in chunks.
  Extent growing_shape(const std::string& dataset) const;

  /// A fixed-size dataset of T; missing parent groups are created.
  template <class T>
  void create_dataset(const std::string& name, const Extent& shape);
  /// A dataset that grows along its first axis, stored in chunks of chunk_rows; the other axes must not be empty.
  template <class T>
  void create_growing_dataset(const std::string& name, const Extent& shape, std::uint64_t chunk_rows);
  void resize(const std::string& dataset, const Extent& shape);

  /// Write or read the slab [start, start + count) of a dataset, whose elements must be of type T. `data` is row-major
  /// and has as many elements as the slab. A slab outside the dataset throws.
  template <class T>
  void write(const std::string& dataset, const Extent& start, const Extent& count, std::span<const T> data);
  template <class T>
  void read(const std::string& dataset, const Extent& start, const Extent& count, std::span<T> data) const;

  /// An attribute holds one value. Writing replaces an attribute of that name. Text has at most 64,000 bytes, none of
  /// them zero.
  void write_attribute(const std::string& object, const std::string& name, const std::string& value);
  void write_attribute(const std::string& object, const std::string& name, std::uint64_t value);
  void write_attribute(const std::string& object, const std::string& name, double value);
  bool has_attribute(const std::string& object, const std::string& name) const;
  std::string read_text_attribute(const std::string& object, const std::string& name) const;
  std::uint64_t read_integer_attribute(const std::string& object, const std::string& name) const;
  double read_real_attribute(const std::string& object, const std::string& name) const;
  /// The root's attribute `format`, by which the program's files say what they are; empty where there is none.
  std::string format() const;

  /// Opens the groups, datasets and attributes of the first five levels, and reads an element of each dataset. Ignores
  /// errors that HDF5 reports: see src/storage/h5_structure.hpp.
  void examine() const;

  /// Hands all that was written to the operating system; throws where that fails.
  void flush();
  /// Flushes and closes the file. The destructor closes without reporting errors.
  void close();

 private:
  enum class Mode { create, read, append };
  /// What HDF5 takes to move values between memory and a slab of a dataset.
  struct Transfer {
    Handle data, list, space, memory;
  };
  File(const std::string& path, Sharing sharing, ExitCode code, Mode mode);

  bool is_shared() const { return sharing_.comm != MPI_COMM_NULL; }
  /// Watches a call that ranks make together, while the result lives.
  [[nodiscard]] std::shared_ptr<void> watch() const { return sharing_.watch ? sharing_.watch() : nullptr; }

  void open_with(const Handle& access, const char* failure, const std::function<hid_t()>& open);
  [[noreturn]] void fail(const std::string& object, const std::string& what) const;
  Handle own(hid_t id, herr_t (*close)(hid_t), const std::string& object, const char* action) const;
  void check(herr_t status, const std::string& object, const char* action) const;
  void require_hard_link(const std::string& object) const;
  bool find(const std::string& object) const;
  Handle object(const std::string& name) const;
  Handle dataset(const std::string& name) const;
  Extent extent(const Handle& dataset, const std::string& name) const;
  Handle attribute(const std::string& object, const std::string& name, H5T_class_t type) const;
  Handle select(const Handle& dataset, const std::string& name, const Extent& start, const Extent& count) const;
  void require_type(const Handle& dataset, const std::string& name, hid_t disk_type) const;
  Transfer transfer(const std::string& name, hid_t disk_type, const Extent& start, const Extent& count, hsize_t values,
                    const char* relation) const;
  void arrange_group(const Handle& list, const std::string& name) const;
  void make_groups(const std::string& name);
  void make_dataset(const std::string& name, hid_t type, const Extent& shape, std::uint64_t chunk_rows);
  void make_attribute(const std::string& object, const std::string& name, hid_t disk_type, hid_t type,
                      const void* value);

  void examine_attributes(const std::string& object) const;
  void examine_dataset(const std::string& name) const;
  void examine_group(const std::string& name, int depth) const;

  Handle handle_;
  std::string path_;
  ExitCode code_;
  Mode mode_;
  Sharing sharing_;
  mutable std::set<std::string> groups_;  ///< groups that find() has found, which it need not look up again
};

}  // namespace nanorun::h5
