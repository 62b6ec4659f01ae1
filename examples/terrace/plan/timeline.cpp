#include <terrace/examples/terrace/plan/timeline.h>

#include <fmt/format.h>

#include <terrace/examples/terrace/base/svg.h>

namespace terrace::cli {
namespace {

// Each kind of work has a colour, and a letter for readers who cannot see it.
struct Look {
  const char* fill;
  const char* what;
};
Look look_of(pipeline::Work work) {
  switch (work) {
    case pipeline::Work::forward: return {"#9ecae1", "F forward"};
    case pipeline::Work::backward: return {"#fdae6b", "B backward"};
    case pipeline::Work::input: return {"#fdd0a2", "I its input half"};
    case pipeline::Work::weight: break;
  }
  return {"#a1d99b", "W its weight half"};
}

}  // namespace

std::string timeline(const pipeline::Schedule& s, const pipeline::StageCosts& costs, const std::string& title) {
  constexpr double kLeft = 60, kTop = 48, kWidth = 1200, kRow = 26, kLetter = 7;
  const auto timing = pipeline::simulate(s, costs);
  const auto x = [&](double seconds) { return kLeft + kWidth * seconds / timing.makespan; };
  const double height = kTop + kRow * static_cast<double>(s.tasks.size()) + 40;
  auto out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {:.0f} {:.0f}' font-family='sans-serif' font-size='11'>\n"
      "<rect width='100%' height='100%' fill='white'/>\n<text x='{}' y='16' font-size='13'>{}</text>\n",
      kLeft + kWidth + 20, height, kLeft, escape(title));
  double legend = kLeft;
  for (const auto work : {pipeline::Work::forward, pipeline::Work::backward, pipeline::Work::input, pipeline::Work::weight}) {
    const auto look = look_of(work);
    out += fmt::format("<rect x='{:.1f}' y='26' width='12' height='12' fill='{}'/><text x='{:.1f}' y='36'>{}</text>\n", legend,
                       look.fill, legend + 16, look.what);
    legend += 140;
  }
  for (std::size_t rank = 0; rank < s.tasks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    out += fmt::format("<text x='8' y='{:.1f}'>rank {}</text>\n", y + 15, rank);
    for (std::size_t i = 0; i < s.tasks[rank].size(); ++i) {
      const auto& task = s.tasks[rank][i];
      const double begin = x(timing.start[rank][i]), width = x(timing.start[rank][i] + costs.of(task)) - begin;
      out += fmt::format(
          "<rect x='{:.2f}' y='{:.1f}' width='{:.2f}' height='{}' fill='{}' stroke='#555' stroke-width='0.4'>"
          "<title>{}</title></rect>",
          begin, y, width, kRow - 4, look_of(task.work).fill, to_text(task));
      const auto number = fmt::format("{}", task.micro_batch);
      if (width > kLetter * static_cast<double>(number.size()))
        out += fmt::format("<text x='{:.2f}' y='{:.1f}' text-anchor='middle'>{}</text>", begin + width / 2, y + 15, number);
      out += '\n';
    }
  }
  out += fmt::format(
      "<text x='{}' y='{:.1f}'>0 s</text><text x='{}' y='{:.1f}' text-anchor='end'>{:.4g} s, idle {:.1f} %</text>\n", kLeft,
      height - 16, kLeft + kWidth, height - 16, timing.makespan, 100 * timing.bubble());
  return out + "</svg>\n";
}

}  // namespace terrace::cli
