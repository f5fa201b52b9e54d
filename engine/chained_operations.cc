// All-reduces by artopk, agtopk, power and svd: their phases enter one after the other, as operations of their member.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "compress/codec_ask.h"
#include "engine/engine.h"

namespace canarynet {
namespace {

OperationChain& chain_for(GroupMember& m, const CodecSpec& spec) {
  if (needs_shape(spec.kind)) {
    if (!m.low_rank) m.low_rank = std::make_unique<LowRankChain>();
    return *m.low_rank;
  }
  if (!m.top_k) m.top_k = std::make_unique<TopKChain>();
  return *m.top_k;
}

}  // namespace

bool Engine::is_chain(const GroupMember& m, const OpRequest& r) {
  if (r.collective != Collective::kAllReduce || r.codec == 0 || r.count == 0 || m.group->members.size() == 1)
    return false;
  const auto spec = codec_named(r.codec);
  return spec.ok() && makes_chain(spec.value().kind);
}

// Its first phase, the one operation that it is where its choice is dense, or the error that ends it.
void Engine::begin_chain(GroupMember& m, const CalledOperation& called) {
  if (m.group->dead) return enter(m, called);  // which says why it can't be
  const std::uint32_t asked = called.request.codec;
  const bool chosen = asks_for_choice(asked);
  const std::size_t candidate = chosen ? chosen_candidate(m, called.request, m.entered + 1) : 0;
  const CodecSpec spec = chosen ? candidates_of(asked).specs[candidate] : codec_named(asked).value();
  if (spec.kind == CodecKind::kDense) return enter(m, called);
  if (Status prepared = prepare_chain(m, called, spec, candidate); !prepared.ok()) {
    Verdict v;
    v.code = prepared.code();
    v.rank = m.world_rank;
    v.op = m.entered + 1;
    v.text = prepared.text();
    kill(*m.group, v, true);  // the others would wait for this rank
    return enter(m, called);
  }
  enter_phase(m);
}

// Takes all the memory that the chain needs before its first phase, and nothing is entered yet: a call that gets none
// is entered once, to end.
Status Engine::prepare_chain(GroupMember& m, const CalledOperation& called, const CodecSpec& spec,
                             std::size_t candidate) {
  const OpRequest& r = called.request;
  try {
    OperationChain::Choice choice;
    choice.candidate = candidate;
    if (asks_for_choice(r.codec)) choice.cell = cell_of_asked(m, r);
    if (r.tensor != 0) {
      if (Status known = m.feedback.prepare(r.tensor, tensor_elements(r)); !known.ok())
        return Status(known.code(), rank_name(m.world_rank) + ": " + known.text());
    }
    chains_due_.reserve(members_);
    OperationChain& chain = chain_for(m, spec);
    const OperationChain::Place place{m.rank, static_cast<int>(m.group->members.size()), m.entered + 1};
    chain.begin(called, spec, choice, place, r.tensor != 0 ? &m.feedback : nullptr, now_);
    m.chain = &chain;
    return {};
  } catch (const std::bad_alloc&) {
    return Status(CANARY_LIMIT, "rank " + std::to_string(m.world_rank) + " has no memory left for this operation");
  }
}

// The phase that is due; in a group that is dead it ends the call.
void Engine::enter_phase(GroupMember& m) {
  OperationChain& chain = *m.chain;
  if (held(m)) {
    chains_due_.push_back(&m);
    return;
  }
  const CalledOperation phase = chain.take_phase();
  const std::size_t before = m.operations.size();
  enter(m, phase);
  if (m.group->dead || m.operations.size() == before) chain.end();  // it has ended at once, and told its caller
}

void Engine::enter_phases() {
  for (std::size_t i = chains_due_.size(); i-- > 0;) {
    GroupMember& m = *chains_due_[i];
    if (m.chain->due() && held(m)) continue;
    chains_due_.erase(chains_due_.begin() + static_cast<std::ptrdiff_t>(i));
    if (m.chain->due()) enter_phase(m);
  }
}

// Of a call that has ended well, for those who choose the next one's codec. Its first phase has told no time, so the
// number of that has the call's.
void Engine::note_chain_time(GroupMember& m) {
  const OperationChain& chain = *m.chain;
  CodecUse::Cell* const cell = chain.choice().cell;
  if (cell == nullptr) return;
  const Nanos time = now_ - chain.began();
  ChoiceUse::Took& took = cell->took[chain.choice().candidate];
  took.note(time);
  if (m.group->decisions) m.group->decisions->note_time(chain.number(), time, &took);
}

// A phase has ended. Whether the call goes on; else `status` is how it ended.
bool Engine::go_on(GroupMember& m, std::uint32_t number, Nanos entered, Status* status) {
  OperationChain& chain = *m.chain;
  // A phase that has a codec may be refused; then all ranks hear of it, and nothing else ends.
  const bool refused = status->code() == CANARY_INVALID_ARGUMENT && !m.group->dead && needs_shape(chain.spec().kind);
  if (!status->ok() && !refused) {
    chain.end();
    return false;
  }
  int culprit = m.rank;
  const Status went = chain.go_on(refused, &culprit);
  if (went.ok() && chain.active()) {
    chains_due_.push_back(&m);
    return true;
  }
  chain.end();
  const OpRequest& r = chain.called().request;
  if (went.ok()) {
    note_chain_time(m);
    if (chain.went_dense()) return false;  // and that operation has told what became of its tensor
    codec_value_bytes_ += chain.value_bytes();
    codec_encoded_bytes_ += chain.encoded_bytes();
    if (r.tensor != 0) {
      m.feedback.commit(r.tensor, chain.sent_energy(), chain.energy(), chain.left_energy(), part_of_tensor(r));
    }
    return false;
  }
  if (went.code() == CANARY_MISMATCH) {
    Verdict v;
    v.code = went.code();
    v.rank = m.group->members[static_cast<std::size_t>(culprit)];
    v.op = number;
    v.text = "operation #" + std::to_string(number) + " of group " + std::to_string(m.group->flow) + ": rank " +
             std::to_string(v.rank) + " sent what does not decode: " + went.text();
    kill(*m.group, v, true);
    *status = m.group->verdict;
    return false;
  }
  ErrorDetail d;
  d.op = number;
  d.op_name = std::string(name_of(r.collective));
  d.group = m.group->flow;
  d.phase = "exchange";
  d.elapsed = now_ - entered;
  std::string text = went.text();
  if (const Refusal& refusal = chain.refusal(); refusal.there()) {
    d.rank = m.group->members[std::min<std::size_t>(refusal.rank, m.group->members.size() - 1)];
    text = (r.tensor != 0 ? "tensor " + std::to_string(r.tensor) + ", " : "") + "element " +
           std::to_string(refusal.element + r.part_begin) + " of rank " + std::to_string(d.rank) + " is " +
           std::to_string(refusal.value) + ", which codec " + to_text(chain.spec()) + " does not encode";
  }
  *status = Status(CANARY_INVALID_ARGUMENT, d.op_name + " #" + std::to_string(number) + ": " + text, d);
  return false;
}

}  // namespace canarynet
