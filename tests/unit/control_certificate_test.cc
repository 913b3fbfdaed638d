// A daemon's certificate as it is read: what cannot serve is refused in words, and what expires soon is told.
#include "control/certificate.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "netsum/error.h"

namespace netsum::control {
namespace {

using namespace std::chrono_literals;

class CertificateTest : public ::testing::Test {
 protected:
  CertificateTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "netsum-certificate-XXXXXX";
    folder = mkdtemp(pattern.data());
    make("own");
    make("other");
  }
  ~CertificateTest() override { std::filesystem::remove_all(folder); }

  void make(const std::string& name) const {
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 100 -subj /CN=x -keyout " + key(name) +
        " -out " + certificate(name) + " 2>/dev/null";
    if (std::system(command.c_str()) != 0) ADD_FAILURE() << "no openssl command";  // NOLINT(cert-env33-c)
  }
  [[nodiscard]] std::string key(const std::string& name) const { return folder / (name + "-key.pem"); }
  [[nodiscard]] std::string certificate(const std::string& name) const { return folder / (name + "-cert.pem"); }

  void expect_refused(const std::string& certificate_file, const std::string& key_file, const std::string& words,
                      std::chrono::hours later = 0h) const {
    try {
      static_cast<void>(read_certificate(certificate_file, key_file, now + later));
      ADD_FAILURE() << "not refused: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_argument);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }

  std::filesystem::path folder;
  const std::chrono::system_clock::time_point now = std::chrono::system_clock::now();
};

TEST_F(CertificateTest, APairIsReadWithItsEnd) {
  const DaemonCertificate read = read_certificate(certificate("own"), key("own"), now + 1h);
  EXPECT_NE(read.chain.find("BEGIN CERTIFICATE"), std::string::npos);
  EXPECT_NE(read.key.find("PRIVATE KEY"), std::string::npos);
  EXPECT_NEAR(std::chrono::duration<double>(read.until - now).count(), 100 * 86400.0, 3600);
  EXPECT_EQ(expiry_warning(read, "c", now), "");
  EXPECT_NE(expiry_warning(read, "c", now + 24h * 80 + 12h).find("the certificate in 'c' (--tls-cert) expires in 1"),
            std::string::npos);
}

TEST_F(CertificateTest, WhatCannotServeIsRefusedInWords) {
  const std::string folder_text = folder;
  expect_refused(certificate("own"), key("own") + "s", "cannot read '" + key("own") + "s' (--tls-key)");
  expect_refused(folder_text, key("own"), "cannot read '" + folder_text + "' (--tls-cert)");
  expect_refused(key("own"), key("own"), "(--tls-cert) has no PEM certificate");
  expect_refused(certificate("own"), certificate("own"), "(--tls-key) has no PEM key");
  expect_refused(certificate("own"), key("other"), "does not belong to the certificate in '" + certificate("own"));
  expect_refused(certificate("own"), key("own"), "(--tls-cert) expired on ", 24h * 101);
  expect_refused(certificate("own"), key("own"), "is valid only from ", -48h);
}

}  // namespace
}  // namespace netsum::control
