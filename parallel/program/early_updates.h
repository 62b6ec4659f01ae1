// Early updates: a layer is updated in the backward, before the global norm is known, as if the norm did not clip. The state
// from before is kept. If the norm clips, the next step restores that state and updates it with the right factor, before the
// layer's next use, so that the bits are those of an update that waited (SuperOffload's speculation,
// https://arxiv.org/abs/2509.21271, whose way back is not exact).
//
// A step's program contains all of these actions. Some are left out, by what the step before has done.
//
// Pure. Threads: values.
#pragma once

#include <terrace/parallel/program/layer_set.h>
#include <terrace/parallel/program/program.h>

namespace terrace {

struct EarlyUpdates {
  enum class Pending : std::uint8_t {
    none,      // the step before has updated nothing early: its updates are applied now
    held,      // its early updates were right
    restored,  // they were not
  };
  LayerSet layers = {};
  Pending pending = Pending::none;
  bool begins = true;  // this step updates early

  [[nodiscard]] bool leaves_out(const Action& a) const {
    switch (a.op) {
      case Op::early: return !begins;
      case Op::restore: return pending != Pending::restored;
      case Op::update: return pending == Pending::held && layers.contains(a.layer);
      default: return false;
    }
  }
};

}  // namespace terrace
