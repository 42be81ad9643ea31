#include "http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <string>

#include "base/log.h"
#include "format/printable.h"

namespace kvarto {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

// Of the protocols a client offers we speak one; a client that does not ask gets it anyway.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_length, const unsigned char* in,
                    unsigned int in_length, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_length, kHttp11, sizeof kHttp11 - 1, in, in_length) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

tl::unexpected<Error> refuse(const std::string& file, const std::string& what, error_code error) {
  return fail(ErrorCode::invalid_argument, quoted(file, 300) + ": " + what + ": " + printable(error.message(), 200));
}

}  // namespace

Result<std::unique_ptr<TlsSource>> TlsSource::open(const TlsOptions& options) {
  if (options.key_file.empty() || options.certificate_file.empty()) {
    return fail(ErrorCode::invalid_argument, "TLS needs both a key file and a certificate file");
  }
  std::unique_ptr<TlsSource> source(new TlsSource(options));
  // Before reading, so that a change meanwhile is seen later.
  source->stamp_ = source->stamp();
  ASSIGN_OR_RETURN(source->context_, source->load());
  return source;
}

TlsSource::Stamp TlsSource::stamp() const {
  Stamp stamp{};
  size_t i = 0;
  for (const std::string* file : {&options_.key_file, &options_.certificate_file, &options_.ca_file}) {
    struct stat found {};
    if (!file->empty() && ::stat(file->c_str(), &found) != 0) found = {};
    for (const auto part : {static_cast<int64_t>(found.st_dev), static_cast<int64_t>(found.st_ino),
                            static_cast<int64_t>(found.st_mtim.tv_sec), static_cast<int64_t>(found.st_mtim.tv_nsec)}) {
      stamp[i++] = part;
    }
  }
  return stamp;
}

std::shared_ptr<ssl::context> TlsSource::context() {
  if (!options_.reload) return context_;
  const Stamp now = stamp();
  if (now == stamp_) return context_;
  stamp_ = now;
  if (auto fresh = load()) {
    context_ = std::move(*fresh);
    log(LogLevel::info, "TLS: new certificate or key read");
  } else {
    log(LogLevel::warning, "TLS: the old certificate stays: " + fresh.error().message);
  }
  return context_;
}

Result<std::shared_ptr<ssl::context>> TlsSource::load() const {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  SSL_CTX* native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_alpn_select_cb(native, choose_protocol, nullptr);
  // Sessions are bound to a context of ours, which client certificates need; tickets make them stateless.
  static constexpr unsigned char kName[] = "kvarto";
  SSL_CTX_set_session_id_context(native, kName, sizeof kName - 1);
  error_code error;
  // A key under a password is refused; OpenSSL would ask for it on the terminal.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  context->use_certificate_chain_file(options_.certificate_file, error);
  if (error) {
    return refuse(options_.certificate_file, "no PEM certificate can be read", error);
  }
  context->use_private_key_file(options_.key_file, ssl::context::pem, error);
  if (error) {
    return refuse(options_.key_file, "no private key without password that fits the certificate can be read", error);
  }
  if (!options_.ciphers.empty() && SSL_CTX_set_cipher_list(native, options_.ciphers.c_str()) != 1) {
    ERR_clear_error();
    return fail(ErrorCode::invalid_argument, "TLS ciphers " + quoted(options_.ciphers) +
                                                 ": OpenSSL knows none of them; `openssl ciphers` lists names");
  }
  if (options_.client_certificates != 0) {
    if (options_.ca_file.empty()) {
      return fail(ErrorCode::invalid_argument, "client certificates are asked for: name their authority's file too");
    }
    context->set_verify_mode(
        options_.client_certificates == 2 ? ssl::verify_peer | ssl::verify_fail_if_no_peer_cert : ssl::verify_peer,
        error);
  }
  if (!options_.ca_file.empty()) {
    context->load_verify_file(options_.ca_file, error);
    if (error) {
      return refuse(options_.ca_file, "no PEM certificates can be read", error);
    }
    SSL_CTX_set_client_CA_list(native, SSL_load_client_CA_file(options_.ca_file.c_str()));
  }
  return context;
}

}  // namespace kvarto
