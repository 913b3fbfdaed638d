// What an aggregator tells about itself, as JSON, as a table and as Prometheus' text.
#include "telemetry/report.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

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
  report.threads = 1;
  report.lanes = 2;
  report.slots = 16384;
  report.slots_free = 16128;
  report.memory_bytes = 1 << 30;
  report.memory_used = 3 << 20;
  report.counters = {{"packets_received", 123456789012345}, {"dropped_malformed_checksum", 3}};
  JobReport running;
  running.job = {"be\"rt", 0xffffffffffffffff, 256, 1024, 32, RankSet::first(256), set_of({0, 255}), true, "", 0, "", 0};
  running.counters = {{"packets", 1000}, {"bytes", 2'500'000}, {"chunks", 77}, {"repeats_waiting", 5}, {"slots_in_use", 9}};
  running.stalled = {{17, 3, 1, {0, 254}}, {18, 4'000'000'000, 2, {}}};
  JobReport failed;
  failed.job = {"be\"rt", 7, 2, 256, 16, set_of({0, 1}), {}, false, "rank 1 died", 0, "", 0};
  failed.counters = {{"packets", 0}, {"bytes", 0}, {"chunks", 0}, {"repeats_waiting", 0}, {"slots_in_use", 0}};
  JobReport joining;
  joining.job = {"next", 0, 3, 256, 0, set_of({2}), {}, false, "", 0, "", 0};
  joining.counters = failed.counters;
  report.jobs = {running, failed, joining};
  report.interfaces = {{"eth0", true, "XDP in the driver"}, {"eth1", false, "it was removed"}};
  return report;
}

TEST(Report, ReadsBackFromJson) {
  const Report report = example(), read = from_json(to_json(report));
  EXPECT_EQ(to_json(read), to_json(report));
  EXPECT_EQ(read.version, report.version);
  EXPECT_EQ(read.uptime_seconds, report.uptime_seconds);
  EXPECT_EQ(read.slots_free, report.slots_free);
  EXPECT_EQ(read.memory_bytes, report.memory_bytes);
  EXPECT_EQ(read.memory_used, report.memory_used);
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

// Whoever answers at that address may say anything: nothing that overruns, and nothing that a terminal takes for a command.
TEST(Report, WhatNoAggregatorSaysIsAnError) {
  const std::string whole = to_json(example());
  const std::pair<const char*, const char*> changes[] = {
      {"\"world_size\": 256", "\"world_size\": 4294967295"},
      {"\"world_size\": 256", "\"world_size\": 4097"},
      {"\"world_size\": 256", "\"world_size\": -1"},
      {"\"slots\": 16384", "\"slots\": 1e300"},
      {"\"slots\": 16384", "\"slots\": 4294967296"},
      {"\"version\": \"1.2.3", "\"version\": \"\\u001b[2J"},
      {"rank 1 died", "rank 1\\ndied"},
      {"\"job\": \"next", "\"job\": \"\\u0000"},
      {"\"joined\": [\n        2", "\"joined\": [\n        4096"},
      {"\"packets\": 1000", "\"packets\": -1000"},
  };
  for (const auto& [from, to] : changes) {
    std::string other = whole;
    const auto at = other.find(from);
    ASSERT_NE(std::string::npos, at) << from;
    other.replace(at, std::strlen(from), to);
    EXPECT_THROW(static_cast<void>(from_json(other)), Error) << to;
  }
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
    EXPECT_NE(std::string(error.what()).find("invalid report from"), std::string::npos) << error.what();
  }
}

TEST(Report, SaysWhereRanksAre) {
  const auto at = [](std::uint8_t host, std::uint16_t port) {
    return Endpoint{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host}, port, 0};
  };
  JobReport job;
  job.job.joined = set_of({0, 1, 3});
  job.job.endpoints = {at(1, 1000), at(2, 1000), at(1, 1001)};
  job.job.placement.switches = {"leaf:1", "spine:2"};
  job.job.placement.parent_of_switch = {1, session::Placement::at_server};
  job.job.placement.switch_of_rank = {0, session::Placement::at_server, 1, 0};
  locate(job);
  job.events = {{1.5, "joined", 3, ""}, {0.5, "stalled", {}, "operation 1"}};
  job.stalled_unit = "message";
  Report report;
  report.jobs = {job};
  const JobReport read = from_json(to_json(report, true)).jobs[0];
  ASSERT_EQ(read.hosts.size(), 2U);
  EXPECT_EQ(read.hosts[0].address, "10.0.0.1");
  EXPECT_EQ(read.hosts[0].ranks, (std::vector<std::uint32_t>{0, 3}));
  ASSERT_EQ(read.switches.size(), 2U);
  EXPECT_EQ(read.switches[0].parent, "spine:2");
  EXPECT_EQ(read.switches[0].ranks, (std::vector<std::uint32_t>{0, 3}));
  EXPECT_EQ(read.switches[1].parent, "");
  ASSERT_EQ(read.events.size(), 2U);
  EXPECT_EQ(read.events[0].rank, 3U);
  EXPECT_EQ(read.events[1].what, "operation 1");
  EXPECT_EQ(in_words(read, {7, 1, 0, {2, 3}}), "message 7, packet 1 waits for ranks 2, 3");
}

