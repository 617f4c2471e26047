#pragma once
// The text of lock files: who holds the lock. In a directory of checkpoints behind a link it also names the run's
// directory: "job 17, process 4711 on node n1; checkpoints of /data/outputs/first".

#include <string>
#include <string_view>

#include "src/base/error.hpp"

namespace nanorun {

/// This process, as lock files name it: the batch job where there is one, process and node.
std::string own_name();

/// Whether a text is that of a lock file, also of earlier programs.
bool is_lock_text(std::string_view text);

/// Whether a lock file holds no text, or zeros, as a crash may leave it before its text is on disk.
inline bool is_blank_lock(std::string_view text) { return text.find_first_not_of('\0') == text.npos; }

/// Whether a lock file may hold the text: that of one, or none.
inline bool may_be_lock(std::string_view text) { return is_blank_lock(text) || is_lock_text(text); }

/// Stands before the run's directory in the lock file of a directory of checkpoints behind a link.
inline constexpr const char* checkpoints_of = "; checkpoints of ";

/// Directory of the run to which the locked checkpoints belong; empty where the lock is the one of a run's directory.
std::string owner_in_lock(const std::string& text);

/// Whether files with the names of checkpoints lie in the directory itself.
bool holds_checkpoints(const std::string& directory, ExitCode code);

}  // namespace nanorun
