#include "engine/group.h"

#include "kernels/crc32c.h"

namespace canarynet {

Operation* GroupMember::find(std::uint32_t number) {
  for (Operation& op : operations) {
    if (op.number == number) return &op;
  }
  return nullptr;
}

std::uint32_t signature_hash(wire::SignaturePayload signature) {
  signature.world_rank = 0;  // the only field that may differ
  return crc32c(0, &signature, sizeof signature);
}

std::string describe(const wire::SignaturePayload& s) {
  const auto op = static_cast<Collective>(s.collective);
  std::string out(name_of(op));
  if (op == Collective::kBarrier) return out;
  out += " " + std::string(name_of(static_cast<DataType>(s.type))) + " n=" + std::to_string(s.count);
  if (reduces(op)) out += " " + std::string(name_of(static_cast<ReduceOp>(s.redop)));
  if (s.root >= 0) out += " root=" + std::to_string(s.root);
  return out + " " + std::string(name_of(static_cast<PlannerId>(s.planner))) +
         " piece=" + std::to_string(s.piece_bytes);
}

}  // namespace canarynet
