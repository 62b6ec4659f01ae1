// libFuzzer's entry point; tests/fuzz.sh builds and runs it.
#include <cstddef>

#include <terrace/tests/fuzz/store_texts.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  terrace::test::check_store_text({data, size});  // any exception is a finding
  return 0;
}
