// TLS 1.3 by OpenSSL, without sockets: bytes from the network in, bytes for the network out.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>
#include <string_view>

#include "control/bytes.h"

namespace netsum::control {

// What a connection's certificate is checked against, or what it shows. Any thread.
class TlsContext {
 public:
  // Both throw Error: bad_argument. What is wrong with a daemon's files, read_certificate() says better.
  [[nodiscard]] static std::shared_ptr<const TlsContext> of_daemon(const std::string& certificate_file,
                                                                   const std::string& key_file);
  [[nodiscard]] static std::shared_ptr<const TlsContext> of_caller(const std::string& ca_file);

  [[nodiscard]] SSL_CTX* get() const { return context_.get(); }
  [[nodiscard]] const std::string& ca_file() const { return ca_file_; }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, Free> context_;
  std::string ca_file_;
};

class TlsStream {
 public:
  // Of a daemon, or (with a host, as the caller names it) of a caller.
  explicit TlsStream(const TlsContext& context);
  TlsStream(const TlsContext& context, const std::string& host);

  // Appends what the peer has said to `plain`. Throws Broken.
  void received(std::string_view bytes, Bytes& plain);
  void write(std::string_view plain);  // kept until the handshake is done
  // Moves what is to be sent to the end of `out`.
  void take_outgoing(Bytes& out);
  // The same at both ends of a connection and no other; once the handshake is done.
  [[nodiscard]] std::string binding() const;
  [[nodiscard]] bool ready() const { return SSL_is_init_finished(ssl_.get()) == 1; }

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  void attach();
  [[nodiscard]] std::string why() const;

  std::unique_ptr<SSL, Free> ssl_;
  BIO *in_ = nullptr, *out_ = nullptr;  // the SSL's
  Bytes waiting_;
  std::string host_, ca_file_;  // of a caller
};

}  // namespace netsum::control
