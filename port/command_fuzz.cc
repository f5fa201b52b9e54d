// port/command_fuzz.cc -- any bytes as a command: refused with a reason, or one whose every access lies in its regions.
//
// Input: the member's size and rank, what exists of what a command names, and whether it arrives at an endpoint; 128
// bytes of command; and what fills the region where lists and buffers lie, which may be a second command of a unit.
// Region 0 is no memory at all, as for a caller in another process, and region 1 is the input's rest: what is taken is
// then read and written as the operation would.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "port/command_check.h"

namespace {

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

bool sends(const Command& c) { return c.kind == Command::Kind::kSend || c.kind == Command::Kind::kSendOn; }

void touch_message(const Command& c, const canarynet::port::Regions& regions, const std::vector<std::uint64_t>& arena) {
  const canarynet::port::MemoryRef& buffer = sends(c) ? c.input : c.output;
  touch(regions.at(buffer), buffer.bytes, !sends(c), arena);
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
  here.endpoint = (data[2] & 4) != 0;
  here.connection = (data[2] & 8) != 0;
  here.connected = here.connection && (data[2] & 16) != 0;
  here.listener = (data[2] & 32) != 0;
  here.stats_bytes = 40;
  constexpr std::size_t kEntries = 2;
  Command unit[kEntries] = {command, command};
  if (rest >= sizeof command) std::memcpy(static_cast<void*>(&unit[1]), arena.data(), sizeof command);

  const Status status = port::check_command(command, here);
  if (!status.ok()) {
    if (status.code() != CANARY_INVALID_ARGUMENT || status.text().empty()) std::abort();
    return 0;
  }
  if (port::check_command(unit[1], here).ok() && port::check_unit(unit, regions).ok()) {
    if (unit[0].kind != Command::Kind::kReceiveOn || unit[1].kind != Command::Kind::kReceiveOn) std::abort();
    if (unit[0].connection != unit[1].connection || unit[0].ticket == unit[1].ticket) std::abort();
    if (unit[0].more_follows != 1 || unit[1].more_follows != 0) std::abort();
    const std::byte* a = regions.at(unit[0].output);
    const std::byte* b = regions.at(unit[1].output);
    const std::uint64_t bytes[] = {unit[0].output.bytes, unit[1].output.bytes};
    if (bytes[0] != 0 && bytes[1] != 0 && a < b + bytes[1] && b < a + bytes[0]) std::abort();
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
    case Command::Kind::kPartial: {
      if (!here.member || !here.ticket) std::abort();
      const std::uint64_t bytes = command.count * size_of(static_cast<DataType>(command.type));
      touch(regions.at(command.numbers), command.numbers.bytes, false, arena);
      touch(regions.at(command.input), bytes, false, arena);
      touch(regions.at(command.output), bytes, true, arena);
      std::vector<std::uint64_t> list(command.numbers.bytes / sizeof(std::uint64_t));
      std::memcpy(list.data(), regions.at(command.numbers), command.numbers.bytes);
      if (list.size() <= port::kPartialHead) std::abort();
      const auto ranks_at = list.begin() + port::kPartialHead;
      std::sort(ranks_at, list.end());
      if (std::adjacent_find(ranks_at, list.end()) != list.end()) std::abort();
      if (list.back() >= static_cast<std::uint64_t>(shape.size)) std::abort();
      if (!std::binary_search(ranks_at, list.end(), static_cast<std::uint64_t>(shape.rank))) std::abort();
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
      if (command.time_limit < 0 || command.time_limit > INT64_MAX / 2) std::abort();
      break;
    case Command::Kind::kSend:
    case Command::Kind::kReceive:
      if (!here.member || !here.ticket || command.rank < 0 || command.rank >= ranks) std::abort();
      touch_message(command, regions, arena);
      if (port::message_bytes(command) != (sends(command) ? command.input : command.output).bytes) std::abort();
      break;
    case Command::Kind::kSaveFeedback:
    case Command::Kind::kRestoreFeedback:
    case Command::Kind::kFeedbackGain:
    case Command::Kind::kTopKRoots:
      if (!here.member || !here.ticket) std::abort();
      if (command.kind == Command::Kind::kSaveFeedback) touch(regions.at(command.numbers), 8, true, arena);
      if (command.kind == Command::Kind::kSaveFeedback)
        touch(regions.at(command.output), command.output.bytes, true, arena);
      if (command.kind == Command::Kind::kRestoreFeedback)
        touch(regions.at(command.input), command.input.bytes, false, arena);
      if (command.kind == Command::Kind::kFeedbackGain)
        touch(regions.at(command.output), sizeof(port::FeedbackGain), true, arena);
      if (command.kind == Command::Kind::kTopKRoots) {
        if (command.count != static_cast<std::uint64_t>(ranks)) std::abort();
        touch(regions.at(command.output), command.count * sizeof(std::uint64_t), true, arena);
      }
      break;
    case Command::Kind::kOpenSession:
    case Command::Kind::kThresholds: {
      if (!here.member || !here.ticket) std::abort();
      touch(regions.at(command.numbers), command.numbers.bytes, false, arena);
      const std::uint64_t words = command.numbers.bytes / sizeof(std::uint64_t);
      const std::uint64_t colayers = (words - port::kSessionHead) / port::kSessionColayer;
      if (words < port::kSessionHead || colayers > port::kColayersMax) std::abort();
      if (command.kind == Command::Kind::kOpenSession && colayers == 0) std::abort();
      break;
    }
    case Command::Kind::kPush:
      if (!here.member || !here.ticket || command.rank < 0) std::abort();
      touch(regions.at(command.input), command.input.bytes, false, arena);
      break;
    case Command::Kind::kStep:
      if (!here.member || !here.ticket || command.rank < 0 || command.rank >= port::kSessionSteps) std::abort();
      touch(regions.at(command.output), command.output.bytes, true, arena);
      touch(regions.at(command.numbers), sizeof(port::SessionResult), true, arena);
      break;
    case Command::Kind::kCloseSession:
      if (!here.member || !here.ticket) std::abort();
      break;
    case Command::Kind::kPolicy:
      if (!here.member || !here.ticket || command.rank < 0 || command.rank >= port::kPolicySteps) std::abort();
      switch (static_cast<port::PolicyStep>(command.rank)) {
        case port::PolicyStep::kOpen:
          touch(regions.at(command.input), command.input.bytes, false, arena);
          touch(regions.at(command.numbers), command.numbers.bytes, false, arena);
          break;
        case port::PolicyStep::kAsk:
          touch(regions.at(command.numbers), port::kQuestionWords * 8, false, arena);
          break;
        case port::PolicyStep::kNext:
          touch(regions.at(command.output), port::policy_answer_bytes(static_cast<std::uint64_t>(ranks)), true, arena);
          break;
        case port::PolicyStep::kLeave:
        case port::PolicyStep::kClose:
          break;
      }
      break;
    case Command::Kind::kSendOn:
    case Command::Kind::kReceiveOn:
      if (!here.connected || !here.ticket) std::abort();
      touch_message(command, regions, arena);
      break;
    case Command::Kind::kConnect:
      if (!here.connection || command.numbers.bytes != port::kHandleBytes) std::abort();
      touch(regions.at(command.numbers), command.numbers.bytes, false, arena);
      break;
    case Command::Kind::kAbortConnection:
      if (!here.connection) std::abort();
      touch(regions.at(command.numbers), command.numbers.bytes, false, arena);
      break;
    case Command::Kind::kCloseConnection:
      if (!here.connection) std::abort();
      break;
    case Command::Kind::kListen:
    case Command::Kind::kCloseListener:
      if (!here.listener) std::abort();
      break;
    case Command::Kind::kStats:
      if (!here.ticket) std::abort();
      touch(regions.at(command.output), here.stats_bytes, true, arena);
      break;
    default:
      std::abort();
  }
  return 0;
}
