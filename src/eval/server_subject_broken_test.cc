// Against a server that hangs up in the middle, or dawdles.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "eval/server_subject.h"

namespace kvarto {
namespace {

constexpr char kModels[] = R"({"data": [{"id": "stub"}]})";
constexpr char kNoEcho[] = R"({"choices": [{"text": ""}]})";
constexpr char kAtLast[] = R"({"choices": [{"text": "at last"}]})";

// An empty one is none: the connection is closed when the request is there.
struct Sent {
  std::string body;
  size_t withheld = 0;  // so much more was announced, and never comes
  bool slow = false;    // a byte every 20 ms
};

// One connection after the other gets the next answer.
class HangingUp {
 public:
  explicit HangingUp(std::vector<Sent> answers)
      : answers_(std::move(answers)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  HangingUp(const HangingUp&) = delete;
  HangingUp& operator=(const HangingUp&) = delete;
  ~HangingUp() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  void serve() const {
    for (const Sent& answer : answers_) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      read_request(client);
      if (!answer.body.empty()) send(client, answer);
      ::close(client);
    }
  }

  static void read_request(int client) {
    std::string request;
    char buffer[4096];
    // The bodies of these tests end in '}'; a GET has none.
    while (!request.ends_with('}') && !(request.starts_with("GET") && request.ends_with("\r\n\r\n"))) {
      const ssize_t n = ::recv(client, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      request.append(buffer, static_cast<size_t>(n));
    }
  }

  static void send(int client, const Sent& answer) {
    const std::string head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " +
                             std::to_string(answer.body.size() + answer.withheld) + "\r\n\r\n";
    ::send(client, head.data(), head.size(), MSG_NOSIGNAL);
    if (!answer.slow) {
      ::send(client, answer.body.data(), answer.body.size(), MSG_NOSIGNAL);
      return;
    }
    for (const char& byte : answer.body) {
      if (::send(client, &byte, 1, MSG_NOSIGNAL) < 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  const std::vector<Sent> answers_;
  const int listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

// What one task gets, or why nothing.
std::string outcome(const HangingUp& stub, double timeout_s = 60) {
  const Result<FoundServer> found =
      find_server({.url = stub.url(), .timeout_s = timeout_s, .concurrency = 1, .pause_s = 0.01});
  if (!found) return found.error().message;
  Task task;
  task.id = "t";
  task.prompt = "a";
  const Task* const asked[] = {&task};
  std::string out;
  const Status status = found->subject->generate(asked, [&](size_t, Result<std::string> text) -> Status {
    out = text ? *std::move(text) : text.error().message;
    return {};
  });
  return status ? out : status.error().message;
}

TEST(ServerSubjectBroken, AConnectionThatBreaksIsTriedAgain) {
  EXPECT_EQ(outcome(HangingUp({{kModels}, {kNoEcho}, {""}, {""}, {""}, {kAtLast}})), "at last");
  EXPECT_EQ(outcome(HangingUp({{kModels}, {""}, {kNoEcho}, {R"({"choices": [)", 20}, {kAtLast}})), "at last");
}

TEST(ServerSubjectBroken, ButNotForEver) {
  const std::string none = outcome(HangingUp({{kModels}, {kNoEcho}, {""}, {""}, {""}, {""}, {kAtLast}}));
  EXPECT_NE(none.find("closed early"), std::string::npos) << none;
  const Sent half{R"({"choices": [)", 20};
  const std::string halves = outcome(HangingUp({{kModels}, {kNoEcho}, half, half, half, half, {kAtLast}}));
  EXPECT_NE(halves.find("after 13 of 33 bytes: the connection was closed early; is the server still running?"),
            std::string::npos)
      << halves;
}

TEST(ServerSubjectBroken, AnAnswerThatComesByteByByteIsNotWaitedFor) {
  const Sent slow{std::string(100'000, ' '), 0, true};
  const HangingUp stub({{kModels}, {kNoEcho}, slow});
  EXPECT_EQ(outcome(stub, 1.5),
            "task t: " + stub.url() + "/v1/completions: no whole answer within 2 s; is the server too slow, or stuck?");
  const HangingUp models(std::vector<Sent>{slow});
  const std::string message = outcome(models, 0.3);
  EXPECT_NE(message.find("in time; is the server running and --url right?"), std::string::npos) << message;
}

}  // namespace
}  // namespace kvarto
