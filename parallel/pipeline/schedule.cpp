#include <terrace/parallel/pipeline/schedule.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>
#include <sstream>

#include <terrace/core/base/error.h>

namespace terrace::pipeline {
namespace {

constexpr std::string_view kLetters = "FBIW";  // by Work

[[noreturn]] void refuse(std::size_t line, const std::string& why) {
  throw Error(fmt::format("line {} of the schedule: {}", line, why), ErrorKind::refused);
}

Task parse_task(const std::string& word, std::size_t line) {
  const auto letter = word.empty() ? std::string_view::npos : kLetters.find(word[0]);
  const char *at = word.data() + 1, *const end = word.data() + word.size();
  Task task;
  if (letter != std::string_view::npos) {
    const auto stage = std::from_chars(at, end, task.stage);
    if (stage.ec == std::errc() && stage.ptr != end && *stage.ptr == '.') {
      const auto micro_batch = std::from_chars(stage.ptr + 1, end, task.micro_batch);
      if (micro_batch.ec == std::errc() && micro_batch.ptr == end) {
        task.work = static_cast<Work>(letter);
        return task;
      }
    }
  }
  refuse(line, fmt::format("'{}' is no task; write F2.17 for the forward of stage 2 and micro-batch 17, or B, I, W", word));
}

// The words of one line.
class Words {
 public:
  Words(const std::string& line, std::size_t number) : words_(line), line_(number) {}
  // Empty at the end of the line.
  std::string next() {
    std::string word;
    words_ >> word;
    return word;
  }
  // Reads numbers up to the first word that is not a number; that word begins a comment.
  std::vector<std::uint32_t> numbers() {
    std::vector<std::uint32_t> all;
    for (auto word = next(); begins_number(word); word = next()) {
      std::uint32_t value = 0;
      const auto* const end = word.data() + word.size();
      const auto [at, error] = std::from_chars(word.data(), end, value);
      if (error != std::errc() || at != end)
        refuse(line_, fmt::format("'{}' is not accepted; write whole numbers from 0 to {}", word,
                                  std::numeric_limits<std::uint32_t>::max()));
      all.push_back(value);
    }
    return all;
  }

 private:
  static bool begins_number(std::string_view word) {
    const auto digit = word.find_first_of("0123456789");
    return digit == 0 || (digit == 1 && (word[0] == '-' || word[0] == '+'));
  }
  std::istringstream words_;
  const std::size_t line_;
};

// Before memory is allocated for a schedule, its text must be long enough to hold it: every stage has a forward and a backward
// of every micro-batch, and every rank has a line.
void demand_room(const Schedule& s, std::size_t characters, std::size_t line) {
  constexpr std::string_view kTasks = "F0.0 B0.0 ", kRank = "rank ";
  const auto pairs = std::uint64_t{s.placement.stages} * s.micro_batches;
  if (pairs > characters / kTasks.size() || s.placement.ranks > characters / kRank.size())
    refuse(line,
           fmt::format("{} ranks with {} stages and {} micro-batches have more tasks than the text has room for; some are "
                       "missing",
                       s.placement.ranks, s.placement.stages, s.micro_batches));
}

}  // namespace

std::string to_text(const Task& task) {
  return fmt::format("{}{}.{}", kLetters[static_cast<std::size_t>(task.work)], task.stage, task.micro_batch);
}

std::vector<std::vector<std::uint32_t>> chain(std::uint32_t stages) {
  std::vector<std::vector<std::uint32_t>> inputs(stages);
  for (std::uint32_t stage = 1; stage < stages; ++stage) inputs[stage] = {stage - 1};
  return inputs;
}

Placement one_stage_a_rank(std::uint32_t ranks) { return looping(ranks, 1); }

Placement looping(std::uint32_t ranks, std::uint32_t chunks) {
  Placement p{.ranks = ranks, .stages = ranks * chunks, .rank_of = {{}}};
  for (std::uint32_t stage = 0; stage < p.stages; ++stage) p.rank_of[0].push_back(stage % ranks);
  return p;
}

Placement v_shape(std::uint32_t ranks) {
  Placement p{.ranks = ranks, .stages = 2 * ranks, .rank_of = {{}}};
  for (std::uint32_t stage = 0; stage < p.stages; ++stage) p.rank_of[0].push_back(stage < ranks ? stage : p.stages - 1 - stage);
  return p;
}

Placement both_directions(std::uint32_t ranks) {
  auto p = one_stage_a_rank(ranks);
  p.rank_of.emplace_back(p.rank_of[0].rbegin(), p.rank_of[0].rend());
  return p;
}

std::vector<std::uint32_t> kept_versions(const Schedule& s) {
  std::vector<std::uint32_t> kept(s.placement.stages);
  if (!s.asynchronous()) return kept;
  for (std::uint32_t stage = 0; stage < s.placement.stages; ++stage) {
    const auto& reads = s.reads[stage];
    // Backwards come in micro-batch order, so update u is made when micro-batch u · every is next.
    for (std::uint32_t next = s.update_every; next < s.micro_batches; next += s.update_every) {
      std::vector<bool> old(next / s.update_every);
      for (auto m = next; m < s.micro_batches; ++m)
        if (reads[m] < old.size()) old[reads[m]] = true;
      kept[stage] = std::max(kept[stage], static_cast<std::uint32_t>(std::ranges::count(old, true)));
    }
  }
  return kept;
}

bool reads_lag_an_update(const Schedule& s) {
  for (const auto& reads : s.reads)
    for (std::uint32_t m = 0; m < reads.size(); ++m)
      if (reads[m] != 0 && reads[m] >= m / s.update_every) return false;
  return true;
}

std::string to_text(const Schedule& s) {
  auto text = fmt::format("pipeline {} {} {}\n", s.placement.ranks, s.placement.stages, s.micro_batches);
  for (const auto& ranks : s.placement.rank_of) text += fmt::format("place {}\n", fmt::join(ranks, " "));
  for (std::size_t stage = 0; stage < s.placement.inputs.size(); ++stage)
    text += fmt::format("input {}{}{}\n", stage, s.placement.inputs[stage].empty() ? "" : " ",
                        fmt::join(s.placement.inputs[stage], " "));
  if (s.asynchronous()) text += fmt::format("update {}\n", s.update_every);
  for (const auto& versions : s.reads) text += fmt::format("read {}\n", fmt::join(versions, " "));
  for (const auto& tasks : s.tasks) {
    text += "rank";
    for (const auto& task : tasks) text.append(" ").append(to_text(task));
    text += "\n";
  }
  return text;
}

namespace {

// A schedule's text, line by line; each kind of line has a function.
class ScheduleReader {
 public:
  explicit ScheduleReader(std::string_view text) : text_(text) {}

