#include "examples/train_fashion_mnist/options.h"

#include <algorithm>
#include <charconv>

namespace train {
namespace {

constexpr const char* kHelp =
    R"(train_fashion_mnist: trains a small network on all ranks, each with its share of the images.
  --data DIR          Fashion-MNIST's four .gz files [/usr/share/datasets/fashion-mnist]
  --network NAME      dense: 784-256-128-10; conv: two convolutions, 128, 10 [dense]
  --codec CODEC       the gradient travels by this codec, such as sketch:8, with error feedback [none]
  --feedback on|off   whether what the codec leaves out joins the next gradient; off for terngrad [on]
  --codec-momentum M  of each rank's gradient, before a sparse codec, in place of --momentum [0: none]
  --ratio HIGH:LOW    how much a sparse codec keeps, which then is named without its ratio (artopk:star), is chosen
                      while training goes on, between these shares: 0.1:0.001. The gradient is one bucket [none]
  --warm-up N         steps in which a sparse codec keeps more, from a quarter of all values on [0]
  --merge NAME        ranges that travel together: exact (as measured), mgwfbp, wfbp (none), synceasgd (all) [exact]
  --buckets NAME      layers: each travels once it is there; one: all together, chosen from as one [layers]
  --steps N           steps of the optimizer [700]
  --batch N           images per rank and step [128]
  --rate R            learning rate, falling to a tenth of it [0.1]
  --momentum M        of the average, in the optimizer [0.9; 0 with --codec-momentum]
  --seed N            of weights and order of the images [1]
  --report-every N    steps between lines of progress [50]
  --min-accuracy A    exit 1 when the test accuracy is below, such as 0.85 or 85 (per cent)
  --exchange-only N   no training: exchanges the same gradient N times and tells how long that takes
  --json FILE         figures for programs, written by rank 0, or the first one that is left
  --sync POLICY       who waits for whom: bsp, bsp:quorum=75, ssp:3, asp, canary:s=18,p=6; or who averages with whom:
                      esync, esync-nb, ripples:smart, ripples:random, ripples:static; or who exchanges what local
                      steps have changed: diloco:h=20,fragments=4,overlap=5 [none: all, with every gradient].
                      --steps counts iterations of each rank; with asp and canary those that all make on average
  --slow RANK:Fx,...  with --sync: these ranks take F times as long to compute, by sleeping: 1:4x
  --pace MS           with --sync: computing an iteration takes at least so long, by sleeping [0]
  --seconds S         with --sync: trains for so long, in place of --steps
Start it with one process per rank:  canary-run -n 4 -- train_fashion_mnist
Exit status: 0 done; 1 failed, or not accurate enough; 2 wrong arguments.)";

template <typename T>
bool number(const std::string& text, T min, T max, T* out) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= min) || !(value <= max)) return false;
  *out = value;
  return true;
}

// "1:4x,3:2.5x"
bool slowness(const std::string& text, std::vector<std::pair<std::size_t, double>>* out) {
  out->clear();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size()), colon = text.find(':', at);
    std::pair<std::size_t, double> one;
    if (colon >= end || text[end - 1] != 'x') return false;
    if (!number(text.substr(at, colon - at), std::size_t{0}, std::size_t{1'000'000}, &one.first)) return false;
    if (!number(text.substr(colon + 1, end - 1 - (colon + 1)), 1.0, 1000.0, &one.second)) return false;
    for (const auto& other : *out) {
      if (other.first == one.first) return false;
    }
    out->push_back(one);
    at = end + 1;
  }
  return true;
}

// "0.1:0.001"
bool shares(const std::string& text, double* high, double* low) {
  const std::size_t colon = std::min(text.find(':'), text.size() - 1);
  return !text.empty() && number(text.substr(0, colon), 0.000001, 1.0, high) &&
         number(text.substr(colon + 1), 0.000001, *high, low);
}

