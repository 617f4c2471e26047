#pragma once
// The HDF5 library itself: the lock around it, why its last call failed, opening with patience, its version, and the
// names of its types in messages.

#include <hdf5.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace nanorun::h5 {

/// Holds the process-wide lock; the first one also silences HDF5's own printing.
class Locked {
 public:
  Locked();

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

/// A call that ranks may make together: `watched` begins before the lock is waited for.
struct Call {
  std::shared_ptr<void> watched;
  Locked locked{};
};

/// Why the last HDF5 call failed.
struct Reason {
  std::string text;        ///< HDF5's innermost message, on one line; empty if the call succeeded
  bool of_system = false;  ///< a call of the operating system or of MPI failed, or memory was short
  int error = 0;           ///< errno of that call; 0 where HDF5 does not tell it
};
Reason last_reason();

/// Calls `open`, and again for up to a second as long as `passes` says of the errno that the reason of its failure
/// passes. Returns what the last call returned.
hid_t open_patiently(const std::function<hid_t()>& open, const std::function<bool(int error)>& passes);

/// The version of the library that runs, "1.10.8".
std::string version();

/// Names of types for messages: "text", "big-endian uint16".
std::string class_name(H5T_class_t type);
std::string type_name(hid_t type);

}  // namespace nanorun::h5
