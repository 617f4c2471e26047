#include "src/storage/h5.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "src/base/files.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/old_hdf5.hpp"
#include "tests/support/temp_folder.hpp"

namespace nanorun {
namespace {

using h5::File;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

template <class T>
std::vector<T> counting(std::size_t n) {
  std::vector<T> values(n);
  std::iota(values.begin(), values.end(), T{1});
  return values;
}

template <class T>
class Types : public testing::Test {};
using ElementTypes =
    testing::Types<float, double, std::uint8_t, std::uint16_t, std::int32_t, std::int64_t, std::uint64_t>;
TYPED_TEST_SUITE(Types, ElementTypes);

TYPED_TEST(Types, SlabsOfThreeAxesComeBack) {
  using T = TypeParam;
  const TempFolder folder;
  File file = File::create(folder / "a.h5");
  file.create_dataset<T>("group/inner/x", {2, 3, 4});
  const auto whole = counting<T>(24);
  file.write<T>("group/inner/x", {0, 0, 0}, {1, 3, 4}, std::span(whole).first(12));
  file.write<T>("group/inner/x", {1, 0, 0}, {1, 3, 4}, std::span(whole).last(12));
  file.close();

  const File again = File::open(folder / "a.h5");
  EXPECT_EQ(again.shape("group/inner/x"), (h5::Extent{2, 3, 4}));
  std::vector<T> part(4);
  again.read<T>("group/inner/x", {0, 1, 2}, {2, 1, 2}, part);
  EXPECT_EQ(part, (std::vector<T>{7, 8, 19, 20}));
  again.read<T>("group/inner/x", {2, 0, 0}, {0, 3, 4}, {});
}

TEST(H5, ElementsLieLittleEndianInTheFile) {
  const TempFolder folder;
  File file = File::create(folder / "a.h5");
  file.create_dataset<std::uint16_t>("x", {2});
  file.write<std::uint16_t>("x", {0}, {2}, std::vector<std::uint16_t>{0xa1b2, 0xc3d4});
  file.close();
  std::ifstream in(folder / "a.h5", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  EXPECT_NE(bytes.find("\xb2\xa1\xd4\xc3"), std::string::npos);
}

TEST(H5, GrowingDatasetKeepsItsRows) {
  const TempFolder folder;
  {
    File file = File::create(folder / "a.h5");
    file.create_growing_dataset<double>("rows", {0, 3}, 2);
    for (std::uint64_t i = 0; i < 5; ++i) {
      file.resize("rows", {i + 1, 3});
      file.write<double>("rows", {i, 0}, {1, 3}, std::vector<double>(3, static_cast<double>(i)));
    }
  }
  File file = File::open_append(folder / "a.h5");
  file.resize("rows", {4, 3});
  std::vector<double> rows(12);
  file.read<double>("rows", {0, 0}, {4, 3}, rows);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(rows[i], i / 3);
}

TEST(H5, AttributesAndGroups) {
  const TempFolder folder;
  {
    File file = File::create(folder / "a.h5");
    file.create_dataset<double>("b/c/x", {1});
    file.create_dataset<double>("a/x", {1});
    file.write_attribute("/", "name", std::string("first"));
    file.write_attribute("/", "name", std::string("größer"));
    file.write_attribute("b/c", "empty", std::string());
    file.write_attribute("/", "count", ~std::uint64_t{0});
    file.write_attribute("b", "rate", 0.1);
  }
  const File file = File::open(folder / "a.h5");
  EXPECT_EQ(file.members("/"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(file.read_text_attribute("/", "name"), "größer");
  EXPECT_EQ(file.read_text_attribute("b/c", "empty"), "");
  EXPECT_EQ(file.read_integer_attribute("/", "count"), ~std::uint64_t{0});
  EXPECT_EQ(file.read_real_attribute("b", "rate"), 0.1);
  EXPECT_TRUE(file.has_attribute("/", "name"));
  EXPECT_FALSE(file.has_attribute("/", "nome"));
  EXPECT_TRUE(file.exists("/"));
  EXPECT_TRUE(file.exists("b/c"));
  EXPECT_FALSE(file.exists("x/y/z"));
  EXPECT_TRUE(contains(error_of([&] { file.read_text_attribute("/", "count"); }), "another type"));
  EXPECT_TRUE(
      contains(error_of([&] { file.read_integer_attribute("/", "nome"); }), "a.h5: / @nome: no such attribute"));
}

TEST(H5, FilesThatAreNoneAreRefused) {
  const TempFolder folder;
  EXPECT_EQ(error_of([&] { File::open(folder / "a.h5"); }), (folder / "a.h5") + ": no such file");
  std::ofstream(folder / "a.h5") << std::string(4000, 'x');
  EXPECT_EQ(error_of([&] { File::open(folder / "a.h5"); }),
            (folder / "a.h5") + ": not an HDF5 file, so neither a token shard, a checkpoint nor a trace");
  EXPECT_TRUE(contains(
      error_of([&] { File::open(folder / "a.h5", MPI_COMM_NULL, ExitCode::checkpoint); }, ExitCode::checkpoint),
      "a.h5"));
  EXPECT_TRUE(contains(error_of([&] { File::create(folder / "none/a.h5"); }), "cannot be created: "));
}

TEST(H5, TruncatedFileIsRefused) {
  const TempFolder folder;
  {
    File file = File::create(folder / "a.h5");
    file.create_dataset<float>("x", {1000});
    file.write<float>("x", {0}, {1000}, std::vector<float>(1000, 1.0f));
  }
  std::filesystem::resize_file(folder / "a.h5", std::filesystem::file_size(folder / "a.h5") - 1);
  EXPECT_TRUE(contains(error_of([&] { File::open(folder / "a.h5"); }), "truncated"));
}

TEST(H5, DamageIsToldFromWhatTheSystemRefuses) {
  const TempFolder folder;
  const std::string path = folder / "a.h5";
  const auto open = [&] { File::open(path); };
  EXPECT_EQ(cause_of(open), Cause::other);  // no such file
  EXPECT_EQ(cause_of([&] { File::create(folder / "none/a.h5"); }), Cause::other);
  {
    File file = File::create(path);
    file.create_dataset<float>("x", {1000});
    EXPECT_EQ(cause_of([&] { file.shape("y"); }), Cause::other);  // a file that this program writes
  }
  {
    const File file = File::open(path);
    std::vector<double> values(1);
    EXPECT_EQ(cause_of([&] { file.shape("y"); }), Cause::damage);
    EXPECT_EQ(cause_of([&] { file.read<double>("x", {0}, {1}, values); }), Cause::damage);
    EXPECT_EQ(cause_of([&] { file.read_integer_attribute("x", "sum"); }), Cause::damage);
  }
  {
    const Descriptor other = open_to_read(path, ExitCode::data);
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
    EXPECT_TRUE(contains(error_of(open), "lock"));
    EXPECT_EQ(cause_of(open), Cause::other);
  }
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_EQ(cause_of(open), Cause::damage);
  std::filesystem::resize_file(path, 2);
  EXPECT_EQ(cause_of(open), Cause::damage);
}

TEST(H5, ADriverBlockIsRefused) {
  const TempFolder folder;
  File::create(folder / "a.h5").close();
  make_old_format(folder / "a.h5");
  constexpr int address = 48;  // offset of the block's address in a superblock of version 0; all bits set: no block
  std::fstream file(folder / "a.h5", std::ios::binary | std::ios::in | std::ios::out);
  ASSERT_EQ(file.seekg(8).get(), 0);
  ASSERT_EQ(file.seekg(address).get(), 0xff);
  file.seekp(address).put(0x60).flush();
  EXPECT_TRUE(contains(error_of([&] { File::open(folder / "a.h5"); }), "a.h5: has an HDF5 driver block"));
}

/// One bit of any of them would otherwise be believed, or crash HDF5.
TEST(H5, PartsThatDescribeAFileCarryChecksums) {
  const TempFolder folder;
  const std::string path = folder / "a.h5";
  {
    File file = File::create(path);
    file.create_dataset<float>("group/x", {4});
    file.write_attribute("group/x", "sum", std::uint64_t{7});
    file.write_attribute("/", "format", std::string("mark of the file"));
  }
  std::ifstream in(path, std::ios::binary);
  const std::string sound{std::istreambuf_iterator<char>(in), {}};
  for (const char* part : {"group", "sum", "mark of the file"}) {
    std::string damaged = sound;
    damaged.at(sound.find(part)) ^= 1;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
    const std::string error = error_of([&] {
      const File file = File::open(path);
      file.format();
      file.read_integer_attribute("group/x", "sum");
    });
    EXPECT_TRUE(contains(error, "incorrect metadata checksum")) << part << ": " << error;
  }
}

TEST(H5, AnOldFileOnWhichHdf5CrashesIsDamaged) {
  const TempFolder folder;
  const std::string path = folder / "a.h5";
  {
    File file = File::create(path);
    file.create_dataset<float>("group/x", {4});
    file.write<float>("group/x", {0}, {4}, counting<float>(4));
    file.write_attribute("group/x", "sum", std::uint64_t{7});
  }
  make_old_format(path);
  {
    const File file = File::open(path);
    std::vector<float> values(4);
    file.read<float>("group/x", {0}, {4}, values);
    EXPECT_EQ(values, counting<float>(4));
    EXPECT_EQ(file.read_integer_attribute("group/x", "sum"), 7u);
  }
  share_fill_value(path, "group/x");
  for (const bool append : {false, true}) {
    const auto open = [&] { append ? File::open_append(path) : File::open(path); };
    EXPECT_TRUE(error_of(open).starts_with(path + ": HDF5 crashes on what it says of its contents ("));
    EXPECT_EQ(cause_of(open), Cause::damage);
  }
}

/// More names than HDF5 keeps in one place by itself.
TEST(H5, DamagedNamesOfManyMembersAreRefused) {
  const TempFolder folder;
  const std::string path = folder / "a.h5";
  {
    File file = File::create(path);
    for (int i = 0; i < 100; ++i) {
      file.create_dataset<float>(fmt::format("group/x{}", i), {1});
      file.write_attribute("/", fmt::format("y{}", i), std::uint64_t{1});
    }
  }
  EXPECT_EQ(File::open(path).members("group").size(), 100u);
  EXPECT_EQ(File::open(path).read_integer_attribute("/", "y99"), 1u);
  std::ifstream in(path, std::ios::binary);
  const std::string sound{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(sound.find("FRHP"), std::string::npos);  // no heap
  for (const char* name : {"x0", "x50", "x99", "y50"}) {
    std::string damaged = sound;
    damaged.at(sound.find(name)) ^= 1;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
    const auto look = [&] {
      const File file = File::open(path);
      file.members("group");
      file.has_attribute("/", "y0");
    };
    EXPECT_TRUE(contains(error_of(look), "incorrect metadata checksum")) << name << error_of(look);
    EXPECT_EQ(cause_of(look), Cause::damage);
  }
}

/// a.h5 with the dataset x of 4 floats, its layout as arranged.
template <class Arrange>
void write_arranged(const std::string& path, const Arrange& arrange, const hsize_t* limit = nullptr) {
  const hsize_t four = 4;
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &four, limit);
  EXPECT_GE(arrange(list), 0);
  const hid_t data = H5Dcreate2(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
  EXPECT_GE(data, 0);
  H5Dclose(data);
  H5Sclose(space);
  H5Pclose(list);
  H5Fclose(file);
}

TEST(H5, OnlyPlainLayoutsAreRead) {
  const TempFolder folder;
  const std::string path = folder / "a.h5";
  const hsize_t two = 2, all = H5S_UNLIMITED;
  std::vector<float> values(4);
  const auto shape = [&] { File::open(path).shape("x"); };
  const auto read = [&] { File::open(path).read<float>("x", {0}, {4}, values); };

  for (const H5D_layout_t layout : {H5D_CONTIGUOUS, H5D_COMPACT}) {
    write_arranged(path, [&](hid_t list) { return H5Pset_layout(list, layout); });
    EXPECT_EQ(error_of(shape), "");
    EXPECT_EQ(error_of(read), "");
  }
  write_arranged(
      path, [&](hid_t list) { return H5Pset_chunk(list, 1, &two); }, &all);
  EXPECT_EQ(error_of(shape), path + ": x: stored in chunks; store it contiguously: h5repack -l CONTI OLD NEW");
  EXPECT_EQ(cause_of(shape), Cause::damage);
  write_arranged(path, [&](hid_t list) { return std::min(H5Pset_chunk(list, 1, &two), H5Pset_fletcher32(list)); });
  for (const std::string& error : {error_of(shape), error_of(read)})
    EXPECT_EQ(error, path + ": x: compressed or filtered; store it as it is: h5repack -f NONE -l CONTI OLD NEW");
  EXPECT_EQ(cause_of(read), Cause::damage);
}

TEST(H5, SizesThatAFileHasNoRoomForAreRefused) {
  const TempFolder folder;
  const std::string path = folder / "a.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t many = std::uint64_t{1} << 40, pair[] = {0, many};
  const hid_t space = H5Screate_simple(1, &many, nullptr), empty = H5Screate_simple(2, pair, nullptr);
  H5Dclose(H5Dcreate2(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Dclose(H5Dcreate2(file, "empty", H5T_IEEE_F32LE, empty, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Sclose(empty);
  H5Sclose(space);
  H5Fclose(file);
  const File opened = File::open(path);
  EXPECT_EQ(error_of([&] { opened.shape("x"); }), path + ": x: has an impossible shape: [1099511627776]");
  EXPECT_EQ(error_of([&] { opened.growing_shape("x"); }), path + ": x: has an impossible shape: [1099511627776]");
  EXPECT_EQ(cause_of([&] { opened.shape("x"); }), Cause::damage);
}

TEST(H5, AnEmptyAxisHoldsNothingWhateverTheOthersAre) {
  const TempFolder folder;
  constexpr std::uint64_t many = std::uint64_t{1} << 40;
  {
    File file = File::create(folder / "a.h5");
    file.create_dataset<double>("first", {0, many, 13});
    file.create_dataset<double>("last", {many, many, 0});
    file.close();
  }
  const File opened = File::open(folder / "a.h5");
  EXPECT_EQ(opened.shape("first"), (h5::Extent{0, many, 13}));
  EXPECT_EQ(opened.growing_shape("last"), (h5::Extent{many, many, 0}));
  EXPECT_NO_THROW(opened.read<double>("first", {0, 0, 0}, {0, many, 13}, std::span<double>()));
}

/// While another program has it open, as a notebook has a trace.
TEST(H5, WhoWaitsForAFileThatOthersHoldIsToldSo) {
  const TempFolder folder;
  const std::string path = folder / "a.h5";
  File::create(path).close();
  const std::string held = path + ": another program has it open, and HDF5's lock on it";
  for (const int kind : {LOCK_SH, LOCK_EX}) {
    const int other = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(::flock(other, kind), 0);
    EXPECT_THROW(File::open_append(path), Busy);
    EXPECT_EQ(error_of([&] { File::open_append(path); }), held);
    EXPECT_EQ(error_of([&] { File::open(path); }), kind == LOCK_SH ? "" : held);
    ::close(other);
  }
  EXPECT_NO_THROW(File::open_append(path));
}

TEST(H5, WrongSlabsAndTypesAreRefused) {
  const TempFolder folder;
  File file = File::create(folder / "a.h5");
  file.create_dataset<float>("x", {4, 4});
  std::vector<float> values(16);
  const auto read = [&](const char* name, const h5::Extent& start, const h5::Extent& count) {
    return error_of([&] { file.read<float>(name, start, count, values); });
  };
  EXPECT_EQ(read("x", {0, 0}, {4, 4}), "");
  EXPECT_TRUE(contains(read("y", {0, 0}, {4, 4}), "a.h5: y: no such dataset: "));
  EXPECT_TRUE(contains(read("x", {1, 0}, {4, 4}), "a.h5: x: elements [4, 4] from [1, 0] asked of shape [4, 4]"));
  EXPECT_TRUE(contains(read("x", {~std::uint64_t{0}, 0}, {4, 4}), "asked of shape"));
  EXPECT_TRUE(contains(read("x", {0}, {16}), "asked of shape"));
  EXPECT_TRUE(contains(read("x", {0, 0}, {2, 4}), "16 values asked of slab [2, 4]"));
  EXPECT_TRUE(contains(error_of([&] {
                         file.write<float>("x", {0, 0}, {2, 4}, values);
                       }),
                       "16 values given for slab [2, 4]"));
  std::vector<double> doubles(16);
  EXPECT_TRUE(contains(error_of([&] { file.read<double>("x", {0, 0}, {4, 4}, doubles); }), "another type"));
}

/// a.h5 with names whose objects or data lie elsewhere, under /here and in the files b.h5 and c.raw.
void write_detours(const TempFolder& folder) {
  for (const char* name : {"a.h5", "b.h5"}) {
    File file = File::create(folder / name);
    file.create_dataset<float>("here/x", {4});
    file.write_attribute("here/x", "sum", std::uint64_t{7});
  }
  const std::string path = folder / "a.h5", other = folder / "b.h5", raw = folder / "c.raw";
  std::ofstream(raw) << std::string(16, '\0');
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Lcreate_soft("/here/x", file, "soft", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_soft("/here", file, "soft_group", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_external(other.c_str(), "/here/x", file, "external", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_external(other.c_str(), "/here", file, "external_group", H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t four = 4, all = H5S_UNLIMITED;
  const hid_t space = H5Screate_simple(1, &four, nullptr), endless = H5Screate_simple(1, &four, &all);
  const auto create = [&](const char* name, hid_t shape, auto&& arrange) {
    const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
    EXPECT_GE(arrange(list), 0) << name;
    const hid_t data = H5Dcreate2(file, name, H5T_IEEE_F32LE, shape, H5P_DEFAULT, list, H5P_DEFAULT);
    EXPECT_GE(data, 0) << name;
    H5Dclose(data);
    H5Pclose(list);
  };
  create("raw", space, [&](hid_t list) { return H5Pset_external(list, raw.c_str(), 0, 16); });
  create("virtual", space, [&](hid_t list) { return H5Pset_virtual(list, space, other.c_str(), "/here/x", space); });
  const hsize_t zero = 0, one = 1;
  H5Sselect_hyperslab(endless, H5S_SELECT_SET, &zero, nullptr, &all, &one);
  const std::string fifo = folder / "fifo.h5";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  create("endless", endless, [&](hid_t list) { return H5Pset_virtual(list, endless, fifo.c_str(), "/x", endless); });
  H5Sclose(space);
  H5Sclose(endless);
  H5Fclose(file);
}

TEST(H5, WhatLiesElsewhereIsRefused) {
  const TempFolder folder;
  write_detours(folder);
  const std::string path = folder / "a.h5";
  const std::pair<const char*, const char*> detours[] = {
      {"soft", "soft: a soft link"},
      {"soft_group/x", "soft_group: a soft link"},
      {"external", "external: a link to another file"},
      {"external_group/x", "external_group: a link to another file"},
      {"raw", "raw: has external storage"},
      {"virtual", "virtual: a virtual dataset"},
      {"endless", "endless: a virtual dataset"},
  };
  for (const bool append : {false, true}) {
    const File file = append ? File::open_append(path) : File::open(path);
    std::vector<float> values(4);
    EXPECT_EQ(error_of([&] { file.read<float>("here/x", {0}, {4}, values); }), "");
    EXPECT_TRUE(file.exists("here/x"));
    EXPECT_EQ(file.read_integer_attribute("here/x", "sum"), 7u);
    for (const auto& detour : detours) {
      const std::string name = detour.first, refusal = detour.second, expected = path + ": " + refusal;
      const auto read = [&] { file.read<float>(name, {0}, {4}, values); };
      EXPECT_TRUE(error_of(read).starts_with(expected)) << error_of(read);
      EXPECT_EQ(cause_of(read), Cause::damage);
      EXPECT_TRUE(error_of([&] { file.shape(name); }).starts_with(expected));
      if (!contains(refusal, "link")) continue;
      EXPECT_TRUE(error_of([&] { file.exists(name); }).starts_with(expected));
      EXPECT_TRUE(error_of([&] { file.read_integer_attribute(name, "sum"); }).starts_with(expected));
      EXPECT_TRUE(error_of([&] { file.has_attribute(name, "sum"); }).starts_with(expected));
    }
    EXPECT_TRUE(error_of([&] { file.members("soft_group"); }).starts_with(path + ": soft_group: a soft link"));
    EXPECT_TRUE(error_of([&] { file.members("/"); }).starts_with(path + ": /external: a link to another file"));
  }
}

TEST(H5, WrongTypesAreNamed) {
  const TempFolder folder;
  const std::string path = folder / "a.h5";
  File file = File::create(path);
  file.create_dataset<std::int32_t>("x", {1});
  const hid_t big_endian = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), scalar = H5Screate(H5S_SCALAR);
  const hid_t created = H5Dcreate2(big_endian, "y", H5T_IEEE_F64BE, scalar, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  EXPECT_GE(created, 0);
  H5Dclose(created);
  H5Sclose(scalar);
  H5Fclose(big_endian);
  std::vector<std::uint16_t> values(1);
  const auto read = [&](const char* name) {
    return error_of([&] { file.read<std::uint16_t>(name, {0}, {1}, values); });
  };
  EXPECT_EQ(read("x"), path + ": x: holds elements of another type than expected: int32 instead of uint16");
  EXPECT_EQ(read("y"),
            path + ": y: holds elements of another type than expected: big-endian float64 instead of uint16");
  file.write_attribute("/", "half", 0.5);
  file.write_attribute("/", "text", std::string("text"));
  EXPECT_EQ(error_of([&] { file.read_integer_attribute("/", "half"); }),
            path + ": / @half: holds a value of another type than expected: float64 instead of integer");
  EXPECT_EQ(error_of([&] { file.read_real_attribute("/", "text"); }),
            path + ": / @text: holds a value of another type than expected: text instead of floating-point");
}

TEST(Checksum, IsTheDocumentedSum) {
  const auto mix = [](std::uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  };
  const std::vector<float> x{1.0f, -0.0f};
  const std::uint64_t golden = 0x9e3779b97f4a7c15u;
  EXPECT_EQ(h5::checksum<float>(x, 6), mix(0x3f800000u + 7 * golden) + mix(0x80000000u + 8 * golden));
  // First output of splitmix64 from state 0.
  EXPECT_EQ(h5::checksum<std::uint16_t>(std::vector<std::uint16_t>{0}, 0), 0xe220a8397b1dcdafu);
}

template <class T>
class ChecksumOf : public Types<T> {};
TYPED_TEST_SUITE(ChecksumOf, ElementTypes);

TYPED_TEST(ChecksumOf, PartsAddUpAndEveryBitCounts) {
  using T = TypeParam;
  auto x = counting<T>(101);
  const std::uint64_t whole = h5::checksum<T>(x, 0);
  EXPECT_EQ(whole, h5::checksum<T>(std::span<const T>(x).first(37), 0) +
                       h5::checksum<T>(std::span<const T>(x).subspan(37), 37));
  EXPECT_NE(whole, h5::checksum<T>(x, 1));
  std::swap(x[3], x[90]);
  EXPECT_NE(whole, h5::checksum<T>(x, 0));
  std::swap(x[3], x[90]);
  auto* bytes = reinterpret_cast<unsigned char*>(x.data());
  for (std::size_t bit = 0; bit < 8 * sizeof(T); ++bit) {
    bytes[50 * sizeof(T) + bit / 8] ^= 1u << bit % 8;
    EXPECT_NE(whole, h5::checksum<T>(x, 0)) << bit;
    bytes[50 * sizeof(T) + bit / 8] ^= 1u << bit % 8;
  }
  EXPECT_EQ(whole, h5::checksum<T>(x, 0));
}

}  // namespace
}  // namespace nanorun
