#include <terrace/examples/terrace/report/report_template.h>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/terrace/base/svg.h>

namespace terrace::cli {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark;
  --page: #f6f6f4; --card: #ffffff; --ink: #1d2126; --quiet: #667079; --edge: #e3e4e1; --grid: #ececea; --track: #f2f2f0;
  --good: #2b7a4b; --compute: #3465a4; --update: #7a5ea8; --upload: #2a9187; --download: #6aa84f; --read: #d08a1d; --write: #c2504d;
  --other: #8a9299; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171a; --card: #1c2024; --ink: #e4e7ea; --quiet: #97a1aa; --edge: #2d3338; --grid: #282d32; --track: #22272b;
  --good: #6fbf8d; --compute: #6f9fdc; --update: #a98fd6; --upload: #4fb8ad; --download: #8cc271; --read: #e0a84a; --write: #df7b76;
  --other: #858e96; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 24px; font-weight: 650; margin: 0 0 2px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 16px; font-weight: 650; margin: 0 0 4px; }
p { margin: 0 0 12px; } .quiet { color: var(--quiet); }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 18px 20px; margin-top: 16px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); gap: 12px; margin-top: 22px; }
.tile { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; letter-spacing: -0.01em; }
.tile span { color: var(--quiet); font-size: 13px; }
.scroll { overflow-x: auto; } svg { display: block; width: 100%; min-width: 560px; height: auto; font-family: inherit; }
.grid { stroke: var(--grid); stroke-width: 1; } .axis { stroke: var(--edge); stroke-width: 1; }
.tick { fill: var(--quiet); font-size: 12px; } .name { fill: var(--ink); font-size: 13px; font-weight: 500; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .faint { opacity: 0.35; stroke-width: 1; }
.dashed { stroke-dasharray: 5 4; } .area { opacity: 0.16; stroke: none; } .hit { fill: transparent; } .track { fill: var(--track); }
.span:hover { opacity: 0.65; }
.c-compute, .c-device { fill: var(--compute); background: var(--compute); } .s-compute, .s-device { stroke: var(--compute); }
.c-update { fill: var(--update); background: var(--update); }
.c-upload, .c-host { fill: var(--upload); background: var(--upload); } .s-host { stroke: var(--upload); }
.c-download { fill: var(--download); background: var(--download); }
.c-read, .c-disk { fill: var(--read); background: var(--read); } .s-disk { stroke: var(--read); }
.c-write { fill: var(--write); background: var(--write); } .s-write { stroke: var(--write); }
.c-other { fill: var(--other); background: var(--other); }
.legend { color: var(--quiet); font-size: 13px; margin: 0 0 8px; } .legend span { margin-right: 16px; white-space: nowrap; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--quiet); font-weight: 500; font-size: 13px; } th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr:last-child td { border-bottom: 0; } td.same { color: var(--good); }
td.text { text-align: left; white-space: normal; overflow-wrap: anywhere; }
pre { margin: 0; overflow-x: auto; font: 12.5px/1.55 ui-monospace, "SF Mono", Menlo, "Liberation Mono", "DejaVu Sans Mono", monospace; }
summary { cursor: pointer; font-weight: 650; } details pre { margin-top: 12px; }
footer { color: var(--quiet); font-size: 13px; margin-top: 20px; }
@media (max-width: 560px) { main { padding: 20px 12px 40px; } section { padding: 14px; } .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tile { padding: 10px 12px; } .tile b { font-size: 18px; } th, td { padding: 5px 7px; } body { font-size: 14px; } }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
)css";

}  // namespace

std::string report_page(std::string_view title, const std::string& body) {
  return "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
         "<meta name='viewport' content='width=device-width, initial-scale=1'>\n<title>" +
         escape(title) + "</title>\n<style>" + kStyle + "</style>\n</head>\n<body>\n<main>\n" + body +
         "</main>\n</body>\n</html>\n";
}

void write_page(const std::filesystem::path& file, const std::string& page, const std::filesystem::path& about) try {
  replace_text_file(file, page);
} catch (const Error& error) {
  throw Error(fmt::format("{} cannot be written: {}\n  make room or change the permissions there, then run terrace report {}",
                          file.string(), error.what(), about.string()));
}

}  // namespace terrace::cli
