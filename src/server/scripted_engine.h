// A scripted engine: token pieces and delays from a file, behind the real engine, cache and server: for tests of the
// HTTP path and for load tests that must not depend on a model.
//
//   {"answers": [{"pieces": ["Hel", "lo", {"hex": "F09F"}]}],   at least one; the prompt's last token picks one
//    "step_us": 1000,          a step takes so long (default 0)
//    "prompt_token_us": 10,    and so much more for each token beyond the sequences' first (default 0)
//    "max_model_len": 8192, "chat_template": "...",
//    "failing_token": 33,      a step that computes this id fails as by a bug (default: none)
//    "endless": false}         true: after the last piece the first one comes again, not the end of the text
//
// A prompt is cut into bytes, token ids 0 to 255; id 256 ends a text; pieces have ids from 258 on.
#pragma once

#include <memory>
#include <string>

#include "kvarto/engine.h"

namespace kvarto {

// `text` is the file's content. Errors name the field.
Result<std::unique_ptr<Engine>> scripted_engine(const std::string& text, const EngineOptions& options);

}  // namespace kvarto
