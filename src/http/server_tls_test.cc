// The server behind TLS, with certificates made by the openssl command.
#include <atomic>
#include <cstdio>

#include "http/testing.h"

namespace kvarto {
namespace {

using namespace http_testing;

// PEM files x.key and x.crt for 127.0.0.1, signed by themselves.
void make_certificate(const TempFolder& folder, const std::string& name) {
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" + name +
      " -addext subjectAltName=IP:127.0.0.1 -keyout " + folder.file(name + ".key") + " -out " +
      folder.file(name + ".crt") + " 2>" + folder.file("openssl.log");
  ASSERT_EQ(std::system(command.c_str()), 0) << "packages-test.txt names the package openssl";
}

class ServerTls : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(make_certificate(folder_, "server"));
    trust("server");
    options_.tls.key_file = folder_.file("server.key");
    options_.tls.certificate_file = folder_.file("server.crt");
  }
  void TearDown() override { ::unsetenv("SSL_CERT_FILE"); }
  void trust(const std::string& name) { ::setenv("SSL_CERT_FILE", folder_.file(name + ".crt").c_str(), 1); }
  static HttpRequest request(TestServer& server, const std::string& target) {
    HttpRequest out;
    out.url = *parse_url("https://127.0.0.1:" + std::to_string(server.port()) + target);
    return out;
  }
  // What curl or any other client of its own would send and get; `arguments` for openssl s_client.
  std::string by_openssl(uint16_t port, const std::string& arguments) {
    const std::string out = folder_.file("out");
    const std::string command =
        "printf 'GET /o HTTP/1.1\\r\\nHost: h\\r\\nConnection: close\\r\\n\\r\\n' | "
        "openssl s_client -ign_eof -quiet -connect 127.0.0.1:" +
        std::to_string(port) + " " + arguments + " >" + out + " 2>" + folder_.file("err");
    static_cast<void>(std::system(command.c_str()));
    std::string text;
    if (FILE* file = std::fopen(out.c_str(), "rb")) {
      char buffer[4096];
      text.assign(buffer, std::fread(buffer, 1, sizeof buffer, file));
      std::fclose(file);
    }
    return text;
  }
  static tl::unexpected<Error> start(const HttpServerOptions& options) {
    auto started = HttpServer::start(
        options, [](auto) {}, [](int, std::string_view) { return ServerReply{}; });
    return started ? fail(ErrorCode::internal, "it started") : tl::unexpected<Error>(started.error());
  }

  TempFolder folder_;
  HttpServerOptions options_;
};

