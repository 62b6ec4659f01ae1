#include <terrace/examples/terrace/config/parse_words.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/cli/command_text.h>
#include <terrace/examples/terrace/cli/help_text.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/config/other_words.h>

namespace terrace::cli {
namespace {

// Throws if there is an argument that no option accepts: an unknown flag, with the nearest known one, or a stray word.
void refuse_extras(const CLI::App& sub, const std::string& command) {
  const auto extras = sub.remaining();
  if (extras.empty()) return;
  const auto flag = std::ranges::find_if(extras, [](const std::string& word) { return word.starts_with('-'); });
  if (flag == extras.end()) {
    std::error_code error;
    const std::filesystem::path named(extras.front());
    const bool takes_data = sub.get_option_no_throw("--data") != nullptr;
    const auto* const meant = !takes_data                                      ? ""
                              : std::filesystem::is_regular_file(named, error) ? "--data"
                              : std::filesystem::is_directory(named, error)    ? "--model"
                                                                               : "";
    refuse(fmt::format("unexpected argument \"{}\"{}", extras.front(),
                       *meant ? fmt::format("; give {} {}", meant, named.string()) : ""),
           command);
  }
  const auto word = flag->substr(0, flag->find('='));
  std::vector<std::string> names;
  for (const auto* const option : sub.get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  const std::vector<std::string_view> views(names.begin(), names.end());
  const auto bare = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  // A known flag with one dash too few, or a flag of another command.
  const auto* const known = find_option(bare);
  if (known && std::ranges::find(names, "--" + bare) == names.end()) {
    refuse(fmt::format("terrace {} does not take {}", command, word), command);
  }
  // terrace's flag for another program's word is suggested only if this command takes it.
  const auto own = own_words_for(word);
  const bool takes = !own.starts_with("--") || std::ranges::find(views, own.substr(0, own.find_first_of(" ,"))) != views.end();
  refuse(fmt::format("unknown flag {}{}", word,
                     !own.empty() && takes ? fmt::format("; terrace has {}", own) : suggestion("--" + bare, views)),
         command);
}

// If a flag that takes one value is given twice, the last value counts, so that scripts can append flags that override earlier
// ones.
void take_last_of_repeated(CLI::App& app) {
  for (auto* const option : app.get_options())
    if (!option->get_positional() && option->get_expected_max() == 1 &&
        option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw)
      option->take_last();
  for (auto* const sub : app.get_subcommands({})) take_last_of_repeated(*sub);
}

// CLI11 gets -h as its second help flag, so that -h can be told from --help.
void add_help_flags(CLI::App& app) {
  app.set_help_flag("--help", "print all flags and exit");
  app.set_help_all_flag("-h", "print the common flags and exit");
  for (auto* const sub : app.get_subcommands({})) add_help_flags(*sub);
}

// Rewrites CLI11's "Could not convert: --nodes = many" in the form of terrace's own errors.
std::string unlike(const std::string& what, const CLI::App& sub) {
  constexpr std::string_view kBefore = "Could not convert: ", kBetween = " = ";
  const auto between = what.find(kBetween);
  if (!what.starts_with(kBefore) || between == std::string::npos) return what;
  const auto flag = what.substr(kBefore.size(), between - kBefore.size());
  const auto* const option = sub.get_option_no_throw(flag);
  const auto type = option ? option->get_type_name() : std::string();
  const auto* const accepted = type == "INT"     ? ": an integer"
                               : type == "UINT"  ? ": an integer of at least 0"
                               : type == "FLOAT" ? ": a number"
                                                 : "";
  return fmt::format("{}: \"{}\" is not accepted{}", flag, what.substr(between + kBetween.size()), accepted);
}

}  // namespace

void refuse(const std::string& what, const std::string& command) {
  throw base::Refused(fmt::format("{}\n  see terrace{}{} --help", what, command.empty() ? "" : " ", command));
}

// CLI11 reads numbers with strtold(), which follows the locale.
void add_number(CLI::App& command, const std::string& flag, double& number, const std::string& help) {
  const auto take = [&command, &number, flag](const std::string& text) {
    const auto* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, number);
    if (error == std::errc{} && end == last) return;
    refuse(fmt::format("{}: \"{}\" is not accepted: a number{}", flag, text,
                       text.find(',') == std::string::npos ? "" : ", with a decimal point"),
           command.get_name());
  };
  command.add_option_function<std::string>(flag, take, help)->type_name("FLOAT")->default_str(fmt::format("{}", number));
}

CLI::App& chosen(CLI::App& app) { return app.get_subcommands().empty() ? app : *app.get_subcommands().front(); }

std::string parse_words(CLI::App& app, int argc, const char* const* argv, const std::string& command) {
  add_help_flags(app);
  take_last_of_repeated(app);
  const auto full_name = [&] {
    const auto own = &chosen(app) == &app ? std::string() : chosen(app).get_name();
    return command + (command.empty() || own.empty() ? "" : " ") + own;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion&) {
    return app.version() + "\n";
  } catch (const CLI::CallForAllHelp&) {
    return brief_help(describe_command(chosen(app), full_name()));
  } catch (const CLI::CallForHelp&) {
    return full_help(describe_command(chosen(app), full_name()), help_columns());
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string_view what = e.what();
    const auto flag = what.substr(0, what.find(':'));
    refuse(what.ends_with(" missing") ? fmt::format("{} needs a value", flag) : std::string(what), full_name());
  } catch (const CLI::ConversionError& e) {
    refuse(unlike(e.what(), chosen(app)), full_name());
  } catch (const CLI::ParseError& e) {
    refuse(e.what(), full_name());
  }
  refuse_extras(chosen(app), full_name());
  return {};
}

}  // namespace terrace::cli
