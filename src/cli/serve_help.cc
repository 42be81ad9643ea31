// What `kvarto serve --help` says, for people and, as JSON, for tools/make_flags.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/serve_environment.h"
#include "cli/serve_flags.h"
#include "format/printable.h"

namespace kvarto {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kTextColumn = 30, kWidth = 110;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

std::string head_of(const FlagRow& row) {
  std::string head;
  for (const std::string& name : words_of(row.names)) {
    head += (head.empty() ? "" : ", ") + name;
  }
  if (row.kind == FlagKind::toggle) {
    const std::string first = words_of(row.names).front();
    if (first.starts_with("--")) head += ", --no-" + first.substr(2);
  } else if (row.kind == FlagKind::maybe) {
    head += " [on|off]";
  } else if (!row.value.empty()) {
    head += " " + std::string(row.value);
  }
  return head;
}

std::string text_of(const FlagRow& row) {
  switch (row.fate) {
    case FlagFate::works:
      return std::string(row.text);
    case FlagFate::only:
      return "Refused but for " + std::string(row.value) + ": " + std::string(row.text);
    case FlagFate::warned:
      return "Accepted without effect: " + std::string(row.text);
    case FlagFate::refused:
      return "Refused: " + std::string(row.text);
  }
  return "";
}

std::string paragraph(const std::string& head, const std::string& text) {
  std::string out = "  " + head;
  size_t column = out.size();
  if (column + 2 > kTextColumn) {
    out += "\n";
    column = 0;
  }
  for (const std::string& word : words_of(text)) {
    if (column < kTextColumn) {
      out += std::string(kTextColumn - column, ' ');
      column = kTextColumn;
    } else if (column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(kTextColumn, ' ');
      column = kTextColumn;
    } else {
      out += " ";
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

std::string group_text(const FlagGroup& group) {
  std::string out = std::string(group.title) + " (--help=" + std::string(group.name) + "):\n";
  for (const FlagRow& row : group.rows) out += paragraph(head_of(row), text_of(row));
  return out;
}

std::string variables_text() {
  std::string out = "Environment:\n";
  for (const VariableRow& row : variable_rows()) out += paragraph(std::string(row.name), std::string(row.text));
  return out;
}

std::string overview(std::string_view examples) {
  std::string out =
      "Serves a model over HTTP in the shapes of OpenAI's and vLLM's API\n"
      "Usage: kvarto serve MODEL [FLAGS]\n\n";
  constexpr std::string_view kMostUsed[] = {"--host",
                                            "--port",
                                            "--api-key",
                                            "--max-model-len",
                                            "--kv-cache-memory-bytes",
                                            "--gpu-memory-utilization",
                                            "--max-num-seqs",
                                            "--served-model-name"};
  for (const FlagGroup& group : flag_groups()) {
    for (const FlagRow& row : group.rows) {
      const std::string first = words_of(row.names).front();
      if (std::ranges::find(kMostUsed, first) != std::end(kMostUsed)) out += paragraph(head_of(row), text_of(row));
    }
  }
  out += paragraph("--config FILE", "Flags from a YAML file; those of the command line win");
  out += paragraph("--check-flags", "Say what becomes of every flag, load nothing; exit code 2 when one is refused");
  out += "\nMore: --help=all, --help=PART-OF-A-NAME, or a group:\n";
  for (const FlagGroup& group : flag_groups()) out += paragraph(std::string(group.name), std::string(group.title));
  if (!examples.empty()) out += "\n" + std::string(examples) + "\n";
  return out;
}

std::string_view kind_name(FlagKind kind) {
  constexpr std::string_view kNames[] = {"toggle", "value", "list", "json", "maybe"};
  return kNames[static_cast<size_t>(kind)];
}

std::string table_json() {
  constexpr std::string_view kFates[] = {"works", "only", "warned", "refused"};
  Json groups = Json::array();
  for (const FlagGroup& group : flag_groups()) {
    Json rows = Json::array();
    for (const FlagRow& row : group.rows) {
      rows.push_back({{"names", words_of(row.names)},
                      {"kind", kind_name(row.kind)},
                      {"fate", kFates[static_cast<size_t>(row.fate)]},
                      {"value", row.value},
                      {"text", row.text}});
    }
    groups.push_back({{"name", group.name}, {"title", group.title}, {"flags", std::move(rows)}});
  }
  Json variables = Json::array();
  for (const VariableRow& row : variable_rows()) variables.push_back({{"name", row.name}, {"text", row.text}});
  return Json{{"groups", std::move(groups)}, {"environment", std::move(variables)}}.dump(1) + "\n";
}

// Edits (a letter more, less or other) that make one word of the other.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

Result<std::string> serve_help(std::string_view topic, std::string_view examples) {
  if (topic.empty()) return overview(examples);
  if (topic == "json") return table_json();
  std::string wanted = lower(topic);
  std::string out;
  if (wanted == "all") {
    for (const FlagGroup& group : flag_groups()) out += group_text(group) + "\n";
    return out + variables_text();
  }
  const std::string group_name = wanted.ends_with("config") ? wanted.substr(0, wanted.size() - 6) : wanted;
  for (const FlagGroup& group : flag_groups()) {
    if (group.name == group_name) return group_text(group);
  }
  std::ranges::replace(wanted, '_', '-');
  for (const FlagGroup& group : flag_groups()) {
    for (const FlagRow& row : group.rows) {
      if (row.names.find(wanted) != std::string_view::npos) out += paragraph(head_of(row), text_of(row));
    }
  }
  if (!out.empty()) return out;
  std::string groups;
  for (const FlagGroup& group : flag_groups()) groups += ", " + std::string(group.name);
  return fail(ErrorCode::invalid_argument,
              "--help=" + printable(topic) + ": no flag and no group has that name; there are all" + groups);
}

std::string nearest_flag(std::string_view word) {
  word = word.substr(0, std::min(word.find('='), size_t{64}));
  std::string best;
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  for (const FlagGroup& group : flag_groups()) {
    for (const FlagRow& row : group.rows) {
      for (const std::string& name : words_of(row.names)) {
        const size_t edits = distance(word, name);
        if (name.starts_with("--") && edits < least) {
          least = edits;
          best = name;
        }
      }
    }
  }
  return best;
}

}  // namespace kvarto
