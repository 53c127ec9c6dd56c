#include "common/metrics.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/mutex.h"
#include "common/version.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace pdserve {
namespace {

enum class Kind { kCounter, kGauge, kSeconds };

struct Definition {
  Kind kind;
  std::string name;
  std::vector<std::string> labels;
  std::string help;
};

std::vector<Definition> Definitions() {
  std::vector<Definition> definitions;
#define PD_DEFINE(kind, id, name, labels, help) \
  definitions.push_back(                        \
      {Kind::k##kind, name, absl::StrSplit(labels, ',', absl::SkipEmpty()), help});
  PD_METRICS(PD_DEFINE)
#undef PD_DEFINE
  return definitions;
}

// From a token's relay to a long prompt's queue; 1-2-5 steps.
const prometheus::Histogram::BucketBoundaries& TimeBuckets() {
  static const auto* buckets = new prometheus::Histogram::BucketBoundaries{
      .0005, .001, .0025, .005, .0075, .01, .015, .02, .03, .04, .05,  .075, .1,  .15,
      .2,    .3,   .5,    .75,  1,     1.5, 2.5,  5,   7.5, 10,  20.0, 40,   80., 160};
  return *buckets;
}

class PrometheusMetrics final : public Metrics {
 public:
  PrometheusMetrics() : definitions_(Definitions()), registry_(new prometheus::Registry) {
    for (const Definition& definition : definitions_) families_.push_back(Build(definition));
    for (size_t i = 0; i < definitions_.size(); ++i) {
      if (definitions_[i].labels.empty()) Touch(static_cast<Series>(i));
    }
    Set(Series::kBuildInfo, {kVersion}, 1);
  }

  void Add(Series series, Labels labels, double amount) override {
    MutexLock lock(&mutex_);
    Find(series, labels).counter->Increment(amount);
  }
  void Set(Series series, Labels labels, double value) override {
    MutexLock lock(&mutex_);
    Find(series, labels).gauge->Set(value);
  }
  void Observe(Series series, Labels labels, double seconds) override {
    MutexLock lock(&mutex_);
    Find(series, labels).histogram->Observe(seconds);
  }

  void RemoveNode(std::string_view node) override {
    MutexLock lock(&mutex_);
    for (auto it = members_.begin(); it != members_.end();) {
      const size_t index = it->first.first;
      const auto& labels = definitions_[index].labels;
      const bool is_of_node = !labels.empty() && labels.front() == "node" &&
                              it->first.second.front() == node &&
                              static_cast<Series>(index) != Series::kNodeUp;
      if (is_of_node) Remove(index, it->second);
      it = is_of_node ? members_.erase(it) : std::next(it);
    }
  }

  std::string Render() const override {
    return prometheus::TextSerializer().Serialize(registry_->Collect());
  }

  absl::Status Serve(const std::string& address) override {
    try {
      exposer_ = std::make_unique<prometheus::Exposer>(address);
      exposer_->RegisterCollectable(registry_);
    } catch (const std::exception& error) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", error.what()));
    }
    return absl::OkStatus();
  }

 private:
  struct Family {
    prometheus::Family<prometheus::Counter>* counters = nullptr;
    prometheus::Family<prometheus::Gauge>* gauges = nullptr;
    prometheus::Family<prometheus::Histogram>* histograms = nullptr;
  };
  struct Member {
    prometheus::Counter* counter = nullptr;
    prometheus::Gauge* gauge = nullptr;
    prometheus::Histogram* histogram = nullptr;
  };
  using Key = std::pair<size_t, std::vector<std::string>>;

  Family Build(const Definition& definition) {
    Family family;
    const auto& [kind, name, labels, help] = definition;
    if (kind == Kind::kCounter) {
      family.counters = &prometheus::BuildCounter().Name(name).Help(help).Register(*registry_);
    } else if (kind == Kind::kGauge) {
      family.gauges = &prometheus::BuildGauge().Name(name).Help(help).Register(*registry_);
    } else {
      family.histograms = &prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_);
    }
    return family;
  }

  void Touch(Series series) {
    MutexLock lock(&mutex_);
    Find(series, {});
  }

  Member& Find(Series series, Labels labels) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t index = static_cast<size_t>(series);
    const Definition& definition = definitions_[index];
    PD_CHECK(labels.size() == definition.labels.size());
    Key key{index, {labels.begin(), labels.end()}};
    const auto found = members_.find(key);
    if (found != members_.end()) return found->second;
    std::map<std::string, std::string> named;
    for (size_t i = 0; i < key.second.size(); ++i) named[definition.labels[i]] = key.second[i];
    Member member;
    const Family& family = families_[index];
    if (family.counters != nullptr) member.counter = &family.counters->Add(named);
    if (family.gauges != nullptr) member.gauge = &family.gauges->Add(named);
    if (family.histograms != nullptr) {
      member.histogram = &family.histograms->Add(named, TimeBuckets());
    }
    return members_.emplace(std::move(key), member).first->second;
  }

  void Remove(size_t index, const Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Family& family = families_[index];
    if (member.counter != nullptr) family.counters->Remove(member.counter);
    if (member.gauge != nullptr) family.gauges->Remove(member.gauge);
    if (member.histogram != nullptr) family.histograms->Remove(member.histogram);
  }

  const std::vector<Definition> definitions_;
  const std::shared_ptr<prometheus::Registry> registry_;
  std::vector<Family> families_;  // [series], set in the constructor
  Mutex mutex_;
  std::map<Key, Member> members_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace

std::unique_ptr<Metrics> Metrics::Create() { return std::make_unique<PrometheusMetrics>(); }

}  // namespace pdserve