  Schedule read() {
    std::istringstream lines{std::string(text_)};
    for (std::string line; std::getline(lines, line);) {
      Words words(line, ++line_);
      if (const auto word = words.next(); !word.empty() && word[0] != '#') read_line(word, words);
    }
    require_all();
    return std::move(s_);
  }

 private:
  void read_line(const std::string& word, Words& words) {
    if (word == "pipeline") return pipeline(words);
    if (!begun_) refuse(line_, "expected first: pipeline RANKS STAGES MICRO-BATCHES");
    if (word == "place") return place(words);
    if (word == "input") return input(words);
    if (word == "update") return update(words);
    if (word == "read") return read_versions(words);
    if (word == "rank") return rank(words);
    refuse(line_, fmt::format("'{}' is none of pipeline, place, input, update, read, rank", word));
  }

  void pipeline(Words& words) {
    const auto sizes = words.numbers();
    if (begun_ || sizes.size() != 3 || std::ranges::find(sizes, 0U) != sizes.end())
      refuse(line_, "expected once, first: pipeline RANKS STAGES MICRO-BATCHES");
    s_.placement.ranks = sizes[0];
    s_.placement.stages = sizes[1];
    s_.micro_batches = sizes[2];
    demand_room(s_, text_.size(), line_);
    begun_ = true;
  }

  void place(Words& words) {
    const auto& ranks = s_.placement.rank_of.emplace_back(words.numbers());
    if (ranks.size() != s_.placement.stages)
      refuse(line_, fmt::format("{} ranks for {} stages", ranks.size(), s_.placement.stages));
    for (const auto rank : ranks)
      if (rank >= s_.placement.ranks) refuse(line_, fmt::format("there is no rank {}", rank));
  }

  void input(Words& words) {
    auto& placement = s_.placement;
    const auto stages = words.numbers();
    if (stages.empty() || stages[0] >= placement.stages) refuse(line_, "expected: input STAGE, and the stages it reads");
    for (const auto input : std::span(stages).subspan(1))
      if (input >= stages[0])
        refuse(line_, fmt::format("stage {} cannot read stage {}, which is no earlier one", stages[0], input));
    if (placement.inputs.empty()) placement.inputs = chain(placement.stages);
    placement.inputs[stages[0]].assign(stages.begin() + 1, stages.end());
  }

  void update(Words& words) {
    const auto every = words.numbers();
    if (every.size() != 1 || every[0] == 0 || s_.micro_batches % every[0] != 0)
      refuse(line_, fmt::format("expected a number of micro-batches that divides {}", s_.micro_batches));
    s_.update_every = every[0];
  }

  void read_versions(Words& words) {
    const auto& versions = s_.reads.emplace_back(words.numbers());
    if (versions.size() != s_.micro_batches)
      refuse(line_, fmt::format("{} versions for {} micro-batches", versions.size(), s_.micro_batches));
    for (const auto version : versions)
      if (version >= s_.micro_batches) refuse(line_, fmt::format("there is no version {}", version));
  }

  void rank(Words& words) {
    auto& tasks = s_.tasks.emplace_back();
    for (auto task = words.next(); !task.empty(); task = words.next()) tasks.push_back(parse_task(task, line_));
  }

  void require_all() const {
    if (s_.placement.rank_of.empty()) refuse(line_, "no line says where the stages are placed");
    if (s_.reads.size() != (s_.asynchronous() ? s_.placement.stages : 0))
      refuse(line_, fmt::format("{} lines say which weights are read, and {} stages update within the step", s_.reads.size(),
                                s_.asynchronous() ? s_.placement.stages : 0));
    if (s_.tasks.size() != s_.placement.ranks)
      refuse(line_, fmt::format("{} ranks have a list, of {}", s_.tasks.size(), s_.placement.ranks));
  }

  std::string_view text_;
  std::size_t line_ = 0;
  bool begun_ = false;  // the first line, with the sizes, has been read
  Schedule s_;
};

}  // namespace

Schedule parse_schedule(std::string_view text) { return ScheduleReader(text).read(); }

}  // namespace terrace::pipeline
