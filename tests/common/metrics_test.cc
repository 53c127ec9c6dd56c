#include "common/metrics.h"

#include <gtest/gtest.h>

#include <string>

namespace pdserve {
namespace {

bool Has(const std::string& page, const std::string& line) {
  return page.find(line + "\n") != std::string::npos;
}

TEST(MetricsTest, SeriesWithoutLabelsAreThereAtZeroFromTheStart) {
  const auto metrics = Metrics::Create();
  const std::string page = metrics->Render();
  EXPECT_TRUE(Has(page, "pdserve_running_requests 0"));
  EXPECT_TRUE(Has(page, "pdserve_late_cancels_total 0"));
  EXPECT_TRUE(Has(page, "pdserve_request_e2e_seconds_count 0"));
}

TEST(MetricsTest, LabelsKeepTheirOrder) {
  const auto metrics = Metrics::Create();
  metrics->Add(Series::kRequests, {"chat", "200"}, 2);
  metrics->Add(Series::kRequests, {"chat", "200"}, 1);
  metrics->Set(Series::kBlocks, {"n1", "free"}, 7);
  const std::string page = metrics->Render();
  EXPECT_TRUE(Has(page, "pdserve_requests_total{code=\"200\",endpoint=\"chat\"} 3"));
  EXPECT_TRUE(Has(page, "pdserve_kv_blocks{node=\"n1\",state=\"free\"} 7"));
}

TEST(MetricsTest, ADepartedNodeTakesItsSeriesAlongButNotItsUpGauge) {
  const auto metrics = Metrics::Create();
  metrics->Set(Series::kBlocks, {"gone", "free"}, 7);
  metrics->Set(Series::kBlocks, {"here", "free"}, 8);
  metrics->Set(Series::kNodeUp, {"gone"}, 0);
  metrics->RemoveNode("gone");
  const std::string page = metrics->Render();
  EXPECT_FALSE(Has(page, "pdserve_kv_blocks{node=\"gone\",state=\"free\"} 7"));
  EXPECT_TRUE(Has(page, "pdserve_kv_blocks{node=\"here\",state=\"free\"} 8"));
  EXPECT_TRUE(Has(page, "pdserve_node_up{node=\"gone\"} 0"));
}

TEST(MetricsTest, APageThatCannotListenSaysSo) {
  const auto metrics = Metrics::Create();
  EXPECT_EQ(metrics->Serve("256.0.0.1:1").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace pdserve
