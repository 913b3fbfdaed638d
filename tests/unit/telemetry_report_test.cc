// What an aggregator tells about itself, as JSON, as a table and as Prometheus' text.
#include "telemetry/report.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "netsum/error.h"
#include "telemetry/metrics_server.h"

namespace netsum::telemetry {
namespace {

RankSet set_of(std::initializer_list<std::uint32_t> ranks) {
  RankSet set;
  for (const std::uint32_t rank : ranks) set.insert(rank);
  return set;
}

Report example() {
  Report report;
  report.version = "1.2.3";
  report.uptime_seconds = 12.5;
  report.lanes = 2;
  report.slots = 16384;
  report.slots_free = 16128;
  report.counters = {{"packets_received", 123456789012345}, {"dropped_malformed_checksum", 3}};
  JobReport running;
  running.job = {"be\"rt", 0xffffffffffffffff, 256, 1024, 32, RankSet::first(256), set_of({0, 255}), true, ""};
  running.counters = {{"packets", 1000}, {"bytes", 2'500'000}, {"chunks", 77}, {"repeats_waiting", 5}, {"slots_in_use", 9}};
  running.stalled = {{17, 3, 1, {0, 254}}, {18, 4'000'000'000, 2, {}}};
  JobReport failed;
  failed.job = {"be\"rt", 7, 2, 256, 16, set_of({0, 1}), {}, false, "rank 1 died"};
  failed.counters = {{"packets", 0}, {"bytes", 0}, {"chunks", 0}, {"repeats_waiting", 0}, {"slots_in_use", 0}};
  JobReport joining;
  joining.job = {"next", 0, 3, 256, 0, set_of({2}), {}, false, ""};
  joining.counters = failed.counters;
  report.jobs = {running, failed, joining};
  return report;
}

TEST(Report, ReadsBackFromJson) {
  const Report report = example(), read = from_json(to_json(report));
  EXPECT_EQ(to_json(read), to_json(report));
  EXPECT_EQ(read.version, report.version);
  EXPECT_EQ(read.uptime_seconds, report.uptime_seconds);
  EXPECT_EQ(read.slots_free, report.slots_free);
  EXPECT_EQ(read.counters, report.counters);
  ASSERT_EQ(read.jobs.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read.jobs[i].job.job, report.jobs[i].job.job);
    EXPECT_EQ(read.jobs[i].job.job_epoch, report.jobs[i].job.job_epoch);
    EXPECT_EQ(read.jobs[i].job.running, report.jobs[i].job.running);
    EXPECT_EQ(read.jobs[i].job.failure, report.jobs[i].job.failure);
    EXPECT_EQ(read.jobs[i].job.joined, report.jobs[i].job.joined);
    EXPECT_EQ(read.jobs[i].job.left, report.jobs[i].job.left);
    EXPECT_EQ(read.jobs[i].counters, report.jobs[i].counters);
  }
  ASSERT_EQ(read.jobs[0].stalled.size(), 2U);
  EXPECT_EQ(read.jobs[0].stalled[0].missing, (std::vector<std::uint32_t>{0, 254}));
  EXPECT_EQ(read.jobs[0].stalled[1].chunk, 4'000'000'000);
}

TEST(Report, WhatIsNoReportIsAnError) {
  const std::string whole = to_json(example());
  for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("{}"), std::string("null"),
                                  std::string("not json"), std::string(100'000, '['), whole + "}"}) {
    EXPECT_THROW(static_cast<void>(from_json(text)), Error) << text.substr(0, 50);
  }
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    EXPECT_THROW(static_cast<void>(from_json(whole.substr(0, length))), Error) << length;
  }
  for (const std::string field : {"lanes", "version", "jobs", "counters", "missing", "joined", "job_epoch", "state"}) {
    std::string other = whole;
    other.replace(other.find("\"" + field + "\""), field.size() + 2, "\"another\"");
    EXPECT_THROW(static_cast<void>(from_json(other)), Error) << field;
  }
  std::string worded = whole;
  worded.replace(worded.find("16384"), 5, "\"all\"");
  try {
    static_cast<void>(from_json(worded));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_NE(std::string(error.what()).find("report cannot be read"), std::string::npos) << error.what();
  }
}

TEST(Report, TableSaysWhoIsMissing) {
  const std::string table = to_table(example());
  for (const char* words :
       {"netsum 1.2.3", "2 lanes", "16128 of 16384 slots free", "256/256", "running", "2.5", "failed: rank 1 died",
        "joining", "1/3", "operation 17, chunk 3 (slot 1) waits for ranks 0, 254", "operation 18, chunk 4000000000"}) {
    EXPECT_NE(table.find(words), std::string::npos) << "no '" << words << "' in:\n" << table;
  }
  EXPECT_NE(to_table({}).find("no jobs"), std::string::npos);
}

// ---- Prometheus

class Socket {
 public:
  Socket() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// The endpoint does not say which port it was given: one that was free a moment ago is asked for.
std::uint16_t free_port() {
  const Socket socket;
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.sin_port);
}

std::string scrape(std::uint16_t port) {
  const Socket socket;
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  for (ssize_t size = 0; (size = recv(socket.fd(), part, sizeof part, 0)) > 0;) {
    answer.append(part, static_cast<std::size_t>(size));
  }
  return answer;
}

std::size_t count(const std::string& text, const std::string& words) {
  std::size_t times = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++times;
  return times;
}

TEST(MetricsServer, EveryScrapeIsAFreshReport) {
  const std::uint16_t port = free_port();
  Report report = example();
  const MetricsServer server("127.0.0.1:" + std::to_string(port), [&] {
    ++report.slots_free;
    return report;
  });
  const std::string first = scrape(port);
  EXPECT_NE(first.find("200 OK"), std::string::npos);
  for (const char* line : {"netsum_slots 16384\n", "netsum_slots_free 16129\n", "netsum_jobs 3\n",
                           "netsum_packets_received_total 123456789012345\n", "netsum_dropped_malformed_checksum_total 3\n",
                           "netsum_job_chunks_total{job=\"be\\\"rt\"} 77\n", "netsum_job_slots_in_use{job=\"be\\\"rt\"} 9\n",
                           "# TYPE netsum_job_slots_in_use gauge\n", "# TYPE netsum_job_chunks_total counter\n"}) {
    EXPECT_NE(first.find(line), std::string::npos) << "no '" << line << "' in:\n" << first;
  }
  EXPECT_NE(scrape(port).find("netsum_slots_free 16130\n"), std::string::npos);
}

// A failed job is remembered for a while, and its name is free at once: one sample a name, or Prometheus drops the scrape.
TEST(MetricsServer, AFailedJobDoesNotHideItsSuccessor) {
  const std::uint16_t port = free_port();
  const MetricsServer server("127.0.0.1:" + std::to_string(port), [] { return example(); });
  EXPECT_EQ(count(scrape(port), "\nnetsum_job_chunks_total{"), 2U);
}

TEST(MetricsServer, AddressInUseIsRefused) {
  const std::string address = "127.0.0.1:" + std::to_string(free_port());
  const MetricsServer server(address, [] { return example(); });
  try {
    const MetricsServer second(address, [] { return example(); });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::refused);
    EXPECT_NE(std::string(error.what()).find(address), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace netsum::telemetry
