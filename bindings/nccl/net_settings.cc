#include "bindings/nccl/net_settings.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "bindings/settings/reader.h"
#include "runtime/cpus.h"

namespace netsum::nccl {
namespace {

constexpr std::uint32_t most_threads = 16;
// Where NCCL's threads, which never sleep, leave no CPU to others, stripes are slower than one socket.
constexpr std::size_t cpus_for_threads = 8;
constexpr std::uint32_t threads_if_there_are_cpus = 2;
constexpr std::size_t least_stripe = 1024, most_stripe = std::size_t{1} << 30;

}  // namespace

std::string chosen_net() {
  const std::string name = settings::from_environment("NETSUM_NCCL_NET");
  // NCCL_NET, whose values these are too, is compared without regard to case.
  if (name == "socket" || name == "Socket") return {};
  if (name == "ib" || name == "IB") {
    throw Error(ErrorCode::bad_argument,
                "NETSUM_NCCL_NET=" + name +
                    ": a plugin cannot call the InfiniBand network that is built into NCCL; name a library that has one, "
                    "such as NETSUM_NCCL_NET=/path/to/libnccl-net.so of NVIDIA's nccl-rdma-sharp-plugins");
  }
  return name;
}

TcpSettings read_tcp_settings(const settings::Settings& settings) {
  TcpSettings tcp{.connecting = settings.options.connect_deadline, .operation = settings.options.operation_deadline};
  if (runtime::allowed_cpus().size() >= cpus_for_threads) tcp.threads = threads_if_there_are_cpus;
  const settings::Reader reader;
  reader.number("NETSUM_NCCL_THREADS", tcp.threads, 0u, most_threads);
  reader.number("NETSUM_NCCL_SOCKETS_PER_THREAD", tcp.sockets_per_thread, 1u, most_stripe_sockets);
  reader.number("NETSUM_NCCL_STRIPE_BYTES", tcp.stripe_bytes, least_stripe, most_stripe);
  if (tcp.stripe_sockets() > most_stripe_sockets) {
    throw settings::Reader::bad("NETSUM_NCCL_THREADS times NETSUM_NCCL_SOCKETS_PER_THREAD must be at most " +
                                std::to_string(most_stripe_sockets));
  }
  return tcp;
}

}  // namespace netsum::nccl
