#pragma once
// What must be done before shared libraries are initialised, since their constructors open files and start threads.
// libc has no environment and no streams yet, so this module makes only system calls.
//
// SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 ask a run to stop in order, from the start of the program on. A second
// SIGTERM, SIGINT or SIGHUP ends the program at once, unless it comes within a second: a closing terminal and some
// launchers send a signal twice. SIGUSR1 and SIGUSR2 do not count as a first one, since batch systems send SIGTERM
// after them.

namespace nanorun {

/// For the .preinit_array of the program: calls note_signals(), ignores SIGXFSZ, and raises a low soft limit on open
/// files. Ends the program if a limit on its memory would make OpenBLAS hang while it is loaded, or if a limit on its
/// files would keep MPI from starting. Opens standard descriptors that are closed, so that no file of the program gets
/// their numbers. These descriptors can be neither read nor written.
void prepare_process(int argc, char** argv, char** environment);

/// Notes the five signals from now on; a second call reinstalls handlers that a library has replaced. Signals that were
/// ignored when the program started, as under nohup and in a shell's background, stay ignored. SIGUSR1 is left to a
/// library that handles it: MPICH is told with it of processes that have died, and NCCL 2.12 and 2.13 take it.
void note_signals();
/// The first of the five signals that came; 0 if none came yet.
int noted_signal();
/// One of the five signals that a library handles now, and its handler; signal 0 where there is none. If the signal is
/// SIGUSR1, it no longer asks the run to stop, even if the library's handler calls the handler that it has replaced.
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
