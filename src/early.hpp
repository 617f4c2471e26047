#pragma once
// What must stand before the constructors of shared libraries run, which open files and start threads. libc has no
// environment and no streams then, so that this module makes system calls only.
//
// SIGTERM, SIGINT, SIGHUP and SIGUSR2 ask a run to stop in order, from the start of the program on. A second one of the
// first three ends the program wherever that is, unless it comes within a second: a closing terminal and some launchers
// send a signal twice at once. SIGUSR2 only asks and does not count, since batch systems send SIGTERM after it.

namespace nanorun {

/// For the .preinit_array of the program: calls note_signals(), ignores SIGXFSZ, and ends the program where a limit on
/// its memory would make OpenBLAS hang as it is loaded, or one on its files keep MPI from starting. A low soft limit on
/// open files is raised. Standard descriptors that are closed are opened, so that no file of the program gets their
/// numbers; they can be neither read nor written.
void prepare_process(int argc, char** argv, char** environment);

/// Notes the four signals from now on; a second call puts back the handlers that a library has replaced. SIGINT and
/// SIGHUP that were ignored when the program started, as under nohup and in a shell's background, stay ignored.
void note_signals();
/// The first of them that came; 0 before.
int noted_signal();
/// Gives them their default actions, and lets the one that has come already take its own: for commands that cannot stop
/// in order.
void heed_signals();

}  // namespace nanorun
