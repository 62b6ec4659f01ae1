#include <terrace/parallel/data_groups.h>

#include <terrace/parallel/mesh.h>

namespace terrace {

DataGroups::DataGroups(Communicator& all, const DataParallel& data) : all_(all) {
  if (data.copies() == 1) return;
  const Mesh mesh({{"copies", static_cast<int>(data.copies())}, {"sharers", static_cast<int>(data.sharers())}});
  sharers_ = mesh.split(all, "sharers");
  copies_ = mesh.split(all, "copies");
  if (data.canonical) turns_ = all.split(0, static_cast<int>(data.turn()), "turns");
}

}  // namespace terrace
