#include "src/comm/heartbeats.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "src/base/error.hpp"

namespace nanorun {

namespace {

/// Rounds without a beat after which a rank of the same node counts as dead, so that the next one writes in its place.
constexpr int rounds_to_replace = 3;
/// Rounds within which a node that lives and waits shows it in its file.
constexpr int rounds_to_answer = 2;
/// How many times as many nodes are asked where none of the nearer ones has answered.
constexpr int widening = 4;

std::uint64_t beats_of(const std::vector<Heartbeat>& ranks) {
  return std::accumulate(ranks.begin(), ranks.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Heartbeat& rank) { return sum + rank.beats; });
}

}  // namespace

static_assert(sizeof(Culprit) % sizeof(std::uint64_t) == 0 && std::is_trivially_copyable_v<Culprit>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<double>::is_always_lock_free);

void HeartbeatSlot::publish(const Culprit& culprit, std::uint64_t collective) {
  const auto words = std::bit_cast<Words>(culprit);
  ++version_;
  collective_ = collective;
  for (std::size_t i = 0; i < words.size(); ++i) words_[i] = words[i];
  ++version_;
}

/// None while the rank writes it, and for ever if it dies meanwhile.
std::optional<Culprit> HeartbeatSlot::culprit(std::uint64_t collective) const {
  const std::uint64_t version = version_;
  Words words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = words_[i];
  const bool is_of_it = collective_ >= collective;
  if (version == 0 || version % 2 == 1 || version_ != version || !is_of_it) return std::nullopt;
  return std::bit_cast<Culprit>(words);
}

Heartbeats::Heartbeats(std::string directory, const NodeLayout& layout, int rank, std::span<HeartbeatSlot> node,
                       std::vector<std::string> hosts)
    : files_(std::move(directory)),
      layout_(layout),
      hosts_(std::move(hosts)),
      node_number_(layout.node_of(rank)),
      place_(layout.place_of(rank)),
      node_(node),
      seen_(place_),
      still_(place_) {}

Heartbeats::~Heartbeats() {
  own().left = true;
  if (std::ranges::all_of(node_, [](const HeartbeatSlot& rank) { return rank.left.load(); }))
    files_.remove(node_number_);
}

void Heartbeats::begin() const {
  if (place_ == 0) files_.write(node_number_, std::vector<Heartbeat>(node_.size()));
}

void Heartbeats::round() {
  if (!is_writer()) {
    search_.reset();
    return;
  }
  std::vector<Heartbeat> ranks;
  for (const HeartbeatSlot& rank : node_) ranks.push_back(rank.heartbeat());
  quietly([&] { files_.write(node_number_, ranks); });
  const std::optional<int> waiting = longest_waiting();
  if (waiting) {
    search(*waiting);
  } else {
    search_.reset();
  }
}

std::optional<Culprit> Heartbeats::culprit(std::uint64_t collective) const {
  for (const HeartbeatSlot& rank : node_) {
    if (std::optional<Culprit> culprit = rank.culprit(collective)) return culprit;
  }
  return std::nullopt;
}

std::string Heartbeats::text(const Culprit& culprit) const {
  std::function<std::string(int)> host_of;
  if (!hosts_.empty()) host_of = [this](int rank) { return hosts_[layout_.node_of(rank)]; };
  return text_of(culprit, directory(), host_of);
}

double Heartbeats::frozen_seconds() const {
  double longest = 0;
  for (const HeartbeatSlot& rank : node_) longest = std::max(longest, rank.frozen_seconds.load());
  return longest;
}

/// Whether no lower rank of the node lives.
bool Heartbeats::is_writer() {
  bool all_still = true;
  for (int place = 0; place < place_; ++place) {
    const std::uint64_t beats = node_[place].beats;
    still_[place] = std::exchange(seen_[place], beats) == beats ? still_[place] + 1 : 0;
    all_still = all_still && still_[place] >= rounds_to_replace;
  }
  return all_still;
}

/// The place of a rank that waits too long, of several in the last collective; none where no rank does.
std::optional<int> Heartbeats::longest_waiting() const {
  std::optional<int> found;
  for (int place = 0; place < static_cast<int>(node_.size()); ++place) {
    if (node_[place].activity < Activity::late) continue;
    if (!found || node_[place].collectives > node_[*found].collectives) found = place;
  }
  return found;
}

void Heartbeats::search(int waiting) {
  const std::uint64_t collective = node_[waiting].collectives;
  if (!search_ || search_->collective != collective) search_.emplace(collective, node_number_);
  if (search_->left_to_another) return;
  search_->left_to_another = std::ranges::any_of(search_->asked, [&](const Asked& asked) { return waits_too(asked); });
  const bool begins = search_->asked.empty() && !search_->then;
  if (search_->left_to_another || (!begins && ++search_->rounds < rounds_to_answer)) return;
  if (search_->then) return judge(*search_->then, waiting);
  ask_further_nodes(*search_);
}

void Heartbeats::ask_further_nodes(Search& search) {
  const int count = search.asked.empty() ? 1 : widening * static_cast<int>(search.asked.size());
  search.asked.clear();
  search.rounds = 0;
  if (search.lowest == 0) {
    search.then = view();
    return;
  }
  for (int i = 0; i < count && search.lowest > 0; ++i) {
    const int node = --search.lowest;
    search.asked.push_back({node, read(node)});
  }
}

/// Whether the node has gone on since it was asked, and waits in a collective for too long itself.
bool Heartbeats::waits_too(const Asked& asked) {
  const std::vector<Heartbeat> now = read(asked.node);
  for (std::size_t place = 0; place < now.size(); ++place) {
    if (now[place].beats != asked.then[place].beats && now[place].activity >= Activity::late) return true;
  }
  return false;
}

void Heartbeats::judge(const View& then, int waiting) {
  if (node_[waiting].activity < Activity::due) return;
  const View now = view();
  // If the directory does not even take the lines of this node, those of other nodes say nothing.
  const bool sees_others = layout_.nodes() == 1 || now.beats_in_file != then.beats_in_file;
  std::vector<int> suspects;
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    if (sees_others || layout_.node_of(rank) == node_number_) suspects.push_back(rank);
  }
  own().publish(find_culprit(then.ranks, now.ranks, suspects, layout_.rank_at(node_number_, waiting),
                             node_[waiting].writes_files),
                node_[waiting].collectives);
}

std::vector<Heartbeat> Heartbeats::read(int node) {
  ++files_read_;
  return files_.read(node, layout_.ranks_on(node));
}

Heartbeats::View Heartbeats::view() {
  View view{.ranks = std::vector<Heartbeat>(layout_.ranks())};
  for (int node = 0; node < layout_.nodes() && layout_.nodes() > 1; ++node) {
    const std::vector<Heartbeat> ranks = read(node);
    for (int place = 0; place < layout_.ranks_on(node); ++place)
      view.ranks[layout_.rank_at(node, place)] = ranks[place];
    if (node == node_number_) view.beats_in_file = beats_of(ranks);
  }
  for (int place = 0; place < layout_.ranks_on(node_number_); ++place)
    view.ranks[layout_.rank_at(node_number_, place)] = node_[place].heartbeat();
  return view;
}

}  // namespace nanorun
