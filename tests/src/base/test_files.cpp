#include "src/base/files.hpp"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "src/base/file_lock.hpp"
#include "src/base/output_file.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {
namespace {

namespace fs = std::filesystem;

constexpr ExitCode code = ExitCode::data;

void put(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A directory that holds one of everything.
struct Zoo {
  TempFolder folder;
  std::string file = folder / "file", directory = folder / "directory", fifo = folder / "fifo", link = folder / "link",
              dangling = folder / "dangling", absent = folder / "absent";

  Zoo() {
    put(file, "content");
    fs::create_directory(directory);
    EXPECT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    fs::create_symlink(file, link);
    fs::create_symlink(absent, dangling);
  }
  ~Zoo() { EXPECT_EQ(text_of(file), "content"); }
};

TEST(Files, KindOfAFileFollowsLinks) {
  const Zoo zoo;
  EXPECT_EQ(kind_of(zoo.file, code), FileKind::regular);
  EXPECT_EQ(kind_of(zoo.directory, code), FileKind::directory);
  EXPECT_EQ(kind_of(zoo.fifo, code), FileKind::other);
  EXPECT_EQ(kind_of("/dev/null", code), FileKind::other);
  EXPECT_EQ(kind_of(zoo.link, code), FileKind::regular);
  EXPECT_EQ(kind_of_entry(zoo.link, code), FileKind::symlink);
  EXPECT_EQ(kind_of(zoo.dangling, code), FileKind::absent);
  EXPECT_EQ(kind_of_entry(zoo.dangling, code), FileKind::symlink);
  EXPECT_EQ(kind_of(zoo.absent, code), FileKind::absent);
  EXPECT_EQ(error_of([&] { kind_of(zoo.file + "/below", code); }),
            zoo.file + "/below: cannot be accessed: Not a directory");
}

TEST(Files, OnlyRegularFilesAreRead) {
  const Zoo zoo;
  EXPECT_EQ(read_text(zoo.file, 7, code), "content");
  EXPECT_EQ(read_text(zoo.link, 7, code), "content");
  EXPECT_EQ(error_of([&] { read_text(zoo.file, 6, code); }), zoo.file + ": 7 bytes; at most 6 are allowed");
  EXPECT_EQ(error_of([&] { read_text(zoo.absent, 7, code); }), zoo.absent + ": no such file");
  EXPECT_EQ(error_of([&] { read_text(zoo.directory, 7, code); }), zoo.directory + ": a directory; name a file in it");
  EXPECT_EQ(error_of([&] { read_text(zoo.fifo, 7, code); }),
            zoo.fifo + ": a device, FIFO or socket, not a regular file");
  std::array<std::byte, 4> bytes;
  read_at(open_to_read(zoo.file, code), zoo.file, 3, bytes, code);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(bytes.data()), 4), "tent");
  EXPECT_EQ(error_of([&] { read_at(open_to_read(zoo.file, code), zoo.file, 5, bytes, code); }),
            zoo.file + ": truncated: ends at byte 7, 2 more expected");
}

TEST(Files, InputsMayComeThroughPipesOfThisProcess) {
  const Zoo zoo;
  EXPECT_EQ(read_input(zoo.file, 7, code), "content");
  EXPECT_EQ(error_of([&] { read_input(zoo.fifo, 7, code); }),
            zoo.fifo + ": a device, FIFO or socket, not a regular file");
  for (const char* folder : {"/dev/fd/", "/proc/self/fd/"}) {
    std::array<int, 2> ends;
    ASSERT_EQ(::pipe(ends.data()), 0);
    ASSERT_EQ(::write(ends[1], "content", 7), 7);
    ::close(ends[1]);
    const std::string path = folder + std::to_string(ends[0]);
    EXPECT_EQ(read_input(path, 7, code), "content");
    EXPECT_EQ(read_input(path, 7, code), "");  // at its end
    ::close(ends[0]);
    EXPECT_EQ(error_of([&] { read_input(path, 7, code); }), path + ": no such file");
  }
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe(ends.data()), 0);
  ASSERT_EQ(::write(ends[1], "content", 7), 7);
  const std::string path = "/dev/fd/" + std::to_string(ends[0]);
  EXPECT_EQ(error_of([&] { read_input(path, 6, code); }), path + ": more than 6 bytes");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Files, NothingButRegularFilesIsReplaced) {
  const Zoo zoo;
  const std::string source = zoo.folder / "source";
  for (const std::string& target : {zoo.directory, zoo.fifo, zoo.link, zoo.dangling}) {
    put(source, "other");
    const FileKind before = kind_of_entry(target, code);
    EXPECT_NE(error_of([&] { rename_file(source, target, code); }), "");
    EXPECT_NE(error_of([&] { remove_file(target, code); }), "");
    EXPECT_NE(error_of([&] { create_file(target, code); }), "");
    EXPECT_NE(error_of([&] { replace_text(target, code, "other"); }), "");
    EXPECT_NE(error_of([&] { require_free(target, Overwrite::yes, {}, code); }), "");
    EXPECT_EQ(kind_of_entry(target, code), before) << target;
    EXPECT_FALSE(fs::exists(partial_of(target)));
  }
  EXPECT_EQ(kind_of(zoo.absent, code), FileKind::absent);
  replace_text(source, code, "new");
  EXPECT_EQ(text_of(source), "new");
}

