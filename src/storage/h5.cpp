#include "src/storage/h5.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <utility>

#include "src/base/file_lock.hpp"
#include "src/storage/h5_library.hpp"
#include "src/storage/h5_structure.hpp"

namespace nanorun::h5 {

namespace {

// Open MPI makes longer names of a shared file's for files of its own, and aborts where they become too long.
constexpr std::size_t max_shared_path = 240;
constexpr const char* locking_variable = "HDF5_USE_FILE_LOCKING";
constexpr std::size_t max_attribute_text = 64'000;  // an object header message holds less than 64 KiB

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

/// HDF5 reads the variable as it starts, and then minds no property list. BEST_EFFORT is what this program asks for
/// anyway, but with its own eye for file systems without locks.
void leave_best_effort_to_us() {
  const char* locking = std::getenv(locking_variable);
  if (locking != nullptr && std::string_view(locking) == "BEST_EFFORT") ::unsetenv(locking_variable);
}

}  // namespace

void start(char** argv) {
  leave_best_effort_to_us();
  H5dont_atexit();
  H5open();  // while there is no MPI, HDF5 cannot ask MPI_Finalize for a call
  examine_where_asked(argv);
}

void Handle::reset() {
  if (id_ < 0) return;
  Locked locked;
  close_(std::exchange(id_, -1));
}

File::File(const std::string& path, Sharing sharing, ExitCode code, Mode mode)
    : path_(path), code_(code), mode_(mode), sharing_(std::move(sharing)) {
  const Call call{watch()};
  const Handle access = own(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "", "file access list");
  if (is_shared() && path.size() > max_shared_path)
    throw Error(code_, fmt::format("{}: {} bytes are too long for the path of a file that ranks share, {} at most; "
                                   "choose a shorter one",
                                   path_, path.size(), max_shared_path));
  if (is_shared()) {
    check(H5Pset_fapl_mpio(access.get(), sharing_.comm, MPI_INFO_NULL), "", "cannot be shared by the ranks");
  } else {
    check(H5Pset_file_locking(access.get(), true, true), "", "file locking");
  }
  // From the format of HDF5 1.8 on what describes a file's contents has checksums, so that HDF5 refuses damage instead
  // of crashing on it. That of 1.10 would mark files that are open for writing, and nobody could open a trace after its
  // run was killed. HDF5 1.10 is to read what newer libraries write, too.
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V110), "", "format versions");
  if (mode == Mode::create) {
    const Handle layout = own(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "", "file creation list");
    arrange_group(layout, "/");
    open_with(access, "cannot be created",
              [&] { return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, layout.get(), access.get()); });
    return;
  }
  look_together(sharing_.comm, [&] {
    look_before_opening(path, code_);
    if (mode == Mode::append) require_writable(path, code_);
  });
  const unsigned access_mode = mode == Mode::read ? H5F_ACC_RDONLY : H5F_ACC_RDWR;
  open_with(access, "cannot be opened as an HDF5 file",
            [&] { return H5Fopen(path.c_str(), access_mode, access.get()); });
}

/// Many parallel and network file systems have no locks, and say so in words of their own, where HDF5 knows one. There
/// files are opened without HDF5's locks: all of them, since HDF5 wants a file that is opened twice to be so alike.
void File::open_with(const Handle& access, const char* failure, const std::function<hid_t()>& open) {
  static std::vector<std::uint64_t> devices_without_locks;  // under the lock of HDF5
  std::uint64_t device = 0;
  quietly([&] { device = state_of(path_, code_).device; });
  const bool known = !is_shared() && std::ranges::find(devices_without_locks, device) != devices_without_locks.end();
  if (known) check(H5Pset_file_locking(access.get(), false, true), "", "file locking");
  hid_t id = open();
  if (const Reason reason = last_reason(); id < 0 && !is_shared() && !known && reason.error != 0) {
    LockState state = LockState::free;
    quietly([&] { state = lock_state(path_, mode_ != Mode::read, code_); });
    if (state == LockState::held && passes(reason.error)) {
      throw Busy(code_, path_ + ": another program has it open, and HDF5's lock on it");
    }
    if (state == LockState::absent) {
      quietly([&] { devices_without_locks.push_back(state_of(path_, code_).device); });
      if (H5Pset_file_locking(access.get(), false, true) >= 0) id = open();
    }
    if (state == LockState::absent && id < 0) {
      const char* locking = std::getenv(locking_variable);
      fail("",
           fmt::format("{}; its file system has no locks{}", failure,
                       locking == nullptr ? "" : fmt::format(": {} must not be {} here", locking_variable, locking)));
    }
  }
  handle_ = own(id, H5Fclose, "", failure);
}

