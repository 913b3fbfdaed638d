// A daemon's certificate and key, from its files: read anew on SIGHUP.
#pragma once

#include <chrono>
#include <string>

namespace netsum::control {

inline constexpr int expires_soon_days = 30;  // then people are warned

struct DaemonCertificate {
  std::string chain, key;  // PEM
  std::chrono::system_clock::time_point until{};
};

// Throws Error: bad_argument, one is given without the other.
void check_tls_pair(const std::string& certificate_file, const std::string& key_file);

// Throws Error: bad_argument, with what is wrong in words: they cannot be read, are no PEM, do not belong together, or are
// not valid now.
[[nodiscard]] DaemonCertificate read_certificate(const std::string& certificate_file, const std::string& key_file,
                                                 std::chrono::system_clock::time_point now);
// Empty, or that it expires soon.
[[nodiscard]] std::string expiry_warning(const DaemonCertificate& certificate, const std::string& certificate_file,
                                         std::chrono::system_clock::time_point now);

}  // namespace netsum::control
