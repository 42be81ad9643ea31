#include "server/text_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

namespace kvarto {
namespace {

// Holds the thread until go() is called.
class Held {
 public:
  explicit Held(TextThread& thread) {
    EXPECT_TRUE(thread.post([this] {
      begun_.set_value();
      go_.get_future().wait();
    }));
    begun_.get_future().wait();
  }
  void go() { go_.set_value(); }

 private:
  std::promise<void> begun_, go_;
};

void wait_for(TextThread& thread) {
  std::promise<void> done;
  ASSERT_TRUE(thread.post([&] { done.set_value(); }));
  done.get_future().wait();
}

TEST(TextThread, GoesOnAfterWorkThatThrew) {
  TextThread thread;
  EXPECT_TRUE(thread.post([] { throw std::runtime_error("planted"); }));
  EXPECT_TRUE(thread.post([] { throw 1; }));
  wait_for(thread);
}

TEST(TextThread, TakesSoManyWorksAndDropsFurtherOnes) {
  TextThread thread({.works = 2});
  Held held(thread);
  int done = 0;
  const auto dropped = std::make_shared<int>(0);
  EXPECT_TRUE(thread.post([&] { ++done; }));
  EXPECT_TRUE(thread.post([&] { ++done; }));
  EXPECT_FALSE(thread.post([&, dropped] { ++done; }));
  EXPECT_EQ(dropped.use_count(), 1) << "what it held is let go";
  held.go();
  while (!thread.post([&] { ++done; })) std::this_thread::yield();
  while (!thread.post([] {})) std::this_thread::yield();
  std::promise<void> last;
  while (!thread.post([&] { last.set_value(); })) std::this_thread::yield();
  last.get_future().wait();
  EXPECT_EQ(done, 3);
}

TEST(TextThread, TakesSoManyBytes) {
  TextThread thread({.works = 100, .bytes = 10});
  Held held(thread);
  EXPECT_TRUE(thread.post([] {}, 50)) << "nothing else waits";
  EXPECT_FALSE(thread.post([] {}, 1));
  held.go();
  std::promise<void> done;
  while (!thread.post([&] { done.set_value(); }, 10)) std::this_thread::yield();
  done.get_future().wait();
  Held again(thread);
  EXPECT_TRUE(thread.post([] {}, 4));
  EXPECT_TRUE(thread.post([] {}, 6));
  EXPECT_FALSE(thread.post([] {}, 1));
  again.go();
}

}  // namespace
}  // namespace kvarto
