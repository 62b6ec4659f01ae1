// Checks that memory is left for the code of products, which oneDNN generates at a product's first use. oneDNN does not check
// whether it got that memory, and dies of a signal without it; so this is checked before.
//
// Threads: any. Errors: Error(ErrorKind::failed) that names the limits that leave no room.
#pragma once

namespace terrace::cpu {

void demand_room_for_code();  // checks until it has succeeded once

}  // namespace terrace::cpu
