// The messages of a schedule: activations from a stage to the ranks of its readers, and gradients back. Stages on the same rank
// need no messages. If several stages of a rank read the same result, the rank receives it once and sends one gradient
// (cut_edges.h).
//
// A lane is (source, destination, activation or gradient). Messages of a lane arrive in the order in which they were sent, and
// lanes never wait for each other. (With one lane for each rank, 1F1B and interleaved orders deadlock if a send waits for its
// receiver; blocking_ends() shows it.) A rank sends as soon as it has computed. It posts the receives of a lane in the sender's
// order, one task before they are needed, so that messages arrive while it computes. Ranks could wait for one another in a
// circle if their next results need the memory of results that are not sent yet; then one of them posts its receive earlier. So
// the actions end even if each send blocks its rank until the receive is posted, and therefore however memory is reused.
//
// With two replicas, a stage's gradients are summed between its ranks: once after the last one, or after each round (a
// micro-batch of every replica) before the gradients of the next round. Both ranks issue their reductions in the same order, at
// points that both can reach, so that the actions end even if reductions block their rank.
//
// In an asynchronous order, all ranks take part in a verdict, each once it has computed an update's gradients for all its
// stages. The update and the tasks after it wait for the verdict. If a rank must send before it can take part, the receiver
// posts its receive early enough.
//
// Pure. Threads: any. Errors: as check(); Error(ErrorKind::refused) if directions wait for one another's gradients, or ranks
// for one another's verdicts.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

enum class Payload : std::uint8_t { activation, gradient };
struct Message {
  Payload payload = Payload::activation;
  std::uint32_t source = 0, destination = 0;
  std::uint32_t stage = 0, micro_batch = 0;  // the message is the result of this stage, or the gradient of that result
  friend bool operator==(const Message&, const Message&) = default;
};

// The actions of a rank, in order.
struct Action {
  enum class Op : std::uint8_t { compute, send, receive, reduce } op = Op::compute;
  Task task = {};        // for compute; for reduce: the stage, and the last micro-batch whose gradient is added
  Message message = {};  // for send and receive
};
struct Connected {
  std::vector<std::vector<Action>> actions;  // [rank]
  std::vector<std::uint32_t> peak_waiting;   // [rank] receives that are posted and not yet used
};
enum class Reduced : std::uint8_t { once, each_round };
// The tasks that wait for the verdict of an update. before_gradients: the gradients of the next update, which need the places
// of this one's. before_all: all later tasks of a rank, because weights are gathered on the same stream as verdicts.
enum class Verdicts : std::uint8_t { none, before_gradients, before_all };
Connected connect(const Schedule& schedule, Reduced reduced = Reduced::once, Verdicts verdicts = Verdicts::none);

// True if all ranks finish if every send and receive blocks its rank until the other side has arrived, with each receive right
// before the task that needs it, as in a program with one lane for each rank.
bool blocking_ends(const Schedule& schedule);

}  // namespace terrace::pipeline
