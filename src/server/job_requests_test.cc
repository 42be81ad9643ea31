#include "server/job_requests.h"

#include <gtest/gtest.h>

namespace kvarto {
namespace {

TEST(JobRequests, AllAreCancelledOnceWheneverTheyCome) {
  std::vector<RequestId> cancelled;
  JobRequests requests(3, [&](RequestId id) { cancelled.push_back(id); });
  requests.add(3);
  requests.add(4);
  EXPECT_TRUE(cancelled.empty());
  requests.cancel();
  EXPECT_EQ(cancelled, (std::vector<RequestId>{3, 4}));
  requests.add(5);  // the text thread was still submitting
  EXPECT_EQ(cancelled, (std::vector<RequestId>{3, 4, 5}));
  requests.cancel();
  EXPECT_EQ(cancelled.size(), 3u);
  EXPECT_EQ(requests.count(), 3u);
}

}  // namespace
}  // namespace kvarto
