// Room for the code of products, which oneDNN writes when it makes one first. It looks at no refusal of that memory and ends
// the process with a signal, so the room is asked for before.
//
// Threads: any. Errors: Error(Exit::runtime), with the limit that leaves no room.
#pragma once

namespace terrace::cpu {

void demand_room_for_code();  // looks until it has found room once

}  // namespace terrace::cpu
