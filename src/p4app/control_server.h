// The control service on a TCP port: one thread that accepts connections, and has the controller answer their calls.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/endpoint.h"
#include "p4app/controller.h"

namespace netsum::p4app {

class ControlServer {
 public:
  // `controller` and `look`, which is called about once a second, are used on its thread alone. Throws Error: refused.
  ControlServer(const Endpoint& listen, std::unique_ptr<Controller> controller, std::function<void()> look);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  [[nodiscard]] std::string address() const;  // HOST:PORT, with the real port

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::p4app
