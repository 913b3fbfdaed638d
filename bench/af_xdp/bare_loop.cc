// Returns every frame that an interface receives, by AF_XDP, with its addresses exchanged: what any program there must do at
// least. Frames leave from the memory that they came in. Prints "ready", and runs until it is killed.
//
//   bare_loop INTERFACE
#include <net/ethernet.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <xdp/xsk.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

namespace {

constexpr std::uint32_t frames = 4096, frame_bytes = 2048, batch = 64;

void must(int result, const char* what) {
  if (result != 0) throw std::runtime_error(std::string(what) + " failed: " + std::to_string(result));
}

struct Loop {
  xsk_ring_prod fill{}, transmit{};
  xsk_ring_cons received{}, completed{};
  xsk_socket* socket = nullptr;
  std::byte* memory = nullptr;

  void open(const char* interface) {
    void* const mapped = ::mmap(nullptr, std::size_t{frames} * frame_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (mapped == MAP_FAILED) throw std::runtime_error("no memory");
    memory = static_cast<std::byte*>(mapped);
    xsk_umem* shared = nullptr;
    const xsk_umem_config memory_config{frames, frames, frame_bytes, 0, 0};
    must(xsk_umem__create(&shared, memory, std::uint64_t{frames} * frame_bytes, &fill, &completed, &memory_config),
         "sharing memory");
    xsk_socket_config config{};
    config.rx_size = config.tx_size = frames;
    config.bind_flags = XDP_USE_NEED_WAKEUP;
    must(xsk_socket__create(&socket, interface, 0, shared, &received, &transmit, &config), "opening an AF_XDP socket");
    std::uint32_t at = 0;
    xsk_ring_prod__reserve(&fill, frames, &at);
    for (std::uint32_t i = 0; i < frames; ++i) *xsk_ring_prod__fill_addr(&fill, at + i) = std::uint64_t{i} * frame_bytes;
    xsk_ring_prod__submit(&fill, frames);
  }

  // Frames that have left are received into again.
  void reuse() {
    std::uint32_t from = 0, to = 0;
    const std::uint32_t count = xsk_ring_cons__peek(&completed, frames, &from);
    if (count == 0) return;
    xsk_ring_prod__reserve(&fill, count, &to);
    for (std::uint32_t i = 0; i < count; ++i) {
      *xsk_ring_prod__fill_addr(&fill, to + i) = *xsk_ring_cons__comp_addr(&completed, from + i);
    }
    xsk_ring_cons__release(&completed, count);
    xsk_ring_prod__submit(&fill, count);
  }

  void return_some() {
    reuse();
    std::uint32_t from = 0, to = 0;
    const std::uint32_t count = xsk_ring_cons__peek(&received, batch, &from);
    if (count == 0) {
      pollfd readable{xsk_socket__fd(socket), POLLIN, 0};
      ::poll(&readable, 1, 1000);
      return;
    }
    xsk_ring_prod__reserve(&transmit, count, &to);
    for (std::uint32_t i = 0; i < count; ++i) {
      const xdp_desc frame = *xsk_ring_cons__rx_desc(&received, from + i);
      std::byte* const addresses = memory + frame.addr;
      std::swap_ranges(addresses, addresses + ETH_ALEN, addresses + ETH_ALEN);
      *xsk_ring_prod__tx_desc(&transmit, to + i) = frame;
    }
    xsk_ring_cons__release(&received, count);
    xsk_ring_prod__submit(&transmit, count);
    while (::sendto(xsk_socket__fd(socket), nullptr, 0, MSG_DONTWAIT, nullptr, 0) < 0 && errno == EAGAIN) {
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: bare_loop INTERFACE");
    Loop loop;
    loop.open(argv[1]);
    std::puts("ready");
    std::fflush(stdout);
    for (;;) loop.return_some();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bare_loop: %s\n", error.what());
    return 1;
  }
}