/// Where a partial file is to be, somebody else's link must not lead the program elsewhere.
TEST(Files, PlantedLinksAreNotFollowed) {
  const Zoo zoo;
  const std::string target = zoo.folder / "target";
  fs::create_symlink(zoo.file, partial_of(target));
  const std::string before = text_of(zoo.file);
  replace_text(target, code, "x");
  EXPECT_EQ(text_of(target), "x");
  EXPECT_EQ(text_of(zoo.file), before);
  EXPECT_EQ(kind_of_entry(partial_of(target) + ".1", code), FileKind::symlink);
  EXPECT_EQ(error_of([&] { AppendFile(zoo.link, code); }), zoo.link + ": a symbolic link, not a regular file");
  EXPECT_EQ(error_of([&] { FileLock(zoo.link, "note", code); }), zoo.link + ": a symbolic link, not a regular file");
}

TEST(Files, FurtherHardLinksKeepWhatTheyHave) {
  const Zoo zoo;
  const std::string before = text_of(zoo.file), lock = zoo.folder / "lock", log = zoo.folder / "log";
  for (const std::string& link : {lock, log}) fs::create_hard_link(zoo.file, link);
  {
    const FileLock first(lock, "first", code);
    EXPECT_FALSE(first.held_by());
    EXPECT_TRUE(first.in_place());
    const std::string copy = zoo.folder / "copy";
    fs::create_hard_link(lock, copy);
    const FileLock second(copy, "second", code);
    EXPECT_EQ(second.held_by(), "first");
    EXPECT_TRUE(second.held_elsewhere());
    EXPECT_TRUE(first.in_place());
  }
  AppendFile file(log, code);
  EXPECT_EQ(file.links(), 1u);
  file.write("more");
  EXPECT_EQ(text_of(log), before + "more");
  EXPECT_EQ(text_of(zoo.file), before);
  EXPECT_EQ(fs::hard_link_count(zoo.file), 1u);
  EXPECT_FALSE(fs::exists(partial_of(lock)) || fs::exists(partial_of(log)));
}

TEST(Files, ALockOfAFileThatLosesItsNameLocksNothing) {
  const Zoo zoo;
  const std::string path = zoo.folder / "lock";
  std::optional<FileLock> old(std::in_place, path, "old", code);
  std::thread remover([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    fs::rename(path, path + ".1");
    old.reset();
  });
  const FileLock lock(path, "new", code);
  remover.join();
  EXPECT_FALSE(lock.held_by());
  EXPECT_TRUE(lock.in_place());
}

TEST(Files, TheStateOfALockIsToldAndNoneIsKept) {
  const Zoo zoo;
  EXPECT_EQ(lock_state(zoo.file, LockKind::exclusive, code), LockState::free);
  EXPECT_EQ(lock_state(zoo.file, LockKind::exclusive, code), LockState::free);
  for (const int kind : {LOCK_SH, LOCK_EX}) {
    const Descriptor other = open_to_read(zoo.file, code);
    ASSERT_EQ(::flock(other.get(), kind), 0);
    EXPECT_EQ(lock_state(zoo.file, LockKind::exclusive, code), LockState::held);
    EXPECT_EQ(lock_state(zoo.file, LockKind::shared, code), kind == LOCK_SH ? LockState::free : LockState::held);
  }
  EXPECT_EQ(error_of([&] { lock_state(zoo.absent, LockKind::shared, code); }),
            zoo.absent + ": cannot be opened: No such file or directory");
}

