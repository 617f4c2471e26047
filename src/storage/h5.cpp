#include "src/storage/h5.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "src/base/file_lock.hpp"
#include "src/storage/h5_library.hpp"
#include "src/storage/h5_shared_path.hpp"
#include "src/storage/h5_structure.hpp"

namespace nanorun::h5 {

namespace {

// Open MPI makes longer names of a shared file's for files of its own, and aborts where they become too long.
constexpr std::size_t max_shared_path = 240;
constexpr const char* locking_variable = "HDF5_USE_FILE_LOCKING";

/// HDF5 reads the variable as it starts, and then ignores what property lists say. BEST_EFFORT is what File does
/// anyway, which recognises more file systems without locks (open_with()).
void leave_best_effort_to_us() {
  const char* locking = std::getenv(locking_variable);
  if (locking != nullptr && std::string_view(locking) == "BEST_EFFORT") ::unsetenv(locking_variable);
}

/// Hints as MPI takes them.
struct InfoOf {
  explicit InfoOf(const MpiHints& hints) {
    if (hints.empty()) return;
    MPI_Info_create(&info);
    for (const auto& [name, value] : hints) MPI_Info_set(info, name.c_str(), value.c_str());
  }
  ~InfoOf() {
    if (info != MPI_INFO_NULL) MPI_Info_free(&info);
  }
  InfoOf(const InfoOf&) = delete;
  InfoOf& operator=(const InfoOf&) = delete;

  MPI_Info info = MPI_INFO_NULL;
};

}  // namespace

void start(char** argv) {
  leave_best_effort_to_us();
  H5dont_atexit();
  H5open();  // while there is no MPI, HDF5 cannot ask MPI_Finalize for a call
  examine_where_asked(argv);
}

void require_sharable(const std::string& path, ExitCode code) {
  if (path.size() <= max_shared_path) return;
  throw Error(code, fmt::format("{}: {} bytes are too long for the path of a file that ranks share, {} at most; "
                                "choose a shorter one",
                                path, path.size(), max_shared_path));
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
  if (is_shared()) require_sharable(path_, code_);
  if (is_shared()) {
    const InfoOf hints(sharing_.hints);
    check(H5Pset_fapl_mpio(access.get(), sharing_.comm, hints.info), "", "cannot be shared by the ranks");
    // What describes the contents is read by one rank for all, and written once.
    check(H5Pset_all_coll_metadata_ops(access.get(), true), "", "collective metadata");
    check(H5Pset_coll_metadata_write(access.get(), true), "", "collective metadata");
  } else {
    check(H5Pset_file_locking(access.get(), true, true), "", "file locking");
  }
  // From the format of HDF5 1.8 on, the structures that describe a file's contents have checksums, so that HDF5 refuses
  // damage instead of crashing on it. The format of 1.10 would mark files that are open for writing, and nobody could
  // open a trace after its run was killed. The upper bound lets HDF5 1.10 read what newer libraries write.
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

/// Many parallel and network file systems have no locks, and report that by error numbers of which HDF5 knows only one.
/// Files there are opened without HDF5's locks: all of them, since HDF5 refuses to open a file once with and once
/// without.
void File::open_with(const Handle& access, const char* failure, const std::function<hid_t()>& open) {
  static std::vector<std::uint64_t> devices_without_locks;  // under the lock of HDF5
  std::uint64_t device = 0;
  quietly([&] { device = state_of(path_, code_).device; });
  const bool known = !is_shared() && std::ranges::find(devices_without_locks, device) != devices_without_locks.end();
  if (known) check(H5Pset_file_locking(access.get(), false, true), "", "file locking");
  const auto lock_now = [&] {
    LockState state = LockState::free;
    quietly([&] { state = lock_state(path_, mode_ == Mode::read ? LockKind::shared : LockKind::exclusive, code_); });
    return state;
  };
  const auto may_pass = [&](int error) {
    return error == EINTR || error == ESTALE || (passes(error) && lock_now() == LockState::free);
  };
  hid_t id = is_shared() ? open() : open_patiently(open, may_pass);
  if (const Reason reason = last_reason(); id < 0 && !is_shared() && !known && reason.error != 0) {
    const LockState state = lock_now();
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

/// Whether the object exists. Throws if a part of its path is a soft or external link.
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

bool File::exists(const std::string& object) const {
  Locked locked;
  return find(object);
}

std::vector<std::string> File::members(const std::string& group) const {
  Locked locked;
  find(group);
  const Handle id = own(H5Gopen2(handle_.get(), group.c_str(), H5P_DEFAULT), H5Gclose, group, "no such group");
  // Only in the native order does HDF5 read the names one by one. For other orders it reads a table of them, and
  // crashes if it cannot.
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

}  // namespace nanorun::h5