// Returns what is wrong with the value, or nothing.
std::string set(const std::string& option, const std::string& value, Options* o) {
  const auto count = [&](std::size_t* out, std::size_t min, std::size_t max) -> std::string {
    if (number(value, min, max, out)) return {};
    return "takes a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  };
  if (option == "--data") return o->data = value, "";
  if (option == "--json") return o->json = value, "";
  if (option == "--codec") return o->codec = value, "";
  if (option == "--sync") return o->sync = value, "";
  if (option == "--slow")
    return slowness(value, &o->slow) ? ""
                                     : "takes ranks and how many times slower each is, from 1x to 1000x: 1:4x,3:2x";
  if (option == "--pace") return number(value, 0.0, 60'000.0, &o->pace_ms) ? "" : "takes milliseconds from 0 to 60000";
  if (option == "--seconds") return number(value, 0.1, 1e6, &o->seconds) ? "" : "takes a number from 0.1 to 1000000";
  if (option == "--network") {
    if (value != "dense" && value != "conv") return "takes dense or conv";
    return o->network = value, "";
  }
  if (option == "--merge") {
    if (value != "exact" && value != "mgwfbp" && value != "wfbp" && value != "synceasgd")
      return "takes exact, mgwfbp, wfbp or synceasgd";
    return o->merge = value, "";
  }
  if (option == "--buckets") {
    if (value != "layers" && value != "one") return "takes layers or one";
    return o->one_bucket = value == "one", "";
  }
  if (option == "--ratio")
    return shares(value, &o->ratio_high, &o->ratio_low) ? "" : "takes two shares, the larger one first: 0.1:0.001";
  if (option == "--warm-up") return count(&o->warm_up, 0, 1'000'000);
  if (option == "--feedback") {
    if (value != "on" && value != "off") return "takes on or off";
    return o->feedback = value == "on", "";
  }
  if (option == "--codec-momentum")
    return number(value, 0.0f, 0.9999f, &o->codec_momentum) ? "" : "takes a number from 0 to 0.9999";
  if (option == "--steps") return count(&o->steps, 1, 1'000'000);
  if (option == "--batch") return count(&o->batch, 1, 10'000);
  if (option == "--report-every") return count(&o->report_every, 1, 1'000'000);
  if (option == "--exchange-only") return count(&o->exchange_only, 1, 1'000'000);
  if (option == "--seed") return number<std::uint64_t>(value, 0, ~0ull, &o->seed) ? "" : "takes a whole number";
  if (option == "--rate") return number(value, 1e-9f, 100.0f, &o->rate) ? "" : "takes a number above 0, such as 0.1";
  if (option == "--momentum")
    return number(value, 0.0f, 0.9999f, &o->momentum) ? "" : "takes a number from 0 to 0.9999";
  if (option == "--min-accuracy") {
    if (!number(value, 0.0, 100.0, &o->accuracy_min)) return "takes a share such as 0.85, or per cent such as 85";
    if (o->accuracy_min > 1) o->accuracy_min /= 100;
    return {};
  }
  return "is no option";
}

}  // namespace

double Options::slowness_of(int rank) const {
  for (const auto& [slow_rank, factor] : slow) {
    if (slow_rank == static_cast<std::size_t>(rank)) return factor;
  }
  return 1;
}

Parsed parse_options(const std::vector<std::string>& arguments) {
  Parsed parsed;
  const auto refuse = [&](const std::string& text) {
    parsed.exit_status = 2;
    parsed.text = "train_fashion_mnist: " + text + " (see --help)";
    return parsed;
  };
  bool momentum_given = false, steps_given = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string option = arguments[i], value;
    if (option == "--help" || option == "-h") {
      parsed.exit_status = 0;
      parsed.text = kHelp;
      return parsed;
    }
    const auto equals = option.find('=');
    if (equals != std::string::npos) {
      value = option.substr(equals + 1);
      option.resize(equals);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      Options ignored;
      const bool known = set(option, "1", &ignored) != "is no option";
      return refuse(option + (known ? ": its value is missing" : ": is no option"));
    }
    momentum_given |= option == "--momentum";
    steps_given |= option == "--steps";
    if (const std::string problem = set(option, value, &parsed.options); !problem.empty()) {
      return refuse(option + (problem == "is no option" ? "" : " " + value) + ": " + problem);
    }
  }
  const Options& o = parsed.options;
  for (const auto& [given, option] : {std::pair{o.warm_up != 0, "--warm-up"},
                                      {!o.feedback, "--feedback off"},
                                      {o.codec_momentum != 0, "--codec-momentum"},
                                      {o.ratio_high != 0, "--ratio"}}) {
    if (given && o.codec.empty()) return refuse(std::string(option) + ": there is no --codec");
  }
  if (o.ratio_high != 0) {
    if (o.warm_up != 0) return refuse("--warm-up: --ratio says how much is kept");
    parsed.options.one_bucket = true;
  }
  for (const auto& [given, option] :
       {std::pair{o.codec_momentum != 0, "--codec-momentum"}, {o.ratio_high != 0, "--ratio"}}) {
    if (given && !o.feedback) return refuse(std::string(option) + ": not with --feedback off");
  }
  if (o.of_matrices() && o.one_bucket)
    return refuse("--codec " + o.codec + ": it takes layers one by one, not --buckets one");
  if (o.merge != "exact" && (!o.codec.empty() || o.one_bucket))
    return refuse("--merge " + o.merge + ": ranges are no bundle with " + (o.one_bucket ? "--buckets one" : "--codec"));
  if (o.codec_momentum != 0) {
    if (momentum_given && o.momentum != 0) return refuse("--codec-momentum: it takes the place of --momentum");
    parsed.options.momentum = 0;
  }
  if (o.sync.empty()) {
    for (const auto& [given, option] :
         {std::pair{!o.slow.empty(), "--slow"}, {o.pace_ms != 0, "--pace"}, {o.seconds != 0, "--seconds"}}) {
      if (given) return refuse(std::string(option) + ": there is no --sync");
    }
  } else {
    // Where a codec's errors come with the next one.
    const bool deltas = o.sync.rfind("diloco", 0) == 0 || o.sync.rfind("esync", 0) == 0;
    for (const auto& [given, option] : {std::pair{!o.codec.empty() && !deltas, "--codec"},
                                        {o.warm_up != 0, "--warm-up"},
                                        {!o.feedback, "--feedback off"},
                                        {o.codec_momentum != 0, "--codec-momentum"},
                                        {o.ratio_high != 0, "--ratio"},
                                        {o.exchange_only != 0, "--exchange-only"},
                                        {o.one_bucket, "--buckets one"},
                                        {o.merge != "exact", "--merge"}}) {
      if (given) return refuse("--sync " + o.sync + ": not with " + option);
    }
    if (o.seconds != 0 && steps_given) return refuse("--seconds: it takes the place of --steps");
  }
  if (parsed.options.exchange_only > 0 && !parsed.options.codec.empty())
    return refuse("--codec " + parsed.options.codec + ": --exchange-only looks for exact results");
  return parsed;
}

}  // namespace train
