#pragma once
// HDF5 handles that close themselves, slabs of datasets, and checksums. The HDF5 library may not be thread-safe:
// every function here takes one process-wide lock, so a reader thread and the main thread may both call it.
// Failures throw Error(data) by default, naming the file and the object; see set_failure_code.

#include <hdf5.h>
#include <mpi.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/error.hpp"

namespace nanorun::h5 {

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
  void reset();

 private:
  void swap(Handle& other) noexcept;
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

/// Element types that files hold; on disk little-endian.
template <class T>
hid_t native_type();  // float, double, std::uint16_t, std::int32_t, std::int64_t, std::uint64_t

/// Order-independent checksum of the elements [first, first + data.size()) of a tensor: the sum modulo 2^64 of a
/// 64-bit mix of each element's bits and its index. Parts computed by different ranks add up to the whole.
template <class T>
std::uint64_t checksum(std::span<const T> data, std::uint64_t first);

/// A file opened for one purpose. With a communicator the file is shared: creating datasets and attributes and
/// collective slabs must then be called by all its ranks.
class File {
 public:
  static File create(const std::string& path, MPI_Comm comm = MPI_COMM_NULL);
  static File open(const std::string& path, MPI_Comm comm = MPI_COMM_NULL);         ///< read only
  static File open_append(const std::string& path, MPI_Comm comm = MPI_COMM_NULL);  ///< read and write

  /// Code of the Errors this file throws (ExitCode::data unless set).
  void set_failure_code(ExitCode code) { code_ = code; }
  const std::string& path() const { return path_; }

  bool exists(const std::string& object) const;
  void create_group(const std::string& group);
  /// Names of the members of a group, sorted.
  std::vector<std::string> members(const std::string& group) const;
  std::vector<std::uint64_t> shape(const std::string& dataset) const;

  /// A fixed-size dataset of T; missing parent groups are created.
  template <class T>
  void create_dataset(const std::string& name, const std::vector<std::uint64_t>& shape);
  /// A dataset that grows along its first axis, chunked by chunk_rows.
  template <class T>
  void create_growing_dataset(const std::string& name, const std::vector<std::uint64_t>& shape,
                              std::uint64_t chunk_rows);
  void resize(const std::string& dataset, const std::vector<std::uint64_t>& shape);

  /// n-d slabs given by start and count per axis; data is row-major. Independent unless the file has a communicator.
  template <class T>
  void write(const std::string& dataset, const std::vector<std::uint64_t>& start,
             const std::vector<std::uint64_t>& count, std::span<const T> data);
  template <class T>
  void read(const std::string& dataset, const std::vector<std::uint64_t>& start,
            const std::vector<std::uint64_t>& count, std::span<T> data) const;

  void write_attribute(const std::string& object, const std::string& name, const std::string& value);
  void write_attribute(const std::string& object, const std::string& name, std::uint64_t value);
  void write_attribute(const std::string& object, const std::string& name, double value);
  std::string read_text_attribute(const std::string& object, const std::string& name) const;
  std::uint64_t read_integer_attribute(const std::string& object, const std::string& name) const;
  double read_real_attribute(const std::string& object, const std::string& name) const;
  bool has_attribute(const std::string& object, const std::string& name) const;

  void flush();
  void close();

 private:
  File(Handle handle, std::string path, MPI_Comm comm);
  Handle handle_;
  std::string path_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  ExitCode code_ = ExitCode::data;
};

}  // namespace nanorun::h5
