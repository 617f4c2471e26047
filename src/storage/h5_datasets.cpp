// The datasets of a file.

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "src/storage/h5.hpp"
#include "src/storage/h5_library.hpp"

namespace nanorun::h5 {

namespace {

/// An element type in memory and on disk.
struct Type {
  hid_t memory;
  hid_t disk;
};

template <class T>
Type type_of() {
  if constexpr (std::is_same_v<T, float>) return {H5T_NATIVE_FLOAT, H5T_IEEE_F32LE};
  if constexpr (std::is_same_v<T, double>) return {H5T_NATIVE_DOUBLE, H5T_IEEE_F64LE};
  if constexpr (std::is_same_v<T, std::uint8_t>) return {H5T_NATIVE_UINT8, H5T_STD_U8LE};
  if constexpr (std::is_same_v<T, std::uint16_t>) return {H5T_NATIVE_UINT16, H5T_STD_U16LE};
  if constexpr (std::is_same_v<T, std::int32_t>) return {H5T_NATIVE_INT32, H5T_STD_I32LE};
  if constexpr (std::is_same_v<T, std::int64_t>) return {H5T_NATIVE_INT64, H5T_STD_I64LE};
  if constexpr (std::is_same_v<T, std::uint64_t>) return {H5T_NATIVE_UINT64, H5T_STD_U64LE};
}

std::vector<hsize_t> dims(const Extent& extent) { return {extent.begin(), extent.end()}; }

std::uint64_t elements(const Extent& count) {
  return std::accumulate(count.begin(), count.end(), std::uint64_t{1}, std::multiplies<>());
}

std::string text_of(const Extent& extent) { return fmt::format("[{}]", fmt::join(extent, ", ")); }

}  // namespace

Handle File::dataset(const std::string& name) const {
  find(name);
  Handle data = own(H5Dopen2(handle_.get(), name.c_str(), H5P_DEFAULT), H5Dclose, name, "no such dataset");
  const Handle list = own(H5Dget_create_plist(data.get()), H5Pclose, name, "no layout");
  if (H5Pget_layout(list.get()) == H5D_VIRTUAL)
    fail(name, "a virtual dataset, whose data are in other datasets; store them in this one instead");
  if (H5Pget_external_count(list.get()) != 0) fail(name, "has external storage; store its data in the file instead");
  // A small file may expand to any size.
  if (H5Pget_nfilters(list.get()) != 0)
    fail(name, "compressed or filtered; store it as it is: h5repack -f NONE -l CONTI OLD NEW");
  return data;
}

Extent File::shape(const std::string& name) const {
  Locked locked;
  const Handle data = dataset(name);
  const Handle list = own(H5Dget_create_plist(data.get()), H5Pclose, name, "no layout");
  if (H5Pget_layout(list.get()) == H5D_CHUNKED)
    fail(name, "stored in chunks; store it contiguously: h5repack -l CONTI OLD NEW");
  return extent(data, name);
}

template <class T>
std::uint64_t File::first_byte(const std::string& name) const {
  Locked locked;
  const Handle data = dataset(name);
  require_type(data, name, type_of<T>().disk);
  const haddr_t begin = H5Dget_offset(data.get());
  if (begin == HADDR_UNDEF) fail(name, "not stored contiguously; store it so: h5repack -l CONTI OLD NEW");
  return begin;
}

Extent File::growing_shape(const std::string& name) const {
  Locked locked;
  return extent(dataset(name), name);
}

/// Throws where the file is too small for the elements, so that callers may take memory for them.
Extent File::extent(const Handle& data, const std::string& name) const {
  const Handle space = own(H5Dget_space(data.get()), H5Sclose, name, "no extent");
  const int axes = H5Sget_simple_extent_ndims(space.get());
  if (axes < 0) fail(name, "no extent");
  std::vector<hsize_t> sizes(axes);
  check(H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr), name, "no extent");
  const Extent shape(sizes.begin(), sizes.end());
  if (mode_ != Mode::read) return shape;                          // what is being written may not be in the file yet
  if (std::ranges::find(shape, 0u) != shape.end()) return shape;  // holds nothing, whatever its other axes
  const Handle type = own(H5Dget_type(data.get()), H5Tclose, name, "no element type");
  hsize_t room = 0;
  check(H5Fget_filesize(handle_.get(), &room), "", "no size");
  room /= std::max<std::size_t>(H5Tget_size(type.get()), 1);
  for (const std::uint64_t size : shape) {
    if (size > room) fail(name, "has an impossible shape: " + text_of(shape));
    room /= size;
  }
  return shape;
}

void File::make_dataset(const std::string& name, hid_t type, const Extent& shape, std::uint64_t chunk_rows) {
  Locked locked;
  make_groups(name);
  const Handle layout = own(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, name, "layout list");
  check(H5Pset_obj_track_times(layout.get(), false), name, "cannot set time tracking");
  std::vector<hsize_t> limit = dims(shape);
  if (chunk_rows > 0) {
    std::vector<hsize_t> chunk = dims(shape);
    chunk.at(0) = chunk_rows;
    limit.at(0) = H5S_UNLIMITED;
    check(H5Pset_chunk(layout.get(), static_cast<int>(chunk.size()), chunk.data()), name, "cannot set the chunk size");
  }
  // Space is assigned at once: one rank may lay out a file that all ranks fill, and collective writes to several new
  // chunks fail where a serial program created the dataset with late allocation.
  check(H5Pset_alloc_time(layout.get(), H5D_ALLOC_TIME_EARLY), name, "cannot set the allocation time");
  const int axes = static_cast<int>(shape.size());
  const Handle space =
      own(H5Screate_simple(axes, dims(shape).data(), limit.data()), H5Sclose, name, "impossible shape");
  own(H5Dcreate2(handle_.get(), name.c_str(), type, space.get(), H5P_DEFAULT, layout.get(), H5P_DEFAULT), H5Dclose,
      name, "cannot create the dataset");
}

