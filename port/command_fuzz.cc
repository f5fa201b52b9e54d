// port/command_fuzz.cc -- any bytes as a command: refused with a reason, or one whose every access lies in its regions.
//
// Input: the member's size and rank, whether it and the ticket exist, 128 bytes of command, and what fills the region
// where lists and buffers lie. Region 0 is no memory at all, as for a caller in another process, and region 1 is the
// input's rest: what is taken is then read and written as the operation would.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "port/command_check.h"

namespace {

using canarynet::Collective;
using canarynet::port::Command;

void touch(const void* begin, std::uint64_t bytes, bool writes, const std::vector<std::uint64_t>& arena) {
  if (bytes == 0) return;
  const auto* first = reinterpret_cast<const std::byte*>(arena.data());
  const auto* at = static_cast<const std::byte*>(begin);
  if (at < first || bytes > arena.size() * 8 || at + bytes > first + arena.size() * 8) std::abort();
  if (writes) {
    std::memset(const_cast<std::byte*>(at), 0x5a, bytes);
  } else {
    volatile std::byte last = at[bytes - 1];
    (void)last;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace canarynet;
  constexpr std::size_t kHead = 3;
  if (size < kHead + sizeof(Command)) return 0;
  const int ranks = 1 + data[0] % 8;
  const port::MemberShape shape{data[1] % ranks, ranks};
  Command command;
  std::memcpy(&command, data + kHead, sizeof command);
  const std::size_t rest = size - kHead - sizeof command;
  std::vector<std::uint64_t> arena(rest / 8 + 1);
  std::memcpy(arena.data(), data + kHead + sizeof command, rest);
  const port::Regions regions({{0, 0}, {reinterpret_cast<std::uintptr_t>(arena.data()), arena.size() * 8}});
  port::Surroundings here{regions, ranks, {}, (data[2] & 1) != 0};
  if ((data[2] & 2) != 0) here.member = shape;

  const Status status = port::check_command(command, here);
  if (!status.ok()) {
    if (status.code() != CANARY_INVALID_ARGUMENT || status.text().empty()) std::abort();
    return 0;
  }
  switch (command.kind) {
    case Command::Kind::kOperation: {
      if (!here.member || !here.ticket) std::abort();
      const OpRequest request = port::request_of(command, regions);
      const port::Lengths lengths = port::lengths_of(command, shape, request.counts);
      touch(request.counts.data(), request.counts.size_bytes(), false, arena);
      touch(request.input, lengths.input, false, arena);
      touch(request.output, lengths.output, true, arena);
      break;
    }
    case Command::Kind::kGroup: {
      if (!here.ticket) std::abort();
      std::vector<std::int32_t> list(command.numbers.bytes / sizeof(std::int32_t));
      touch(regions.at(command.numbers), command.numbers.bytes, false, arena);
      std::memcpy(list.data(), regions.at(command.numbers), command.numbers.bytes);
      std::sort(list.begin(), list.end());
      if (std::adjacent_find(list.begin(), list.end()) != list.end()) std::abort();
      if (list.empty() || list.front() < 0 || list.back() >= ranks) std::abort();
      if (!std::binary_search(list.begin(), list.end(), command.rank)) std::abort();
      break;
    }
    case Command::Kind::kAbort:
      if (!here.member) std::abort();
      touch(regions.at(command.numbers), command.numbers.bytes, false, arena);
      break;
    case Command::Kind::kDeadline:
      if (command.time_limit < 0) std::abort();
      break;
    default:
      std::abort();
  }
  return 0;
}
