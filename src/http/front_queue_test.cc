#include "http/front_queue.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "http/reply_channel.h"

namespace kvarto {
namespace {

class CountingWriter : public ReplyWriter {
 public:
  void reply_ready() override {
    ++notices;
    if (std::exchange(broken, false)) throw std::runtime_error("planted");
  }
  int notices = 0;
  bool broken = false;
};

struct Written {
  explicit Written(const std::shared_ptr<FrontQueue>& queue)
      : channel(std::make_shared<ReplyChannel>(queue, writer, size_t{1} << 20)) {}
  std::shared_ptr<CountingWriter> writer = std::make_shared<CountingWriter>();
  std::shared_ptr<ReplyChannel> channel;
};

TEST(FrontQueue, AChannelThatFailsTakesNobodyWithIt) {
  int wakes = 0, calls = 0;
  const auto queue = std::make_shared<FrontQueue>([&] { ++wakes; });
  Written first(queue), bad(queue), last(queue);
  bad.writer->broken = true;
  for (const Written* one : {&first, &bad, &last}) one->channel->start({200, {}, "head"});
  EXPECT_TRUE(queue->call([&] { throw std::runtime_error("planted"); }));
  EXPECT_TRUE(queue->call([&] { ++calls; }));
  EXPECT_EQ(wakes, 1);
  queue->drain();
  EXPECT_EQ(first.writer->notices, 1);
  EXPECT_EQ(bad.writer->notices, 1);
  EXPECT_EQ(last.writer->notices, 1);
  EXPECT_EQ(calls, 1);

  EXPECT_TRUE(bad.channel->write("more"));
  EXPECT_EQ(wakes, 2) << "the next piece gives notice again";
  queue->drain();
  EXPECT_EQ(bad.writer->notices, 2);
}

}  // namespace
}  // namespace kvarto
