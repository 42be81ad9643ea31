// Model: the forward pass of one loaded model over a backend. Const after load; forward() is called by the owner only,
// the workspace being the one mutable thing. Row results depend on a row's tokens and position alone, never on its
// batch.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "base/memory.h"
#include "model/batch.h"
#include "model/config.h"

namespace kvarto {

// Buffers of a forward pass, sized once for the largest step. Rows are [max_rows][...].
class Workspace {
 public:
  static Result<Workspace> make(const ModelConfig& config, uint32_t max_rows, std::shared_ptr<Ledger> ledger);
  // One for passes that run between the parts of a pass in `other`: what is needed within a layer alone is that one's.
  // At most as many rows.
  static Result<Workspace> make_beside(const Workspace& other, const ModelConfig& config, uint32_t max_rows,
                                       std::shared_ptr<Ledger> ledger);
  // What these will allocate: for the planner.
  static size_t bytes(const ModelConfig& config, uint32_t max_rows);
  static size_t bytes_beside(const ModelConfig& config, uint32_t max_rows);

  uint32_t max_rows = 0;
  // Through a whole pass.
  float* x = nullptr;               // the residual stream
  std::vector<float*> cos, sin;     // [ropes] -> [rows][pairs]
  std::vector<uint64_t> positions;  // [rows]
  // Within a layer.
  float *h = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *mixed = nullptr, *gate = nullptr, *up = nullptr;
  std::vector<AppendRows> append_rows;  // [sequences]
  std::vector<AttendRows> attend_rows;

 private:
  float* take_kept(const ModelConfig& config, float* next);
  Slab slab_;
};

struct LayerRange {
  uint32_t first = 0, end = 0;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  uint32_t layers() const { return static_cast<uint32_t>(config().layers.size()); }
  // Final hidden states (after the last norm) of batch.logit_rows: hidden [logit_rows][width]. Writes K/V through the
  // views.
  void forward(const Batch& batch, Workspace& workspace, float* hidden) const {
    run(batch, {0, layers()}, workspace, hidden);
  }
  // A part of that: some layers. Parts ascend and follow one another; the one that ends with the last layer fills
  // `hidden`. In between, batch, views and what `workspace` holds through a pass must stay as they are.
  virtual void run(const Batch& batch, LayerRange range, Workspace& workspace, float* hidden) const = 0;
  // out [rows][vocabulary] from hidden [rows][width]. Callers keep rows small (64) and reduce at once.
  virtual void logits(const float* hidden, size_t rows, float* out) const = 0;
  // Bytes of weights one pass over all layers and the head reads.
  virtual size_t pass_bytes() const = 0;
  // KV values beyond the range of a half float that were saturated so far.
  virtual uint64_t saturated_kv_values() const { return 0; }
};

struct LoadOptions {
  std::function<void(size_t done_bytes, size_t total_bytes)> progress;  // may be empty; called from the loading thread
};
// Loads weights tensor by tensor. Errors name the tensor: missing, wrong shape, type not built, or one that the
// architecture does not know (a tensor that would be ignored is refused).
Result<std::shared_ptr<const Model>> load_model(std::shared_ptr<const GgufFile> file, std::shared_ptr<Backend> backend,
                                                const LoadOptions& options = {});
// Bytes of weights in memory after load_model, and the largest operands of a step: for the planner and the backend.
Result<size_t> loaded_weight_bytes(const GgufFile& file, bool reference);
StepShape step_shape(const ModelConfig& config, uint32_t max_rows);

}  // namespace kvarto
