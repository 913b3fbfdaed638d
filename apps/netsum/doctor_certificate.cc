// Certificates: their dates, and the names in them.
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <utility>

#include "config.h"
#include "control/certificate.h"
#include "doctor.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"

namespace netsum::app {
namespace {

using Level = Finding::Level;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds for_connecting{3};

template <class Type>
using Owned = std::unique_ptr<Type, void (*)(Type*)>;

std::string text_of(const ASN1_TIME* time) {
  std::tm parts{};
  char text[64];
  if (ASN1_TIME_to_tm(time, &parts) != 1 || std::strftime(text, sizeof text, "%F %R UTC", &parts) == 0)
    return "an unknown date";
  return text;
}

std::string subject_of(const X509* certificate) {
  char text[256] = "";
  X509_NAME_oneline(X509_get_subject_name(certificate), text, sizeof text);
  return text;
}

constexpr char renew[] =
    "openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=netsum -addext subjectAltName=IP:ADDRESS -keyout key.pem "
    "-out cert.pem, and send the daemon SIGHUP";

void check_dates(const X509* certificate, const std::string& whose, Findings& findings) {
  const ASN1_TIME *const from = X509_get0_notBefore(certificate), *const until = X509_get0_notAfter(certificate);
  const std::string name = whose + " (" + subject_of(certificate) + ")";
  int days = 0, seconds = 0;
  if (X509_cmp_current_time(until) < 0) {
    findings.push_back({"certificate", Level::wrong, name + " expired on " + text_of(until) + ": clients refuse it", renew});
  } else if (X509_cmp_current_time(from) > 0) {
    findings.push_back({"certificate", Level::wrong,
                        name + " is valid only from " + text_of(from) + " on: is this host's clock right?",
                        "timedatectl status"});
  } else if (ASN1_TIME_diff(&days, &seconds, nullptr, until) == 1 && days < control::expires_soon_days) {
    findings.push_back(
        {"certificate", Level::advice, name + " expires in " + std::to_string(days) + " days, on " + text_of(until), renew});
  } else {
    findings.push_back({"certificate", Level::good, name + " is valid until " + text_of(until)});
  }
}

// A socket with a connection, or why there is none.
std::string connect_to(const Endpoint& to, std::unique_ptr<transport::Descriptor>& connected) {
  const bool ipv6 = !transport::is_ipv4(to);
  auto socket = std::make_unique<transport::Descriptor>(
      ::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage address{};
  const socklen_t length = transport::to_sockaddr(to, ipv6, address);
  if (::connect(socket->number(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EINPROGRESS) return transport::errno_text();
    pollfd ready{socket->number(), POLLOUT, 0};
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(for_connecting).count();
    if (::poll(&ready, 1, static_cast<int>(wait)) != 1) return "no answer";
    errno = transport::get_option(socket->number(), SOL_SOCKET, SO_ERROR);
    if (errno != 0) return transport::errno_text();
  }
  connected = std::move(socket);
  return "";
}

// False: the peer speaks no TLS, or not in time.
bool shake_hands(SSL* tls, int socket) {
  const auto until = Clock::now() + for_connecting;
  while (Clock::now() < until) {
    const int done = SSL_connect(tls);
    if (done == 1) return true;
    const int wanted = SSL_get_error(tls, done);
    if (wanted != SSL_ERROR_WANT_READ && wanted != SSL_ERROR_WANT_WRITE) break;
    pollfd ready{socket, static_cast<short>(wanted == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
    ::poll(&ready, 1, 100);
  }
  ERR_clear_error();
  return false;
}

}  // namespace

void check_certificate_file(const std::string& path, const std::string& name, Findings& findings) {
  const std::string text = read_whole(path);
  const Owned<BIO> memory(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free_all);
  std::size_t count = 0;
  while (X509* const next = PEM_read_bio_X509(memory.get(), nullptr, nullptr, nullptr)) {
    const Owned<X509> certificate(next, &X509_free);
    check_dates(certificate.get(), name + " " + path, findings);
    ++count;
  }
  ERR_clear_error();
  if (count == 0) throw UsageError(name + " " + path + " has no PEM certificate");
}

void check_certificate_of(const std::string& address, const std::string& ca, Findings& findings) {
  const Endpoint to = transport::resolve(address);
  std::unique_ptr<transport::Descriptor> socket;
  if (!connect_to(to, socket).empty()) return;  // check_switch() says that
  const Owned<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  SSL_CTX_load_verify_locations(context.get(), ca.c_str(), nullptr);  // check_certificate_file() says what is wrong with it
  const Owned<SSL> tls(SSL_new(context.get()), &SSL_free);
  SSL_set_verify(tls.get(), SSL_VERIFY_NONE, nullptr);  // the handshake goes on, and the result is kept
  constexpr unsigned char protocols[] = {2, 'h', '2'};
  SSL_set_alpn_protos(tls.get(), protocols, sizeof protocols);
  SSL_set_fd(tls.get(), socket->number());
  if (!shake_hands(tls.get(), socket->number())) {
    findings.push_back({"certificate", Level::wrong,
                        "the daemon at " + address + " does not use TLS, and --tls-ca requires TLS",
                        "netsum switch --tls-cert cert.pem --tls-key key.pem ..., or omit --tls-ca"});
    return;
  }
  const Owned<X509> certificate(SSL_get1_peer_certificate(tls.get()), &X509_free);
  if (!certificate) return;
  check_dates(certificate.get(), "the certificate of " + address, findings);
  if (const long result = SSL_get_verify_result(tls.get());
      result != X509_V_OK && result != X509_V_ERR_CERT_HAS_EXPIRED && result != X509_V_ERR_CERT_NOT_YET_VALID) {
    findings.push_back({"certificate", Level::wrong,
                        "the certificate of " + address + " is not signed by one in --tls-ca " + ca + " (" +
                            X509_verify_cert_error_string(result) + "): ranks with that file refuse it",
                        "give ranks the CA that signed it, or the certificate itself where it is self-signed"});
  }
  const std::string host = address.substr(0, address.rfind(':'));
  const std::string plain = host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
  if (X509_check_ip_asc(certificate.get(), plain.c_str(), 0) == 1 ||
      X509_check_host(certificate.get(), plain.c_str(), plain.size(), 0, nullptr) == 1) {
    return;
  }
  findings.push_back(
      {"certificate", Level::wrong,
       "the certificate of " + address + " does not name " + plain + ": ranks that use this address refuse it", renew});
}

}  // namespace netsum::app
