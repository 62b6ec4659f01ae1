#include <terrace/parallel/train/progress.h>

#include <exception>

#include <nlohmann/json.hpp>

#include <terrace/core/base/json_text.h>

namespace terrace::training {

std::string to_text(const Progress& progress) {
  nlohmann::json j{{"skipped_steps", progress.skipped_steps}};
  for (const auto tier : kAllTiers) j["peak_bytes"][name_of(tier)] = progress.peak_bytes[tier];
  if (progress.loss_scale)
    j["loss_scale"] = {{"value", progress.loss_scale->value}, {"good_steps", progress.loss_scale->good_steps}};
  return j.dump();
}

Progress parse_progress(const std::string& text) try {
  const auto j = base::parse_json(text);
  Progress progress;
  progress.skipped_steps = j.value("skipped_steps", std::uint64_t{0});
  if (const auto peak = j.find("peak_bytes"); peak != j.end())
    for (const auto tier : kAllTiers) progress.peak_bytes[tier] = peak->value(name_of(tier), std::uint64_t{0});
  if (const auto scale = j.find("loss_scale"); scale != j.end())
    progress.loss_scale = LossScale::State{.value = scale->value("value", LossScale::kFirst),
                                           .good_steps = scale->value("good_steps", std::uint64_t{0})};
  return progress;
} catch (const std::exception&) {  // the record has a checksum, so another program wrote it
  throw Error("the commit has a payload that no trainer of terrace wrote\n  continue the run with the program that wrote it",
              ErrorKind::corrupt);
}

}  // namespace terrace::training
