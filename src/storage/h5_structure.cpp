#include "src/storage/h5_structure.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <vector>

#include "src/base/files.hpp"
#include "src/base/foreign_formats.hpp"
#include "src/storage/bin_file.hpp"
#include "src/storage/h5.hpp"

namespace nanorun::h5 {

namespace {

constexpr const char* examiner_name = "nanorun: examines an HDF5 file";  // in place of the program's
constexpr int examined_descriptor = STDERR_FILENO + 1;
constexpr const char* examined_path = "/proc/self/fd/3";
constexpr rlim_t max_cpu_seconds = 60;  // for the process that examines a file; a sound file takes milliseconds
constexpr int was_examined = 0, was_refused = 2;  // codes of that process; the second where HDF5 cannot open the file
/// Signals by which a damaged file may kill HDF5; other signals come from outside.
constexpr std::array crashes = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU};

bool is_examiner = false;

using Head = std::array<unsigned char, 64>;

/// The first bytes of a file, with zeros where it is shorter. Refuses whatever is no regular file, before HDF5 opens it
/// and waits for a FIFO's other end.
Head read_head(const std::string& path, const Descriptor& file, ExitCode code) {
  Head head{};
  const std::size_t size = std::min<std::uint64_t>(head.size(), file_size(path, code));
  read_at(file, path, 0, std::as_writable_bytes(std::span(head)).first(size), code);
  return head;
}

bool is_hdf5(const Head& head) { return std::memcmp(head.data(), "\x89HDF\r\n\x1a\n", 8) == 0; }

/// 8 bytes with the size of a header, which is a JSON object.
bool is_safetensors(const Head& head) {
  constexpr int bytes_of_size = 4;  // no header has as many bytes as need more
  return head[8] == '{' && std::all_of(head.begin() + bytes_of_size, head.begin() + 8, [](auto byte) { return !byte; });
}

bool is_bin(const Head& head) {
  std::int32_t magic;
  std::memcpy(&magic, head.data(), sizeof(magic));
  return magic == bin_magic;
}

/// Whether an HDF5 file has a superblock of version 0 or 1, behind its signature: these versions have no checksums.
bool is_of_old_format(const Head& head) { return head[8] < 2; }

/// Whether a file of an old format has a driver block, which no driver in use here writes. HDF5 allocates up to 4 GiB
/// as that block asks, whatever the size of the file. In later formats a message of at most 64 KiB stands for it.
bool has_driver_block(const Head& head) {
  const auto address = head.begin() + (head[8] == 0 ? 48 : 52);
  return std::any_of(address, address + 8, [](unsigned char byte) { return byte != 0xff; });
}

/// Starts this program as examine_where_asked() expects it; returns an error number of the system's, 0 for none.
int spawn_examiner(const Descriptor& file, pid_t& process) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (const int error = ::posix_spawn_file_actions_init(&actions); error != 0) return error;
  if (const int error = ::posix_spawnattr_init(&attributes); error != 0) {
    ::posix_spawn_file_actions_destroy(&actions);
    return error;
  }
  ::posix_spawn_file_actions_adddup2(&actions, file.get(), examined_descriptor);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::posix_spawn_file_actions_addopen(&actions, standard, "/dev/null", O_RDWR, 0);
#if __GLIBC_PREREQ(2, 34)
  // HDF5 and MPI leave their descriptors to new processes, and with them the locks on files.
  ::posix_spawn_file_actions_addclosefrom_np(&actions, examined_descriptor + 1);
#endif
  // A group of its own, so that signals to the job do not look like a crash; and no signal blocked.
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::string name = examiner_name, one_thread = "OPENBLAS_NUM_THREADS=1";
  std::vector<char*> arguments = {name.data(), nullptr}, environment = {one_thread.data()};
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  const int error =
      ::posix_spawn(&process, "/proc/self/exe", &actions, &attributes, arguments.data(), environment.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  return error;
}

/// Throws where a process that examines the file ends by a crash. Returns whether it could open the file.
bool require_sound_structure(const std::string& path, const Descriptor& file, ExitCode code) {
  pid_t process = 0;
  int status = 0;
  int error = spawn_examiner(file, process);
  while (error == 0 && ::waitpid(process, &status, 0) < 0) {
    if (errno != EINTR) error = errno;
  }
  if (error != 0) {
    throw Error(code, fmt::format("{}: of an old HDF5 format, and the process that examines it cannot be started: {}; "
                                  "h5repack --low=1 OLD NEW makes one that needs none",
                                  path, std::strerror(error)));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == was_examined) return true;
  if (WIFEXITED(status) && WEXITSTATUS(status) == was_refused) return false;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (std::ranges::find(crashes, signal) != crashes.end()) {
    throw Error(code,
                fmt::format("{}: HDF5 {} on what it says of its contents ({}); the file is damaged", path,
                            signal == SIGXCPU ? "works for ever" : "crashes", ::strsignal(signal)),
                Scope::this_rank, Cause::damage);
  }
  throw Error(code, fmt::format("{}: the process that examines it has ended by {} {}; try again", path,
                                signal != 0 ? "signal" : "code", signal != 0 ? signal : WEXITSTATUS(status)));
}

/// Names of all attributes of an object.
std::vector<std::string> attribute_names(hid_t object) {
  std::vector<std::string> names;
  const auto add = [](hid_t, const char* name, const H5A_info_t*, void* names) -> herr_t {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
  };
  H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &names);
  return names;
}

}  // namespace

