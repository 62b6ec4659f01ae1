// A clean stop by SIGINT, SIGTERM, SIGHUP or SIGUSR2: long work asks from time to time whether a signal came.
//
// mpirun passes SIGUSR2 on to its ranks, and a batch system can send it before the time of a job ends. The second signal
// changes nothing, because launchers send one to the process and another to its process group. The third one ends the process
// at once. SIGHUP stays ignored under nohup.
//
// Owner:   the process has one. Threads: stop_signal() from any; catch_stop_signals() from main's.
#pragma once

#include <string>

namespace terrace::cli {

void catch_stop_signals();
int stop_signal();                      // the last one since catch_stop_signals(); 0: none
std::string describe_stop(int signal);  // "signal 15 (SIGTERM)", or its sender: "terrace launch"

}  // namespace terrace::cli
