#pragma once
// What must be done before the constructors of shared libraries run, which open files and start threads. libc has no
// environment and no streams then, so this module makes system calls only.
//
// SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 ask a run to stop in order, from the start of the program on. A second
// one of the first three ends the program wherever that is, unless it comes within a second: a closing terminal and
// some launchers send a signal twice at once. SIGUSR1 and SIGUSR2 only ask and do not count, since batch systems send
// SIGTERM after them.

namespace nanorun {

/// For the .preinit_array of the program: calls note_signals(), ignores SIGXFSZ, and ends the program where a limit on
/// its memory would make OpenBLAS hang as it is loaded, or one on its files keep MPI from starting. A low soft limit on
/// open files is raised. Standard descriptors that are closed are opened, so that no file of the program gets their
/// numbers; they can be neither read nor written.
void prepare_process(int argc, char** argv, char** environment);

/// Notes the five signals from now on; a second call puts back the handlers that a library has replaced. Signals that
/// were ignored when the program started, as under nohup and in a shell's background, stay ignored. SIGUSR1 is left to
/// a library that handles it: MPICH learns by it of processes that have died, and NCCL 2.12 and 2.13 take it.
void note_signals();
/// The first of the five signals that came; 0 if none came yet.
int noted_signal();
/// One of the five signals that a library handles now, and its handler; signal 0 where there is none. If that is
/// SIGUSR1, it does not ask the run to stop any more, even where the library's handler calls the one that it has
/// replaced.
struct TakenSignal {
  int signal = 0;
  void* handler = nullptr;
};
TakenSignal taken_signal();
/// For commands that cannot stop in order: gives the five signals their default actions, and raises again the one that
/// has already come.
void heed_signals();

/// Seconds since the system has started the process, including the time that loading it took, to 1/100 s; 0 where the
/// system does not tell.
double seconds_of_process();

}  // namespace nanorun