template <class T>
void File::create_dataset(const std::string& name, const Extent& shape) {
  const Call call{watch()};
  make_dataset(name, type_of<T>().disk, shape, 0);
}

template <class T>
void File::create_growing_dataset(const std::string& name, const Extent& shape, std::uint64_t chunk_rows) {
  const Call call{watch()};
  make_dataset(name, type_of<T>().disk, shape, std::max<std::uint64_t>(chunk_rows, 1));
}

void File::resize(const std::string& name, const Extent& shape) {
  const Call call{watch()};
  const Handle data = dataset(name);
  if (growing_shape(name).size() != shape.size()) fail(name, "cannot be resized to " + text_of(shape));
  check(H5Dset_extent(data.get(), dims(shape).data()), name, "cannot be resized");
}

/// The dataset's space with the slab selected, after checking that the slab lies inside.
Handle File::select(const Handle& data, const std::string& name, const Extent& start, const Extent& count) const {
  const Extent whole = extent(data, name);
  bool inside = start.size() == whole.size() && count.size() == whole.size();
  for (std::size_t i = 0; inside && i < whole.size(); ++i) {
    inside = count[i] <= whole[i] && start[i] <= whole[i] - count[i];
  }
  if (!inside) {
    fail(name, fmt::format("elements {} from {} asked of shape {}", text_of(count), text_of(start), text_of(whole)));
  }
  Handle space = own(H5Dget_space(data.get()), H5Sclose, name, "no extent");
  if (elements(count) == 0) {
    check(H5Sselect_none(space.get()), name, "cannot select");
  } else {
    check(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, dims(start).data(), nullptr, dims(count).data(), nullptr),
          name, "cannot select");
  }
  return space;
}

/// Throws unless the dataset's elements are of `disk_type`.
void File::require_type(const Handle& data, const std::string& name, hid_t disk_type) const {
  const Handle stored = own(H5Dget_type(data.get()), H5Tclose, name, "no element type");
  if (H5Tequal(stored.get(), disk_type) <= 0) {
    fail(name, fmt::format("holds elements of another type than expected: {} instead of {}", type_name(stored.get()),
                           type_name(disk_type)));
  }
}

/// Throws unless the dataset's elements are of `disk_type` and the slab has as many as there are values; `relation`:
/// of these to the slab. Ranks move their slabs each for itself. Hints of the user are about ranks that write for
/// others, which takes a collective transfer: its exchange costs more than it gains where slabs are contiguous.
File::Transfer File::transfer(const std::string& name, hid_t disk_type, const Extent& start, const Extent& count,
                              hsize_t values, const char* relation) const {
  Transfer t;
  t.data = dataset(name);
  require_type(t.data, name, disk_type);
  t.list = own(H5Pcreate(H5P_DATASET_XFER), H5Pclose, name, "transfer list");
  const H5FD_mpio_xfer_t mode = sharing_.hints.empty() ? H5FD_MPIO_INDEPENDENT : H5FD_MPIO_COLLECTIVE;
  if (is_shared()) check(H5Pset_dxpl_mpio(t.list.get(), mode), name, "transfer list");
  t.space = select(t.data, name, start, count);
  if (values != elements(count)) fail(name, fmt::format("{} values {} slab {}", values, relation, text_of(count)));
  t.memory = own(H5Screate_simple(1, &values, nullptr), H5Sclose, name, "cannot select");
  return t;
}

template <class T>
void File::write(const std::string& name, const Extent& start, const Extent& count, std::span<const T> values) {
  const Call call{watch()};
  const Type type = type_of<T>();
  const Transfer t = transfer(name, type.disk, start, count, values.size(), "given for");
  check(H5Dwrite(t.data.get(), type.memory, t.memory.get(), t.space.get(), t.list.get(), values.data()), name,
        "cannot be written");
}

template <class T>
void File::read(const std::string& name, const Extent& start, const Extent& count, std::span<T> values) const {
  const Call call{watch()};
  const Type type = type_of<T>();
  const Transfer t = transfer(name, type.disk, start, count, values.size(), "asked of");
  check(H5Dread(t.data.get(), type.memory, t.memory.get(), t.space.get(), t.list.get(), values.data()), name,
        "cannot be read");
}

#define NANORUN_DATASETS_OF(T)                                                                        \
  template void File::create_dataset<T>(const std::string&, const Extent&);                           \
  template void File::create_growing_dataset<T>(const std::string&, const Extent&, std::uint64_t);    \
  template void File::write<T>(const std::string&, const Extent&, const Extent&, std::span<const T>); \
  template void File::read<T>(const std::string&, const Extent&, const Extent&, std::span<T>) const;  \
  template std::uint64_t File::first_byte<T>(const std::string&) const;
NANORUN_DATASETS_OF(float)
NANORUN_DATASETS_OF(double)
NANORUN_DATASETS_OF(std::uint8_t)
NANORUN_DATASETS_OF(std::uint16_t)
NANORUN_DATASETS_OF(std::int32_t)
NANORUN_DATASETS_OF(std::int64_t)
NANORUN_DATASETS_OF(std::uint64_t)
#undef NANORUN_DATASETS_OF

}  // namespace nanorun::h5
