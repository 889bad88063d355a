// Preloaded beside test-llama-archs: every row of logits that it asks for goes to the file that LOGITS_FILE names as
// well, and its log is complete: a thread of its own writes that, and is not waited for at the end. A record is 64 bytes
// of the model's architecture, the number of logits in 8 bytes, the logits.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>

extern "C" {

struct llama_context;
struct llama_model;
struct llama_vocab;
const llama_model* llama_get_model(const llama_context* context);
const llama_vocab* llama_model_get_vocab(const llama_model* model);
std::int32_t llama_vocab_n_tokens(const llama_vocab* vocab);
std::int32_t llama_model_meta_val_str(const llama_model* model, const char* key, char* to, std::size_t size);

float* llama_get_logits_ith(llama_context* context, std::int32_t i) {
    using function = float* (*)(llama_context*, std::int32_t);
    static const auto next = reinterpret_cast<function>(dlsym(RTLD_NEXT, "llama_get_logits_ith"));
    static const char* const path = std::getenv("LOGITS_FILE");
    static std::FILE* const file = path != nullptr ? std::fopen(path, "wb") : nullptr;
    float* const logits = next(context, i);
    if (file == nullptr || logits == nullptr) return logits;
    const llama_model* const model = llama_get_model(context);
    char name[64] = {};
    llama_model_meta_val_str(model, "general.architecture", name, sizeof name);
    const std::int64_t count = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::fwrite(name, 1, sizeof name, file);
    std::fwrite(&count, sizeof count, 1, file);
    std::fwrite(logits, sizeof *logits, static_cast<std::size_t>(count), file);
    return logits;
}

[[gnu::destructor]] void write_log() {
    // common_log_main(), common_log_flush(common_log*)
    const auto log = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "_Z15common_log_mainv"));
    const auto flush =
        reinterpret_cast<void (*)(void*)>(dlsym(RTLD_DEFAULT, "_Z16common_log_flushP10common_log"));
    if (log != nullptr && flush != nullptr) flush(log());
}
}