void File::examine() const { examine_group("/", 0); }

void File::examine_attributes(const std::string& name) const {
  std::vector<std::string> names;
  quietly([&] { names = attribute_names(object(name).get()); });
  for (const std::string& attribute : names) {
    quietly([&] { read_text_attribute(name, attribute); });
    quietly([&] { read_integer_attribute(name, attribute); });
    quietly([&] { read_real_attribute(name, attribute); });
  }
}

void File::examine_dataset(const std::string& name) const {
  quietly([&] { H5Dget_storage_size(dataset(name).get()); });  // looks at all chunks
  const auto read_one = [&]<class T>(T value) {
    quietly([&] {
      const std::size_t axes = growing_shape(name).size();
      read<T>(name, Extent(axes, 0), Extent(axes, 1), {&value, 1});
    });
  };
  read_one(0.0f);
  read_one(0.0);
  read_one(std::uint8_t{});
  read_one(std::uint16_t{});
  read_one(std::int32_t{});
  read_one(std::int64_t{});
  read_one(std::uint64_t{});
}

void File::examine_group(const std::string& name, int depth) const {
  constexpr int max_depth = 5;  // the program's own files have /muon/momentum/<numbers>/<tensor>, and objects in it
  std::vector<std::string> names;
  examine_attributes(name);
  quietly([&] { names = members(name); });
  for (const std::string& member : names) {
    const std::string path = name == "/" ? name + member : name + "/" + member;
    examine_dataset(path);
    if (depth + 1 < max_depth) examine_group(path, depth + 1);
  }
}

void look_before_opening(const std::string& path, ExitCode code) {
  const auto refuse = [&](const std::string& what) {
    throw Error(code, fmt::format("{}: {}", path, what), Scope::this_rank, Cause::damage);
  };
  if (kind_of(path, code) == FileKind::directory && exists(path + "/model.safetensors", code))
    refuse("a directory, not a checkpoint; make one of its model with: nanorun import DIRECTORY CHECKPOINT");
  const Descriptor file = open_to_read(path, code);
  const Head head = read_head(path, file, code);
  if (is_safetensors(head)) {
    refuse(
        "a safetensors file, not a checkpoint; make one of the model in its directory with: nanorun import "
        "DIRECTORY CHECKPOINT");
  }
  if (is_bin(head)) {
    refuse(code == ExitCode::checkpoint
               ? "a .bin file of tokens, not a checkpoint"
               : "a .bin file, which has no checksums; make a token shard of it with: nanorun shard OUTPUT FILE");
  }
  if (!is_hdf5(head)) {
    const std::string_view bytes(reinterpret_cast<const char*>(head.data()), head.size());
    std::string known = known_format(bytes.substr(0, file_size(path, code)));
    if (known.empty()) known = html_page(bytes);
    refuse(fmt::format("not an HDF5 file, so neither a token shard, a checkpoint nor a trace{}{}",
                       known.empty() ? "" : "; it is ", known));
  }
  if (!is_of_old_format(head)) return;
  if (has_driver_block(head)) refuse("has an HDF5 driver block, unfit for reading");
  if (is_examiner) return;
  static std::vector<FileState> examined;  // under the lock of HDF5
  const FileState state = state_of(path, code);
  if (std::ranges::find(examined, state) != examined.end()) return;
  if (require_sound_structure(path, file, code)) examined.push_back(state);
}

void examine_where_asked(char** argv) {
  if (argv == nullptr || argv[0] == nullptr || std::string_view(argv[0]) != examiner_name) return;
  is_examiner = true;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int signal : crashes) ::signal(signal, SIG_DFL);  // whatever a sanitizer makes of it
  const rlimit no_core{0, 0}, cpu{max_cpu_seconds, max_cpu_seconds + 1};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::setrlimit(RLIMIT_CPU, &cpu);
  int result = was_refused;
  quietly([&] {
    File::open(examined_path).examine();
    result = was_examined;
  });
  ::_exit(result);
}

}  // namespace nanorun::h5
