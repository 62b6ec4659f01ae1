// The error of a call that cannot end: another rank failed, died, left or came too late, or this rank's own stream had failed
// before it. If several ranks report errors, an error that is not a RankFailed is the cause of the others.
//
// Owner:   a value. Threads: any.
#pragma once

#include <terrace/core/base/error.h>

namespace terrace::comm {

class RankFailed : public Error {
 public:
  using Error::Error;
};

}  // namespace terrace::comm
