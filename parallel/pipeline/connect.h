// The messages of a schedule: activations from a stage to the ranks of its readers, gradients back from them. Stages on one
// rank need none, and a rank whose stages read the same result gets it once, and sends one gradient (cut_edges.h).
//
// A lane is (source, destination, activation or gradient). Messages of a lane arrive in the order in which they were sent, and
// lanes never wait for each other: with fewer lanes, 1F1B and interleaved orders deadlock where a send waits for its receiver
// (blocking_ends() shows it). A rank sends as soon as it has computed, and asks for a lane's messages in the sender's order,
// one task ahead of the need, so that they arrive while it computes. Where ranks could come to wait for one another in a circle
// because what they compute next needs the place of what they have not sent yet, one of them asks earlier: the actions end with
// sends that block their rank until they have been asked for, and so with every reuse of memory.
//
// With two replicas a stage's gradients are added up between its ranks: once, behind the last of them, or behind each round (a
// micro-batch of every replica), before the next one's. Both ranks come to it at the same time of one run, and in the same
// order to all of theirs, so that the actions end with reductions that block their rank, too.
//
// A verdict is given by all ranks of an asynchronous order, by each when it has an update's gradients of all its stages: the
// update waits for it, and what is then computed. Whoever has to send before it gives its own is asked before that.
//
// Pure. Threads: any. Errors: as check(); Error(Exit::usage) where directions wait for one another's gradients, or ranks for
// one another's verdicts.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

enum class Payload : std::uint8_t { activation, gradient };
struct Message {
  Payload payload = Payload::activation;
  std::uint32_t source = 0, destination = 0;
  std::uint32_t stage = 0, micro_batch = 0;  // whose result it is, or the gradient of that
  friend bool operator==(const Message&, const Message&) = default;
};

// What a rank does, in order.
struct Action {
  enum class Op : std::uint8_t { compute, send, receive, reduce } op = Op::compute;
  Task task = {};        // of compute; of reduce: the stage, and the last micro-batch whose gradient is added
  Message message = {};  // of send and receive
};
struct Connected {
  std::vector<std::vector<Action>> actions;  // [rank]
  std::vector<std::uint32_t> peak_waiting;   // [rank] messages asked for and not yet used
};
enum class Reduced : std::uint8_t { once, each_round };
// What waits for the verdict of an update: nothing, the gradients of the next one, which want the places of its own, or
// everything behind it on a rank: there weights are gathered, in one stream with verdicts.
enum class Verdicts : std::uint8_t { none, before_gradients, before_all };
Connected connect(const Schedule& schedule, Reduced reduced = Reduced::once, Verdicts verdicts = Verdicts::none);

// Whether the ranks come to their ends when every send and receive blocks its rank until the other side has come, too, each
// receive standing right before the task that needs it: the way of a program with one lane a rank.
bool blocking_ends(const Schedule& schedule);

}  // namespace terrace::pipeline
