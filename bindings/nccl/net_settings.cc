#include "bindings/nccl/net_settings.h"

#include <cstdint>
#include <string>

#include "bindings/settings/reader.h"

namespace netsum::nccl {
namespace {

constexpr std::uint32_t most_threads = 16;
constexpr std::size_t least_stripe = 1024, most_stripe = std::size_t{1} << 30;

}  // namespace

TcpSettings read_tcp_settings(const settings::Settings& settings) {
  TcpSettings tcp{.connecting = settings.options.connect_deadline, .operation = settings.options.operation_deadline};
  const settings::Reader reader;
  reader.number("NETSUM_NCCL_THREADS", tcp.threads, 0u, most_threads);
  reader.number("NETSUM_NCCL_SOCKETS_PER_THREAD", tcp.sockets_per_thread, 1u, most_stripe_sockets);
  reader.number("NETSUM_NCCL_STRIPE_BYTES", tcp.stripe_bytes, least_stripe, most_stripe);
  if (tcp.stripe_sockets() > most_stripe_sockets) {
    throw settings::Reader::bad("NETSUM_NCCL_THREADS times NETSUM_NCCL_SOCKETS_PER_THREAD: must be at most " +
                                std::to_string(most_stripe_sockets));
  }
  return tcp;
}

}  // namespace netsum::nccl
