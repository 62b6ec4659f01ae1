// libFuzzer's entry point; tests/fuzz.sh builds and runs it.
#include <cstddef>

#include <terrace/tests/fuzz/template_texts.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  terrace::test::check_template_text({data, size});  // any exception is a finding
  return 0;
}
