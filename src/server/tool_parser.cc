#include "server/tool_parser.h"

#include <algorithm>
#include <utility>

namespace kvarto {
namespace {

constexpr size_t kMaxSpace = 64;

}  // namespace

void Answer::add(const AnswerDelta& delta) {
  content += delta.content;
  for (const ToolCallDelta& call : delta.calls) {
    if (call.index >= calls.size()) calls.resize(call.index + 1);
    ToolCall& whole = calls[call.index];
    whole.id += call.id;
    whole.name += call.name;
    whole.arguments += call.arguments;
  }
}

ToolParser::ToolParser(ToolParserOptions options, uint32_t id_letters)
    : options_(std::move(options)), id_letters_(id_letters) {}

AnswerDelta ToolParser::push(std::string_view text) {
  for (const char c : text) take(c);
  return std::exchange(delta_, {});
}

AnswerDelta ToolParser::finish() {
  if (begun_) end_call();
  // Taken again, a part of it may be held once more.
  while (object_ || !held_.empty()) give_up();
  release_space();
  return std::exchange(delta_, {});
}

void ToolParser::content(char c) {
  if (is_json_space(c)) {
    if (dropping_) return;
    space_ += c;
    if (space_.size() > kMaxSpace) release_space();
    return;
  }
  dropping_ = false;
  release_space();
  delta_.content += c;
}

void ToolParser::release_space() {
  delta_.content += space_;
  space_.clear();
}

int ToolParser::find_tag(char c, std::initializer_list<std::string_view> tags) {
  const auto look = [&] {
    int found = kNone;
    for (size_t i = 0; i < tags.size(); ++i) {
      const std::string_view tag = tags.begin()[i];
      if (tag == held_) return static_cast<int>(i);
      if (tag.starts_with(held_)) found = kPart;
    }
    return found;
  };
  held_ += c;
  int found = look();
  if (found != kNone) return found;
  held_.pop_back();
  for (const char plain : std::exchange(held_, std::string(1, c))) content(plain);
  found = look();
  if (found == kNone) {
    held_.clear();
    content(c);
  }
  return found;
}

void ToolParser::give_up() {
  std::string all = std::exchange(held_, {});
  if (object_) all += object_->text();
  object_.reset();
  restart();
  content(all.front());
  for (const char c : std::string_view(all).substr(1)) take(c);
}

void ToolParser::feed(char c) {
  if (!begun_ && held_.size() + object_->text().size() >= options_.hold_bytes) {
    if (!object_->can_begin()) {
      give_up();
      take(c);
      return;
    }
    begin_call();
  }
  switch (object_->push(c)) {
    case CallObject::State::open:
      if (begun_) more_arguments();
      return;
    case CallObject::State::broken:
      if (begun_) {
        end_call();
        restart();
      } else {
        give_up();
      }
      take(c);
      return;
    case CallObject::State::complete:
      if (!begun_) {
        if (!object_->settle()) return give_up();
        begin_call();
      }
      more_arguments();
      end_call();
      after_call();
  }
}

void ToolParser::begin_call() {
  begun_ = true;
  held_.clear();
  space_.clear();
  object_->begin();
  delta_.calls.push_back({calls_++, new_id(), object_->name(), object_->take_arguments()});
}

void ToolParser::more_arguments() {
  std::string piece = object_->take_arguments();
  if (piece.empty()) return;
  const uint32_t index = calls_ - 1;
  if (delta_.calls.empty() || delta_.calls.back().index != index) delta_.calls.push_back({index, "", "", ""});
  delta_.calls.back().arguments += piece;
}

void ToolParser::end_call() {
  object_.reset();
  begun_ = false;
  dropping_ = true;
}

std::string ToolParser::new_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::string id = id_letters_ == 0 ? "call_" : "";
  const size_t end = id.size() + (id_letters_ == 0 ? 24 : id_letters_);
  while (id.size() < end) {
    uint64_t bits = options_.random();
    for (int i = 0; i < 10 && id.size() < end; ++i, bits /= kLetters.size()) id += kLetters[bits % kLetters.size()];
  }
  return id;
}

}  // namespace kvarto
