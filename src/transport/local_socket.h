// Messages with descriptors between processes of one host: sockets in Linux' abstract namespace, which are reached from the
// same network namespace alone, and leave no file behind.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "transport/socket.h"

namespace netsum::transport {

// Throws Error: internal.
[[nodiscard]] std::shared_ptr<Descriptor> listen_local(const std::string& name);
[[nodiscard]] std::shared_ptr<Descriptor> accept_local(const Descriptor& listener);  // null: nobody is there
// Null: nobody of that name is here.
[[nodiscard]] std::shared_ptr<Descriptor> connect_local(const std::string& name);

enum class LocalOutcome { done, later, closed };

// One message, whole; with a descriptor if that is not null. Neither waits.
[[nodiscard]] LocalOutcome send_local(const Descriptor& socket, std::span<const std::byte> message,
                                      const Descriptor* attached = nullptr);
// Into `message`, which it must fill exactly: another length counts as closed.
[[nodiscard]] LocalOutcome receive_local(const Descriptor& socket, std::span<std::byte> message,
                                         std::shared_ptr<Descriptor>& attached);

}  // namespace netsum::transport