TEST(Report, TableSaysWhoIsMissing) {
  const std::string table = to_table(example());
  for (const char* words :
       {"netsum 1.2.3", "1 thread, 2 lanes, 16128 of 16384 slots free, jobs have 3.0 MiB of 1.0 GiB of memory", "256/256",
        "running", "2.5", "failed: rank 1 died", "joining", "1/3", "operation 17, chunk 3 (slot 1) waits for ranks 0, 254",
        "operation 18, chunk 4000000000", "interface eth0: XDP in the driver",
        "no packets pass at interface eth1: it was removed"}) {
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

std::uint16_t port_of(const MetricsServer& server) {
  return static_cast<std::uint16_t>(std::stoul(server.address().substr(server.address().rfind(':') + 1)));
}

std::string answer_to(std::uint16_t port, const std::string& request) {
  const Socket socket;
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  std::string answer;
  char part[4096];
  for (ssize_t size = 0; (size = recv(socket.fd(), part, sizeof part, 0)) > 0;) {
    answer.append(part, static_cast<std::size_t>(size));
  }
  return answer;
}

std::string scrape(std::uint16_t port) {
  return answer_to(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
}

std::size_t count(const std::string& text, const std::string& words) {
  std::size_t times = 0;
  for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) ++times;
  return times;
}

TEST(MetricsServer, ServesReportsThatAreFresh) {
  Report report = example();
  const MetricsServer server("127.0.0.1:0", [&] {
    ++report.slots_free;
    return report;
  });
  const std::uint16_t port = port_of(server);
  const std::string first = scrape(port);
  EXPECT_NE(first.find("200 OK"), std::string::npos);
  for (const char* line :
       {"netsum_slots 16384\n", "netsum_slots_free 16129\n", "netsum_jobs 3\n",
        "netsum_packets_received_total 123456789012345\n", "netsum_dropped_malformed_checksum_total 3\n",
        "netsum_interface_attached{interface=\"eth0\"} 1\n", "netsum_interface_attached{interface=\"eth1\"} 0\n",
        "netsum_job_chunks_total{job=\"be\\\"rt\"} 77\n", "netsum_job_slots_in_use{job=\"be\\\"rt\"} 9\n",
        "# TYPE netsum_job_slots_in_use gauge\n", "# TYPE netsum_job_chunks_total counter\n"}) {
    EXPECT_NE(first.find(line), std::string::npos) << "no '" << line << "' in:\n" << first;
  }
  // As often as anybody likes to ask, a report is made ten times a second: it holds up the lanes.
  const auto began = std::chrono::steady_clock::now();
  while (scrape(port).find("netsum_slots_free 16131\n") == std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(100));
}

// Jobs of different protocols count different things, and each of these has its own name.
TEST(MetricsServer, CountersKeepTheirNamesBesideOtherProtocols) {
  Report report;
  JobReport switchml, atp, other;
  switchml.job.job = "s";
  switchml.counters = {{"packets", 1}, {"dropped_rank", 0}, {"slots_in_use", 4}};
  atp.job.job = "a";
  atp.counters = {{"packets", 10}, {"parameters", 20}, {"asks", 30}, {"slots_in_use", 40}};
  other = atp;  // at another parameter server, under the same name
  JobReport tenants = switchml;
  tenants.job.tenant = "t";
  report.jobs = {switchml, atp, other, tenants};
  const MetricsServer server("127.0.0.1:0", [&] { return report; });
  const std::string text = scrape(port_of(server));
  for (const char* line : {"netsum_job_packets_total{job=\"s\"} 1\n", "netsum_job_packets_total{job=\"a\"} 20\n",
                           "netsum_job_dropped_rank_total{job=\"s\"} 0\n", "netsum_job_parameters_total{job=\"a\"} 40\n",
                           "netsum_job_asks_total{job=\"a\"} 60\n", "netsum_job_packets_total{job=\"s\",tenant=\"t\"} 1\n",
                           "netsum_job_slots_in_use{job=\"a\"} 80\n"}) {
    EXPECT_EQ(count(text, line), 1U) << "'" << line << "' in:\n" << text;
  }
  EXPECT_EQ(text.find("netsum_job_dropped_rank_total{job=\"a\"}"), std::string::npos) << text;
}

TEST(Counters, AreAddedByName) {
  Counters sum = {{"packets", 1}, {"dropped_rank", 2}};
  sum.add({{"parameters", 3}, {"dropped_rank", 4}, {"packets", 5}, {"asks", 6}});
  EXPECT_EQ(sum, (Counters{{"packets", 6}, {"dropped_rank", 6}, {"parameters", 3}, {"asks", 6}}));
  EXPECT_EQ(sum.value("asks"), 6U);
  EXPECT_EQ(sum.value("chunks"), 0U);
}

// A failed job is remembered for a while, and its name is free at once: one sample a name, or Prometheus drops the scrape.
TEST(MetricsServer, AFailedJobDoesNotHideItsSuccessor) {
  const MetricsServer server("127.0.0.1:0", [] { return example(); });
  EXPECT_EQ(count(scrape(port_of(server)), "\nnetsum_job_chunks_total{"), 2U);
}

TEST(MetricsServer, AddressInUseIsRefused) {
  const MetricsServer server("127.0.0.1:0", [] { return example(); });
  try {
    const MetricsServer second(server.address(), [] { return example(); });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::refused);
    EXPECT_NE(std::string(error.what()).find(server.address()), std::string::npos) << error.what();
  }
}

TEST(MetricsServer, APortAloneIsOfTheDaemonsOwnAddress) {
  EXPECT_EQ(metrics_address("9170", "127.0.0.1:7170"), "127.0.0.1:9170");
  EXPECT_EQ(metrics_address("9170", "[::1]:0"), "[::1]:9170");
  EXPECT_EQ(metrics_address("9170", ""), "127.0.0.1:9170");
  EXPECT_EQ(metrics_address("0.0.0.0:9170", "127.0.0.1:7170"), "0.0.0.0:9170");
}

// Whatever strangers do at the port, a scrape is answered: idle connections, half a request, requests without an end,
// answers that are not read, and more connections than there may be.
TEST(MetricsServer, NoClientDelaysAnother) {
  Report report = example();
  const std::string filler(500, 'f');
  for (int i = 0; i < 3000; ++i) report.counters.add(filler + std::to_string(i), 1);  // more than a socket holds
  const MetricsServer server("127.0.0.1:0", [&] { return report; });
  const std::uint16_t port = port_of(server);
  const sockaddr_in address = loopback(port);
  std::vector<std::unique_ptr<Socket>> strangers;
  const std::string half = "GET /metrics HTTP/1.1\r\n", whole = half + "\r\n", endless(1 << 16, 'x');
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(std::make_unique<Socket>());
    const int fd = strangers.back()->fd();
    ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    const std::string& words = i % 4 == 0 ? "" : i % 4 == 1 ? half : i % 4 == 2 ? whole : endless;
    static_cast<void>(send(fd, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    if (i % 20 != 19) continue;
    const auto began = std::chrono::steady_clock::now();
    EXPECT_NE(scrape(port).find("f2999_total 1\n"), std::string::npos);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5)) << "beside " << i + 1;
  }
}

