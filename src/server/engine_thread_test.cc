#include "server/engine_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "engine/testing.h"
#include "http/testing.h"

namespace kvarto {
namespace {

using http_testing::eventually;

// A call between two steps that fails by a bug of ours costs what a failed step does, and no more.
TEST(EngineThread, GoesOnAfterACallThatFailed) {
  FakeEngine fake;
  EngineThread thread(std::move(fake.engine));
  const auto run_one = [&] {
    std::promise<RequestResult> result;
    Request request;
    request.prompt = {1, 2, 3};
    request.sampling.max_tokens = 2;
    request.on_finish = [&](const RequestResult& r) { result.set_value(r); };
    EXPECT_TRUE(thread.submit(std::move(request)));
    return result.get_future().get();
  };
  EXPECT_FALSE(run_one().error);
  thread.between_steps([](Engine&) { throw CheckFailure("planted"); });
  thread.between_steps([](Engine&) { throw 1; });
  ASSERT_TRUE(eventually([&] { return thread.engine().stats_snapshot().internal_errors == 2; }));
  EXPECT_FALSE(run_one().error);
  EXPECT_TRUE(thread.engine().health());
  thread.between_steps([](Engine&) { throw CheckFailure("planted again"); });
  ASSERT_TRUE(eventually([&] { return !thread.engine().health(); })) << "the third time within a minute is the last";
  EXPECT_NE(thread.engine().health().error().message.find("planted again"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return thread.engine().stats_snapshot().internal_errors == 3; }));
}

// Whoever runs when it happens is told.
TEST(EngineThread, ACallThatFailedEndsWhatRuns) {
  FakeEngine fake;
  std::promise<void> computing, go;
  std::shared_future<void> gone = go.get_future().share();
  fake.model->before_forward = [&, first = true](const Batch&) mutable {
    if (std::exchange(first, false)) computing.set_value();
    gone.wait();
  };
  EngineThread thread(std::move(fake.engine));
  std::promise<RequestResult> result;
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 100;
  request.on_finish = [&](const RequestResult& r) { result.set_value(r); };
  ASSERT_TRUE(thread.submit(std::move(request)));
  computing.get_future().wait();
  thread.between_steps([](Engine&) { throw CheckFailure("planted"); });
  go.set_value();
  const RequestResult told = result.get_future().get();
  ASSERT_TRUE(told.error);
  EXPECT_EQ(told.error->code, ErrorCode::internal);
}

// What throws out of the step itself: here an observer, although none may.
TEST(EngineThread, GoesOnAfterAStepThatThrew) {
  FakeEngine fake;
  bool thrown = false;
  fake.engine->observe([&](const StepReport&) {
    if (!std::exchange(thrown, true)) throw std::runtime_error("planted");
  });
  EngineThread thread(std::move(fake.engine));
  thread.between_steps([](Engine&) {});
  ASSERT_TRUE(eventually([&] { return thread.engine().stats_snapshot().internal_errors == 1; }));
  EXPECT_FALSE(thread.in_step());
  std::promise<RequestResult> result;
  Request request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 2;
  request.on_finish = [&](const RequestResult& r) { result.set_value(r); };
  ASSERT_TRUE(thread.submit(std::move(request)));
  EXPECT_FALSE(result.get_future().get().error);
}

}  // namespace
}  // namespace kvarto
