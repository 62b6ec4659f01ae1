// A communicator for each set of ranks that exchange something.
//
// A collective names its members as axes of the mesh. Names that become equal on this mesh (reduced_to()) share one
// communicator. Which communicators a run needs is read from the programs of its ranks, so a new kind of collective needs no
// edit here.
//
// Owner:   an engine; borrows the communicator of all ranks and makes the others.
// Threads: as a communicator. The constructor is collective.
// Errors:  std::logic_error for members that no program named.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include <terrace/parallel/comm/agree.h>
#include <terrace/parallel/comm/communicator.h>
#include <terrace/parallel/mesh/members.h>
#include <terrace/parallel/mesh/mesh.h>

namespace terrace::mesh {

// Removes the axes of degree 1, so that two names for the same ranks become equal.
Members reduced_to(const Mesh& mesh, Members members);
// How many ranks the members are, and how far apart they lie in the run's numbering.
struct RankSpan {
  std::uint32_t ranks = 1, stride = 1;
};
RankSpan span_of(const Members& members, const Mesh& mesh);

class Groups {
 public:
  // `needed`: the members that this rank's programs name. `world` and `agreement` may be null for a run of one rank.
  Groups(Communicator* world, Agreement* agreement, const Mesh& mesh, std::uint32_t rank, const std::set<Members>& needed);
  [[nodiscard]] Communicator& of(const Members& members) const;

 private:
  [[nodiscard]] bool is_world(const Members& members) const;  // the communicator of all ranks serves them
  void split(Communicator& world, const Members& members);

  const Mesh mesh_;
  const std::uint32_t rank_;
  Communicator* world_;
  std::unique_ptr<Communicator> alone_;
  std::map<Members, std::unique_ptr<Communicator>> others_;
};

}  // namespace terrace::mesh
