// Figures and facts as words, alike in the table and on the page. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "eval/report.h"

namespace kvarto {

// How a figure is written. What is not finite is "-".
using FigureWords = std::string(double value);
std::string three_digits(double value);          // "0.0123", "1.23e-05"
std::string four_places(double value);           // "0.9871"
std::string as_percent(double share);            // "98.71 %"
std::string perplexity_words(double nll);        // of its exp: "12.345"
std::string ratio_words(double nll_difference);  // of its exp: "1.0001"

std::string range_of(const PositionBucket& bucket);     // "256-511"
std::string depth_words(double depth);                  // "25 %"
std::string right_of(const HeatCell& cell);             // "2/3"
std::string judged_words(const FamilyFigures& family);  // "no, likelihood only"
// What the table of families means by its words, a line each.
std::vector<std::string> family_legend(const SettingReport& setting);
inline constexpr std::string_view kVerdictLegend =
    "-: not measured. Not judged: measured, but there is too little that the baseline solves, or no number.";
bool any_failed(const SettingReport& setting);               // tasks of any family
const SettingReport* baseline_of(const EvalReport& report);  // null: none

// What was run on what and how it was measured: name and value, in the order of reading.
std::vector<std::pair<std::string, std::string>> facts_of(const EvalReport& report);
// What a setting cost, one line; empty: unknown.
std::string cost_of(const SettingReport& setting);
// Bytes of its KV cache as a share of the baseline's (null: none).
std::string kv_share_words(const SettingReport& setting, const SettingReport* baseline);
// What a model wrote, short: white space as single spaces, long text cut.
std::string shortened(std::string_view text);

// Rows and columns of the retrieval map, ascending.
struct HeatGrid {
  std::vector<uint32_t> lengths_tokens;
  std::vector<double> depths;
};
HeatGrid grid_of(std::span<const HeatCell> cells);
const HeatCell* cell_at(std::span<const HeatCell> cells, uint32_t length_tokens, double depth);  // null: none

}  // namespace kvarto
