#include "control/certificate.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "netsum/error.h"

namespace netsum::control {
namespace {

using WallClock = std::chrono::system_clock;
template <class Type>
using Freed = std::unique_ptr<Type, void (*)(Type*)>;

std::string whole_file(const std::string& path, const char* flag) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw Error(ErrorCode::bad_argument, std::string("cannot read '") + path + "' (" + flag + ")");
  }
  return text.str();
}

Freed<BIO> bio_of(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), [](BIO* bio) { BIO_free(bio); }};
}

std::optional<WallClock::time_point> time_of(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return std::nullopt;
  return WallClock::from_time_t(timegm(&parts));
}

std::string date_text(WallClock::time_point time) {
  const std::time_t seconds = WallClock::to_time_t(time);
  std::tm parts{};
  char text[64];
  return gmtime_r(&seconds, &parts) == nullptr || std::strftime(text, sizeof text, "%F %R UTC", &parts) == 0
             ? "an unknown date"
             : text;
}

}  // namespace

void check_tls_pair(const std::string& certificate_file, const std::string& key_file) {
  if (certificate_file.empty() == key_file.empty()) return;
  throw Error(ErrorCode::bad_argument, "--tls-cert and --tls-key go together");
}

DaemonCertificate read_certificate(const std::string& certificate_file, const std::string& key_file,
                                   WallClock::time_point now) {
  const auto refuse = [](const std::string& why) { return Error(ErrorCode::bad_argument, why); };
  DaemonCertificate certificate{whole_file(certificate_file, "--tls-cert"), whole_file(key_file, "--tls-key")};
  const Freed<BIO> chain = bio_of(certificate.chain), key = bio_of(certificate.key);
  const Freed<X509> x509(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr), &X509_free);
  const Freed<EVP_PKEY> pkey(PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr), &EVP_PKEY_free);
  const bool pair = x509 && pkey && X509_check_private_key(x509.get(), pkey.get()) == 1;
  ERR_clear_error();
  if (!x509) throw refuse("'" + certificate_file + "' (--tls-cert) has no PEM certificate");
  if (!pkey) throw refuse("'" + key_file + "' (--tls-key) has no PEM key without a pass phrase");
  if (!pair) {
    throw refuse("the key in '" + key_file + "' (--tls-key) does not belong to the certificate in '" + certificate_file +
                 "' (--tls-cert)");
  }
  const auto from = time_of(X509_get0_notBefore(x509.get())), until = time_of(X509_get0_notAfter(x509.get()));
  if (!from || !until)
    throw refuse("the certificate in '" + certificate_file +
                 "' (--tls-cert) has no readable validity dates: make a new certificate");
  if (now >= *until) {
    throw refuse("the certificate in '" + certificate_file + "' (--tls-cert) expired on " + date_text(*until) +
                 ": clients would refuse it; make a new certificate");
  }
  if (now < *from) {
    throw refuse("the certificate in '" + certificate_file + "' (--tls-cert) is valid only from " + date_text(*from) +
                 " on: is this host's clock right?");
  }
  certificate.until = *until;
  return certificate;
}

std::string expiry_warning(const DaemonCertificate& certificate, const std::string& certificate_file,
                           WallClock::time_point now) {
  const auto days = std::chrono::floor<std::chrono::days>(certificate.until - now).count();
  if (days >= expires_soon_days) return "";
  return "warning: the certificate in '" + certificate_file + "' (--tls-cert) expires in " + std::to_string(days) +
         (days == 1 ? " day" : " days") + ", on " + date_text(certificate.until) +
         ": put a new one in its place, and send this process SIGHUP";
}

}  // namespace netsum::control