File File::create(const std::string& path, Sharing sharing, ExitCode code) {
  return {path, sharing, code, Mode::create};
}
File File::open(const std::string& path, Sharing sharing, ExitCode code) { return {path, sharing, code, Mode::read}; }
File File::open_append(const std::string& path, Sharing sharing, ExitCode code) {
  return {path, sharing, code, Mode::append};
}

File::~File() {
  if (!handle_) return;
  const Call call{watch()};
  handle_.reset();
}

void File::fail(const std::string& object, const std::string& what) const {
  const Reason why = last_reason();
  const bool damaged = mode_ != Mode::create && !why.of_system;
  const std::string message = fmt::format("{}{}{}: {}{}{}", path_, object.empty() ? "" : ": ", object, what,
                                          why.text.empty() ? "" : ": ", why.text);
  if (passes(why.error)) throw Busy(code_, message);
  throw Error(code_, message, Scope::this_rank, damaged ? Cause::damage : Cause::other);
}

Handle File::own(hid_t id, herr_t (*close)(hid_t), const std::string& object, const char* action) const {
  if (id < 0) fail(object, action);
  return {id, close};
}

void File::check(herr_t status, const std::string& object, const char* action) const {
  if (status < 0) fail(object, action);
}

/// Throws where the last component of the object's path is a link that leads elsewhere.
void File::require_hard_link(const std::string& object) const {
  H5L_info_t info;
  check(H5Lget_info(handle_.get(), object.c_str(), &info, H5P_DEFAULT), object, "cannot be looked up");
  if (info.type == H5L_TYPE_HARD) return;
  fail(object, info.type == H5L_TYPE_SOFT ? "a soft link; store the object under this name instead"
                                          : "a link to another file; store the object in this one instead");
}

/// Whether the object is there. No link is followed that leads elsewhere.
bool File::find(const std::string& object) const {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = object.find('/', end + 1);
    const std::string path = object.substr(0, end);
    if (path.empty() || path.back() == '/' || groups_.contains(path)) continue;
    const htri_t found = H5Lexists(handle_.get(), path.c_str(), H5P_DEFAULT);
    if (found < 0) fail(path, "cannot be looked up");
    if (found == 0) return false;
    require_hard_link(path);
    if (end != std::string::npos) groups_.insert(path);
  }
  return true;
}

Handle File::object(const std::string& name) const {
  find(name);
  return own(H5Oopen(handle_.get(), name.c_str(), H5P_DEFAULT), H5Oclose, name, "no such object");
}

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

bool File::exists(const std::string& object) const {
  Locked locked;
  return find(object);
}

std::vector<std::string> File::members(const std::string& group) const {
  Locked locked;
  find(group);
  const Handle id = own(H5Gopen2(handle_.get(), group.c_str(), H5P_DEFAULT), H5Gclose, group, "no such group");
  // In this order alone HDF5 reads the names one after the other: it crashes where it cannot read a table of them.
  const auto add = [](hid_t, const char* name, const H5L_info_t*, void* names) -> herr_t {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
  };
  std::vector<std::string> names;
  check(H5Literate(id.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names), group, "cannot list the group");
  std::ranges::sort(names);
  for (const std::string& name : names) require_hard_link(group.ends_with('/') ? group + name : group + "/" + name);
  return names;
}

