#pragma once
// Files of HDF5's oldest format, as the program wrote them once and other programs do by default, and the damage that
// crashes HDF5 there.

#include <hdf5.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace nanorun {

namespace old_hdf5 {

inline void require(bool done) {
  if (!done) throw std::runtime_error("HDF5 cannot write a file of the old format");
}

/// A file to write, of the oldest format whatever HDF5 takes by itself: from 2.0 on that of HDF5 1.8.
inline hid_t create(const std::string& path) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  require(H5Pset_libver_bounds(access, H5F_LIBVER_EARLIEST, H5F_LIBVER_V18) >= 0);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  H5Pclose(access);
  return file;
}

inline herr_t copy_attribute(hid_t from, const char* name, const H5A_info_t*, void* to) {
  const hid_t attribute = H5Aopen(from, name, H5P_DEFAULT), type = H5Aget_type(attribute),
              space = H5Aget_space(attribute);
  std::vector<char> value(H5Tget_size(type) * static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  const hid_t copy = H5Acreate2(*static_cast<hid_t*>(to), name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  require(H5Aread(attribute, type, value.data()) >= 0 && H5Awrite(copy, type, value.data()) >= 0);
  H5Aclose(copy);
  H5Sclose(space);
  H5Tclose(type);
  H5Aclose(attribute);
  return 0;
}

inline hid_t copy_dataset(hid_t data, const char* name, hid_t to) {
  const hid_t type = H5Dget_type(data), space = H5Dget_space(data), list = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_obj_track_times(list, false);
  H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY);
  const hid_t copy = H5Dcreate2(to, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
  std::vector<char> values(H5Tget_size(type) * static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  require(H5Dread(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  require(H5Dwrite(copy, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  H5Pclose(list);
  H5Sclose(space);
  H5Tclose(type);
  return copy;
}

inline herr_t copy_object(hid_t from, const char* name, const H5L_info_t*, void* to) {
  const hid_t object = H5Oopen(from, name, H5P_DEFAULT);
  const bool is_group = H5Iget_type(object) == H5I_GROUP;
  hid_t copy = is_group ? H5Gcreate2(*static_cast<hid_t*>(to), name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)
                        : copy_dataset(object, name, *static_cast<hid_t*>(to));
  require(H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, copy_attribute, &copy) >= 0);
  if (is_group) require(H5Literate(object, H5_INDEX_NAME, H5_ITER_INC, nullptr, copy_object, &copy) >= 0);
  H5Oclose(copy);
  H5Oclose(object);
  return 0;
}

}  // namespace old_hdf5

/// Replaces a file by one of the same contents, its datasets contiguous, in HDF5's oldest format.
inline void make_old_format(const std::string& path) {
  const std::string sound = path + ".new_format";
  std::filesystem::rename(path, sound);
  const hid_t from = H5Fopen(sound.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  using namespace old_hdf5;
  hid_t to = create(path);
  require(H5Aiterate2(from, H5_INDEX_NAME, H5_ITER_INC, nullptr, copy_attribute, &to) >= 0);
  require(H5Literate(from, H5_INDEX_NAME, H5_ITER_INC, nullptr, copy_object, &to) >= 0);
  require(H5Fclose(to) >= 0 && H5Fclose(from) >= 0);
  std::filesystem::remove(sound);
}

/// Flips the bit that calls a dataset's fill value, in a file of the old format, one that several datasets share. HDF5
/// 1.10 to 2.2 crash as they open the dataset.
inline void share_fill_value(const std::string& path, const char* dataset) {
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
#if H5_VERSION_GE(1, 12, 0)
  H5O_info1_t info;
#else
  H5O_info_t info;
#endif
  old_hdf5::require(H5Oget_info_by_name1(id, dataset, &info, H5P_DEFAULT) >= 0 && H5Fclose(id) >= 0);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  // Header: version 1, messages and further words of 16 bytes; each message: type, size and flags of 8 bytes, contents.
  std::size_t at = info.addr + 16;
  old_hdf5::require(bytes.at(info.addr) == 1);
  std::uint16_t words[2];
  for (;; at += 8 + words[1]) {
    std::memcpy(words, &bytes.at(at + 3) - 3, sizeof(words));
    if (words[0] == 5) break;
  }
  file.clear();
  file.seekp(static_cast<std::streamoff>(at + 4)).put(static_cast<char>(bytes[at + 4] ^ 2)).flush();
}

}  // namespace nanorun
