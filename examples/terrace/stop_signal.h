// A clean stop by SIGINT, SIGTERM or SIGHUP: long work asks now and then whether it was asked for.
//
// The second signal changes nothing, because launchers send one to the process and again to its group; the third one ends the
// process at once. SIGHUP stays ignored under nohup.
//
// Owner:   the process has one. Threads: stop_signal() from any; catch_stop_signals() from main's.
#pragma once

namespace terrace::cli {

void catch_stop_signals();
int stop_signal();  // the last one caught since; 0: none

}  // namespace terrace::cli
