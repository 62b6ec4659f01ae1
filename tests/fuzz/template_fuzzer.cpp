// libFuzzer's way in; tests/fuzz.sh builds and runs it.
#include <cstddef>

#include "template_texts.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  terrace::test::check_template_text({data, size});  // what it throws is a finding
  return 0;
}
