#include "eval/task_hash.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>

namespace kvarto {
namespace {

TEST(TasksSha256, EveryFieldCounts) {
  Task plain;
  plain.family = "f";
  plain.id = "f-1";
  plain.prompt = "p";
  plain.answer = "a";
  plain.stop = {"x", "y"};
  const std::vector<std::function<void(Task&)>> changes = {
      [](Task& task) { task.family = "g"; },
      [](Task& task) { task.id = "f-2"; },
      [](Task& task) { task.group = "f"; },
      [](Task& task) { task.skill = Skill::own; },
      [](Task& task) { task.prompt = "q"; },
      [](Task& task) { task.messages = "[]"; },
      [](Task& task) { task.answer = "b"; },
      [](Task& task) { task.floor_prompt = "p"; },
      [](Task& task) { task.judge = Judge::code; },
      [](Task& task) { task.max_tokens = 33; },
      [](Task& task) { task.stop = {"xy"}; },
      [](Task& task) { task.length_tokens = 1; },
      [](Task& task) { task.depth = 0.0; },
      [](Task& task) { task.depth = 0.5; },
      [](Task& task) { std::swap(task.prompt, task.answer); },
      [](Task& task) { task.prompt = "pa", task.answer = ""; },
  };
  std::set<std::string> names = {tasks_sha256(std::vector<Task>{plain})};
  for (size_t i = 0; i < changes.size(); ++i) {
    Task changed = plain;
    changes[i](changed);
    EXPECT_TRUE(names.insert(tasks_sha256(std::vector<Task>{changed})).second) << i;
    EXPECT_EQ(tasks_sha256(std::vector<Task>{changed}), tasks_sha256(std::vector<Task>{changed}));
    // Which comes first counts, too.
    EXPECT_NE(tasks_sha256(std::vector<Task>{changed, plain}), tasks_sha256(std::vector<Task>{plain, changed})) << i;
  }
  EXPECT_EQ(tasks_sha256({}), "");
  EXPECT_EQ(names.begin()->size(), 64u);
}

}  // namespace
}  // namespace kvarto