TEST(Files, ReasonsThatPassAreToldFromOthers) {
  for (const int reason : {EAGAIN, EWOULDBLOCK, ENOLCK, ESTALE, EINTR})
    EXPECT_THROW(fail_by_system(code, "path", "cannot be read", reason), Busy) << reason;
  for (const int reason : {EIO, ENOSPC, EACCES, ENOENT}) {
    EXPECT_EQ(error_of([&] {
                try {
                  fail_by_system(code, "path", "cannot be read", reason);
                } catch (const Busy&) {
                  ADD_FAILURE() << reason;
                }
              }),
              std::string("path: cannot be read: ") + std::strerror(reason));
  }
}

TEST(Files, OutputsAreNotInputs) {
  const Zoo zoo;
  const std::vector<std::string> inputs = {zoo.absent, zoo.file};
  EXPECT_NE(error_of([&] { require_free(zoo.file, Overwrite::yes, inputs, code); }).find("is an input"),
            std::string::npos);
  EXPECT_NE(error_of([&] { require_free(zoo.link, Overwrite::yes, inputs, code); }).find("is an input"),
            std::string::npos);
  EXPECT_NE(error_of([&] { require_free(zoo.file, Overwrite::no, {}, code); }).find("--force"), std::string::npos);
  require_free(zoo.file, Overwrite::yes, {}, code);
  require_free(zoo.absent, Overwrite::no, inputs, code);
}

TEST(Files, ListsAndGlobs) {
  const Zoo zoo;
  EXPECT_EQ(list_directory(zoo.absent, code), std::vector<std::string>());
  EXPECT_EQ(list_directory(zoo.directory, code), std::vector<std::string>());
  put(zoo.directory + "/b", "");
  put(zoo.directory + "/a", "");
  EXPECT_EQ(list_directory(zoo.directory, code), (std::vector<std::string>{"a", "b"}));
  EXPECT_NE(error_of([&] { list_directory(zoo.file, code); }).find("cannot be listed: Not a directory"),
            std::string::npos);
  EXPECT_EQ(glob_paths(zoo.directory + "/?", code),
            (std::vector<std::string>{zoo.directory + "/a", zoo.directory + "/b"}));
  EXPECT_EQ(glob_paths(zoo.absent + "/*", code), std::vector<std::string>());
}

TEST(Files, CanonicalPathsHaveNoLinksAsFarAsTheyExist) {
  const Zoo zoo;
  const std::string folder = canonical_path(zoo.directory + "/..", code);
  EXPECT_EQ(canonical_path(zoo.link, code), folder + "/file");
  EXPECT_EQ(canonical_path(zoo.directory + "/a/../b", code), folder + "/directory/b");
  EXPECT_EQ(canonical_path(zoo.absent, code), folder + "/absent");
}

TEST(Files, SetAsideTakesTheFirstFreeNumber) {
  const Zoo zoo;
  put(zoo.folder / "run.1", "taken");
  const std::string run = zoo.folder / "run";
  put(run, "mine");
  EXPECT_EQ(set_aside(run, code), zoo.folder / "run.2");
  EXPECT_EQ(text_of(zoo.folder / "run.1"), "taken");
  EXPECT_EQ(text_of(zoo.folder / "run.2"), "mine");
}

TEST(Files, AppendedTextOutlivesItsName) {
  const Zoo zoo;
  const std::string path = zoo.folder / "log";
  AppendFile file(path, code);
  file.write("one\n");
  EXPECT_TRUE(file.in_place());
  fs::remove(path);
  EXPECT_FALSE(file.in_place());
  file.write("two\n");
  EXPECT_EQ(file.text(), "one\ntwo\n");
  put(path, "another");
  EXPECT_FALSE(file.in_place());
}

}  // namespace
}  // namespace nanorun