Extent File::shape(const std::string& name) const {
  Locked locked;
  const Handle data = dataset(name);
  const Handle list = own(H5Dget_create_plist(data.get()), H5Pclose, name, "no layout");
  if (H5Pget_layout(list.get()) == H5D_CHUNKED)
    fail(name, "stored in chunks; store it contiguously: h5repack -l CONTI OLD NEW");
  return extent(data, name);
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

/// Sets up the creation list of a group.
void File::arrange_group(const Handle& list, const std::string& name) const {
  // Without times, equal contents make equal files.
  check(H5Pset_obj_track_times(list.get(), false), name, "cannot set time tracking");
  // All names of members and attributes stand in the group's header. Otherwise HDF5 keeps many of them in heaps and
  // trees, and HDF5 1.10 crashes after their checksums have told it that these are damaged.
  constexpr unsigned max = 65535;
  check(H5Pset_link_phase_change(list.get(), max, max), name, "cannot set the storage of names");
  check(H5Pset_attr_phase_change(list.get(), max, max), name, "cannot set the storage of attributes");
}

/// Creates the groups on the way to an object.
void File::make_groups(const std::string& name) {
  if (find(directory_of(name))) return;
  const Handle list = own(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, name, "group list");
  arrange_group(list, name);
  for (std::size_t end = name.find('/', 1); end != std::string::npos; end = name.find('/', end + 1)) {
    const std::string group = name.substr(0, end);
    if (find(group)) continue;
    own(H5Gcreate2(handle_.get(), group.c_str(), H5P_DEFAULT, list.get(), H5P_DEFAULT), H5Gclose, group,
        "cannot create the group");
  }
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

/// The transfer list, after checking that the dataset's elements are of `disk_type`.
Handle File::transfer(const Handle& data, const std::string& name, hid_t disk_type) const {
  const Handle stored = own(H5Dget_type(data.get()), H5Tclose, name, "no element type");
  if (H5Tequal(stored.get(), disk_type) <= 0) {
    fail(name, fmt::format("holds elements of another type than expected: {} instead of {}", type_name(stored.get()),
                           type_name(disk_type)));
  }
  Handle list = own(H5Pcreate(H5P_DATASET_XFER), H5Pclose, name, "transfer list");
  if (is_shared()) check(H5Pset_dxpl_mpio(list.get(), H5FD_MPIO_COLLECTIVE), name, "transfer list");
  return list;
}

template <class T>
void File::write(const std::string& name, const Extent& start, const Extent& count, std::span<const T> values) {
  const Call call{watch()};
  const Type type = type_of<T>();
  const Handle data = dataset(name);
  const Handle list = transfer(data, name, type.disk);
  const Handle space = select(data, name, start, count);
  const hsize_t size = values.size();
  if (size != elements(count)) fail(name, fmt::format("{} values given for slab {}", size, text_of(count)));
  const Handle memory = own(H5Screate_simple(1, &size, nullptr), H5Sclose, name, "cannot select");
  check(H5Dwrite(data.get(), type.memory, memory.get(), space.get(), list.get(), values.data()), name,
        "cannot be written");
}

template <class T>
void File::read(const std::string& name, const Extent& start, const Extent& count, std::span<T> values) const {
  const Call call{watch()};
  const Type type = type_of<T>();
  const Handle data = dataset(name);
  const Handle list = transfer(data, name, type.disk);
  const Handle space = select(data, name, start, count);
  const hsize_t size = values.size();
  if (size != elements(count)) fail(name, fmt::format("{} values asked of slab {}", size, text_of(count)));
  const Handle memory = own(H5Screate_simple(1, &size, nullptr), H5Sclose, name, "cannot select");
  check(H5Dread(data.get(), type.memory, memory.get(), space.get(), list.get(), values.data()), name, "cannot be read");
}

void File::make_attribute(const std::string& object, const std::string& name, hid_t disk_type, hid_t type,
                          const void* value) {
  const std::string label = object + " @" + name;
  const Handle owner = this->object(object);
  if (has_attribute(object, name)) check(H5Adelete(owner.get(), name.c_str()), label, "cannot be replaced");
  const Handle space = own(H5Screate(H5S_SCALAR), H5Sclose, label, "no extent");
  const Handle attribute = own(H5Acreate2(owner.get(), name.c_str(), disk_type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                               H5Aclose, label, "cannot create the attribute");
  check(H5Awrite(attribute.get(), type, value), label, "cannot be written");
}

void File::write_attribute(const std::string& object, const std::string& name, const std::string& value) {
  const Call call{watch()};
  const std::string label = object + " @" + name;
  if (value.size() > max_attribute_text || value.find('\0') != std::string::npos) fail(label, "unfit for an attribute");
  const Handle type = own(H5Tcopy(H5T_C_S1), H5Tclose, label, "text type");
  // One byte longer than the text: HDF5 has no empty string, and readers may expect the final zero.
  check(H5Tset_size(type.get(), value.size() + 1), label, "text type");
  check(H5Tset_cset(type.get(), H5T_CSET_UTF8), label, "text type");
  make_attribute(object, name, type.get(), type.get(), value.c_str());
}

void File::write_attribute(const std::string& object, const std::string& name, std::uint64_t value) {
  const Call call{watch()};
  make_attribute(object, name, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value);
}

void File::write_attribute(const std::string& object, const std::string& name, double value) {
  const Call call{watch()};
  make_attribute(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

bool File::has_attribute(const std::string& object, const std::string& name) const {
  Locked locked;
  const htri_t found = H5Aexists(this->object(object).get(), name.c_str());
  if (found < 0) fail(object + " @" + name, "cannot be looked up");
  return found > 0;
}

/// An attribute that holds one value of the given class.
Handle File::attribute(const std::string& object, const std::string& name, H5T_class_t expected) const {
  const std::string label = object + " @" + name;
  Handle attribute =
      own(H5Aopen(this->object(object).get(), name.c_str(), H5P_DEFAULT), H5Aclose, label, "no such attribute");
  const Handle space = own(H5Aget_space(attribute.get()), H5Sclose, label, "no extent");
  const Handle type = own(H5Aget_type(attribute.get()), H5Tclose, label, "no type");
  if (H5Sget_simple_extent_npoints(space.get()) != 1) fail(label, "holds more than one value");
  if (H5Tget_class(type.get()) != expected) {
    fail(label, fmt::format("holds a value of another type than expected: {} instead of {}", type_name(type.get()),
                            class_name(expected)));
  }
  if (H5Tget_size(type.get()) > max_attribute_text + 1) fail(label, "too large for an attribute");
  return attribute;
}

std::string File::read_text_attribute(const std::string& object, const std::string& name) const {
  Locked locked;
  const std::string label = object + " @" + name;
  const Handle id = attribute(object, name, H5T_STRING);
  const Handle type = own(H5Aget_type(id.get()), H5Tclose, label, "no type");
  const std::size_t size = H5Tget_size(type.get());
  if (H5Tis_variable_str(type.get()) != 0) fail(label, "is not fixed-length text");
  std::string text(size, '\0');
  check(H5Aread(id.get(), type.get(), text.data()), label, "cannot be read");
  return text.c_str();
}

std::uint64_t File::read_integer_attribute(const std::string& object, const std::string& name) const {
  Locked locked;
  std::uint64_t value = 0;
  const Handle id = attribute(object, name, H5T_INTEGER);
  check(H5Aread(id.get(), H5T_NATIVE_UINT64, &value), object + " @" + name, "cannot be read");
  return value;
}

double File::read_real_attribute(const std::string& object, const std::string& name) const {
  Locked locked;
  double value = 0;
  const Handle id = attribute(object, name, H5T_FLOAT);
  check(H5Aread(id.get(), H5T_NATIVE_DOUBLE, &value), object + " @" + name, "cannot be read");
  return value;
}

std::string File::format() const { return has_attribute("/", "format") ? read_text_attribute("/", "format") : ""; }

void File::flush() {
  const Call call{watch()};
  check(H5Fflush(handle_.get(), H5F_SCOPE_LOCAL), "", "cannot be written");
}

void File::close() {
  const Call call{watch()};
  if (!handle_) return;
  check(H5Fflush(handle_.get(), H5F_SCOPE_LOCAL), "", "cannot be written");
  Handle closing = std::move(handle_);
  check(H5Fclose(closing.release()), "", "cannot be closed");
}

#define NANORUN_INSTANTIATE(T)                                                                        \
  template void File::create_dataset<T>(const std::string&, const Extent&);                           \
  template void File::create_growing_dataset<T>(const std::string&, const Extent&, std::uint64_t);    \
  template void File::write<T>(const std::string&, const Extent&, const Extent&, std::span<const T>); \
  template void File::read<T>(const std::string&, const Extent&, const Extent&, std::span<T>) const;
NANORUN_INSTANTIATE(float)
NANORUN_INSTANTIATE(double)
NANORUN_INSTANTIATE(std::uint8_t)
NANORUN_INSTANTIATE(std::uint16_t)
NANORUN_INSTANTIATE(std::int32_t)
NANORUN_INSTANTIATE(std::int64_t)
NANORUN_INSTANTIATE(std::uint64_t)
#undef NANORUN_INSTANTIATE

}  // namespace nanorun::h5
