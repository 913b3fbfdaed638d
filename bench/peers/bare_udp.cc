// The least that an all-reduce through an aggregator takes with blocking sockets on this machine: a process for each rank
// and one that adds, a datagram up and one down, and nothing else: no identity, no checksum, no recovery of what is lost.
// Prints what collectives_mpi prints, of calls back to back: the mean of the ranks' times.
//
//   bare_udp WORKERS ITERATIONS WARMUP ELEMENTS
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t most_workers = 64, most_elements = 16000;
constexpr timeval patience{5, 0};  // for a datagram: one that is lost ends the run

struct Plan {
  std::size_t workers = 0, iterations = 0, warmup = 0, elements = 0;
  [[nodiscard]] std::size_t calls() const { return warmup + iterations; }
};

class Socket {
 public:
  Socket() : number_(::socket(AF_INET, SOCK_DGRAM, 0)) {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (number_ < 0 || ::setsockopt(number_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        ::bind(number_, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0) {
      throw std::runtime_error("no UDP socket on the loopback device");
    }
  }
  ~Socket() { ::close(number_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  [[nodiscard]] sockaddr_in address() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(number_, reinterpret_cast<sockaddr*>(&address), &size);
    return address;
  }
  void send(std::span<const float> values, const sockaddr_in& to) const {
    const std::size_t bytes = values.size_bytes();
    if (::sendto(number_, values.data(), bytes, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) !=
        static_cast<ssize_t>(bytes)) {
      throw std::runtime_error("a datagram cannot be sent");
    }
  }
  sockaddr_in receive(std::span<float> values) const {
    sockaddr_in from{};
    socklen_t size = sizeof from;
    if (::recvfrom(number_, values.data(), values.size_bytes(), 0, reinterpret_cast<sockaddr*>(&from), &size) !=
        static_cast<ssize_t>(values.size_bytes())) {
      throw std::runtime_error("a datagram did not come");
    }
    return from;
  }

 private:
  int number_;
};

void aggregate(const Socket& socket, const Plan& plan) {
  std::vector<float> sum(plan.elements), values(plan.elements);
  std::array<sockaddr_in, most_workers> ranks{};
  for (std::size_t call = 0; call < plan.calls(); ++call) {
    for (std::size_t i = 0; i < plan.workers; ++i) {
      ranks[i] = socket.receive(values);
      for (std::size_t j = 0; j < plan.elements; ++j) sum[j] = values[j] + (i == 0 ? 0.0F : sum[j]);
    }
    for (std::size_t i = 0; i < plan.workers; ++i) socket.send(sum, ranks[i]);
  }
}

// What all ranks write to, each its part: times in seconds of its timed calls, and how many elements were wrong.
struct Report {
  std::span<double> seconds;
  double& wrong;
};

void all_reduce(std::size_t rank, const sockaddr_in& aggregator, const Plan& plan, const Report& report) {
  using Clock = std::chrono::steady_clock;
  const Socket socket;
  std::vector<float> values(plan.elements);
  const std::size_t ranks = plan.workers * (plan.workers - 1) / 2;
  for (std::size_t call = 0; call < plan.calls(); ++call) {
    for (std::size_t j = 0; j < plan.elements; ++j) values[j] = static_cast<float>(j % 1000 + rank);
    const auto begin = Clock::now();
    socket.send(values, aggregator);
    socket.receive(values);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    for (std::size_t j = 0; j < plan.elements; ++j) {
      if (values[j] != static_cast<float>(j % 1000 * plan.workers + ranks)) ++report.wrong;
    }
    if (call >= plan.warmup) report.seconds[call - plan.warmup] = seconds;
  }
}

template <class Body>
void start(const Body& body) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("no process can be made");
  if (child != 0) return;
  try {
    body();
    std::_Exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bare_udp: %s\n", error.what());
    std::_Exit(1);
  }
}

int run(const Plan& plan) {
  const std::size_t numbers = plan.workers * (plan.iterations + 1);
  void* const memory = ::mmap(nullptr, numbers * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for the times");
  const std::span<double> shared(static_cast<double*>(memory), numbers);
  const auto of_rank = [&](std::size_t rank) {
    return Report{shared.subspan(rank * plan.iterations, plan.iterations), shared[plan.workers * plan.iterations + rank]};
  };
  const Socket socket;
  start([&] { aggregate(socket, plan); });
  for (std::size_t rank = 0; rank < plan.workers; ++rank) {
    start([&] { all_reduce(rank, socket.address(), plan, of_rank(rank)); });
  }
  bool succeeded = true;
  for (std::size_t i = 0; i <= plan.workers; ++i) {
    int status = 0;
    succeeded &= ::wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  if (!succeeded) return 1;
  double wrong = 0;
  for (std::size_t rank = 0; rank < plan.workers; ++rank) wrong += of_rank(rank).wrong;
  std::printf(R"({"elements": %zu, "wrong": %.0f, "bytes_per_worker": %zu, "tat_seconds": [)", plan.elements, wrong,
              plan.elements * sizeof(float));
  for (std::size_t i = 0; i < plan.iterations; ++i) {
    double sum = 0;
    for (std::size_t rank = 0; rank < plan.workers; ++rank) sum += of_rank(rank).seconds[i];
    std::printf("%s%.9f", i == 0 ? "" : ", ", sum / static_cast<double>(plan.workers));
  }
  std::printf("]}\n");
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  Plan plan;
  const std::array<std::size_t*, 4> places = {&plan.workers, &plan.iterations, &plan.warmup, &plan.elements};
  bool known = count == 5;
  for (std::size_t i = 0; known && i < places.size(); ++i) {
    const std::string_view word = words[i + 1];
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *places[i]);
    known = error == std::errc{} && end == word.data() + word.size();
  }
  if (!known || plan.workers == 0 || plan.workers > most_workers || plan.iterations == 0 || plan.elements == 0 ||
      plan.elements > most_elements) {
    std::fprintf(stderr, "usage: bare_udp WORKERS ITERATIONS WARMUP ELEMENTS (at most %zu workers and %zu elements)\n",
                 most_workers, most_elements);
    return 2;
  }
  try {
    return run(plan);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bare_udp: %s\n", error.what());
    return 1;
  }
}
