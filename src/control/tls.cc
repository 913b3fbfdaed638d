#include "control/tls.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <array>
#include <fstream>
#include <utility>

#include "control/broken.h"
#include "netsum/error.h"

namespace netsum::control {

std::shared_ptr<const TlsContext> TlsContext::of_daemon(const std::string& certificate_file, const std::string& key_file) {
  const auto made = std::make_shared<TlsContext>();
  made->context_.reset(SSL_CTX_new(TLS_server_method()));
  SSL_CTX* const context = made->get();
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_num_tickets(context, 0);  // a caller connects once, and strangers get nothing to keep
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  if (SSL_CTX_use_certificate_chain_file(context, certificate_file.c_str()) == 1 &&
      SSL_CTX_use_PrivateKey_file(context, key_file.c_str(), SSL_FILETYPE_PEM) == 1 &&
      SSL_CTX_check_private_key(context) == 1) {
    return made;
  }
  ERR_clear_error();
  throw Error(ErrorCode::bad_argument,
              "OpenSSL does not serve '" + certificate_file + "' (--tls-cert) with '" + key_file + "' (--tls-key)");
}

std::shared_ptr<const TlsContext> TlsContext::of_caller(const std::string& ca_file) {
  if (!std::ifstream(ca_file)) throw Error(ErrorCode::bad_argument, "cannot read '" + ca_file + "' (--tls-ca)");
  const auto made = std::make_shared<TlsContext>();
  made->context_.reset(SSL_CTX_new(TLS_client_method()));
  made->ca_file_ = ca_file;
  SSL_CTX_set_min_proto_version(made->get(), TLS1_3_VERSION);
  SSL_CTX_set_verify(made->get(), SSL_VERIFY_PEER, nullptr);
  if (SSL_CTX_load_verify_file(made->get(), ca_file.c_str()) == 1) return made;
  ERR_clear_error();
  throw Error(ErrorCode::bad_argument, "'" + ca_file + "' (--tls-ca) has no PEM certificate");
}

TlsStream::TlsStream(const TlsContext& context) : ssl_(SSL_new(context.get())) {
  attach();
  SSL_set_accept_state(ssl_.get());
}

TlsStream::TlsStream(const TlsContext& context, const std::string& host)
    : ssl_(SSL_new(context.get())), host_(host), ca_file_(context.ca_file()) {
  attach();
  X509_VERIFY_PARAM* const check = SSL_get0_param(ssl_.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(check, host.c_str()) != 1) {
    ERR_clear_error();
    X509_VERIFY_PARAM_set1_host(check, host.c_str(), host.size());
    SSL_ctrl(ssl_.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
             const_cast<char*>(host.c_str()));  // NOLINT
  }
  SSL_set_connect_state(ssl_.get());
  SSL_do_handshake(ssl_.get());  // begins; it wants the peer's answer next
  ERR_clear_error();
}

void TlsStream::attach() {
  in_ = BIO_new(BIO_s_mem());
  out_ = BIO_new(BIO_s_mem());
  if (ssl_ == nullptr || in_ == nullptr || out_ == nullptr) throw std::bad_alloc();
  SSL_set_bio(ssl_.get(), in_, out_);
}

void TlsStream::received(std::string_view bytes, Bytes& plain) {
  BIO_write(in_, bytes.data(), static_cast<int>(bytes.size()));
  std::array<char, 4096> part;
  while (true) {
    const int got = SSL_read(ssl_.get(), part.data(), part.size());
    if (got > 0) {
      plain.insert(plain.end(), part.begin(), part.begin() + got);
      continue;
    }
    seal::wipe(std::as_writable_bytes(std::span(part)));
    const int wanted = SSL_get_error(ssl_.get(), got);
    if (wanted == SSL_ERROR_ZERO_RETURN) throw Broken("it has ended the connection");
    if (wanted != SSL_ERROR_WANT_READ && wanted != SSL_ERROR_WANT_WRITE) throw Broken(why(), !host_.empty());
    break;
  }
  if (!waiting_.empty() && ready()) {
    const Bytes now = std::exchange(waiting_, {});
    write(view(now));
  }
}

void TlsStream::write(std::string_view plain) {
  if (plain.empty()) return;
  if (!ready()) {
    waiting_.insert(waiting_.end(), plain.begin(), plain.end());
    return;
  }
  if (SSL_write(ssl_.get(), plain.data(), static_cast<int>(plain.size())) <= 0) throw Broken(why());
}

void TlsStream::take_outgoing(Bytes& out) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(out_, &data);
  if (size <= 0) return;
  out.insert(out.end(), data, data + size);
  static_cast<void>(BIO_reset(out_));
}

std::string TlsStream::binding() const {
  std::array<unsigned char, 32> bytes{};
  constexpr std::string_view label = "EXPORTER-netsum-control";
  if (SSL_export_keying_material(ssl_.get(), bytes.data(), bytes.size(), label.data(), label.size(), nullptr, 0, 0) != 1) {
    throw Error(ErrorCode::internal, "exporting a TLS connection's keying material failed in OpenSSL");
  }
  return {bytes.begin(), bytes.end()};
}

std::string TlsStream::why() const {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  if (host_.empty())
    return "TLS failed: " + std::string(ERR_reason_error_string(error) ? ERR_reason_error_string(error) : "");
  switch (SSL_get_verify_result(ssl_.get())) {
    case X509_V_OK:
      break;
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "its certificate has expired: give the daemon a new one";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet: are the clocks of both hosts right?";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return "its certificate does not name " + host_ + ": use an address that it names, or make one that names this one";
    default:
      return "its certificate is not signed by a CA in " + ca_file_ + " (--tls-ca)";
  }
  return "it does not speak TLS 1.3: start the daemon with --tls-cert and --tls-key, or omit --tls-ca";
}

}  // namespace netsum::control
