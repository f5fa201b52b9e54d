#include "sim/swarm_exchanges.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "sim/oracle.h"

namespace canarynet {
namespace {

double pattern(std::size_t i) { return static_cast<double>(1 + i % 7); }

void fill(DataType type, std::byte* to, std::size_t count, double value) {
  for (std::size_t i = 0; i < count; ++i) {
    const double element = value * pattern(i);
    const auto half = static_cast<float>(element);
    std::memcpy(to + i * size_of(type), type == CANARY_F64 ? static_cast<const void*>(&element) : &half, size_of(type));
  }
}

double element_at(DataType type, const std::byte* from, std::size_t i) {
  double element = 0;
  float half = 0;
  std::memcpy(type == CANARY_F64 ? static_cast<void*>(&element) : &half, from + i * size_of(type), size_of(type));
  return type == CANARY_F64 ? element : static_cast<double>(half);
}

}  // namespace

std::string SwarmExchanges::describe(const Terms& terms) {
  std::string text = "exchange " + std::to_string(terms.number) + " of " + std::to_string(terms.count) +
                     (terms.type == CANARY_F64 ? " doubles" : " floats") + (terms.redop == CANARY_SUM ? ", sum" : "") +
                     (terms.weighted ? ", weighted" : "") + ", among ranks";
  for (const int r : terms.ranks) text += " " + std::to_string(r);
  return text;
}

void SwarmExchanges::call(int rank, const Terms& terms, double value, double weight) {
  const int lowest = *std::min_element(terms.ranks.begin(), terms.ranks.end());
  Exchange& exchange = exchanges_[{terms.number, lowest}];
  if (exchange.calls.empty()) {
    exchange.terms = terms;
    exchange.calls.resize(terms.ranks.size());
  }
  if (exchange.terms.ranks != terms.ranks)
    return fail(describe(terms) + ", and " + describe(exchange.terms) + ": two lists under one number");
  const auto place =
      static_cast<std::size_t>(std::find(terms.ranks.begin(), terms.ranks.end(), rank) - terms.ranks.begin());
  CANARY_CHECK(place < terms.ranks.size() && !calls(rank), "a call that the swarm does not make");
  Call& call = exchange.calls[place];
  if (call.called) return fail(describe(terms) + ": rank " + std::to_string(rank) + " is told to make it twice");
  const std::size_t bytes = terms.count * size_of(terms.type);
  call.called = true;
  call.value = terms.type == CANARY_F64 ? value : static_cast<double>(static_cast<float>(value));
  call.weight = weight;
  call.output = std::make_unique<LentMemory>(bytes);
  if (!terms.in_place) call.input = std::make_unique<LentMemory>(bytes);
  call.ticket = std::make_unique<OpTicket>();
  std::byte* const input = terms.in_place ? call.output->data() : call.input->data();
  fill(terms.type, input, terms.count, call.value);
  LentMemory words((port::kPartialHead + terms.ranks.size()) * sizeof(std::uint64_t));
  auto* const numbers = reinterpret_cast<std::uint64_t*>(words.data());
  std::fill_n(numbers, std::size_t{port::kPartialHead}, std::uint64_t{0});
  numbers[port::kPartialNumber] = terms.number;
  numbers[port::kPartialWeight] = std::bit_cast<std::uint64_t>(weight);
  for (std::size_t i = 0; i < terms.ranks.size(); ++i)
    numbers[port::kPartialHead + i] = static_cast<std::uint64_t>(terms.ranks[i]);
  pending_[rank] = {&exchange, place};
  ++called_;
  const GroupMember* const member = cluster_->world(rank);
  const OpRequest request{.collective = Collective::kAllReduce,
                          .input = input,
                          .output = call.output->data(),
                          .count = terms.count,
                          .type = terms.type,
                          .redop = terms.redop};
  cluster_->submit(rank, port::partial(member->id, request, {numbers, port::kPartialHead + terms.ranks.size()},
                                       terms.weighted, cluster_->id(member, call.ticket.get())));
  words.take_back();
  if (const std::string where = shelf_.add(std::move(words)); !where.empty()) fail(where);
}

void SwarmExchanges::settle(int host, const std::function<void(const End&)>& told) {
  const int end = cluster_->first_rank(host + 1);
  for (auto at = pending_.lower_bound(cluster_->first_rank(host)); at != pending_.end() && at->first < end;) {
    const auto [exchange, place] = at->second;
    if (!exchange->calls[place].ticket->done()) {
      ++at;
      continue;
    }
    at = pending_.erase(at);
    told(settle(*exchange, place));
  }
}

SwarmExchanges::End SwarmExchanges::settle(Exchange& exchange, std::size_t place) {
  Call& call = exchange.calls[place];
  const int rank = exchange.terms.ranks[place];
  End end{rank, exchange.terms.number, call.ticket->code == CANARY_OK};
  const std::string who = "rank " + std::to_string(rank) + ", " + describe(exchange.terms) + ": ";
  if (end.ok) {
    const std::byte* const result = call.output->data();
    std::string wrong = check(exchange, result);
    call.digest = oracle::digest(result, call.output->size());
    end.value = element_at(exchange.terms.type, result, 0);
    for (const Call& other : exchange.calls) {
      if (other.ok && other.digest != call.digest) wrong = "other bits than at another member";
    }
    if (call.input != nullptr) {
      LentMemory given(call.input->size());
      fill(exchange.terms.type, given.data(), exchange.terms.count, call.value);
      // Weights are applied to a copy.
      if (std::memcmp(given.data(), call.input->data(), given.size()) != 0) wrong = "its input was written";
    }
    call.ok = true;
    if (!wrong.empty()) fail(who + wrong);
  } else {
    ++errors_;
    if (const std::string wrong = excuse_(exchange.terms.ranks, rank, call.ticket->status); !wrong.empty())
      fail(who + wrong);
  }
  give_back(call);
  return end;
}

std::string SwarmExchanges::check(const Exchange& exchange, const std::byte* result) const {
  const Terms& terms = exchange.terms;
  double sum = 0, size = 0, weights = 0;
  for (std::size_t i = 0; i < exchange.calls.size(); ++i) {
    const Call& call = exchange.calls[i];
    if (!call.called) return "it succeeded before rank " + std::to_string(terms.ranks[i]) + " had called it";
    const double weight = terms.weighted ? call.weight : 1;
    sum += weight * call.value;
    size += weight * std::abs(call.value);
    weights += weight;
  }
  const double scale = terms.redop == CANARY_AVG ? 1 / weights : 1;
  const double tolerance = size * scale * (terms.type == CANARY_F64 ? 1e-12 : 1e-5);
  for (std::size_t i = 0; i < terms.count; ++i) {
    const double expected = sum * scale * pattern(i), found = element_at(terms.type, result, i);
    if (!(std::abs(found - expected) <= tolerance * pattern(i)))
      return "element " + std::to_string(i) + " is " + std::to_string(found) + ", not " + std::to_string(expected);
  }
  return "";
}

void SwarmExchanges::give_back(Call& call) {
  for (std::unique_ptr<LentMemory>* const memory : {&call.input, &call.output}) {
    if (*memory == nullptr) continue;
    (*memory)->take_back();
    if (const std::string where = shelf_.add(std::move(**memory)); !where.empty()) fail(where);
    memory->reset();
  }
}

void SwarmExchanges::bury(int host) {
  std::erase_if(pending_, [&](const auto& one) { return cluster_->host_of(one.first) == host; });
}

void SwarmExchanges::close() {
  if (const std::string where = shelf_.trespass(); !where.empty()) fail(where);
}

std::string SwarmExchanges::pending() const {
  std::string text;
  for (const auto& [rank, call] : pending_) {
    text += "; rank " + std::to_string(rank) + ": " + describe(call.first->terms);
    if (text.size() > 1000) return text + " ...";
  }
  return text;
}

}  // namespace canarynet
