#include "server/event_queue.h"

#include <exception>
#include <string>

#include "base/log.h"

namespace kvarto {
namespace {

void break_off(Reply& answer, const ApiError& error, const std::string& why) {
  try {
    log(LogLevel::error, answer.options().id + " ends with an error: " + why);
    answer.break_off(error);
  } catch (const std::exception& bug) {
    // Its exchange is let go with it, which ends the connection.
    log(LogLevel::error, std::string("an answer could not be ended: ") + bug.what());
  }
}

}  // namespace

void EventQueue::push(std::shared_ptr<Reply> answer, EngineEvent event) {
  {
    const std::scoped_lock lock(mutex_);
    if (events_.size() >= most_ && event.result == nullptr) {
      behind_.insert(std::move(answer));
    } else {
      events_.emplace_back(std::move(answer), std::move(event));
    }
    if (std::exchange(awake_, true)) return;
  }
  try {
    wake_();
  } catch (...) {  // no memory: the next event tries again
    const std::scoped_lock lock(mutex_);
    awake_ = false;
  }
}

void EventQueue::drain() {
  std::vector<Event> events;
  std::unordered_set<std::shared_ptr<Reply>> behind;
  {
    const std::scoped_lock lock(mutex_);
    events.swap(events_);
    behind.swap(behind_);
    awake_ = false;
  }
  // First: their results may be among the events and would end them as if nothing were missing.
  for (const std::shared_ptr<Reply>& answer : behind) {
    break_off(*answer, overloaded("The server fell behind with this stream; try again", 1), "events were lost");
  }
  for (auto& [answer, event] : events) {
    try {
      answer->take(std::move(event));
    } catch (const std::exception& bug) {
      break_off(*answer, status_error(500, "Internal server error"), bug.what());
    } catch (...) {
      break_off(*answer, status_error(500, "Internal server error"), "unknown exception");
    }
  }
}

}  // namespace kvarto
