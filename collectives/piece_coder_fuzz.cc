// collectives/piece_coder_fuzz.cc -- foreign bytes as encoded pieces of an all-reduce: a peer's partial sum, a piece
// that is complete. Whatever comes, it is applied or refused with a reason, and what is applied is handed on as it
// came.
//
// Input: | codec: u8 | rank: u8 | then for each piece that arrives: length: u16, bytes |. Rank's bit 7: this rank has
// zeros, and sends null pieces.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "collectives/executor.h"
#include "collectives/selector.h"

namespace {

using namespace canarynet;

constexpr const char* kSpecs[] = {"fp16",       "bf16",   "int8",    "sketch:8", "sketch:3,mean", "topk:0.1",
                                  "mstopk:0.3", "onebit", "signsgd", "terngrad", "randomk:0.5",   "int8,or-dense"};
constexpr std::uint64_t kCount = 3000;

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const CodecSpec codec = parse_codec(kSpecs[data[0] % std::size(kSpecs)]).value();
  constexpr int kRanks = 3;
  const int rank = data[1] % kRanks;
  const auto reach = Reachability::full(kRanks, 1);
  const PlanRequest request{.ranks = kRanks, .count = kCount, .reach = &reach};
  const PlannerId planner = data[1] % 2 == 0 ? PlannerId::kMesh : PlannerId::kRing;
  const Program program = compile(planner, request, rank, 2048, codec);
  Executor executor(program);
  const bool null_pieces = (data[1] & 0x80) != 0;
  std::vector<float> values(kCount, null_pieces ? 0 : 0.5F), residual(kCount), left_out(kCount);
  const CodedCall call{static_cast<std::uint32_t>(rank), 1, residual, left_out};
  executor.bind(values.data(), values.data(), CANARY_F32, CANARY_SUM, &call, null_pieces);
  data += 2;
  size -= 2;
  for (std::size_t next = 0; size >= 2 && next < program.receives.size();) {
    const std::size_t told = data[0] | static_cast<std::size_t>(data[1]) << 8;
    const std::size_t bytes = std::min(told % (program.encoded_bytes_max + 2), size - 2);
    const ProgramStep& step = program.steps[program.receives[next++]];
    // A copy of that very length, so that a sanitizer sees what is read beyond it.
    const std::unique_ptr<std::byte[]> copy(new std::byte[bytes]);
    if (bytes != 0) std::memcpy(copy.get(), data + 2, bytes);
    data += 2 + bytes;
    size -= 2 + bytes;
    const auto place = executor.place_for(step.peer, step.tag, 0, static_cast<std::uint32_t>(bytes));
    if (place.kind == Executor::PlaceKind::kUnknown) {
      require(bytes == 0 || bytes > program.encoded_bytes_max);
      continue;
    }
    bool other_landing = false;
    executor.arrived(place.task, {copy.get(), bytes}, &other_landing);
    require(executor.fault().ok() || executor.fault().code() == CANARY_MISMATCH);
    if (!executor.fault().ok()) break;  // the engine ends the group
    for (std::uint32_t peer = 0; peer < program.peers.size(); ++peer) {
      while (executor.has_send(peer)) {
        const auto ready = executor.peek_send(peer);
        require(ready.bytes != 0 && ready.bytes <= program.encoded_bytes_max);
        executor.pop_send(peer);
        executor.sent(ready.task);
      }
    }
  }
  return 0;
}