TEST_F(ServerTls, RequestsStreamsAndKeptConnections) {
  TestServer server(options_);
  EXPECT_TRUE(server->address().starts_with("https://127.0.0.1:"));
  HttpConnection connection;
  BodySink sink;
  std::string body;
  sink.data = [&](std::string_view bytes) -> Status {
    body += bytes;
    return {};
  };
  HttpRequest posted = request(server, "/echo");
  posted.body = std::string(300'000, 'b');
  for (int i = 0; i < 3; ++i) {
    body.clear();
    const auto reply = connection.send(posted, sink);
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_EQ(body.size(), 300'000u + 12);
  }
  EXPECT_EQ(connection.connects(), 1u);
  body.clear();
  std::thread streamer([&] {
    const auto held = server.held();
    held->start({200, {}, ""});
    for (int i = 0; i < 1000; ++i) EXPECT_TRUE(held->write(std::to_string(i) + ";"));
    held->finish();
  });
  const auto reply = connection.send(request(server, "/hold"), sink);
  streamer.join();
  ASSERT_TRUE(reply) << reply.error().message;
  std::string expected;
  for (int i = 0; i < 1000; ++i) expected += std::to_string(i) + ";";
  EXPECT_EQ(body, expected);
}

TEST_F(ServerTls, ARefusalReachesWhoStillSends) {
  options_.max_body_bytes = 1000;
  TestServer server(options_);
  HttpRequest posted = request(server, "/echo");
  posted.body = std::string(8 << 20, 'b');
  const auto reply = HttpClient().send(posted, {});
  ASSERT_TRUE(reply) << reply.error().message;
  EXPECT_EQ(reply->status, 413);
}

TEST_F(ServerTls, OtherClientsAreServedAndClosedProperly) {
  TestServer server(options_);
  const std::string out = by_openssl(server.port(), "-CAfile " + folder_.file("server.crt") + " -alpn h2,http/1.1");
  EXPECT_TRUE(out.starts_with("HTTP/1.1 200 OK\r\n")) << out;
  EXPECT_TRUE(out.ends_with("GET /o?\n")) << out;
}

TEST_F(ServerTls, ClientsThatSpeakNoTlsAreClosed) {
  TestServer server(options_);
  RawClient plain(server.port()), gone(server.port());
  plain.send(get("/"));
  gone.leave();
  const std::string answer = plain.receive_all();
  EXPECT_FALSE(plain.hung());
  EXPECT_EQ(answer.find("HTTP"), std::string::npos);
  EXPECT_TRUE(server.all_closed());
}

TEST_F(ServerTls, ASilentHandshakeEnds) {
  options_.header_limit = std::chrono::milliseconds(150);
  TestServer server(options_);
  RawClient silent(server.port());
  EXPECT_EQ(silent.receive_all(), "");
  EXPECT_FALSE(silent.hung());
}

TEST_F(ServerTls, DisconnectsAreSeen) {
  TestServer server(options_);
  std::atomic<int> closed{0};
  std::thread client([&] {
    HttpClientOptions options;
    options.idle_limit = std::chrono::milliseconds(100);
    EXPECT_FALSE(HttpClient(options).send(request(server, "/hold"), {}));
  });
  const auto held = server.held();
  held->on_close([&] { ++closed; });
  client.join();
  EXPECT_TRUE(eventually([&] { return closed == 1; }));
  EXPECT_TRUE(server.all_closed());
}

TEST_F(ServerTls, ClientCertificates) {
  ASSERT_NO_FATAL_FAILURE(make_certificate(folder_, "client"));
  options_.tls.ca_file = folder_.file("client.crt");
  options_.tls.client_certificates = 2;
  const std::string with = "-cert " + folder_.file("client.crt") + " -key " + folder_.file("client.key");
  {
    TestServer server(options_);
    EXPECT_TRUE(by_openssl(server.port(), with).starts_with("HTTP/1.1 200"));
    EXPECT_EQ(by_openssl(server.port(), ""), "");
    EXPECT_EQ(by_openssl(server.port(), "-cert " + folder_.file("server.crt") + " -key " + folder_.file("server.key")),
              "");
    EXPECT_EQ(server->counts().requests, 1u);
  }
  options_.tls.client_certificates = 1;
  TestServer server(options_);
  EXPECT_TRUE(by_openssl(server.port(), with).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(by_openssl(server.port(), "").starts_with("HTTP/1.1 200"));
}

TEST_F(ServerTls, CiphersAreKept) {
  options_.tls.ciphers = "ECDHE-ECDSA-AES256-GCM-SHA384";
  TestServer server(options_);
  EXPECT_EQ(by_openssl(server.port(), "-tls1_2 -cipher ECDHE-ECDSA-AES128-GCM-SHA256"), "");
  EXPECT_TRUE(by_openssl(server.port(), "-tls1_2").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(by_openssl(server.port(), "-tls1_1 -cipher ALL:@SECLEVEL=0"), "");
}

TEST_F(ServerTls, ChangedFilesAreReadAgainAndBrokenOnesAreNot) {
  options_.tls.reload = true;
  TestServer server(options_);
  ASSERT_NO_FATAL_FAILURE(make_certificate(folder_, "next"));
  EXPECT_TRUE(HttpClient().send(request(server, "/"), {}));
  // Between the two renames key and certificate do not fit: the old pair stays.
  std::filesystem::rename(folder_.file("next.key"), folder_.file("server.key"));
  EXPECT_TRUE(HttpClient().send(request(server, "/"), {}));
  std::filesystem::copy_file(folder_.file("next.crt"), folder_.file("copy"));
  std::filesystem::rename(folder_.file("copy"), folder_.file("server.crt"));
  trust("next");
  const auto reply = HttpClient().send(request(server, "/"), {});
  EXPECT_TRUE(reply) << reply.error().message;
}

TEST_F(ServerTls, FilesThatCannotBeUsedAreNamed) {
  HttpServerOptions none = options_;
  none.port = 0;
  none.tls.key_file.clear();
  EXPECT_NE(start(none).value().message.find("key file"), std::string::npos);
  HttpServerOptions missing = options_;
  missing.tls.certificate_file = folder_.file("absent.crt");
  EXPECT_NE(start(missing).value().message.find("absent.crt"), std::string::npos);
  ASSERT_NO_FATAL_FAILURE(make_certificate(folder_, "other"));
  HttpServerOptions mixed = options_;
  mixed.tls.key_file = folder_.file("other.key");
  EXPECT_NE(start(mixed).value().message.find("other.key"), std::string::npos);
  HttpServerOptions ciphers = options_;
  ciphers.tls.ciphers = "ROT13";
  EXPECT_NE(start(ciphers).value().message.find("ROT13"), std::string::npos);
  HttpServerOptions nobody = options_;
  nobody.tls.client_certificates = 2;
  EXPECT_NE(start(nobody).value().message.find("authority"), std::string::npos);
}

}  // namespace
}  // namespace kvarto
