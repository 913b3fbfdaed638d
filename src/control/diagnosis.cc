#include "control/diagnosis.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string_view>

#include "netsum/error.h"
#include "transport/addresses.h"
#include "transport/socket.h"

namespace netsum::control {
namespace {

using Clock = std::chrono::steady_clock;
template <class Type>
using Owned = std::unique_ptr<Type, void (*)(Type*)>;

constexpr std::chrono::milliseconds patience{1000};  // with a connection, and again with an answer

bool ready(int socket, short events, Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  pollfd descriptor{socket, events, 0};
  return left > 0 && ::poll(&descriptor, 1, static_cast<int>(left)) == 1;
}

// Empty, or why there is no connection.
std::string connect_to(int socket, const Endpoint& to, bool ipv6) {
  sockaddr_storage address{};
  const socklen_t length = transport::to_sockaddr(to, ipv6, address);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EINPROGRESS) {
      if (!ready(socket, POLLOUT, Clock::now() + patience)) {
        return "no answer on TCP: is that host up, and does a firewall drop packets to this port?";
      }
      errno = transport::get_option(socket, SOL_SOCKET, SO_ERROR);
    }
    if (errno == ECONNREFUSED) return "the connection was refused: is netsum running there, at this port?";
    if (errno != 0) return transport::errno_text() + ": is that the right address?";
  }
  return "";
}

// What the peer says to the first bytes of HTTP/2, which the control channel speaks.
std::string diagnose_plain(int socket) {
  constexpr std::string_view preface("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  static_cast<void>(::send(socket, preface.data(), preface.size(), MSG_NOSIGNAL));
  std::array<char, 8> answer{};
  if (!ready(socket, POLLIN, Clock::now() + patience))
    return "it takes connections, but does not answer: is it busy, or stopped?";
  const auto count = ::recv(socket, answer.data(), answer.size(), 0);
  const std::string_view said(answer.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  if (said.starts_with("HTTP/")) return "a web page is at this port: is it that of --metrics? Give the one of --listen";
  if (said.empty() || said.front() == '\x15') {
    return "it ends connections without TLS: where the daemon has --tls-cert, pass --tls-ca FILE";
  }
  return "it answers, but not in time";
}

std::string diagnose_tls(int socket, const std::string& address, const std::string& tls_ca) {
  const Owned<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  if (SSL_CTX_load_verify_file(context.get(), tls_ca.c_str()) != 1) {
    ERR_clear_error();
    return "'" + tls_ca + "' (--tls-ca) has no PEM certificate";
  }
  const Owned<SSL> tls(SSL_new(context.get()), &SSL_free);
  SSL_set_verify(tls.get(), SSL_VERIFY_NONE, nullptr);  // looks at it below
  constexpr unsigned char protocols[] = {2, 'h', '2'};
  SSL_set_alpn_protos(tls.get(), protocols, sizeof protocols);
  SSL_set_fd(tls.get(), socket);
  const auto until = Clock::now() + patience;
  for (int done = 0; (done = SSL_connect(tls.get())) != 1;) {
    const int wanted = SSL_get_error(tls.get(), done);
    const bool again = wanted == SSL_ERROR_WANT_READ || wanted == SSL_ERROR_WANT_WRITE;
    if (again && ready(socket, wanted == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, until)) continue;
    ERR_clear_error();
    return "it speaks no TLS: start the daemon with --tls-cert and --tls-key, or omit --tls-ca";
  }
  switch (SSL_get_verify_result(tls.get())) {
    case X509_V_OK:
      break;
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "its certificate has expired: give the daemon a new one, and start it again";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet: are the clocks of both hosts right?";
    default:
      return "its certificate is not signed by that of " + tls_ca + " (--tls-ca)";
  }
  const Owned<X509> certificate(SSL_get1_peer_certificate(tls.get()), &X509_free);
  std::string host = address.substr(0, address.rfind(':'));
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  if (X509_check_ip_asc(certificate.get(), host.c_str(), 0) == 1 ||
      X509_check_host(certificate.get(), host.c_str(), host.size(), 0, nullptr) == 1) {
    return "it answers, but not in time";
  }
  return "its certificate does not name " + host + ": use an address that it names, or make one that names this one";
}

}  // namespace

std::string diagnose(const std::string& address, const std::string& tls_ca) {
  Endpoint to;
  try {
    to = transport::resolve(address);
  } catch (const Error& error) {
    return error.what();
  }
  const bool ipv6 = !transport::is_ipv4(to);
  const transport::Descriptor socket(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.number() < 0) return transport::errno_text();
  if (std::string why = connect_to(socket.number(), to, ipv6); !why.empty()) return why;
  return tls_ca.empty() ? diagnose_plain(socket.number()) : diagnose_tls(socket.number(), address, tls_ca);
}

}  // namespace netsum::control
