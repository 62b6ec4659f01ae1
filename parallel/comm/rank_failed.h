// What a communicator says of a call that cannot end: another rank failed, died, left or kept it waiting, or this rank's own
// stream had failed before it. Of several ranks' errors one that is not of this type is the cause of those that are.
//
// Owner:   a value. Threads: any.
#pragma once

#include <terrace/core/error.h>

namespace terrace {

class RankFailed : public Error {
 public:
  using Error::Error;
};

}  // namespace terrace
