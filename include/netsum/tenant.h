// A tenant of a daemon: its token identifies it, and jobs belong to it. No tenant sees or touches another tenant's jobs.
#pragma once

#include <cstdint>
#include <string>

namespace netsum {

struct Tenant {
  std::string name{};          // 1 to 64 characters; not secret
  std::string token{};         // the secret that its ranks know; at least 16 characters
  std::string second_token{};  // known as well, while one takes the other's place; empty: none
  // Limits for all of its jobs together at this daemon.
  std::uint64_t memory_bytes = UINT64_MAX;
  std::uint32_t jobs = UINT32_MAX;   // joining and running
  std::uint32_t joins = UINT32_MAX;  // ranks that wait for the rest of their job
  bool sees_all = false;             // status shows it all tenants' jobs; it may still touch only its own
};

}  // namespace netsum