// From more addresses than there may be connections, all behind the scrape's own.
TEST(MetricsServer, ManyAddressesKeepNobodyOut) {
  const MetricsServer server("127.0.0.1:0", [] { return example(); });
  const std::uint16_t port = port_of(server);
  const sockaddr_in to = loopback(port);
  std::vector<std::unique_ptr<Socket>> strangers;
  for (std::uint32_t i = 0; i < 70; ++i) {
    strangers.push_back(std::make_unique<Socket>());
    sockaddr_in from = loopback(0);
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 256 + i);
    ASSERT_EQ(bind(strangers.back()->fd(), reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
    ASSERT_EQ(connect(strangers.back()->fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  }
  EXPECT_TRUE(scrape(port).starts_with("HTTP/1.1 200 OK"));
}

TEST(MetricsServer, OtherRequestsAreToldWhatIsWrong) {
  const MetricsServer server("127.0.0.1:0", []() -> Report { throw Error(ErrorCode::internal, "no report"); });
  const std::uint16_t port = port_of(server);
  const std::pair<const char*, const char*> cases[] = {
      {"GET /other HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "},    {"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "},
      {"HEAD /metrics HTTP/1.0\r\n\r\n", "HTTP/1.1 200 "}, {"\r\n\r\n", "HTTP/1.1 400 "},
      {"GET /metrics\r\n\r\n", "HTTP/1.1 400 "},           {"GET /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 500 "},
      {"GET /metrics?a=b HTTP/1.1\r\n\r\n", "no report"},
  };
  for (const auto& [request, answer] : cases) EXPECT_NE(answer_to(port, request).find(answer), std::string::npos) << request;
  EXPECT_NE(answer_to(port, std::string(8192, 'a')).find("HTTP/1.1 431 "), std::string::npos);
}

// One tenant sees nothing of another's jobs, and a stranger sees none.
TEST(MetricsServer, ThePageShowsEachTenantItsOwnJobs) {
  Report report = example();
  report.jobs[0].job.job = "mine";
  report.jobs[0].job.tenant = "a";
  report.jobs[1].job.job = "theirs";
  report.jobs[1].job.tenant = "b";
  report.jobs.pop_back();
  PageAdmittance admittance;
  admittance.viewer = [](std::string_view proof) -> PageAdmittance::Viewer {
    return {proof == "operator" ? "c" : proof == "a" ? "a" : "", proof == "operator"};
  };
  admittance.challenge = [] { return std::string("4711"); };
  const MetricsServer server(
      "127.0.0.1:0", [&] { return report; }, admittance);
  const auto status = [&](const std::string& header) {
    return answer_to(port_of(server), "GET /status.json HTTP/1.1\r\nHost: x\r\n" + header + "\r\n");
  };
  const std::tuple<const char*, bool, bool, const char*> cases[] = {
      {"", false, false, "\"hidden_jobs\":2"},
      {"Netsum-Proof: a\r\n", true, false, "\"viewer\":\"a\",\"hidden_jobs\":1"},
      {"netsum-proof:\r\n", false, false, "\"viewer\":\"\""},
      {"X: 1\r\nnetsum-proof:operator \r\nY: 2\r\n", true, true, "\"viewer\":\"c\",\"hidden_jobs\":0"},
      {"netsum-proof: all\r\n", false, false, "\"hidden_jobs\":2"},
      {"xnetsum-proof: a\r\n", false, false, "\"challenge\":\"4711\""},
  };
  for (const auto& [header, mine, theirs, words] : cases) {
    const std::string answer = status(header);
    EXPECT_EQ(answer.find("\"mine\"") != std::string::npos, mine) << header;
    EXPECT_EQ(answer.find("\"theirs\"") != std::string::npos, theirs) << header;
    EXPECT_NE(answer.find(words), std::string::npos) << answer;
  }
}

TEST(MetricsServer, ThePageMayAskNobodyElse) {
  const MetricsServer server("127.0.0.1:0", [] { return example(); });
  const std::string answer = answer_to(port_of(server), "GET /?interval=100 HTTP/1.1\r\n\r\n");
  EXPECT_NE(answer.find("Content-Type: text/html; charset=utf-8\r\n"), std::string::npos);
  EXPECT_NE(answer.find("default-src 'none'; "), std::string::npos);
  EXPECT_NE(answer.find("</html>"), std::string::npos);
  for (const char* const other : {"http:", "https:", "//cdn", "innerHTML", "insertAdjacentHTML", "document.write"}) {
    std::string page = answer;
    for (const std::string known : {"http://www.w3.org/2000/svg"}) page.replace(page.find(known), known.size(), "");
    EXPECT_EQ(page.find(other), std::string::npos) << other;
  }
  const std::string status = answer_to(port_of(server), "GET /status.json HTTP/1.1\r\n\r\n");
  EXPECT_NE(status.find("\"tenants\":false"), std::string::npos);
  EXPECT_EQ(status.find("challenge"), std::string::npos);
}

}  // namespace
}  // namespace netsum::telemetry
