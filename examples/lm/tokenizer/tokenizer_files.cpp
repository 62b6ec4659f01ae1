#include <terrace/examples/lm/tokenizer/tokenizer_files.h>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/files.h>
#include <terrace/core/base/folders.h>
#include <terrace/core/base/text_file.h>

namespace terrace::lm {

std::string read_tokenizer_file(const std::filesystem::path& file) try {
  return read_text_file(file);
} catch (const Error& error) {
  throw Error(fmt::format("{} cannot be read: {}\n  restore the file, then repeat the command", file.string(), error.what()),
              error, file.string());
}

TokenizerFiles read_tokenizer_files(const std::filesystem::path& folder) {
  TokenizerFiles files;
  std::error_code error;
  for (const auto* const name : kTokenizerFiles)
    if (std::filesystem::is_regular_file(folder / name, error)) files[name] = read_tokenizer_file(folder / name);
  return files;
}

void write_tokenizer_files(const std::filesystem::path& folder, const TokenizerFiles& files) {
  auto at = folder;
  try {
    if (!files.empty()) files::make_folders(folder);
    for (const auto* const name : kTokenizerFiles) {
      at = folder / name;
      if (const auto file = files.find(name); file != files.end())
        replace_text_file(at, file->second, files::Durable::yes);
      else
        files::remove_path(at);
    }
  } catch (const Error& error) {
    throw Error(fmt::format("{} cannot be written: {}\n  make room or change the permissions there, then repeat the command",
                            at.string(), error.what()),
                error, at.string());
  }
}

}  // namespace terrace::lm
